//! Decisions in `docs/decisions`: the files of the code that one names exist, unless a later decision
//! supersedes it. A superseded decision says by which one, and that one names it.

use super::Finding;
use super::source::Source;

const RULE: &str = "decisions";
const FOLDER: &str = "docs/decisions/";
const SUPERSEDED: &str = "Superseded by [";

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let decisions = sources.iter().filter(|source| source.path.starts_with(FOLDER));
    let found = decisions.flat_map(|decision| match successor(&decision.text) {
        Some((line, file)) => check_successor(sources, decision, line, file).into_iter().collect(),
        None => missing_files(RULE, sources, decision),
    });
    found.collect()
}

/// Returns the file of the decision that supersedes this one, and the line that says so.
fn successor(text: &str) -> Option<(usize, &str)> {
    text.lines().enumerate().find_map(|(at, line)| {
        let (_, link) = line.strip_prefix(SUPERSEDED)?.split_once("](")?;
        Some((at + 1, link.split_once(')')?.0))
    })
}

fn check_successor(
    sources: &[Source],
    decision: &Source,
    line: usize,
    file: &str,
) -> Option<Finding> {
    let name = decision.path.strip_prefix(FOLDER)?;
    let later = sources.iter().find(|source| source.path == format!("{FOLDER}{file}"));
    let is_named = later.is_some_and(|later| later.text.contains(name));
    let text = format!("`{file}` does not exist or does not name {name}");
    (!is_named).then(|| Finding::at(RULE, &decision.path, line, text))
}

/// Finds the code spans of a document that name no file of the code, such as `node/store/turn.rs`.
pub(super) fn missing_files(
    rule: &'static str,
    sources: &[Source],
    document: &Source,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, line) in document.text.lines().enumerate() {
        let spans = line.split('`').skip(1).step_by(2);
        for file in spans.filter(|span| span.ends_with(".rs") && !span.contains(' ')) {
            if !sources.iter().any(|source| is_named_by(file, &source.path)) {
                let text = format!("there is no file `{file}`");
                findings.push(Finding::at(rule, &document.path, at + 1, text));
            }
        }
    }
    findings
}

/// Whether a document names a file so: `node/store/turn.rs` for `crates/node/src/store/turn.rs`.
fn is_named_by(name: &str, path: &str) -> bool {
    let ends_with = |path: &str| path == name || path.ends_with(&format!("/{name}"));
    ends_with(path) || ends_with(&path.replacen("/src/", "/", 1))
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn a_decision_names_files_that_exist_or_says_what_supersedes_it() {
        let code = sample("crates/node/src/store/queue.rs", "fn admit() {}");
        let found = |old: &str, new: &str| -> Vec<String> {
            let old = sample("docs/decisions/0002-old.md", old);
            let new = sample("docs/decisions/0043-new.md", new);
            let code = sample(&code.path, &code.text);
            check(&[code, old, new]).into_iter().map(|finding| finding.to_string()).collect()
        };
        assert!(found("`node/store/queue.rs` and `store/queue.rs`\n", "").is_empty());
        let stale = found("text\n`node/store/admission.rs`\n", "");
        assert_eq!(
            stale,
            [
                "docs/decisions/0002-old.md:2: there is no file `node/store/admission.rs` (decisions)"
            ]
        );
        let superseded = "Superseded by [0043](0043-new.md).\n`node/store/admission.rs`\n";
        assert!(found(superseded, "It replaces [0002](0002-old.md).\n").is_empty());
        assert_eq!(found(superseded, "It replaces another one.\n").len(), 1);
        assert_eq!(found("Superseded by [0044](0044-none.md).\n", "").len(), 1);
    }
}
