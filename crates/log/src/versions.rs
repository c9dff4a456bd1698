//! Walks over the files: surviving entries for replay of the state that a crash removed from memory, every
//! version for a rebuild of the index.

use crate::FileKind;
use crate::dir::Name;
use crate::format::{Content, EntryItem, Item, ops};
use crate::retained_tombstones::{self, RetainedTombstone};
use crate::segment::{damaged_payloads, scan};
use crate::shared::Shared;
use crate::sorted::SortedReader;
use std::collections::{BTreeMap, BTreeSet};
use stele_types::{Error, FileId, LogIndex, Lsn, RegionId, Result, Term, ValueRef};

/// One operation held by a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionedOp<'a> {
    /// The highest version of a key is current; a delete hides all versions below its own.
    pub version: Lsn,
    /// The operation.
    pub op: ReplayOp<'a>,
}

impl Shared {
    /// Passes the entries above `applied` of each region to `f`, in index order, each from its
    /// current position.
    pub(crate) fn replay(
        &self,
        applied: &dyn Fn(RegionId) -> LogIndex,
        f: &mut dyn FnMut(ReplayEntry<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut after = BTreeMap::new();
        let mut from: Option<FileId> = None;
        for (id, region) in self.state.read().regions.iter() {
            let above = applied(id).max(region.truncated.0);
            if let Some(place) = region.place(above.next()) {
                from = Some(from.map_or(place.at.file, |from| from.min(place.at.file)));
                after.insert(id, above);
            }
        }
        let Some(from) = from else { return Ok(()) };
        let segments = self.catalog.read().segments();
        for segment in segments.into_iter().filter(|segment| *segment >= from) {
            let end = self.end_of(segment);
            scan::of_segment(&self.dir, segment, end, &mut damaged_payloads::any, &mut |item| {
                let Item::Entry(entry) = item else { return Ok(()) };
                let wanted = after.get(&entry.region).is_some_and(|above| entry.index > *above);
                if wanted && self.is_current(entry) { self.replay_entry(entry, f) } else { Ok(()) }
            })?;
        }
        Ok(())
    }

    /// Whether this is the current copy of an entry: replaced and moved entries remain in the
    /// files.
    fn is_current(&self, entry: &EntryItem<'_>) -> bool {
        let state = self.state.read();
        let place = state.regions.get(entry.region).and_then(|region| region.place(entry.index));
        // bug log.replay_replaced: `place.is_some_and(|place| place.at == entry.at)` is `true`
        place.is_some_and(|place| place.at == entry.at)
    }

    fn replay_entry(
        &self,
        entry: &EntryItem<'_>,
        f: &mut dyn FnMut(ReplayEntry<'_>) -> Result<()>,
    ) -> Result<()> {
        if matches!(entry.content, Content::Lost) {
            let path = self.dir.path_of(Name::Segment(entry.at.file));
            let detail = "payload of an entry to be replayed is damaged";
            return Err(Error::corrupt(path, u64::from(entry.at.offset), detail));
        }
        let ops = self.ops_of(entry)?;
        let ops: Vec<ReplayOp<'_>> = ops.into_iter().map(|(_, op)| op).collect();
        let (region, index, term) = (entry.region, entry.index, entry.term);
        f(ReplayEntry { region, index, term, at: entry.at, ops: &ops })
    }

    fn ops_of<'a>(&self, entry: &EntryItem<'a>) -> Result<Vec<ops::Versioned<'a>>> {
        if !entry.is_command {
            return Ok(Vec::new());
        }
        let inline_max = self.options.inline_value_bytes_max;
        ops::versioned(entry.content, entry.at, inline_max).ok_or_else(|| {
            let path = self.dir.path_of(Name::Segment(entry.at.file));
            Error::corrupt(path, u64::from(entry.at.offset), "command with malformed operations")
        })
    }

    /// Passes every operation of every file to `f`, file by file, except those of replaced entries
    /// and of regions that have started again since.
    pub(crate) fn scan_versions(
        &self,
        f: &mut dyn FnMut(VersionedOp<'_>) -> Result<()>,
    ) -> Result<()> {
        let obsolete = Obsolete::collect(self)?;
        let segments = self.catalog.read().segments();
        for segment in segments {
            let end = self.end_of(segment);
            scan::of_segment(&self.dir, segment, end, &mut damaged_payloads::none, &mut |item| {
                let Item::Entry(entry) = item else { return Ok(()) };
                if obsolete.contains(entry.region, entry.at) {
                    return Ok(());
                }
                let ops = self.ops_of(entry)?;
                ops.into_iter().try_for_each(|(version, op)| f(VersionedOp { version, op }))
            })?;
        }
        let sorted_files = self.catalog.read().of_kind(FileKind::Sorted);
        for id in sorted_files {
            let mut reader = SortedReader::open(&self.dir, id)?;
            while let Some(record) = reader.next_record()? {
                let (version, expires_at_s) = (record.fields.version, record.fields.expires_at_s);
                let value = ValueRef::At(record.locator);
                let op = ReplayOp::Put { key: record.key, value, expires_at_s };
                f(VersionedOp { version, op })?;
            }
        }
        let tombstone_files = self.catalog.read().of_kind(FileKind::Tombstones);
        for id in tombstone_files {
            retained_tombstones::each(&self.dir, id, &mut |tombstone| match tombstone {
                RetainedTombstone::Op { region, payload, version, op }
                    if !obsolete.contains(region, payload) =>
                {
                    f(VersionedOp { version, op })
                }
                _ => Ok(()),
            })?;
        }
        Ok(())
    }
}

/// Entries that remain in the files and are never current again.
struct Obsolete {
    withdrawn: BTreeSet<Lsn>,
    resets: BTreeMap<RegionId, Lsn>,
}

impl Obsolete {
    fn collect(shared: &Shared) -> Result<Self> {
        let mut withdrawn = BTreeSet::new();
        let segments = shared.catalog.read().segments();
        for segment in segments {
            let end = shared.end_of(segment);
            scan::of_segment(
                &shared.dir,
                segment,
                end,
                &mut damaged_payloads::none,
                &mut |item| {
                    if let Item::Withdrawn(at) = item {
                        withdrawn.insert(*at);
                    }
                    Ok(())
                },
            )?;
        }
        let tombstone_files = shared.catalog.read().of_kind(FileKind::Tombstones);
        for id in tombstone_files {
            retained_tombstones::each(&shared.dir, id, &mut |tombstone| {
                if let RetainedTombstone::Withdrawn(at) = tombstone {
                    withdrawn.insert(at);
                }
                Ok(())
            })?;
        }
        let state = shared.state.read();
        let resets = state.regions.iter().map(|(id, region)| (id, region.reset())).collect();
        Ok(Self { withdrawn, resets })
    }

    fn contains(&self, region: RegionId, at: Lsn) -> bool {
        let reset = self.resets.get(&region).is_some_and(|reset| at < *reset);
        reset || self.withdrawn.contains(&at)
    }
}

/// One entry to apply again.
#[derive(Clone, Copy, Debug)]
pub struct ReplayEntry<'a> {
    /// The entry's region.
    pub region: RegionId,
    /// The entry's index.
    pub index: LogIndex,
    /// The entry's term.
    pub term: Term,
    /// Position of the payload.
    pub at: Lsn,
    /// The entry's operations; empty if it is not a command.
    pub ops: &'a [ReplayOp<'a>],
}

/// One operation of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayOp<'a> {
    /// Sets a key.
    Put {
        /// The key.
        key: &'a [u8],
        /// The value if it is short, otherwise its locator.
        value: ValueRef,
        /// Expiry in Unix seconds; 0 disables it.
        expires_at_s: u64,
    },
    /// Removes a key.
    Delete {
        /// The key.
        key: &'a [u8],
    },
    /// Removes the keys in [start, end); an empty end means no upper bound.
    DeleteRange {
        /// First key removed.
        start: &'a [u8],
        /// First key kept.
        end: &'a [u8],
    },
}
