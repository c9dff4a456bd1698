//! Samples of a run's entries, for estimates.

use super::Run;
use super::block::Block;
use super::parts::Reads;
use crate::memtable::SampleSink;
use stele_types::{KeyRange, Result};

/// Maximum number of entries from all blocks together, but at least `ENTRIES_MIN` of each.
const ENTRIES_MAX: usize = 1024;
const ENTRIES_MIN: usize = 8;

impl Run {
    pub(crate) fn blocks_in(&self, range: &KeyRange) -> Result<std::ops::Range<usize>> {
        let blocks = self.blocks()?;
        if blocks == 0 || range.is_empty() {
            return Ok(0..0);
        }
        let mut held = None;
        let last = match range.end.is_empty() {
            true => blocks - 1,
            false => self.fences_below(&range.end, &mut held)?.find_below(&range.end),
        };
        let fences = self.fences_for(&range.start, &mut held, Reads::MayWait)?;
        let first = fences.map_or(0, |fences| fences.find(&range.start));
        Ok(first..last + 1)
    }

    /// Passes some entries of `range`, spread over it, to `f`, from at most about `blocks_max`
    /// blocks.
    pub(crate) fn sample(
        &self,
        range: &KeyRange,
        blocks_max: usize,
        f: &mut SampleSink<'_>,
    ) -> Result<()> {
        let blocks = self.blocks_in(range)?;
        let Some(last) = blocks.len().checked_sub(1) else { return Ok(()) };
        let inner = last.saturating_sub(1);
        let stride = inner.div_ceil(blocks_max.max(1)).max(1);
        let strides = inner.div_ceil(stride);
        let entries_max = (ENTRIES_MAX / (strides + 2)).max(ENTRIES_MIN);
        // The first and the last block may be only partly in the range, so each represents itself
        // alone.
        self.sample_block(blocks.start, 1, range, entries_max, f)?;
        for from in (1..last).step_by(stride) {
            let count = stride.min(last - from);
            self.sample_block(blocks.start + from + count / 2, count, range, entries_max, f)?;
        }
        if last > 0 {
            self.sample_block(blocks.start + last, 1, range, entries_max, f)?;
        }
        Ok(())
    }

    /// Samples one block that represents `blocks` blocks.
    fn sample_block(
        &self,
        i: usize,
        blocks: usize,
        range: &KeyRange,
        entries_max: usize,
        f: &mut SampleSink<'_>,
    ) -> Result<()> {
        let block: Block = self.block_to_sample(i)?;
        let step = block.count().div_ceil(entries_max);
        let mut key = block.shared().to_vec();
        for slot in (step / 2..block.count()).step_by(step) {
            let entry = block.entry(slot).ok_or_else(|| self.bad_block(i))?;
            key.truncate(block.shared_len());
            key.extend_from_slice(block.suffix(&entry));
            if range.contains(&key) {
                // The last sampled entry represents fewer than `step` entries.
                let covered = step.min(block.count() - (slot - step / 2));
                let value = block.value(&entry).map(|(value, _)| value);
                f(&key, value, (covered * blocks) as f64);
            }
        }
        Ok(())
    }
}
