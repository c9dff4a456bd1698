//! Checks histories, one at a time: the linearizability checker and the rules of answers.

use super::load::Recorded;
use super::operation;
use super::rules::Rules;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Time limit per history.
const CHECK_SECONDS: u64 = 120;

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Verdict {
    /// "ok", "violation" or "unknown".
    pub result: String,
    pub operations: u64,
    pub ambiguous: u64,
    #[serde(default)]
    pub suspects: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Checker {
    program: PathBuf,
    work: PathBuf,
    /// Rules of answers in addition to linearizability.
    pub rules: Rules,
    pub histories: u64,
    pub operations: u64,
    pub ambiguous: u64,
    pub violations: Vec<String>,
    pub unknown: u64,
}

impl Checker {
    pub(crate) fn new(program: &Path, work: &Path) -> Self {
        Self {
            program: program.to_owned(),
            work: work.to_owned(),
            rules: Rules::default(),
            histories: 0,
            operations: 0,
            ambiguous: 0,
            violations: Vec::new(),
            unknown: 0,
        }
    }

    /// Checks one history. A history with a violation is kept; if it is not linearizable, with a
    /// picture beside it.
    pub(crate) async fn check(&mut self, name: &str, recorded: &Recorded) -> Result<Verdict> {
        let path = self.work.join(format!("history-{name}.jsonl"));
        let picture = path.with_extension("html");
        operation::write(&path, &recorded.records)?;
        let mut command = Command::new(&self.program);
        command.arg(format!("-timeout={CHECK_SECONDS}s"));
        command.arg(format!("-picture={}", picture.display())).arg(&path);
        let output = tokio::task::spawn_blocking(move || command.output()).await?;
        let output = output.context("starting the checker")?;
        let Some(line) = output.stdout.split(|byte| *byte == b'\n').next() else {
            bail!("the checker printed nothing");
        };
        let verdict: Verdict = serde_json::from_slice(line).with_context(|| {
            format!("the checker printed {}", String::from_utf8_lossy(&output.stderr))
        })?;
        self.histories += 1;
        self.operations += verdict.operations;
        self.ambiguous += verdict.ambiguous;
        let broken = self.rules.broken(&recorded.records);
        let is_kept = !broken.is_empty();
        self.violations.extend(broken.into_iter().map(|text| format!("{name}: {text}")));
        match verdict.result.as_str() {
            "ok" if is_kept => {}
            "ok" => std::fs::remove_file(&path)?,
            "unknown" => self.unknown += 1,
            _ => {
                let groups = verdict.suspects.join(", ");
                self.violations.push(format!("{}: {groups}", path.display()));
            }
        }
        Ok(verdict)
    }
}
