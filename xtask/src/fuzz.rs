//! Runs the fuzz targets.

use crate::process::run_shown;
use crate::workspace::{Workspace, cargo};
use anyhow::{Context, Result};
use std::process::Command;

/// What makes LLVM count which code runs. Stable compilers take these flags as well.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 \
                        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters";

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// For each target.
    pub seconds: u64,
    /// Decides every mutation.
    pub seed: u64,
    /// One target; all of them if none is named.
    pub only: Option<String>,
    /// Build with coverage: inputs that reach new code are kept.
    pub guided: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { seconds: 10, seed: 1, only: None, guided: false }
    }
}

/// Fails when a target shows a fault.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let mut command = Command::new(cargo());
    command.args(["run", "--quiet", "--package", "stele-fuzz"]).current_dir(&workspace.root);
    if options.guided {
        // With a named platform the flags are not those of build scripts, which nobody counts.
        command.args(["--target", &host()?]).env("RUSTFLAGS", COVERAGE);
        command.env("CARGO_TARGET_DIR", workspace.target.join("guided"));
    }
    command.args(["--", options.only.as_deref().unwrap_or("all")]);
    command.args(["--seconds", &options.seconds.to_string(), "--seed", &options.seed.to_string()]);
    command.arg("--out").arg(workspace.target.join("fuzz"));
    run_shown(&mut command)
}

/// The platform that the compiler runs on.
fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("rustc -vV")?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not say what it runs on")?.to_owned())
}
