//! Medians of rounds, and ratios to another store.

use serde_json::{Map, Value};

/// Returns the median of each number over the rounds, under the same names, without texts and
/// lists.
pub(super) fn medians(rounds: &[Value]) -> Value {
    let Some(first) = rounds.first().and_then(Value::as_object) else { return Value::Null };
    let mut medians = Map::new();
    for name in first.keys() {
        let mut values: Vec<f64> = rounds.iter().filter_map(|round| round[name].as_f64()).collect();
        values.sort_by(f64::total_cmp);
        if let Some(middle) = values.get(values.len() / 2) {
            medians.insert(name.clone(), Value::from(rounded(*middle)));
        }
    }
    Value::Object(medians)
}

pub(super) fn ratios(ours: &Value, other: &Value) -> Value {
    let Some(fields) = ours.as_object() else { return Value::Null };
    let pairs = fields.iter().filter_map(|(name, value)| {
        let ratio = value.as_f64()? / other[name].as_f64()?;
        ratio.is_finite().then(|| (name.clone(), Value::from(rounded(ratio))))
    });
    Value::Object(pairs.collect())
}

/// Rounds to four significant digits, more than repeated runs agree on.
pub(super) fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let digits = 3 - value.abs().log10().floor() as i32;
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn medians_and_ratios() {
        let rounds = [json!({"a": 1, "t": "x"}), json!({"a": 9}), json!({"a": 4.0})];
        assert_eq!(medians(&rounds), json!({"a": 4.0}));
        assert_eq!(ratios(&json!({"a": 3.0, "b": 1}), &json!({"a": 2.0})), json!({"a": 1.5}));
        assert_eq!(ratios(&json!({"a": 3.0}), &json!({"a": 0})), json!({}));
        assert_eq!((rounded(123456.0), rounded(0.012344), rounded(0.0)), (123500.0, 0.01234, 0.0));
    }
}
