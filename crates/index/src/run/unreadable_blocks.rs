//! Damaged parts of a run: finding them, and doing without blocks whose keys are elsewhere by now.

use super::footer;
use super::reader::{Run, read_part};
use bytes::Bytes;
use std::sync::Arc;
use stele_types::{KeyRange, Result, RunId};

/// A damaged block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostBlock {
    /// Its run.
    pub run: RunId,
    /// Which of the run's blocks.
    pub block: usize,
    /// The keys it may hold, and no other block of the run.
    pub range: KeyRange,
}

/// What a look at a part of a run found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubbedBlocks {
    /// The block to go on with; `None` at the run's end.
    pub next: Option<usize>,
    /// Bytes read.
    pub bytes: u64,
    /// Damaged blocks.
    pub lost: Vec<LostBlock>,
    /// Another part of the file is damaged, or blocks count as empty: writing the run anew mends it.
    pub wants_rewrite: bool,
}

impl Run {
    /// Whether a block counts as empty.
    #[inline]
    pub(super) fn is_masked(&self, block: usize) -> bool {
        !self.dead.is_empty() && self.dead.contains(&block)
    }

    /// The same run, in which these blocks count as empty.
    pub(crate) fn without(&self, blocks: &[usize]) -> Arc<Self> {
        let dead = self.dead.iter().chain(blocks).copied().collect();
        Arc::new(Self {
            file: self.file.clone(),
            meta: self.meta.clone(),
            layout: self.layout,
            fences: self.fences.clone(),
            filter: self.filter.clone(),
            index: None,
            cache: self.cache.clone(),
            dead,
            unreadable_tail: self.unreadable_tail,
        })
    }

    /// Reads the file's parts anew, past the cache: at the beginning those in memory, then blocks.
    /// Fails only where reading itself fails.
    pub fn scrub_blocks(&self, from: usize, bytes_max: u64) -> Result<ScrubbedBlocks> {
        let mut look =
            ScrubbedBlocks { wants_rewrite: !self.dead.is_empty(), ..ScrubbedBlocks::default() };
        if from == 0 {
            look.bytes += self.meta.bytes - self.fences.data_bytes().min(self.meta.bytes);
            look.wants_rewrite |= !self.has_whole_parts()?;
        }
        for block in from..self.fences.len() {
            if look.bytes >= bytes_max {
                look.next = Some(block);
                break;
            }
            let place = self.fences.block(block).unwrap_or_default();
            look.bytes += place.end - place.start;
            match self.read_block(block) {
                _ if self.is_masked(block) => {}
                Ok(_) => {}
                Err(error) if error.is_damage() => {
                    let range = self.range_of(block);
                    look.lost.push(LostBlock { run: self.id(), block, range });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(look)
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
            // All but the checkpoint, which only the file has.
            footer::encode_copy(&meta, &layout) == footer::encode_copy(&self.meta, &self.layout)
        });
        if matches!(footer, Ok(false)) {
            return Ok(false);
        }
        for part in read.into_iter().chain([footer.map(|_| ())]) {
            match part {
                Ok(()) => {}
                Err(error) if error.is_damage() => return Ok(false),
                // A damaged version number.
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
