//! Reader of runs.

use super::block::Block;
use super::cursor::RunCursor;
use super::fences::Fences;
use super::filter::Filter;
use super::footer::{self, Layout};
use super::hash_index::HashIndex;
use super::meta::RunMeta;
use super::{run_path, trailer};
use crate::cache::{BlockCache, Reservation};
use crate::slot::{Found, Lookup};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use stele_types::{Error, Result, RunId};
use stele_vfs::{Open, Vfs, VfsFile};

/// An open run. Reads of damaged bytes fail with [`Error::Corrupt`], with file and offset.
#[derive(Debug)]
pub struct Run {
    pub(super) file: Arc<dyn VfsFile>,
    pub(super) meta: RunMeta,
    pub(super) layout: Layout,
    pub(super) fences: Fences,
    pub(super) filter: Filter,
    pub(super) index: Option<(HashIndex, Reservation)>,
    pub(super) cache: Arc<BlockCache>,
    /// Masked blocks: damaged, replaced by newer tiers and treated as empty.
    pub(super) masked: BTreeSet<usize>,
    /// Pseudo-block for the end of the file, in which block boundaries cannot be found.
    pub(super) unreadable_tail: Option<usize>,
}

/// Reads a part and checks its trailer; an empty part has none.
pub(super) fn read_part(file: &dyn VfsFile, id: RunId, offset: u64, bytes: u64) -> Result<Vec<u8>> {
    if bytes == 0 {
        return Ok(Vec::new());
    }
    let mut part = vec![0; bytes as usize];
    // A second read distinguishes damage on the device from a bit flipped in transfer.
    for last in [false, true] {
        file.read_exact_at(&mut part, offset)?;
        match trailer::check(file.path(), id, offset, &part) {
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
) -> Result<Option<(HashIndex, Reservation)>> {
    let (at, bytes) = (layout.hash_at(), layout.hash_bytes);
    let Some(memory) =
        Some(bytes).filter(|bytes| *bytes > 0).and_then(|b| cache.reserve(b as usize))
    else {
        return Ok(None);
    };
    let part = read_part(file, id, at, bytes)?;
    match HashIndex::decode(&part, layout.block_bits) {
        Some(index) => Ok(Some((index, memory))),
        None => Err(Error::corrupt(file.path(), at, "hash index does not parse")),
    }
}

impl Run {
    /// Opens run `id` in `dir`: reads its footer, fences, filter and, if the cache grants the
    /// memory, its hash index. Fails with [`Error::Missing`] when the file does not exist.
    pub fn open(
        vfs: &Arc<dyn Vfs>,
        dir: &Path,
        id: RunId,
        cache: Arc<BlockCache>,
    ) -> Result<Arc<Self>> {
        let file = open_file(vfs, dir, id)?;
        let (meta, layout) = footer::read(&*file)?;
        if meta.id != id {
            let detail = format!("footer belongs to run {}", meta.id);
            return Err(Error::corrupt(file.path(), layout.footer_at(), detail));
        }
        let fences = read_fences(&*file, id, &layout)?;
        let filter = read_filter(&*file, id, &layout)?;
        let index = read_hash_index(&*file, id, &layout, &cache)?;
        let (masked, unreadable_tail) = (BTreeSet::new(), None);
        Ok(Arc::new(Self {
            file,
            meta,
            layout,
            fences,
            filter,
            index,
            cache,
            masked,
            unreadable_tail,
        }))
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

    /// Returns the memory held while the run is open, in bytes. Excludes cached blocks and the hash
    /// index, which the block cache counts.
    pub fn memory_bytes(&self) -> usize {
        let meta = self.meta.refs.len() * 48 + self.meta.extra.ranges.len() * 160;
        self.fences.memory_bytes() + self.filter.memory_bytes() + meta + size_of::<Self>()
    }

    /// Returns whether `key` may be in the run; false is certain.
    pub fn may_hold(&self, key_hash: u64) -> bool {
        self.filter.may_contain(key_hash)
    }

    /// Returns the run's entry of `key`, where `key_hash` is [`super::key_hash`] of it. Ignores the
    /// run's range tombstones: they apply to older tiers.
    pub fn get(&self, key: &[u8], key_hash: u64) -> Result<Option<Found>> {
        match self.get_from(key, key_hash, |i| self.block(i).map(Some))? {
            Lookup::Known(found) => Ok(found),
            Lookup::NeedsIo => Err(Error::invalid("block is missing after it was read")),
        }
    }

    /// Does what [`Run::get`] does, without waiting for the device.
    pub fn get_cached(&self, key: &[u8], key_hash: u64) -> Result<Lookup> {
        self.get_from(key, key_hash, |i| self.block_cached(i))
    }

    #[inline]
    fn get_from(
        &self,
        key: &[u8],
        key_hash: u64,
        block: impl Fn(usize) -> Result<Option<Block>>,
    ) -> Result<Lookup> {
        if self.fences.len() == 0 || !self.filter.may_contain(key_hash) {
            return Ok(Lookup::Known(None));
        }
        let Some((index, _)) = &self.index else { return self.get_by_fences(key, block) };
        for place in index.places(key_hash) {
            if self.is_masked(place.block as usize) {
                continue;
            }
            let Some(block) = block(place.block as usize)? else { return Ok(Lookup::NeedsIo) };
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
        block: impl Fn(usize) -> Result<Option<Block>>,
    ) -> Result<Lookup> {
        let at = self.fences.find(key);
        if self.is_masked(at) {
            return Ok(Lookup::Known(None));
        }
        let Some(block) = block(at)? else { return Ok(Lookup::NeedsIo) };
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
        let offset = self.fences.block(i).map_or(0, |place| place.start);
        Error::corrupt(self.path(), offset, "entry does not parse")
    }

    /// Returns a block from the cache or the file.
    pub(super) fn block(&self, i: usize) -> Result<Block> {
        if let Some(block) = self.cache.get(self.meta.id, i as u32) {
            return Ok(block);
        }
        let block = self.read_block(i)?;
        self.cache.insert(self.meta.id, i as u32, block.clone());
        Ok(block)
    }

    /// Returns a block from the cache or the page cache; `None` otherwise. Damage is left to a read
    /// that may wait.
    fn block_cached(&self, i: usize) -> Result<Option<Block>> {
        if let Some(block) = self.cache.get(self.meta.id, i as u32) {
            return Ok(Some(block));
        }
        let place = self.fences.block(i).filter(|_| self.unreadable_tail != Some(i));
        let Some(place) = place else { return Err(self.bad_block(i)) };
        let mut bytes = self.cache.buffer((place.end - place.start) as usize);
        if !self.file.read_cached_at(&mut bytes, place.start)? {
            return Ok(None);
        }
        let read = Block::open(self.path(), self.meta.id, place.start, &bytes.freeze()).ok();
        if let Some(block) = &read {
            self.cache.insert(self.meta.id, i as u32, block.clone());
        }
        Ok(read)
    }

    /// Reads a block from the file.
    pub(super) fn read_block(&self, i: usize) -> Result<Block> {
        let place = self.fences.block(i).filter(|_| self.unreadable_tail != Some(i));
        let Some(place) = place else { return Err(self.bad_block(i)) };
        let mut bytes = self.cache.buffer((place.end - place.start) as usize);
        self.file.read_exact_at(&mut bytes, place.start)?;
        Block::open(self.path(), self.meta.id, place.start, &bytes.freeze()).or_else(|_| {
            // A second read distinguishes damage on the device from a bit flipped in transfer.
            let mut bytes = vec![0; (place.end - place.start) as usize];
            self.file.read_exact_at(&mut bytes, place.start)?;
            Block::open(self.path(), self.meta.id, place.start, &Bytes::from(bytes))
        })
    }

    /// Returns a cursor for short walks: it reads blocks through the cache; after several
    /// consecutive blocks it reads ahead without filling the cache.
    pub fn cursor(self: &Arc<Self>) -> RunCursor {
        RunCursor::new(Arc::clone(self), false)
    }

    /// Returns a cursor for walks over the whole run: large reads from the start, bypassing the
    /// cache.
    pub fn cursor_ahead(self: &Arc<Self>) -> RunCursor {
        RunCursor::new(Arc::clone(self), true)
    }
}
