//! Results that the programs print, and the table of them.

use anyhow::{Context, Result};
use serde::Deserialize;
use std::fmt::Write;

/// Check of one library: a line of JSON.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckResult {
    client: String,
    version: String,
    kind: Kind,
    check: String,
    outcome: Outcome,
    #[serde(default)]
    text: String,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Client,
    Framework,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Passed,
    Skipped,
    Failed,
}

/// Name of the check of a client while a node is killed.
const LEADER_KILLED: &str = "leader killed";

/// Reads the lines of JSON among those that a program printed. Returns them and the other lines.
pub(super) fn parse(printed: &str) -> Result<(Vec<CheckResult>, String)> {
    let (mut results, mut others) = (Vec::new(), String::new());
    for line in printed.lines() {
        if line.starts_with('{') {
            results.push(serde_json::from_str(line).with_context(|| line.to_owned())?);
        } else {
            others.push_str(line);
            others.push('\n');
        }
    }
    Ok((results, others))
}

impl CheckResult {
    pub(super) fn is_failed(&self) -> bool {
        self.outcome == Outcome::Failed
    }

    /// Describes a failed check in one line.
    pub(super) fn described(&self) -> String {
        format!("{} {}: {}: {}", self.client, self.version, self.check, self.text)
    }
}

/// Returns the results in tables of Markdown: clients, frameworks, and the errors seen while a leader was killed.
pub(super) fn tables(results: &[CheckResult]) -> String {
    let mut text = String::new();
    for (kind, title) in [(Kind::Client, "client"), (Kind::Framework, "framework")] {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {title} | version | passed | not possible | failed |\n|---|---|---|---|---|"
        );
        for (client, version) in libraries(results) {
            let of_it = |it: &&CheckResult| it.client == client && it.check != LEADER_KILLED;
            let own: Vec<&CheckResult> = results.iter().filter(of_it).collect();
            if own.first().is_some_and(|it| it.kind == kind) {
                let _ = writeln!(
                    text,
                    "| {client} | {version} | {} | {} | {} |",
                    checks(&own, Outcome::Passed),
                    checks(&own, Outcome::Skipped),
                    checks(&own, Outcome::Failed)
                );
            }
        }
        text.push('\n');
    }
    let _ = writeln!(text, "| client | a leader killed |\n|---|---|");
    for result in results.iter().filter(|it| it.check == LEADER_KILLED) {
        let _ = writeln!(text, "| {} | {} |", result.client, cell(&result.text));
    }
    text
}

fn libraries(results: &[CheckResult]) -> Vec<(&str, &str)> {
    let mut libraries = Vec::new();
    for result in results {
        let library = (result.client.as_str(), result.version.as_str());
        if !libraries.contains(&library) {
            libraries.push(library);
        }
    }
    libraries
}

/// Returns the names of the checks with this outcome, with the reasons of those that did not pass.
fn checks(results: &[&CheckResult], outcome: Outcome) -> String {
    let with_reason = |it: &&CheckResult| match it.outcome {
        Outcome::Passed => it.check.clone(),
        _ => format!("{}: {}", it.check, cell(&it.text)),
    };
    let checks = results.iter().copied().filter(|it| it.outcome == outcome);
    let checks: Vec<String> = checks.map(|it| with_reason(&it)).collect();
    checks.join(if outcome == Outcome::Passed { ", " } else { "; " })
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(client: &str, check: &str, outcome: &str, text: &str) -> String {
        format!(
            r#"{{"check":"{check}","client":"{client}","version":"1","kind":"client","outcome":"{outcome}","text":"{text}"}}"#
        )
    }

    #[test]
    fn lines_of_results_are_told_from_other_output_and_become_rows() {
        let printed = [
            result("a", "strings", "passed", ""),
            "a warning".to_owned(),
            result("a", "sets", "passed", ""),
            result("a", "scripts", "skipped", "one | two"),
            result("b", "lock", "failed", "none"),
            result("a", LEADER_KILLED, "passed", "no errors"),
        ];
        let (results, others) = parse(&printed.join("\n")).unwrap();
        assert_eq!((results.len(), others.as_str()), (5, "a warning\n"));
        let failed: Vec<String> =
            results.iter().filter(|it| it.is_failed()).map(CheckResult::described).collect();
        assert_eq!(failed, ["b 1: lock: none"]);
        let tables = tables(&results);
        assert!(
            tables.contains("| a | 1 | strings, sets | scripts: one \\| two |  |\n"),
            "{tables}"
        );
        assert!(tables.contains("| b | 1 |  |  | lock: none |\n"), "{tables}");
        assert!(tables.contains("| a | no errors |\n"), "{tables}");
    }

    #[test]
    fn a_line_that_is_not_a_result_is_an_error() {
        parse(r#"{"client":"a","outcome":"maybe"}"#).unwrap_err();
    }
}
