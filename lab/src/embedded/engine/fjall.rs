//! fjall with key-value separation; every batch is committed with a data sync.

use super::Durable;
use super::fairness::Fairness;
use crate::workload::KEY_BYTES;
use anyhow::Result;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode};
use std::path::Path;
use std::time::Duration;

/// Size of Stele's caches by default.
const CACHE_BYTES: u64 = 128 << 20;
const POLL: Duration = Duration::from_millis(2);

pub(super) struct Fjall {
    db: Database,
    pairs: Keyspace,
}

impl Fjall {
    pub(super) fn open(dir: &Path, fairness: Fairness) -> Result<Self> {
        let db = Database::builder(dir).cache_size(CACHE_BYTES).open()?;
        let separated = Some(separation(fairness));
        let options = || KeyspaceCreateOptions::default().with_kv_separation(separated.clone());
        let pairs = db.keyspace("pairs", options)?;
        Ok(Self { db, pairs })
    }
}

/// Returns the key-value separation settings. A compaction empties the oldest `age_cutoff` of the
/// value files with a known dead share of `staleness_threshold`, unless a table outside the
/// compaction refers to them.
fn separation(fairness: Fairness) -> KvSeparationOptions {
    let options = KvSeparationOptions::default();
    match fairness {
        Fairness::Bounded { file_bytes, stale_share } => {
            options.file_target_size(file_bytes).staleness_threshold(stale_share).age_cutoff(1.0)
        }
        Fairness::Unbounded { file_bytes } => options.file_target_size(file_bytes).age_cutoff(0.0),
        Fairness::Defaults => options,
    }
}

impl Durable for Fjall {
    fn write(&mut self, pairs: &[([u8; KEY_BYTES], &[u8])]) -> Result<()> {
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncData));
        for (key, value) in pairs {
            batch.insert(&self.pairs, key.as_slice(), *value);
        }
        Ok(batch.commit()?)
    }

    fn settle(&mut self) -> Result<()> {
        self.pairs.rotate_memtable_and_wait()?;
        while self.db.outstanding_flushes() > 0 || self.db.active_compactions() > 0 {
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn compact(&mut self) -> Result<()> {
        Ok(self.pairs.major_compact()?)
    }

    fn get(&self, key: &[u8]) -> Result<Option<usize>> {
        Ok(self.pairs.get(key)?.map(|value| value.len()))
    }

    fn scan(&self) -> Result<(u64, u64)> {
        let (mut pairs, mut bytes) = (0, 0);
        for pair in self.pairs.iter() {
            (pairs, bytes) = (pairs + 1, bytes + pair.into_inner()?.1.len() as u64);
        }
        Ok((pairs, bytes))
    }
}
