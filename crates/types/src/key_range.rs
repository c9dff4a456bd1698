//! Half-open ranges of keys.

use bytes::Bytes;

/// Keys from `start` (included) to `end` (excluded); an empty `end` means no upper bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// First key that may be inside.
    pub start: Bytes,
    /// First key after the range, or empty for no bound.
    pub end: Bytes,
}

impl KeyRange {
    /// A range from its two ends.
    pub fn new(start: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        Self { start: start.into(), end: end.into() }
    }

    /// Every key.
    pub fn all() -> Self {
        Self::default()
    }

    /// The keys that begin with `prefix`.
    pub fn prefix(prefix: &[u8]) -> Self {
        let mut end = prefix.to_vec();
        while let Some(last) = end.pop() {
            if last < u8::MAX {
                end.push(last + 1);
                break;
            }
        }
        Self::new(prefix.to_vec(), end)
    }

    /// Whether `key` lies inside.
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= &self.start[..] && self.is_below_end(key)
    }

    /// Whether `key` lies below the upper bound.
    pub fn is_below_end(&self, key: &[u8]) -> bool {
        self.end.is_empty() || key < &self.end[..]
    }

    /// Whether no key can lie inside.
    pub fn is_empty(&self) -> bool {
        !self.end.is_empty() && self.start >= self.end
    }

    /// Whether some key may lie in both.
    pub fn overlaps(&self, other: &Self) -> bool {
        !self.is_empty()
            && !other.is_empty()
            && self.is_below_end(&other.start)
            && other.is_below_end(&self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_high_bytes_have_the_right_upper_bound() {
        assert_eq!(KeyRange::prefix(b"ab"), KeyRange::new(&b"ab"[..], &b"ac"[..]));
        assert_eq!(KeyRange::prefix(&[7, 255, 255]).end, Bytes::from(vec![8]));
        assert!(KeyRange::prefix(&[255, 255]).contains(&[255, 255, 255, 1]));
        assert!(KeyRange::prefix(b"").contains(b""));
    }

    #[test]
    fn overlap_needs_a_common_key() {
        let range = |a: &'static str, b: &'static str| KeyRange::new(a, b);
        assert!(range("a", "c").overlaps(&range("b", "")));
        assert!(!range("a", "b").overlaps(&range("b", "c")));
        assert!(!range("b", "b").overlaps(&KeyRange::all()));
    }
}
