//! Stele, embedded: with default settings, or without garbage collection.

use super::Durable;
use super::fairness::Fairness;
use crate::workload::KEY_BYTES;
use anyhow::Result;
use bytes::Bytes;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use stele_engine::{Batch, Db, GcOptions, KeyRange, Options, Order};

/// Limit of one settling step; settling ends after this much without work left.
const STEP_BYTES: u64 = 64 << 20;
/// Longer than the idle time before an idle store merges.
const IDLE: Duration = Duration::from_secs(6);
const POLL: Duration = Duration::from_millis(200);
/// Largest permitted value, far above what the updates here can reach.
const SPACE_AMP_NEVER: f64 = 100.0;

/// Longest overhead of a pair in a batch, besides key and value.
const PAIR_HEADER_BYTES: usize = 24;

pub(super) struct Stele {
    db: Db,
}

impl Stele {
    pub(super) fn open(dir: &Path, fairness: Fairness) -> Result<Self> {
        Ok(Self { db: Db::open(dir, options(fairness))? })
    }
}

fn options(fairness: Fairness) -> Options {
    let defaults = Options::default();
    let (file_bytes, gc) = match fairness {
        Fairness::Defaults => return defaults,
        Fairness::Bounded { file_bytes, .. } => (file_bytes, GcOptions::default()),
        Fairness::Unbounded { file_bytes } => {
            let gc = GcOptions {
                space_amp_target: SPACE_AMP_NEVER,
                space_amp_hard: SPACE_AMP_NEVER,
                scan_load_ratio: 0.0,
                ..GcOptions::default()
            };
            (file_bytes, gc)
        }
    };
    let gc = GcOptions { value_file_bytes_max: file_bytes, ..gc };
    Options { segment_bytes_max: file_bytes, gc, ..defaults }
}

/// Flushes, and runs garbage collection and merges until none is due, including those of an idle
/// store.
pub(crate) fn settle(db: &Db) -> Result<()> {
    db.flush()?;
    while db.maintain(STEP_BYTES)?.more {}
    let began = Instant::now();
    while began.elapsed() <= IDLE {
        thread::sleep(POLL);
        while db.maintain(STEP_BYTES)?.more {}
    }
    Ok(())
}

impl Durable for Stele {
    fn write(&mut self, pairs: &[([u8; KEY_BYTES], &[u8])]) -> Result<()> {
        let bytes =
            pairs.iter().map(|(key, value)| key.len() + value.len() + PAIR_HEADER_BYTES).sum();
        let mut batch = Batch::with_capacity(bytes);
        for (key, value) in pairs {
            batch.put(key, value)?;
        }
        Ok(self.db.write(batch)?)
    }

    fn settle(&mut self) -> Result<()> {
        settle(&self.db)
    }

    fn compact(&mut self) -> Result<()> {
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
