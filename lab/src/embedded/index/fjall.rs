//! fjall: its journal cannot be disabled, but is not synced here. Flushes and compactions run on
//! its own threads.

use super::{CACHE_BYTES, MEMTABLE_BYTES, Ordered};
use anyhow::Result;
use fjall::{Database, Keyspace, KeyspaceCreateOptions};
use std::path::Path;
use std::time::Duration;

const POLL: Duration = Duration::from_millis(2);

pub(super) struct Fjall {
    db: Database,
    keys: Keyspace,
}

impl Fjall {
    pub(super) fn open(dir: &Path) -> Result<Self> {
        let db = Database::builder(dir).cache_size(CACHE_BYTES as u64).open()?;
        let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES as u64);
        let keys = db.keyspace("keys", options)?;
        Ok(Self { db, keys })
    }
}

impl Ordered for Fjall {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.keys.insert(key, value)?)
    }

    fn settle(&mut self) -> Result<()> {
        self.keys.rotate_memtable_and_wait()?;
        while self.db.outstanding_flushes() > 0 || self.db.active_compactions() > 0 {
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<usize>> {
        Ok(self.keys.get(key)?.map(|value| value.len()))
    }

    fn scan(&self, from: &[u8], limit: usize) -> Result<(usize, usize)> {
        let (mut count, mut bytes) = (0, 0);
        for pair in self.keys.range(from..).take(limit) {
            let (_, value) = pair.into_inner()?;
            (count, bytes) = (count + 1, bytes + value.len());
        }
        Ok((count, bytes))
    }
}
