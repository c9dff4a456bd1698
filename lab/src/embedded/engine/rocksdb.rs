//! RocksDB with blob files; every batch is written with a sync.

use super::Durable;
use super::fairness::Fairness;
use crate::embedded::workload::KEY_BYTES;
use anyhow::Result;
use rocksdb::{
    DB, FlushOptions, IteratorMode, Options, WaitForCompactOptions, WriteBatch, WriteOptions,
};
use std::path::Path;

/// Length from which values go to blob files.
const BLOB_BYTES_MIN: u64 = 512;

pub struct RocksDb {
    db: DB,
    write: WriteOptions,
}

impl RocksDb {
    pub fn open(dir: &Path, fairness: Fairness) -> Result<Self> {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_enable_blob_files(true);
        options.set_min_blob_size(BLOB_BYTES_MIN);
        options.set_enable_blob_gc(!matches!(fairness, Fairness::Unbounded { .. }));
        if let Fairness::Bounded { file_bytes, .. } | Fairness::Unbounded { file_bytes } = fairness
        {
            options.set_blob_file_size(file_bytes);
        }
        if let Fairness::Bounded { stale_share, .. } = fairness {
            options.set_blob_gc_age_cutoff(1.0);
            options.set_blob_gc_force_threshold(f64::from(stale_share));
        }
        let mut write = WriteOptions::default();
        write.set_sync(true);
        Ok(Self { db: DB::open(&options, dir)?, write })
    }
}

impl Durable for RocksDb {
    fn write(&mut self, pairs: &[([u8; KEY_BYTES], &[u8])]) -> Result<()> {
        let mut batch = WriteBatch::default();
        for (key, value) in pairs {
            batch.put(key, value);
        }
        Ok(self.db.write_opt(batch, &self.write)?)
    }

    fn settle(&mut self) -> Result<()> {
        self.db.flush_opt(&FlushOptions::default())?;
        Ok(self.db.wait_for_compact(&WaitForCompactOptions::default())?)
    }

    fn compact(&mut self) -> Result<()> {
        self.db.compact_range(None::<&[u8]>, None::<&[u8]>);
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<usize>> {
        Ok(self.db.get_pinned(key)?.map(|value| value.len()))
    }

    fn scan(&self) -> Result<(u64, u64)> {
        let (mut pairs, mut bytes) = (0, 0);
        for pair in self.db.iterator(IteratorMode::Start) {
            (pairs, bytes) = (pairs + 1, bytes + pair?.1.len() as u64);
        }
        Ok((pairs, bytes))
    }
}
