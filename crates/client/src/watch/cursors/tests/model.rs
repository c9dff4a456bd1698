//! Model of a cluster: the logs of its regions, and the writes of each key in their order.

use super::super::{Cut, CutPart, LoggedWrite};
use bytes::Bytes;
use std::collections::BTreeMap;
use stele_proto::stele::kv::v1::followed_write::Kind;
use stele_proto::stele::kv::v1::region_change::Kind as ChangeKind;
use stele_proto::stele::kv::v1::{
    FollowResponse, FollowedEntry, FollowedPut, FollowedWrite, Merged, PreparedMerge, RegionChange,
    RolledBack, Split,
};
use stele_types::{ColumnFamily, KeyRange, Peer, PeerId, Prng, Region, RegionId, StoreId};

/// First and last key. Each is one letter.
pub(super) const KEYS: std::ops::RangeInclusive<u8> = b'a'..=b'l';
const FIRST_INDEX: u64 = 6;

/// One write of a key, as its watch shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Done {
    Put(Bytes),
    Delete,
    InRange,
}

#[derive(Debug)]
struct Logged {
    entry: FollowedEntry,
    after: Region,
    time: u64,
}

#[derive(Debug)]
struct Log {
    /// Region and time at which the log begins.
    born: (Region, u64),
    entries: Vec<Logged>,
    /// First entry that stores still have.
    first: u64,
    region: Region,
    prepared: Option<Preparation>,
    is_live: bool,
}

#[derive(Clone, Copy, Debug)]
struct Preparation {
    target: u64,
    target_version: u64,
    index: u64,
}

#[derive(Debug)]
pub(super) struct Model {
    pub rng: Prng,
    logs: BTreeMap<u64, Log>,
    /// Writes of the default family by key, and those of the lock family by key in capitals, each with the time of
    /// its entry.
    pub histories: BTreeMap<u8, Vec<(Done, u64)>>,
    time: u64,
    /// Whether the entry that prepares a merge is a new version of its region.
    is_prepared_a_version: bool,
    pub is_truncated: bool,
}

pub(super) fn key(letter: u8) -> Bytes {
    Bytes::from(vec![letter])
}

/// Returns the letter under which the history of a key in the lock family is.
pub(super) fn locked(letter: u8) -> u8 {
    letter.to_ascii_uppercase()
}

pub(super) fn letters(range: &KeyRange) -> Vec<u8> {
    KEYS.filter(|letter| range.contains(&[*letter])).collect()
}

impl Model {
    pub(super) fn new(seed: u64) -> Self {
        let mut model = Self {
            rng: Prng::new(seed),
            logs: BTreeMap::new(),
            histories: KEYS.flat_map(|it| [it, locked(it)]).map(|it| (it, Vec::new())).collect(),
            time: 0,
            is_prepared_a_version: seed.is_multiple_of(2),
            is_truncated: false,
        };
        let peer = |n| Peer { id: PeerId(n), store: StoreId(n), ..Peer::default() };
        let peers = vec![peer(1), peer(2), peer(3)];
        let mut region = Region { id: RegionId(1), peers, ..Region::default() };
        region.epoch.version = 1;
        model.begin_log(region);
        model
    }

    fn begin_log(&mut self, region: Region) {
        let log = Log {
            born: (region.clone(), self.time),
            entries: Vec::new(),
            first: FIRST_INDEX,
            region: region.clone(),
            prepared: None,
            is_live: true,
        };
        self.logs.insert(region.id.0, log);
    }

    /// Changes the cluster in some way.
    pub(super) fn step(&mut self) {
        self.time += 1;
        match self.rng.below(20) {
            0..=9 => self.write(),
            10..=11 => self.split(),
            12..=13 => self.prepare(),
            14..=16 => self.end_merge(),
            _ => {
                let id = self.any(|_| true);
                let after = self.logs[&id].region.clone();
                self.log(id, Vec::new(), None, after);
            }
        }
    }

    /// Forgets the beginning of a log.
    pub(super) fn truncate(&mut self) {
        let ids: Vec<u64> = self.logs.keys().copied().collect();
        let id = ids[self.rng.below(ids.len() as u64) as usize];
        let last = self.logs[&id].last();
        let first = FIRST_INDEX + self.rng.below(last + 2 - FIRST_INDEX);
        let log = self.logs.get_mut(&id).unwrap();
        if first > log.first {
            log.first = first;
            self.is_truncated = true;
        }
    }

    fn any(&mut self, is_fit: impl Fn(&Log) -> bool) -> u64 {
        let live = self.logs.iter().filter(|(_, log)| log.is_live && is_fit(log));
        let ids: Vec<u64> = live.map(|(id, _)| *id).collect();
        match ids.is_empty() {
            true => *self.logs.iter().find(|(_, log)| log.is_live).unwrap().0,
            false => ids[self.rng.below(ids.len() as u64) as usize],
        }
    }

    fn log(
        &mut self,
        id: u64,
        writes: Vec<FollowedWrite>,
        change: Option<ChangeKind>,
        after: Region,
    ) {
        let log = self.logs.get_mut(&id).unwrap();
        let index = log.last() + 1;
        let change =
            change.map(|kind| RegionChange { region: Some((&after).into()), kind: Some(kind) });
        let entry = FollowedEntry { index, term: 6, writes, change };
        log.region = after.clone();
        log.entries.push(Logged { entry, after, time: self.time });
    }

    fn write(&mut self) {
        let id = self.any(|log| log.prepared.is_none());
        let region = self.logs[&id].region.clone();
        let keys = letters(&region.range);
        if self.logs[&id].prepared.is_some() || keys.is_empty() {
            return;
        }
        let mut writes = Vec::new();
        for _ in 0..1 + self.rng.below(3) {
            let letter = keys[self.rng.below(keys.len() as u64) as usize];
            writes.push(self.one_write(letter, &region.range));
        }
        self.log(id, writes, None, region);
    }

    fn one_write(&mut self, letter: u8, range: &KeyRange) -> FollowedWrite {
        let value = Bytes::from(self.rng.draw().to_string());
        let (time, draw) = (self.time, self.rng.below(8));
        let mut done = |letter: u8, done: Done| {
            self.histories.get_mut(&letter).unwrap().push((done, time));
        };
        let (cf, kind) = match draw {
            0 => {
                done(locked(letter), Done::Put(value.clone()));
                ("lock", Kind::Put(FollowedPut { value, expires_at_s: 0 }))
            }
            1 => {
                done(letter, Done::Delete);
                ("default", Kind::Delete(true))
            }
            2 => {
                let all = KeyRange { start: key(letter), end: range.end.clone() };
                letters(&all).into_iter().for_each(|letter| done(letter, Done::InRange));
                ("", Kind::DeleteRangeTo(range.end.clone()))
            }
            _ => {
                done(letter, Done::Put(value.clone()));
                ("", Kind::Put(FollowedPut { value, expires_at_s: 7 }))
            }
        };
        FollowedWrite { cf: cf.to_owned(), key: key(letter), kind: Some(kind), old: None }
    }

    fn split(&mut self) {
        let id = self.any(|log| log.prepared.is_none() && letters(&log.region.range).len() > 1);
        let mut own = self.logs[&id].region.clone();
        let mut at: Vec<u8> = letters(&own.range).into_iter().skip(1).collect();
        if self.logs[&id].prepared.is_some() || at.is_empty() {
            return;
        }
        while at.len() > 1 + self.rng.below(2) as usize {
            at.remove(self.rng.below(at.len() as u64) as usize);
        }
        let starts = [own.range.start.clone()].into_iter().chain(at.iter().map(|at| key(*at)));
        let starts: Vec<Bytes> = starts.collect();
        let ends = starts.iter().skip(1).cloned().chain([own.range.end.clone()]);
        let mut parts: Vec<KeyRange> =
            starts.iter().cloned().zip(ends).map(|(start, end)| KeyRange { start, end }).collect();
        own.range = parts.remove(self.rng.below(parts.len() as u64) as usize);
        own.epoch.version += parts.len() as u64;
        let mut children = Vec::new();
        for range in parts {
            let number = 1 + *self.logs.keys().last().unwrap();
            let child = Region { id: RegionId(number), range, ..own.clone() };
            children.push((&child).into());
            self.begin_log(child);
        }
        self.log(id, Vec::new(), Some(ChangeKind::Split(Split { children })), own);
    }

    fn prepare(&mut self) {
        let id = self.any(|log| log.prepared.is_none());
        let mut region = self.logs[&id].region.clone();
        let is_next = |log: &&Log| {
            let (one, other) = (&log.region.range, &region.range);
            log.is_live
                && log.prepared.is_none()
                && ((!one.end.is_empty() && one.end == other.start)
                    || (!other.end.is_empty() && other.end == one.start))
        };
        let targets: Vec<Region> =
            self.logs.values().filter(is_next).map(|log| log.region.clone()).collect();
        if self.logs[&id].prepared.is_some() || targets.is_empty() {
            return;
        }
        let target = &targets[self.rng.below(targets.len() as u64) as usize];
        region.epoch.version += u64::from(self.is_prepared_a_version);
        let (number, version) = (target.id.0, target.epoch.version);
        let prepared = ChangeKind::Prepared(PreparedMerge { target: number });
        self.log(id, Vec::new(), Some(prepared), region);
        let log = self.logs.get_mut(&id).unwrap();
        let index = log.last();
        log.prepared = Some(Preparation { target: number, target_version: version, index });
    }

    /// Commits or rolls back a prepared merge, if there is one.
    fn end_merge(&mut self) {
        let id = self.any(|log| log.prepared.is_some());
        let Some(Preparation { target, target_version, index }) = self.logs[&id].prepared else {
            return;
        };
        let into = &self.logs[&target];
        let is_possible =
            into.is_live && into.prepared.is_none() && into.region.epoch.version == target_version;
        if !is_possible || self.rng.below(4) == 0 {
            let region = self.logs[&id].region.clone();
            self.logs.get_mut(&id).unwrap().prepared = None;
            return self.log(id, Vec::new(), Some(ChangeKind::RolledBack(RolledBack {})), region);
        }
        let (mut after, from) = (into.region.clone(), self.logs[&id].region.clone());
        after.epoch.version = after.epoch.version.max(from.epoch.version) + 1;
        match after.range.end == from.range.start && !after.range.end.is_empty() {
            true => after.range.end = from.range.end,
            false => after.range.start = from.range.start,
        }
        let merged = ChangeKind::Merged(Merged { source: id, prepared_index: index });
        self.log(target, Vec::new(), Some(merged), after);
        self.logs.get_mut(&id).unwrap().is_live = false;
    }

    /// Returns the live regions with keys of a range.
    pub(super) fn regions(&self, range: &KeyRange) -> Vec<u64> {
        let live = self.logs.iter().filter(|(_, log)| log.is_live);
        live.filter(|(_, log)| log.region.range.overlaps(range)).map(|(id, _)| *id).collect()
    }

    /// Returns the present state of all regions.
    pub(super) fn cut(&self) -> Cut {
        let live = self.logs.iter().filter(|(_, log)| log.is_live);
        let part = |(id, log): (&u64, &Log)| CutPart {
            range: log.region.range.clone(),
            region: RegionId(*id),
            term: 6,
            index: log.last(),
        };
        Cut::new(live.map(part).collect()).unwrap()
    }

    /// Returns whether the entry of a log has a write of a key in a family.
    pub(super) fn has_write(&self, write: &LoggedWrite, letter: u8) -> bool {
        let entries = self.logs[&write.region.0].entries.iter().map(|logged| &logged.entry);
        let mut writes =
            entries.filter(|entry| entry.index == write.index).flat_map(|entry| &entry.writes);
        writes.any(|it| {
            let is_of_key = match &it.kind {
                Some(Kind::DeleteRangeTo(end)) => {
                    KeyRange { start: it.key.clone(), end: end.clone() }.contains(&[letter])
                }
                _ => it.key == key(letter),
            };
            is_of_key && ColumnFamily::from_name(&it.cf) == Some(write.family)
        })
    }

    /// Returns the region that has a key, and the last index of its log.
    pub(super) fn owner(&self, key: &[u8]) -> (Region, u64) {
        let has = |log: &&Log| log.is_live && log.region.range.contains(key);
        let log = self.logs.values().find(has).unwrap();
        (log.region.clone(), log.last())
    }

    /// Returns a region and the next entry of its log, as a replica has them that lags by so many entries;
    /// also the time of the entry before.
    pub(super) fn first(&self, id: u64, lag: u64) -> (Region, u64, u64) {
        let log = &self.logs[&id];
        let entries = log.entries.len().saturating_sub(lag as usize);
        let mut next_index = FIRST_INDEX + entries as u64;
        for entry in log.entries.iter().take(entries).map(|logged| &logged.entry) {
            match entry.change.as_ref().and_then(|change| change.kind.as_ref()) {
                // The preparation is sent again, so that a watch that begins after it knows the target.
                Some(ChangeKind::Prepared(_)) => next_index = entry.index,
                Some(ChangeKind::RolledBack(_)) => next_index = FIRST_INDEX + entries as u64,
                _ => {}
            }
        }
        match entries.checked_sub(1).and_then(|at| log.entries.get(at)) {
            Some(last) => (last.after.clone(), next_index, last.time),
            None => (log.born.0.clone(), next_index, log.born.1),
        }
    }

    /// Answers a stream: with at most so many entries, or `Err` if the next one is gone. Returns `Ok(None)` if
    /// there is nothing to send.
    pub(super) fn serve(
        &self,
        id: u64,
        next_index: u64,
        keys: &KeyRange,
        most: u64,
    ) -> Result<Option<FollowResponse>, ()> {
        let log = &self.logs[&id];
        if next_index < log.first {
            return Err(());
        }
        let end = (next_index + most).min(log.last() + 1);
        if end <= next_index {
            // What follows the log of a region that is gone is not there.
            return if log.is_live { Ok(None) } else { Err(()) };
        }
        let entries = log.entries.iter().map(|logged| &logged.entry);
        let sent = entries.filter(|entry| (next_index..end).contains(&entry.index));
        let cut = sent.filter_map(|entry| cut(entry, keys)).collect();
        Ok(Some(FollowResponse { entries: cut, next_index: end, ..FollowResponse::default() }))
    }
}

impl Log {
    fn last(&self) -> u64 {
        FIRST_INDEX + self.entries.len() as u64 - 1
    }
}

/// Returns what a store sends of an entry.
fn cut(entry: &FollowedEntry, keys: &KeyRange) -> Option<FollowedEntry> {
    let write = |write: &FollowedWrite| match &write.kind {
        Some(Kind::DeleteRangeTo(end)) => {
            let range = KeyRange { start: write.key.clone(), end: end.clone() }.common(keys)?;
            let kind = Some(Kind::DeleteRangeTo(range.end));
            Some(FollowedWrite { key: range.start, kind, ..write.clone() })
        }
        _ => keys.contains(&write.key).then(|| write.clone()),
    };
    let writes: Vec<FollowedWrite> = entry.writes.iter().filter_map(write).collect();
    (!writes.is_empty() || entry.change.is_some())
        .then(|| FollowedEntry { writes, ..entry.clone() })
}
