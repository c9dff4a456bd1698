//! The simulation against the deliberate bugs of the code that it runs. A bug counts as caught if
//! one of CI's seeds shows it.

use crate::mutants::{Mutant, Table, Tree};
use crate::process::{Ended, in_parallel, run_limited};
use crate::programs::SIMULATION;
use crate::soak::{self, Seeds};
use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Packages that a run of the simulation exercises.
const REACHED: [&str; 7] = [
    "stele-node",
    "stele-replica",
    "stele-engine",
    "stele-log",
    "stele-index",
    "stele-gc",
    "stele-placement",
];
/// Deliberate bugs of the simulated disk itself, visible only by lost data.
const ALSO: [&str; 2] = ["vfs.skip_data_sync", "vfs.skip_dir_sync"];

/// File of the seed that last showed each bug.
const SEEN: &str = "xtask/sim-seen.toml";
const SEEN_HEADER: &str =
    "# Seeds that showed deliberate bugs: `cargo xtask sim-mutants` runs a bug's own seed first, then all of
# CI's in their order. This is only an order: a seed that CI does not run is never used.
# Written by `cargo xtask sim-mutants --note`.
";

/// Time limit of one process, because a deliberate bug may hang it: ten times what the seeds of one
/// process take on a slow machine.
const LIMIT: Duration = Duration::from_secs(600);
/// Percentage of the deliberate bugs that must be caught.
const PERCENT_MIN: usize = 95;

#[derive(Debug)]
pub(crate) struct Options {
    /// Name of a bug or its beginning.
    pub only: Option<String>,
    /// Records which seed showed each bug.
    pub notes: bool,
}

/// Seed that showed each bug, by the bug's name.
type Seen = BTreeMap<String, u64>;

#[derive(Debug, PartialEq, Eq)]
struct Catch {
    /// `None` if the process named no seed.
    seed: Option<u64>,
    how: String,
}

/// Runs the seeds against each deliberate bug until one finds it. Prints how many bugs were caught
/// and which were not; fails below [`PERCENT_MIN`].
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let program = Tree::expanded(workspace)?.program(SIMULATION)?;
    let table = Table::load(workspace)?;
    let reached =
        |it: &&Mutant| REACHED.contains(&it.package.as_str()) || ALSO.contains(&it.name.as_str());
    let (apart, chosen): (Vec<_>, Vec<_>) = table
        .chosen(options.only.as_deref())
        .into_iter()
        .filter(reached)
        .partition(|it| it.apart.is_some());
    ensure!(!chosen.is_empty(), "no deliberate bug is chosen");
    let path = workspace.root.join(SEEN);
    let seen = read(&path)?;
    let caught = run_all(&program, &chosen, &seen)?;
    for mutant in &apart {
        println!("{:40} apart: {}", mutant.name, mutant.apart.as_deref().unwrap_or_default());
    }
    let missed = chosen.iter().map(|it| it.name.as_str());
    let missed: Vec<&str> = missed.filter(|name| !caught.contains_key(*name)).collect();
    let (found, all) = (caught.len(), chosen.len());
    let seeds: u64 = soak::ci_seeds().iter().map(|it| it.range.end - it.range.start).sum();
    println!("simulation: caught {found}/{all} deliberate bugs by CI's {seeds} seeds");
    if !missed.is_empty() {
        println!("missed: {}", missed.join(" "));
    }
    if options.notes {
        let names = table.mutants.iter().map(|it| it.name.as_str()).collect::<Vec<_>>();
        let seeds = caught.into_iter().filter_map(|(name, it)| Some((name, it.seed?)));
        let noted: Seen = seen.into_iter().chain(seeds).collect();
        let noted = noted.iter().filter(|(name, _)| names.contains(&name.as_str()));
        let noted: Vec<String> = noted.map(|(name, seed)| format!("{name:?} = {seed}\n")).collect();
        std::fs::write(&path, format!("{SEEN_HEADER}{}", noted.concat()))
            .context("noting seeds")?;
    }
    let percent_min = if options.only.is_some() { 0 } else { PERCENT_MIN };
    ensure!(found * 100 >= all * percent_min, "fewer than {percent_min} % were caught");
    Ok(())
}

/// Returns the evidence of each bug that was caught.
fn run_all(program: &Path, chosen: &[&Mutant], seen: &Seen) -> Result<BTreeMap<String, Catch>> {
    let found = in_parallel(chosen.iter(), |mutant| {
        let started = Instant::now();
        let order = order(seen.get(&mutant.name).copied(), &soak::ci_seeds());
        let found = run_until_caught(program, mutant, &order)?;
        let seconds = started.elapsed().as_secs_f64();
        let (verdict, how) = match &found {
            Some(it) => ("caught", it.text()),
            None => ("NOT CAUGHT", String::new()),
        };
        println!("{:40} {verdict:10} {seconds:6.1} s  {how}", mutant.name);
        Ok(found.map(|found| (mutant.name.clone(), found)))
    })?;
    Ok(found.into_iter().flatten().collect())
}

impl Catch {
    fn text(&self) -> String {
        let seed = self.seed.map_or_else(String::new, |seed| format!("seed {seed}: "));
        format!("{seed}{}", self.how)
    }
}

/// Returns the seeds of one process after the other: the one that last showed the bug, in each mode in
/// which CI runs it, then all of CI's.
fn order(last: Option<u64>, all: &[Seeds]) -> Vec<Seeds> {
    let first = last.into_iter().flat_map(|seed| {
        let runs = all.iter().filter(move |it| it.range.contains(&seed));
        runs.map(move |it| Seeds { range: seed..seed + 1, ..it.clone() })
    });
    first.chain(all.iter().flat_map(Seeds::parts)).collect()
}

/// Runs one process after the other until one fails.
fn run_until_caught(program: &Path, mutant: &Mutant, parts: &[Seeds]) -> Result<Option<Catch>> {
    for part in parts {
        let mut command = Command::new(program);
        command.env("STELE_MUTANT", &mutant.name);
        command.args(part.arguments()).args(["--no-minimise", "--quiet"]);
        let (ended, printed) = run_limited(&mut command, LIMIT)?;
        let seeds = format!("{} of {}..{}", part.mode, part.range.start, part.range.end);
        if let Some(found) = verdict(&ended, &printed, &seeds) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Reads a violation from the output: a line that describes it, and a line with the command that
/// replays it.
fn verdict(ended: &Ended, printed: &str, seeds: &str) -> Option<Catch> {
    const SHOWN_CHARS: usize = 110;
    match ended {
        Ended::Exited(true) => return None,
        Ended::TimedOut => return Some(Catch { seed: None, how: format!("hangs in {seeds}") }),
        Ended::Exited(false) => {}
    }
    let mut lines = printed.lines().skip_while(|line| !line.starts_with("VIOLATION"));
    let Some(what) = lines.next() else {
        return Some(Catch { seed: None, how: format!("ends in {seeds} without a message") });
    };
    let replay = lines.find_map(|line| line.split_once("--seed ")).map(|(_, rest)| rest);
    let seed = replay.and_then(|rest| rest.split(' ').next()?.parse().ok());
    Some(Catch { seed, how: what.chars().take(SHOWN_CHARS).collect() })
}

fn read(path: &Path) -> Result<Seen> {
    if !path.exists() {
        return Ok(Seen::new());
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {SEEN}"))?;
    toml::from_str(&text).with_context(|| format!("{SEEN} must be a table of names and seeds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_that_ci_does_not_run_is_not_tried() {
        let seeds = |mode, range| Seeds { mode, range };
        let all =
            [seeds("safety", 7..8), seeds("safety", 1001..1060), seeds("liveness", 1001..1011)];
        let parts = [
            seeds("safety", 7..8),
            seeds("safety", 1001..1026),
            seeds("safety", 1026..1051),
            seeds("safety", 1051..1060),
            seeds("liveness", 1001..1011),
        ];
        for last in [None, Some(1000), Some(1060)] {
            assert_eq!(order(last, &all), parts);
        }
        assert_eq!(order(Some(1040), &all), [&[seeds("safety", 1040..1041)], &parts[..]].concat());
        let both = [seeds("safety", 1005..1006), seeds("liveness", 1005..1006)];
        assert_eq!(order(Some(1005), &all), [&both[..], &parts].concat());
    }

    #[test]
    fn a_violation_names_its_seed_and_a_process_without_output_names_none() {
        let printed =
            "VIOLATION store 1 stops\n  cargo run -p stele-sim -- --seed 1017 --mode safety\n";
        let found = verdict(&Ended::Exited(false), printed, "1001..1026").unwrap();
        assert_eq!(found, Catch { seed: Some(1017), how: "VIOLATION store 1 stops".into() });
        assert_eq!(verdict(&Ended::Exited(true), "25 seeds", "1001..1026"), None);
        for ended in [Ended::TimedOut, Ended::Exited(false)] {
            let found = verdict(&ended, "", "1001..1026").unwrap();
            assert!(found.seed.is_none() && found.text().contains("1001..1026"));
        }
    }
}
