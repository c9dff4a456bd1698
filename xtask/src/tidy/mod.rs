//! Rules for every change: crate layers, banned calls, lengths, words, reachable files, and a table
//! of deliberate bugs that agrees with the code. Each rule is a function from text to findings.

mod calls;
mod decisions;
mod deliberate_bugs;
mod examples;
mod layers;
pub(crate) mod lengths;
pub(crate) mod map;
mod modules;
mod names;
pub(crate) mod paths;
mod plain;
pub(crate) mod prose;
pub(crate) mod source;
mod words;

use crate::catalogue;
use crate::mutants::Table;
use crate::workspace::Workspace;
use anyhow::{Result, bail};
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Name of the rule in STYLE.md.
    pub rule: &'static str,
    pub place: String,
    pub detail: String,
}

impl Finding {
    fn new(rule: &'static str, place: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { rule, place: place.into(), detail: detail.into() }
    }

    fn at(rule: &'static str, path: &str, line: usize, detail: impl Into<String>) -> Self {
        Self::new(rule, format!("{path}:{line}"), detail)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.place, self.detail, self.rule)
    }
}

/// Returns every text file, with the files compiled for tests only marked.
pub(crate) fn sources(workspace: &Workspace) -> Result<Vec<source::Source>> {
    let mut sources = source::load(workspace)?;
    modules::check(&mut sources, &workspace.roots());
    Ok(sources)
}

/// Checks the workspace; prints every finding and the lengths. Fails if there is a finding.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut sources = source::load(workspace)?;
    let mut findings = layers::check(&workspace.packages);
    findings.extend(modules::check(&mut sources, &workspace.roots()));
    let avoided = sources.iter().find(|source| source.path == plain::STYLE);
    let avoided = plain::Avoided::parse(avoided.map_or("", |source| &source.text))?;
    for source in &sources {
        findings.extend(avoided.check(&source.path, &source.text));
        findings.extend(words::check(&source.path, &source.text));
        findings.extend(calls::check(source));
        findings.extend(lengths::check(source));
    }
    findings.extend(map::check(&sources));
    findings.extend(paths::check(&sources));
    findings.extend(decisions::check(&sources));
    findings.extend(examples::check(&sources));
    let (summary, medians) = lengths::summary(&sources);
    findings.extend(medians);
    findings.extend(names::check(&sources));
    findings.extend(deliberate_bugs::check(
        &sources,
        &Table::load(workspace)?,
        &workspace.packages,
    ));
    if let Err(error) = catalogue::run(workspace, false) {
        findings.push(Finding::new("catalogue", "docs/testing.md", format!("{error:#}")));
    }
    for finding in &findings {
        println!("{finding}");
    }
    println!("{summary}");
    if !findings.is_empty() {
        bail!("tidy: {} findings", findings.len());
    }
    println!("tidy: nothing found in {} files", sources.len());
    Ok(())
}

#[cfg(test)]
pub(crate) fn sample(path: &str, text: &str) -> source::Source {
    source::Source::parse(path, text.to_owned()).unwrap()
}
