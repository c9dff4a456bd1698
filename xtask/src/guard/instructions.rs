//! Instructions of fixed batches in one thread (`cargo lab batches`), counted by callgrind: the same
//! program with the same inputs executes the same ones, whatever else the machine does.

use super::table::{ABOVE, Count, Found, Table};
use crate::process::{Ended, in_parallel, run_limited};
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A batch, and what one of its operations is.
struct Batch {
    name: &'static str,
    operation: &'static str,
    rounds: u64,
}

const fn batch(name: &'static str, operation: &'static str, rounds: u64) -> Batch {
    Batch { name, operation, rounds }
}

const PUTS: Batch = batch("core-64", "a put, 64 at a time, three stores", 20);
/// The same puts with one in sixteen that does not count.
const DEARER_PUTS: Batch = Batch { name: "core-64-dearer", ..PUTS };

/// The same puts while a stream, which takes nothing, needs the log of their region.
const FOLLOWED_PUTS: Batch = Batch { name: "core-64-followed", ..PUTS };
/// Percent by which such a stream may make a put dearer.
const FOLLOWED_PERCENT_MAX: f64 = 1.0;

/// The longest first.
const BATCHES: [Batch; 12] = [
    batch("core-regions", "a put to each of 100 regions, three stores", 20),
    PUTS,
    DEARER_PUTS,
    FOLLOWED_PUTS,
    batch("core-1", "a put alone, three stores", 200),
    batch("core-redis", "a command of Redis, 64 at a time, three stores", 20),
    batch("engine-put", "a put, 64 at a time, one engine", 50),
    batch("engine-get", "a get of a value in memory", 20),
    batch("engine-scan", "a scan of 50 sorted pairs", 50),
    batch("engine-flush", "a put in a flush of 1024", 5),
    batch("transport-encode", "an entry in a frame of 64, encoded", 100),
    batch("transport-decode", "an entry in a frame of 64, decoded", 100),
];

/// The function of `lab` of which the instructions are counted, with those that it calls.
const COUNTED: &str = "*guard::counted_round*";
const LIMIT: Duration = Duration::from_secs(120);

/// Counts every batch. Fails if the dearer puts would pass for the usual ones, and if an idle stream makes puts
/// dearer than it may.
pub(super) fn count(lab: &Path) -> Result<Vec<Count>> {
    let mut counts = in_parallel(BATCHES.iter().enumerate(), |(at, batch)| {
        Ok((at, batch.name, Count { name: batch.row(), count: batch.count(lab)? }))
    })?;
    counts.sort_by_key(|(at, ..)| *at);
    let mut take = |name: &str| {
        let at = counts.iter().position(|(_, of, _)| *of == name);
        at.map(|at| counts.remove(at).2).with_context(|| format!("no counts of `{name}`"))
    };
    let (dearer, followed) = (take(DEARER_PUTS.name)?, take(FOLLOWED_PUTS.name)?);
    let counts: Vec<Count> = counts.into_iter().map(|(.., count)| count).collect();
    ensure!(
        is_noticed(&counts, dearer),
        "puts with a sixteenth more work are not counted as dearer: the counts mean nothing"
    );
    let usual = counts.iter().find(|count| count.name == followed.name).context("no usual puts")?;
    let percent = (followed.count / usual.count - 1.0) * 100.0;
    println!("an idle stream: {percent:+.2} % instructions of {}", PUTS.operation);
    ensure!(
        percent <= FOLLOWED_PERCENT_MAX,
        "an idle stream makes a put {percent:.2} % dearer, and may by {FOLLOWED_PERCENT_MAX} %"
    );
    Ok(counts)
}

/// Returns whether a dearer count in the place of the usual one fails.
fn is_noticed(usual: &[Count], dearer: Count) -> bool {
    let found = |counts: Vec<Count>| Found { instructions: counts, ..Found::default() };
    let usual = usual.iter().filter(|count| count.name == dearer.name).cloned().collect();
    let expected = Table::of(&found(usual), &Table::default());
    let failures = expected.compare(&found(vec![dearer])).failures;
    failures.iter().any(|failure| failure.contains(ABOVE))
}

/// Returns the names of all rows.
#[cfg(test)]
pub(super) fn rows() -> impl Iterator<Item = String> {
    let has_row = |batch: &&Batch| batch.name == PUTS.name || batch.operation != PUTS.operation;
    BATCHES.iter().filter(has_row).map(Batch::row)
}

impl Batch {
    fn row(&self) -> String {
        format!("instructions: {}", self.operation)
    }

    /// Returns the instructions of an operation.
    fn count(&self, lab: &Path) -> Result<f64> {
        let file = tempfile::NamedTempFile::new().context("creating a file for the counts")?;
        let mut run = Command::new("valgrind");
        run.args(["-q", "--tool=callgrind", &format!("--toggle-collect={COUNTED}")]);
        run.arg(format!("--callgrind-out-file={}", file.path().display())).arg(lab);
        run.args(["batches", self.name, "--count", &self.rounds.to_string()]);
        let (ended, printed) = run_limited(&mut run, LIMIT)?;
        if ended != Ended::Exited(true) {
            bail!("{run:?}: {ended:?}: {printed}");
        }
        let counts = std::fs::read_to_string(file.path()).context("reading the counts")?;
        per_operation(&printed, &counts).with_context(|| format!("{run:?} printed {printed}"))
    }
}

/// Divides the instructions of a file of counts by the operations that the program printed.
fn per_operation(printed: &str, counts: &str) -> Result<f64> {
    let number = |text: &str, name: &str| -> Option<u64> {
        text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
    };
    let operations = number(printed, "operations: ").filter(|count| *count > 0);
    let operations = operations.context("it did not print its operations")?;
    let instructions = number(counts, "totals: ").filter(|count| *count > 0);
    let instructions = instructions
        .with_context(|| format!("callgrind counted nothing: is `{COUNTED}` a function of it?"))?;
    Ok(instructions as f64 / operations as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_more_puts_among_64_are_noticed_and_one_more_is_not() {
        let count = |puts: f64| Count { name: "a put".into(), count: 1000.0 * puts / 64.0 };
        assert!(is_noticed(&[count(64.0)], count(68.0)));
        assert!(!is_noticed(&[count(64.0)], count(65.0)));
        assert!(!is_noticed(&[count(64.0)], count(60.0)));
        assert!(!is_noticed(&[], count(68.0)));
    }

    #[test]
    fn instructions_are_divided_by_operations() {
        let counts = "version: 1\nevents: Ir\nfn=(1) a\ntotals: 640\n";
        assert_eq!(per_operation("x\noperations: 64\n", counts).unwrap(), 10.0);
        for (printed, counts) in [
            ("", counts),
            ("operations: 0\n", counts),
            ("operations: 64\n", "totals: 0\n"),
            ("operations: 64\n", ""),
        ] {
            per_operation(printed, counts).unwrap_err();
        }
    }
}
