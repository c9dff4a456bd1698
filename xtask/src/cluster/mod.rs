//! Clusters of real servers under faults and foreign clients: builds the programs of
//! `cluster-tests` and runs its scenarios.

mod programs;

use crate::process::build_stele;
use crate::workspace::Workspace;
use anyhow::{Result, bail};
use programs::Programs;
pub use programs::porcupine;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Scenarios that a change must pass, with arguments that keep them short.
const CI: [(&str, &[&str]); 22] = [
    ("start", &["--short"]),
    ("ycsb", &["--short"]),
    ("clients", &["--short"]),
    ("kill", &["--rounds", "6"]),
    ("history", &["--short"]),
    ("partition", &["--rounds", "4"]),
    ("pause", &["--rounds", "2"]),
    ("changed-addresses", &["--rounds", "2"]),
    ("failover", &["--rounds", "3"]),
    ("graceful-restart", &["--short"]),
    ("learner", &["--short"]),
    ("replace", &["--rounds", "1"]),
    ("resize", &["--short"]),
    ("shape", &["--short"]),
    ("hostile", &["--rounds", "1"]),
    ("memory", &["--short"]),
    ("bytes-written", &["--short"]),
    ("power-cut", &["--short"]),
    ("failed-sync", &["--short"]),
    ("clock", &["--short"]),
    ("device-failure", &["--short"]),
    ("slow-store", &["--short"]),
];

/// Scenarios that take long or need an otherwise idle machine.
const REST: [&str; 3] = ["disk-full", "idle", "slow-disk"];

/// Runs `cluster ARGUMENTS`: `ci`, `all`, or one scenario with its arguments. With `--stele FILE`,
/// another server than that of this source is tested.
pub fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let Some((first, rest)) = arguments.split_first() else {
        bail!("name a scenario: {}, or `ci`, or `all`", names().join(", "));
    };
    let is_dev = rest.iter().any(|argument| argument == "--dev");
    let rest: Vec<&str> =
        rest.iter().map(String::as_str).filter(|argument| *argument != "--dev").collect();
    match first.as_str() {
        "ci" => short(workspace),
        "all" => {
            let all: Vec<(&str, &[&str])> =
                names().into_iter().map(|name| (name, &*rest)).collect();
            each(workspace, &all, !is_dev)
        }
        name if names().contains(&name) => each(workspace, &[(name, &*rest)], !is_dev),
        other => bail!("no scenario `{other}`; there are {}", names().join(", ")),
    }
}

/// Runs the scenarios of [`CI`] with the development build.
pub fn short(workspace: &Workspace) -> Result<()> {
    each(workspace, &CI, false)
}

fn names() -> Vec<&'static str> {
    CI.iter().map(|(name, _)| *name).chain(REST).collect()
}

/// Runs every scenario, even after a failure; fails if one failed.
fn each(workspace: &Workspace, scenarios: &[(&str, &[&str])], release: bool) -> Result<()> {
    let has_server = scenarios.iter().any(|(_, arguments)| arguments.contains(&"--stele"));
    let stele = if has_server { None } else { Some(build_stele(workspace, release)?) };
    let programs = Programs::build(workspace, release)?;
    let work = workspace.target.join("cluster-tests/work");
    std::fs::create_dir_all(&work)?;
    let mut done: Vec<(&str, Vec<String>, Duration)> = Vec::new();
    for (name, arguments) in scenarios {
        println!("-- {name}");
        let started = Instant::now();
        let mut harness = Command::new(&programs.harness);
        harness.arg(name).args(*arguments).arg("--work").arg(&work);
        if let Some(stele) = &stele {
            harness.arg("--stele").arg(stele);
        }
        harness.args(programs.flags());
        done.push((name, failures_of(&mut harness)?, started.elapsed()));
    }
    for (name, failures, took) in &done {
        let verdict = if failures.is_empty() { "met" } else { "NOT MET" };
        println!("{name:14} {:7.1} s  {verdict}", took.as_secs_f64());
    }
    let failed = done.iter().filter(|(_, failures, _)| !failures.is_empty());
    let failed: Vec<String> =
        failed.map(|(name, failures, _)| format!("{name} ({})", failures.join("; "))).collect();
    if !failed.is_empty() {
        bail!("{} of {} scenarios failed: {}", failed.len(), done.len(), failed.join(", "));
    }
    Ok(())
}

/// Runs a scenario and shows what it prints. Returns the requirements that were not met, so that the
/// last lines of a long run name them; empty if it passed.
fn failures_of(harness: &mut Command) -> Result<Vec<String>> {
    let mut child = harness.stdout(Stdio::piped()).spawn()?;
    let mut failures = Vec::new();
    for line in child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
        let line = line?;
        println!("{line}");
        failures.extend(line.strip_prefix("NOT MET: ").map(str::to_owned));
    }
    let status = child.wait()?;
    match status.success() {
        true => Ok(Vec::new()),
        false if failures.is_empty() => Ok(vec![format!("ended with {status}")]),
        false => Ok(failures),
    }
}
