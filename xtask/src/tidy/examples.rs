//! Examples in documentation are run: a crate that shows one builds its documentation's tests. The other
//! crates leave them out, since looking for examples takes a build of each.

use super::Finding;
use super::source::Source;

const RULE: &str = "examples";
const OFF: &str = "doctest = false";

/// Checks that no crate shows an example that is not run, and that none looks for examples in vain.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for manifest in sources.iter().filter(|source| source.path.ends_with("Cargo.toml")) {
        let root = manifest.path.trim_end_matches("Cargo.toml");
        let library = format!("{root}src/lib.rs");
        if root.is_empty() || sources.iter().all(|source| source.path != library) {
            continue;
        }
        let is_off = manifest.text.lines().any(|line| line == OFF);
        let of_crate = |source: &&Source| source.path.starts_with(&format!("{root}src/"));
        let example = sources
            .iter()
            .filter(of_crate)
            .find_map(|source| Some((source.path.as_str(), example_line(&source.text)?)));
        match example {
            Some((path, line)) if is_off => {
                let detail = format!("this example is not run: {} has `{OFF}`", manifest.path);
                findings.push(Finding::at(RULE, path, line, detail));
            }
            None if !is_off => {
                let detail = format!("no example in the documentation: [lib] needs `{OFF}`");
                findings.push(Finding::new(RULE, manifest.path.clone(), detail));
            }
            _ => {}
        }
    }
    findings
}

/// Returns the line of the first block of Rust in documentation, or of the first page that is included
/// for its examples.
fn example_line(text: &str) -> Option<usize> {
    let mut is_open = false;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim_start();
        if line.starts_with("#[doc = include_str!(") {
            return Some(at + 1);
        }
        let Some(text) = ["///", "//!"].iter().find_map(|mark| line.strip_prefix(mark)) else {
            continue;
        };
        let Some(kind) = text.trim_start().strip_prefix("```") else { continue };
        if !is_open && kind != "text" {
            return Some(at + 1);
        }
        is_open = !is_open;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(manifest: &str, library: &str) -> Vec<usize> {
        let sources = [("crates/a/Cargo.toml", manifest), ("crates/a/src/lib.rs", library)];
        let sources: Vec<Source> = sources
            .into_iter()
            .map(|(path, text)| Source::parse(path, text.to_owned()).unwrap())
            .collect();
        check(&sources)
            .iter()
            .map(|it| it.place.rsplit(':').next().unwrap().parse().unwrap_or(0))
            .collect()
    }

    #[test]
    fn an_example_is_run_and_a_crate_without_one_builds_none() {
        let (on, off) = ("[package]\n", "[lib]\ndoctest = false\n");
        let table = "//! ```text\n//! a b\n//! ```\n";
        let example =
            "//! ```text\n//! a\n//! ```\n\n/// ```no_run\n/// f();\n/// ```\nfn f() {}\n";
        assert!(found(off, table).is_empty());
        assert!(found(on, example).is_empty());
        assert_eq!(found(off, example), [5]);
        assert_eq!(found(on, table), [0]);
        let page = "//! A\n#[cfg(doctest)]\n#[doc = include_str!(\"a.md\")]\nmod guide {}\n";
        assert!(found(on, page).is_empty());
        assert_eq!(found(off, page), [3]);
    }
}
