//! Borders of regions at names of Redis.

/// First bytes of names at which regions begin: ten regions of names that no library gives a prefix.
const FIRST_BYTES: [&str; 9] = ["3", "9", "b", "e", "j", "m", "p", "r", "v"];

/// Names with which frameworks begin theirs, and the bytes after them at which regions begin.
const PREFIXES: [(&str, &[&str]); 9] = [
    (":1:", &["6", "b", "p"]),
    (":1:django.contrib.sessions.cache", &["9", "i", "r"]),
    (":1:rl:", &["5", "a"]),
    ("session:", &["G", "W", "k"]),
    ("flask_cache_", &["E", "b"]),
    ("fastapi-cache::", &["5", "a"]),
    ("sess:", &["G", "W", "k"]),
    ("koa:sess:", &["G", "W", "k"]),
    ("spring:session:sessions:", &["5", "a"]),
];

/// Returns the first keys of all regions but the first, in hexadecimal digits, ascending.
///
/// A key begins with the byte of its database and a zero for a name without a tag.
pub(super) fn borders() -> Vec<String> {
    let bare = FIRST_BYTES.iter().map(|first| (*first).to_owned());
    let within = PREFIXES
        .iter()
        .flat_map(|(prefix, next)| next.iter().map(move |it| format!("{prefix}{it}")));
    let mut borders: Vec<String> = bare.chain(within).map(|name| border(&name)).collect();
    borders.sort();
    borders.dedup();
    borders
}

fn border(name: &str) -> String {
    use std::fmt::Write;
    name.bytes().fold("d000".to_owned(), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_ascend_and_name_at_least_ten_regions() {
        let borders = borders();
        assert!(borders.len() >= 9);
        assert!(borders.is_sorted_by(|one, next| one < next));
        assert_eq!(border("b:"), "d000623a");
    }
}
