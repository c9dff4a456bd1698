//! Payloads that must be readable although sidecars stand for their segments: of entries that are
//! not applied yet, and of entries that hold the store's own keys. Any other damage there affects a
//! value. It is noted when the value is read, and another replica supplies the value by its key.

use super::read_payload;
use crate::dir::{Dir, Name};
use crate::format::ops::{self, OpKind};
use crate::format::{EntryItem, Item};
use crate::region::{Region, Regions};
use crate::segment::scan::End;
use crate::{LogOptions, RecoverFrom, ReplayOp};
use std::collections::{BTreeMap, BTreeSet};
use stele_types::{Error, FileId, KeyRange, Locator, LogIndex, Lsn, RegionId, Result, ValueRef};

#[derive(Debug)]
pub(super) struct Needed {
    /// See [`RecoverFrom`].
    checkpointed: Option<BTreeMap<RegionId, LogIndex>>,
    own_keys: Option<KeyRange>,
    inline_max: usize,
    pub by_sidecar: BTreeMap<FileId, End>,
    /// Changes of the store's own keys that no run holds, in log order.
    changes: Vec<Change>,
}

#[derive(Debug)]
struct Change {
    region: RegionId,
    index: LogIndex,
    at: Lsn,
    what: ChangeKind,
}

#[derive(Debug)]
enum ChangeKind {
    /// With the value's locator, unless the value is kept beside the key.
    Put(Box<[u8]>, Option<Locator>),
    Delete(Box<[u8]>),
    DeleteRange(KeyRange),
}

impl Needed {
    pub(super) fn new(options: &LogOptions, from: &RecoverFrom) -> Self {
        Self {
            checkpointed: from.checkpointed.clone(),
            own_keys: from.own_keys.clone(),
            inline_max: options.inline_value_bytes_max,
            by_sidecar: BTreeMap::new(),
            changes: Vec::new(),
        }
    }

    pub(super) fn take(&mut self, item: &Item<'_>) {
        let Item::Entry(entry) = item else { return };
        let upto =
            self.checkpointed.as_ref().map(|checkpointed| checkpointed.get(&entry.region).copied());
        let is_checkpointed = upto.is_none_or(|upto| upto.is_some_and(|upto| entry.index <= upto));
        if is_checkpointed || !entry.is_command {
            return;
        }
        let (Some(keys), changes) = (&self.own_keys, &mut self.changes) else { return };
        // Malformed bytes fail when they are replayed.
        ops::each(entry.content, self.inline_max, |op| {
            let what = match op.what {
                OpKind::Put { key, .. } if keys.contains(key) => {
                    let at = match op.versioned(entry.at) {
                        Some((_, ReplayOp::Put { value: ValueRef::At(at), .. })) => Some(at),
                        _ => None,
                    };
                    ChangeKind::Put(key.into(), at)
                }
                OpKind::Delete(key) if keys.contains(key) => ChangeKind::Delete(key.into()),
                OpKind::DeleteRange(start, end) => {
                    let range = KeyRange::new(start.to_vec(), end.to_vec());
                    match range.overlaps(keys) {
                        true => ChangeKind::DeleteRange(range),
                        false => return,
                    }
                }
                _ => return,
            };
            let EntryItem { region, index, at, .. } = *entry;
            changes.push(Change { region, index, at, what });
        });
    }

    pub(super) fn check(&self, dir: &Dir, regions: &Regions) -> Result<()> {
        match self.unreadable(dir, regions)?.first() {
            None => Ok(()),
            Some(at) => Err(Error::corrupt(
                dir.path_of(Name::Segment(at.file)),
                u64::from(at.offset),
                "the payload of an entry that is not applied yet, or holds this store's own keys, \
                 is damaged; other replicas of a cluster can restore it",
            )),
        }
    }

    pub(super) fn unreadable(&self, dir: &Dir, regions: &Regions) -> Result<BTreeSet<Lsn>> {
        let mut unreadable = BTreeSet::new();
        let Some(checkpointed) = &self.checkpointed else { return Ok(unreadable) };
        let mut read = |payload: Lsn, at: &Locator| {
            let is_here = self.by_sidecar.contains_key(&at.file);
            match if is_here { read_payload(dir, Name::Segment(at.file), at).err() } else { None } {
                None => Ok(()),
                Some(error) if error.is_damage() => {
                    unreadable.insert(payload);
                    Ok(())
                }
                Some(error) => Err(error),
            }
        };
        // bug log.unapplied_unread: skip
        for (id, region) in regions.iter().filter(|(_, region)| !region.destroyed) {
            let checkpointed = checkpointed.get(&id).copied().unwrap_or_default();
            let mut index = applied(region).max(checkpointed).next();
            while let Some(place) = region.place(index) {
                let Lsn { file, offset } = place.at;
                let at = Locator { file, offset, length: place.bytes(), crc: place.crc };
                read(place.at, &at)?;
                index = index.next();
            }
        }
        // bug log.own_facts_unread: skip
        for (payload, at) in self.own_values(regions) {
            read(payload, &at)?;
        }
        Ok(unreadable)
    }

    /// Returns the newest values of the store's own keys that are applied at once and that no run
    /// holds: the position of each entry's payload, and the value's locator in it.
    fn own_values(&self, regions: &Regions) -> Vec<(Lsn, Locator)> {
        let mut newest: BTreeMap<&[u8], (Lsn, Locator)> = BTreeMap::new();
        let is_applied = |change: &&Change| {
            let region = regions.get(change.region).filter(|it| change.index <= applied(it));
            let place = region.and_then(|region| region.place(change.index));
            place.is_some_and(|place| place.at == change.at)
        };
        for change in self.changes.iter().filter(is_applied) {
            match &change.what {
                ChangeKind::Put(key, Some(at)) => {
                    newest.insert(key, (change.at, *at));
                }
                ChangeKind::Put(key, None) | ChangeKind::Delete(key) => {
                    newest.remove(&**key);
                }
                ChangeKind::DeleteRange(range) => newest.retain(|key, _| !range.contains(key)),
            }
        }
        newest.into_values().collect()
    }
}

fn applied(region: &Region) -> LogIndex {
    region.hard_state.commit.max(region.truncated.0)
}
