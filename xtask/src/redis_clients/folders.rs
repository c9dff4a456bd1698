//! Programs that use clients and frameworks, a folder for each language, built with the tools of the language.

use crate::process::{Ended, run_limited};
use crate::tools::{
    FOR_REDIS_CLIENTS_GO, FOR_REDIS_CLIENTS_JAVA, FOR_REDIS_CLIENTS_NODE, FOR_REDIS_CLIENTS_PYTHON,
    Tool, python_environment,
};
use crate::workspace::cargo;
use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const BUILD_LIMIT: Duration = Duration::from_secs(900);

/// Program of one language.
pub(super) struct Folder {
    pub name: &'static str,
    pub tools: &'static [Tool],
    /// Builds the program of the first folder, in the second. Returns its command, of which the words are complete but
    /// for its flags.
    pub build: fn(&Path, &Path) -> Result<Vec<OsString>>,
}

pub(super) const FOLDERS: [Folder; 5] = [
    Folder { name: "python", tools: FOR_REDIS_CLIENTS_PYTHON, build: python },
    Folder { name: "node", tools: FOR_REDIS_CLIENTS_NODE, build: node },
    Folder { name: "go", tools: FOR_REDIS_CLIENTS_GO, build: go },
    Folder { name: "java", tools: FOR_REDIS_CLIENTS_JAVA, build: java },
    Folder { name: "rust", tools: &[], build: rust },
];

fn python(sources: &Path, built: &Path) -> Result<Vec<OsString>> {
    let requirements = sources.join("requirements.txt");
    let python = python_environment(&built.join("python"), Some(&requirements))?;
    // `-B`: the sources stay as they are.
    Ok(vec![python.into(), "-B".into(), sources.join("main.py").into()])
}

/// Node finds packages beside the program, so the program is copied to them.
fn node(sources: &Path, built: &Path) -> Result<Vec<OsString>> {
    let place = built.join("node");
    std::fs::create_dir_all(&place)?;
    let lock = |folder: &Path| std::fs::read(folder.join("package-lock.json")).ok();
    let is_installed = lock(sources) == lock(&place) && place.join("node_modules").is_dir();
    for file in std::fs::read_dir(sources)? {
        let file = file?;
        if file.file_type()?.is_file() {
            std::fs::copy(file.path(), place.join(file.file_name()))?;
        }
    }
    if !is_installed {
        let mut install = Command::new("npm");
        install.args(["ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]);
        done(install.current_dir(&place))?;
    }
    Ok(vec!["node".into(), place.join("main.mjs").into()])
}

fn go(sources: &Path, built: &Path) -> Result<Vec<OsString>> {
    let binary = built.join("go");
    let mut build = Command::new("go");
    done(build.args(["build", "-o"]).arg(&binary).arg(".").current_dir(sources))?;
    Ok(vec![binary.into()])
}

fn java(sources: &Path, built: &Path) -> Result<Vec<OsString>> {
    let place = built.join("java");
    let (paths, classes) = (place.join("paths"), place.join("classes"));
    std::fs::create_dir_all(&classes)?;
    let mut fetch = Command::new("mvn");
    fetch.args(["--quiet", "--batch-mode", "dependency:build-classpath"]);
    fetch.arg(format!("-Dmdep.outputFile={}", paths.display()));
    done(fetch.current_dir(sources))?;
    let paths = std::fs::read_to_string(&paths)?;
    let mut compile = Command::new("javac");
    compile.args(["-encoding", "UTF-8", "-cp", paths.trim(), "-d"]).arg(&classes);
    done(compile.args(files(&sources.join("src/main/java"))?))?;
    let paths = format!("{}:{}", classes.display(), paths.trim());
    Ok(vec!["java".into(), "-cp".into(), paths.into(), "Main".into()])
}

fn rust(sources: &Path, built: &Path) -> Result<Vec<OsString>> {
    let target = built.join("rust");
    let mut build = cargo();
    build.args(["build", "--quiet", "--locked"]).arg("--target-dir").arg(&target);
    done(build.current_dir(sources))?;
    let manifest = std::fs::read_to_string(sources.join("Cargo.toml"))?;
    let manifest: toml::Table = toml::from_str(&manifest)?;
    let name = manifest["package"]["name"].as_str().context("the package has no name")?;
    Ok(vec![target.join("debug").join(name).into()])
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        files.push(entry?.path());
    }
    Ok(files)
}

fn done(command: &mut Command) -> Result<()> {
    let (ended, printed) = run_limited(command, BUILD_LIMIT)?;
    ensure!(ended == Ended::Exited(true), "{command:?}: {ended:?}: {printed}");
    Ok(())
}
