//! Key groups (KV-SSD section 3.1): keys with first four bytes that agree with a prefix in the
//! bits of a mask.

use stele_storage::Pair;
use stele_types::{KeyRange, Result};

/// A set of keys of at least four bytes. The first four, as a big-endian number, equal
/// `prefix` in every bit that is set in `mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Bits to match.
    pub prefix: [u8; 4],
    /// Mask of the bits that must match.
    pub mask: [u8; 4],
}

impl Group {
    /// Creates the group of all keys that begin with these four bytes.
    pub fn of(prefix: [u8; 4]) -> Self {
        Self { prefix, mask: [0xff; 4] }
    }

    /// Whether `key` belongs to the group.
    pub fn contains(&self, key: &[u8]) -> bool {
        let Some(head) = key.first_chunk::<4>() else { return false };
        let mask = u32::from_be_bytes(self.mask);
        u32::from_be_bytes(*head) & mask == u32::from_be_bytes(self.prefix) & mask
    }

    /// Passes the pairs of the group on, and failures.
    pub(crate) fn filter(
        self,
        pairs: impl Iterator<Item = Result<Pair>>,
    ) -> impl Iterator<Item = Result<Pair>> {
        pairs.filter(move |pair| pair.as_ref().map_or(true, |pair| self.contains(&pair.key)))
    }

    /// Returns the smallest range that holds the group: the mask's leading ones are a true prefix.
    pub fn range(&self) -> KeyRange {
        let bits = u32::from_be_bytes(self.mask).leading_ones();
        let fixed = if bits == 0 { 0 } else { u32::MAX << (32 - bits) };
        let start = u32::from_be_bytes(self.prefix) & fixed;
        let end = u64::from(start) + (1u64 << (32 - bits));
        let end = u32::try_from(end).map(|e| e.to_be_bytes().to_vec()).unwrap_or_default();
        KeyRange::new(start.to_be_bytes().to_vec(), end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_lies_inside_its_range_and_matches_by_mask() {
        let group = Group { prefix: *b"ab\x00\x0f", mask: [0xff, 0xff, 0, 0x0f] };
        assert!(group.contains(b"abXo") && group.contains(b"abY\xffrest"));
        assert!(!group.contains(b"abX") && !group.contains(b"acXo") && !group.contains(b"abX0"));
        assert_eq!(group.range(), KeyRange::new(&b"ab\0\0"[..], &b"ac\0\0"[..]));
        assert!(group.range().contains(b"abXo"));
    }

    #[test]
    fn the_last_group_has_no_upper_bound() {
        assert!(Group::of([255; 4]).range().end.is_empty());
        assert_eq!(
            Group { prefix: [0; 4], mask: [0; 4] }.range(),
            KeyRange::new(vec![0; 4], vec![])
        );
    }
}
