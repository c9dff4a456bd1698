//! Unreadable parts of a run: the scrub that finds them, and masks for blocks after their keys are
//! replaced.

use super::fences::Fences;
use super::footer;
use super::reader::{Run, read_part};
use bytes::Bytes;
use std::sync::Arc;
use stele_types::{KeyRange, Result, RunId, key_after};

/// A damaged block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostBlock {
    /// Number of its run.
    pub run: RunId,
    /// Number of the block in the run.
    pub block: usize,
    /// Keys that only this block of the run may hold.
    pub range: KeyRange,
}

/// Result of scrubbing a part of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubbedBlocks {
    /// Block to continue with; `None` at the run's end.
    pub next: Option<usize>,
    /// Bytes read.
    pub bytes: u64,
    /// Damaged blocks.
    pub lost: Vec<LostBlock>,
    /// Number of blocks of which the read failed for another reason than damage. They are skipped.
    pub unread: usize,
    /// Another part of the file is damaged, or blocks are masked: rewriting the run repairs it.
    pub needs_rewrite: bool,
}

impl Run {
    /// Returns whether a block is masked; `fences` are those with its fence. Invariant: as any of
    /// several unreadable blocks may hold the keys of all, they are masked only together.
    #[inline]
    pub(super) fn is_masked(&self, block: usize, fences: &Fences) -> bool {
        if self.masked.is_empty() || !self.masked.contains(&block) {
            return false;
        }
        let mut together = fences.unreadable_with(block).into_iter().flatten();
        // bug index.unreadable_masked_alone: `together.all(|other| self.masked.contains(&other))` is `true`
        together.all(|other| self.masked.contains(&other))
    }

    /// Returns whether some blocks are not read for all keys or for some.
    #[inline]
    pub(super) fn has_masks(&self) -> bool {
        !self.masked.is_empty() || !self.covered.is_empty()
    }

    /// Returns whether newer tiers determine the state of a key.
    pub(super) fn is_covered(&self, key: &[u8]) -> bool {
        // bug index.covered_part_read: `self.covered.iter().any(|range| range.contains(key))` is `false`
        self.covered.iter().any(|range| range.contains(key))
    }

    /// Returns whether newer tiers determine all keys in `within` that this block may hold, or the
    /// unreadable blocks with it.
    ///
    /// Invariant: a range that newer tiers determine can be read while the rest of a damaged block is
    /// still lost. Two stores may each need such a range of the other for the rest of their own.
    pub(super) fn is_covered_within(&self, block: usize, within: &KeyRange) -> Result<bool> {
        if self.covered.is_empty() || block >= self.blocks()? {
            return Ok(false);
        }
        let Some(read) = self.range_of(block)?.common(within) else { return Ok(false) };
        // bug index.covered_part_hides_block: return Ok(self.covered.iter().any(|it| it.overlaps(&read)));
        let left = self.covered.iter().fold(vec![read], |left, range| {
            left.iter().flat_map(|left| left.without(range)).collect()
        });
        // bug index.covered_part_read: `left.is_empty()` is `false`
        Ok(left.is_empty())
    }

    /// Returns the same run, of which newer tiers determine the keys of `range`.
    pub(crate) fn covered_by(&self, range: &KeyRange) -> Arc<Self> {
        let (mut whole, mut covered) = (range.clone(), Vec::new());
        for part in &self.covered {
            match union(part, &whole) {
                Some(both) => whole = both,
                None => covered.push(part.clone()),
            }
        }
        covered.push(whole);
        Arc::new(Self { index: None, covered, ..self.copy() })
    }

    /// Returns the same run with these blocks masked.
    pub(crate) fn without(&self, blocks: &[usize]) -> Arc<Self> {
        let masked = self.masked.iter().chain(blocks).copied().collect();
        Arc::new(Self { index: None, masked, ..self.copy() })
    }

    /// Reads the file's parts again, bypassing the cache: at the beginning all others, then blocks until
    /// `bytes_max` bytes are read. Fails only when reading the other parts fails.
    ///
    /// Invariant: each call advances by a block at least, whatever it costs. The filter, the fences and
    /// the hash index of a run may have more bytes than any caller grants.
    pub fn scrub_blocks(&self, from: usize, bytes_max: u64) -> Result<ScrubbedBlocks> {
        let mut scrubbed =
            ScrubbedBlocks { needs_rewrite: !self.masked.is_empty(), ..ScrubbedBlocks::default() };
        if from == 0 {
            scrubbed.bytes += self.meta.bytes - self.layout.data_bytes.min(self.meta.bytes);
            scrubbed.needs_rewrite |= !self.has_whole_parts()?;
        }
        let mut held = None;
        for block in from..self.blocks()? {
            let may_end = block > from;
            // bug index.scrub_stays_at_a_block: let may_end = true;
            if may_end && scrubbed.bytes >= bytes_max {
                scrubbed.next = Some(block);
                break;
            }
            let fences = self.fences_with(block, &mut held)?;
            let place = fences.block(block).unwrap_or_default();
            let is_masked = self.is_masked(block, fences);
            scrubbed.bytes += place.end - place.start;
            match self.read_block(block, &mut held) {
                _ if is_masked => {}
                Ok(_) => {}
                Err(error) if error.is_damage() => {
                    let range = self.range_of(block)?;
                    scrubbed.lost.push(LostBlock { run: self.id(), block, range });
                }
                Err(_) => scrubbed.unread += 1,
            }
        }
        Ok(scrubbed)
    }

    fn has_whole_parts(&self) -> Result<bool> {
        let layout = self.layout;
        let parts = [
            (layout.data_bytes, layout.fences_bytes),
            (layout.filter_at(), layout.filter_bytes),
            (layout.hash_at(), layout.hash_bytes),
        ];
        let read =
            parts.map(|(at, bytes)| read_part(&*self.file, self.id(), at, bytes).map(|_| ()));
        let footer = footer::read(&*self.file).map(|(meta, layout)| {
            // Everything but the checkpoint, which only the file contains.
            footer::encode_copy(&meta, &layout) == footer::encode_copy(&self.meta, &self.layout)
        });
        if matches!(footer, Ok(false)) {
            return Ok(false);
        }
        for part in read.into_iter().chain([footer.map(|_| ())]) {
            match part {
                Ok(()) => {}
                Err(error) if error.is_damage() => return Ok(false),
                // The version number is damaged.
                Err(stele_types::Error::NewerFormat { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Returns the keys that only this block may hold, or the unreadable blocks with it.
    fn range_of(&self, block: usize) -> Result<KeyRange> {
        let (mut held, mut blocks) = (None, block..block + 1);
        let fences = self.fences_with(block, &mut held)?;
        if let Some(together) = fences.unreadable_with(block) {
            blocks = together;
        }
        let start = match blocks.start {
            0 => self.meta.first_key.clone(),
            first => Bytes::copy_from_slice(fences.key(first)),
        };
        let end = match blocks.end < self.blocks()? {
            true => {
                Bytes::copy_from_slice(self.fences_with(blocks.end, &mut held)?.key(blocks.end))
            }
            false => key_after(&self.meta.last_key),
        };
        Ok(KeyRange { start, end })
    }
}

/// Returns the range of two that overlap or touch; `None` if a key lies between them.
fn union(one: &KeyRange, other: &KeyRange) -> Option<KeyRange> {
    let is_reached = |first: &KeyRange, second: &KeyRange| {
        first.is_below_end(&second.start) || first.end == second.start
    };
    if !is_reached(one, other) || !is_reached(other, one) {
        return None;
    }
    let end = match one.end.is_empty() || other.end.is_empty() {
        true => Bytes::new(),
        false => one.end.clone().max(other.end.clone()),
    };
    Some(KeyRange { start: one.start.clone().min(other.start.clone()), end })
}
