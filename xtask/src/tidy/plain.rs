//! Plain words: comments, messages and documents use the terms of docs/glossary.md. A table of STYLE.md
//! lists the words to avoid and their replacements.

use super::{Finding, prose};
use anyhow::{Context, Result, ensure};

const RULE: &str = "plain words";
pub(super) const STYLE: &str = "STYLE.md";
const HEADING: &str = "## Words to avoid";

pub(super) struct Avoided {
    /// Words and phrases in lower case, each with its replacement.
    words: Vec<(String, String)>,
    /// First and last line of the table in its file, from 1.
    lines: (usize, usize),
}

impl Avoided {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines().enumerate();
        let (heading, _) = lines
            .find(|(_, line)| *line == HEADING)
            .with_context(|| format!("{STYLE} has no `{HEADING}`"))?;
        let mut found = Vec::new();
        let mut last = heading;
        for (number, line) in lines.take_while(|(_, line)| !line.starts_with('#')) {
            last = number;
            let Some(row) = line.strip_prefix('|') else { continue };
            let mut cells = row.split('|').map(str::trim);
            let (words, instead) = (cells.next().unwrap_or(""), cells.next().unwrap_or(""));
            if words == "avoid" || words.starts_with('-') {
                continue;
            }
            for word in words.split(", ") {
                found.push((word.to_lowercase(), instead.to_owned()));
            }
        }
        ensure!(!found.is_empty(), "{STYLE} names no words under `{HEADING}`");
        Ok(Self { words: found, lines: (heading + 1, last + 1) })
    }

    pub(super) fn check(&self, path: &str, text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (line, part) in prose::of(path, text) {
            let is_table = path == STYLE && (self.lines.0..=self.lines.1).contains(&line);
            if is_table {
                continue;
            }
            let part = part.to_lowercase();
            for (word, instead) in self.words.iter().filter(|(word, _)| has_phrase(&part, word)) {
                let detail = format!("`{word}`: write {instead}");
                findings.push(Finding::at(RULE, path, line, detail));
            }
        }
        findings
    }
}

/// Returns whether the line contains the phrase with no letter, digit or underscore beside it.
fn has_phrase(line: &str, phrase: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(phrase).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + phrase.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# A\n## Words to avoid\n\n| avoid | write |\n|---|---|\n\
                         | oldword, old phrase | the new one |\n\n## B\n";

    fn found(path: &str, text: &str) -> Vec<String> {
        let findings = Avoided::parse(TABLE).unwrap().check(path, text);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn words_to_avoid_are_found_in_prose_with_the_preferred_ones() {
        assert_eq!(
            found("a.rs", "fn oldword() {}\n// An Oldword.\nf(\"an old phrase\");\n"),
            [
                "a.rs:2: `oldword`: write the new one (plain words)",
                "a.rs:3: `old phrase`: write the new one (plain words)"
            ]
        );
        assert_eq!(found("a.md", "oldwords my_oldword `oldword` Oldword_x"), [""; 0]);
        assert_eq!(found("a.toml", "x = \"oldword\"").len(), 1);
    }

    #[test]
    fn the_table_itself_is_left_out_and_no_more_of_its_file() {
        assert_eq!(found(STYLE, TABLE), [""; 0]);
        assert_eq!(found(STYLE, &format!("{TABLE}oldword\n")).len(), 1);
    }

    #[test]
    fn a_document_without_the_table_is_refused() {
        assert!(Avoided::parse("# A\n").is_err());
        assert!(Avoided::parse("## Words to avoid\n\n## B\n").is_err());
    }
}
