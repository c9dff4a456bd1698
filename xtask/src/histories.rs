//! Two checkers of linearizability on the same histories: that of the simulation, and Porcupine.
//! They must agree on histories of correct runs and on the same histories with planted stale reads.

use crate::cluster;
use crate::process::run_limited;
use crate::programs::{self, SIMULATION};
use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const FROM: u64 = 500;
const RUN_LIMIT: Duration = Duration::from_secs(120);
/// Of so many groups that Porcupine rejects, one may have more open operations than it decides in its
/// time.
const DECIDED_PER_UNDECIDED: usize = 20;

/// Compares the checkers on histories of `seeds` seeds. Fails if they disagree, or if Porcupine leaves
/// too many groups undecided.
pub(crate) fn run(workspace: &Workspace, seeds: u64) -> Result<()> {
    let porcupine = cluster::porcupine(workspace)?;
    let program = programs::build(workspace, SIMULATION, false)?;
    let folder = tempfile::tempdir().context("creating a folder for histories")?;
    let file = folder.path().join("history.jsonl");
    let (mut sound, mut planted, mut undecided) = (0, 0, 0);
    for seed in FROM..FROM + seeds {
        for plants in [false, true] {
            let ours = ours(&program, seed, plants, &file)?;
            ensure!(plants || ours.is_empty(), "seed {seed}: {ours:?} are not linearizable");
            let theirs = theirs(&porcupine, &file)?;
            undecided += theirs.undecided.len();
            let ours: Vec<String> =
                ours.into_iter().filter(|group| !theirs.undecided.contains(group)).collect();
            ensure!(
                ours == theirs.rejected,
                "seed {seed}, stale reads {plants}: the simulation rejects {ours:?}, Porcupine rejects {:?}",
                theirs.rejected
            );
            sound += usize::from(!plants);
            planted += if plants { ours.len() } else { 0 };
        }
    }
    ensure!(planted > 0, "no stale read could be planted in {seeds} histories");
    ensure!(
        undecided * DECIDED_PER_UNDECIDED <= planted,
        "Porcupine left {undecided} groups undecided and rejected {planted} with a stale read"
    );
    println!(
        "histories: both agree on {sound} correct ones and on {planted} groups with a stale read; \
         Porcupine left {undecided} groups undecided"
    );
    Ok(())
}

fn ours(program: &Path, seed: u64, plants: bool, file: &Path) -> Result<Vec<String>> {
    let mut command = Command::new(program);
    command.args(["--seed", &seed.to_string(), "--no-minimise", "--quiet", "--history"]).arg(file);
    command.args(plants.then_some("--plant"));
    let (_, printed) = run_limited(&mut command, RUN_LIMIT)?;
    let line = printed.lines().find_map(|line| line.strip_prefix("refused groups: "));
    let line =
        line.with_context(|| format!("seed {seed} printed no verdict on its history:\n{printed}"))?;
    Ok(sorted(line.split_whitespace().map(str::to_owned)))
}

/// Groups of a history, as Porcupine judges them within its time.
struct Verdict {
    rejected: Vec<String>,
    undecided: Vec<String>,
}

fn theirs(porcupine: &Path, file: &Path) -> Result<Verdict> {
    let mut command = Command::new(porcupine);
    command.arg(file).stderr(Stdio::inherit());
    let output = command.output().context("running porcupine")?;
    let verdict: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("reading porcupine's verdict")?;
    let groups = |field: &str| {
        let names = verdict[field].as_array().cloned().unwrap_or_default();
        sorted(names.iter().filter_map(|name| name.as_str().map(str::to_owned)))
    };
    Ok(Verdict { rejected: groups("suspects"), undecided: groups("undecided") })
}

fn sorted(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}
