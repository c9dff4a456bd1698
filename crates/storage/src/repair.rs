//! Repair of unreadable data by copies from other replicas.

use crate::Pair;
use bytes::Bytes;
use stele_types::{KeyRange, Result, checksum};

/// A referenced value that cannot be read. Another replica's value of this key with this length and
/// checksum has the same bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostValue {
    /// Key of the value.
    pub key: Bytes,
    /// The value's length in bytes.
    pub length: u32,
    /// CRC-32C of the value's bytes.
    pub crc: u32,
}

impl LostValue {
    /// Returns whether `value` is a copy of the lost value.
    pub fn is_copy(&self, value: &[u8]) -> bool {
        value.len() == self.length as usize && checksum::crc32c(value) == self.crc
    }
}

/// Repair of what is unreadable on this store. An engine that detects nothing keeps the defaults.
pub trait Repair: Send + Sync {
    /// Returns whether data is unreadable here that another replica may have. Cheap.
    fn has_lost(&self) -> bool {
        false
    }

    /// Returns the next unreadable values, at most `count_max`; successive calls cycle through all.
    fn lost_values(&self, count_max: usize) -> Vec<LostValue> {
        let _ = count_max;
        Vec::new()
    }

    /// Returns some key ranges with unknown contents (lost blocks), ascending.
    fn lost_ranges(&self) -> Vec<KeyRange> {
        Vec::new()
    }

    /// Replaces the contents of `range` by these pairs, durably. Invariant: the applied state of
    /// this store and the pairs agree on the range, and nothing is applied meanwhile; so it is
    /// called on the thread that applies.
    fn repair_range(&self, range: &KeyRange, pairs: Vec<Pair>) -> Result<()> {
        let (_, _) = (range, pairs);
        Ok(())
    }

    /// Accepts another replica's copy of a lost value. Drops any other value. Maintenance writes
    /// the copy.
    fn repair_value(&self, key: &Bytes, value: Bytes) {
        let _ = (key, value);
    }
}
