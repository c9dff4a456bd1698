//! Long runs of the simulation over many seeds.

use crate::process::run_shown;
use crate::programs::{SIMULATION, build};
use crate::workspace::Workspace;
use anyhow::{Result, bail};
use std::ops::Range;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Seeds that every change must pass in safety.
pub(crate) const CI_SEEDS: Range<u64> = 1001..2001;
/// Seeds that every change must pass in liveness.
pub(crate) const LIVENESS_SEEDS: Range<u64> = 1001..1101;
/// Further seeds that every change must pass in safety. Each once showed a fault of the product or of
/// a check, or shows a deliberate bug that no other of these seeds shows.
pub(crate) const FOUND_SEEDS: [u64; 39] = [
    101_555,
    104_150,
    150_250,
    150_310,
    150_610,
    151_210,
    204_888,
    205_794,
    306_797,
    306_856,
    413_061,
    413_327,
    418_772,
    421_027,
    423_126,
    450_130,
    511_890,
    524_634,
    548_504,
    553_495,
    557_229,
    593_937,
    3_005_809,
    3_005_922,
    3_100_100,
    3_101_080,
    3_101_705,
    3_102_502,
    3_300_678,
    3_403_381,
    3_405_340,
    3_708_822,
    3_710_250,
    3_713_438,
    3_720_042,
    8_200_310,
    8_231_249,
    2_154_189_229,
    2_786_606_430,
];

/// Further seeds that every change must pass in liveness, for the same reasons.
pub(crate) const FOUND_LIVENESS_SEEDS: [u64; 1] = [9_938_111];

/// Seeds that run together in one mode of the simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seeds {
    /// Value of `--mode`.
    pub mode: &'static str,
    /// Value of `--seeds`.
    pub range: Range<u64>,
}

const SEEDS_TOGETHER: usize = 25;

impl Seeds {
    /// Returns the same seeds as parts, each for one process.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Self> {
        let Self { mode, range } = self.clone();
        let starts = range.clone().step_by(SEEDS_TOGETHER);
        let part = move |start| start..range.end.min(start + SEEDS_TOGETHER as u64);
        starts.map(move |start| Self { mode, range: part(start) })
    }

    pub(crate) fn arguments(&self) -> [String; 4] {
        let seeds = format!("{}..{}", self.range.start, self.range.end);
        ["--mode".into(), self.mode.into(), "--seeds".into(), seeds]
    }
}

/// Returns the seeds that every change must pass: those that once showed something singly, then all
/// others.
pub(crate) fn ci_seeds() -> Vec<Seeds> {
    let singly = |mode, seeds: &[u64]| -> Vec<Seeds> {
        seeds.iter().map(|&seed| Seeds { mode, range: seed..seed + 1 }).collect()
    };
    let together = |mode, range| vec![Seeds { mode, range }];
    [
        singly("safety", &FOUND_SEEDS),
        singly("liveness", &FOUND_LIVENESS_SEEDS),
        together("safety", CI_SEEDS),
        together("liveness", LIVENESS_SEEDS),
    ]
    .concat()
}

#[derive(Debug)]
pub(crate) struct Options {
    /// Duration in real hours.
    pub hours: f64,
    /// First seed; by default one that no earlier run used.
    pub from: Option<u64>,
    /// Uses the development build.
    pub is_dev: bool,
}

/// Runs seeds in both modes until the time is over; fails after a violation.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let program = build(workspace, SIMULATION, !options.is_dev)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_all_seeds_once_and_small() {
        let of = |range| Seeds { mode: "safety", range };
        let parts: Vec<Seeds> = of(1001..1060).parts().collect();
        assert_eq!(parts, [of(1001..1026), of(1026..1051), of(1051..1060)]);
        assert_eq!(of(7..8).parts().collect::<Vec<_>>(), [of(7..8)]);
        assert_eq!(of(7..7).parts().count(), 0);
    }
}
