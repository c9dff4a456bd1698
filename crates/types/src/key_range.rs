//! Half-open ranges of keys.

use bytes::Bytes;

/// Keys from `start` (inclusive) to `end` (exclusive); an empty `end` means no upper bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// First key in the range.
    pub start: Bytes,
    /// First key after the range; empty for no upper bound.
    pub end: Bytes,
}

impl KeyRange {
    /// Creates a range from its two ends.
    pub fn new(start: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        Self { start: start.into(), end: end.into() }
    }

    /// Returns the range of all keys.
    pub fn all() -> Self {
        Self::default()
    }

    /// Returns the range of one key.
    pub fn of_key(key: impl Into<Bytes>) -> Self {
        let start = key.into();
        Self { end: key_after(&start), start }
    }

    /// Returns the range of keys that begin with `prefix`.
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

    /// Whether the range contains `key`.
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= &self.start[..] && self.is_below_end(key)
    }

    /// Whether `key` is below the upper bound.
    pub fn is_below_end(&self, key: &[u8]) -> bool {
        self.end.is_empty() || key < &self.end[..]
    }

    /// Whether the range can contain no key.
    pub fn is_empty(&self) -> bool {
        !self.end.is_empty() && self.start >= self.end
    }

    /// Whether both ranges may contain the same key.
    pub fn overlaps(&self, other: &Self) -> bool {
        !self.is_empty()
            && !other.is_empty()
            && self.is_below_end(&other.start)
            && other.is_below_end(&self.start)
    }

    /// Returns the part inside `bounds`, which may be empty.
    pub fn within(&self, bounds: &Self) -> Self {
        let start = (&self.start).max(&bounds.start).clone();
        let end = match (self.end.is_empty(), bounds.end.is_empty()) {
            (true, _) => &bounds.end,
            (_, true) => &self.end,
            _ => (&self.end).min(&bounds.end),
        };
        Self { start, end: end.clone() }
    }

    /// Returns the intersection; `None` if it is empty.
    pub fn common(&self, other: &Self) -> Option<Self> {
        self.overlaps(other).then(|| self.within(other))
    }

    /// Returns the keys that are not in `other`: none, one or two ranges, ascending.
    pub fn without(&self, other: &Self) -> Vec<Self> {
        let Some(common) = self.common(other) else { return vec![self.clone()] };
        let before = Self { start: self.start.clone(), end: common.start.clone() };
        let after = Self { start: common.end.clone(), end: self.end.clone() };
        let is_there = [self.start < common.start, !common.end.is_empty() && !after.is_empty()];
        let parts = [before, after].into_iter().zip(is_there);
        parts.filter_map(|(part, is_there)| is_there.then_some(part)).collect()
    }
}

/// Returns the first key after `key`.
pub fn key_after(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
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
    fn what_two_ranges_share_and_what_only_one_has_is_all_of_it() {
        let ends = ["", "a", "b", "c", "d"];
        let ranges = || {
            let all = ends.iter().flat_map(|start| ends.map(|end| KeyRange::new(*start, end)));
            all.filter(|range| !range.is_empty())
        };
        for (one, other) in ranges().flat_map(|one| ranges().map(move |other| (one.clone(), other)))
        {
            let (common, rest) = (one.common(&other), one.without(&other));
            assert!(rest.iter().chain(&common).all(|part| !part.is_empty()), "{one:?} {other:?}");
            for key in [&b""[..], b"A", b"a", b"aa", b"b", b"c", b"cc", b"d", b"e"] {
                let shared = one.contains(key) && other.contains(key);
                assert_eq!(common.as_ref().is_some_and(|it| it.contains(key)), shared);
                let parts = rest.iter().filter(|part| part.contains(key)).count();
                assert_eq!(parts, usize::from(one.contains(key) && !shared), "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn an_empty_end_is_no_bound_of_the_part_within() {
        let range = |a: &'static str, b: &'static str| KeyRange::new(a, b);
        assert_eq!(range("", "").within(&range("b", "d")), range("b", "d"));
        assert_eq!(range("c", "").within(&range("b", "d")), range("c", "d"));
        assert_eq!(range("a", "c").within(&range("b", "")), range("b", "c"));
        assert!(range("a", "b").within(&range("c", "d")).is_empty());
    }

    #[test]
    fn overlap_needs_a_common_key() {
        let range = |a: &'static str, b: &'static str| KeyRange::new(a, b);
        assert!(range("a", "c").overlaps(&range("b", "")));
        assert!(!range("a", "b").overlaps(&range("b", "c")));
        assert!(!range("b", "b").overlaps(&KeyRange::all()));
    }
}
