//! The specification under TLC: every configuration must hold, every planted bug must be caught.

mod checks;
mod readme;
mod report;
mod tlc;

use crate::workspace::Workspace;
use anyhow::{Result, bail};
use checks::{Checks, Expected, Run};
use report::Found;
use std::time::Duration;
use tlc::Tlc;

/// Options of `cargo xtask spec`.
#[derive(Debug, Default)]
pub struct Options {
    /// Includes the larger configurations.
    pub large: bool,
    /// Beginning of the names of the runs; `None` chooses by `large`.
    pub only: Option<String>,
    /// Threads of TLC; `None` uses all processors.
    pub workers: Option<usize>,
}

/// Runs the configurations of CI.
pub fn short(workspace: &Workspace) -> Result<()> {
    run(workspace, &Options::default())
}

/// Runs TLC on the configurations of `spec/checks.toml` and prints a table. Fails unless all hold
/// and every planted bug breaks the invariant that the table names.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    readme::check(workspace)?;
    let checks = Checks::load(workspace)?;
    let runs = checks.runs(options.large, options.only.as_deref());
    if runs.is_empty() {
        bail!("no run of spec/checks.toml has such a name");
    }
    let tlc = Tlc::prepare(workspace, options.workers)?;
    println!("{:<13} {:<32} {:>10} {:>8}  verdict", "module", "configuration", "states", "seconds");
    let (mut bad, mut caught, mut bugs) = (Vec::new(), 0, 0);
    for run in &runs {
        let outcome = tlc.check(run)?;
        let (is_right, verdict) = judge(run, &outcome.found);
        let seconds = outcome.took.as_secs_f64();
        let states = outcome.states.map(|states| states.to_string()).unwrap_or_default();
        println!("{:<13} {:<32} {states:>10} {seconds:>8.1}  {verdict}", run.module, run.name);
        if !is_right {
            println!("{}", outcome.tail);
            bad.push(run.name.clone());
        }
        if matches!(run.expected, Expected::Violates(_)) {
            bugs += 1;
            caught += usize::from(is_right);
        }
    }
    let held = runs.len() - bugs;
    println!("spec: {held} configurations, planted bugs caught: {caught} of {bugs}");
    if !bad.is_empty() {
        bail!("not as expected: {}", bad.join(", "));
    }
    Ok(())
}

/// Returns whether a run ended as expected, and a text about its end.
fn judge(run: &Run, found: &Found) -> (bool, String) {
    match (&run.expected, found) {
        (Expected::Holds, Found::NoError) => (true, "holds".to_owned()),
        (Expected::Violates(expected), Found::Violated(invariant)) if expected == invariant => {
            (true, format!("caught: {invariant}"))
        }
        (Expected::Violates(_), Found::NoError) => (false, "NOT CAUGHT".to_owned()),
        (_, Found::Violated(invariant)) => (false, format!("VIOLATES {invariant}")),
        (_, Found::TimedOut) => (false, format!("TIMED OUT after {}", seconds(run.limit))),
        (_, Found::Failed(reason)) => (false, format!("FAILED: {reason}")),
    }
}

fn seconds(limit: Duration) -> String {
    format!("{} s", limit.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(expected: Expected) -> Run {
        let limit = Duration::from_secs(60);
        let (name, module) = ("store".to_owned(), "KvsRaft".to_owned());
        Run { name, module, configuration: String::new(), expected, limit }
    }

    #[test]
    fn a_planted_bug_counts_as_caught_only_by_the_invariant_it_breaks() {
        let bug = run(Expected::Violates("LogWhole".to_owned()));
        assert!(judge(&bug, &Found::Violated("LogWhole".to_owned())).0);
        assert!(!judge(&bug, &Found::Violated("LogMatching".to_owned())).0);
        assert!(!judge(&bug, &Found::NoError).0);
        assert!(!judge(&bug, &Found::TimedOut).0);
    }

    #[test]
    fn a_configuration_holds_only_if_all_of_it_was_explored() {
        let good = run(Expected::Holds);
        assert!(judge(&good, &Found::NoError).0);
        assert!(!judge(&good, &Found::Violated("LogWhole".to_owned())).0);
        assert!(!judge(&good, &Found::TimedOut).0);
        assert!(!judge(&good, &Found::Failed("no memory".to_owned())).0);
    }
}
