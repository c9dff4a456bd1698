//! Stele, embedded, with its defaults.

use super::Durable;
use crate::workload::KEY_BYTES;
use anyhow::Result;
use bytes::Bytes;
use std::path::Path;
use stele_engine::{Batch, Db, KeyRange, Options, Order};

/// Settling is done when this much was asked for and nothing was left to do.
const STEP_BYTES: u64 = 64 << 20;

pub struct Stele {
    db: Db,
}

impl Stele {
    pub fn open(dir: &Path) -> Result<Self> {
        Ok(Self { db: Db::open(dir, Options::default())? })
    }
}

/// Flushes, and collects until nothing is due.
pub fn settle(db: &Db) -> Result<()> {
    db.flush()?;
    while db.maintain(STEP_BYTES)?.more {}
    Ok(())
}

impl Durable for Stele {
    fn write(&mut self, pairs: &[([u8; KEY_BYTES], &[u8])]) -> Result<()> {
        let mut batch = Batch::new();
        for (key, value) in pairs {
            batch.put(key, value)?;
        }
        Ok(self.db.write(batch)?)
    }

    fn settle(&mut self) -> Result<()> {
        settle(&self.db)
    }

    fn sort(&mut self) -> Result<()> {
        Ok(self.db.compact()?)
    }

    fn get(&self, key: &[u8]) -> Result<Option<usize>> {
        Ok(self.db.get(key)?.map(|value| value.len()))
    }

    fn scan(&self) -> Result<(u64, u64)> {
        let (mut pairs, mut bytes) = (0, 0);
        let all = KeyRange::new(Bytes::new(), Bytes::new());
        for pair in self.db.iter(all, Order::Forward)? {
            (pairs, bytes) = (pairs + 1, bytes + pair?.value.len() as u64);
        }
        Ok((pairs, bytes))
    }
}
