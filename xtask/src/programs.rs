//! The workspace's own programs, built by cargo.

use crate::process::run_shown;
use crate::workspace::{Workspace, cargo};
use anyhow::{Result, ensure};
use std::path::PathBuf;
use std::process::Command;

/// A program and the package that it belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Name of the binary.
    pub name: &'static str,
    /// Package that declares it.
    pub package: &'static str,
}

/// The server with its tools.
pub const STELE: Program = Program { name: "stele", package: "stele-cli" };
/// The simulation.
pub const SIMULATION: Program = Program { name: "stele-sim", package: "stele-sim" };
/// Measurements beside other stores, designs and servers.
pub const LAB: Program = Program { name: "lab", package: "stele-lab" };
/// Scenarios on clusters of real processes.
pub const HARNESS: Program = Program { name: "cluster-tests", package: "stele-cluster-tests" };
/// Fuzz targets.
pub const FUZZ: Program = Program { name: "stele-fuzz", package: "stele-fuzz" };

/// Builds a program and returns its path.
pub fn build(workspace: &Workspace, program: Program, release: bool) -> Result<PathBuf> {
    build_with(workspace, program, release, &[])
}

/// Builds a development program without incremental compilation, which splits crates into other parts: its
/// instructions then differ by some percent. CI builds all programs like that.
pub fn build_not_incremental(workspace: &Workspace, program: Program) -> Result<PathBuf> {
    let mut build = command(workspace, program, false, &[]);
    run_shown(build.env("CARGO_INCREMENTAL", "0"))?;
    binary(workspace, program, false)
}

/// Builds a program with further arguments for cargo, which choose features.
pub fn build_with(
    workspace: &Workspace,
    program: Program,
    release: bool,
    features: &[&str],
) -> Result<PathBuf> {
    run_shown(&mut command(workspace, program, release, features))?;
    binary(workspace, program, release)
}

fn command(workspace: &Workspace, program: Program, release: bool, features: &[&str]) -> Command {
    let mut build = cargo();
    build.args(["build", "--quiet", "--bin", program.name]).current_dir(&workspace.root);
    if program.name == STELE.name {
        // `stele backup` runs it from the same folder.
        build.args(["--bin", "stele-backup"]);
    }
    build.args(selection(program, release, features)).args(features);
    build
}

fn binary(workspace: &Workspace, program: Program, release: bool) -> Result<PathBuf> {
    let profile = if release { "release" } else { "debug" };
    let binary = workspace.target.join(profile).join(program.name);
    ensure!(binary.is_file(), "{} was not built", binary.display());
    Ok(binary)
}

/// Returns the arguments that choose profile and packages. A development build selects the whole
/// workspace, as `cargo test` does: its dependencies then have the same features, and nothing that the
/// tests have built is built again. A release build has the features of its package alone.
fn selection(program: Program, release: bool, features: &[&str]) -> Vec<&'static str> {
    match (release, features.is_empty()) {
        (false, true) => vec!["--workspace"],
        (false, false) => vec!["--package", program.package],
        (true, _) => vec!["--package", program.package, "--release"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_development_build_shares_the_build_of_the_tests() {
        assert_eq!(selection(STELE, false, &[]), ["--workspace"]);
        assert_eq!(selection(STELE, true, &[]), ["--package", "stele-cli", "--release"]);
        let rocksdb = ["--features", "rocksdb"];
        assert_eq!(selection(LAB, false, &rocksdb), ["--package", "stele-lab"]);
    }
}
