//! The map of the repository, ARCHITECTURE.md: a newcomer reads it in one sitting, and finds the files that it
//! names.

use super::Finding;
use super::decisions::missing_files;
use super::source::Source;

const RULE: &str = "map";
pub(crate) const MAP: &str = "ARCHITECTURE.md";
/// Words of the map, at most.
pub(crate) const WORDS_MAX: usize = 3000;

pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let map = sources.iter().find(|source| source.path == MAP);
    let mut findings = map.map_or_else(Vec::new, |map| missing_files(RULE, sources, map));
    let words = words(sources);
    if words > WORDS_MAX {
        let detail = format!("{words} words; at most {WORDS_MAX} are allowed");
        findings.push(Finding::new(RULE, MAP, detail));
    }
    findings
}

/// Returns the words of the map, as `wc -w` counts them.
pub(crate) fn words(sources: &[Source]) -> usize {
    let map = sources.iter().find(|source| source.path == MAP);
    map.map_or(0, |map| map.text.split_whitespace().count())
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn a_map_of_more_than_three_thousand_words_is_found() {
        let of = |words: usize| check(&[sample(MAP, &"word\n".repeat(words))]);
        assert_eq!(of(WORDS_MAX), []);
        let found = of(WORDS_MAX + 1);
        assert_eq!(found.len(), 1);
        let expected = "ARCHITECTURE.md: 3001 words; at most 3000 are allowed (map)";
        assert_eq!(found[0].to_string(), expected);
    }

    #[test]
    fn a_map_names_files_that_exist() {
        let code = || sample("crates/log/src/append.rs", "");
        let of = |text: &str| check(&[sample(MAP, text), code()]);
        assert_eq!(of("`log/append.rs` and `append`\n"), []);
        let found = of("one\n`log/gone.rs`\n");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].to_string(), "ARCHITECTURE.md:2: there is no file `log/gone.rs` (map)");
    }
}
