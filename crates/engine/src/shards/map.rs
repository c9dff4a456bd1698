//! The file `SHARDS` of each directory of a set: which set it belongs to, as which shard, and the
//! partition that gives each key its shard. The partition is fixed when the set is created.
//!
//! ```text
//! SHARDS    := "stele shards\n" "format " n "\n" "set " hex "\n" "shard " i "\n" "shards " n "\n"
//!              partition "crc32c " hex "\n"
//! partition := "hash " version "\n" | "ranges " n "\n" ("bound " hex "\n")*
//! ```
//!
//! Invariant: the maps of all directories are durable before the first store of a set exists. So a
//! directory with a store and without a map is not part of a set, and a directory without a map is
//! a lost one if another directory of its set has a store.

use crate::checked_text::{self, CheckedText, from_hex, to_hex};
use crate::identity;
use bytes::Bytes;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use stele_index::key_hash;
use stele_types::size::{FORMAT_VERSION, USER_KEY_BYTES_MAX};
use stele_types::{Error, KeyRange, Result};
use stele_vfs::Vfs;

pub(crate) const NAME: &str = "SHARDS";
const MAGIC: &str = "stele shards";
/// Version of the hash in [`Partition::shard_of`].
const HASH_VERSION: u32 = 1;
/// Above 255 bounds of 8 KiB in hexadecimal digits.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// Identity of a set of shards. Chosen at random when the set is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetId(pub u64);

impl fmt::Display for SetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Place of a directory in a set of shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardOf {
    /// The set.
    pub set: SetId,
    /// Number of the shard in the directory, from 0.
    pub shard: usize,
    /// Number of shards of the set.
    pub count: usize,
}

impl fmt::Display for ShardOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { set, shard, count } = self;
        write!(f, "shard {shard} of {count} (counted from 0) of set {set}")
    }
}

/// Returns the place of a directory in a set of shards; `None` for one that is part of no set. Fails
/// with [`Error::Corrupt`] or [`Error::NewerFormat`].
pub fn shard_of(vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<Option<ShardOf>> {
    if !vfs.exists(&dir.join(NAME))? {
        return Ok(None);
    }
    let Map { set, shard, count, .. } = Map::read(vfs, dir)?;
    Ok(Some(ShardOf { set, shard, count }))
}

/// Fails with [`Error::WrongStore`] if `dir` is a shard and is opened as a store by itself on files
/// that keep changes.
///
/// Invariant: the keys of a shard are those that the partition of its set assigns to it, so only its
/// set writes to it.
pub(crate) fn check_not_a_shard(vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<()> {
    // bug engine.shard_opened_alone: always
    if !vfs.keeps_changes() {
        return Ok(());
    }
    let Some(shard) = shard_of(vfs, dir)? else { return Ok(()) };
    Err(Error::WrongStore {
        path: dir.to_path_buf(),
        detail: format!(
            "it is {shard}, and a write to one shard alone may put a key where the set never looks \
             for it: open all directories of the set with `Shards::open`; the commands that only read \
             accept this directory"
        ),
    })
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Map {
    pub set: SetId,
    /// Number of the shard in this directory, from 0.
    pub shard: usize,
    pub count: usize,
    pub partition: Partition,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Without a store; the map is that of a set of which the creation was interrupted.
    Unused(Option<Map>),
    Used(Map),
}

impl Found {
    /// Reads a directory; changes nothing. Fails with [`Error::WrongStore`] for a store that is not
    /// a shard.
    pub(super) fn read(vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<Self> {
        if !vfs.exists(dir)? {
            return Ok(Self::Unused(None));
        }
        let entries = vfs.list(dir)?;
        let has = |name: &str| entries.iter().any(|entry| entry.name == name);
        let map = if has(NAME) { Some(Map::read(vfs, dir)?) } else { None };
        match (identity::PARTS.iter().any(|part| has(part)), map) {
            (false, map) => Ok(Self::Unused(map)),
            (true, Some(map)) => Ok(Self::Used(map)),
            (true, None) => Err(Error::WrongStore {
                path: dir.to_path_buf(),
                detail:
                    "it holds a store that is not a shard; open it with `Db::open`, or give an \
                         empty directory"
                        .into(),
            }),
        }
    }

    pub(super) fn map(&self) -> Option<&Map> {
        match self {
            Self::Unused(map) => map.as_ref(),
            Self::Used(map) => Some(map),
        }
    }
}

impl Map {
    /// Writes the map; durable on return.
    pub(super) fn write(&self, vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<()> {
        // bug engine.shard_map_unsynced: `true` is `false`
        checked_text::write(vfs, dir, NAME, &self.text(), true)
    }

    fn read(vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<Self> {
        let path = dir.join(NAME);
        let text = CheckedText::read(vfs, &path, MAGIC, FILE_BYTES_MAX)?;
        let newer = |found, supported| Error::NewerFormat { path: path.clone(), found, supported };
        let format = text.number("format")?;
        if format > FORMAT_VERSION {
            return Err(newer(format, FORMAT_VERSION));
        }
        text.check()?;
        let set = text.field("set").and_then(|hex| u64::from_str_radix(hex, 16).ok());
        let set = SetId(set.ok_or_else(|| text.bad("no set"))?);
        let (shard, count) = (text.number("shard")?, text.number("shards")?);
        let partition = match text.field("hash") {
            Some(_) => match text.number("hash")? {
                HASH_VERSION => Partition::Hash,
                version => return Err(newer(version, HASH_VERSION)),
            },
            None => {
                let bounds: Option<Vec<Bytes>> = text.fields("bound").map(from_hex).collect();
                let bounds = bounds.ok_or_else(|| text.bad("a bound is not hexadecimal"))?;
                if bounds.len() != text.number::<usize>("ranges")?.saturating_sub(1) {
                    return Err(text.bad("another number of bounds"));
                }
                Partition::Range(bounds)
            }
        };
        let is_sound = shard < count && partition.validate(count).is_ok();
        is_sound
            .then_some(Self { set, shard, count, partition })
            .ok_or_else(|| text.bad("not sound"))
    }

    fn text(&self) -> String {
        let Self { set, shard, count, .. } = self;
        let head =
            format!("{MAGIC}\nformat {FORMAT_VERSION}\nset {set}\nshard {shard}\nshards {count}\n");
        match &self.partition {
            Partition::Hash => format!("{head}hash {HASH_VERSION}\n"),
            Partition::Range(bounds) => {
                let lines: String =
                    bounds.iter().map(|bound| format!("bound {}\n", to_hex(bound))).collect();
                format!("{head}ranges {count}\n{lines}")
            }
        }
    }
}

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
    use stele_simulated_disk::SimVfs;

    fn maps() -> [Map; 2] {
        let bounds = vec![Bytes::from_static(b"\0\xff"), Bytes::from(vec![9; 8 << 10])];
        let ranges = Partition::Range(bounds);
        [
            Map { set: SetId(0xab), shard: 1, count: 2, partition: Partition::Hash },
            Map { set: SetId(u64::MAX), shard: 2, count: 3, partition: ranges },
        ]
    }

    #[test]
    fn a_map_is_read_as_it_was_written_and_every_damaged_byte_is_noticed() {
        let disk = SimVfs::default();
        let (vfs, dir): (Arc<dyn Vfs>, _) = (Arc::new(disk.clone()), Path::new("/d"));
        vfs.create_dir_all(dir).unwrap();
        for map in maps() {
            map.write(&vfs, dir).unwrap();
            assert_eq!(Found::read(&vfs, dir).unwrap(), Found::Unused(Some(map)));
            let bytes = disk.read_file(dir.join(NAME)).unwrap();
            for at in (0..bytes.len() - 1).step_by(1 + bytes.len() / 200) {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1;
                disk.write_file(dir.join(NAME), &damaged);
                assert!(Found::read(&vfs, dir).is_err(), "byte {at}");
                disk.write_file(dir.join(NAME), &bytes[..at]);
                assert!(Found::read(&vfs, dir).is_err(), "cut at {at}");
            }
        }
    }

    #[test]
    fn a_later_hash_and_a_later_format_are_refused() {
        let disk = SimVfs::default();
        let (vfs, dir): (Arc<dyn Vfs>, _) = (Arc::new(disk.clone()), Path::new("/d"));
        vfs.create_dir_all(dir).unwrap();
        let text = maps()[0].text();
        for (now, later) in [("hash 1", "hash 2"), ("format 2", "format 3")] {
            checked_text::write(&vfs, dir, NAME, &text.replace(now, later), true).unwrap();
            let refused = Found::read(&vfs, dir).unwrap_err();
            assert!(matches!(refused, Error::NewerFormat { found: 2 | 3, .. }), "{refused}");
        }
    }

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
