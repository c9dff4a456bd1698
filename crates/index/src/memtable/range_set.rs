//! A set of keys given as ranges.

use stele_types::{KeyRange, varint};

/// Sorted, disjoint, non-empty ranges of keys; ranges that touch are joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet(Vec<KeyRange>);

impl RangeSet {
    /// Returns the union of `ranges`, which may overlap.
    pub fn from_ranges(ranges: impl IntoIterator<Item = KeyRange>) -> Self {
        let mut sorted: Vec<_> = ranges.into_iter().filter(|range| !range.is_empty()).collect();
        sorted.sort_by(|a, b| a.start.cmp(&b.start));
        let mut joined: Vec<KeyRange> = Vec::with_capacity(sorted.len());
        for range in sorted {
            match joined.last_mut() {
                Some(last) if last.end.is_empty() || range.start <= last.end => {
                    if range.end.is_empty() || (!last.end.is_empty() && range.end > last.end) {
                        last.end = range.end;
                    }
                }
                _ => joined.push(range),
            }
        }
        Self(joined)
    }

    /// Returns the range that contains `key`.
    pub fn range_of(&self, key: &[u8]) -> Option<&KeyRange> {
        let after = self.0.partition_point(|range| &range.start[..] <= key);
        self.0.get(after.checked_sub(1)?).filter(|range| range.is_below_end(key))
    }

    /// Returns whether `key` is in the set.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.range_of(key).is_some()
    }

    /// Returns whether a key may be both in the set and in `range`.
    pub fn overlaps(&self, range: &KeyRange) -> bool {
        self.0.iter().any(|own| own.overlaps(range))
    }

    /// Returns the keys in either set.
    pub fn union(&self, other: &Self) -> Self {
        Self::from_ranges(self.iter().chain(other.iter()).cloned())
    }

    /// Returns the keys of the set that lie in `range`.
    pub fn within(&self, range: &KeyRange) -> Self {
        let cut = self.0.iter().filter(|own| own.overlaps(range)).map(|own| {
            let end = if own.end.is_empty() || range.is_empty() {
                &range.end
            } else if range.end.is_empty() {
                &own.end
            } else {
                (&own.end).min(&range.end)
            };
            KeyRange { start: (&own.start).max(&range.start).clone(), end: end.clone() }
        });
        Self(cut.collect())
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of ranges.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the ranges in key order.
    pub fn iter(&self) -> impl Iterator<Item = &KeyRange> {
        self.0.iter()
    }

    /// Appends count:varint, then start and end of each range, length-prefixed.
    pub fn encode(&self, out: &mut Vec<u8>) {
        varint::put(out, self.0.len() as u64);
        for range in &self.0 {
            varint::put_bytes(out, &range.start);
            varint::put_bytes(out, &range.end);
        }
    }

    /// Decodes the output of [`RangeSet::encode`] and removes it from the front.
    pub fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let count = varint::take(bytes)?;
        let mut ranges = Vec::new();
        for _ in 0..count {
            let start = varint::take_bytes(bytes)?.to_vec();
            ranges.push(KeyRange::new(start, varint::take_bytes(bytes)?.to_vec()));
        }
        Some(Self::from_ranges(ranges))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &[(&'static str, &'static str)]) -> RangeSet {
        RangeSet::from_ranges(ranges.iter().map(|(a, b)| KeyRange::new(*a, *b)))
    }

    #[test]
    fn ranges_join_when_they_touch_and_unbounded_ones_swallow_the_rest() {
        assert_eq!(
            set(&[("d", "f"), ("a", "b"), ("b", "c"), ("x", "x")]),
            set(&[("a", "c"), ("d", "f")])
        );
        assert_eq!(set(&[("m", ""), ("a", "b"), ("p", "q")]), set(&[("a", "b"), ("m", "")]));
        assert_eq!(set(&[("a", "z"), ("b", "c")]).len(), 1);
    }

    #[test]
    fn membership_ends_before_the_end() {
        let some = set(&[("b", "d"), ("m", "")]);
        for (key, inside) in
            [("a", false), ("b", true), ("c\u{7f}", true), ("d", false), ("zz", true)]
        {
            assert_eq!(some.covers(key.as_bytes()), inside, "{key}");
        }
        assert!(
            some.overlaps(&KeyRange::new("c", "d")) && !some.overlaps(&KeyRange::new("d", "m"))
        );
        assert_eq!(some.within(&KeyRange::new("c", "n")), set(&[("c", "d"), ("m", "n")]));
        assert_eq!(some.within(&KeyRange::new("c", "")), set(&[("c", "d"), ("m", "")]));
        assert_eq!(set(&[("a", "")]).within(&KeyRange::new("", "c")), set(&[("a", "c")]));
    }

    #[test]
    fn encoding_survives_the_round_trip_and_refuses_cut_bytes() {
        let some = set(&[("b", "d"), ("m", "")]);
        let mut out = Vec::new();
        some.encode(&mut out);
        assert_eq!(RangeSet::decode(&mut &out[..]), Some(some));
        assert_eq!(RangeSet::decode(&mut &out[..out.len() - 1]), None);
    }
}
