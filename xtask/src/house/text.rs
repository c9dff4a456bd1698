//! Measures of the text: files and their lengths, lines, comments, deliberate bugs, the map.

use super::table::{Limit, Row};
use crate::tidy::source::Source;
use crate::tidy::{lengths, map, paths, prose};
use crate::workspace::Workspace;

const SHORT_FILE_LINES: usize = 60;
const SHORT_COMMENT_CHARS: usize = 60;
/// Files that every folder has, however short.
const ROOTS: [&str; 2] = ["mod.rs", "lib.rs"];
/// Beginning of a call that asks for a deliberate bug.
const ASKED: &str = concat!("mutant::", "active(");

pub(super) fn rows(workspace: &Workspace, sources: &[Source]) -> Vec<Row> {
    let mut rows = files(sources);
    rows.push(Row::of("calls of deliberate bugs in product code", bugs(sources), Limit::AtMost(0)));
    rows.push(Row::of("lines of Rust, all of the repository", lines(sources), Limit::None));
    rows.push(Row::of("crates of the workspace", workspace.packages.len(), Limit::None));
    let limit = Limit::AtMost(map::WORDS_MAX);
    rows.push(Row::of("words of ARCHITECTURE.md", map::words(sources), limit));
    rows.extend(hops(sources));
    rows.extend(comments(sources));
    rows
}

fn files(sources: &[Source]) -> Vec<Row> {
    let lengths = lengths::product_lengths(sources);
    let longest = lengths.last().map_or(0, |(lines, _)| *lines);
    vec![
        Row::of("product files", lengths.len(), Limit::AtMost(480)),
        Row::of("median of their lines", lengths::median(&lengths), Limit::AtLeast(150)),
        Row::of("lines of the longest", longest, Limit::AtMost(600)),
        Row::of(
            "files below 60 lines, not `mod.rs` or `lib.rs`",
            short(&lengths).count(),
            Limit::AtMost(25),
        ),
    ]
}

pub(super) fn short<'a>(lengths: &[(usize, &'a str)]) -> impl Iterator<Item = (usize, &'a str)> {
    let is_root = |path: &str| ROOTS.iter().any(|root| path.ends_with(&format!("/{root}")));
    lengths.iter().filter(move |(lines, path)| *lines < SHORT_FILE_LINES && !is_root(path)).copied()
}

/// Returns the files that belong to the product and are not compiled for tests only.
pub(super) fn product(sources: &[Source]) -> impl Iterator<Item = &Source> {
    let is_rust = |source: &&Source| source.syntax.is_some();
    sources.iter().filter(is_rust).filter(|source| source.is_product() && !source.is_test)
}

fn bugs(sources: &[Source]) -> usize {
    product(sources)
        .map(|source| {
            let tests = source.test_lines();
            let asked = source.text.match_indices(ASKED);
            let lines = asked.map(|(at, _)| source.text[..at].matches('\n').count() + 1);
            lines.filter(|line| !tests.iter().any(|(from, to)| (from..=to).contains(&line))).count()
        })
        .sum()
}

fn lines(sources: &[Source]) -> usize {
    let rust = sources.iter().filter(|source| source.syntax.is_some());
    rust.map(|source| source.text.lines().count()).sum()
}

fn hops(sources: &[Source]) -> Vec<Row> {
    let row = |(heading, rows, files): (&str, usize, usize)| {
        let path = heading.trim_start_matches(['#', ' ']).to_lowercase();
        let (hops_max, files_max) = match path.as_str() {
            "put" => (Limit::AtMost(20), Limit::AtMost(18)),
            _ => (Limit::None, Limit::None),
        };
        [
            Row::of(format!("docs/paths.md: rows of a {path}"), rows, hops_max),
            Row::of(format!("docs/paths.md: files of a {path}"), files, files_max),
        ]
    };
    paths::hops(sources).into_iter().flat_map(row).collect()
}

fn comments(sources: &[Source]) -> Vec<Row> {
    let all = product(sources).flat_map(|source| prose::comments(&source.text));
    let lengths: Vec<usize> = all.map(|(_, text)| text.chars().count()).collect();
    let short = lengths.iter().filter(|chars| **chars < SHORT_COMMENT_CHARS).count();
    let share = (short * 100).checked_div(lengths.len()).unwrap_or(0);
    vec![
        Row::of("comments in product files", lengths.len(), Limit::None),
        Row::of("percent of them below 60 characters", share, Limit::None),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::sample;

    fn value(rows: &[Row], measure: &str) -> String {
        rows.iter().find(|row| row.measure == measure).unwrap().value.to_string()
    }

    fn sources() -> Vec<Source> {
        let asks = |name: &str| format!("fn f() -> bool {{ {ASKED}\"{name}\") }}\n");
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", asks("a.tested"));
        let page = "## Put\n\n| `a/src/b.rs` | `f` | |\n| `a/src/b.rs` | `g` | |\n";
        vec![
            sample("crates/a/src/lib.rs", "//! One.\nmod b;\n"),
            sample("crates/a/src/b.rs", &format!("// Two\n// more.\n{}{tests}", asks("a.b"))),
            sample("crates/a/src/long.rs", &"const A: u8 = 1; // Long\n".repeat(60)),
            sample("crates/a/tests/all.rs", &asks("a.other")),
            sample("xtask/src/main.rs", &asks("a.tool")),
            sample("docs/paths.md", page),
            sample(map::MAP, "# Map\nof it\n"),
        ]
    }

    #[test]
    fn text_is_measured_without_tests_and_tools() {
        let rows = rows(&Workspace::default(), &sources());
        let expected = [
            ("product files", "3"),
            ("median of their lines", "3"),
            ("lines of the longest", "60"),
            ("files below 60 lines, not `mod.rs` or `lib.rs`", "1"),
            ("calls of deliberate bugs in product code", "1"),
            ("lines of Rust, all of the repository", "71"),
            ("words of ARCHITECTURE.md", "4"),
            ("docs/paths.md: rows of a put", "2"),
            ("docs/paths.md: files of a put", "1"),
            ("docs/paths.md: rows of a get", "0"),
            ("comments in product files", "62"),
            ("percent of them below 60 characters", "100"),
        ];
        for (measure, expected) in expected {
            assert_eq!(value(&rows, measure), expected, "{measure}");
        }
    }
}
