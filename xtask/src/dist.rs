//! The release binaries: stripped, with their symbols in separate files.

use crate::process::run_shown;
use crate::tools;
use crate::workspace::{Workspace, cargo};
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Profile that differs from `release` only by its symbols.
const PROFILE: &str = "symbols";
/// Binaries of a release.
const BINARIES: [&str; 2] = ["stele", "stele-backup"];
/// Builds the binaries and writes each to `target/dist/NAME`, stripped, and its symbols to
/// `target/dist/NAME.debug`. gdb, perf and addr2line find the symbols by the link and the build id in the binary.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    tools::require(tools::FOR_DIST)?;
    let mut build = cargo();
    build.args(["build", "--package", "stele-cli", "--profile", PROFILE]);
    run_shown(build.current_dir(&workspace.root))?;
    let folder = workspace.target.join("dist");
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    for name in BINARIES {
        let (binary, symbols) = (folder.join(name), folder.join(format!("{name}.debug")));
        split(&workspace.target.join(PROFILE).join(name), &binary, &symbols)?;
        for path in [&binary, &symbols] {
            println!("{} {} bytes", path.display(), fs::metadata(path)?.len());
        }
    }
    Ok(())
}

fn split(built: &Path, binary: &Path, symbols: &Path) -> Result<()> {
    let objcopy = |words: &[&str], from: &Path, to: &Path| {
        run_shown(Command::new("objcopy").args(words).arg(from).arg(to))
    };
    objcopy(&["--only-keep-debug"], built, symbols)?;
    objcopy(&["--strip-all"], built, binary)?;
    let mut link = Command::new("objcopy");
    link.arg(format!("--add-gnu-debuglink={}", symbols.display())).arg(binary);
    run_shown(&mut link)
}
