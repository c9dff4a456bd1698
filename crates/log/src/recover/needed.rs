//! Payloads that a replica has to read although sidecars stand for their segments: of entries that are
//! not applied yet, and of those that hold what the store knows of itself. Whatever else is damaged
//! there is a value, which is noted when it is read and asked for by its key.

use super::read_payload;
use crate::dir::{Dir, Name};
use crate::format::ops::{self, What};
use crate::format::{EntryItem, Item};
use crate::region::{Region, Regions};
use crate::segment::scan::End;
use crate::{LogOptions, RecoverFrom, ReplayOp};
use std::collections::{BTreeMap, BTreeSet};
use stele_types::{
    Error, FileId, KeyRange, Locator, LogIndex, Lsn, RegionId, Result, ValueRef, mutant,
};

/// Collected while segments are taken.
#[derive(Debug)]
pub(super) struct Needed {
    /// As [`RecoverFrom`] says.
    checkpointed: Option<BTreeMap<RegionId, LogIndex>>,
    own_keys: Option<KeyRange>,
    inline_max: usize,
    /// Segments taken by sidecars, and where they end.
    pub by_sidecar: BTreeMap<FileId, End>,
    /// Changes of the store's own keys that no run holds, in the order of the log.
    changes: Vec<Change>,
}

#[derive(Debug)]
struct Change {
    region: RegionId,
    index: LogIndex,
    /// Of the entry's payload.
    at: Lsn,
    what: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Where the value lies, unless it is kept beside the key.
    Put(Box<[u8]>, Option<Locator>),
    Delete(Box<[u8]>),
    DeleteRange(KeyRange),
}

impl Needed {
    pub fn new(options: &LogOptions, from: &RecoverFrom) -> Self {
        Self {
            checkpointed: from.checkpointed.clone(),
            own_keys: from.own_keys.clone(),
            inline_max: options.inline_value_bytes_max,
            by_sidecar: BTreeMap::new(),
            changes: Vec::new(),
        }
    }

    /// Remembers what an item changes of the store's own keys.
    pub fn take(&mut self, item: &Item<'_>) {
        let Item::Entry(entry) = item else { return };
        let upto =
            self.checkpointed.as_ref().map(|checkpointed| checkpointed.get(&entry.region).copied());
        let is_settled = upto.is_none_or(|upto| upto.is_some_and(|upto| entry.index <= upto));
        if is_settled || !entry.is_command {
            return;
        }
        let (Some(keys), changes) = (&self.own_keys, &mut self.changes) else { return };
        // Bytes that make no sense fail where they are replayed.
        ops::each(entry.content, self.inline_max, |op| {
            let what = match op.what {
                What::Put { key, .. } if keys.contains(key) => {
                    let at = match op.versioned(entry.at) {
                        Some((_, ReplayOp::Put { value: ValueRef::At(at), .. })) => Some(at),
                        _ => None,
                    };
                    Kind::Put(key.into(), at)
                }
                What::Delete(key) if keys.contains(key) => Kind::Delete(key.into()),
                What::DeleteRange(start, end) => {
                    let range = KeyRange::new(start.to_vec(), end.to_vec());
                    match range.overlaps(keys) {
                        true => Kind::DeleteRange(range),
                        false => return,
                    }
                }
                _ => return,
            };
            let EntryItem { region, index, at, .. } = *entry;
            changes.push(Change { region, index, at, what });
        });
    }

    /// Fails when a payload is damaged that is needed before others can be asked for its values.
    pub fn check(&self, dir: &Dir, regions: &Regions) -> Result<()> {
        match self.unreadable(dir, regions)?.first() {
            None => Ok(()),
            Some(at) => Err(Error::corrupt(
                dir.path_of(Name::Segment(at.file)),
                u64::from(at.offset),
                "the payload of an entry that is not applied yet, or tells of this store's regions, \
                 is damaged; a node of a cluster gets it from other replicas",
            )),
        }
    }

    /// Places of payloads that are needed and damaged, in segments taken by sidecars.
    pub fn unreadable(&self, dir: &Dir, regions: &Regions) -> Result<BTreeSet<Lsn>> {
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
        if !mutant::active("log.unapplied_unread") {
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
        }
        if !mutant::active("log.own_facts_unread") {
            for (payload, at) in self.own_values(regions) {
                read(payload, &at)?;
            }
        }
        Ok(unreadable)
    }

    /// The newest values of the store's own keys, as far as they are applied at once and no run holds
    /// them: the entries' payloads, and where the values lie in them.
    fn own_values(&self, regions: &Regions) -> Vec<(Lsn, Locator)> {
        let mut newest: BTreeMap<&[u8], (Lsn, Locator)> = BTreeMap::new();
        let is_applied = |change: &&Change| {
            let region = regions.get(change.region).filter(|it| change.index <= applied(it));
            let place = region.and_then(|region| region.place(change.index));
            place.is_some_and(|place| place.at == change.at)
        };
        for change in self.changes.iter().filter(is_applied) {
            match &change.what {
                Kind::Put(key, Some(at)) => {
                    newest.insert(key, (change.at, *at));
                }
                Kind::Put(key, None) | Kind::Delete(key) => {
                    newest.remove(&**key);
                }
                Kind::DeleteRange(range) => newest.retain(|key, _| !range.contains(key)),
            }
        }
        newest.into_values().collect()
    }
}

/// Up to which entry a region is replayed.
fn applied(region: &Region) -> LogIndex {
    region.hard_state.commit.max(region.truncated.0)
}
