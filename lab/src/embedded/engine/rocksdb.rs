//! RocksDB with blob files; every batch is written with a sync.

use super::Durable;
use super::fairness::Fairness;
use crate::designs::rocks::{Batch, Db, Durability, Tier};
use crate::workload::KEY_BYTES;
use anyhow::Result;
use std::path::Path;

/// Length from which values go to blob files.
const BLOB_BYTES_MIN: u64 = 512;

pub(super) struct RocksDb {
    db: Db,
}

impl RocksDb {
    pub(super) fn open(dir: &Path, fairness: Fairness) -> Result<Self> {
        let mut options = format!(
            "create_if_missing=true;compression=kNoCompression;enable_blob_files=true;\
             min_blob_size={BLOB_BYTES_MIN};enable_blob_garbage_collection={}",
            !matches!(fairness, Fairness::Unbounded { .. })
        );
        if let Fairness::Bounded { file_bytes, .. } | Fairness::Unbounded { file_bytes } = fairness
        {
            options.push_str(&format!(";blob_file_size={file_bytes}"));
        }
        if let Fairness::Bounded { stale_share, .. } = fairness {
            options.push_str(&format!(
                ";blob_garbage_collection_age_cutoff=1.0;\
                 blob_garbage_collection_force_threshold={stale_share}"
            ));
        }
        Ok(Self { db: Db::open(dir, &options)? })
    }
}

impl Durable for RocksDb {
    fn write(&mut self, pairs: &[([u8; KEY_BYTES], &[u8])]) -> Result<()> {
        let mut batch = Batch::new();
        for (key, value) in pairs {
            batch.put(key, [value, &[]]);
        }
        Ok(self.db.write(&batch, Durability::Synced)?)
    }

    fn settle(&mut self) -> Result<()> {
        Ok(self.db.settle()?)
    }

    fn compact(&mut self) -> Result<()> {
        self.db.compact();
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<usize>> {
        Ok(self.db.get(key, Tier::All, <[u8]>::len)?)
    }

    fn scan(&self) -> Result<(u64, u64)> {
        let (pairs, bytes) = self.db.scan(&[], usize::MAX)?;
        Ok((pairs as u64, bytes as u64))
    }
}
