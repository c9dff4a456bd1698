//! The release binary: stripped, with its symbols in a separate file.

use crate::process::run_shown;
use crate::tools;
use crate::workspace::{Workspace, cargo};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Profile that differs from `release` only by its symbols.
const PROFILE: &str = "symbols";
/// Variable that switches a deliberate bug on, in development builds alone.
const SWITCH: &str = "STELE_MUTANT";

/// Builds `stele` and writes `target/dist/stele`, stripped, and `target/dist/stele.debug`, its
/// symbols. gdb, perf and addr2line find the symbols by the link and the build id in the binary.
pub fn run(workspace: &Workspace) -> Result<()> {
    tools::require(tools::FOR_DIST)?;
    let mut build = Command::new(cargo());
    build.args(["build", "--package", "stele-cli", "--profile", PROFILE]);
    run_shown(build.current_dir(&workspace.root))?;
    let folder = workspace.target.join("dist");
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let (binary, symbols) = (folder.join("stele"), folder.join("stele.debug"));
    let built = workspace.target.join(PROFILE).join("stele");
    ensure!(
        !reads_mutant(&fs::read(&built)?),
        "{} reads {SWITCH}: a release build must contain no deliberate bug",
        built.display()
    );
    split(&built, &binary, &symbols)?;
    for path in [&binary, &symbols] {
        println!("{} {} bytes", path.display(), fs::metadata(path)?.len());
    }
    Ok(())
}

/// Returns whether compiled code reads the name of a deliberate bug.
fn reads_mutant(code: &[u8]) -> bool {
    code.windows(SWITCH.len()).any(|bytes| bytes == SWITCH.as_bytes())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Compiles a program that asks for a deliberate bug, with or without debug assertions.
    fn compiled(workspace: &Workspace, debug_assertions: &str) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let (source, object) = (folder.path().join("main.rs"), folder.path().join("main.o"));
        let switch = workspace.root.join("crates/types/src/mutant.rs");
        let program = format!(
            "#[path = {switch:?}]\nmod mutant;\nfn main() {{\n    assert!(!mutant::active(\"x\"));\n}}\n"
        );
        fs::write(&source, program).unwrap();
        let mut compiler =
            Command::new(std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned()));
        compiler.args(["--edition", "2024", "--emit", "obj", "-C", "codegen-units=1", "-C"]);
        compiler.arg(format!("debug-assertions={debug_assertions}")).arg("-o").arg(&object);
        run_shown(compiler.arg(&source)).unwrap();
        fs::read(object).unwrap()
    }

    #[test]
    fn only_builds_with_debug_assertions_contain_deliberate_bugs() {
        let workspace = Workspace::load().unwrap();
        assert!(reads_mutant(&compiled(&workspace, "yes")));
        assert!(!reads_mutant(&compiled(&workspace, "no")));
    }

    #[test]
    fn no_profile_but_that_of_development_has_debug_assertions() {
        let workspace = Workspace::load().unwrap();
        let manifest = fs::read_to_string(workspace.root.join("Cargo.toml")).unwrap();
        let manifest: toml::Table = toml::from_str(&manifest).unwrap();
        let profiles = manifest["profile"].as_table().unwrap();
        assert!(profiles.contains_key("release"));
        for (name, profile) in profiles {
            assert!(profile.get("debug-assertions").is_none(), "profile {name}");
            let is_of_release = ["dev", "release"].contains(&name.as_str())
                || profile.get("inherits").and_then(|it| it.as_str()) == Some("release");
            assert!(is_of_release, "profile {name} inherits debug assertions");
        }
    }
}
