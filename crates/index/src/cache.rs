//! Cache for key blocks of runs, and for pages of the filters and fences of cold runs. Hash indexes
//! of runs take up to a share of its limit. Filters and fences of other runs have a limit of their
//! own.

use crate::run::{Block, Fences};
use bytes::{Bytes, BytesMut};
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_types::lock::{Mutex, rank};
use stele_types::{Result, RunId};
use stele_vfs::{DeviceTimer, VfsFile};

/// Bookkeeping bytes per part.
const BLOCK_OVERHEAD_BYTES: u64 = 128;
/// Typical size of a block, used to size tables.
const BLOCK_BYTES: usize = 4 << 10;
/// Memory per shard below which more shards would evict too early.
const SHARD_BYTES_MIN: usize = 1 << 20;
const SHARDS_MAX: usize = 16;
/// Buffers of evicted blocks kept for the next blocks, at most. Each insertion into a full cache
/// evicts a block; memory released in between would be mapped and zeroed again by the system.
const SPARES_MAX: usize = 8;
/// Larger buffers are released.
const SPARE_BYTES_MAX: usize = 16 << 10;
/// Buffers are allocated in multiples of this, so that one block's buffer fits another block.
const BUFFER_STEP_BYTES: usize = 256;
/// Hash indexes take at most one part in so many of the limit.
const RESERVED_SHARE: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    Block(u32),
    Filter(u32),
    Fences(u32),
}

#[derive(Clone, Debug)]
pub(crate) enum Cached {
    Block(Block),
    Filter(Bytes),
    Fences(Arc<Fences>),
}

type Key = (RunId, Part);

#[derive(Clone, Debug)]
struct PartWeight;

impl Weighter<Key, Cached> for PartWeight {
    fn weight(&self, _key: &Key, part: &Cached) -> u64 {
        let bytes = match part {
            Cached::Block(block) => block.memory_bytes(),
            Cached::Filter(page) => page.len(),
            Cached::Fences(page) => page.memory_bytes(),
        };
        bytes as u64 + BLOCK_OVERHEAD_BYTES
    }
}

/// Cache of key blocks and of pages of filters and fences, limited in bytes. Reservations count
/// against the limit.
#[derive(Debug)]
pub struct BlockCache {
    blocks: Cache<Key, Cached, PartWeight>,
    bytes_max: u64,
    /// Limit for pinned filters and fences, and their bytes.
    pinned_bytes_max: u64,
    pinned_bytes: AtomicU64,
    cold_reads: AtomicU64,
    cold_read_bytes: AtomicU64,
    reserved: Mutex<u64, { rank::CACHE_RESERVED }>,
    hits: AtomicU64,
    misses: AtomicU64,
    spares: Mutex<Vec<BytesMut>, { rank::CACHE_SPARES }>,
    /// Measures reads of blocks that are not here.
    timer: Option<DeviceTimer>,
}

/// Memory that counts against a cache's limit until it is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    cache: Arc<BlockCache>,
    bytes: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut reserved = self.cache.reserved.lock();
        *reserved -= self.bytes;
        self.cache.blocks.set_capacity(self.cache.bytes_max - *reserved);
    }
}

/// Memory of pinned filters and fences, until it is dropped.
#[derive(Debug)]
pub(crate) struct Pin {
    cache: Arc<BlockCache>,
    bytes: u64,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.cache.pinned_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl BlockCache {
    /// Creates a cache of at most `bytes_max` bytes. Pinned filters and fences have no limit.
    pub fn new(bytes_max: usize) -> Self {
        let shards = (bytes_max / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        let options = OptionsBuilder::new()
            .shards(shards)
            .estimated_items_capacity((bytes_max / BLOCK_BYTES).max(16))
            .weight_capacity(bytes_max as u64)
            .build();
        let blocks = match options {
            Ok(options) => Cache::with_options(
                options,
                PartWeight,
                DefaultHashBuilder::default(),
                DefaultLifecycle::default(),
            ),
            Err(_) => Cache::with_weighter(16, bytes_max as u64, PartWeight),
        };
        Self {
            blocks,
            bytes_max: bytes_max as u64,
            pinned_bytes_max: u64::MAX,
            pinned_bytes: AtomicU64::new(0),
            cold_reads: AtomicU64::new(0),
            cold_read_bytes: AtomicU64::new(0),
            reserved: Mutex::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            spares: Mutex::new(Vec::with_capacity(SPARES_MAX)),
            timer: None,
        }
    }

    #[must_use]
    pub(crate) fn with_timer(mut self, timer: Option<DeviceTimer>) -> Self {
        self.timer = timer;
        self
    }

    /// Fills `buffer` from a file, measured as a read of the device if it is one.
    pub(crate) fn fill(&self, file: &dyn VfsFile, buffer: &mut [u8], offset: u64) -> Result<()> {
        match &self.timer {
            Some(timer) => timer.read_exact_at(file, buffer, offset),
            None => file.read_exact_at(buffer, offset),
        }
    }

    /// Limits the memory of pinned filters and fences.
    #[must_use]
    pub fn with_pinned_bytes_max(mut self, bytes_max: usize) -> Self {
        self.pinned_bytes_max = bytes_max as u64;
        self
    }

    pub(crate) fn pinned_bytes_max(&self) -> u64 {
        self.pinned_bytes_max
    }

    /// Returns the bytes of pinned filters and fences.
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes.load(Ordering::Acquire)
    }

    /// Takes `bytes` for pinned filters and fences. Invariant: all pinned filters and fences are within
    /// `index_memory_bytes_max`.
    /// Test: `every_limit_gives_the_same_answers_and_is_kept`.
    pub(crate) fn pin(self: &Arc<Self>, bytes: usize) -> Option<Pin> {
        let bytes = bytes as u64;
        let taken = self.pinned_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, |pinned| {
            pinned.checked_add(bytes).filter(|sum| {
                // bug index.pinned_without_limit: `*sum <= self.pinned_bytes_max` is `true`
                *sum <= self.pinned_bytes_max
            })
        });
        taken.ok().map(|_| Pin { cache: Arc::clone(self), bytes })
    }

    /// Returns the number of reads of filters and fences of cold runs, and their bytes.
    pub fn cold_reads(&self) -> (u64, u64) {
        (self.cold_reads.load(Ordering::Relaxed), self.cold_read_bytes.load(Ordering::Relaxed))
    }

    pub(crate) fn note_cold_read(&self, bytes: u64) {
        // bug index.cold_read_uncounted: skip
        self.cold_reads.fetch_add(1, Ordering::Relaxed);
        // bug index.cold_read_uncounted: skip
        self.cold_read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes in use, reservations included.
    pub fn used_bytes(&self) -> usize {
        (self.blocks.weight() + *self.reserved.lock()) as usize
    }

    /// Returns the numbers of cache hits and misses.
    pub fn hits_misses(&self) -> (u64, u64) {
        (self.hits.load(Ordering::Relaxed), self.misses.load(Ordering::Relaxed))
    }

    /// Evicts the parts of a run that is no longer read.
    pub(crate) fn evict_run(&self, id: RunId) {
        self.blocks.retain(|(run, _), _| *run != id);
    }

    pub(crate) fn get(&self, run: RunId, part: Part) -> Option<Cached> {
        let found = self.blocks.get(&(run, part));
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    pub(crate) fn block(&self, run: RunId, block: usize) -> Option<Block> {
        match self.get(run, Part::Block(block as u32)) {
            Some(Cached::Block(block)) => Some(block),
            _ => None,
        }
    }

    pub(crate) fn insert_block(&self, run: RunId, at: usize, block: Block) {
        self.insert(run, Part::Block(at as u32), Cached::Block(block));
    }

    pub(crate) fn insert(&self, run: RunId, part: Part, content: Cached) {
        let mut dropped = [None, None];
        self.blocks.insert_with_lifecycle((run, part), content, &mut dropped);
        for (_, evicted) in dropped.into_iter().flatten() {
            let memory = match evicted {
                Cached::Block(block) => block.into_memory(),
                Cached::Filter(page) => page.try_into_mut().ok(),
                Cached::Fences(_) => None,
            };
            if let Some(memory) = memory
                && memory.capacity() <= SPARE_BYTES_MAX
                && let Some(mut spares) = self.spares.try_lock()
                && spares.len() < SPARES_MAX
            {
                spares.push(memory);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn spares(&self) -> usize {
        self.spares.lock().len()
    }

    /// Returns a buffer of `bytes` for a block; its content is unspecified.
    pub(crate) fn buffer(&self, bytes: usize) -> BytesMut {
        let spare = self.spares.try_lock().and_then(|mut spares| spares.pop());
        let mut buffer = spare.unwrap_or_default();
        buffer.clear();
        // The cache counts a block by its length, so a much larger buffer would not be counted.
        if !buffer.try_reclaim(bytes) || buffer.capacity() > 2 * bytes {
            buffer = BytesMut::with_capacity(bytes.next_multiple_of(BUFFER_STEP_BYTES));
        }
        buffer.resize(bytes, 0);
        buffer
    }

    /// Takes `bytes` from the limit, unless hash indexes would exceed their share.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: usize) -> Option<Reservation> {
        let (bytes, mut reserved) = (bytes as u64, self.reserved.lock());
        if *reserved + bytes > self.bytes_max / RESERVED_SHARE {
            return None;
        }
        *reserved += bytes;
        self.blocks.set_capacity(self.bytes_max - *reserved);
        Some(Reservation { cache: Arc::clone(self), bytes })
    }
}
