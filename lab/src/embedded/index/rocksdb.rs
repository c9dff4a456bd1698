//! RocksDB without its log. Flushes and compactions run on its own threads.

use super::{CACHE_BYTES, MEMTABLE_BYTES, Ordered};
use anyhow::Result;
use rocksdb::{
    BlockBasedOptions, Cache, DB, Direction, FlushOptions, IteratorMode, Options,
    WaitForCompactOptions, WriteOptions,
};
use std::path::Path;

const FILTER_BITS_PER_KEY: f64 = 10.0;

pub struct RocksDb {
    db: DB,
    write: WriteOptions,
}

impl RocksDb {
    pub fn open(dir: &Path) -> Result<Self> {
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_cache(&Cache::new_lru_cache(CACHE_BYTES));
        blocks.set_bloom_filter(FILTER_BITS_PER_KEY, false);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&blocks);
        options.set_write_buffer_size(MEMTABLE_BYTES);
        let mut write = WriteOptions::default();
        write.disable_wal(true);
        Ok(Self { db: DB::open(&options, dir)?, write })
    }
}

impl Ordered for RocksDb {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.db.put_opt(key, value, &self.write)?)
    }

    fn settle(&mut self) -> Result<()> {
        self.db.flush_opt(&FlushOptions::default())?;
        Ok(self.db.wait_for_compact(&WaitForCompactOptions::default())?)
    }

    fn get(&self, key: &[u8]) -> Result<Option<usize>> {
        Ok(self.db.get_pinned(key)?.map(|value| value.len()))
    }

    fn scan(&self, from: &[u8], limit: usize) -> Result<(usize, usize)> {
        let (mut count, mut bytes) = (0, 0);
        let from = IteratorMode::From(from, Direction::Forward);
        for pair in self.db.iterator(from).take(limit) {
            let (_, value) = pair?;
            (count, bytes) = (count + 1, bytes + value.len());
        }
        Ok((count, bytes))
    }
}
