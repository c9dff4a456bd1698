//! Runs of the fuzz targets.

use crate::process::run_shown;
use crate::programs::{self, FUZZ};
use crate::workspace::{Workspace, cargo};
use anyhow::{Context, Result};
use std::process::Command;

/// Flags with which LLVM counts the code that runs. Stable compilers take them as well.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 \
                        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters";

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub seconds: u64,
    pub seed: u64,
    /// Name of one target; `None` runs all.
    pub only: Option<String>,
    /// Builds with coverage: inputs that reach new code are kept.
    pub guided: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { seconds: 10, seed: 1, only: None, guided: false }
    }
}

/// Runs the targets. Fails when a target finds a fault.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let mut command = if options.guided {
        guided(workspace)?
    } else {
        Command::new(programs::build(workspace, FUZZ, false)?)
    };
    command.arg(options.only.as_deref().unwrap_or("all"));
    command.args(["--seconds", &options.seconds.to_string(), "--seed", &options.seed.to_string()]);
    command.arg("--out").arg(workspace.target.join("fuzz"));
    run_shown(&mut command)
}

fn guided(workspace: &Workspace) -> Result<Command> {
    let mut command = cargo();
    command.args(["run", "--quiet", "--package", FUZZ.package]).current_dir(&workspace.root);
    // With a named platform the flags do not apply to build scripts, which need no coverage.
    command.args(["--target", &host()?]).env("RUSTFLAGS", COVERAGE);
    command.env("CARGO_TARGET_DIR", workspace.target.join("guided")).arg("--");
    Ok(command)
}

fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("rustc -vV")?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` names no host")?.to_owned())
}
