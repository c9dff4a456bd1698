//! Cache for key blocks of runs. Hash indexes of runs take up to a share of its limit.

use crate::run::Block;
use bytes::BytesMut;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_types::RunId;
use stele_types::lock::{Mutex, rank};

/// Bookkeeping bytes per block.
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

type Key = (RunId, u32);

#[derive(Clone, Debug)]
struct BlockWeight;

impl Weighter<Key, Block> for BlockWeight {
    fn weight(&self, _key: &Key, block: &Block) -> u64 {
        block.memory_bytes() as u64 + BLOCK_OVERHEAD_BYTES
    }
}

/// Cache of key blocks, limited in bytes. Reservations count against the limit.
#[derive(Debug)]
pub struct BlockCache {
    blocks: Cache<Key, Block, BlockWeight>,
    bytes_max: u64,
    reserved: Mutex<u64, { rank::CACHE_RESERVED }>,
    hits: AtomicU64,
    misses: AtomicU64,
    spares: Mutex<Vec<BytesMut>, { rank::CACHE_SPARES }>,
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

impl BlockCache {
    /// Creates a cache of at most `bytes_max` bytes.
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
                BlockWeight,
                DefaultHashBuilder::default(),
                DefaultLifecycle::default(),
            ),
            Err(_) => Cache::with_weighter(16, bytes_max as u64, BlockWeight),
        };
        Self {
            blocks,
            bytes_max: bytes_max as u64,
            reserved: Mutex::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            spares: Mutex::new(Vec::with_capacity(SPARES_MAX)),
        }
    }

    /// Returns the bytes in use, reservations included.
    pub fn used_bytes(&self) -> usize {
        (self.blocks.weight() + *self.reserved.lock()) as usize
    }

    /// Returns the numbers of cache hits and misses.
    pub fn hits_misses(&self) -> (u64, u64) {
        (self.hits.load(Ordering::Relaxed), self.misses.load(Ordering::Relaxed))
    }

    /// Evicts the blocks of a run that is no longer read.
    pub fn evict_run(&self, id: RunId) {
        self.blocks.retain(|(run, _), _| *run != id);
    }

    pub(crate) fn get(&self, run: RunId, block: u32) -> Option<Block> {
        let found = self.blocks.get(&(run, block));
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    pub(crate) fn insert(&self, run: RunId, block: u32, bytes: Block) {
        let mut dropped = [None, None];
        self.blocks.insert_with_lifecycle((run, block), bytes, &mut dropped);
        for (_, block) in dropped.into_iter().flatten() {
            if let Some(memory) = block.into_memory()
                && memory.capacity() <= SPARE_BYTES_MAX
                && let Some(mut spares) = self.spares.try_lock()
                && spares.len() < SPARES_MAX
            {
                spares.push(memory);
            }
        }
    }

    /// Returns the number of spare buffers.
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
