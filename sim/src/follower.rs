//! A reader that keeps a copy of all user data by following the regions' logs, as clients of `Follow` do: from
//! stores that change, over splits, merges, transfers and kills. What it needs of the logs is stated to the
//! placement group as nodes state it. Some seeds have one.
//!
//! At the end its copy must equal the data, and it must have got no entry that was not committed.

use crate::plan::{MS, SECOND, fork};
use crate::world::{Happening, World};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use stele_engine::{History, Store as Engine};
use stele_node::follow::{
    Followed, FollowedWrite, LogFollower, Step, StreamId, WriteKind, first_from_now,
};
use stele_replica::{FIRST_OF_CHILD, RegionChangeKind, RegionReport};
use stele_storage::Pair;
use stele_types::{KeyRange, LogIndex, Prng, Region, RegionId, RegionKind, Term, keyspace};

/// Longest pause between two reads of the follower.
const PAUSE_MILLIS_MAX: u64 = 300;
/// Steps of one region at a time.
const STEPS_MAX: usize = 8;
/// One in so many reads of a region changes the store.
const CHANGES: u64 = 6;
/// Time without any store that has the next entry after which the follower begins again.
const LOST_NANOS: u64 = 5 * SECOND;
/// Time after the faults in which the follower must have read everything.
const END_NANOS: u64 = 60 * SECOND;

/// Value and expiry of pairs, by the engine's key.
type Pairs = BTreeMap<Bytes, (Bytes, u64)>;

/// Copy of all user data, and where it goes on in each region's log.
pub(crate) struct Follower {
    prng: Prng,
    cursors: BTreeMap<RegionId, Cursor>,
    /// Regions that were merged away, with the last entry that was read of each.
    merged: BTreeMap<RegionId, LogIndex>,
    pairs: Pairs,
    /// Term of each entry that was read.
    terms: BTreeMap<(RegionId, LogIndex), Term>,
}

struct Cursor {
    follower: LogFollower,
    stream: Option<Stream>,
    /// Entries from a merge on of which the source is not read to its end.
    waiting: VecDeque<Followed>,
    /// Time since when no store has the next entry.
    lost_since: Option<u64>,
}

/// Stream from a store.
struct Stream {
    slot: u64,
    incarnation: u64,
    node: u64,
    id: StreamId,
}

impl Cursor {
    fn new(region: RegionId, next: LogIndex) -> Self {
        let follower = LogFollower::new(region, KeyRange::all(), next);
        Self { follower, stream: None, waiting: VecDeque::new(), lost_since: None }
    }

    /// Returns the first entry of which the copy lacks the writes.
    fn next(&self) -> LogIndex {
        self.waiting.front().map_or(self.follower.next_index(), |followed| followed.index)
    }
}

impl Follower {
    /// Creates a follower that has not begun.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            prng: fork(seed, "follower"),
            cursors: BTreeMap::new(),
            merged: BTreeMap::new(),
            pairs: Pairs::new(),
            terms: BTreeMap::new(),
        }
    }

    /// Applies what was read of a region, up to a merge of which the source is not read to its end. Returns the regions
    /// that splits created.
    fn apply(&mut self, region: RegionId) -> Vec<RegionId> {
        let mut created = Vec::new();
        while let Some(front) = self.cursors.get(&region).and_then(|it| it.waiting.front()) {
            let kind = front.change.as_ref().map(|change| &change.kind);
            if let Some(RegionChangeKind::Merged { source, prepared }) = kind {
                let (source, prepared) = (*source, *prepared);
                if !self.has_read(source, prepared) {
                    break;
                }
                self.cursors.remove(&source);
                self.merged.insert(source, prepared);
            }
            let cursor = self.cursors.get_mut(&region);
            let Some(followed) = cursor.and_then(|it| it.waiting.pop_front()) else { break };
            followed.writes.iter().for_each(|write| self.write(write));
            if let Some(RegionChangeKind::Split { children }) = followed.change.map(|it| it.kind) {
                for child in children {
                    self.cursors.insert(child.id, Cursor::new(child.id, FIRST_OF_CHILD));
                    created.push(child.id);
                }
            }
        }
        created
    }

    fn has_read(&self, region: RegionId, last: LogIndex) -> bool {
        let merged = self.merged.get(&region).is_some_and(|read| *read >= last);
        merged || self.cursors.get(&region).is_some_and(|cursor| cursor.next() > last)
    }

    fn write(&mut self, write: &FollowedWrite) {
        let key = write.family.engine_key(&write.key);
        match &write.kind {
            WriteKind::Put { value, expires_at_s } => {
                self.pairs.insert(key, (value.clone(), *expires_at_s));
            }
            WriteKind::Delete => _ = self.pairs.remove(&key),
            WriteKind::DeleteRange(end) => {
                let range = KeyRange::new(write.key.clone(), end.clone());
                let range = write.family.engine_range(&range);
                self.pairs.retain(|key, _| !range.contains(key));
            }
        }
    }
}

impl World {
    /// Starts the follower of a plan that has one.
    pub fn start_follower(&mut self) {
        if self.plan.follows {
            self.follower = Some(Follower::new(self.plan.seed));
            self.after(0, Happening::Follow);
        }
    }

    pub(crate) fn follow(&mut self) {
        let Some(mut follower) = self.follower.take() else { return };
        let pause = 1 + follower.prng.below(PAUSE_MILLIS_MAX);
        self.after(pause * MS, Happening::Follow);
        match follower.cursors.is_empty() {
            true => self.begin_following(&mut follower),
            false => self.read_logs(&mut follower),
        }
        self.follower = Some(follower);
    }

    /// Takes a copy of all regions, each with its applied index, if the regions that the stores have make up
    /// all keys.
    fn begin_following(&mut self, follower: &mut Follower) {
        let mut chosen: Vec<(u64, RegionReport)> = Vec::new();
        for reports in self.reports_by_region().into_values() {
            let is_copied = |number: &u64| self.is_followed(*number);
            let of_data = reports.into_iter().filter(|(number, report)| {
                report.region.kind == RegionKind::Data && is_copied(number)
            });
            let mut of_data: Vec<_> = of_data.collect();
            if !of_data.is_empty() {
                let at = follower.prng.below(of_data.len() as u64) as usize;
                chosen.push(of_data.swap_remove(at));
            }
        }
        chosen.sort_by(|(_, a), (_, b)| a.region.range.start.cmp(&b.region.range.start));
        let ranges: Vec<KeyRange> = chosen.iter().map(|(_, it)| it.region.range.clone()).collect();
        if !make_up_all(&ranges) {
            return;
        }
        let mut pairs = Pairs::new();
        for (number, report) in &chosen {
            let Some(found) = self.user_pairs_of(*number, &report.region) else { return };
            pairs.extend(found);
        }
        let cursors = chosen.iter().map(|(_, report)| {
            let next = first_from_now(&report.region, report.applied);
            (report.region.id, Cursor::new(report.region.id, next))
        });
        self.counts.copies_followed += 1;
        *follower = Follower { pairs, cursors: cursors.collect(), ..follower.emptied() };
    }

    fn read_logs(&mut self, follower: &mut Follower) {
        for region in follower.cursors.keys().copied().collect::<Vec<_>>() {
            for _ in 0..STEPS_MAX {
                // A merge may have removed it.
                let Some(cursor) = follower.cursors.get_mut(&region) else { break };
                let reads_more = cursor.waiting.is_empty()
                    && self.read_log(cursor, &mut follower.prng, &mut follower.terms);
                for child in follower.apply(region) {
                    self.expect_child(follower, region, child);
                }
                if !reads_more {
                    break;
                }
            }
            let lost = follower.cursors.get(&region).and_then(|cursor| cursor.lost_since);
            if lost.is_some_and(|since| self.now >= since + LOST_NANOS) {
                let next = follower.cursors.get(&region).map(Cursor::next);
                self.trace.note(self.now, 0, 0, || {
                    format!("the follower begins again: no store has entry {next:?} of {region}")
                });
                self.unfollow_all(follower);
                follower.cursors.clear();
                return;
            }
        }
    }

    /// Reads the next entries of a region from a store. Returns whether there were some.
    fn read_log(
        &mut self,
        cursor: &mut Cursor,
        prng: &mut Prng,
        terms: &mut BTreeMap<(RegionId, LogIndex), Term>,
    ) -> bool {
        let region = cursor.follower.region();
        let Some((slot, engine)) = self.source_of(cursor, prng) else { return false };
        // Invariant: as in the product, only what is applied is read from Raft's log.
        let reader = self.slots.get(&slot).and_then(|slot| slot.readers()?.get(region));
        let applied = reader.map(|reader| reader.applied()).unwrap_or_default();
        let mut read = Vec::new();
        let mut history = engine.history(region, cursor.follower.next_index());
        let step = cursor.follower.step(|bytes_max| {
            Ok(match history.read(applied, bytes_max)? {
                History::Entries(entries) => {
                    read.extend(entries.iter().map(|entry| (entry.index, entry.term)));
                    Some(entries)
                }
                History::UpToDate => Some(Vec::new()),
                History::TooOld => None,
            })
        });
        match step {
            Ok(Step::Read(followed)) => {
                terms.extend(read.iter().map(|(index, term)| ((region, *index), *term)));
                self.counts.entries_followed += read.len() as u64;
                cursor.waiting.extend(followed);
                cursor.lost_since = None;
                self.advance(cursor);
                true
            }
            Ok(Step::UpToDate) => {
                cursor.lost_since = None;
                false
            }
            Ok(Step::TooOld) => {
                self.unfollow(cursor);
                cursor.lost_since.get_or_insert(self.now);
                false
            }
            Err(error) => {
                self.unfollow(cursor);
                self.check_read_error(slot, &error);
                false
            }
        }
    }

    /// Returns the store of a region's stream; it changes when the store stops, and sometimes before.
    fn source_of(&mut self, cursor: &mut Cursor, prng: &mut Prng) -> Option<(u64, Arc<Engine>)> {
        let region = cursor.follower.region();
        let is_current = cursor.stream.as_ref().is_some_and(|stream| {
            let slot = self.slots.get(&stream.slot);
            slot.is_some_and(|slot| slot.incarnation == stream.incarnation)
                && self.is_followed(stream.slot)
        });
        if !is_current || prng.below(CHANGES) == 0 {
            self.unfollow(cursor);
            let has_history = |number: &u64| {
                let engine = self.engine(*number);
                self.is_followed(*number) && engine.is_some_and(|it| it.has_history(region))
            };
            let stores: Vec<u64> = self.serving_homes().into_iter().filter(has_history).collect();
            let Some(last) = (stores.len() as u64).checked_sub(1) else {
                cursor.lost_since.get_or_insert(self.now);
                return None;
            };
            let number = *stores.get(prng.below(last + 1) as usize)?;
            let slot = self.slots.get(&number)?;
            let (node, incarnation) = (slot.node, slot.incarnation);
            let next = cursor.next();
            let id = self.nodes.get_mut(&node)?.member.followed.begin(region, next);
            cursor.stream = Some(Stream { slot: number, incarnation, node, id });
        }
        let slot = cursor.stream.as_ref()?.slot;
        Some((slot, self.engine(slot)?))
    }

    /// Returns whether the follower reads from a store: it runs, and reads of it do not fail.
    fn is_followed(&self, number: u64) -> bool {
        let Some(slot) = self.slots.get(&number) else { return false };
        let is_paused = self.nodes.get(&slot.node).is_none_or(|it| it.paused_until > self.now);
        let hangs = slot.hangs_until > self.now;
        let is_sound = !slot.may_fail_reads() && !slot.has_lied && !slot.is_mistrusted;
        let serves = slot.running.as_ref().is_some_and(|it| it.store_loop.is_some());
        serves && is_sound && !slot.is_copy && !is_paused && !hangs
    }

    fn advance(&mut self, cursor: &Cursor) {
        let Some(stream) = &cursor.stream else { return };
        if let Some(node) = self.nodes.get_mut(&stream.node) {
            node.member.followed.advance(cursor.follower.region(), stream.id, cursor.next());
        }
    }

    fn unfollow(&mut self, cursor: &mut Cursor) {
        let Some(stream) = cursor.stream.take() else { return };
        let now = self.now;
        if let Some(node) = self.nodes.get_mut(&stream.node) {
            let now_nanos = node.local(now);
            node.member.followed.end(cursor.follower.region(), stream.id, now_nanos);
        }
    }

    fn unfollow_all(&mut self, follower: &mut Follower) {
        follower.cursors.values_mut().for_each(|cursor| self.unfollow(cursor));
    }

    /// Keeps the log of a region that a split created, where the split was read.
    fn expect_child(&mut self, follower: &Follower, parent: RegionId, child: RegionId) {
        let cursor = follower.cursors.get(&parent);
        let Some(node) = cursor.and_then(|it| it.stream.as_ref()).map(|stream| stream.node) else {
            return;
        };
        let now = self.now;
        if let Some(node) = self.nodes.get_mut(&node) {
            let now_nanos = node.local(now);
            node.member.followed.keep(child, FIRST_OF_CHILD, now_nanos);
        }
    }

    /// Waits until the follower has read everything, and compares its copy with the data. Ends the follower.
    pub fn end_follower(&mut self) {
        if self.follower.is_none() || self.violation.is_some() {
            return;
        }
        let has_read_all =
            self.run_until(END_NANOS, |world| world.has_followed_all() && world.is_settled());
        let Some(mut follower) = self.follower.take() else { return };
        self.unfollow_all(&mut follower);
        self.nodes.values_mut().for_each(|node| node.member.followed = Default::default());
        let has_unsound = self.reports_by_region().values().flatten().any(|(number, report)| {
            report.region.kind == RegionKind::Data && !self.is_followed(*number)
        });
        if !has_read_all {
            let text = follower.describe();
            match has_unsound || self.counts.overspent > 0 {
                true => self.trace.note(self.now, 0, 0, || text),
                false => self.fail(format!("the follower does not come to the end:{text}")),
            }
            return;
        }
        self.check_followed(&follower);
    }

    fn has_followed_all(&mut self) -> bool {
        let reports = self.reports_by_region();
        let Some(follower) = &self.follower else { return true };
        let mut of_data = reports.iter().filter(|(_, reports)| {
            reports.first().is_some_and(|(_, report)| report.region.kind == RegionKind::Data)
        });
        let has_all = of_data.all(|(region, _)| follower.cursors.contains_key(region));
        // The stores that had what was read may not serve now.
        let is_read = |(region, cursor): (&RegionId, &Cursor)| {
            let Some(reports) = reports.get(region) else { return false };
            let last = reports.iter().map(|(_, report)| report.last).max().unwrap_or_default();
            let applied =
                reports.iter().map(|(_, report)| report.applied).max().unwrap_or_default();
            cursor.next() > last && cursor.next() <= applied.next()
        };
        has_all && !follower.cursors.is_empty() && follower.cursors.iter().all(is_read)
    }

    /// Returns the pairs of a region on a store that readers of logs get: all but records of sessions.
    fn user_pairs_of(&mut self, number: u64, region: &Region) -> Option<Pairs> {
        let is_of_users = |pair: &Pair| pair.key.first() != Some(&keyspace::RECORDS);
        let found = self.pairs_of(number, region)?.into_iter().filter(is_of_users);
        Some(found.map(|pair| (pair.key, (pair.value, pair.expires_at_s))).collect())
    }

    fn check_followed(&mut self, follower: &Follower) {
        for ((region, index), term) in &follower.terms {
            if let Some(committed) = self.checks.committed_term(*region, *index)
                && committed != *term
            {
                return self.fail(format!(
                    "the follower got entry {index} of region {region} in term {term}; the committed \
                     one has term {committed}"
                ));
            }
        }
        let mut pairs = Pairs::new();
        for reports in self.reports_by_region().into_values() {
            let of_data = reports.into_iter();
            let of_data = of_data.filter(|(_, report)| report.region.kind == RegionKind::Data);
            let Some((number, report)) = of_data.max_by_key(|(_, report)| report.applied) else {
                continue;
            };
            let Some(found) = self.user_pairs_of(number, &report.region) else { return };
            pairs.extend(found);
        }
        if pairs != follower.pairs {
            let differs = |(key, value): &(&Bytes, &(Bytes, u64))| pairs.get(*key) != Some(*value);
            let here = follower.pairs.iter().find(differs).map(|(key, _)| key);
            let there = pairs.iter().find(|(key, value)| follower.pairs.get(*key) != Some(*value));
            self.fail(format!(
                "the follower's copy differs: first key {here:?} in the copy, {:?} in the data",
                there.map(|(key, _)| key)
            ));
        }
    }
}

impl Follower {
    /// Returns a follower that has not begun, with the same stream of random numbers.
    fn emptied(&mut self) -> Self {
        let prng = std::mem::replace(&mut self.prng, Prng::new(0));
        let terms = std::mem::take(&mut self.terms);
        Self { prng, terms, ..Self::new(0) }
    }

    fn describe(&self) -> String {
        let line = |(region, cursor): (&RegionId, &Cursor)| {
            let (next, lost) = (cursor.next(), cursor.lost_since);
            format!("\n  follower of region {region} at {next}, lost since {lost:?}")
        };
        self.cursors.iter().map(line).collect()
    }
}

/// Returns whether ranges in the order of their starts make up all keys, each key once.
fn make_up_all(ranges: &[KeyRange]) -> bool {
    let ends = ranges.iter().map(|range| &range.end[..]);
    let starts = ranges.iter().skip(1).map(|range| &range.start[..]);
    let begins = ranges.first().is_some_and(|first| first.start.is_empty());
    let ends_last = ranges.last().is_some_and(|last| last.end.is_empty());
    begins && ends_last && ends.zip(starts).all(|(end, start)| end == start && !end.is_empty())
}
