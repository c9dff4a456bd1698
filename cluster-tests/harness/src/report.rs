//! Report of a scenario: one line for people, one for programs.

use serde_json::{Map, Value};

#[derive(Debug, Default)]
pub(crate) struct Report {
    figures: Map<String, Value>,
    failures: Vec<String>,
}

impl Report {
    pub(crate) fn record(&mut self, name: &str, value: impl Into<Value>) {
        self.figures.insert(name.to_owned(), value.into());
    }

    /// Records a requirement: the scenario fails if it does not hold.
    pub(crate) fn require(&mut self, holds: bool, what: impl Into<String>) {
        if !holds {
            let what = what.into();
            println!("NOT MET: {what}");
            self.failures.push(what);
        }
    }

    /// Returns whether every requirement held.
    pub(crate) fn is_met(&self) -> bool {
        self.failures.is_empty()
    }

    pub(crate) fn print(&self, scenario: &str, seed: u64, seconds: f64) {
        let figures: Vec<String> =
            self.figures.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let verdict = if self.is_met() { "met" } else { "NOT MET" };
        println!("{scenario}: {verdict} in {seconds:.1} s; {}", figures.join(" "));
        let object = serde_json::json!({
            "scenario": scenario, "seed": seed, "met": self.is_met(), "seconds": seconds,
            "figures": self.figures, "failures": self.failures,
        });
        println!("{object}");
    }
}

/// Returns the value below which `share` of the samples lie; 0 without samples.
pub(crate) fn percentile(samples: &[f64], share: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or(0.0)
}

pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let samples: Vec<f64> = (1..=50).rev().map(f64::from).collect();
        assert_eq!(percentile(&samples, 0.5), 25.0);
        assert_eq!(percentile(&samples, 0.99), 50.0);
        assert_eq!(percentile(&[], 0.5), 0.0);
    }
}
