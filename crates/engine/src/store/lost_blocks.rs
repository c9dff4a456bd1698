//! Damaged blocks of runs: what keys they held is not known here any more. Other replicas say what
//! becomes of each part of their ranges; then the blocks count as empty, and their runs are written
//! anew.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use stele_index::LostBlock;
use stele_types::{Error, KeyRange, RunId, mutant};

/// Most blocks remembered; what is beyond is found again.
const BLOCKS_MAX: usize = 1024;
/// Most ranges given out at a time.
const RANGES_MAX: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct LostBlocks {
    lost: Mutex<Vec<Lost>>,
    count: AtomicUsize,
    rewrites: Mutex<BTreeSet<RunId>>,
    suspected: AtomicBool,
}

#[derive(Debug)]
struct Lost {
    block: LostBlock,
    /// The parts of its range that nothing covers yet.
    left: Vec<KeyRange>,
}

impl LostBlocks {
    /// A read of the index failed: all runs are looked at soon.
    pub fn suspect(&self, error: &Error) {
        if error.is_damage() {
            self.suspected.store(true, Ordering::Release);
        }
    }

    pub fn take_suspicion(&self) -> bool {
        self.suspected.swap(false, Ordering::AcqRel)
    }

    pub fn has_lost(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    pub fn note(&self, block: LostBlock) {
        let mut lost = self.lost.lock();
        let is_known = lost.iter().any(|other| other.block == block);
        if !is_known && lost.len() < BLOCKS_MAX {
            let left = vec![block.range.clone()];
            lost.push(Lost { block, left });
            self.count.store(lost.len(), Ordering::Release);
        }
    }

    pub fn lost_ranges(&self) -> Vec<KeyRange> {
        let lost = self.lost.lock();
        lost.iter().flat_map(|lost| lost.left.iter().cloned()).take(RANGES_MAX).collect()
    }

    /// Newer tiers say what becomes of a range. Returns the blocks of which now every key is covered.
    pub fn note_covered(&self, range: &KeyRange) -> BTreeMap<RunId, Vec<usize>> {
        let mut covered: BTreeMap<RunId, Vec<usize>> = BTreeMap::new();
        let mut lost = self.lost.lock();
        lost.retain_mut(|lost| {
            lost.left = lost.left.iter().flat_map(|left| left.without(range)).collect();
            let is_covered =
                lost.left.is_empty() || mutant::active("engine.bury_what_is_not_covered");
            if is_covered {
                covered.entry(lost.block.run).or_default().push(lost.block.block);
            }
            !is_covered
        });
        self.count.store(lost.len(), Ordering::Release);
        drop(lost);
        self.rewrites.lock().extend(covered.keys());
        covered
    }

    /// Runs that are gone take their damage with them.
    pub fn retain(&self, is_current: impl Fn(RunId) -> bool) {
        let mut lost = self.lost.lock();
        lost.retain(|lost| is_current(lost.block.run));
        self.count.store(lost.len(), Ordering::Release);
    }

    pub fn schedule_rewrite(&self, run: RunId) {
        self.rewrites.lock().insert(run);
    }

    /// A run that can be written anew: none of its blocks is still lost.
    pub fn next_rewrite(&self) -> Option<RunId> {
        let lost = self.lost.lock();
        let is_whole = |run: &RunId| lost.iter().all(|lost| lost.block.run != *run);
        let mut rewrites = self.rewrites.lock();
        let next = rewrites.iter().copied().find(is_whole)?;
        rewrites.remove(&next);
        Some(next)
    }
}
