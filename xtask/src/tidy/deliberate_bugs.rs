//! Deliberate bugs: those in the code and those in the table must be the same.

use super::Finding;
use super::source::Source;
use crate::mutants::{BEGIN, Table, expand, remarks, switch_of};
use crate::workspace::Package;
use std::collections::{BTreeMap, BTreeSet};

const RULE: &str = "deliberate bugs";

pub(super) fn check(sources: &[Source], table: &Table, packages: &[Package]) -> Vec<Finding> {
    let in_code = in_code(sources);
    let unreadable =
        sources.iter().filter(|source| source.is_product_or_testing()).filter_map(unreadable);
    let mut in_table = BTreeSet::new();
    let mut findings: Vec<Finding> = unreadable.collect();
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

/// Returns why the remarks of a file are not code that compiles.
fn unreadable(source: &Source) -> Option<Finding> {
    let begun = source.text.lines().filter(|line| line.trim_start().starts_with(BEGIN)).count();
    let all = remarks(&source.text).count();
    if source.syntax.is_none() || begun == 0 {
        return None;
    }
    let detail = match expand(&source.text, switch_of(&source.path)) {
        _ if begun != all => "a remark of a bug has the form `// bug NAME: FORM`".to_owned(),
        Err(error) => format!("{error:#}"),
        Ok(text) => syn::parse_file(&text).err()?.to_string(),
    };
    Some(Finding::new(RULE, &source.path, detail))
}

fn in_code(sources: &[Source]) -> BTreeMap<&str, String> {
    let mut names = BTreeMap::new();
    let product =
        sources.iter().filter(|source| source.syntax.is_some() && source.is_product_or_testing());
    for source in product {
        for remark in remarks(&source.text) {
            let place = || format!("{}:{}", source.path, remark.line);
            names.entry(remark.name).or_insert_with(place);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn details(code: &str, table: &str) -> Vec<String> {
        let sources = [sample("crates/log/src/x.rs", code)];
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
        let code = "fn f() {\n    // bug log.a: skip\n    g();\n}\n";
        assert_eq!(details(code, &entry("log.a", "stele-log")), Vec::<String>::new());
        assert_eq!(details(code, ""), ["`log.a` is not in the table"]);
        let more = entry("log.a", "stele-log") + &entry("log.b", "stele-log");
        assert_eq!(details(code, &more), ["is in the table but not in the code"]);
        let twice = entry("log.a", "stele-log").repeat(2);
        assert_eq!(details(code, &twice), ["is in the table twice"]);
        let elsewhere = "its package is not a member of the workspace";
        assert_eq!(details(code, &entry("log.a", "stele-gone")), [elsewhere]);
    }

    #[test]
    fn a_remark_that_cannot_be_expanded_or_does_not_compile_is_found() {
        let table = entry("log.a", "stele-log");
        let of = |form: &str| {
            details(&format!("fn f() {{\n    // bug log.a: {form}\n    g();\n}}\n"), &table)
        };
        assert!(of("never")[0].contains("no condition follows"));
        assert!(of("return +;")[0].contains("expected"));
        let unnamed =
            details("fn f() {\n    // bug skip\n    // bug log.a: skip\n    g();\n}\n", &table);
        assert!(unnamed[0].contains("has the form"));
    }
}
