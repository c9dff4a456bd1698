//! Many seeds of the simulation, and the simulation against deliberate bugs.

use crate::mutants::Table;
use crate::process::{Ended, run_limited, run_shown};
use crate::workspace::{Workspace, cargo};
use anyhow::{Result, bail, ensure};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Packages whose deliberate bugs a run can meet: all that is under the simulation.
const REACHED: [&str; 6] =
    ["stele-raftstore", "stele-engine", "stele-log", "stele-index", "stele-gc", "stele-placement"];
/// Deliberate bugs of the simulated disk itself: nothing is to be seen of them but lost data.
const ALSO: [&str; 2] = ["vfs.skip_data_sync", "vfs.skip_dir_sync"];
/// A deliberate bug may hang what it breaks.
const MUTANT_LIMIT: Duration = Duration::from_secs(600);

/// So many of all deliberate bugs are to be found.
const PERCENT_MIN: usize = 85;

/// What to run.
#[derive(Debug)]
pub struct Options {
    /// Real hours.
    pub hours: f64,
    /// The first seed; one that no earlier run had, if not given.
    pub from: Option<u64>,
    /// The unoptimised build.
    pub is_dev: bool,
}

/// Runs seeds in both modes until the time is over; fails if any ended in a violation.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let program = build(workspace, options.is_dev, false)?;
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let from = options.from.unwrap_or_else(|| clock() % 1_000_000_000 * 1_000);
    let minutes = (options.hours * 60.0 / 2.0).to_string();
    let mut failed = 0;
    for mode in ["safety", "liveness"] {
        println!("soak: {mode} from seed {from}, {minutes} minutes");
        let seeds = format!("{from}..{}", u64::MAX);
        let arguments = ["--mode", mode, "--seeds", &seeds, "--minutes", &minutes];
        let mut command = Command::new(&program);
        command.args(arguments).args(["--keep-going", "--quiet"]);
        failed += usize::from(run_shown(&mut command).is_err());
    }
    match failed {
        0 => Ok(()),
        _ => bail!("the simulation found violations"),
    }
}

/// Builds the simulation, on request with deliberate bugs inside.
pub fn build(workspace: &Workspace, is_dev: bool, mutants: bool) -> Result<PathBuf> {
    let mut command = Command::new(cargo());
    command.args(["build", "--quiet", "--package", "stele-sim"]).current_dir(&workspace.root);
    command.args((!is_dev).then_some("--release"));
    command.args(mutants.then_some("--features=mutants"));
    run_shown(&mut command)?;
    let profile = if is_dev { "debug" } else { "release" };
    Ok(workspace.target.join(profile).join("stele-sim"))
}

/// Runs `seeds` seeds against each deliberate bug below the simulation, until one finds it. Says how
/// many were found; fails below [`PERCENT_MIN`].
pub fn mutants(workspace: &Workspace, only: Option<&str>, seeds: u64) -> Result<()> {
    let percent_min = if only.is_some() { 0 } else { PERCENT_MIN };
    let program = build(workspace, true, true)?;
    let table = Table::load(workspace)?;
    let reached = |package: &str, name: &str| REACHED.contains(&package) || ALSO.contains(&name);
    let (apart, chosen): (Vec<_>, Vec<_>) = table
        .chosen(only)
        .into_iter()
        .filter(|it| reached(&it.package, &it.name))
        .partition(|it| it.apart.is_some());
    ensure!(!chosen.is_empty(), "no deliberate bug is chosen");
    let mut caught = 0;
    for mutant in &chosen {
        let started = Instant::now();
        let mut command = Command::new(&program);
        command.env("STELE_MUTANT", &mutant.name);
        command.args(["--seeds", &format!("1..{}", seeds + 1), "--no-minimise", "--quiet"]);
        let (ended, printed) = run_limited(&mut command, MUTANT_LIMIT)?;
        let is_caught = ended != Ended::Exited(true);
        caught += usize::from(is_caught);
        let found = printed.lines().find(|line| line.starts_with("VIOLATION"));
        let end = found.and_then(|line| line.char_indices().nth(110)).map(|(at, _)| at);
        let found = found.map_or("", |line| &line[..end.unwrap_or(line.len())]);
        let verdict = if is_caught { "caught" } else { "NOT CAUGHT" };
        let seconds = started.elapsed().as_secs_f64();
        println!("{:40} {verdict:10} {seconds:6.1} s  {found}", mutant.name);
    }
    for mutant in &apart {
        println!("{:40} apart: {}", mutant.name, mutant.apart.as_deref().unwrap_or_default());
    }
    println!("simulation: caught {caught}/{} deliberate bugs in {seeds} seeds each", chosen.len());
    ensure!(caught * 100 >= chosen.len() * percent_min, "fewer than {percent_min} % were caught");
    Ok(())
}
