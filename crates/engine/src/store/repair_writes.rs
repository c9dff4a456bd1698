//! Installation of other replicas' copies of lost values and blocks.

use super::install::{Ingest, lock_flushed, make_current};
use super::losses::is_at;
use super::{Store, View};
use bytes::Bytes;
use stele_gc::Forced;
use stele_storage::Pair;
use stele_types::{Error, KeyRange, Locator, Result};

impl Store {
    /// Writes the copies that arrived. They are installed as a snapshot's pairs are, one range per
    /// key: values to a sorted file, then one manifest edit, atomically. Returns the bytes.
    pub(super) fn write_value_repairs(&self) -> Result<u64> {
        let shared = self.shared();
        if !shared.lost_values.has_lost() {
            return Ok(0);
        }
        match shared.lost_values.confirm(shared).and_then(|()| self.write_copies()) {
            // The copies wait: for space, or for a writer of these keys.
            Err(Error::NoSpace(_) | Error::Busy(_)) => Ok(0),
            // Part of the index cannot be read: other work does not wait for that.
            Err(error) if error.is_damage() => Ok(0),
            done => done,
        }
    }

    fn write_copies(&self) -> Result<u64> {
        let shared = self.shared();
        let copies = shared.lost_values.copies();
        if copies.is_empty() {
            return Ok(0);
        }
        let ranges: Vec<KeyRange> =
            copies.iter().map(|(key, ..)| KeyRange::of_key(key.clone())).collect();
        // Invariant: a copy replaces the requested value, and no later write: while nothing is applied, the key
        // still has the lost value.
        // Test: `a_value_that_cannot_be_read_is_replaced_by_its_copy_and_by_nothing_else`.
        let applying = lock_flushed(self, &ranges)?;
        let (places, pairs): (Vec<Locator>, Vec<Pair>) = self.current(copies)?.into_iter().unzip();
        if pairs.is_empty() {
            return Ok(0);
        }
        let keys: Vec<Bytes> = pairs.iter().map(|pair| pair.key.clone()).collect();
        let bytes = pairs.iter().map(|pair| (pair.key.len() + pair.value.len()) as u64).sum();
        self.admit_bytes(bytes)?;
        let mut ingest =
            Ingest::new(shared, &self.lock, keys.iter().cloned().map(KeyRange::of_key).collect())?;
        ingest.receive(pairs)?;
        ingest.finish()?;
        make_current(shared, ingest, None)?;
        shared.lost_values.note_repaired(&keys);
        // Garbage collection holds its lock while it waits for this one.
        // bug engine.repair_noted_under_lock: skip
        drop(applying);
        self.gc.note_repaired(keys.iter().map(|key| &key[..]).zip(&places));
        Ok(bytes)
    }

    /// Installs the pairs of a range that damaged blocks of runs may hold. Order: the pairs are
    /// current in a tier above the blocks before these are masked, for these keys or completely.
    pub(super) fn write_block_repair(&self, range: &KeyRange, pairs: Vec<Pair>) -> Result<()> {
        let shared = self.shared();
        let ranges = vec![range.clone()];
        let mut ingest = Ingest::new(shared, &self.lock, ranges.clone())?;
        ingest.receive(pairs)?;
        ingest.finish()?;
        let _applying = lock_flushed(self, &ranges)?;
        make_current(shared, ingest, None)?;
        for (run, blocks) in shared.lost_blocks.note_covered(range) {
            shared.index.cover_range(run, range);
            if !blocks.is_empty() {
                shared.index.mask_blocks(run, &blocks);
            }
        }
        Ok(())
    }

    /// Rewrites runs that are damaged on the device but complete in memory, or have masked blocks.
    /// The scrub finds failures again.
    pub(super) fn rewrite_damaged(&self) -> Result<()> {
        let shared = self.shared();
        if shared.lost_blocks.has_lost() {
            let version = shared.index.version();
            shared.lost_blocks.retain(|run| version.runs().any(|current| current.id() == run));
        }
        for run in shared.index.take_damaged_runs() {
            // bug engine.cold_damage_not_rewritten: skip
            shared.lost_blocks.schedule_rewrite(run);
        }
        let Some(run) = shared.lost_blocks.next_rewrite() else { return Ok(()) };
        let written = self.gc.force(Forced::Rewrite(run));
        let is_damage = written.as_ref().is_err_and(Error::is_damage);
        if !is_damage && shared.index.version().runs().any(|current| current.id() == run) {
            // Another merge runs, or space is short: the rewrite is tried again later.
            shared.lost_blocks.schedule_rewrite(run);
        }
        match written {
            Err(error) if error.is_damage() => {
                shared.lost_blocks.note_failed_job(&error);
                Ok(())
            }
            Err(Error::NoSpace(_) | Error::Busy(_)) => Ok(()),
            done => done,
        }
    }

    /// Returns the copies of keys that still have the lost value: its location, and the copy as a
    /// pair with the expiry in the index.
    fn current(&self, copies: Vec<(Bytes, Locator, Bytes)>) -> Result<Vec<(Locator, Pair)>> {
        let shared = self.shared();
        let view = View::new(shared);
        let mut pairs = Vec::new();
        for (key, at, value) in copies {
            let is_lost = is_at(shared, &key, &at)?;
            // bug engine.mend_over_newer: let is_lost = true;
            if let Some((_, expires_at_s)) = view.reference(&key)?.filter(|_| is_lost) {
                pairs.push((at, Pair { key, value, expires_at_s }));
            }
        }
        Ok(pairs)
    }
}
