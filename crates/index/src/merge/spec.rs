//! Description of a merge: its inputs, the rule for the entries that it drops, the interface for
//! the values that it moves, and the exclusive right to run a flush or a merge, with the files that
//! it writes.

use crate::cursor::Found;
use crate::index::Shared;
use crate::memtable::RangeSet;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use stele_types::{Cause, Error, Locator, Result, RunId, is_expired};

/// The runs a merge replaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MergeInputs {
    /// Whole tiers, adjacent in age. They become one tier with the age of the newest one.
    Tiers(Vec<u64>),
    /// Some runs of one tier, rewritten at the same age (relocation, sorting).
    Runs {
        /// Age of the tier.
        age: u64,
        /// Runs of that tier.
        runs: Vec<RunId>,
    },
}

/// Inputs and cause of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeSpec {
    /// Runs to replace.
    pub inputs: MergeInputs,
    /// Cause of the merge: `Merge`, `Relocate` or `Sort`. Written bytes are counted under it.
    pub cause: Cause,
}

/// A merge interrupted by the end of the process: its finished outputs are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeProgress {
    /// Inputs and cause of the merge.
    pub spec: MergeSpec,
    /// Job number, as in the footers of its outputs.
    pub job: u64,
    /// Finished outputs, ascending.
    pub outputs: Vec<RunId>,
    /// Last key of the last output: the merge continues after it.
    pub last_key: Bytes,
}

/// Drop rule of one job; it depends on what lies below the output.
#[derive(Clone, Debug)]
pub(crate) struct DropRule {
    /// No older tier lies below, so tombstones hide nothing.
    bottom: bool,
    /// Entries that expired by this time, in Unix seconds, are dropped; 0 keeps all.
    drop_s: u64,
    /// Range tombstones of the output, for older tiers.
    ranges: Arc<RangeSet>,
}

impl DropRule {
    pub(crate) fn new(bottom: bool, drop_s: u64, ranges: RangeSet) -> Self {
        // bug index.tombstone_dropped_early: let bottom = true;
        let kept = if bottom { RangeSet::default() } else { ranges };
        Self { bottom, drop_s, ranges: Arc::new(kept) }
    }

    pub(crate) fn ranges(&self) -> &RangeSet {
        &self.ranges
    }

    /// Returns whether the newest entry of a key is kept. The entry is not hidden by a newer range
    /// tombstone.
    #[inline]
    pub(crate) fn keeps(&self, key: &[u8], found: &Found) -> bool {
        match found {
            // A tombstone inside a range tombstone of the output hides nothing more.
            Found::Deleted => !self.bottom && (self.ranges.is_empty() || !self.ranges.covers(key)),
            // An expired value hides older ones, so it is dropped only at the bottom.
            Found::Value { expires_at_s, .. } => {
                !(self.bottom && is_expired(*expires_at_s, self.drop_s))
            }
        }
    }
}

/// A value that will move: its key and its present location.
pub type MovingValue<'a> = (&'a [u8], Locator);

/// Decides for each value that the merge keeps, in key order, whether it moves, and writes it to
/// its new location.
pub trait ValueMover: Send {
    /// Returns whether the value at `at` moves, provided it can be read. Called before it is
    /// placed.
    fn moves(&self, key: &[u8], at: &Locator) -> bool;
    /// Announces values that move, all of them in key order, before the first is placed: they may
    /// be read together.
    fn read_ahead(&mut self, moving: &[MovingValue<'_>]) {
        let _ = moving;
    }
    /// Reads about `bytes_max` bytes of the announced values and returns the bytes; 0 once all are
    /// read. Called until then, before the first is placed.
    fn continue_read_ahead(&mut self, bytes_max: u64) -> u64 {
        let _ = bytes_max;
        0
    }
    /// Writes the value at `at` to its new location and returns that; `None` for a value that
    /// stays.
    fn place(&mut self, key: &[u8], at: &Locator, expires_at_s: u64) -> Result<Option<Locator>>;
    /// Makes every location returned so far durable. Called before an output run is finished,
    /// because that run will reference them.
    fn cut(&mut self) -> Result<()>;
    /// Returns the bytes of values written so far, for pacing.
    fn bytes(&self) -> u64;
}

/// Kinds of jobs. At most one flush and one merge run at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    Flush,
    Merge,
    /// An ingest; any number at a time. The manifest's lock orders their commits.
    Install,
}

/// Claim held by a job until it is committed or dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    pub shared: Arc<Shared>,
    slot: Slot,
    /// Files written so far. Discarded when the claim is dropped, unless [`Claim::release_files`]
    /// was called or the manifest keeps them to resume a merge.
    outputs: Vec<RunId>,
}

impl Claim {
    pub(crate) fn new(shared: &Arc<Shared>, slot: Slot) -> Result<Self> {
        let running = match slot {
            Slot::Flush => Some(&shared.flushing),
            Slot::Merge => Some(&shared.merging),
            Slot::Install => None,
        };
        if running.is_some_and(|running| running.swap(true, Ordering::AcqRel)) {
            return Err(Error::Busy(
                "a job of this kind is running; try again after it".to_owned(),
            ));
        }
        Ok(Self { shared: shared.clone(), slot, outputs: Vec::new() })
    }

    pub(crate) fn slot(&self) -> Slot {
        self.slot
    }

    /// Allocates the id of a new run; the claim owns its file.
    pub(crate) fn new_run(&mut self) -> RunId {
        let run = self.shared.allocate_run();
        self.outputs.push(run);
        run
    }

    /// Gives up the ownership of the files, because they are current.
    pub(crate) fn release_files(&mut self) {
        self.outputs.clear();
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let outputs = std::mem::take(&mut self.outputs);
        // bug index.incoming_left: skip if self.slot == Slot::Install
        if !outputs.is_empty() {
            self.shared.discard(&outputs);
        }
        match self.slot {
            Slot::Flush => {
                self.shared.flush_age.store(u64::MAX, Ordering::Release);
                self.shared.flushing.store(false, Ordering::Release);
            }
            Slot::Merge => self.shared.merging.store(false, Ordering::Release),
            // No commit may follow that would remove the discarded files. A later purge repeats
            // what fails.
            Slot::Install => drop(self.shared.purge()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use stele_types::{KeyRange, ValueRef};

    #[test]
    fn deletes_and_expired_values_go_at_the_bottom_only() {
        let value =
            |expires_at_s| Found::Value { value: ValueRef::Inline(Bytes::new()), expires_at_s };
        let ranges = RangeSet::from_ranges([KeyRange::new("m", "p")]);
        let bottom = DropRule::new(true, 100, ranges.clone());
        let above = DropRule::new(false, 100, ranges);
        assert!(bottom.ranges().is_empty() && !above.ranges().is_empty());
        assert!(!bottom.keeps(b"a", &Found::Deleted) && above.keeps(b"a", &Found::Deleted));
        assert!(!above.keeps(b"n", &Found::Deleted));
        assert!(!bottom.keeps(b"a", &value(100)) && above.keeps(b"a", &value(100)));
        assert!(bottom.keeps(b"a", &value(101)) && bottom.keeps(b"a", &value(0)));
    }
}
