//! Partition of the keys: the shard of each key, fixed when the set is created.

use super::map::SetId;
use bytes::Bytes;
use std::ops::Range;
use stele_index::key_hash;
use stele_types::size::USER_KEY_BYTES_MAX;
use stele_types::{Error, KeyRange, Result};

/// Maximum number of shards of a set: all bounds then fit into the map of each directory.
pub const SHARDS_MAX: usize = 256;

/// Rule that assigns keys to shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Partition {
    /// By a hash of the key: equal load, and every scan needs all shards.
    Hash,
    /// By ranges: shard `i` has the keys from bound `i - 1` (inclusive) to bound `i` (exclusive).
    /// The bounds ascend; there is one less than shards.
    Range(Vec<Bytes>),
}

impl Partition {
    /// Fails with [`Error::Invalid`] unless it assigns all keys to `count` shards.
    pub(super) fn validate(&self, count: usize) -> Result<()> {
        if !(1..=SHARDS_MAX).contains(&count) {
            return Err(Error::invalid(format!(
                "{count} directories for a set of shards; allowed are 1 to {SHARDS_MAX}"
            )));
        }
        let Self::Range(bounds) = self else { return Ok(()) };
        if bounds.len() + 1 != count {
            return Err(Error::invalid(format!(
                "{} bounds for {count} directories; give one bound less than directories",
                bounds.len()
            )));
        }
        if bounds.iter().any(|bound| bound.is_empty() || bound.len() > USER_KEY_BYTES_MAX) {
            return Err(Error::invalid(format!(
                "a bound of a shard has 1 to {USER_KEY_BYTES_MAX} bytes"
            )));
        }
        match bounds.is_sorted_by(|low, high| low < high) {
            true => Ok(()),
            false => Err(Error::invalid("the bounds of shards must ascend, each once")),
        }
    }

    pub(super) fn shard_of(&self, set: SetId, count: usize, key: &[u8]) -> usize {
        match self {
            Self::Hash => {
                // The filters of a shard choose by the high bits of the same hash. Without the mix
                // all keys of a shard would share a part of each filter.
                let hash = mix(key_hash(key) ^ set.0);
                ((u128::from(hash) * count as u128) >> 64) as usize
            }
            Self::Range(bounds) => bounds.partition_point(|bound| bound[..] <= *key),
        }
    }

    pub(super) fn shards_of(&self, count: usize, range: &KeyRange) -> Range<usize> {
        if range.is_empty() {
            return 0..0;
        }
        let Self::Range(bounds) = self else { return 0..count };
        let first = bounds.partition_point(|bound| bound[..] <= range.start[..]);
        let end = match range.end.is_empty() {
            true => bounds.len(),
            false => bounds.partition_point(|bound| bound[..] < range.end[..]),
        };
        first..end + 1
    }
}

/// Finaliser of SplitMix64. It is part of the hash's version in the map.
fn mix(hash: u64) -> u64 {
    let mut z = hash.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: SetId = SetId(7);

    fn by_range() -> Partition {
        Partition::Range(vec![Bytes::from_static(b"g"), Bytes::from_static(b"p")])
    }

    #[test]
    fn the_hash_is_fixed_because_keys_stay_in_their_shard() {
        let shards: Vec<usize> = (0..24)
            .map(|n| Partition::Hash.shard_of(SET, 5, format!("key-{n}").as_bytes()))
            .collect();
        assert_eq!(shards, OF_24_KEYS);
    }

    const OF_24_KEYS: [usize; 24] =
        [4, 3, 3, 1, 1, 1, 0, 4, 3, 1, 0, 3, 3, 2, 3, 1, 2, 2, 4, 1, 3, 1, 3, 3];

    #[test]
    fn similar_keys_are_spread_evenly_over_the_shards_of_every_set() {
        for (set, count) in [(0, 2), (1, 3), (u64::MAX, 18)] {
            let mut keys = vec![0u32; count];
            for n in 0..count * 1000 {
                let key = format!("user{n:012}");
                keys[Partition::Hash.shard_of(SetId(set), count, key.as_bytes())] += 1;
            }
            assert!(keys.iter().all(|keys| (850..1150).contains(keys)), "{keys:?}");
        }
    }

    #[test]
    fn a_range_includes_its_lower_bound_and_excludes_its_upper_one() {
        let shard = |key: &[u8]| by_range().shard_of(SET, 3, key);
        let shards = [&b""[..], b"f\xff", b"g", b"g\0", b"oz", b"p", b"\xff"].map(shard);
        assert_eq!(shards, [0, 0, 1, 1, 1, 2, 2]);
    }

    #[test]
    fn a_scan_needs_exactly_the_shards_that_may_hold_its_keys() {
        let of = |start: &'static str, end: &'static str| {
            by_range().shards_of(3, &KeyRange::new(start, end))
        };
        assert_eq!(of("", ""), 0..3);
        assert_eq!(of("a", "g"), 0..1);
        assert_eq!(of("a", "g\0"), 0..2);
        assert_eq!(of("g", "p"), 1..2);
        assert_eq!(of("p", ""), 2..3);
        assert_eq!(of("h", "h"), 0..0);
        let range = KeyRange::new("a", "b");
        assert_eq!(Partition::Hash.shards_of(3, &range), 0..3);
    }

    #[test]
    fn a_partition_that_misses_a_shard_or_a_key_is_refused() {
        let bounds = |bounds: &[&'static str]| {
            Partition::Range(
                bounds.iter().map(|bound| Bytes::from_static(bound.as_bytes())).collect(),
            )
        };
        assert!(bounds(&["g", "p"]).validate(3).is_ok() && bounds(&[]).validate(1).is_ok());
        assert!(Partition::Hash.validate(SHARDS_MAX).is_ok());
        let refused = [
            (bounds(&["g"]), 3),
            (bounds(&["p", "g"]), 3),
            (bounds(&["g", "g"]), 3),
            (bounds(&["", "g"]), 3),
            (Partition::Hash, 0),
            (Partition::Hash, SHARDS_MAX + 1),
        ];
        for (partition, count) in refused {
            assert!(matches!(partition.validate(count), Err(Error::Invalid(_))), "{partition:?}");
        }
    }
}
