//! Rule for entries that a merge drops.

use crate::memtable::RangeSet;
use crate::slot::Found;
use std::sync::Arc;
use stele_types::{is_expired, mutant};

/// Drop rule of one job; it depends on what lies below the output.
#[derive(Clone, Debug)]
pub(crate) struct DropRule {
    /// No older tier lies below, so tombstones hide nothing.
    bottom: bool,
    /// Entries that expired by this time, in Unix seconds, are dropped; 0 keeps all.
    drop_s: u64,
    /// Range tombstones of the output, for older tiers.
    ranges: Arc<RangeSet>,
}

impl DropRule {
    pub fn new(bottom: bool, drop_s: u64, ranges: RangeSet) -> Self {
        let bottom = bottom || mutant::active("index.tombstone_dropped_early");
        let kept = if bottom { RangeSet::default() } else { ranges };
        Self { bottom, drop_s, ranges: Arc::new(kept) }
    }

    /// Returns the range tombstones of the output.
    pub fn ranges(&self) -> &RangeSet {
        &self.ranges
    }

    /// Returns whether the newest entry of a key is kept. The entry is not hidden by a newer range
    /// tombstone.
    #[inline]
    pub fn keeps(&self, key: &[u8], found: &Found) -> bool {
        match found {
            // A tombstone inside a range tombstone of the output hides nothing more.
            Found::Deleted => !self.bottom && (self.ranges.is_empty() || !self.ranges.covers(key)),
            // An expired value hides older ones, so it is dropped only at the bottom.
            Found::Value { expires_at_s, .. } => {
                !(self.bottom && is_expired(*expires_at_s, self.drop_s))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use stele_types::{KeyRange, ValueRef};

    #[test]
    fn deletes_and_expired_values_go_at_the_bottom_only() {
        let value =
            |expires_at_s| Found::Value { value: ValueRef::Inline(Bytes::new()), expires_at_s };
        let ranges = RangeSet::from_ranges([KeyRange::new("m", "p")]);
        let bottom = DropRule::new(true, 100, ranges.clone());
        let above = DropRule::new(false, 100, ranges);
        assert!(bottom.ranges().is_empty() && !above.ranges().is_empty());
        assert!(!bottom.keeps(b"a", &Found::Deleted) && above.keeps(b"a", &Found::Deleted));
        assert!(!above.keeps(b"n", &Found::Deleted));
        assert!(!bottom.keeps(b"a", &value(100)) && above.keeps(b"a", &value(100)));
        assert!(bottom.keeps(b"a", &value(101)) && bottom.keeps(b"a", &value(0)));
    }
}
