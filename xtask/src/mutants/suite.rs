//! Test programs of a package, built with deliberate bugs, and the outcome of their runs.

use crate::process::{Ended, run_limited};
use crate::workspace::{Workspace, cargo};
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Test programs of one package.
pub struct Suite {
    /// Paths of the programs.
    programs: Vec<PathBuf>,
    folder: PathBuf,
}

/// Outcome of the tests under a filter.
#[derive(Debug)]
pub struct Outcome {
    /// End of the first program that failed, or of the last one.
    pub ended: Ended,
    /// Number of tests that passed.
    pub passed: usize,
    /// Duration of all programs.
    pub took: Duration,
    /// Output of the programs.
    pub printed: String,
}

impl Suite {
    /// Builds the tests of `package` once, with the feature `mutants`.
    pub fn build(workspace: &Workspace, package: &str) -> Result<Self> {
        let output = Command::new(cargo())
            .args(["test", "--no-run", "--features", "mutants", "--package", package])
            .args(["--message-format", "json-render-diagnostics", "--quiet"])
            .current_dir(&workspace.root)
            .stderr(Stdio::inherit())
            .output()
            .context("building tests")?;
        ensure!(output.status.success(), "the tests of {package} do not build");
        let manifest = workspace
            .packages
            .iter()
            .find(|member| member.name == package)
            .map(|member| member.manifest_path.clone())
            .with_context(|| format!("{package} is not a member of the workspace"))?;
        let folder = manifest.parent().context("the manifest has no parent folder")?.to_owned();
        Ok(Self { programs: programs(&output.stdout), folder })
    }

    /// Runs the tests that match `filter`, with the bug `mutant` switched on; each program may take
    /// `limit`. Stops at the first program that fails.
    pub fn run(&self, filter: &str, mutant: Option<&str>, limit: Duration) -> Result<Outcome> {
        let started = Instant::now();
        let mut passed = 0;
        let mut printed = String::new();
        let mut ended = Ended::Exited(true);
        for program in &self.programs {
            let mut command = Command::new(program);
            command.arg(filter).current_dir(&self.folder).env_remove("STELE_MUTANT");
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
}

/// Returns the executables in cargo's messages.
fn programs(messages: &[u8]) -> Vec<PathBuf> {
    let messages = String::from_utf8_lossy(messages);
    let values = messages.lines().filter_map(|line| serde_json::from_str(line).ok());
    values
        .filter(|message: &serde_json::Value| message["profile"]["test"] == true)
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .collect()
}

/// Adds the `N passed` of the closing lines of test programs.
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
            br#"{"reason":"compiler-artifact","profile":{"test":true},"executable":"a/b"}
{"reason":"compiler-artifact","profile":{"test":false},"executable":"a/c"}
{"reason":"compiler-artifact","profile":{"test":true},"executable":null}
not json"#;
        assert_eq!(programs(messages), [PathBuf::from("a/b")]);
    }
}
