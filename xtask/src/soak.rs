//! Long runs of the simulation over many seeds.

use crate::process::run_shown;
use crate::workspace::{Workspace, cargo};
use anyhow::{Result, bail};
use std::ops::Range;
use std::path::PathBuf;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Seeds that every change must pass.
pub const CI_SEEDS: Range<u64> = 1001..2001;
/// Further seeds that every change must pass. Each once showed a fault of the product or of a
/// check, or shows a deliberate bug that no seed of [`CI_SEEDS`] shows.
pub const FOUND_SEEDS: [u64; 33] = [
    101_555, 104_150, 150_250, 150_310, 150_610, 151_210, 204_888, 205_794, 306_797, 306_856,
    413_061, 413_327, 418_772, 421_027, 423_126, 450_130, 511_890, 524_634, 548_504, 553_495,
    557_229, 593_937, 3_005_809, 3_005_922, 3_100_100, 3_101_080, 3_101_705, 3_102_502, 3_300_678,
    3_403_381, 3_405_340, 8_200_310, 8_231_249,
];

/// Options of `cargo xtask soak`.
#[derive(Debug)]
pub struct Options {
    /// Duration in real hours.
    pub hours: f64,
    /// First seed; by default one that no earlier run used.
    pub from: Option<u64>,
    /// Uses the development build.
    pub is_dev: bool,
}

/// Runs seeds in both modes until the time is over; fails after a violation.
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

/// Builds the simulation, with deliberate bugs if `mutants` is set.
pub fn build(workspace: &Workspace, is_dev: bool, mutants: bool) -> Result<PathBuf> {
    let mut command = Command::new(cargo());
    command.args(["build", "--quiet", "--package", "stele-sim"]).current_dir(&workspace.root);
    command.args((!is_dev).then_some("--release"));
    command.args(mutants.then_some("--features=mutants"));
    run_shown(&mut command)?;
    let profile = if is_dev { "debug" } else { "release" };
    Ok(workspace.target.join(profile).join("stele-sim"))
}
