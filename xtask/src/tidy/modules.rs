//! Files that the compiler reaches, and those that it reaches only for tests. A file that no `mod`
//! reaches is dead.

use super::Finding;
use super::source::{Source, for_tests};
use std::collections::{BTreeMap, BTreeSet};
use syn::{Expr, Item, ItemMod, Lit, Meta};

const RULE: &str = "dead files";

/// Marks files compiled for tests only, starting at the root files of all targets. Finds files that
/// are not reached. Paths start at the workspace's root.
pub(super) fn check(sources: &mut [Source], roots: &[String]) -> Vec<Finding> {
    let by_path: BTreeMap<&str, &Source> =
        sources.iter().map(|source| (source.path.as_str(), source)).collect();
    let mut reached: BTreeMap<String, bool> = BTreeMap::new();
    for root in roots {
        if let Some(source) = by_path.get(root.as_str()) {
            reach(&by_path, source, folder(root), source.is_test, &mut reached);
        }
    }
    let mut findings = Vec::new();
    let mut only_tests = BTreeSet::new();
    for source in by_path.values().filter(|source| source.syntax.is_some()) {
        match reached.get(&source.path) {
            None => findings.push(Finding::new(RULE, &source.path, "no `mod` reaches this file")),
            Some(true) => {
                only_tests.insert(source.path.clone());
            }
            Some(false) => {}
        }
    }
    for source in sources {
        source.is_test |= only_tests.contains(&source.path);
    }
    findings
}

fn reach(
    by_path: &BTreeMap<&str, &Source>,
    source: &Source,
    children: String,
    is_test: bool,
    reached: &mut BTreeMap<String, bool>,
) {
    match reached.get(&source.path) {
        // Already reached by the product, or again for tests: no change.
        Some(&before) if !before || is_test => return,
        _ => {}
    }
    reached.insert(source.path.clone(), is_test);
    let items = source.syntax.as_ref().map_or(&[][..], |file| &file.items);
    descend(by_path, items, &folder(&source.path), &children, is_test, reached);
}

fn descend(
    by_path: &BTreeMap<&str, &Source>,
    items: &[Item],
    here: &str,
    children: &str,
    is_test: bool,
    reached: &mut BTreeMap<String, bool>,
) {
    for item in items {
        let Item::Mod(module) = item else { continue };
        let is_test = is_test || for_tests(&module.attrs);
        let name = module.ident.to_string();
        let below = format!("{children}/{name}");
        if let Some((_, items)) = &module.content {
            descend(by_path, items, here, &below, is_test, reached);
            continue;
        }
        let stated = stated_path(module).map(|path| format!("{here}/{path}"));
        let candidates = [format!("{below}.rs"), format!("{below}/mod.rs")];
        for path in stated.iter().chain(&candidates) {
            if let Some(source) = by_path.get(path.as_str()) {
                reach(by_path, source, below.clone(), is_test, reached);
            }
        }
    }
}

fn stated_path(module: &ItemMod) -> Option<String> {
    module.attrs.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    })
}

fn folder(path: &str) -> String {
    path.rsplit_once('/').map_or_else(String::new, |(folder, _)| folder.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn dead_files_are_found_and_test_files_marked() {
        let mut sources = [
            sample(
                "crates/a/src/lib.rs",
                "mod b; #[cfg(test)] mod tests; mod inline { mod deep; }",
            ),
            sample("crates/a/src/b/mod.rs", "mod c;"),
            sample("crates/a/src/b/c.rs", ""),
            sample("crates/a/src/inline/deep.rs", ""),
            sample("crates/a/src/tests.rs", "mod more;"),
            sample("crates/a/src/tests/more.rs", ""),
            sample("crates/a/src/old.rs", ""),
            sample("crates/a/tests/all.rs", "#[path = \"shared/x.rs\"] mod x;"),
            sample("crates/a/tests/shared/x.rs", ""),
            sample("README.md", ""),
        ];
        let roots = ["crates/a/src/lib.rs".to_owned(), "crates/a/tests/all.rs".to_owned()];
        let found = check(&mut sources, &roots);
        let places: Vec<&str> = found.iter().map(|finding| finding.place.as_str()).collect();
        assert_eq!(places, ["crates/a/src/old.rs"]);
        let product: Vec<&str> = sources
            .iter()
            .filter(|source| source.syntax.is_some() && !source.is_test)
            .map(|source| source.path.as_str())
            .collect();
        assert_eq!(
            product,
            [
                "crates/a/src/lib.rs",
                "crates/a/src/b/mod.rs",
                "crates/a/src/b/c.rs",
                "crates/a/src/inline/deep.rs",
                "crates/a/src/old.rs"
            ]
        );
    }
}
