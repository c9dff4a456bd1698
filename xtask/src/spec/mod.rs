//! The specification under TLC: every configuration must hold, every planted bug must be caught.

mod checks;
mod readme;
mod report;
mod tlc;

use crate::changes::{COMMITS, Changes, ONE_OF};
use crate::process::in_parallel;
use crate::workspace::Workspace;
use anyhow::{Result, bail};
use checks::{Checks, Expected, Run};
use report::Found;
use std::collections::BTreeSet;
use std::thread::available_parallelism;
use std::time::Duration;
use tlc::Tlc;

#[derive(Debug, Default)]
pub(crate) struct Options {
    /// Includes the larger configurations.
    pub large: bool,
    /// Beginning of the names of the runs; `None` chooses by `large`.
    pub only: Option<String>,
    /// Threads of TLC, for one run after the other. `None` uses one thread for each run and as many runs at a
    /// time as there are processors, or all threads for one run after the other if `large` is set.
    pub workers: Option<usize>,
    /// Runs those of modules that the last commits changed and a part of the others: what a run finds depends
    /// on its module and its configuration alone.
    pub recent: bool,
}

/// Runs TLC on the configurations of `spec/checks.toml` and prints a table. Fails unless all hold
/// and every planted bug breaks the invariant that the table names.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    readme::check(workspace)?;
    let checks = Checks::load(workspace)?;
    let mut runs = checks.runs(options.large, options.only.as_deref());
    if runs.is_empty() {
        bail!("no run of spec/checks.toml has such a name");
    }
    if options.recent {
        runs = recent(workspace, runs);
    }
    let tlc = Tlc::prepare(workspace)?;
    println!("{:<13} {:<32} {:>10} {:>8}  verdict", "module", "configuration", "states", "seconds");
    let judged = match threads(options, runs.len()) {
        Some(workers) => runs.iter().map(|run| check(&tlc, run, workers)).collect::<Result<_>>()?,
        None => {
            // Those that explore all states first: no processor then waits long for the other.
            runs.sort_by_key(is_bug);
            in_parallel(runs.iter(), |run| check(&tlc, run, 1))?
        }
    };
    let bugs = runs.iter().filter(|run| is_bug(run)).count();
    let caught = judged.iter().filter(|(run, is_right)| *is_right && is_bug(run)).count();
    let bad: Vec<&str> =
        judged.iter().filter(|(_, is_right)| !is_right).map(|(run, _)| run.name.as_str()).collect();
    let held = runs.len() - bugs;
    println!("spec: {held} configurations, planted bugs caught: {caught} of {bugs}");
    if !bad.is_empty() {
        bail!("not as expected: {}", bad.join(", "));
    }
    Ok(())
}

/// Returns those of `runs` that CI starts at this commit; all if git cannot tell what changed.
fn recent(workspace: &Workspace, runs: Vec<Run>) -> Vec<Run> {
    let changes = match Changes::read(workspace) {
        Ok(changes) => changes,
        Err(error) => {
            println!("spec: all, because git does not say what changed: {error:#}");
            return runs;
        }
    };
    let all = runs.len();
    let chosen = select(&changes, runs);
    println!(
        "spec: {} of {all}: those that the last {COMMITS} commits changed, and one of {ONE_OF} others, chosen by \
         commit {}; `cargo xtask spec` runs all",
        chosen.len(),
        changes.commit()
    );
    chosen
}

/// Returns the runs of changed modules, and the part of the others that the commit chooses. Any other change
/// of the specification or of this tool may concern all runs.
fn select(changes: &Changes, runs: Vec<Run>) -> Vec<Run> {
    let is_of_spec = |file: &&str| file.starts_with("spec/") || file.starts_with("xtask/src/spec/");
    let changed: Vec<&str> =
        changes.files().filter(is_of_spec).filter(|file| !file.ends_with(".md")).collect();
    let module = |file: &str| Some(file.strip_prefix("spec/")?.strip_suffix(".tla")?.to_owned());
    let modules: Option<BTreeSet<String>> = changed.iter().map(|file| module(file)).collect();
    let Some(modules) = modules else { return runs };
    let runs = runs.into_iter().enumerate();
    runs.filter(|(place, run)| modules.contains(&run.module) || changes.is_turn(*place))
        .map(|(_, run)| run)
        .collect()
}

/// Returns the threads of each run if one run follows the other; `None` if they run beside each other, with
/// one thread each.
fn threads(options: &Options, runs: usize) -> Option<usize> {
    let all = available_parallelism().map_or(1, usize::from);
    options.workers.or((options.large || runs == 1).then_some(all))
}

/// Returns whether the run must find a planted bug.
fn is_bug(run: &Run) -> bool {
    matches!(run.expected, Expected::Violates(_))
}

/// Runs TLC once and prints its line of the table. Returns whether it ended as expected.
fn check<'a>(tlc: &Tlc, run: &'a Run, workers: usize) -> Result<(&'a Run, bool)> {
    let outcome = tlc.check(run, workers)?;
    let (is_right, verdict) = judge(run, &outcome.found);
    let seconds = outcome.took.as_secs_f64();
    let states = outcome.states.map(|states| states.to_string()).unwrap_or_default();
    let line =
        format!("{:<13} {:<32} {states:>10} {seconds:>8.1}  {verdict}", run.module, run.name);
    match is_right {
        true => println!("{line}"),
        false => println!("{line}\n{}", outcome.tail),
    }
    Ok((run, is_right))
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

    #[test]
    fn runs_of_changed_modules_and_a_tenth_of_the_others_are_chosen() {
        let runs = Checks::load(&Workspace::load().unwrap()).unwrap().runs(false, None);
        let (all, turn) = (runs.len(), "0000000a");
        let merges = runs.iter().filter(|run| run.module == "RegionMerge").count();
        let chosen = |files: &[&str]| select(&Changes::new(turn, files), runs.clone());
        let tenth = chosen(&["crates/log/src/lib.rs", "spec/README.md"]);
        assert_eq!(tenth.len(), all.div_ceil(ONE_OF));
        let of_merges = chosen(&["spec/RegionMerge.tla"]);
        assert_eq!(of_merges.iter().filter(|run| run.module == "RegionMerge").count(), merges);
        assert!(of_merges.len() > merges && of_merges.len() <= merges + tenth.len());
        for file in ["spec/lease.cfg", "spec/checks.toml", "xtask/src/spec/tlc.rs"] {
            assert_eq!(chosen(&["spec/RegionMerge.tla", file]).len(), all, "{file}");
        }
    }

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
    fn small_runs_share_the_processors_and_large_ones_follow_each_other() {
        assert_eq!(threads(&Options::default(), 70), None);
        assert!(threads(&Options { large: true, ..Options::default() }, 70).is_some());
        assert!(threads(&Options::default(), 1).is_some());
        let workers = Some(3);
        assert_eq!(threads(&Options { workers, ..Options::default() }, 70), workers);
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
