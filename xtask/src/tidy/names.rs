//! Names of types: one meaning in a crate.

use super::Finding;
use super::source::Source;
use crate::house::twins;

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let found = |((package, name), places): ((String, String), Vec<String>)| {
        let detail = format!("{package} has several types `{name}`: name each by what it is");
        Finding::new("names", places.join(", "), detail)
    };
    twins(sources).into_iter().map(found).collect()
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn two_visible_types_of_one_crate_with_one_name_are_found() {
        let mut sources = vec![
            sample("crates/a/src/one.rs", "pub struct Mark; struct Own;"),
            sample("crates/b/src/one.rs", "pub struct Mark; struct Own;"),
        ];
        assert_eq!(check(&sources), []);
        sources.push(sample("crates/a/src/two.rs", "pub(crate) enum Mark {} struct Own;"));
        let detail = "a has several types `Mark`: name each by what it is";
        let places = "crates/a/src/one.rs:1, crates/a/src/two.rs:1";
        assert_eq!(check(&sources), [Finding::new("names", places, detail)]);
    }
}
