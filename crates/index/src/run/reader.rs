//! Reading a run.

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

/// An open run. Reading damaged bytes is [`Error::Corrupt`] with the file and the offset.
#[derive(Debug)]
pub struct Run {
    pub(super) file: Arc<dyn VfsFile>,
    pub(super) meta: RunMeta,
    pub(super) layout: Layout,
    pub(super) fences: Fences,
    pub(super) filter: Filter,
    pub(super) index: Option<(HashIndex, Reservation)>,
    pub(super) cache: Arc<BlockCache>,
    /// Damaged blocks whose keys newer tiers replace: they count as empty.
    pub(super) dead: BTreeSet<usize>,
    /// The block that stands for all of the file in which blocks can't be told apart any more.
    pub(super) unreadable_tail: Option<usize>,
}

/// Reads a part and its seal; an empty one is not sealed.
pub(super) fn read_part(file: &dyn VfsFile, id: RunId, offset: u64, bytes: u64) -> Result<Vec<u8>> {
    if bytes == 0 {
        return Ok(Vec::new());
    }
    let mut part = vec![0; bytes as usize];
    // A second reading tells damage on the device from a bit lost on the way.
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

/// The file of a run; [`Error::Missing`] when it is not there.
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

/// `None` where the run has none, or the cache has no room for it.
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
    /// Opens run `id` in `dir`, reading its footer, fences, filter and, if the cache grants the
    /// memory, its hash index. [`Error::Missing`] when the file is not there.
    pub fn open(
        vfs: &Arc<dyn Vfs>,
        dir: &Path,
        id: RunId,
        cache: Arc<BlockCache>,
    ) -> Result<Arc<Self>> {
        let file = open_file(vfs, dir, id)?;
        let (meta, layout) = footer::read(&*file)?;
        if meta.id != id {
            let detail = format!("the footer is that of run {}", meta.id);
            return Err(Error::corrupt(file.path(), layout.footer_at(), detail));
        }
        let fences = read_fences(&*file, id, &layout)?;
        let filter = read_filter(&*file, id, &layout)?;
        let index = read_hash_index(&*file, id, &layout, &cache)?;
        let (dead, unreadable_tail) = (BTreeSet::new(), None);
        Ok(Arc::new(Self {
            file,
            meta,
            layout,
            fences,
            filter,
            index,
            cache,
            dead,
            unreadable_tail,
        }))
    }

    /// The run's number.
    pub fn id(&self) -> RunId {
        self.meta.id
    }

    /// What the run holds.
    pub fn meta(&self) -> &RunMeta {
        &self.meta
    }

    /// Where the file lies.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Memory held while the run is open, without cached blocks and without the hash index, which
    /// the block cache counts.
    pub fn memory_bytes(&self) -> usize {
        let meta = self.meta.refs.len() * 48 + self.meta.extra.ranges.len() * 160;
        self.fences.memory_bytes() + self.filter.memory_bytes() + meta + size_of::<Self>()
    }

    /// Whether `key` may be in the run: false is certain.
    pub fn may_hold(&self, key_hash: u64) -> bool {
        self.filter.passes(key_hash)
    }

    /// What the run holds for `key`, whose [`super::key_hash`] is `key_hash`. Its range tombstones
    /// are not asked: they concern older tiers.
    pub fn get(&self, key: &[u8], key_hash: u64) -> Result<Option<Found>> {
        match self.get_from(key, key_hash, |i| self.block(i).map(Some))? {
            Lookup::Known(found) => Ok(found),
            Lookup::NeedsIo => Err(Error::invalid("a block that was read is not there")),
        }
    }

    /// [`Run::get`] without waiting for the device.
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
        if self.fences.len() == 0 || !self.filter.passes(key_hash) {
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

    /// The error for a block whose checksum holds but whose entries make no sense.
    pub(super) fn bad_block(&self, i: usize) -> Error {
        let offset = self.fences.block(i).map_or(0, |place| place.start);
        Error::corrupt(self.path(), offset, "entry does not parse")
    }

    /// A block through the cache.
    pub(super) fn block(&self, i: usize) -> Result<Block> {
        if let Some(block) = self.cache.get(self.meta.id, i as u32) {
            return Ok(block);
        }
        let block = self.read_block(i)?;
        self.cache.insert(self.meta.id, i as u32, block.clone());
        Ok(block)
    }

    /// A block out of memory, the page cache included; damage is left to a read that may wait.
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

    /// A block from the file.
    pub(super) fn read_block(&self, i: usize) -> Result<Block> {
        let place = self.fences.block(i).filter(|_| self.unreadable_tail != Some(i));
        let Some(place) = place else { return Err(self.bad_block(i)) };
        let mut bytes = self.cache.buffer((place.end - place.start) as usize);
        self.file.read_exact_at(&mut bytes, place.start)?;
        Block::open(self.path(), self.meta.id, place.start, &bytes.freeze()).or_else(|_| {
            // A second reading tells damage on the device from a bit lost on the way.
            let mut bytes = vec![0; (place.end - place.start) as usize];
            self.file.read_exact_at(&mut bytes, place.start)?;
            Block::open(self.path(), self.meta.id, place.start, &Bytes::from(bytes))
        })
    }

    /// A cursor for short walks: blocks come from the cache; after some blocks in a row it reads
    /// ahead without filling the cache.
    pub fn cursor(self: &Arc<Self>) -> RunCursor {
        RunCursor::new(Arc::clone(self), false)
    }

    /// A cursor for walks over the whole run: large reads from the start, past the cache.
    pub fn cursor_ahead(self: &Arc<Self>) -> RunCursor {
        RunCursor::new(Arc::clone(self), true)
    }
}
