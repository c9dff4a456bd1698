//! Test programs, the tests that each holds, and the outcome of their runs with a deliberate bug.

use super::tree::Tree;
use crate::process::{Ended, in_parallel, run_limited};
use crate::workspace::Workspace;
use anyhow::{Result, ensure};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Time limit of the list of a program's tests.
const LIST_LIMIT: Duration = Duration::from_secs(60);

pub(super) struct Suite {
    programs: Vec<Program>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Program {
    package: String,
    path: PathBuf,
    /// Folder of the package, in which its tests run.
    folder: PathBuf,
    tests: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Tests<'a> {
    program: &'a Program,
    names: Vec<&'a str>,
}

#[derive(Debug)]
pub(super) struct Outcome {
    /// End of the first program that failed, or of the last one.
    pub ended: Ended,
    pub passed: usize,
    pub took: Duration,
    pub printed: String,
}

impl Suite {
    pub(super) fn build(tree: &Tree, packages: &BTreeSet<&str>) -> Result<Self> {
        let built = programs(&tree.tests(packages)?, &tree.workspace);
        let wanted = built.into_iter().filter(|it| packages.contains(it.package.as_str()));
        let programs = in_parallel(wanted, |program| {
            let tests = list(&program)?;
            Ok(Program { tests, ..program })
        })?;
        Ok(Self { programs })
    }

    #[cfg(test)]
    pub(super) fn of(path: &std::path::Path, package: &str) -> Result<Self> {
        let (package, path) = (package.to_owned(), path.to_owned());
        let folder = path.parent().map(std::path::Path::to_owned).unwrap_or_default();
        let program = Program { package, path, folder, tests: Vec::new() };
        let tests = list(&program)?;
        Ok(Self { programs: vec![Program { tests, ..program }] })
    }

    pub(super) fn matching(&self, package: &str, filter: &str) -> Vec<Tests<'_>> {
        let of_package = self.programs.iter().filter(|program| program.package == package);
        let tests = of_package.map(|program| {
            let names = program.tests.iter().map(String::as_str);
            Tests { program, names: names.filter(|name| name.contains(filter)).collect() }
        });
        tests.filter(|tests| !tests.names.is_empty()).collect()
    }
}

/// Runs `tests` with the bug `mutant` switched on; each program may take `limit`. Stops at the first
/// program that fails.
pub(super) fn run(tests: &[Tests<'_>], mutant: Option<&str>, limit: Duration) -> Result<Outcome> {
    let started = Instant::now();
    let mut passed = 0;
    let mut printed = String::new();
    let mut ended = Ended::Exited(true);
    for Tests { program, names } in tests {
        let mut command = program.command();
        command.args(names).arg("--exact");
        if let Some(mutant) = mutant {
            command.env("STELE_MUTANT", mutant);
        }
        let (this, text) = run_limited(&mut command, limit)?;
        passed += passed_tests(&text);
        printed.push_str(&text);
        ended = this;
        if ended != Ended::Exited(true) {
            break;
        }
    }
    Ok(Outcome { ended, passed, took: started.elapsed(), printed })
}

impl Program {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.folder).env_remove("STELE_MUTANT");
        command
    }
}

fn list(program: &Program) -> Result<Vec<String>> {
    let (ended, printed) = run_limited(program.command().arg("--list"), LIST_LIMIT)?;
    ensure!(ended == Ended::Exited(true), "{} lists no tests:\n{printed}", program.path.display());
    Ok(listed(&printed))
}

fn listed(printed: &str) -> Vec<String> {
    printed.lines().filter_map(|line| Some(line.strip_suffix(": test")?.to_owned())).collect()
}

fn programs(messages: &[u8], workspace: &Workspace) -> Vec<Program> {
    let messages = String::from_utf8_lossy(messages);
    let values = messages.lines().filter_map(|line| serde_json::from_str(line).ok());
    values
        .filter(|message: &serde_json::Value| message["profile"]["test"] == true)
        .filter_map(|message| {
            let path = PathBuf::from(message["executable"].as_str()?);
            let manifest = PathBuf::from(message["manifest_path"].as_str()?);
            let package = workspace.packages.iter().find(|it| it.manifest_path == manifest)?;
            let (package, folder) = (package.name.clone(), manifest.parent()?.to_owned());
            Some(Program { package, path, folder, tests: Vec::new() })
        })
        .collect()
}

fn passed_tests(printed: &str) -> usize {
    let closings = printed.lines().filter(|line| line.starts_with("test result:"));
    let count = |line: &str| {
        let before = line.split(" passed").next()?;
        before.rsplit(' ').next()?.parse::<usize>().ok()
    };
    closings.filter_map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Package;

    #[test]
    fn closing_lines_are_counted() {
        let printed = "running 2 tests\ntest result: ok. 2 passed; 0 failed; 0 ignored\n\
                       test result: FAILED. 40 passed; 1 failed; 0 ignored\n";
        assert_eq!(passed_tests(printed), 42);
        assert_eq!(passed_tests("aborted"), 0);
    }

    #[test]
    fn test_programs_are_taken_from_the_messages() {
        let messages =
            br#"{"profile":{"test":true},"executable":"/t/b","manifest_path":"/w/log/Cargo.toml"}
{"profile":{"test":false},"executable":"/t/c","manifest_path":"/w/log/Cargo.toml"}
{"profile":{"test":true},"executable":null,"manifest_path":"/w/log/Cargo.toml"}
{"profile":{"test":true},"executable":"/t/d","manifest_path":"/registry/x/Cargo.toml"}
not json"#;
        let workspace = Workspace {
            root: "/w".into(),
            target: "/t".into(),
            packages: vec![Package {
                name: "stele-log".into(),
                manifest_path: "/w/log/Cargo.toml".into(),
                ..Package::default()
            }],
        };
        let log = Program {
            package: "stele-log".into(),
            path: "/t/b".into(),
            folder: "/w/log".into(),
            tests: Vec::new(),
        };
        assert_eq!(programs(messages, &workspace), [log]);
    }

    #[test]
    fn only_programs_that_hold_a_test_run_and_only_that_test() {
        let program = |package: &str, list: &str| Program {
            package: package.into(),
            tests: listed(list),
            ..Program::default()
        };
        let suite = Suite {
            programs: vec![
                program("log", "a::first: test\na::second: test\nb: benchmark\n\n2 tests\n"),
                program("log", "other: test\n"),
                program("gc", "a::first: test\n"),
            ],
        };
        let found = suite.matching("log", "first");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].names, ["a::first"]);
        assert_eq!(suite.matching("log", "a::")[0].names.len(), 2);
        assert!(suite.matching("gc", "other").is_empty());
    }
}
