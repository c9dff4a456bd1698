//! lsm-tree: no log, flushes and leveled compaction run inline.

use super::{CACHE_BYTES, MEMTABLE_BYTES, Ordered};
use anyhow::Result;
use lsm_tree::compaction::Leveled;
use lsm_tree::config::{Config, PinningPolicy};
use lsm_tree::{AbstractTree, AnyTree, Cache, Guard, SequenceNumberCounter};
use std::path::Path;
use std::sync::Arc;

pub(super) struct LsmTree {
    tree: AnyTree,
    seq: SequenceNumberCounter,
    compaction: Arc<Leveled>,
    memtable_bytes: u64,
}

impl LsmTree {
    pub(super) fn open(dir: &Path) -> Result<Self> {
        let seq = SequenceNumberCounter::default();
        let tree = Config::new(dir, seq.clone(), SequenceNumberCounter::default())
            .use_cache(Arc::new(Cache::with_capacity_bytes(CACHE_BYTES as u64)))
            // Filters of all levels are in memory, as in the other stores.
            .filter_block_pinning_policy(PinningPolicy::all(true))
            .index_block_pinning_policy(PinningPolicy::all(true))
            .open()?;
        Ok(Self { tree, seq, compaction: Arc::new(Leveled::default()), memtable_bytes: 0 })
    }

    fn flush(&mut self) -> Result<()> {
        self.tree.flush_active_memtable(self.seq.get())?;
        self.tree.compact(self.compaction.clone(), self.seq.get())?;
        self.memtable_bytes = 0;
        Ok(())
    }
}

impl Ordered for LsmTree {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let (_, bytes) = self.tree.insert(key, value, self.seq.next());
        self.memtable_bytes = bytes;
        if self.memtable_bytes >= MEMTABLE_BYTES as u64 {
            self.flush()?;
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        self.flush()
    }

    fn get(&self, key: &[u8]) -> Result<Option<usize>> {
        Ok(self.tree.get(key, self.seq.get())?.map(|value| value.len()))
    }

    fn scan(&self, from: &[u8], limit: usize) -> Result<(usize, usize)> {
        let (mut count, mut bytes) = (0, 0);
        for pair in self.tree.range(from.., self.seq.get(), None).take(limit) {
            let (_, value) = pair.into_inner()?;
            (count, bytes) = (count + 1, bytes + value.len());
        }
        Ok((count, bytes))
    }
}
