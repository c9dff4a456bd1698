//! Command line of the harness.

use crate::scenario::{SCENARIOS, Scenario};
use anyhow::{Context, Result, bail};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

#[derive(Debug)]
pub(crate) struct Setup {
    pub stele: PathBuf,
    pub programs: Programs,
    pub seed: u64,
    rounds: Option<u64>,
    seconds: Option<u64>,
    /// Whether to run a smaller version of a scenario that has no rounds.
    pub short: bool,
    /// Whether no write may be answered by `stale_command`.
    pub strict: bool,
    /// Whether clients send a put or delete again after `stale_command`.
    pub repeat: bool,
    /// Whether the syncs of one node are slow all the time.
    pub slow_syncs: bool,
    place: RefCell<Option<tempfile::TempDir>>,
    work: PathBuf,
}

#[derive(Debug, Default)]
pub(crate) struct Programs {
    pub porcupine: Option<PathBuf>,
    /// Server of the oldest supported version.
    pub former: Option<PathBuf>,
    pub ycsb: Option<PathBuf>,
    pub tikv_rust: Option<PathBuf>,
    /// Interpreter that has the client, and the script.
    pub python: Option<PathBuf>,
    pub python_script: Option<PathBuf>,
    pub python_answers: Option<PathBuf>,
    pub python_round: Option<PathBuf>,
    pub tikv_go: Option<PathBuf>,
    /// File with the class path of the client, and the source of the program.
    pub java_paths: Option<PathBuf>,
    pub java_source: Option<PathBuf>,
}

impl Setup {
    /// Returns the number of rounds requested, or else the scenario's own.
    pub(crate) fn rounds(&self, full: u64, short: u64) -> u64 {
        self.rounds.unwrap_or(if self.short { short } else { full })
    }

    /// Returns the duration requested, or else the scenario's own.
    pub(crate) fn seconds(&self, full: u64, short: u64) -> u64 {
        self.seconds.unwrap_or(if self.short { short } else { full })
    }

    pub(crate) fn work(&self) -> &Path {
        &self.work
    }

    pub(crate) fn text(&self) -> String {
        format!(
            "stele {}, data in {}, seed {}",
            self.stele.display(),
            self.work.display(),
            self.seed
        )
    }

    pub(crate) fn replay(&self) -> String {
        let number = |flag: &str, value: Option<u64>| {
            value.map(|value| format!(" --{flag} {value}")).unwrap_or_default()
        };
        let switch = |flag: &str, is_on: bool| match is_on {
            true => format!(" --{flag}"),
            false => String::new(),
        };
        [
            switch("short", self.short),
            number("rounds", self.rounds),
            number("seconds", self.seconds),
            switch("strict", self.strict),
            switch("repeat", self.repeat),
            switch("slow-syncs", self.slow_syncs),
            number("seed", Some(self.seed)),
        ]
        .concat()
    }

    pub(crate) fn keep_work(&self) {
        if let Some(place) = self.place.borrow_mut().take() {
            println!("data and logs kept in {}", place.keep().display());
        }
    }
}

/// Returns the path of a program, or fails if it was not given.
pub(crate) fn need<'a>(program: &'a Option<PathBuf>, flag: &str) -> Result<&'a Path> {
    program.as_deref().with_context(|| format!("this scenario needs {flag}"))
}

pub(crate) fn read(mut rest: Vec<String>) -> Result<(&'static Scenario, Setup)> {
    let name = if rest.is_empty() { String::new() } else { rest.remove(0) };
    let scenario = SCENARIOS.iter().find(|one| one.name == name);
    let Some(scenario) = scenario else { bail!("there is no scenario `{name}`\n{}", usage()) };
    let flags = Flags::read(rest)?;
    let is_of_history = flags.seconds.is_some() || flags.strict || flags.repeat || flags.slow_syncs;
    if name != "history" && is_of_history {
        bail!("only `history` takes --seconds, --strict, --repeat and --slow-syncs");
    }
    if flags.strict && flags.repeat {
        bail!("--strict allows no answer that --repeat repeats; give one of them");
    }
    let below = flags.work.unwrap_or_else(std::env::temp_dir);
    let place = tempfile::Builder::new().prefix("cluster-").tempdir_in(below)?;
    let setup = Setup {
        stele: flags.stele.context("--stele FILE is required")?,
        programs: flags.programs,
        seed: flags.seed.unwrap_or_else(seed_from_time),
        rounds: flags.rounds,
        seconds: flags.seconds,
        short: flags.short,
        strict: flags.strict,
        repeat: flags.repeat,
        slow_syncs: flags.slow_syncs,
        work: place.path().to_owned(),
        place: RefCell::new(Some(place)),
    };
    Ok((scenario, setup))
}

#[derive(Debug, Default)]
struct Flags {
    stele: Option<PathBuf>,
    work: Option<PathBuf>,
    seed: Option<u64>,
    rounds: Option<u64>,
    seconds: Option<u64>,
    short: bool,
    strict: bool,
    repeat: bool,
    slow_syncs: bool,
    programs: Programs,
}

impl Flags {
    fn read(rest: Vec<String>) -> Result<Self> {
        let mut read = Self::default();
        let mut flags = rest.into_iter();
        while let Some(flag) = flags.next() {
            let switch = match flag.as_str() {
                "--short" => Some(&mut read.short),
                "--strict" => Some(&mut read.strict),
                "--repeat" => Some(&mut read.repeat),
                "--slow-syncs" => Some(&mut read.slow_syncs),
                _ => None,
            };
            if let Some(switch) = switch {
                *switch = true;
                continue;
            }
            let value = flags.next().with_context(|| format!("{flag} needs a value"))?;
            let number = || value.parse().with_context(|| format!("{flag} needs a number"));
            match flag.as_str() {
                "--stele" => read.stele = Some(value.into()),
                "--work" => read.work = Some(value.into()),
                "--seed" => read.seed = Some(number()?),
                "--rounds" => read.rounds = Some(number()?),
                "--seconds" => read.seconds = Some(number()?),
                "--former" => read.programs.former = Some(value.into()),
                "--porcupine" => read.programs.porcupine = Some(value.into()),
                "--ycsb" => read.programs.ycsb = Some(value.into()),
                "--tikv-rust" => read.programs.tikv_rust = Some(value.into()),
                "--python" => read.programs.python = Some(value.into()),
                "--python-script" => read.programs.python_script = Some(value.into()),
                "--python-answers" => read.programs.python_answers = Some(value.into()),
                "--python-round" => read.programs.python_round = Some(value.into()),
                "--tikv-go" => read.programs.tikv_go = Some(value.into()),
                "--java-paths" => read.programs.java_paths = Some(value.into()),
                "--java-source" => read.programs.java_source = Some(value.into()),
                other => bail!("unexpected `{other}`\n{}", usage()),
            }
        }
        Ok(read)
    }
}

fn usage() -> String {
    let lines: Vec<String> =
        SCENARIOS.iter().map(|one| format!("  {:12} {}", one.name, one.what)).collect();
    format!(
        "usage: cluster-tests SCENARIO --stele FILE [--short] [--rounds N] [--seed N] [--work DIR]\n\
         history: [--seconds N] [--strict | --repeat] [--slow-syncs]\n{}",
        lines.join("\n")
    )
}

/// Derives a seed from the time, for a run without `--seed`.
fn seed_from_time() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64 % 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay(flags: &str) -> Result<String> {
        let words = flags.split(' ').map(str::to_owned).collect();
        Ok(read(words)?.1.replay())
    }

    #[test]
    fn a_replay_repeats_the_flags_of_the_run() {
        let run = "history --stele x --seconds 5 --strict --slow-syncs --seed 9";
        assert_eq!(replay(run).unwrap(), " --seconds 5 --strict --slow-syncs --seed 9");
        let run = "kill --short --stele x --seed 3 --rounds 2";
        assert_eq!(replay(run).unwrap(), " --short --rounds 2 --seed 3");
    }

    #[test]
    fn flags_that_a_run_would_ignore_are_refused() {
        assert!(replay("kill --stele x --strict").is_err());
        assert!(replay("kill --stele x --seconds 5").is_err());
        assert!(replay("history --stele x --strict --repeat").is_err());
        assert!(replay("history --stele x --seconds soon").is_err());
        assert!(replay("history --strict").is_err());
    }
}
