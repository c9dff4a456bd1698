//! The file `SHARDS` of each directory of a set: which set it belongs to, and as which shard.
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

use super::partition::Partition;
use crate::checked_text::{self, CheckedText, from_hex, to_hex};
use crate::identity;
use bytes::Bytes;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use stele_types::size::FORMAT_VERSION;
use stele_types::{Error, Result};
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

/// Content of `SHARDS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Map {
    pub set: SetId,
    /// Number of the shard in this directory, from 0.
    pub shard: usize,
    /// Number of shards of the set.
    pub count: usize,
    pub partition: Partition,
}

/// State of a directory that is to be a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Without a store; the map is that of a set of which the creation was interrupted.
    Unused(Option<Map>),
    /// A shard with a store.
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

#[cfg(test)]
mod tests {
    use super::*;
    use stele_vfs::SimVfs;

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
}
