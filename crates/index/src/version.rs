//! Versions: the current runs as one immutable value that readers hold and pin. The runs of one age
//! form a tier; a cursor reads the runs of a tier one after the other.

use crate::cursor::{Cursor, Found, Lookup, ValueSlice};
use crate::memtable::RangeSet;
use crate::run::{Live, Run, RunCursor, Walk, key_hash};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use stele_types::lock::{Mutex, rank};
use stele_types::{Error, FileId, KeyRange, Result, RunId};

/// Number of a version, counted since the index was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VersionId(pub u64);

/// The current runs at one moment.
#[derive(Debug)]
pub struct Version {
    id: VersionId,
    tiers: Vec<Tier>,
    live: BTreeMap<FileId, Live>,
}

impl Version {
    pub(crate) fn new(id: VersionId, runs: impl IntoIterator<Item = Arc<Run>>) -> Self {
        let mut by_age: BTreeMap<u64, Vec<Arc<Run>>> = BTreeMap::new();
        for run in runs {
            by_age.entry(run.meta().extra.age).or_default().push(run);
        }
        let tiers: Vec<Tier> =
            by_age.into_iter().rev().map(|(age, runs)| Tier::new(age, runs)).collect();
        let mut live: BTreeMap<FileId, Live> = BTreeMap::new();
        for run in tiers.iter().flat_map(|tier| &tier.runs) {
            for (&file, refs) in &run.meta().refs {
                live.entry(file).or_default().add_all(refs);
            }
        }
        Self { id, tiers, live }
    }

    pub(crate) fn replace(&self, removed: &[RunId], added: Vec<Arc<Run>>) -> Self {
        let kept = self.runs().filter(|run| !removed.contains(&run.id())).cloned();
        Self::new(VersionId(self.id.0 + 1), kept.chain(added).collect::<Vec<_>>())
    }

    /// Returns the version's number.
    pub fn id(&self) -> VersionId {
        self.id
    }

    /// Returns the tiers, newest first.
    pub fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    /// Returns what the current runs reference, by value file. Exact: no run of this version
    /// references a file that is not here.
    pub fn live(&self) -> &BTreeMap<FileId, Live> {
        &self.live
    }

    /// Returns all runs, newest tier first.
    pub fn runs(&self) -> impl Iterator<Item = &Arc<Run>> {
        self.tiers.iter().flat_map(|tier| &tier.runs)
    }

    /// Returns the tier with this age.
    pub fn tier(&self, age: u64) -> Option<&Tier> {
        self.tiers.iter().find(|tier| tier.age == age)
    }

    /// Returns the newest entry of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Found>> {
        if self.tiers.is_empty() {
            return Ok(None);
        }
        let hash = key_hash(key);
        for tier in &self.tiers {
            if let Some(found) = tier.get(key, hash)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Does what [`Version::get`] does, without waiting for the device.
    pub fn get_cached(&self, key: &[u8]) -> Result<Lookup> {
        let hash = key_hash(key);
        for tier in &self.tiers {
            match tier.get_cached(key, hash)? {
                Lookup::Known(None) => {}
                found => return Ok(found),
            }
        }
        Ok(Lookup::Known(None))
    }

    /// Returns the age of the newest tier, 0 when there is none.
    pub(crate) fn newest_age(&self) -> u64 {
        self.tiers.first().map_or(0, |tier| tier.age)
    }
}

/// Versions that readers may still hold, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    versions: Mutex<VecDeque<(VersionId, Weak<Version>)>, { rank::PINS }>,
}

impl Pins {
    /// Adds a version; called before it is published.
    pub(crate) fn add(&self, version: &Arc<Version>) {
        self.versions.lock().push_back((version.id(), Arc::downgrade(version)));
    }

    /// Returns the oldest version that a reader holds, or else the current one.
    pub(crate) fn oldest(&self) -> VersionId {
        let mut versions = self.versions.lock();
        while let Some((id, version)) = versions.front() {
            if version.strong_count() > 0 {
                return *id;
            }
            versions.pop_front();
        }
        VersionId::default()
    }

    /// Returns the versions that readers hold, and the current one, in ascending order.
    pub(crate) fn all(&self) -> Vec<VersionId> {
        let mut versions = self.versions.lock();
        versions.retain(|(_, version)| version.strong_count() > 0);
        versions.iter().map(|(id, _)| *id).collect()
    }
}

/// Runs of one age: no key is in two of them.
#[derive(Debug)]
pub struct Tier {
    /// Larger is newer.
    pub age: u64,
    /// Runs, ascending by key; runs without entries, which only hold range tombstones, come first.
    pub runs: Vec<Arc<Run>>,
    /// Sum of the runs' file lengths.
    pub bytes: u64,
    /// Sum of the runs' entries, tombstones included.
    pub entries: u64,
    /// Sum of the runs' tombstones.
    pub tombstones: u64,
    keyed: Arc<[Arc<Run>]>,
    ranges: Arc<RangeSet>,
}

impl Tier {
    pub(crate) fn new(age: u64, mut runs: Vec<Arc<Run>>) -> Self {
        runs.sort_by(|a, b| {
            let (a, b) = (a.meta(), b.meta());
            (a.entries > 0, &a.first_key).cmp(&(b.entries > 0, &b.first_key))
        });
        let sum = |f: fn(&Run) -> u64| runs.iter().map(|run| f(run)).sum();
        Self {
            age,
            bytes: sum(|run| run.meta().bytes),
            entries: sum(|run| run.meta().entries),
            tombstones: sum(|run| run.meta().tombstones),
            keyed: runs.iter().filter(|run| run.meta().entries > 0).cloned().collect(),
            ranges: Arc::new(union_of(&runs)),
            runs,
        }
    }

    /// Returns the ranges deleted from all older tiers.
    pub fn ranges(&self) -> &RangeSet {
        &self.ranges
    }

    pub(crate) fn shared_ranges(&self) -> Arc<RangeSet> {
        self.ranges.clone()
    }

    /// Returns the runs that have entries, ascending by key.
    pub(crate) fn keyed(&self) -> &[Arc<Run>] {
        &self.keyed
    }

    /// Returns this tier's entry of `key`; with `None` older tiers decide.
    pub(crate) fn get(&self, key: &[u8], hash: u64) -> Result<Option<Found>> {
        if let Some(run) = self.run_of(key)
            && let Some(found) = run.get(key, hash)?
        {
            return Ok(Some(found));
        }
        Ok(self.deleted(key))
    }

    /// Does what [`Tier::get`] does, without waiting for the device.
    pub(crate) fn get_cached(&self, key: &[u8], hash: u64) -> Result<Lookup> {
        let found = self.run_of(key).map(|run| run.get_cached(key, hash)).transpose()?;
        Ok(match found {
            Some(Lookup::Known(None)) | None => Lookup::Known(self.deleted(key)),
            Some(known) => known,
        })
    }

    /// Returns whether the tier may hold or delete `key`; false is certain. A filter that cannot be
    /// read does not exclude it.
    pub(crate) fn may_hold(&self, key: &[u8], hash: u64) -> bool {
        let holds = |run: &Arc<Run>| run.may_hold(hash).unwrap_or(true);
        self.ranges.covers(key) || self.run_of(key).is_some_and(holds)
    }

    /// Returns the only run that may hold `key`.
    fn run_of(&self, key: &[u8]) -> Option<&Arc<Run>> {
        let after = self.keyed().partition_point(|run| run.meta().first_key <= key);
        let run = after.checked_sub(1).and_then(|at| self.keyed().get(at));
        run.filter(|run| key <= &run.meta().last_key[..])
    }

    /// Checks the range tombstones. Invariant: called after the entries, which are newer in their
    /// tier.
    fn deleted(&self, key: &[u8]) -> Option<Found> {
        (!self.ranges.is_empty() && self.ranges.covers(key)).then_some(Found::Deleted)
    }

    pub(crate) fn cursor(&self, range: &KeyRange, walk: Walk) -> TierCursor {
        TierCursor::new(self.keyed.clone(), walk, range.clone())
    }
}

pub(crate) fn union_of(runs: &[Arc<Run>]) -> RangeSet {
    let ranges = runs.iter().flat_map(|run| run.meta().extra.ranges.iter().cloned());
    RangeSet::from_ranges(ranges)
}

/// Cursor over the runs of one tier. Opens a run's cursor when it is reached.
pub(crate) struct TierCursor {
    /// Runs with entries, ascending by key and disjoint.
    runs: Arc<[Arc<Run>]>,
    /// Index of the current run, and the cursor in it.
    at: Option<(usize, RunCursor)>,
    walk: Walk,
    /// Runs and blocks without keys of this range are skipped.
    within: KeyRange,
}

impl TierCursor {
    pub(crate) fn new(runs: Arc<[Arc<Run>]>, walk: Walk, within: KeyRange) -> Self {
        Self { runs, at: None, walk, within }
    }

    /// Makes the run at `index` current; keeps the cursor if it already is.
    fn enter(&mut self, index: usize) -> Option<&mut RunCursor> {
        if self.at.as_ref().is_none_or(|(at, _)| *at != index) {
            let run = self.runs.get(index);
            self.at = run.map(|run| (index, run.walk(self.walk).within(&self.within)));
        }
        self.at.as_mut().map(|(_, cursor)| cursor)
    }

    /// Calls [`RunCursor::approach`] in the run that may hold `key`.
    pub(crate) fn approach(&mut self, key: &[u8]) -> Result<()> {
        let index = self.runs.partition_point(|run| run.meta().last_key < key);
        if index == self.runs.len() {
            self.at = None;
        }
        self.enter(index).map_or(Ok(()), |cursor| cursor.approach(key))
    }

    /// Calls [`RunCursor::arrive`]; moves to the next run if this one has no entry from `key` on.
    pub(crate) fn arrive(&mut self, key: &[u8]) -> Result<()> {
        let Some((_, cursor)) = &mut self.at else { return Ok(()) };
        cursor.arrive(key)?;
        if cursor.valid() { Ok(()) } else { self.next_run() }
    }

    /// Moves to the first entry of the following runs. A run may have no unmasked entry.
    #[cold]
    fn next_run(&mut self) -> Result<()> {
        while let Some(cursor) = self.enter(self.index() + 1) {
            cursor.seek(&[])?;
            if cursor.valid() || cursor.is_above_all() {
                break;
            }
        }
        Ok(())
    }

    #[cold]
    fn previous_run(&mut self) -> Result<()> {
        while let Some(before) = self.index().checked_sub(1)
            && let Some(cursor) = self.enter(before)
        {
            cursor.seek_before(None)?;
            if cursor.valid() || cursor.is_below_all() {
                break;
            }
        }
        Ok(())
    }

    fn index(&self) -> usize {
        self.at.as_ref().map_or(0, |(index, _)| *index)
    }
}

impl Cursor for TierCursor {
    #[inline]
    fn valid(&self) -> bool {
        self.at.as_ref().is_some_and(|(_, cursor)| cursor.valid())
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.at.as_ref().map_or(&[], |(_, cursor)| cursor.key())
    }

    #[inline]
    fn prefix(&self) -> u64 {
        self.at.as_ref().map_or(0, |(_, cursor)| cursor.prefix())
    }

    #[inline]
    fn found(&self) -> Result<Found> {
        match &self.at {
            Some((_, cursor)) => cursor.found(),
            None => Err(Error::invalid("the cursor is not positioned")),
        }
    }

    #[inline]
    fn value(&self) -> Option<(ValueSlice<'_>, u64)> {
        self.at.as_ref().and_then(|(_, cursor)| cursor.value())
    }

    #[inline]
    fn is_deleted(&self) -> bool {
        self.at.as_ref().is_none_or(|(_, cursor)| cursor.is_deleted())
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        let Some((_, cursor)) = &mut self.at else { return Ok(()) };
        if !cursor.valid() {
            return Ok(());
        }
        cursor.next()?;
        if cursor.valid() { Ok(()) } else { self.next_run() }
    }

    fn prev(&mut self) -> Result<()> {
        let Some((_, cursor)) = &mut self.at else { return Ok(()) };
        if !cursor.valid() {
            return Ok(());
        }
        cursor.prev()?;
        if cursor.valid() { Ok(()) } else { self.previous_run() }
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.approach(key)?;
        self.arrive(key)
    }

    fn seek_before(&mut self, bound: Option<&[u8]>) -> Result<()> {
        let below = |run: &Arc<Run>| bound.is_none_or(|bound| run.meta().first_key < bound);
        let Some(index) = self.runs.partition_point(below).checked_sub(1) else {
            self.at = None;
            return Ok(());
        };
        let Some(cursor) = self.enter(index) else { return Ok(()) };
        cursor.seek_before(bound)?;
        if cursor.valid() { Ok(()) } else { self.previous_run() }
    }
}

impl std::fmt::Debug for TierCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TierCursor")
            .field("runs", &self.runs.len())
            .field("at", &self.index())
            .finish()
    }
}
