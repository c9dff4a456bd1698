//! The workspace as `cargo metadata` describes it.

use anyhow::{Context, Result};
use serde::Deserialize;
use std::path::PathBuf;
use std::process::Command;

/// Root files that no package of this workspace names: a separate workspace, a library that a command compiles
/// alone, and a program that it builds with a former version.
const APART: [&str; 3] = [
    "cluster-tests/tikv-rust/src/main.rs",
    "xtask/src/house/preload.rs",
    "xtask/src/former/corpus.rs",
];

/// Packages of the workspace and its folders.
#[derive(Debug, Default, Deserialize)]
pub struct Workspace {
    /// Folder of the workspace's Cargo.toml.
    #[serde(rename = "workspace_root")]
    pub root: PathBuf,
    /// Folder of build outputs.
    #[serde(rename = "target_directory")]
    pub target: PathBuf,
    /// Members of the workspace.
    pub packages: Vec<Package>,
}

/// One member.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Package {
    /// Name of the package.
    pub name: String,
    /// Licence that the manifest states.
    pub license: Option<String>,
    /// Path of its Cargo.toml.
    pub manifest_path: PathBuf,
    /// Dependencies of all kinds.
    #[serde(default)]
    pub dependencies: Vec<Dependency>,
    /// Libraries, binaries, tests, benches and examples.
    #[serde(default)]
    pub targets: Vec<Target>,
}

/// A dependency as declared.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Dependency {
    /// Name of the package that is depended on.
    pub name: String,
    /// `None` for a normal dependency, else `dev` or `build`.
    pub kind: Option<String>,
}

/// One build target of a package.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Target {
    /// Root source file.
    pub src_path: PathBuf,
}

impl Workspace {
    /// Runs `cargo metadata` and reads its output.
    pub fn load() -> Result<Self> {
        let output = cargo()
            .args(["metadata", "--format-version", "1", "--no-deps"])
            .output()
            .context("running cargo metadata")?;
        anyhow::ensure!(
            output.status.success(),
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_slice(&output.stdout).context("reading cargo metadata")
    }

    /// Returns the root source files of all targets, as paths from the workspace's root with `/`.
    pub fn roots(&self) -> Vec<String> {
        let targets = self.packages.iter().flat_map(|package| &package.targets);
        let below_root = targets.filter_map(|target| target.src_path.strip_prefix(&self.root).ok());
        let own = below_root.map(|path| path.to_string_lossy().replace('\\', "/"));
        own.chain(APART.map(str::to_owned)).collect()
    }
}

/// Returns the cargo that runs this program, without the variables that it set for this program.
///
/// The build script of `ring` runs again when `CARGO_MANIFEST_DIR` or a `CARGO_PKG_` variable of cargo's own
/// environment differs. With those of this program, cargo would build all that depends on it once more,
/// after each build from a shell.
pub fn cargo() -> Command {
    let path = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(path);
    for (name, _) in std::env::vars_os() {
        let is_of_package = name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
        });
        if is_of_package {
            command.env_remove(name);
        }
    }
    command
}
