//! The runs of TLC, from `spec/checks.toml` and the configurations beside it.

use crate::workspace::Workspace;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Debug, Default)]
pub(super) struct Checks {
    runs: Vec<(Run, bool)>,
}

#[derive(Clone, Debug)]
pub(super) struct Run {
    /// Name of the configuration or the bug.
    pub name: String,
    /// TLA+ module, without `.tla`.
    pub module: String,
    /// Complete configuration text for TLC.
    pub configuration: String,
    pub expected: Expected,
    /// Time limit: a longer run has failed.
    pub limit: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// All states were explored and every invariant held.
    Holds,
    Violates(String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    check: Vec<Check>,
    bug: Vec<Bug>,
}

/// A configuration that must hold.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Check {
    name: String,
    module: String,
    /// Configuration on which it is based; `name` if absent.
    config: Option<String>,
    /// Constants that differ from those of the configuration.
    #[serde(default)]
    constants: BTreeMap<String, String>,
    #[serde(default)]
    large: bool,
    limit_s: u64,
}

/// A guard of the specification that is switched off.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bug {
    name: String,
    module: String,
    config: String,
    invariant: String,
    /// Invariant that no longer holds, in one line.
    breaks: String,
    #[serde(default)]
    constants: BTreeMap<String, String>,
    #[serde(default)]
    large: bool,
    limit_s: u64,
}

impl Checks {
    pub(super) fn load(workspace: &Workspace) -> Result<Self> {
        let folder = workspace.root.join("spec");
        let read = |name: &str| {
            let path = folder.join(name);
            std::fs::read_to_string(&path).with_context(|| format!("reading spec/{name}"))
        };
        Self::parse(&read("checks.toml")?, &|config| read(&format!("{config}.cfg")))
    }

    fn parse(table: &str, config: &dyn Fn(&str) -> Result<String>) -> Result<Self> {
        let table: Table = toml::from_str(table).context("spec/checks.toml")?;
        let mut runs = Vec::new();
        for check in table.check {
            let base = config(check.config.as_deref().unwrap_or(&check.name))?;
            let configuration = with_constants(&base, &check.constants)
                .with_context(|| format!("check {}", check.name))?;
            let Check { name, module, large, limit_s, .. } = check;
            let limit = Duration::from_secs(limit_s);
            let expected = Expected::Holds;
            runs.push((Run { name, module, configuration, expected, limit }, large));
        }
        for bug in table.bug {
            ensure!(!bug.breaks.is_empty(), "bug {}: `breaks` must not be empty", bug.name);
            let mut constants = bug.constants;
            constants.insert("Bugs".to_owned(), format!("{{\"{}\"}}", bug.name));
            let configuration = with_constants(&config(&bug.config)?, &constants)
                .and_then(|text| with_invariant(&text, &bug.invariant))
                .with_context(|| format!("bug {}", bug.name))?;
            let Bug { name, module, invariant, large, limit_s, .. } = bug;
            let limit = Duration::from_secs(limit_s);
            let expected = Expected::Violates(invariant);
            runs.push((Run { name, module, configuration, expected, limit }, large));
        }
        Ok(Self { runs })
    }

    /// Returns the runs with names that begin with `only`. Without `only`, returns all runs if
    /// `large`, otherwise the short ones.
    pub(super) fn runs(&self, large: bool, only: Option<&str>) -> Vec<Run> {
        let fits = |run: &Run, is_large: bool| match only {
            Some(only) => run.name.starts_with(only),
            None => large || !is_large,
        };
        let chosen = self.runs.iter().filter(|(run, is_large)| fits(run, *is_large));
        chosen.map(|(run, _)| run.clone()).collect()
    }
}

/// Returns the configuration with other values for some of its constants. Fails if it lacks one.
fn with_constants(text: &str, constants: &BTreeMap<String, String>) -> Result<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for (name, value) in constants {
        let start = format!("    {name} = ");
        let Some(line) = lines.iter_mut().find(|line| line.starts_with(&start)) else {
            bail!("the configuration sets no constant {name}");
        };
        *line = format!("{start}{value}");
    }
    Ok(lines.join("\n") + "\n")
}

/// Returns the configuration with only this invariant, which it must list: another invariant that
/// breaks first would hide this one.
fn with_invariant(text: &str, invariant: &str) -> Result<String> {
    let mut kept = Vec::new();
    let (mut inside, mut is_listed) = (false, false);
    for line in text.lines() {
        inside = if line.starts_with(' ') { inside } else { line == "INVARIANTS" };
        let is_other = inside && line.starts_with(' ') && line.trim() != invariant;
        is_listed |= inside && line.trim() == invariant;
        if !is_other {
            kept.push(line);
        }
    }
    ensure!(is_listed, "the configuration lists no invariant {invariant}");
    Ok(kept.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "SPECIFICATION Spec\nCONSTANTS\n    MaxLog = 2\n    Bugs = {}\n\
                          INVARIANTS\n    LogMatching\n    LogWhole\nCHECK_DEADLOCK FALSE\n";

    fn parse(table: &str) -> Result<Checks> {
        Checks::parse(table, &|_| Ok(CONFIG.to_owned()))
    }

    const TABLE: &str = "[[check]]\nname = 'store'\nmodule = 'KvsRaft'\nlimit_s = 9\n\
        [[check]]\nname = 'store-large'\nmodule = 'KvsRaft'\nconfig = 'store'\nlarge = true\n\
        limit_s = 99\nconstants = { MaxLog = '4' }\n\
        [[bug]]\nname = 'ahead'\nmodule = 'KvsRaft'\nconfig = 'store'\ninvariant = 'LogWhole'\n\
        breaks = 'b'\nlimit_s = 9\n";

    #[test]
    fn a_bug_gets_its_guard_switched_off_and_its_own_invariant_alone() {
        let runs = parse(TABLE).unwrap().runs(false, None);
        assert_eq!(runs.len(), 2);
        assert_eq!(runs[0].configuration, CONFIG);
        let bug = &runs[1];
        assert_eq!(bug.expected, Expected::Violates("LogWhole".to_owned()));
        assert!(bug.configuration.contains("    Bugs = {\"ahead\"}\n"));
        assert!(bug.configuration.contains("    LogWhole\nCHECK_DEADLOCK"));
        assert!(!bug.configuration.contains("LogMatching"));
    }

    #[test]
    fn large_ones_run_when_asked_for_or_named() {
        let checks = parse(TABLE).unwrap();
        assert_eq!(checks.runs(true, None).len(), 3);
        let named = checks.runs(false, Some("store-l"));
        assert_eq!(named.len(), 1);
        assert!(named[0].configuration.contains("    MaxLog = 4\n"));
    }

    #[test]
    fn a_constant_or_an_invariant_that_is_not_there_is_refused() {
        assert!(parse(&TABLE.replace("MaxLog", "MaxLg")).is_err());
        assert!(parse(&TABLE.replace("LogWhole", "LogHole")).is_err());
    }
}
