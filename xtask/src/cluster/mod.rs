//! Clusters of real servers under faults and foreign clients: builds the programs of
//! `cluster-tests` and runs its scenarios.

mod programs;

use crate::process::{Ended, in_parallel_by, run_limited};
use crate::programs::STELE;
use crate::workspace::Workspace;
use anyhow::{Result, bail};
use programs::Programs;
pub(crate) use programs::porcupine;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Scenarios that a change must pass, with arguments that keep them short. They check what happens, not how
/// fast: two run at a time.
const CI_TOGETHER: [(&str, &[&str]); 14] = [
    ("history", &["--short"]),
    ("ycsb", &["--short"]),
    ("power-cut", &["--short"]),
    ("clients", &["--short"]),
    ("kill", &["--rounds", "6"]),
    ("resize", &["--short"]),
    ("device-failure", &["--short"]),
    ("failed-sync", &["--short"]),
    ("learner", &["--short"]),
    ("replace", &["--rounds", "1"]),
    ("changed-addresses", &["--rounds", "2"]),
    ("pause", &["--rounds", "2"]),
    ("sessions", &["--short"]),
    ("backup", &["--short"]),
];

/// Scenarios that a change must pass, and that check a time, a rate or a peak of memory: each has the
/// machine to itself.
const CI_ALONE: [(&str, &[&str]); 13] = [
    ("start", &["--short"]),
    ("partition", &["--rounds", "4"]),
    ("failover", &["--rounds", "3"]),
    ("graceful-restart", &["--short"]),
    ("shape", &["--short"]),
    ("hostile", &["--rounds", "1"]),
    ("hostile-tls", &["--short"]),
    ("memory", &["--short"]),
    ("bytes-written", &["--short"]),
    ("clock", &["--short"]),
    ("slow-store", &["--short"]),
    ("small-deletes", &["--short"]),
    ("disk-full", &["--short"]),
];

/// Time limit of a scenario that runs beside another.
const TOGETHER_LIMIT: Duration = Duration::from_secs(600);
/// Scenarios that run at the same time if they measure nothing.
const TOGETHER: usize = 2;

/// Scenarios that take long or need an otherwise idle machine.
const REST: [&str; 2] = ["idle", "slow-disk"];

/// Runs `cluster ARGUMENTS`: `ci`, `all`, or one scenario with its arguments. With `--stele FILE`,
/// another server than that of this source is tested.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let Some((first, rest)) = arguments.split_first() else {
        bail!("name a scenario: {}, or `ci`, or `all`", names().join(", "));
    };
    // It needs another program, and none of the foreign ones.
    if first == "upgrade" {
        return crate::upgrade::run(workspace, rest);
    }
    let is_dev = rest.iter().any(|argument| argument == "--dev");
    let rest: Vec<&str> =
        rest.iter().map(String::as_str).filter(|argument| *argument != "--dev").collect();
    match first.as_str() {
        "ci" => in_pairs(workspace).and(alone(workspace)),
        "all" => {
            let all: Vec<(&str, &[&str])> =
                names().into_iter().map(|name| (name, &*rest)).collect();
            each(workspace, &all, !is_dev)
        }
        name if names().contains(&name) => each(workspace, &[(name, &*rest)], !is_dev),
        other => bail!("no scenario `{other}`; there are {}", names().join(", ")),
    }
}

/// Builds the clients and checkers in other languages, and runs their own tests.
pub(crate) fn foreign(workspace: &Workspace) -> Result<()> {
    Programs::foreign(workspace, PathBuf::new()).map(drop)
}

/// Runs the scenarios of CI that check no time, two at a time, with the development build.
pub(crate) fn in_pairs(workspace: &Workspace) -> Result<()> {
    let (stele, programs) = build(workspace, &CI_TOGETHER, false)?;
    let run = |it: &Scenario<'_>| scenario(workspace, stele.as_deref(), &programs, *it, false);
    summarise(&in_parallel_by(TOGETHER, CI_TOGETHER.iter(), run)?)
}

/// Runs the other scenarios of CI, one after the other, with the development build.
pub(crate) fn alone(workspace: &Workspace) -> Result<()> {
    each(workspace, &CI_ALONE, false)
}

fn names() -> Vec<&'static str> {
    CI_TOGETHER.iter().chain(&CI_ALONE).map(|(name, _)| *name).chain(REST).collect()
}

/// Name and arguments.
type Scenario<'a> = (&'a str, &'a [&'a str]);

#[derive(Debug)]
struct Done {
    name: String,
    /// Requirements that were not met; empty if it passed.
    failures: Vec<String>,
    took: Duration,
}

/// Runs every scenario, even after a failure; fails if one failed.
fn each(workspace: &Workspace, scenarios: &[Scenario<'_>], release: bool) -> Result<()> {
    let (stele, programs) = build(workspace, scenarios, release)?;
    let run = |it: &Scenario<'_>| scenario(workspace, stele.as_deref(), &programs, *it, true);
    summarise(&scenarios.iter().map(run).collect::<Result<Vec<_>>>()?)
}

/// Builds the server, unless the arguments name one, and the programs of the scenarios.
fn build(
    workspace: &Workspace,
    scenarios: &[Scenario<'_>],
    release: bool,
) -> Result<(Option<PathBuf>, Programs)> {
    let has_server = scenarios.iter().any(|(_, arguments)| arguments.contains(&"--stele"));
    let stele = match has_server {
        true => None,
        false => Some(crate::programs::build(workspace, STELE, release)?),
    };
    Ok((stele, Programs::build(workspace, release)?))
}

/// Runs one scenario. Shows its output line by line, or in one piece at its end.
fn scenario(
    workspace: &Workspace,
    stele: Option<&Path>,
    programs: &Programs,
    (name, arguments): Scenario<'_>,
    is_shown: bool,
) -> Result<Done> {
    let work = workspace.target.join("cluster-tests/work");
    std::fs::create_dir_all(&work)?;
    let started = Instant::now();
    let mut harness = Command::new(&programs.harness);
    harness.arg(name).args(arguments).arg("--work").arg(&work);
    if let Some(stele) = stele {
        harness.arg("--stele").arg(stele);
    }
    harness.args(programs.flags());
    let failures = match is_shown {
        true => {
            println!("-- {name}");
            failures_shown(&mut harness)?
        }
        false => {
            let (ended, printed) = run_limited(&mut harness, TOGETHER_LIMIT)?;
            println!("-- {name}\n{}", printed.trim_end());
            let is_met = ended == Ended::Exited(true);
            failures(is_met, &format!("{ended:?}"), printed.lines().filter_map(not_met).collect())
        }
    };
    Ok(Done { name: name.to_owned(), failures, took: started.elapsed() })
}

/// Prints one line for each scenario; fails if one failed.
fn summarise(done: &[Done]) -> Result<()> {
    for Done { name, failures, took } in done {
        let verdict = if failures.is_empty() { "met" } else { "NOT MET" };
        println!("{name:17} {:7.1} s  {verdict}", took.as_secs_f64());
    }
    let failed = done.iter().filter(|it| !it.failures.is_empty());
    let failed: Vec<String> =
        failed.map(|it| format!("{} ({})", it.name, it.failures.join("; "))).collect();
    if !failed.is_empty() {
        bail!("{} of {} scenarios failed: {}", failed.len(), done.len(), failed.join(", "));
    }
    Ok(())
}

/// Runs a scenario and shows what it prints. Returns the requirements that were not met, so that the
/// last lines of a long run name them; empty if it passed.
fn failures_shown(harness: &mut Command) -> Result<Vec<String>> {
    let mut child = harness.stdout(Stdio::piped()).spawn()?;
    let mut found = Vec::new();
    for line in child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
        let line = line?;
        println!("{line}");
        found.extend(not_met(&line));
    }
    let status = child.wait()?;
    Ok(failures(status.success(), &status.to_string(), found))
}

/// Returns the requirement that was not met, from a line of a scenario's output.
fn not_met(line: &str) -> Option<String> {
    line.strip_prefix("NOT MET: ").map(str::to_owned)
}

/// Returns why a scenario failed: the requirements that were not met, or how it ended.
fn failures(is_met: bool, ended: &str, found: Vec<String>) -> Vec<String> {
    match is_met {
        true => Vec::new(),
        false if found.is_empty() => vec![format!("ended with {ended}")],
        false => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_scenario_names_what_was_not_met_or_how_it_ended() {
        let printed = "put 1\nNOT MET: healed within 3 s: 4\n";
        let found: Vec<String> = printed.lines().filter_map(not_met).collect();
        assert_eq!(failures(false, "1", found.clone()), ["healed within 3 s: 4"]);
        assert_eq!(failures(false, "exit status: 1", Vec::new()), ["ended with exit status: 1"]);
        assert!(failures(true, "0", found).is_empty());
    }

    #[test]
    fn each_scenario_of_ci_runs_once() {
        let mut names = names();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
