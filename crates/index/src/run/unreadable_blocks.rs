//! Unreadable parts of a run: the scrub that finds them, and masks for blocks after their keys are
//! replaced.

use super::footer;
use super::reader::{Run, read_part};
use bytes::Bytes;
use std::sync::Arc;
use stele_types::{KeyRange, Result, RunId};

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
    /// Another part of the file is damaged, or blocks are masked: rewriting the run repairs it.
    pub needs_rewrite: bool,
}

impl Run {
    /// Returns whether a block is masked.
    #[inline]
    pub(super) fn is_masked(&self, block: usize) -> bool {
        !self.masked.is_empty() && self.masked.contains(&block)
    }

    /// Returns the same run with these blocks masked.
    pub(crate) fn without(&self, blocks: &[usize]) -> Arc<Self> {
        let masked = self.masked.iter().chain(blocks).copied().collect();
        Arc::new(Self {
            file: self.file.clone(),
            meta: self.meta.clone(),
            layout: self.layout,
            fences: self.fences.clone(),
            filter: self.filter.clone(),
            index: None,
            cache: self.cache.clone(),
            masked,
            unreadable_tail: self.unreadable_tail,
        })
    }

    /// Reads the file's parts again, bypassing the cache: at the beginning those held in memory,
    /// then blocks. Fails only when reading itself fails.
    pub fn scrub_blocks(&self, from: usize, bytes_max: u64) -> Result<ScrubbedBlocks> {
        let mut scrubbed =
            ScrubbedBlocks { needs_rewrite: !self.masked.is_empty(), ..ScrubbedBlocks::default() };
        if from == 0 {
            scrubbed.bytes += self.meta.bytes - self.fences.data_bytes().min(self.meta.bytes);
            scrubbed.needs_rewrite |= !self.has_whole_parts()?;
        }
        for block in from..self.fences.len() {
            if scrubbed.bytes >= bytes_max {
                scrubbed.next = Some(block);
                break;
            }
            let place = self.fences.block(block).unwrap_or_default();
            scrubbed.bytes += place.end - place.start;
            match self.read_block(block) {
                _ if self.is_masked(block) => {}
                Ok(_) => {}
                Err(error) if error.is_damage() => {
                    let range = self.range_of(block);
                    scrubbed.lost.push(LostBlock { run: self.id(), block, range });
                }
                Err(error) => return Err(error),
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

    fn range_of(&self, block: usize) -> KeyRange {
        let start = match block {
            0 => self.meta.first_key.clone(),
            _ => Bytes::copy_from_slice(self.fences.key(block)),
        };
        let end = match block + 1 < self.fences.len() {
            true => self.fences.key(block + 1).to_vec(),
            false => [&self.meta.last_key[..], &[0]].concat(),
        };
        KeyRange { start, end: end.into() }
    }
}
