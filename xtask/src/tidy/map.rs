//! The map of the repository, ARCHITECTURE.md: a newcomer reads it in one sitting.

use super::Finding;
use super::source::Source;

const RULE: &str = "map";
/// File of the map.
pub const MAP: &str = "ARCHITECTURE.md";
/// Words of the map, at most.
pub const WORDS_MAX: usize = 3000;

/// Finds a map that is too long.
pub fn check(sources: &[Source]) -> Option<Finding> {
    let words = words(sources);
    let detail = format!("{words} words; at most {WORDS_MAX} are allowed");
    (words > WORDS_MAX).then(|| Finding::new(RULE, MAP, detail))
}

/// Returns the words of the map, as `wc -w` counts them.
pub fn words(sources: &[Source]) -> usize {
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
        assert_eq!(of(WORDS_MAX), None);
        let found = of(WORDS_MAX + 1).unwrap().to_string();
        assert_eq!(found, "ARCHITECTURE.md: 3001 words; at most 3000 are allowed (map)");
    }
}
