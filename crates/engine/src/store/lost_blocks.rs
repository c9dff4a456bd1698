//! Damaged blocks of runs: their keys are unknown here. Other replicas supply the pairs of each
//! part of their ranges. Then the blocks are masked and their runs are rewritten.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use stele_index::LostBlock;
use stele_types::lock::{Mutex, rank};
use stele_types::{Error, KeyRange, RunId};

/// Limit for the blocks remembered; others are found again.
const BLOCKS_MAX: usize = 1024;
/// Limit for the ranges returned at a time.
const RANGES_MAX: usize = 16;

/// Lost blocks of the index, and runs to rewrite.
#[derive(Debug, Default)]
pub(crate) struct LostBlocks {
    lost: Mutex<Vec<Lost>, { rank::LOST_BLOCKS }>,
    count: AtomicUsize,
    rewrites: Mutex<BTreeSet<RunId>, { rank::LOST_REWRITES }>,
    suspected: AtomicBool,
}

#[derive(Debug)]
struct Lost {
    block: LostBlock,
    /// Parts of the block's range that no repair covers yet.
    left: Vec<KeyRange>,
}

impl LostBlocks {
    /// Schedules a scrub of all runs after a failed read of the index.
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
            lost.push(Lost { block, left });
            self.count.store(lost.len(), Ordering::Release);
        }
    }

    pub(crate) fn lost_ranges(&self) -> Vec<KeyRange> {
        let lost = self.lost.lock();
        lost.iter().flat_map(|lost| lost.left.iter().cloned()).take(RANGES_MAX).collect()
    }

    /// Returns the first range of a lost block that ends after `key`.
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

    /// Drops the lost blocks of runs that no longer exist.
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
