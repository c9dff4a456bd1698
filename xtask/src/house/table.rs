//! The table: one row a measure, with its limit.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Limit {
    AtMost(usize),
    AtLeast(usize),
    /// Printed for comparison only.
    None,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub measure: String,
    pub value: Value,
    pub limit: Limit,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Value(f64);

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (self.0 * 10.0).round() / 10.0;
        if tenths.fract() == 0.0 { write!(f, "{tenths:.0}") } else { write!(f, "{tenths:.1}") }
    }
}

impl Row {
    pub(super) fn of(measure: impl Into<String>, count: usize, limit: Limit) -> Self {
        Self::mean(measure, count as f64, limit)
    }

    pub(super) fn mean(measure: impl Into<String>, mean: f64, limit: Limit) -> Self {
        // The sum of no numbers is -0.
        Self { measure: measure.into(), value: Value(mean + 0.0), limit }
    }

    /// Returns whether the value keeps its limit.
    fn is_within(&self) -> bool {
        match self.limit {
            Limit::AtMost(most) => self.value.0 <= most as f64,
            Limit::AtLeast(least) => self.value.0 >= least as f64,
            Limit::None => true,
        }
    }
}

/// Returns the table as Markdown. A value outside its limit is marked.
pub(super) fn table(rows: &[Row]) -> String {
    let mut text = "| measure | value | limit | |\n|---|--:|--:|---|\n".to_owned();
    for row in rows {
        let limit = match row.limit {
            Limit::AtMost(most) => format!("at most {most}"),
            Limit::AtLeast(least) => format!("at least {least}"),
            Limit::None => String::new(),
        };
        let mark = if row.is_within() { "" } else { "outside" };
        text += &format!("| {} | {} | {limit} | {mark} |\n", row.measure, row.value);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_outside_its_limit_is_marked() {
        let rows = [
            Row::of("a", 3, Limit::AtMost(3)),
            Row::mean("b", 3.04, Limit::AtMost(3)),
            Row::mean("c", 2.26, Limit::AtLeast(3)),
            Row::of("d", 9, Limit::None),
        ];
        let expected = "| measure | value | limit | |\n|---|--:|--:|---|\n| a | 3 | at most 3 |  |\n\
                        | b | 3 | at most 3 | outside |\n| c | 2.3 | at least 3 | outside |\n\
                        | d | 9 |  |  |\n";
        assert_eq!(table(&rows), expected);
    }
}
