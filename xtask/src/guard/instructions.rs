//! Instructions of fixed batches in one thread (`cargo lab batches`), counted by callgrind: the same
//! program with the same inputs executes the same ones, whatever else the machine does.

use super::table::Count;
use crate::process::{Ended, in_parallel, run_limited};
use anyhow::{Context, Result, bail};
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

/// The longest first.
const BATCHES: [Batch; 9] = [
    batch("core-regions", "a put to each of 100 regions, three stores", 20),
    batch("core-64", "a put of 64 at a time, three stores", 20),
    batch("core-1", "a put alone, three stores", 200),
    batch("engine-put", "a put of 64 at a time, one engine", 50),
    batch("engine-get", "a get of a value in memory", 20),
    batch("engine-scan", "a scan of 50 sorted pairs", 50),
    batch("engine-flush", "a put in a flush of 1024", 5),
    batch("transport-encode", "an entry in a frame of 64, encoded", 100),
    batch("transport-decode", "an entry in a frame of 64, decoded", 100),
];

/// The function of `lab` of which the instructions are counted, with those that it calls.
const COUNTED: &str = "*guard::counted_round*";
const LIMIT: Duration = Duration::from_secs(120);

/// Counts every batch.
pub(super) fn count(lab: &Path) -> Result<Vec<Count>> {
    let mut counts = in_parallel(BATCHES.iter().enumerate(), |(at, batch)| {
        let per_operation = batch.count(lab, batch.rounds)?;
        let name = format!("instructions: {}", batch.operation);
        Ok((at, Count { name, count: per_operation }))
    })?;
    counts.sort_by_key(|(at, _)| *at);
    Ok(counts.into_iter().map(|(_, count)| count).collect())
}

impl Batch {
    /// Returns the instructions of an operation.
    fn count(&self, lab: &Path, rounds: u64) -> Result<f64> {
        let file = tempfile::NamedTempFile::new().context("creating a file for the counts")?;
        let mut run = Command::new("valgrind");
        run.args(["-q", "--tool=callgrind", &format!("--toggle-collect={COUNTED}")]);
        run.arg(format!("--callgrind-out-file={}", file.path().display())).arg(lab);
        run.args(["batches", self.name, "--count", &rounds.to_string()]);
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
