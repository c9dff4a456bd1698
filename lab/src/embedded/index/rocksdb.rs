//! RocksDB without its log. Flushes and compactions run on its own threads.

use super::{CACHE_BYTES, MEMTABLE_BYTES, Ordered};
use crate::designs::rocks::{Batch, Db, Durability, Tier};
use anyhow::Result;
use std::path::Path;

const FILTER_BITS_PER_KEY: u32 = 10;

pub(super) struct RocksDb {
    db: Db,
}

impl RocksDb {
    pub(super) fn open(dir: &Path) -> Result<Self> {
        let options = format!(
            "create_if_missing=true;compression=kNoCompression;write_buffer_size={MEMTABLE_BYTES};\
             block_based_table_factory={{block_cache={CACHE_BYTES};\
             filter_policy=bloomfilter:{FILTER_BITS_PER_KEY}:false}}"
        );
        Ok(Self { db: Db::open(dir, &options)? })
    }
}

impl Ordered for RocksDb {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut batch = Batch::new();
        batch.put(key, [value, &[]]);
        Ok(self.db.write(&batch, Durability::Volatile)?)
    }

    fn settle(&mut self) -> Result<()> {
        Ok(self.db.settle()?)
    }

    fn get(&self, key: &[u8]) -> Result<Option<usize>> {
        Ok(self.db.get(key, Tier::All, <[u8]>::len)?)
    }

    fn scan(&self, from: &[u8], limit: usize) -> Result<(usize, usize)> {
        Ok(self.db.scan(from, limit)?)
    }
}
