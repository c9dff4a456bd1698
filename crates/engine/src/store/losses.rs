//! Data that cannot be read here, until other replicas supply it: values to which the index refers,
//! and damaged blocks of runs.

use super::{Replay, Shared};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use stele_index::LostBlock;
use stele_storage::LostValue;
use stele_types::lock::{Mutex, rank};
use stele_types::{Error, KeyRange, Locator, Result, RunId, ValueRef};

/// Limit for the bytes of keys remembered as lost; others are found again later.
const KEYS_BYTES_MAX: usize = 1 << 20;
/// Limit for the bytes of copies that wait to be written; one copy of any size is allowed.
const COPIES_BYTES_MAX: usize = 8 << 20;

/// Limit for the lost values checked again in one slice of maintenance.
const RECHECKS_MAX: usize = 64;

/// Statistics of value repair since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairStats {
    /// Values known to be unreadable now.
    pub lost: u64,
    /// Values found to be unreadable.
    pub found: u64,
    /// Values replaced by another replica's copy.
    pub repaired: u64,
}

/// Unreadable values that the index refers to, until a copy from another replica replaces them.
#[derive(Debug)]
pub(crate) struct LostValues {
    /// False without replicas: no store can supply a copy, and lost values are only counted.
    has_replicas: bool,
    state: Mutex<State, { rank::LOST_VALUES }>,
    /// Number of the state's values, readable without the lock.
    count: AtomicUsize,
    found: AtomicU64,
    repaired: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    values: BTreeMap<Bytes, DamagedValue>,
    keys_bytes: usize,
    copies_bytes: usize,
    /// Key of the last value requested from other replicas.
    requested: Bytes,
    /// Key of the last value checked again.
    rechecked: Bytes,
}

#[derive(Debug)]
struct DamagedValue {
    at: Locator,
    /// A second read failed, too.
    is_confirmed: bool,
    copy: Option<Bytes>,
}

impl State {
    /// Iterates over the values after `key`, then over the others: a value that no replica has must
    /// not delay the rest.
    fn after(&self, key: &Bytes) -> impl Iterator<Item = (&Bytes, &DamagedValue)> {
        let after = self.values.range::<Bytes, _>((Bound::Excluded(key), Bound::Unbounded));
        after.chain(self.values.range::<Bytes, _>((Bound::Unbounded, Bound::Included(key))))
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(lost) = self.values.remove(key) {
            self.keys_bytes -= key.len();
            self.copies_bytes -= lost.copy.map_or(0, |copy| copy.len());
        }
    }
}

impl LostValues {
    pub(crate) fn new(replay: Replay) -> Self {
        Self {
            has_replicas: replay == Replay::Committed,
            state: Mutex::default(),
            count: AtomicUsize::new(0),
            found: AtomicU64::new(0),
            repaired: AtomicU64::new(0),
        }
    }

    pub(crate) fn note(&self, key: &[u8], at: &Locator, error: &Error) {
        if !error.is_damage() && !error.is_failed_read() {
            return;
        }
        let mut state = self.state.lock();
        if state.values.get(key).is_some_and(|lost| lost.at == *at) {
            return;
        }
        state.remove(key);
        if state.keys_bytes + key.len() <= KEYS_BYTES_MAX {
            let lost = DamagedValue { at: *at, is_confirmed: false, copy: None };
            state.values.insert(Bytes::copy_from_slice(key), lost);
            state.keys_bytes += key.len();
            self.found.fetch_add(1, Ordering::Relaxed);
        }
        self.count.store(state.values.len(), Ordering::Release);
    }

    pub(crate) fn has_replicas(&self) -> bool {
        self.has_replicas
    }

    pub(crate) fn has_lost(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Returns the next values in key order, cyclically; none without replicas.
    pub(crate) fn lost_values(&self, count_max: usize) -> Vec<LostValue> {
        if !self.has_replicas {
            return Vec::new();
        }
        let mut state = self.state.lock();
        let wanted = |(_, lost): &(&Bytes, &DamagedValue)| lost.is_confirmed && lost.copy.is_none();
        let next: Vec<LostValue> = state
            .after(&state.requested)
            .filter(wanted)
            .take(count_max)
            .map(|(key, lost)| LostValue {
                key: key.clone(),
                length: lost.at.length,
                crc: lost.at.crc,
            })
            .collect();
        if let Some(last) = next.last() {
            state.requested = last.key.clone();
        }
        next
    }

    /// Accepts a copy. Invariant: only bytes with the length and checksum in the index are the
    /// value; a sender of others has another version, or is damaged too.
    pub(crate) fn repair_value(&self, key: &Bytes, value: Bytes) {
        let mut state = self.state.lock();
        let room = state.copies_bytes == 0 || state.copies_bytes + value.len() <= COPIES_BYTES_MAX;
        let Some(lost) = state.values.get_mut(key).filter(|lost| lost.copy.is_none() && room)
        else {
            return;
        };
        // bug engine.mend_unchecked: never
        if lost.at.check(&value).is_err() {
            return;
        }
        let bytes = value.len();
        lost.copy = Some(value);
        state.copies_bytes += bytes;
    }

    /// Checks the next lost values again. Drops those that can be read after all, and those that
    /// the index no longer refers to.
    pub(crate) fn confirm(&self, shared: &Shared) -> Result<()> {
        let known =
            |(key, lost): (&Bytes, &DamagedValue)| (key.clone(), lost.at, lost.is_confirmed);
        let noted: Vec<_> = {
            let mut state = self.state.lock();
            let noted: Vec<_> =
                state.after(&state.rechecked).take(RECHECKS_MAX).map(known).collect();
            if let Some((last, ..)) = noted.last() {
                state.rechecked = last.clone();
            }
            noted
        };
        for (key, at, is_confirmed) in noted {
            let is_current = is_at(shared, &key, &at)?;
            // bug engine.mend_over_newer: let is_current = true;
            let is_lost = is_current && (is_confirmed || shared.log.check(&at).is_err());
            let mut state = self.state.lock();
            match state.values.get_mut(&key).filter(|lost| lost.at == at) {
                Some(lost) if is_lost => lost.is_confirmed = true,
                Some(_) => state.remove(&key),
                None => {}
            }
            self.count.store(state.values.len(), Ordering::Release);
        }
        Ok(())
    }

    pub(crate) fn copies(&self) -> Vec<(Bytes, Locator, Bytes)> {
        let state = self.state.lock();
        let copied =
            |(key, lost): (&Bytes, &DamagedValue)| Some((key.clone(), lost.at, lost.copy.clone()?));
        state.values.iter().filter_map(copied).collect()
    }

    pub(crate) fn note_repaired(&self, keys: &[Bytes]) {
        let mut state = self.state.lock();
        keys.iter().for_each(|key| state.remove(key));
        self.repaired.fetch_add(keys.len() as u64, Ordering::Relaxed);
        self.count.store(state.values.len(), Ordering::Release);
    }

    pub(crate) fn stats(&self) -> RepairStats {
        RepairStats {
            lost: self.count.load(Ordering::Acquire) as u64,
            found: self.found.load(Ordering::Relaxed),
            repaired: self.repaired.load(Ordering::Relaxed),
        }
    }
}

/// Whether the newest value of `key` is the one at this place. Fails if the index cannot be read.
pub(super) fn is_at(shared: &Shared, key: &[u8], at: &Locator) -> Result<bool> {
    let found = shared.index.get(key)?;
    Ok(matches!(
        found,
        Some(stele_index::Found::Value { value: ValueRef::At(now), .. }) if now == *at
    ))
}

/// Limit for the blocks remembered; others are found again.
const BLOCKS_MAX: usize = 1024;
const RANGES_MAX: usize = 16;

/// Damaged blocks of runs: their keys are unknown here. Other replicas supply the pairs of each
/// part of their ranges. Then the blocks are masked and their runs are rewritten.
#[derive(Debug, Default)]
pub(crate) struct LostBlocks {
    lost: Mutex<Vec<DamagedBlock>, { rank::LOST_BLOCKS }>,
    count: AtomicUsize,
    rewrites: Mutex<BTreeSet<RunId>, { rank::LOST_REWRITES }>,
    suspected: AtomicBool,
}

#[derive(Debug)]
struct DamagedBlock {
    block: LostBlock,
    /// Parts of the block's range that no repair covers yet.
    left: Vec<KeyRange>,
}

impl LostBlocks {
    pub(crate) fn suspect(&self, error: &Error) {
        if error.is_damage() {
            self.suspected.store(true, Ordering::Release);
        }
    }

    /// Schedules a scrub of all runs after a failed job, unless lost blocks are known: until they are
    /// covered, the job fails again and again.
    pub(crate) fn note_failed_job(&self, error: &Error) {
        if !self.has_lost() {
            self.suspect(error);
        }
    }

    pub(crate) fn take_suspected(&self) -> bool {
        self.suspected.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn has_lost(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    pub(crate) fn note(&self, block: LostBlock) {
        let mut lost = self.lost.lock();
        let is_known = lost.iter().any(|other| other.block == block);
        if !is_known && lost.len() < BLOCKS_MAX {
            let left = vec![block.range.clone()];
            lost.push(DamagedBlock { block, left });
            self.count.store(lost.len(), Ordering::Release);
        }
    }

    pub(crate) fn lost_ranges(&self) -> Vec<KeyRange> {
        let lost = self.lost.lock();
        lost.iter().flat_map(|lost| lost.left.iter().cloned()).take(RANGES_MAX).collect()
    }

    pub(crate) fn first_lost_after(&self, key: &[u8]) -> Option<KeyRange> {
        let lost = self.lost.lock();
        let ranges = lost.iter().map(|lost| &lost.block.range);
        ranges.filter(|range| key < &range.end[..]).min_by(|a, b| a.start.cmp(&b.start)).cloned()
    }

    /// Records that newer tiers cover a range. Returns the runs with lost blocks that may hold keys of
    /// it, with those of their blocks that are now covered completely.
    pub(crate) fn note_covered(&self, range: &KeyRange) -> BTreeMap<RunId, Vec<usize>> {
        let mut covered: BTreeMap<RunId, Vec<usize>> = BTreeMap::new();
        let mut lost = self.lost.lock();
        lost.retain_mut(|lost| {
            let blocks = match lost.block.range.overlaps(range) {
                true => Some(covered.entry(lost.block.run).or_default()),
                false => None,
            };
            lost.left = lost.left.iter().flat_map(|left| left.without(range)).collect();
            let is_covered = lost.left.is_empty();
            // bug engine.bury_what_is_not_covered: let is_covered = true;
            if is_covered && let Some(blocks) = blocks {
                blocks.push(lost.block.block);
                return false;
            }
            true
        });
        self.count.store(lost.len(), Ordering::Release);
        drop(lost);
        let is_complete = |(_, blocks): &(&RunId, &Vec<usize>)| !blocks.is_empty();
        self.rewrites.lock().extend(covered.iter().filter(is_complete).map(|(run, _)| *run));
        covered
    }

    pub(crate) fn retain(&self, is_current: impl Fn(RunId) -> bool) {
        let mut lost = self.lost.lock();
        lost.retain(|lost| is_current(lost.block.run));
        self.count.store(lost.len(), Ordering::Release);
    }

    pub(crate) fn schedule_rewrite(&self, run: RunId) {
        self.rewrites.lock().insert(run);
    }

    /// Takes a run that can be rewritten: none of its blocks is still lost.
    pub(crate) fn next_rewrite(&self) -> Option<RunId> {
        let lost = self.lost.lock();
        let is_complete = |run: &RunId| lost.iter().all(|lost| lost.block.run != *run);
        let mut rewrites = self.rewrites.lock();
        let next = rewrites.iter().copied().find(is_complete)?;
        rewrites.remove(&next);
        Some(next)
    }
}
