//! The harness and the foreign programs that it drives, each built with the tool of its language.

use crate::process::run_shown;
use crate::programs::{HARNESS, build};
use crate::tools::{self, python_environment};
use crate::workspace::{Workspace, cargo};
use anyhow::{Context, Result};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Debug)]
pub(super) struct Programs {
    pub harness: PathBuf,
    porcupine: PathBuf,
    ycsb: PathBuf,
    tikv_rust: PathBuf,
    python: PathBuf,
    python_script: PathBuf,
    python_answers: PathBuf,
    python_round: PathBuf,
    tikv_go: PathBuf,
    java_paths: PathBuf,
    java_source: PathBuf,
}

impl Programs {
    /// Builds all programs. Fails if a tool is missing: no program is left out silently.
    pub(super) fn build(workspace: &Workspace, release: bool) -> Result<Self> {
        Self::foreign(workspace, build(workspace, HARNESS, release)?)
    }

    pub(super) fn foreign(workspace: &Workspace, harness: PathBuf) -> Result<Self> {
        tools::require(tools::FOR_CLUSTERS)?;
        let sources = workspace.root.join("cluster-tests");
        let built = workspace.target.join("cluster-tests");
        std::fs::create_dir_all(&built)?;
        Ok(Self {
            harness,
            porcupine: build_go(&sources, &built, "porcupine")?,
            ycsb: build_go(&sources, &built, "ycsb")?,
            tikv_rust: build_tikv_rust(&sources, &built)?,
            python: build_python(&sources, &built)?,
            python_script: sources.join("python/compatibility.py"),
            python_answers: sources.join("python/answers.py"),
            python_round: sources.join("python/round.py"),
            tikv_go: build_go(&sources, &built, "tikv-go")?,
            java_paths: java_paths(&sources, &built)?,
            java_source: sources.join("tikv-java/Answers.java"),
        })
    }

    pub(super) fn flags(&self) -> Vec<OsString> {
        let flags = [
            ("--porcupine", &self.porcupine),
            ("--ycsb", &self.ycsb),
            ("--tikv-rust", &self.tikv_rust),
            ("--python", &self.python),
            ("--python-script", &self.python_script),
            ("--python-answers", &self.python_answers),
            ("--python-round", &self.python_round),
            ("--tikv-go", &self.tikv_go),
            ("--java-paths", &self.java_paths),
            ("--java-source", &self.java_source),
        ];
        flags.into_iter().flat_map(|(flag, path)| [flag.into(), path.into()]).collect()
    }
}

/// Builds only the checker of histories.
pub(crate) fn porcupine(workspace: &Workspace) -> Result<PathBuf> {
    let built = workspace.target.join("cluster-tests");
    std::fs::create_dir_all(&built)?;
    build_go(&workspace.root.join("cluster-tests"), &built, "porcupine")
}

/// Builds a Go module, after its own tests: a checker that finds nothing wrong proves nothing.
fn build_go(sources: &Path, built: &Path, name: &str) -> Result<PathBuf> {
    let folder = sources.join(name);
    let binary = built.join(name);
    run_shown(Command::new("go").args(["test", "./..."]).current_dir(&folder))?;
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&binary).arg(".");
    run_shown(build.current_dir(&folder)).with_context(|| format!("building {name}"))?;
    Ok(binary)
}

fn build_tikv_rust(sources: &Path, built: &Path) -> Result<PathBuf> {
    let target = built.join("tikv-rust");
    let mut build = cargo();
    build.args(["build", "--quiet", "--locked"]).arg("--target-dir").arg(&target);
    run_shown(build.current_dir(sources.join("tikv-rust")))?;
    Ok(target.join("debug/stele-tests-tikv-rust"))
}

/// Fetches TiKV's Java client; returns the file with its class path. Java compiles the program when it runs.
fn java_paths(sources: &Path, built: &Path) -> Result<PathBuf> {
    let paths = built.join("tikv-java.paths");
    if !paths.is_file() {
        let mut fetch = Command::new("mvn");
        fetch.args(["--quiet", "--batch-mode", "dependency:build-classpath"]);
        fetch.arg(format!("-Dmdep.outputFile={}", paths.display()));
        run_shown(fetch.current_dir(sources.join("tikv-java")))?;
    }
    Ok(paths)
}

fn build_python(sources: &Path, built: &Path) -> Result<PathBuf> {
    let requirements = sources.join("python/requirements.txt");
    python_environment(&built.join("python"), Some(&requirements))
}
