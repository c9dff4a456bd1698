//! What the tests of a suite came to, and which failures count as skipped.

use super::suites::{Format, Suite};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// Tests that are expected to fail, from `cluster-tests/redis/skips.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Skips {
    #[serde(default)]
    skip: Vec<Skip>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Skip {
    suite: String,
    /// Beginning of the names of the tests.
    test: String,
    reason: String,
}

impl Skips {
    pub(super) fn load(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let skips: Self =
            toml::from_str(&text).with_context(|| format!("reading {}", path.display()))?;
        let names: BTreeSet<_> = skips.skip.iter().map(|it| (&it.suite, &it.test)).collect();
        ensure!(names.len() == skips.skip.len(), "a test is skipped twice in {}", path.display());
        Ok(skips)
    }

    fn reason(&self, suite: &str, test: &str) -> Option<&str> {
        let mut of_suite = self.skip.iter().filter(|skip| skip.suite == suite);
        of_suite.find(|skip| test.starts_with(&skip.test)).map(|skip| skip.reason.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Skipped(String),
    /// What it printed.
    Failed(String),
}

/// Tests of one suite.
pub(super) struct Outcomes {
    name: &'static str,
    version: &'static str,
    tests: BTreeMap<String, Outcome>,
}

impl Outcomes {
    /// Reads what a suite printed. Fails if it has no test that passed: then it did not run.
    pub(super) fn of(suite: &Suite, printed: &str, skips: &Skips) -> Result<Self> {
        let mut tests = BTreeMap::new();
        for (test, outcome) in match suite.format {
            Format::Pytest => pytest(printed)?,
            Format::Tcl => tcl(printed),
            Format::Go => go(printed)?,
        } {
            let outcome = match outcome {
                Outcome::Failed(text) => match skips.reason(suite.name, &test) {
                    Some(reason) => Outcome::Skipped(reason.to_owned()),
                    None => needed(&text).map_or(Outcome::Failed(text), Outcome::Skipped),
                },
                other => other,
            };
            tests.insert(test, outcome);
        }
        let passed = tests.values().any(|outcome| *outcome == Outcome::Passed);
        ensure!(passed, "{} did not run: {printed}", suite.name);
        Ok(Self { name: suite.name, version: suite.version, tests })
    }

    pub(super) fn failed(&self) -> usize {
        self.tests.values().filter(|outcome| matches!(outcome, Outcome::Failed(_))).count()
    }

    /// Returns a row: suite, version, numbers of tests that passed, were skipped and failed.
    pub(super) fn row(&self) -> String {
        let passed = self.tests.values().filter(|outcome| **outcome == Outcome::Passed).count();
        let failed = self.failed();
        let skipped = self.tests.len() - passed - failed;
        format!("| {} | {} | {passed} | {skipped} | {failed} |\n", self.name, self.version)
    }

    /// Returns the reasons of the skips with their numbers, and each failed test with the end of its text.
    pub(super) fn details(&self) -> String {
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        let mut text = String::new();
        for (test, outcome) in &self.tests {
            match outcome {
                Outcome::Passed => {}
                Outcome::Skipped(reason) => *reasons.entry(reason).or_default() += 1,
                Outcome::Failed(printed) => {
                    let lines: Vec<&str> = printed.lines().collect();
                    let end = lines.get(lines.len().saturating_sub(12)..).unwrap_or_default();
                    // Writing to a string cannot fail.
                    let _ =
                        writeln!(text, "{} FAILED {test}\n    {}", self.name, end.join("\n    "));
                }
            }
        }
        for (reason, number) in reasons {
            let _ = writeln!(text, "{} skipped {number}: {reason}", self.name);
        }
        text
    }
}

/// Returns the command that a failed test needs and that is not built.
fn needed(text: &str) -> Option<String> {
    let between = |before: &str, after: char| {
        let (_, rest) = text.split_once(before)?;
        rest.split_once(after).map(|(name, _)| name.to_uppercase())
    };
    if let Some(name) =
        between("unknown command '", '\'').or_else(|| between("unknown command \\'", '\\'))
    {
        return Some(format!("needs {name}"));
    }
    if let Some(name) = between("unknown subcommand '", '\'') {
        let of = between("'. Try ", ' ').unwrap_or_default();
        return Some(format!("needs {of} {name}"));
    }
    if let Some(name) = between("number of arguments for CONFIG SET - '", '\'') {
        return Some(format!("needs CONFIG SET {}", name.to_lowercase()));
    }
    if text.contains("CLIENT TRACKING is not built") {
        return Some("needs CLIENT TRACKING".to_owned());
    }
    if text.contains("is not executed in a transaction: send it before MULTI") {
        return Some("needs a command of a whole key space between MULTI and EXEC".to_owned());
    }
    ["this script is not known", "NOSCRIPT No matching script"]
        .iter()
        .any(|error| text.contains(error))
        .then(|| "needs EVAL of a script of its own".to_owned())
}

/// Lines of JSON of `cluster-tests/redis/outcomes.py`.
fn pytest(printed: &str) -> Result<Vec<(String, Outcome)>> {
    #[derive(Deserialize)]
    struct Line {
        test: String,
        outcome: String,
        text: String,
    }
    let lines = printed.lines().map(|line| {
        let Line { test, outcome, text } =
            serde_json::from_str(line).with_context(|| format!("an outcome: {line}"))?;
        let outcome = match outcome.as_str() {
            "passed" => Outcome::Passed,
            "skipped" => Outcome::Skipped("the suite itself skips it on such a server".to_owned()),
            _ => Outcome::Failed(text),
        };
        Ok((test, outcome))
    });
    lines.collect()
}

/// `[ok]: NAME (N ms)`, `[err]: NAME in FILE` with details in the lines after it, and `[ignore]: NAME: REASON`.
fn tcl(printed: &str) -> Vec<(String, Outcome)> {
    let mut tests: Vec<(String, Outcome)> = Vec::new();
    for line in printed.lines() {
        let line = strip_colours(line);
        let Some((kind, name)) = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "))
        else {
            if let Some((_, Outcome::Failed(text))) = tests.last_mut() {
                text.push_str(&line);
                text.push('\n');
            }
            continue;
        };
        let outcome = match kind {
            "ok" => Outcome::Passed,
            "err" | "exception" => Outcome::Failed(String::new()),
            "ignore" | "skip" => {
                Outcome::Skipped("the suite skips it on a server that it did not start".to_owned())
            }
            _ => continue,
        };
        let name = name.rsplit_once(" (").filter(|_| kind == "ok").map_or(name, |(name, _)| name);
        tests.push((name.split(" in tests/").next().unwrap_or(name).to_owned(), outcome));
    }
    tests
}

fn strip_colours(line: &str) -> String {
    let mut out = String::new();
    let mut is_escape = false;
    for character in line.chars() {
        match (is_escape, character) {
            (false, '\u{1b}') => is_escape = true,
            (false, _) => out.push(character),
            (true, _) => is_escape = !character.is_ascii_alphabetic(),
        }
    }
    out
}

/// Lines of JSON of `go test -json`.
fn go(printed: &str) -> Result<Vec<(String, Outcome)>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Line {
        action: String,
        test: Option<String>,
        #[serde(default)]
        output: String,
    }
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    let mut tests = Vec::new();
    for line in printed.lines().filter(|line| line.starts_with('{')) {
        let Line { action, test, output } =
            serde_json::from_str(line).with_context(|| format!("an outcome: {line}"))?;
        let Some(test) = test else { continue };
        let text = texts.entry(test.clone()).or_default();
        text.push_str(&output);
        let outcome = match action.as_str() {
            "pass" => Outcome::Passed,
            "fail" => Outcome::Failed(text.clone()),
            "skip" => Outcome::Skipped("the suite itself skips it on such a server".to_owned()),
            _ => continue,
        };
        tests.push((test, outcome));
    }
    // A test with parts fails with one of them, and names it.
    let parents: BTreeSet<String> = tests
        .iter()
        .filter_map(|(test, _)| test.split_once('/').map(|(test, _)| test.to_owned()))
        .collect();
    tests.retain(|(test, _)| !parents.contains(test));
    Ok(tests)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(format: Format) -> Suite {
        Suite {
            name: "x",
            version: "1",
            format,
            port: 0,
            is_in_short: true,
            run: |_, _, _| Ok(String::new()),
        }
    }

    #[test]
    fn a_failure_counts_as_skipped_only_with_a_reason() {
        let printed = "[ok]: A (2 ms)\n[err]: B in tests/unit/x.tcl\nERR unknown command 'ZADD', with\n\
                       [err]: C in tests/unit/x.tcl\nExpected 1\n[err]: D in tests/unit/x.tcl\nExpected 2\n";
        let skips = "[[skip]]\nsuite = \"x\"\ntest = \"D\"\nreason = \"differs\"\n";
        let skips: Skips = toml::from_str(skips).unwrap();
        let outcomes = Outcomes::of(&suite(Format::Tcl), printed, &skips).unwrap();
        assert_eq!(outcomes.row(), "| x | 1 | 1 | 2 | 1 |\n");
        let details = outcomes.details();
        for line in ["FAILED C\n    Expected 1", "skipped 1: needs ZADD", "skipped 1: differs"] {
            assert!(details.contains(line), "{details}");
        }
    }

    #[test]
    fn a_suite_of_which_no_test_passed_did_not_run() {
        let none = Outcomes::of(&suite(Format::Tcl), "[err]: A in tests/x\n", &Skips::default());
        assert!(none.err().unwrap().to_string().contains("did not run"));
    }

    #[test]
    fn outcomes_of_pytest_and_go_are_read() {
        let line = |outcome: &str, text: &str| {
            format!("{{\"test\":\"{outcome}\",\"outcome\":\"{outcome}\",\"text\":\"{text}\"}}\n")
        };
        let printed = [
            line("passed", ""),
            line("failed", "unknown subcommand 'X'. Try CLIENT HELP"),
            line("skipped", ""),
        ]
        .concat();
        let outcomes = Outcomes::of(&suite(Format::Pytest), &printed, &Skips::default()).unwrap();
        assert_eq!(outcomes.row(), "| x | 1 | 1 | 2 | 0 |\n");
        assert!(outcomes.details().contains("needs CLIENT X"), "{}", outcomes.details());
        let printed = "{\"Action\":\"pass\",\"Test\":\"A/b\"}\n{\"Action\":\"output\",\"Test\":\"A/c\",\"Output\":\"no\"}\n\
                       {\"Action\":\"fail\",\"Test\":\"A/c\"}\n{\"Action\":\"fail\",\"Test\":\"A\"}\n";
        let outcomes = Outcomes::of(&suite(Format::Go), printed, &Skips::default()).unwrap();
        assert_eq!(outcomes.row(), "| x | 1 | 1 | 0 | 1 |\n");
    }
}
