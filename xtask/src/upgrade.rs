//! The upgrade of a cluster from the oldest supported version, with two programs: `cargo xtask upgrade`.

use crate::cluster::porcupine;
use crate::process::run_shown;
use crate::programs::{HARNESS, STELE, build};
use crate::workspace::{Workspace, cargo};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// File that names the commit of the oldest supported version.
const OLDEST: &str = "testing/oldest-version";

/// Builds the oldest supported version from the history, and runs the scenario `upgrade` of the harness with
/// both programs. `arguments` go to the harness.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let former = oldest(workspace)?;
    let stele = build(workspace, STELE, false)?;
    let harness = build(workspace, HARNESS, false)?;
    let work = workspace.target.join("cluster-tests/work");
    fs::create_dir_all(&work)?;
    let mut scenario = Command::new(harness);
    scenario.arg("upgrade").args(arguments).arg("--work").arg(&work);
    scenario.arg("--stele").arg(stele).arg("--former").arg(former);
    run_shown(scenario.arg("--porcupine").arg(porcupine(workspace)?))
}

/// Builds the program of the oldest supported version below `target/upgrade`, unless it is there; returns its
/// path.
pub(crate) fn oldest(workspace: &Workspace) -> Result<PathBuf> {
    let (source, built) = source_of_oldest(workspace)?;
    let mut command = cargo();
    command.args(["build", "--quiet", "--locked", "-p", "stele-cli", "--target-dir"]).arg(&built);
    run_shown(command.current_dir(&source)).context("building the oldest supported version")?;
    Ok(built.join("debug/stele"))
}

/// Builds the oldest supported version's engine with an example of this text, and returns the example.
pub(crate) fn example_of_oldest(workspace: &Workspace, text: &str) -> Result<PathBuf> {
    let (source, built) = source_of_oldest(workspace)?;
    let examples = source.join("crates/engine/examples");
    fs::create_dir_all(&examples)?;
    fs::write(examples.join("former.rs"), text)?;
    let mut command = cargo();
    command.args(["build", "--quiet", "--locked", "-p", "stele-engine", "--example", "former"]);
    command.arg("--target-dir").arg(&built);
    run_shown(command.current_dir(&source)).context("building an example of its engine")?;
    Ok(built.join("debug/examples/former"))
}

/// Returns the folders of the oldest supported version's source and of what is built of it.
fn source_of_oldest(workspace: &Workspace) -> Result<(PathBuf, PathBuf)> {
    let commit = commit(&fs::read_to_string(workspace.root.join(OLDEST))?)?;
    let place = workspace.target.join("upgrade");
    let (source, built, stamp) = (place.join("source"), place.join("build"), place.join("commit"));
    if fs::read_to_string(&stamp).ok().as_deref() != Some(&*commit) {
        extract(&workspace.root, &commit, &place, &source)?;
        fs::write(&stamp, &commit)?;
    }
    Ok((source, built))
}

/// Writes the files of a commit to `source`, in place of those of another one.
fn extract(root: &Path, commit: &str, place: &Path, source: &Path) -> Result<()> {
    if source.exists() {
        fs::remove_dir_all(source)?;
    }
    fs::create_dir_all(source)?;
    let archive = place.join("source.tar");
    let mut git = Command::new("git");
    git.args(["archive", "--format=tar", "--output"]).arg(&archive).arg(commit);
    run_shown(git.current_dir(root)).with_context(|| {
        format!("the history has no commit {commit}: fetch it with `git fetch --unshallow`")
    })?;
    run_shown(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(source))?;
    Ok(fs::remove_file(&archive)?)
}

/// Returns the commit that the file names.
fn commit(text: &str) -> Result<String> {
    let commit = text.trim();
    let is_hash = commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    ensure!(is_hash, "{OLDEST} names no commit of 40 digits: `{commit}`");
    Ok(commit.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_version_is_one_commit() {
        let hash = "45386d3a0476f2cf186e7a0f5479e1fb6dcd2d1f";
        assert_eq!(commit(&format!("{hash}\n")).unwrap(), hash);
        for text in ["", "main\n", &hash[1..], &format!("{hash}\n{hash}")] {
            assert!(commit(text).is_err(), "{text}");
        }
    }
}
