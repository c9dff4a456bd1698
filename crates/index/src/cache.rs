//! Memory for key blocks of runs, and for the hash indexes of as many runs as fit a share of it.

use crate::run::Block;
use bytes::BytesMut;
use parking_lot::Mutex;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_types::RunId;

/// Bookkeeping per block.
const BLOCK_OVERHEAD_BYTES: u64 = 128;
/// Usual size of a block, to size tables.
const BLOCK_BYTES: usize = 4 << 10;
/// Memory per shard below which more shards would evict too early.
const SHARD_BYTES_MIN: usize = 1 << 20;
const SHARDS_MAX: usize = 16;
/// Memory of dropped blocks kept for the next ones: a block comes for each that goes, and memory
/// given back in between would be mapped and cleared anew by the system.
const SPARES_MAX: usize = 8;
/// Larger ones are given back.
const SPARE_BYTES_MAX: usize = 16 << 10;
/// Memory of blocks is taken in multiples of this, so that one block's fits another.
const BUFFER_STEP_BYTES: usize = 256;
/// Share of the limit that hash indexes may take.
const RESERVED_SHARE: u64 = 4;

type Key = (RunId, u32);

#[derive(Clone, Debug)]
struct BlockWeight;

impl Weighter<Key, Block> for BlockWeight {
    fn weight(&self, _key: &Key, block: &Block) -> u64 {
        block.memory_bytes() as u64 + BLOCK_OVERHEAD_BYTES
    }
}

/// Blocks read before, up to a limit in bytes that reservations count against.
#[derive(Debug)]
pub struct BlockCache {
    blocks: Cache<Key, Block, BlockWeight>,
    bytes_max: u64,
    reserved: Mutex<u64>,
    hits: AtomicU64,
    misses: AtomicU64,
    spares: Mutex<Vec<BytesMut>>,
}

/// Memory taken from a cache's limit until dropped.
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
    /// A cache that takes at most `bytes_max` bytes.
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

    /// Bytes in use, reservations included.
    pub fn used_bytes(&self) -> usize {
        (self.blocks.weight() + *self.reserved.lock()) as usize
    }

    /// How many look-ups found their block, and how many did not.
    pub fn hits_misses(&self) -> (u64, u64) {
        (self.hits.load(Ordering::Relaxed), self.misses.load(Ordering::Relaxed))
    }

    /// Gives up the blocks of a run that is no longer read.
    pub fn forget_run(&self, id: RunId) {
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

    /// How many blocks' memory is kept.
    #[cfg(test)]
    pub(crate) fn spares(&self) -> usize {
        self.spares.lock().len()
    }

    /// Memory of `bytes` for a block, with any content.
    pub(crate) fn buffer(&self, bytes: usize) -> BytesMut {
        let spare = self.spares.try_lock().and_then(|mut spares| spares.pop());
        let mut buffer = spare.unwrap_or_default();
        buffer.clear();
        // A block's memory is counted by its length.
        if !buffer.try_reclaim(bytes) || buffer.capacity() > 2 * bytes {
            buffer = BytesMut::with_capacity(bytes.next_multiple_of(BUFFER_STEP_BYTES));
        }
        buffer.resize(bytes, 0);
        buffer
    }

    /// Takes `bytes` from the limit, if hash indexes don't take more than their share by it.
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
