//! Deliberate bugs against the suite. Every bug in the table must make its test fail; a bug that
//! nothing catches is a rule that nothing tests.

mod suite;
mod table;

pub use table::{Mutant, Table};

use crate::process::Ended;
use crate::workspace::Workspace;
use anyhow::{Result, bail, ensure};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;
use suite::{Outcome, Suite};

/// The least time a mutant's test may take; a slow machine must not turn into a caught bug.
const LIMIT_MIN: Duration = Duration::from_secs(40);
/// A mutant's test that takes this many times as long as without it hangs.
const LIMIT_FACTOR: u32 = 10;
/// The limit without a mutant.
const SOUND_LIMIT: Duration = Duration::from_secs(600);
/// What of a failed sound run is shown.
const SHOWN_LINES: usize = 30;

/// What to run.
#[derive(Debug, Default)]
pub struct Options {
    /// A name or its beginning.
    pub only: Option<String>,
    /// Print the table and run nothing.
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
    let mut bench = Bench { workspace, suites: BTreeMap::new(), sound: BTreeMap::new() };
    let mut caught = 0;
    for mutant in &chosen {
        let (is_caught, how) = bench.judge(mutant)?;
        caught += usize::from(is_caught);
        println!("{:width$}  {how}  {}", mutant.name, mutant.breaks);
    }
    println!("mutants: caught {caught}/{}", chosen.len());
    if caught < chosen.len() {
        bail!("{} deliberate bugs were not caught", chosen.len() - caught);
    }
    Ok(())
}

/// What was built and found sound so far.
struct Bench<'a> {
    workspace: &'a Workspace,
    suites: BTreeMap<String, Suite>,
    /// How long (package, test) takes without a mutant.
    sound: BTreeMap<(String, String), Duration>,
}

impl Bench<'_> {
    /// Whether the mutant is caught, and how, for the table.
    fn judge(&mut self, mutant: &Mutant) -> Result<(bool, String)> {
        let suite = match self.suites.entry(mutant.package.clone()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Suite::build(self.workspace, &mutant.package)?),
        };
        let sound = match self.sound.entry((mutant.package.clone(), mutant.test.clone())) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => *entry.insert(sound(suite, mutant)?),
        };
        let limit = LIMIT_MIN.max(sound * LIMIT_FACTOR);
        let outcome = suite.run(&mutant.test, Some(&mutant.name), limit)?;
        Ok(verdict(&outcome))
    }
}

/// The test must pass, and run, without a mutant: else its failure would say nothing.
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
