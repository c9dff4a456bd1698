//! One JSON line for each measurement, and a summary with medians and their ratios to the first
//! system.

use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Fields with medians in the summary; true if a higher value is better.
const FIGURES: [(&str, bool); 8] = [
    ("ops_per_s", true),
    ("p50_us", false),
    ("p99_us", false),
    ("cpu_us_per_op", false),
    ("written_per_payload", false),
    ("written_per_payload_settled", false),
    ("open_ms", false),
    ("serving_ms", false),
];

struct Row {
    phase: String,
    system: String,
    /// Values of every round, by field.
    figures: BTreeMap<&'static str, Vec<f64>>,
}

/// Rows and systems in order of appearance.
#[derive(Default)]
pub(super) struct Report {
    rows: Vec<Row>,
    systems: Vec<String>,
}

impl Report {
    pub(super) fn add(&mut self, system: &str, round: usize, lines: Vec<Value>) {
        if !self.systems.iter().any(|known| known == system) {
            self.systems.push(system.to_owned());
        }
        for mut line in lines {
            line["system"] = json!(system);
            line["round"] = json!(round);
            println!("{line}");
            let phase = line["phase"].as_str().unwrap_or_default().to_owned();
            if self.row(&phase, system).is_none() {
                let (system, figures) = (system.to_owned(), BTreeMap::new());
                self.rows.push(Row { phase: phase.clone(), system, figures });
            }
            let is = |row: &&mut Row| row.phase == phase && row.system == system;
            let Some(row) = self.rows.iter_mut().find(is) else { continue };
            for (name, _) in FIGURES {
                if let Some(value) = line[name].as_f64() {
                    row.figures.entry(name).or_default().push(value);
                }
            }
        }
    }

    fn row(&self, phase: &str, system: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.phase == phase && row.system == system)
    }

    fn median(&self, phase: &str, system: &str, figure: &str) -> Option<f64> {
        let mut values = self.row(phase, system)?.figures.get(figure)?.clone();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        match values.len() % 2 {
            0 => Some((values.get(middle - 1)? + values.get(middle)?) / 2.0),
            _ => values.get(middle).copied(),
        }
    }

    /// Prints the medians over the rounds; `x` is the factor by which a system is better than the
    /// first.
    pub(super) fn print_summary(&self) {
        let Some(first) = self.systems.first() else { return };
        let mut phases: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !phases.contains(&row.phase.as_str()) {
                phases.push(&row.phase);
            }
        }
        println!("medians; in brackets the factor by which they are better than {first}");
        for phase in phases {
            for (figure, more_is_better) in FIGURES {
                let Some(base) = self.median(phase, first, figure) else { continue };
                let cell = |system: &String| {
                    let value = self.median(phase, system, figure)?;
                    let ratio = if more_is_better { value / base } else { base / value };
                    Some(format!("{system} {value:.2} ({ratio:.2}x)"))
                };
                let cells: Vec<String> = self.systems.iter().filter_map(cell).collect();
                println!("{phase:7} {figure:27} {}", cells.join("  "));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_those_of_the_rounds() {
        let mut report = Report::default();
        for (round, ops) in [5.0, 1.0, 3.0].into_iter().enumerate() {
            report.add("a", round, vec![json!({"phase": "put", "ops_per_s": ops})]);
        }
        report.add("b", 0, vec![json!({"phase": "put", "ops_per_s": 4.0})]);
        report.add("b", 1, vec![json!({"phase": "put", "ops_per_s": 8.0})]);
        assert_eq!(report.median("put", "a", "ops_per_s"), Some(3.0));
        assert_eq!(report.median("put", "b", "ops_per_s"), Some(6.0));
        assert_eq!(report.median("get", "a", "ops_per_s"), None);
    }
}
