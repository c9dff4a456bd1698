//! Mixes of operations (YCSB core workloads), and how one operation is done.

use super::choice::{Choice, Prng};
use super::latency::Kind;
use super::records::Records;
use crate::args::{Bench, Workload};
use crate::store::Store;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use stele_types::Result;

/// A mix, and the records there are so far.
pub struct Mix<'a> {
    workload: Workload,
    records: &'a Records,
    choice: Choice,
    batch: u64,
    scan_length_max: u64,
    /// Records handed out for insertion, and the first of them not known to be there.
    next_insert: AtomicU64,
    inserted: AtomicU64,
    /// Bytes of keys and values handed in by writes.
    pub payload_bytes: AtomicU64,
    pub read_bytes: AtomicU64,
    pub not_found: AtomicU64,
}

impl<'a> Mix<'a> {
    pub fn new(args: &Bench, records: &'a Records, workload: Workload) -> Self {
        let there = if workload == Workload::Load { 0 } else { args.records };
        let choice = match workload {
            // A load chooses nothing, and preparing a distribution takes time.
            Workload::Load => Choice::Uniform,
            _ => Choice::new(args),
        };
        Self {
            workload,
            records,
            choice,
            batch: args.batch,
            scan_length_max: args.scan_length_max,
            next_insert: AtomicU64::new(there),
            inserted: AtomicU64::new(there),
            payload_bytes: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            not_found: AtomicU64::new(0),
        }
    }

    /// How many operations one call of [`Mix::step`] does.
    pub fn step_operations(&self) -> u64 {
        match self.workload {
            Workload::Load | Workload::Update => self.batch,
            _ => 1,
        }
    }

    /// Draws what the next step is.
    pub fn kind(&self, prng: &mut Prng) -> Kind {
        let percent = prng.below(100);
        match self.workload {
            Workload::Load => Kind::Insert,
            Workload::Update => Kind::Update,
            Workload::A if percent < 50 => Kind::Read,
            Workload::A => Kind::Update,
            Workload::B if percent < 95 => Kind::Read,
            Workload::B => Kind::Update,
            Workload::C => Kind::Read,
            Workload::D if percent < 95 => Kind::Read,
            Workload::E if percent < 95 => Kind::Scan,
            Workload::D | Workload::E => Kind::Insert,
            Workload::F if percent < 50 => Kind::Read,
            Workload::F => Kind::ReadModifyWrite,
        }
    }

    /// Does a step of up to `operations` operations.
    pub fn step(&self, store: &Store, kind: Kind, operations: u64, prng: &mut Prng) -> Result<()> {
        match kind {
            Kind::Read => self.read(store, &self.chosen_key(prng)),
            Kind::Update => {
                let keys = (0..operations).map(|_| self.chosen_key(prng)).collect();
                self.write(store, keys, prng)
            }
            Kind::Insert => {
                let first = self.next_insert.fetch_add(operations, Relaxed);
                let keys = (first..first + operations).map(|i| self.records.key(i)).collect();
                self.write(store, keys, prng)?;
                // May run ahead of a slower thread's insert; its record then counts as not found.
                self.inserted.fetch_max(first + operations, Relaxed);
                Ok(())
            }
            Kind::Scan => {
                let length = 1 + prng.below(self.scan_length_max);
                let (_, bytes) = store.scan_from(&self.chosen_key(prng), length as usize)?;
                self.read_bytes.fetch_add(bytes, Relaxed);
                Ok(())
            }
            Kind::ReadModifyWrite => {
                let key = self.chosen_key(prng);
                self.read(store, &key)?;
                self.write(store, vec![key], prng)
            }
        }
    }

    fn chosen_key(&self, prng: &mut Prng) -> Vec<u8> {
        self.records.key(self.choice.draw(prng, self.inserted.load(Relaxed)))
    }

    fn read(&self, store: &Store, key: &[u8]) -> Result<()> {
        match store.get(key)? {
            Some((value, _)) => self.read_bytes.fetch_add(value.len() as u64, Relaxed),
            None => self.not_found.fetch_add(1, Relaxed),
        };
        Ok(())
    }

    fn write(&self, store: &Store, keys: Vec<Vec<u8>>, prng: &mut Prng) -> Result<()> {
        if let [key] = keys.as_slice() {
            store.put(key, self.records.value(prng), None)?;
        } else {
            let pair = |key: &'_ Vec<u8>| (key.clone(), self.records.value(prng));
            let pairs: Vec<(Vec<u8>, &[u8])> = keys.iter().map(pair).collect();
            store.put_all(pairs.iter().map(|(key, value)| (key.as_slice(), *value)))?;
        }
        self.payload_bytes.fetch_add(keys.len() as u64 * self.records.record_bytes(), Relaxed);
        Ok(())
    }
}
