//! Deliberate bugs against the tests. Every bug in the table must make its test fail: no test
//! covers an invariant if its bug is not caught.

mod suite;
mod table;

pub use table::{Mutant, Table};

use crate::process::{Ended, in_parallel};
use crate::workspace::Workspace;
use anyhow::{Result, bail, ensure};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;
use suite::{Outcome, Suite};

/// Lower bound of the time limit with a mutant: a slow machine must not count as a caught bug.
const LIMIT_MIN: Duration = Duration::from_secs(40);
/// Multiple of the time without a mutant after which a test counts as hanging.
const LIMIT_FACTOR: u32 = 10;
/// Time limit without a mutant.
const SOUND_LIMIT: Duration = Duration::from_secs(600);
/// Last lines shown of a test that fails without a mutant.
const SHOWN_LINES: usize = 30;

/// Options of `cargo xtask mutants`.
#[derive(Debug, Default)]
pub struct Options {
    /// Name of a bug or its beginning.
    pub only: Option<String>,
    /// Prints the table and runs nothing.
    pub list: bool,
}

/// Runs the table; fails unless every chosen bug is caught.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let table = Table::load(workspace)?;
    let chosen = table.chosen(options.only.as_deref());
    ensure!(!chosen.is_empty(), "no deliberate bug is chosen");
    let width = chosen.iter().map(|mutant| mutant.name.len()).max().unwrap_or(0);
    if options.list {
        for mutant in &chosen {
            let Mutant { name, package, test, breaks, .. } = mutant;
            println!("{name:width$}  {package} {test}: {breaks}");
        }
        println!("{} deliberate bugs", chosen.len());
        return Ok(());
    }
    let mut suites: BTreeMap<&str, (Suite, Tests<'_>)> = BTreeMap::new();
    for mutant in &chosen {
        let (_, tests) = match suites.entry(&mutant.package) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                entry.insert((Suite::build(workspace, &mutant.package)?, Tests::new()))
            }
        };
        tests.entry(&mutant.test).or_default().push(mutant);
    }
    let jobs = suites.values().flat_map(|(suite, tests)| tests.values().map(move |it| (suite, it)));
    let missed = in_parallel(jobs, |(suite, mutants)| judge(suite, mutants, width))?.concat();
    println!("mutants: caught {}/{}", chosen.len() - missed.len(), chosen.len());
    // The error names them, because it is the last of all that CI prints.
    ensure!(missed.is_empty(), "not caught: {}", missed.join(" "));
    Ok(())
}

/// Mutants by the test that must catch them.
type Tests<'a> = BTreeMap<&'a str, Vec<&'a Mutant>>;

/// Runs the test that all of `mutants` share with each of them. Returns the names of those that
/// passed it.
fn judge(suite: &Suite, mutants: &[&Mutant], width: usize) -> Result<Vec<String>> {
    let Some(first) = mutants.first() else { return Ok(Vec::new()) };
    let limit = LIMIT_MIN.max(sound(suite, first)? * LIMIT_FACTOR);
    let mut missed = Vec::new();
    for mutant in mutants {
        let outcome = suite.run(&mutant.test, Some(&mutant.name), limit)?;
        let (is_caught, how) = verdict(&outcome);
        println!("{:width$}  {how}  {}", mutant.name, mutant.breaks);
        if !is_caught {
            missed.push(mutant.name.clone());
        }
    }
    Ok(missed)
}

/// Checks that the test runs and passes without a mutant: otherwise its failure would prove
/// nothing.
fn sound(suite: &Suite, mutant: &Mutant) -> Result<Duration> {
    let outcome = suite.run(&mutant.test, None, SOUND_LIMIT)?;
    if outcome.ended != Ended::Exited(true) {
        let lines: Vec<&str> = outcome.printed.lines().collect();
        let tail = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n");
        bail!("{} {} fails without a deliberate bug:\n{tail}", mutant.package, mutant.test);
    }
    let (package, test) = (&mutant.package, &mutant.test);
    ensure!(outcome.passed > 0, "{}: no test of {package} matches `{test}`", mutant.name);
    Ok(outcome.took)
}

fn verdict(outcome: &Outcome) -> (bool, String) {
    let seconds = outcome.took.as_secs_f64();
    match outcome.ended {
        Ended::Exited(true) => (false, format!("NOT CAUGHT     {seconds:6.1} s")),
        Ended::Exited(false) => (true, format!("caught         {seconds:6.1} s")),
        Ended::TimedOut => (true, format!("caught (hangs) {seconds:6.1} s")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_failure_or_a_hang_is_a_catch() {
        let of = |ended| Outcome {
            ended,
            passed: 1,
            took: Duration::from_secs(1),
            printed: String::new(),
        };
        assert!(!verdict(&of(Ended::Exited(true))).0);
        assert!(verdict(&of(Ended::Exited(false))).0);
        let (caught, how) = verdict(&of(Ended::TimedOut));
        assert!(caught && how.contains("hangs"));
    }
}
