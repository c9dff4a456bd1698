//! Patterns of names, as KEYS and the option MATCH of Redis have them.
//!
//! ```text
//! *         any bytes, also none
//! ?         one byte
//! [a-cx]    one of these bytes; without `]`, those up to the end of the pattern
//! [^a-cx]   one byte that is none of these
//! \x        the byte x; in brackets too
//! ```
//!
//! All other bytes stand for themselves. A range of bytes has both ends, in any order.

use bytes::Bytes;

/// Bytes of a pattern at most. It bounds the time of a comparison, which grows with the product of both lengths.
pub const PATTERN_BYTES_MAX: usize = 1024;

/// Pattern of names, or of fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    text: Bytes,
}

/// A pattern that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a pattern of {0} bytes; the limit is {max}", max = PATTERN_BYTES_MAX)]
pub struct PatternTooLong(usize);

/// Beginning that all names have in common that a pattern matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Literal {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Whether the pattern matches this one name alone.
    pub is_whole: bool,
}

impl Glob {
    /// Creates a pattern.
    pub fn new(text: Bytes) -> Result<Self, PatternTooLong> {
        match text.len() > PATTERN_BYTES_MAX {
            true => Err(PatternTooLong(text.len())),
            false => Ok(Self { text }),
        }
    }

    /// Returns the pattern as clients write it.
    pub fn text(&self) -> &Bytes {
        &self.text
    }

    /// Whether each name matches.
    pub fn is_any(&self) -> bool {
        self.text == "*"
    }

    /// Whether a name matches. After a mismatch only the last `*` takes one more byte: an earlier one would
    /// need the rest later in the name, where it was looked for already.
    pub fn matches(&self, name: &[u8]) -> bool {
        // Redis compares nothing with an empty name.
        if name.is_empty() {
            return self.text.is_empty() || self.is_any();
        }
        let (mut pattern, mut rest) = (&self.text[..], name);
        let mut after_star: Option<(&[u8], &[u8])> = None;
        while let Some((byte, after)) = rest.split_first() {
            if let Some((b'*', next)) = pattern.split_first() {
                (pattern, after_star) = (next, Some((next, rest)));
                continue;
            }
            if let Some((true, next)) = element(pattern, *byte) {
                (pattern, rest) = (next, after);
                continue;
            }
            let Some((next, [_, later @ ..])) = after_star else { return false };
            (pattern, rest, after_star) = (next, later, Some((next, later)));
        }
        pattern.iter().all(|byte| *byte == b'*')
    }

    /// Returns the bytes with which each name begins that matches.
    pub fn literal(&self) -> Literal {
        let (mut bytes, mut pattern) = (Vec::new(), &self.text[..]);
        loop {
            pattern = match pattern {
                [] => return Literal { bytes, is_whole: true },
                [b'*' | b'?' | b'[', ..] => return Literal { bytes, is_whole: false },
                [b'\\', byte, next @ ..] | [byte, next @ ..] => {
                    bytes.push(*byte);
                    next
                }
            };
        }
    }
}

/// Returns whether the first element of a pattern, which is not a `*`, matches a byte, and what follows it.
fn element(pattern: &[u8], byte: u8) -> Option<(bool, &[u8])> {
    match pattern {
        [] => None,
        [b'?', next @ ..] => Some((true, next)),
        [b'[', b'^', class @ ..] => {
            let (has, next) = is_in_class(class, byte);
            Some((!has, next))
        }
        [b'[', class @ ..] => Some(is_in_class(class, byte)),
        [b'\\', literal, next @ ..] | [literal, next @ ..] => Some((*literal == byte, next)),
    }
}

/// Returns whether the class after `[` has a byte, and what follows its `]`.
fn is_in_class(mut class: &[u8], byte: u8) -> (bool, &[u8]) {
    let mut has = false;
    loop {
        class = match class {
            [] => return (has, &[]),
            [b'\\', literal, next @ ..] => {
                has |= *literal == byte;
                next
            }
            [b']', next @ ..] => return (has, next),
            [one, b'-', other, next @ ..] => {
                has |= (*one.min(other)..=*one.max(other)).contains(&byte);
                next
            }
            [literal, next @ ..] => {
                has |= *literal == byte;
                next
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::time::{Duration, Instant};

    fn glob(text: &[u8]) -> Glob {
        Glob::new(Bytes::copy_from_slice(text)).unwrap()
    }

    /// One element of a pattern, with all bytes that it matches; `None` for a `*`.
    type Element = Option<Vec<bool>>;

    fn elements(mut pattern: &[u8]) -> Vec<Element> {
        let mut found = Vec::new();
        while let Some(first) = pattern.first() {
            if *first == b'*' {
                found.push(None);
                pattern = &pattern[1..];
                continue;
            }
            let of_byte = |byte: u8| element(pattern, byte).unwrap();
            found.push(Some((0..=255).map(|byte| of_byte(byte).0).collect()));
            pattern = of_byte(0).1;
        }
        found
    }

    fn matches_by_recursion(pattern: &[Element], name: &[u8]) -> bool {
        match (pattern, name) {
            ([], name) => name.is_empty(),
            ([None, next @ ..], name) => {
                (0..=name.len()).any(|taken| matches_by_recursion(next, &name[taken..]))
            }
            ([Some(_), ..], []) => false,
            ([Some(class), next @ ..], [byte, rest @ ..]) => {
                class[usize::from(*byte)] && matches_by_recursion(next, rest)
            }
        }
    }

    proptest! {
        #[test]
        fn a_pattern_matches_as_a_search_of_all_ways_does(
            pattern in vec(prop::sample::select(&b"**??aab[]^-\\"[..]), 0..12),
            name in vec(prop::sample::select(&b"aaab^]-"[..]), 1..10),
        ) {
            let expected = matches_by_recursion(&elements(&pattern), &name);
            let pattern = glob(&pattern);
            prop_assert_eq!(pattern.matches(&name), expected);
            let Literal { bytes, is_whole } = pattern.literal();
            if expected {
                prop_assert!(name.starts_with(&bytes) && (!is_whole || name == bytes));
            }
            prop_assert!(!is_whole || bytes.is_empty() || pattern.matches(&bytes));
        }
    }

    #[test]
    fn patterns_match_as_in_redis() {
        let rows: &[(&str, &str, bool)] = &[
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h*llo", "heeeello", true),
            ("h[ae]llo", "hello", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("[z-a]", "b", true),
            ("[ab", "b", true),
            ("[!a]", "!", true),
            ("[!a]", "b", false),
            ("[]a]", "a", false),
            ("[]a]", "]", false),
            ("[^]a]", "xa]", true),
            ("[a-]", "]", true),
            ("[a-]", "-", false),
            ("[a-", "-", true),
            ("[\\]]", "]", true),
            ("[", "[", false),
            ("[^", "x", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("\\", "\\", true),
            ("a**", "a", true),
            ("*a*b", "xaxb", true),
            ("*a*b", "xbxa", false),
            ("foo*", "foo", true),
        ];
        for (pattern, name, expected) in rows {
            let matches = glob(pattern.as_bytes()).matches(name.as_bytes());
            assert_eq!(matches, *expected, "{pattern} {name}");
        }
    }

    #[test]
    fn the_literal_of_a_pattern_ends_at_its_first_wildcard() {
        let rows: &[(&[u8], &[u8], bool)] = &[
            (b"", b"", true),
            (b"user:*", b"user:", false),
            (b"user:1", b"user:1", true),
            (b"a\\*b?", b"a*b", false),
            (b"a[b]", b"a", false),
            (b"a\\", b"a\\", true),
            (b"*a", b"", false),
        ];
        for (pattern, bytes, is_whole) in rows {
            let expected = Literal { bytes: bytes.to_vec(), is_whole: *is_whole };
            assert_eq!(glob(pattern).literal(), expected);
        }
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let pattern = glob(&[b"a*".repeat(500), b"b".to_vec()].concat());
        let started = Instant::now();
        assert!(!pattern.matches(&vec![b'a'; 8 << 10]));
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        assert!(Glob::new(Bytes::from(vec![b'*'; PATTERN_BYTES_MAX + 1])).is_err());
    }
}
