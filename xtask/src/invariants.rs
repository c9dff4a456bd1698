//! Invariants with their tests: a table of docs/testing.md, made from the comments of the product. A comment
//! states one so: `Invariant: SENTENCE.`, and after its reasons `Tests:` with the names between backticks.

use crate::catalogue;
use crate::tidy::prose;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fmt::Write;

const FOLDER: &str = "crates/";
const INVARIANT: &str = "Invariant: ";
const MARKS: [&str; 2] = ["Test: `", "Tests: `"];

/// One comment: its sentence, and the functions that it names.
#[derive(Debug, PartialEq, Eq)]
struct Stated {
    sentence: String,
    tests: Vec<String>,
}

/// Returns the table of all files, each with its path. Fails if a comment names a test that does not exist, or
/// names tests of no invariant.
pub(crate) fn table(files: &[(String, String)]) -> Result<String> {
    let mut places: BTreeMap<&str, &str> = BTreeMap::new();
    for (path, text) in files {
        let names = text.lines().map(str::trim).filter_map(catalogue::function);
        names.for_each(|name| {
            places.entry(name).or_insert(path);
        });
    }
    let mut text = String::from(
        "\n# Invariants and their tests\n\nMade from the comments `Invariant: ...` of the product that name their tests. \
         `cargo xtask mutants` breaks invariants one by one: each deliberate bug in `xtask/mutants.toml` names the test \
         that fails.\n\n| invariant | kept in | tests |\n|---|---|---|\n",
    );
    for (path, code) in files.iter().filter(|(path, _)| path.starts_with(FOLDER)) {
        for Stated { sentence, tests } in stated_in(code).with_context(|| path.clone())? {
            let link = |name: &String| {
                let file = places.get(name.as_str());
                let file = file.with_context(|| format!("{path}: there is no test `{name}`"))?;
                Ok(format!("[{name}](../{file})"))
            };
            let links: Result<Vec<String>> = tests.iter().map(link).collect();
            let short = path.strip_prefix(FOLDER).unwrap_or(path);
            // Writing to a string cannot fail.
            let _ = writeln!(text, "| {sentence} | [{short}](../{path}) | {} |", links?.join(", "));
        }
    }
    Ok(text)
}

fn stated_in(code: &str) -> Result<Vec<Stated>> {
    let mut found = Vec::new();
    for (line, comment) in prose::comments(code) {
        let mut rest = comment.as_str();
        while let Some((at, mark)) = next_mark(rest) {
            let (before, after) = (&rest[..at], &rest[at + mark.len()..]);
            let (_, sentence) = before
                .rsplit_once(INVARIANT)
                .with_context(|| format!("line {line}: `{mark}` follows no `{INVARIANT}`"))?;
            let (names, left) = names(after);
            ensure!(!names.is_empty(), "line {line}: no test is named after `{mark}`");
            found.push(Stated { sentence: first_sentence(sentence), tests: names });
            rest = left;
        }
    }
    Ok(found)
}

fn next_mark(text: &str) -> Option<(usize, &'static str)> {
    MARKS.iter().filter_map(|mark| Some((text.find(mark)?, *mark))).min()
}

/// Returns the names of a list, of which the first backtick was read, and the text after it.
fn names(mut rest: &str) -> (Vec<String>, &str) {
    let mut found = Vec::new();
    while let Some((name, after)) = rest.split_once('`') {
        found.push(name.to_owned());
        match after.strip_prefix(", `") {
            Some(next) => rest = next,
            None => return (found, after),
        }
    }
    (found, rest)
}

/// Returns the text to the end of the first sentence or paragraph, without links between items of the code.
fn first_sentence(text: &str) -> String {
    let paragraph = text.split("  ").next().unwrap_or(text);
    let sentence = paragraph.split(". ").next().unwrap_or(paragraph);
    let sentence = sentence.replace("[`", "`").replace("`]", "`");
    sentence.trim_end_matches(['.', ' ']).split(": -").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(code: &str) -> Result<String> {
        let code = ("crates/a/src/a.rs".to_owned(), code.to_owned());
        let tests = "#[test]\nfn it_holds() {}\nfn it_holds_too() {}\n".to_owned();
        table(&[code, ("crates/a/tests/all.rs".to_owned(), tests)])
    }

    #[test]
    fn an_invariant_is_one_sentence_with_links_to_its_place_and_its_tests() {
        let code = "/// Does it. Invariant: a ≤ [`b`] holds. A reason.\n/// Tests: `it_holds`,\n/// `it_holds_too`.\n///\n\
                    /// Invariant: without a test.\nfn a() {}\n// Invariant: c\n// holds.\n// Test: `it_holds`. More.\n";
        let table = rows(code).unwrap();
        let rows: Vec<&str> = table.lines().filter(|line| line.contains("../crates")).collect();
        let (place, test) = ("[a/src/a.rs](../crates/a/src/a.rs)", "(../crates/a/tests/all.rs)");
        let first = format!("| a ≤ `b` holds | {place} | [it_holds]{test}, [it_holds_too]{test} |");
        assert_eq!(rows, [first, format!("| c holds | {place} | [it_holds]{test} |")]);
    }

    #[test]
    fn a_test_that_does_not_exist_and_tests_of_no_invariant_are_refused() {
        let error = |code: &str| format!("{:#}", rows(code).unwrap_err());
        let gone = error("// Invariant: a holds.\n// Test: `gone`.\n");
        assert!(gone.contains("crates/a/src/a.rs: there is no test `gone`"), "{gone}");
        let without = error("fn a() {}\n// Test: `it_holds`.\n");
        assert!(without.contains("line 2: `Test: `` follows no"), "{without}");
    }
}
