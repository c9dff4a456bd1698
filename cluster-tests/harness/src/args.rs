//! Command line of the harness.

use crate::scenario::{SCENARIOS, Scenario};
use anyhow::{Context, Result, bail};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Inputs of a scenario.
#[derive(Debug)]
pub struct Setup {
    pub stele: PathBuf,
    pub programs: Programs,
    /// Seed of every random choice.
    pub seed: u64,
    rounds: Option<u64>,
    /// Whether to run a smaller version of a scenario that has no rounds.
    pub short: bool,
    place: RefCell<Option<tempfile::TempDir>>,
    work: PathBuf,
}

/// Programs that some scenarios need.
#[derive(Debug, Default)]
pub struct Programs {
    pub porcupine: Option<PathBuf>,
    pub ycsb: Option<PathBuf>,
    pub tikv_rust: Option<PathBuf>,
    /// Interpreter that has the client, and the script.
    pub python: Option<PathBuf>,
    pub python_script: Option<PathBuf>,
}

impl Setup {
    /// Returns the number of rounds requested, or else the scenario's own.
    pub fn rounds(&self, full: u64, short: u64) -> u64 {
        self.rounds.unwrap_or(if self.short { short } else { full })
    }

    /// Returns the directory of this run.
    pub fn work(&self) -> &Path {
        &self.work
    }

    /// Formats the configuration as one line.
    pub fn text(&self) -> String {
        format!(
            "stele {}, data in {}, seed {}",
            self.stele.display(),
            self.work.display(),
            self.seed
        )
    }

    /// Returns the flags that repeat this run.
    pub fn replay(&self) -> String {
        let rounds = self.rounds.map(|rounds| format!(" --rounds {rounds}")).unwrap_or_default();
        let short = if self.short { " --short" } else { "" };
        format!("{short}{rounds} --seed {}", self.seed)
    }

    /// Keeps the directory after the run, for inspection.
    pub fn keep_work(&self) {
        if let Some(place) = self.place.borrow_mut().take() {
            println!("data and logs kept in {}", place.keep().display());
        }
    }
}

/// Returns the path of a program, or fails if it was not given.
pub fn need<'a>(program: &'a Option<PathBuf>, flag: &str) -> Result<&'a Path> {
    program.as_deref().with_context(|| format!("this scenario needs {flag}"))
}

/// Parses `SCENARIO [--flag value]…`.
pub fn read(mut rest: Vec<String>) -> Result<(&'static Scenario, Setup)> {
    let name = if rest.is_empty() { String::new() } else { rest.remove(0) };
    let scenario = SCENARIOS.iter().find(|one| one.name == name);
    let Some(scenario) = scenario else { bail!("there is no scenario `{name}`\n{}", usage()) };
    let mut programs = Programs::default();
    let (mut stele, mut below, mut seed, mut rounds) = (None, None, None, None);
    let mut short = false;
    let mut flags = rest.into_iter();
    while let Some(flag) = flags.next() {
        if flag == "--short" {
            short = true;
            continue;
        }
        let value = flags.next().with_context(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--stele" => stele = Some(PathBuf::from(value)),
            "--work" => below = Some(PathBuf::from(value)),
            "--seed" => seed = Some(value.parse().context("--seed needs a number")?),
            "--rounds" => rounds = Some(value.parse().context("--rounds needs a number")?),
            "--porcupine" => programs.porcupine = Some(value.into()),
            "--ycsb" => programs.ycsb = Some(value.into()),
            "--tikv-rust" => programs.tikv_rust = Some(value.into()),
            "--python" => programs.python = Some(value.into()),
            "--python-script" => programs.python_script = Some(value.into()),
            other => bail!("unexpected `{other}`\n{}", usage()),
        }
    }
    let below = below.unwrap_or_else(std::env::temp_dir);
    let place = tempfile::Builder::new().prefix("cluster-").tempdir_in(below)?;
    let setup = Setup {
        stele: stele.context("--stele FILE is required")?,
        programs,
        seed: seed.unwrap_or_else(seed_from_time),
        rounds,
        short,
        work: place.path().to_owned(),
        place: RefCell::new(Some(place)),
    };
    Ok((scenario, setup))
}

fn usage() -> String {
    let lines: Vec<String> =
        SCENARIOS.iter().map(|one| format!("  {:12} {}", one.name, one.what)).collect();
    format!(
        "usage: cluster-tests SCENARIO --stele FILE [--short] [--rounds N] [--seed N] [--work DIR]\n{}",
        lines.join("\n")
    )
}

/// Derives a seed from the time, for a run without `--seed`.
fn seed_from_time() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64 % 1_000_000_000
}
