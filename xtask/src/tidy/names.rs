//! Deliberate bugs: those in the code and those in the table must be the same.

use super::Finding;
use super::source::Source;
use crate::mutants::{Table, names_in};
use crate::workspace::Package;
use std::collections::{BTreeMap, BTreeSet};

const RULE: &str = "deliberate bugs";

/// Compares the names in product code with the table.
pub fn check(sources: &[Source], table: &Table, packages: &[Package]) -> Vec<Finding> {
    let in_code = in_code(sources);
    let mut in_table = BTreeSet::new();
    let mut findings = Vec::new();
    for mutant in &table.mutants {
        let mut found = |detail: &str| findings.push(Finding::new(RULE, &mutant.name, detail));
        if !in_table.insert(mutant.name.as_str()) {
            found("is in the table twice");
        }
        if !in_code.contains_key(mutant.name.as_str()) {
            found("is in the table but not in the code");
        }
        if packages.iter().all(|package| package.name != mutant.package) {
            found("its package is not a member of the workspace");
        }
        if mutant.breaks.trim().is_empty() || mutant.test.trim().is_empty() {
            found("its `breaks` and `test` must not be empty");
        }
    }
    for (name, place) in &in_code {
        if !in_table.contains(name) {
            findings.push(Finding::new(RULE, place, format!("`{name}` is not in the table")));
        }
    }
    findings
}

/// Returns the place of the first use of each name.
fn in_code(sources: &[Source]) -> BTreeMap<&str, String> {
    let mut names = BTreeMap::new();
    let product = sources.iter().filter(|source| source.syntax.is_some() && source.is_product());
    for source in product {
        for (at, name) in names_in(&source.text) {
            let line = source.text[..at].lines().count();
            names.entry(name).or_insert_with(|| format!("{}:{line}", source.path));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use crate::mutants::ASKED;

    fn details(code: &str, table: &str) -> Vec<String> {
        let text = code.replace("ACTIVE", ASKED);
        let sources = [sample("crates/log/src/x.rs", &text)];
        let package = Package { name: "stele-log".to_owned(), ..Package::default() };
        let table = Table::parse(table).unwrap();
        check(&sources, &table, &[package]).into_iter().map(|f| f.detail).collect()
    }

    fn entry(name: &str, package: &str) -> String {
        format!(
            "[[mutant]]\nname = \"{name}\"\npackage = \"{package}\"\ntest = \"t\"\nbreaks = \"b\"\n"
        )
    }

    #[test]
    fn code_and_table_must_agree() {
        let code = "fn f() -> bool { ACTIVE\"log.a\") }";
        assert_eq!(details(code, &entry("log.a", "stele-log")), Vec::<String>::new());
        assert_eq!(details(code, ""), ["`log.a` is not in the table"]);
        let more = entry("log.a", "stele-log") + &entry("log.b", "stele-log");
        assert_eq!(details(code, &more), ["is in the table but not in the code"]);
        let twice = entry("log.a", "stele-log").repeat(2);
        assert_eq!(details(code, &twice), ["is in the table twice"]);
        let elsewhere = "its package is not a member of the workspace";
        assert_eq!(details(code, &entry("log.a", "stele-gone")), [elsewhere]);
    }
}
