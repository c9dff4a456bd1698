//! Putting other replicas' copies of lost values where the index leads to.

use super::install::{Ingest, lock_flushed, make_current};
use super::lost_values::is_at;
use super::{Store, View};
use bytes::Bytes;
use stele_gc::Forced;
use stele_storage::Pair;
use stele_types::{Error, KeyRange, Locator, Result, mutant};

impl Store {
    /// Writes the copies that came. They go the way of a snapshot's pairs, one range per key: values
    /// to a sorted file, then one manifest edit, all of it or nothing. Returns the bytes.
    pub(super) fn write_value_repairs(&self) -> Result<u64> {
        let shared = self.shared();
        if !shared.damage.has_lost() {
            return Ok(0);
        }
        match shared.damage.confirm(shared).and_then(|()| self.write_copies()) {
            // The copies wait: for space, or for who writes these keys right now.
            Err(Error::NoSpace(_) | Error::Busy(_)) => Ok(0),
            // Part of the index can't be read: nothing else waits for that.
            Err(error) if error.is_damage() => Ok(0),
            done => done,
        }
    }

    fn write_copies(&self) -> Result<u64> {
        let shared = self.shared();
        let copies = shared.damage.copies();
        if copies.is_empty() {
            return Ok(0);
        }
        let ranges: Vec<KeyRange> = copies.iter().map(|(key, ..)| only(key)).collect();
        // Rule: with nothing being applied, a key still has the value that was lost. A later write
        // must not be replaced by what it replaced.
        let _applying = lock_flushed(self, &ranges)?;
        let (places, pairs): (Vec<Locator>, Vec<Pair>) = self.current(copies)?.into_iter().unzip();
        if pairs.is_empty() {
            return Ok(0);
        }
        let keys: Vec<Bytes> = pairs.iter().map(|pair| pair.key.clone()).collect();
        let bytes = pairs.iter().map(|pair| (pair.key.len() + pair.value.len()) as u64).sum();
        self.admit_bytes(bytes)?;
        let mut incoming = Ingest::new(shared, &self.lock, keys.iter().map(only).collect())?;
        incoming.receive(pairs)?;
        incoming.finish()?;
        make_current(shared, incoming, None)?;
        shared.damage.note_mended(&keys);
        self.gc.note_mended(keys.iter().map(|key| &key[..]).zip(&places));
        Ok(bytes)
    }

    /// Puts pairs in place of what a damaged block of a run may hold. Order: the pairs are current in
    /// a tier above the block before it counts as empty.
    pub(super) fn write_block_repair(&self, range: &KeyRange, pairs: Vec<Pair>) -> Result<()> {
        let shared = self.shared();
        let ranges = vec![range.clone()];
        let mut incoming = Ingest::new(shared, &self.lock, ranges.clone())?;
        incoming.receive(pairs)?;
        incoming.finish()?;
        let _applying = lock_flushed(self, &ranges)?;
        make_current(shared, incoming, None)?;
        for (run, blocks) in shared.blocks.note_covered(range) {
            shared.index.mask_blocks(run, &blocks);
        }
        Ok(())
    }

    /// Writes runs anew that are damaged where memory has what the file has lost, or whose damaged
    /// blocks count as empty. What fails is found again by the next look.
    pub(super) fn rewrite_damaged(&self) -> Result<()> {
        let shared = self.shared();
        if shared.blocks.has_lost() {
            let version = shared.index.version();
            shared.blocks.retain(|run| version.runs().any(|current| current.id() == run));
        }
        let Some(run) = shared.blocks.next_rewrite() else { return Ok(()) };
        let written = self.gc.force(Forced::Rewrite(run));
        if written.is_ok() && shared.index.version().runs().any(|current| current.id() == run) {
            // Another merge runs.
            shared.blocks.schedule_rewrite(run);
        }
        match written {
            Err(error) if error.is_damage() => Ok(()),
            Err(Error::NoSpace(_) | Error::Busy(_)) => Ok(()),
            done => done,
        }
    }

    /// Those of the copies whose keys still have the lost value: where that lies, and the copies as
    /// pairs with what else the index knows of them.
    fn current(&self, copies: Vec<(Bytes, Locator, Bytes)>) -> Result<Vec<(Locator, Pair)>> {
        let shared = self.shared();
        let view = View::new(shared);
        let mut pairs = Vec::new();
        for (key, at, value) in copies {
            let is_lost = is_at(shared, &key, &at)? || mutant::active("engine.mend_over_newer");
            if let Some((_, expires_at_s)) = view.reference(&key)?.filter(|_| is_lost) {
                pairs.push((at, Pair { key, value, expires_at_s }));
            }
        }
        Ok(pairs)
    }
}

/// The range that holds one key.
fn only(key: &Bytes) -> KeyRange {
    let mut end = key.to_vec();
    end.push(0);
    KeyRange { start: key.clone(), end: end.into() }
}
