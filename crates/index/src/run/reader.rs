//! Reader of runs.

use super::block::Block;
use super::cold::Cold;
use super::cursor::{RunCursor, Walk};
use super::fences::Fences;
use super::filter::Filter;
use super::footer::{self, Layout};
use super::hash_index::HashIndex;
use super::meta::RunMeta;
use super::parts::{self, Held, Parts, Pinned, Reads};
use super::run_path;
use crate::cache::{BlockCache, Reservation};
use crate::cursor::{Found, Lookup};
use crate::memtable::SampleSink;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use stele_types::{Error, KeyRange, Result, RunId};
use stele_vfs::{Open, Vfs, VfsFile};

/// An open run. Reads of damaged bytes fail with [`Error::Corrupt`], with file and offset.
#[derive(Debug)]
pub struct Run {
    pub(super) file: Arc<dyn VfsFile>,
    pub(super) meta: RunMeta,
    pub(super) layout: Layout,
    pub(super) parts: Parts,
    pub(super) index: Option<Arc<Indexed>>,
    pub(super) cache: Arc<BlockCache>,
    /// Masked blocks: damaged, replaced by newer tiers and treated as empty.
    pub(super) masked: BTreeSet<usize>,
    /// Ranges of keys that newer tiers determine, apart from each other. Damaged blocks are not read
    /// for these keys.
    pub(super) covered: Vec<KeyRange>,
}

pub(super) type Indexed = (HashIndex, Reservation);

/// Reads a part and checks its trailer; an empty part has none.
pub(super) fn read_part(file: &dyn VfsFile, id: RunId, offset: u64, bytes: u64) -> Result<Vec<u8>> {
    if bytes == 0 {
        return Ok(Vec::new());
    }
    let mut part = vec![0; bytes as usize];
    // A second read distinguishes damage on the device from a bit flipped in transfer.
    for last in [false, true] {
        file.read_exact_at(&mut part, offset)?;
        match footer::check(file.path(), id, offset, &part) {
            Ok(checked) => {
                let length = checked.len();
                part.truncate(length);
                return Ok(part);
            }
            Err(error) if last => return Err(error),
            Err(_) => {}
        }
    }
    Ok(part)
}

/// Opens the file of a run; fails with [`Error::Missing`] when it does not exist.
pub(super) fn open_file(vfs: &Arc<dyn Vfs>, dir: &Path, id: RunId) -> Result<Arc<dyn VfsFile>> {
    let path = run_path(dir, id);
    vfs.open(&path, Open::READ).map_err(|error| match error {
        Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            Error::Missing { path, detail: "the index needs this run".into() }
        }
        other => other,
    })
}

pub(super) fn read_fences(file: &dyn VfsFile, id: RunId, layout: &Layout) -> Result<Fences> {
    let at = layout.data_bytes;
    let part = read_part(file, id, at, layout.fences_bytes)?;
    Fences::decode(&part, layout.blocks, layout.data_bytes)
        .ok_or_else(|| Error::corrupt(file.path(), at, "fences do not parse"))
}

pub(super) fn read_filter(file: &dyn VfsFile, id: RunId, layout: &Layout) -> Result<Filter> {
    let at = layout.filter_at();
    let part = read_part(file, id, at, layout.filter_bytes)?;
    Filter::decode(&part, layout.probes)
        .ok_or_else(|| Error::corrupt(file.path(), at, "filter does not parse"))
}

/// Reads the hash index; `None` when the run has none or the cache grants no memory.
pub(super) fn read_hash_index(
    file: &dyn VfsFile,
    id: RunId,
    layout: &Layout,
    cache: &Arc<BlockCache>,
) -> Result<Option<Arc<Indexed>>> {
    let (at, bytes) = (layout.hash_at(), layout.hash_bytes);
    let Some(memory) =
        Some(bytes).filter(|bytes| *bytes > 0).and_then(|b| cache.reserve(b as usize))
    else {
        return Ok(None);
    };
    let part = read_part(file, id, at, bytes)?;
    match HashIndex::decode(&part, layout.block_bits) {
        Some(index) => Ok(Some(Arc::new((index, memory)))),
        None => Err(Error::corrupt(file.path(), at, "hash index does not parse")),
    }
}

impl Run {
    /// Opens run `id` in `dir`: reads its footer and, each if the cache grants the memory, fences
    /// with the filter, and the hash index. Fails with [`Error::Missing`] when the file does not
    /// exist.
    pub fn open(
        vfs: &Arc<dyn Vfs>,
        dir: &Path,
        id: RunId,
        cache: Arc<BlockCache>,
    ) -> Result<Arc<Self>> {
        let mut run = Self::open_footer(vfs, dir, id, cache)?;
        if let Some(memory) = parts::pin(&run.cache, &run.layout) {
            let fences = read_fences(&*run.file, id, &run.layout)?;
            let filter = read_filter(&*run.file, id, &run.layout)?;
            let are_fences_rebuilt = false;
            let pinned = Pinned { fences, are_fences_rebuilt, filter, _memory: memory };
            run.parts = Parts::Pinned(Arc::new(pinned));
        }
        run.index = read_hash_index(&*run.file, id, &run.layout, &run.cache)?;
        Ok(Arc::new(run))
    }

    /// Opens run `id` as a cold one without its hash index: reads only the footer.
    pub(crate) fn open_footer(
        vfs: &Arc<dyn Vfs>,
        dir: &Path,
        id: RunId,
        cache: Arc<BlockCache>,
    ) -> Result<Self> {
        let file = open_file(vfs, dir, id)?;
        let (meta, layout) = footer::read(&*file)?;
        if meta.id != id {
            let detail = format!("footer belongs to run {}", meta.id);
            return Err(Error::corrupt(file.path(), layout.footer_at(), detail));
        }
        let (parts, masked) = (Parts::Cold(Arc::new(Cold::default())), BTreeSet::new());
        let covered = Vec::new();
        Ok(Self { file, meta, layout, parts, index: None, cache, masked, covered })
    }

    pub(super) fn copy(&self) -> Self {
        Self {
            file: self.file.clone(),
            meta: self.meta.clone(),
            layout: self.layout,
            parts: self.parts.clone(),
            index: self.index.clone(),
            cache: self.cache.clone(),
            masked: self.masked.clone(),
            covered: self.covered.clone(),
        }
    }

    /// Returns the run's number.
    pub fn id(&self) -> RunId {
        self.meta.id
    }

    /// Returns the run's metadata.
    pub fn meta(&self) -> &RunMeta {
        &self.meta
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns the memory held while the run is open, in bytes. Excludes the hash index, cached
    /// blocks and cached pages, which the block cache counts.
    pub fn memory_bytes(&self) -> usize {
        let meta = self.meta.refs.len() * 48 + self.meta.extra.ranges.len() * 160;
        let keys = self.meta.first_key.len() + self.meta.last_key.len();
        let extra = self.meta.extra.checkpoint.len() + self.meta.extra.replaces.len() * 8;
        self.parts_bytes() + meta + keys + extra + size_of::<Self>()
    }

    /// Returns whether `key` may be in the run; false is certain.
    pub fn may_hold(&self, key_hash: u64) -> Result<bool> {
        Ok(self.may_contain(key_hash, Reads::MayWait)?.unwrap_or(true))
    }

    /// Returns the run's entry of `key`, where `key_hash` is [`super::key_hash`] of it. Ignores the
    /// run's range tombstones: they apply to older tiers.
    pub fn get(&self, key: &[u8], key_hash: u64) -> Result<Option<Found>> {
        match self
            .get_from(key, key_hash, Reads::MayWait, |i, held| self.block(i, held).map(Some))?
        {
            Lookup::Known(found) => Ok(found),
            Lookup::NeedsIo => Err(Error::invalid("block is missing after it was read")),
        }
    }

    /// Does what [`Run::get`] does, without waiting for the device.
    pub fn get_cached(&self, key: &[u8], key_hash: u64) -> Result<Lookup> {
        self.get_from(key, key_hash, Reads::InMemory, |i, held| self.block_cached(i, held))
    }

    #[inline]
    fn get_from(
        &self,
        key: &[u8],
        key_hash: u64,
        reads: Reads,
        block: impl Fn(usize, &mut Held) -> Result<Option<Block>>,
    ) -> Result<Lookup> {
        if self.layout.blocks == 0 {
            return Ok(Lookup::Known(None));
        }
        match self.may_contain(key_hash, reads)? {
            Some(true) => {}
            Some(false) => return Ok(Lookup::Known(None)),
            None => return Ok(Lookup::NeedsIo),
        }
        // The hash index does not leave masked blocks out.
        let index = self.index.as_ref().filter(|_| !self.has_masks());
        let Some(index) = index else { return self.get_by_fences(key, reads, block) };
        for place in index.0.places(key_hash) {
            let Some(block) = block(place.block as usize, &mut None)? else {
                return Ok(Lookup::NeedsIo);
            };
            if let Some(entry) = block.entry_if(usize::from(place.slot), key) {
                let found = block.found(&entry);
                let found = found.ok_or_else(|| self.bad_block(place.block as usize))?;
                return Ok(Lookup::Known(Some(found)));
            }
        }
        Ok(Lookup::Known(None))
    }

    fn get_by_fences(
        &self,
        key: &[u8],
        reads: Reads,
        block: impl Fn(usize, &mut Held) -> Result<Option<Block>>,
    ) -> Result<Lookup> {
        let mut held = None;
        let Some(fences) = self.fences_for(key, &mut held, reads)? else {
            return Ok(Lookup::NeedsIo);
        };
        let at = fences.find(key);
        if self.is_masked(at, fences) || self.is_covered(key) {
            return Ok(Lookup::Known(None));
        }
        let Some(block) = block(at, &mut held)? else { return Ok(Lookup::NeedsIo) };
        let entry = match block.lower_bound(key) {
            Some((slot, true)) => block.entry(slot),
            Some((_, false)) => return Ok(Lookup::Known(None)),
            None => None,
        };
        let found = entry.and_then(|entry| block.found(&entry));
        found.map(|found| Lookup::Known(Some(found))).ok_or_else(|| self.bad_block(at))
    }

    /// Returns the error for a block with a valid checksum but invalid entries.
    pub(super) fn bad_block(&self, i: usize) -> Error {
        let mut held = None;
        let fences = self.fences_of(i, &mut held, Reads::InMemory).ok().flatten();
        let place = fences.and_then(|fences| fences.block(i));
        let offset = place.map_or(0, |place| place.start);
        Error::corrupt(self.path(), offset, "entry does not parse")
    }

    pub(super) fn block(&self, i: usize, held: &mut Held) -> Result<Block> {
        if let Some(block) = self.cache.block(self.meta.id, i) {
            return Ok(block);
        }
        let block =
            self.read_block_by(i, held, |bytes, at| self.cache.fill(&*self.file, bytes, at))?;
        self.cache.insert_block(self.meta.id, i, block.clone());
        Ok(block)
    }

    /// Returns a block for a sample. Invariant: samples evict no block that reads use: the blocks of
    /// thousands of idle regions are sampled.
    pub(super) fn block_to_sample(&self, i: usize) -> Result<Block> {
        // bug index.samples_fill_the_cache: return self.block(i, &mut None);
        match self.cache.block(self.meta.id, i) {
            Some(block) => Ok(block),
            None => self.read_block(i, &mut None),
        }
    }

    /// Returns a block from the cache or the page cache; `None` otherwise. Damage is left to a read
    /// that may wait.
    pub(super) fn block_cached(&self, i: usize, held: &mut Held) -> Result<Option<Block>> {
        if let Some(block) = self.cache.block(self.meta.id, i) {
            return Ok(Some(block));
        }
        let Some(fences) = self.fences_of(i, held, Reads::InMemory)? else { return Ok(None) };
        let Some(place) = fences.readable(i) else { return Err(self.bad_block(i)) };
        let mut bytes = self.cache.buffer((place.end - place.start) as usize);
        if !self.file.read_cached_at(&mut bytes, place.start)? {
            return Ok(None);
        }
        let read = Block::open(self.path(), self.meta.id, place.start, &bytes.freeze()).ok();
        if let Some(block) = &read {
            self.cache.insert_block(self.meta.id, i, block.clone());
        }
        Ok(read)
    }

    /// Reads a block from the file; `held` keeps the page of its fence.
    pub(super) fn read_block(&self, i: usize, held: &mut Held) -> Result<Block> {
        self.read_block_by(i, held, |bytes, at| self.file.read_exact_at(bytes, at))
    }

    fn read_block_by(
        &self,
        i: usize,
        held: &mut Held,
        fill: impl FnOnce(&mut [u8], u64) -> Result<()>,
    ) -> Result<Block> {
        let Some(place) = self.fences_with(i, held)?.readable(i) else {
            return Err(self.bad_block(i));
        };
        let mut bytes = self.cache.buffer((place.end - place.start) as usize);
        fill(&mut bytes, place.start)?;
        Block::open(self.path(), self.meta.id, place.start, &bytes.freeze()).or_else(|_| {
            // A second read distinguishes damage on the device from a bit flipped in transfer.
            let mut bytes = vec![0; (place.end - place.start) as usize];
            self.file.read_exact_at(&mut bytes, place.start)?;
            Block::open(self.path(), self.meta.id, place.start, &Bytes::from(bytes))
        })
    }

    /// Returns a cursor that reads blocks in this way.
    pub(crate) fn walk(self: &Arc<Self>, walk: Walk) -> RunCursor {
        RunCursor::new(Arc::clone(self), walk)
    }

    /// Returns a cursor for short walks.
    pub fn cursor(self: &Arc<Self>) -> RunCursor {
        self.walk(Walk::Short)
    }

    /// Returns a cursor for walks over the whole run.
    pub fn cursor_ahead(self: &Arc<Self>) -> RunCursor {
        self.walk(Walk::Whole)
    }
}

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
