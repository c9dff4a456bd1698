//! The expected counts, and their comparison with those found.

use super::{BLESS, FILE};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// Bounds of new rows, in percent. A row keeps the bound that the file states.
const INSTRUCTIONS_PERCENT: f64 = 3.0;
const KERNEL_PERCENT: f64 = 10.0;

pub(super) const HEADER: &str = "\
# What an operation costs, as `cargo xtask guard` counts it. A count that differs by more than `bound_percent`
# fails. `cargo xtask guard --bless` writes the counts and keeps the bounds.
#
# Instructions are those of the development build, with its checks. Those of one build differ by less than 0.3 %
# between runs, whatever else the machine does. Counts of the kernel are the least of several short rounds, over three
# nodes. Their bound is 10 %, or 30 % where eight runs of one build on a busy machine differed by more than 10 %. They
# depend on the machine: one below its bound passes, and one above it is counted again.
";

/// Word of the failure of a count that is too high.
pub(super) const ABOVE: &str = "above";

/// A count of an operation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Count {
    pub name: String,
    pub count: f64,
}

/// The counts of one run.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    /// Version and host of the compiler.
    pub compiler: String,
    pub instructions: Vec<Count>,
    pub kernel: Vec<Count>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    name: String,
    count: f64,
    bound_percent: f64,
}

/// Content of the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    /// Version and host of the compiler for which the instructions were counted.
    pub compiler: String,
    #[serde(default)]
    instructions: Vec<Row>,
    #[serde(default)]
    kernel: Vec<Row>,
}

/// Result of a comparison.
#[derive(Debug, Default)]
pub(super) struct Compared {
    /// A line for each count.
    pub text: String,
    pub failures: Vec<String>,
}

impl Table {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let table: Self = toml::from_str(text)?;
        for row in table.instructions.iter().chain(&table.kernel) {
            let is_valid = row.count >= 0.0 && row.bound_percent > 0.0;
            ensure!(is_valid, "`{}` needs a count and a bound above 0", row.name);
        }
        Ok(table)
    }

    /// Returns the table that expects what was found, with the bounds of `before`.
    pub(super) fn of(found: &Found, before: &Self) -> Self {
        let rows = |counts: &[Count], before: &[Row], percent: f64| -> Vec<Row> {
            let bound = |name: &str| before.iter().find(|row| row.name == name);
            let row = |Count { name, count }: &Count| Row {
                name: name.clone(),
                count: rounded(*count),
                bound_percent: bound(name).map_or(percent, |row| row.bound_percent),
            };
            counts.iter().map(row).collect()
        };
        Self {
            compiler: found.compiler.clone(),
            instructions: rows(&found.instructions, &before.instructions, INSTRUCTIONS_PERCENT),
            kernel: rows(&found.kernel, &before.kernel, KERNEL_PERCENT),
        }
    }

    pub(super) fn to_text(&self) -> Result<String> {
        let table = toml::to_string(self).context("writing the table")?;
        Ok(format!("{HEADER}\n{table}"))
    }

    /// Whether a count of the kernel is above its bound.
    pub(super) fn is_kernel_above(&self, counts: &[Count]) -> bool {
        let row = |name: &str| self.kernel.iter().find(|row| row.name == name);
        counts.iter().any(|Count { name, count }| {
            row(name).is_some_and(|row| row.differs_by_percent(*count) > row.bound_percent)
        })
    }

    /// Compares the counts. Those of instructions mean nothing for another compiler.
    pub(super) fn compare(&self, found: &Found) -> Compared {
        let mut compared = Compared::default();
        if self.compiler == found.compiler {
            compared.rows(&self.instructions, &found.instructions, Bounds::Both);
        } else {
            // Writing to a string cannot fail.
            let _ = writeln!(
                compared.text,
                "instructions are not compared: {FILE} is for {}, and this is {}; `{BLESS}` on an unchanged \
                 tree counts them for this compiler",
                self.compiler, found.compiler
            );
        }
        compared.rows(&self.kernel, &found.kernel, Bounds::Above);
        compared
    }
}

/// Counts that fail: a machine may need fewer switches than another, but no fewer instructions.
#[derive(Clone, Copy, PartialEq)]
enum Bounds {
    Above,
    Both,
}

impl Compared {
    fn rows(&mut self, rows: &[Row], counts: &[Count], bounds: Bounds) {
        for Count { name, count } in counts {
            let Some(row) = rows.iter().find(|row| row.name == *name) else {
                self.failures.push(format!("{name}: {count:.2} and no row in {FILE}: `{BLESS}`"));
                continue;
            };
            let percent = row.differs_by_percent(*count);
            let _ = writeln!(self.text, "{name}: {count:.2} ({percent:+.1} %)");
            if bounds == Bounds::Both || percent > 0.0 {
                self.failures.extend(row.failure(*count));
            }
        }
        let is_gone = |row: &&Row| counts.iter().all(|count| count.name != row.name);
        for Row { name, .. } in rows.iter().filter(is_gone) {
            self.failures.push(format!("{name}: {FILE} has a row that nothing counts: `{BLESS}`"));
        }
    }
}

impl Row {
    fn differs_by_percent(&self, count: f64) -> f64 {
        match (self.count, count) {
            (0.0, 0.0) => 0.0,
            (expected, count) => 100.0 * (count - expected) / expected,
        }
    }

    /// Returns problem and remedy of a count outside the bound.
    fn failure(&self, count: f64) -> Option<String> {
        let Self { name, count: expected, bound_percent } = self;
        let percent = self.differs_by_percent(count);
        if percent.abs() <= *bound_percent {
            return None;
        }
        let (compared, remedy) = match percent > 0.0 {
            true => (ABOVE, "find what makes the operation dearer, or, if it must be,"),
            false => ("below", "so that the guard stays tight,"),
        };
        Some(format!(
            "{name}: found {count:.2}, {:.1} % {compared} the expected {expected:.2}; allowed are \
             {bound_percent} %: {remedy} bless it with `{BLESS}`",
            percent.abs()
        ))
    }
}

/// Rounds to four digits: more is below every bound.
fn rounded(count: f64) -> f64 {
    if count <= 0.0 {
        return 0.0;
    }
    let unit = 10f64.powf(count.log10().floor() - 3.0);
    let rounded = (count / unit).round() * unit;
    // Removes the error of the unit's own rounding.
    format!("{rounded:.6}").parse().unwrap_or(rounded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(counts: &[(&str, f64)]) -> Vec<Count> {
        counts.iter().map(|(name, count)| Count { name: (*name).into(), count: *count }).collect()
    }

    fn found(instructions: &[(&str, f64)], kernel: &[(&str, f64)]) -> Found {
        let (instructions, kernel) = (counts(instructions), counts(kernel));
        Found { compiler: "rustc 1".into(), instructions, kernel }
    }

    fn failures(table: &Table, found: &Found) -> Vec<String> {
        table.compare(found).failures
    }

    fn table() -> Table {
        Table::of(&found(&[("put", 1000.0)], &[("switches", 10.0)]), &Table::default())
    }

    #[test]
    fn a_count_within_its_bound_passes() {
        for (put, switches) in [(1000.0, 10.0), (1030.0, 11.0), (970.0, 9.0)] {
            let compared = table().compare(&found(&[("put", put)], &[("switches", switches)]));
            assert_eq!(compared.failures, [""; 0]);
            assert_eq!(compared.text.lines().count(), 2, "{}", compared.text);
        }
    }

    #[test]
    fn a_count_above_its_bound_fails_with_row_counts_and_remedy() {
        let failures = failures(&table(), &found(&[("put", 1031.0)], &[("switches", 11.1)]));
        assert_eq!(
            failures,
            [
                "put: found 1031.00, 3.1 % above the expected 1000.00; allowed are 3 %: find what makes the \
                 operation dearer, or, if it must be, bless it with `cargo xtask guard --bless`",
                "switches: found 11.10, 11.0 % above the expected 10.00; allowed are 10 %: find what makes the \
                 operation dearer, or, if it must be, bless it with `cargo xtask guard --bless`",
            ]
        );
    }

    #[test]
    fn a_count_far_below_fails_so_that_the_guard_stays_tight() {
        let failures = failures(&table(), &found(&[("put", 969.0)], &[("switches", 10.0)]));
        assert_eq!(failures.len(), 1);
        assert!(failures[0].contains("3.1 % below the expected 1000.00"), "{failures:?}");
        assert!(failures[0].contains("bless it with `cargo xtask guard --bless`"), "{failures:?}");
    }

    #[test]
    fn a_count_of_the_kernel_fails_only_above_its_bound() {
        let below = found(&[("put", 1000.0)], &[("switches", 1.0)]);
        assert_eq!(failures(&table(), &below), [""; 0]);
        let counts = |count: f64| counts(&[("switches", count)]);
        assert!(!table().is_kernel_above(&counts(1.0)) && !table().is_kernel_above(&counts(10.9)));
        assert!(table().is_kernel_above(&counts(11.1)));
    }

    #[test]
    fn a_row_without_a_count_and_a_count_without_a_row_fail() {
        let failures = failures(&table(), &found(&[("get", 7.0)], &[("switches", 10.0)]));
        assert_eq!(failures.len(), 2);
        assert!(failures[0].starts_with("get: 7.00 and no row in "), "{failures:?}");
        assert!(failures[1].starts_with("put: ") && failures[1].contains("nothing counts"));
    }

    #[test]
    fn instructions_of_another_compiler_are_not_compared_and_the_rest_is() {
        let mut other = found(&[("put", 5000.0)], &[("switches", 20.0)]);
        other.compiler = "rustc 2".into();
        let compared = table().compare(&other);
        assert!(compared.text.starts_with("instructions are not compared: "), "{}", compared.text);
        assert!(compared.text.contains("is for rustc 1, and this is rustc 2"), "{}", compared.text);
        assert_eq!(compared.failures.len(), 1);
        assert!(compared.failures[0].starts_with("switches: "), "{:?}", compared.failures);
    }

    #[test]
    fn a_new_count_of_nothing_is_expected_and_more_than_nothing_fails() {
        let none = found(&[], &[("faults", 0.0)]);
        let table = Table::of(&none, &Table::default());
        assert_eq!(failures(&table, &none), [""; 0]);
        assert_eq!(failures(&table, &found(&[], &[("faults", 0.1)])).len(), 1);
    }

    #[test]
    fn what_is_written_is_read_again_and_bounds_stay() {
        let text = table().to_text().unwrap();
        assert!(text.starts_with("# What an operation costs"), "{text}");
        assert_eq!(Table::parse(&text).unwrap(), table());
        let wide = text.replace("bound_percent = 10.0", "bound_percent = 40.0");
        assert_ne!(wide, text);
        let before = Table::parse(&wide).unwrap();
        let after = Table::of(&found(&[("put", 1.0)], &[("switches", 20.0)]), &before);
        assert_eq!((after.kernel[0].bound_percent, after.kernel[0].count), (40.0, 20.0));
    }

    #[test]
    fn a_malformed_table_is_refused() {
        let text = table().to_text().unwrap();
        let bad = [
            text.replace("compiler", "compilers"),
            text.replace("count = 10.0", "count = -10.0"),
            text.replace("bound_percent = 3.0", "bound_percent = 0.0"),
            text.replace("name = \"put\"\n", ""),
        ];
        for bad in bad {
            assert_ne!(bad, text);
            Table::parse(&bad).unwrap_err();
        }
    }

    #[test]
    fn counts_have_four_digits() {
        let expected =
            [(0.0, 0.0), (0.012_345, 0.01235), (7.654_32, 7.654), (123_456.0, 123_500.0)];
        for (count, rounded_to) in expected {
            assert_eq!(rounded(count), rounded_to, "{count}");
        }
    }
}
