//! Damage of a run: the scrub that finds unreadable parts, and masks for blocks after their keys
//! are replaced.
//!
//! A damaged run is opened by the manifest's copy of its footer. The copy determines which keys the
//! run spans, what it references and which ranges it deletes from older tiers, whatever is left of
//! the file.
//!
//! A damaged filter or hash index is left out. Fences are rebuilt from the blocks, which contain
//! their lengths. Where block boundaries cannot be found, or the file is missing, one unreadable
//! pseudo-block represents all that the rest may have held: reads of those keys fail as for any
//! damaged block, and it is repaired in the same way. The run's references still count, so nothing
//! that it may reference is removed.

use super::cold::Cold;
use super::fences::{Fences, unless_damaged};
use super::filter::Filter;
use super::parts::{self, Parts, Pinned};
use super::reader::{Run, open_file, read_fences, read_filter, read_hash_index, read_part};
use super::{footer, run_path};
use crate::cache::BlockCache;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_types::{Cause, Error, KeyRange, Result, RunId, key_after};
use stele_vfs::{Vfs, VfsFile};

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

impl Run {
    pub(crate) fn footer_copy(&self) -> Bytes {
        footer::encode_copy(&self.meta, &self.layout).into()
    }

    /// Opens run `id`, which is damaged or missing, by the manifest's copy of its footer. Fails
    /// with [`Error::Corrupt`] if the copy does not parse, otherwise only when reading itself
    /// fails.
    pub(crate) fn open_damaged(
        vfs: &Arc<dyn Vfs>,
        dir: &Path,
        id: RunId,
        cache: Arc<BlockCache>,
        copy: &[u8],
    ) -> Result<Arc<Self>> {
        let known = footer::decode_copy(copy).filter(|(meta, _)| meta.id == id);
        let Some((meta, layout)) = known else {
            let path = run_path(dir, id);
            return Err(Error::corrupt(
                &path,
                0,
                "the manifest's copy of the run's footer does not parse",
            ));
        };
        // Invariant: files that the run may reference are kept while its keys are unknown.
        // bug index.stand_in_refers_to_nothing: let meta = { let mut meta = meta; meta.refs.clear(); meta };
        let file: Arc<dyn VfsFile> = match unless_damaged(open_file(vfs, dir, id))? {
            Some(file) => file,
            None => Arc::new(MissingFile { path: run_path(dir, id) }),
        };
        let cold = Parts::Cold(Arc::new(Cold::default()));
        let (masked, covered) = (BTreeSet::new(), Vec::new());
        let mut run = Self { file, meta, layout, parts: cold, index: None, cache, masked, covered };
        let Some(memory) = parts::pin(&run.cache, &run.layout) else {
            // Reads of a cold run leave a damaged filter out and rebuild damaged fences.
            return Ok(Arc::new(run));
        };
        let file = &*run.file;
        let whole = unless_damaged(read_fences(file, id, &layout))?;
        // Block numbers in the hash index refer to the fences it was written with.
        if whole.is_some() {
            run.index = unless_damaged(read_hash_index(file, id, &layout, &run.cache))?.flatten();
        }
        let are_fences_rebuilt = whole.is_none();
        let fences = match whole {
            Some(fences) => fences,
            None => run.rebuild_all_fences()?,
        };
        // A filter without words lets every key pass.
        let filter: Filter = unless_damaged(read_filter(file, id, &layout))?.unwrap_or_default();
        let pinned = Pinned { fences, are_fences_rebuilt, filter, _memory: memory };
        run.parts = Parts::Pinned(Arc::new(pinned));
        Ok(Arc::new(run))
    }
}

/// Placeholder for the file of a missing run; every access fails.
#[derive(Debug)]
struct MissingFile {
    path: PathBuf,
}

impl MissingFile {
    fn error<T>(&self) -> Result<T> {
        let detail = "the index needs this run".into();
        Err(Error::Missing { path: self.path.clone(), detail })
    }
}

impl VfsFile for MissingFile {
    fn read_at(&self, _: &mut [u8], _: u64) -> Result<usize> {
        self.error()
    }

    fn read_cached_at(&self, _: &mut [u8], _: u64) -> Result<bool> {
        self.error()
    }

    fn write_at(&self, _: &[IoSlice<'_>], _: u64, _: Cause) -> Result<()> {
        self.error()
    }

    fn sync_data(&self) -> Result<()> {
        self.error()
    }

    fn allocate(&self, _: u64) -> Result<()> {
        self.error()
    }

    fn set_len(&self, _: u64) -> Result<()> {
        self.error()
    }

    fn len(&self) -> Result<u64> {
        self.error()
    }

    fn block_bytes(&self) -> Option<usize> {
        None
    }

    fn path(&self) -> &Path {
        &self.path
    }
}
