//! A copy of the repository in which the remarks of deliberate bugs are code. It is built with the dependencies
//! that the tests have built: its own packages differ by their folder, and cargo keeps both.

use super::remarks::{self, remarks};
use crate::programs::Program;
use crate::workspace::{Package, Workspace, cargo};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Folder of the copied files below the copy's root. Packages that differ in nothing else would replace each other.
const BELOW: &str = "stele";
const MANIFEST: &str = "Cargo.toml";
const SWITCH_PACKAGE: &str = "crates/types/";
const SWITCH_FILE: &str = "crates/types/src/lib.rs";
/// What the package gains: `STELE_MUTANT` names the bug that is switched on.
const SWITCH: &str = r#"
/// The switch of deliberate bugs.
#[doc(hidden)]
pub mod mutant {
    /// Whether the environment names the bug.
    pub fn active(name: &str) -> bool {
        static NAMED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
        NAMED.get_or_init(|| std::env::var("STELE_MUTANT").ok()).as_deref() == Some(name)
    }
}
"#;

#[derive(Debug)]
pub(crate) struct Tree {
    pub workspace: Workspace,
    /// Folder of what cargo builds on the way, shared with the repository.
    build: PathBuf,
}

impl Tree {
    /// Brings the copy up to date. Only files that differ are written: cargo builds again what has changed.
    pub(crate) fn expanded(workspace: &Workspace) -> Result<Self> {
        let root = workspace.target.join("mutants");
        let files = files(workspace)?;
        for file in &files {
            let (from, to) = (workspace.root.join(file), root.join(BELOW).join(file));
            copy(file, &from, &to).with_context(|| format!("copying {file}"))?;
        }
        remove_others(&root.join(BELOW), Path::new(""), &files)?;
        let manifest = fs::read_to_string(workspace.root.join(MANIFEST)).context(MANIFEST)?;
        write(&root.join(MANIFEST), manifest_of(&manifest)?.as_bytes())?;
        let lock = fs::read(workspace.root.join("Cargo.lock")).context("Cargo.lock")?;
        write(&root.join("Cargo.lock"), &lock)?;
        let moved = |package: &Package| {
            let below = package.manifest_path.strip_prefix(&workspace.root)?;
            Ok(Package { manifest_path: root.join(BELOW).join(below), ..package.clone() })
        };
        let packages = workspace.packages.iter().map(moved).collect::<Result<_>>()?;
        let target = root.join("out");
        Ok(Self {
            workspace: Workspace { root, target, packages },
            build: workspace.target.clone(),
        })
    }

    /// Builds the tests of `packages`. Returns cargo's messages.
    pub(crate) fn tests(&self, packages: &BTreeSet<&str>) -> Result<Vec<u8>> {
        let mut build = self.cargo();
        build.args(["test", "--no-run", "--message-format", "json-render-diagnostics", "--quiet"]);
        build.args(packages.iter().flat_map(|package| ["--package", package]));
        let output = build.stderr(Stdio::inherit()).output().context("building tests")?;
        ensure!(output.status.success(), "the tests with deliberate bugs do not build");
        Ok(output.stdout)
    }

    pub(crate) fn program(&self, program: Program) -> Result<PathBuf> {
        let mut build = self.cargo();
        build.args(["build", "--quiet", "--package", program.package, "--bin", program.name]);
        crate::process::run_shown(&mut build)?;
        Ok(self.workspace.target.join("debug").join(program.name))
    }

    fn cargo(&self) -> Command {
        let mut command = cargo();
        command.current_dir(&self.workspace.root);
        command.env("CARGO_TARGET_DIR", &self.workspace.target);
        command.env("CARGO_BUILD_BUILD_DIR", &self.build);
        command
    }
}

/// Returns all files that git knows or would add, as paths from the root.
fn files(workspace: &Workspace) -> Result<BTreeSet<String>> {
    let mut list = Command::new("git");
    list.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let output = list.current_dir(&workspace.root).output().context("running git ls-files")?;
    ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).context("a file's name is not UTF-8")?;
    let is_there = |name: &&str| workspace.root.join(name).is_file();
    let named = names.split('\0').filter(|name| !name.is_empty());
    Ok(named.filter(is_there).map(str::to_owned).collect())
}

/// Copies a file; with code instead of its remarks if it belongs to the product.
fn copy(file: &str, from: &Path, to: &Path) -> Result<()> {
    let read = fs::read(from)?;
    if !file.ends_with(".rs") {
        if fs::read(to).ok().as_ref() != Some(&read) {
            fs::create_dir_all(to.parent().context("no folder")?)?;
            fs::copy(from, to)?;
        }
        return Ok(());
    }
    let mut text = String::from_utf8(read)?;
    if is_product(file) && remarks(&text).next().is_some() {
        text = remarks::expand(&text, switch_of(file))?;
    }
    if file == SWITCH_FILE {
        text.push_str(SWITCH);
    }
    write(to, text.as_bytes())
}

/// Returns whether a file may have deliberate bugs.
fn is_product(file: &str) -> bool {
    ["crates/", "testing/"].iter().any(|folder| file.starts_with(folder)) && file.contains("/src/")
}

pub(crate) fn switch_of(file: &str) -> &'static str {
    match file.starts_with(SWITCH_PACKAGE) {
        true => "crate::mutant::active",
        false => "::stele_types::mutant::active",
    }
}

/// Writes a file unless it has these bytes.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).ok().as_deref() != Some(bytes) {
        fs::create_dir_all(path.parent().context("no folder")?)?;
        fs::write(path, bytes)?;
    }
    Ok(())
}

/// Removes what is below `root` and not in `files`.
fn remove_others(root: &Path, below: &Path, files: &BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir(root.join(below))? {
        let entry = entry?;
        let name = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            remove_others(root, &name, files)?;
        } else if !files.contains(&*name.to_string_lossy()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Returns the manifest of the copy's workspace: the same, with all paths one folder deeper.
fn manifest_of(manifest: &str) -> Result<String> {
    let mut manifest: toml::Table = toml::from_str(manifest).context("reading Cargo.toml")?;
    let workspace = manifest.get_mut("workspace").and_then(toml::Value::as_table_mut);
    let workspace = workspace.context("Cargo.toml has no workspace")?;
    let deeper = |path: &mut toml::Value| {
        if let Some(text) = path.as_str() {
            *path = format!("{BELOW}/{text}").into();
        }
    };
    for list in ["members", "exclude"] {
        let paths = workspace.get_mut(list).and_then(toml::Value::as_array_mut);
        paths.into_iter().flatten().for_each(deeper);
    }
    let dependencies = workspace.get_mut("dependencies").and_then(toml::Value::as_table_mut);
    for (_, dependency) in dependencies.into_iter().flatten() {
        dependency.get_mut("path").into_iter().for_each(deeper);
    }
    // Lints are for the repository itself.
    let silent = toml::Table::from_iter([("warnings".to_owned(), "allow".into())]);
    let lints = toml::Table::from_iter([("rust".to_owned(), silent.into())]);
    workspace.insert("lints".to_owned(), lints.into());
    toml::to_string(&manifest).context("writing Cargo.toml")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_of_the_copy_names_its_members_one_folder_deeper() {
        let manifest = "[workspace]\nmembers = ['crates/*', 'sim']\nexclude = ['x']\n\
                        [workspace.dependencies]\na = { path = 'crates/a' }\nb = '1'\n\
                        [profile.dev]\nopt-level = 1\n";
        let copied: toml::Table = toml::from_str(&manifest_of(manifest).unwrap()).unwrap();
        let workspace = &copied["workspace"];
        assert_eq!(workspace["members"][0].as_str(), Some("stele/crates/*"));
        assert_eq!(workspace["exclude"][0].as_str(), Some("stele/x"));
        assert_eq!(workspace["dependencies"]["a"]["path"].as_str(), Some("stele/crates/a"));
        assert_eq!(workspace["dependencies"]["b"].as_str(), Some("1"));
        assert_eq!(copied["profile"]["dev"]["opt-level"].as_integer(), Some(1));
        assert_eq!(workspace["lints"]["rust"]["warnings"].as_str(), Some("allow"));
        assert!(manifest_of("[package]\n").is_err());
    }

    #[test]
    fn a_file_that_is_gone_leaves_the_copy_and_an_equal_one_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        write(&at("a/b.rs"), b"one").unwrap();
        write(&at("a/c.rs"), b"two").unwrap();
        let written = fs::metadata(at("a/b.rs")).unwrap().modified().unwrap();
        write(&at("a/b.rs"), b"one").unwrap();
        assert_eq!(fs::metadata(at("a/b.rs")).unwrap().modified().unwrap(), written);
        remove_others(folder.path(), Path::new(""), &["a/b.rs".to_owned()].into()).unwrap();
        assert!(at("a/b.rs").exists() && !at("a/c.rs").exists());
    }
}
