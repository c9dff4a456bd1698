//! Stele's index without its log. Flushes and merges run inline, when the product would run them.

use super::{CACHE_BYTES, MEMTABLE_BYTES, Ordered};
use anyhow::Result;
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use stele_gc::{Choice, GcOptions, State, TierState, pick};
use stele_index::{
    Checkpoint, Direction, Found, Index, IndexOptions, Job, JobStep, MergeInputs, MergeSpec, Tier,
};
use stele_types::{Cause, KeyRange, Seq, ValueRef};
use stele_vfs::RealVfs;

const STEP_BYTES: u64 = 8 << 20;

pub(super) struct Stele {
    index: Index,
    seq: u64,
    gc: GcOptions,
}

impl Stele {
    pub(super) fn open(dir: &Path) -> Result<Self> {
        let options = IndexOptions {
            memtable_bytes_max: MEMTABLE_BYTES,
            block_cache_bytes_max: CACHE_BYTES,
            ..IndexOptions::default()
        };
        let (index, _) = Index::open(Arc::new(RealVfs::new()), dir, options)?;
        Ok(Self { index, seq: 0, gc: GcOptions::default() })
    }

    fn run(&self, mut job: Job) -> Result<()> {
        loop {
            if let JobStep::Done(done) = job.step(STEP_BYTES)? {
                return Ok(self.index.commit(done)?);
            }
        }
    }

    fn flush(&self) -> Result<()> {
        self.index.freeze(Checkpoint::default());
        while let Some(job) = self.index.start_flush() {
            self.run(job)?;
        }
        self.merge(0)
    }

    /// Runs all merges that are due after `idle_s` seconds without a write.
    fn merge(&self, idle_s: u64) -> Result<()> {
        while let Some(spec) = self.merge_due(idle_s) {
            let job = self.index.start_merge(spec, None, 0)?;
            self.run(job)?;
        }
        self.index.purge()?;
        Ok(())
    }

    /// Returns the merge that the product would choose for a store with these tiers only.
    fn merge_due(&self, idle_s: u64) -> Option<MergeSpec> {
        let version = self.index.version();
        let seen = |tier: &Tier| TierState { bytes: tier.bytes, ..TierState::default() };
        let tiers = version.tiers().iter().map(seen).collect();
        let choice = pick(&State { tiers, idle_s, ..State::default() }, &self.gc);
        let Choice::Merge { first, count } = choice else { return None };
        let ages = version.tiers().iter().skip(first).take(count).map(|tier| tier.age).collect();
        Some(MergeSpec { inputs: MergeInputs::Tiers(ages), cause: Cause::Merge })
    }
}

impl Ordered for Stele {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.seq += 1;
        let value = ValueRef::Inline(Bytes::copy_from_slice(value));
        self.index.put(Seq(self.seq), key, value, 0);
        self.index.publish(Seq(self.seq));
        if self.index.memtable_bytes() >= MEMTABLE_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        self.flush()?;
        self.merge(self.gc.merge_idle_s)
    }

    fn get(&self, key: &[u8]) -> Result<Option<usize>> {
        Ok(match self.index.get(key)? {
            Some(Found::Value { value, .. }) => Some(value.len() as usize),
            _ => None,
        })
    }

    fn scan(&self, from: &[u8], limit: usize) -> Result<(usize, usize)> {
        let range = KeyRange::new(Bytes::copy_from_slice(from), Bytes::new());
        let mut pairs = self.index.view().iter(range, Direction::Forward)?;
        let (mut count, mut bytes) = (0, 0);
        while count < limit && pairs.advance()? {
            (count, bytes) = (count + 1, bytes + pairs.value().len() as usize);
        }
        Ok((count, bytes))
    }
}
