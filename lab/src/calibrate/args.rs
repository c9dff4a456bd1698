//! Arguments of `lab calibrate`.

use clap::Parser;
use std::path::PathBuf;
use stele_load::size;
use stele_types::size::check_value_bytes;
use stele_types::{Error, Result};

/// Fit the curve by which a new store estimates the speed of its device
#[derive(Debug, Parser)]
#[command(name = "lab calibrate")]
pub(super) struct Args {
    /// Directory on the device; files are created in a new directory below it and removed. Emulated
    /// devices are right only if the files are faster, as in memory
    #[arg(long, value_name = "DIR")]
    pub store: PathBuf,
    /// Number of emulated devices, from slow to fast
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(0..=64))]
    pub emulated: u64,
    /// Measure the directory itself, too
    #[arg(long)]
    pub real: bool,
    /// Length of each value
    #[arg(long, default_value = "16KiB", value_name = "SIZE", value_parser = size)]
    pub value_bytes: u64,
    /// Time of the puts on each device in seconds
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    pub seconds: f64,
    /// Seed of the random number generator
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Args {
    /// Fails if no device is measured, or for no time, or with values that are too long.
    pub(super) fn check(&self) -> Result<()> {
        if self.emulated == 0 && !self.real {
            return Err(Error::invalid("no device: give --real, or --emulated above 0"));
        }
        if !(self.seconds.is_finite() && self.seconds > 0.0) {
            return Err(Error::invalid("--seconds must be above 0"));
        }
        check_value_bytes(self.value_bytes)
    }
}
