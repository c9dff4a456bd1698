//! What `cargo metadata` knows about the workspace.

use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// Roots of programs that are workspaces of their own.
const APART: [&str; 1] = ["cluster-tests/tikv-rust/src/main.rs"];

/// The workspace's packages, and where it lies.
#[derive(Debug, Deserialize)]
pub struct Workspace {
    /// Folder of the workspace's Cargo.toml.
    #[serde(rename = "workspace_root")]
    pub root: PathBuf,
    /// Where cargo puts what it builds.
    #[serde(rename = "target_directory")]
    pub target: PathBuf,
    /// The members.
    pub packages: Vec<Package>,
}

/// One member.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// The licence it states.
    pub license: Option<String>,
    /// Its cargo features.
    #[serde(default)]
    pub features: BTreeMap<String, Vec<String>>,
    /// Its Cargo.toml.
    pub manifest_path: PathBuf,
    /// All that it depends on, of any kind.
    #[serde(default)]
    pub dependencies: Vec<Dependency>,
    /// Its library, binaries, tests, benches, examples.
    #[serde(default)]
    pub targets: Vec<Target>,
}

/// A dependency as declared.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Dependency {
    /// The package depended on.
    pub name: String,
    /// `None` for a normal one, else `dev` or `build`.
    pub kind: Option<String>,
}

/// One thing cargo builds from a package.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Target {
    /// Its root source file.
    pub src_path: PathBuf,
}

impl Workspace {
    /// Asks cargo.
    pub fn load() -> Result<Self> {
        let output = Command::new(cargo())
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

    /// Root source files of all targets, from the workspace's root, with `/`.
    pub fn roots(&self) -> Vec<String> {
        let targets = self.packages.iter().flat_map(|package| &package.targets);
        let below_root = targets.filter_map(|target| target.src_path.strip_prefix(&self.root).ok());
        let own = below_root.map(|path| path.to_string_lossy().replace('\\', "/"));
        own.chain(APART.map(str::to_owned)).collect()
    }
}

/// The cargo that runs this program.
pub fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}
