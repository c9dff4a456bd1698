//! Tiers: runs of one age.

use super::TierCursor;
use crate::memtable::RangeSet;
use crate::run::Run;
use crate::slot::{Found, Lookup};
use std::sync::Arc;
use stele_types::{KeyRange, Result};

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
    /// Runs that have entries.
    keyed: Arc<[Arc<Run>]>,
    /// Ranges deleted from all older tiers.
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

    /// Returns a cursor over the keys of a range.
    pub(crate) fn cursor(&self, range: &KeyRange) -> TierCursor {
        TierCursor::new(self.keyed.clone(), false, range.clone())
    }
}

/// Returns the union of the range tombstones of `runs`.
pub(crate) fn union_of(runs: &[Arc<Run>]) -> RangeSet {
    let ranges = runs.iter().flat_map(|run| run.meta().extra.ranges.iter().cloned());
    RangeSet::from_ranges(ranges)
}
