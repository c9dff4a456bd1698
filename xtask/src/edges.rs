//! Rules at the edges of the store, with their tests and deliberate bugs: a table of
//! docs/testing.md.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::fmt::Write;
use std::path::Path;

const FILE: &str = "xtask/edges.toml";
const MUTANTS: &str = "xtask/mutants.toml";

#[derive(Debug, Deserialize)]
struct Declared {
    edge: Vec<Edge>,
}

#[derive(Debug, Deserialize)]
struct Edge {
    rule: String,
    /// `file: function`.
    tests: Vec<String>,
    #[serde(default)]
    bugs: Vec<String>,
}

/// Returns the table. Fails if a test or a deliberate bug does not exist.
pub(crate) fn table(root: &Path) -> Result<String> {
    let read = |name: &str| {
        std::fs::read_to_string(root.join(name)).with_context(|| format!("reading {name}"))
    };
    let declared: Declared = toml::from_str(&read(FILE)?)?;
    let mutants = read(MUTANTS)?;
    let mut text = String::from(
        "\n# Edges and their tests\n\n| rule | tests | deliberate bugs |\n|---|---|---|\n",
    );
    for Edge { rule, tests, bugs } in &declared.edge {
        ensure!(!tests.is_empty(), "{FILE}: `{rule}` has no test");
        let links: Result<Vec<String>> = tests.iter().map(|test| link(test, &read)).collect();
        let links = links.with_context(|| format!("{FILE}: {rule}"))?;
        for bug in bugs {
            let is_declared = mutants.contains(&format!("name = \"{bug}\""));
            ensure!(is_declared, "{FILE}: {MUTANTS} has no bug `{bug}`");
        }
        let bugs: Vec<String> = bugs.iter().map(|bug| format!("`{bug}`")).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {rule} | {} | {} |", links.join(", "), bugs.join(", "));
    }
    Ok(text)
}

/// Returns the link to a test. Fails if its file has no such function.
fn link(test: &str, read: &impl Fn(&str) -> Result<String>) -> Result<String> {
    link_to(test, |name| format!("fn {name}("), read)
}

/// Returns the link to a place, `file: name`. Fails if its file does not contain the text that
/// `declared` makes of the name.
pub(crate) fn link_to(
    place: &str,
    declared: impl Fn(&str) -> String,
    read: &impl Fn(&str) -> Result<String>,
) -> Result<String> {
    let (file, name) = place.split_once(": ").context("a place is `file: name`")?;
    let declared = declared(name);
    ensure!(read(file)?.contains(&declared), "{file} does not contain `{declared}`");
    Ok(format!("[{name}](../{file})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_does_not_exist_is_named() {
        let read = |_: &str| Ok("fn there() {} const THERE: u64 = 1;".to_owned());
        assert_eq!(link("a.rs: there", &read).unwrap(), "[there](../a.rs)");
        assert_eq!(link_to("a.rs: THERE", str::to_owned, &read).unwrap(), "[THERE](../a.rs)");
        let error = link("a.rs: gone", &read).unwrap_err().to_string();
        assert!(error.contains("a.rs does not contain `fn gone(`"), "{error}");
        assert!(link("a.rs", &read).is_err());
    }
}
