//! Mixes of operations: the core workloads of YCSB, shares of updates (Nezha, figure 8), shares of
//! scans.

use crate::args::{Load, Workload};
use crate::choice::Choice;
use crate::latency::Kind;
use crate::records::Records;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use stele_types::Prng;

/// Next operation of a client.
pub struct Step {
    /// Its operations are all of this kind.
    pub kind: Kind,
    /// One key, or the keys of a batch of writes.
    pub keys: Vec<Vec<u8>>,
    /// Number of pairs to scan.
    pub scan_length: usize,
    /// Number of records after this step.
    inserted: u64,
}

/// Mix of operations, and the number of records inserted so far.
pub struct Mix {
    shares: Vec<(Kind, u64)>,
    records: Arc<Records>,
    choice: Choice,
    batch: u64,
    deletes_percent: u64,
    scan_length_max: u64,
    /// Next record to insert.
    next_insert: AtomicU64,
    inserted: Inserted,
    /// Bytes of keys and values of all writes.
    pub payload_bytes: AtomicU64,
    /// Bytes of keys and values that scans returned, and of values that reads found.
    pub read_bytes: AtomicU64,
    /// Reads of keys that do not exist.
    pub not_found: AtomicU64,
}

/// Returns the kinds of operations with their percentages.
fn shares(workload: Workload) -> Vec<(Kind, u64)> {
    let reads_and = |kind, percent| vec![(kind, percent), (Kind::Read, 100 - percent)];
    let scans = |percent| vec![(Kind::Scan, percent), (Kind::Update, 100 - percent)];
    match workload {
        Workload::Load => vec![(Kind::Insert, 100)],
        Workload::Update => vec![(Kind::Update, 100)],
        Workload::A | Workload::W50 => reads_and(Kind::Update, 50),
        Workload::B => reads_and(Kind::Update, 5),
        Workload::C => vec![(Kind::Read, 100)],
        Workload::D => reads_and(Kind::Insert, 5),
        Workload::E => vec![(Kind::Scan, 95), (Kind::Insert, 5)],
        Workload::F => reads_and(Kind::ReadModifyWrite, 50),
        Workload::W90 => reads_and(Kind::Update, 90),
        Workload::W70 => reads_and(Kind::Update, 70),
        Workload::W30 => reads_and(Kind::Update, 30),
        Workload::W10 => reads_and(Kind::Update, 10),
        Workload::S90 => scans(90),
        Workload::S70 => scans(70),
        Workload::S50 => scans(50),
        Workload::S30 => scans(30),
        Workload::S10 => scans(10),
    }
}

impl Mix {
    /// Creates the mix. Writes form batches only in a workload of writes. Each round of a load
    /// inserts other records.
    pub fn new(
        load: &Load,
        records: Arc<Records>,
        workload: Workload,
        batch: u64,
        round: u64,
    ) -> Self {
        let there = load.records * if workload == Workload::Load { round } else { 1 };
        let choice = match workload {
            // A load chooses no records, and preparing a distribution takes time.
            Workload::Load => Choice::Uniform,
            _ => Choice::new(load),
        };
        let only_writes = matches!(workload, Workload::Load | Workload::Update);
        Self {
            shares: shares(workload),
            records,
            choice,
            batch: if only_writes { batch } else { 1 },
            deletes_percent: if workload == Workload::Load { 0 } else { load.deletes },
            scan_length_max: load.scan_length_max,
            next_insert: AtomicU64::new(there),
            inserted: Inserted::new(there),
            payload_bytes: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            not_found: AtomicU64::new(0),
        }
    }

    /// Returns the maximum number of operations in a step.
    pub fn step_operations(&self) -> u64 {
        self.batch
    }

    /// Draws a step of at most `operations` operations.
    pub fn draw(&self, operations: u64, prng: &mut Prng) -> Step {
        let kind = self.kind(prng);
        let mut step = Step { kind, keys: Vec::new(), scan_length: 0, inserted: 0 };
        match kind {
            Kind::Insert => {
                let first = self.next_insert.fetch_add(operations, Relaxed);
                step.keys = (first..first + operations).map(|i| self.records.key(i)).collect();
                step.inserted = first + operations;
            }
            Kind::Update => step.keys = (0..operations).map(|_| self.chosen_key(prng)).collect(),
            _ => step.keys = vec![self.chosen_key(prng)],
        }
        if kind == Kind::Scan {
            step.scan_length = 1 + prng.below(self.scan_length_max) as usize;
        }
        step
    }

    fn kind(&self, prng: &mut Prng) -> Kind {
        let mut percent = prng.below(100);
        for &(kind, share) in &self.shares {
            if percent >= share {
                percent -= share;
            } else if kind == Kind::Update && prng.below(100) < self.deletes_percent {
                return Kind::Delete;
            } else {
                return kind;
            }
        }
        Kind::Read
    }

    fn chosen_key(&self, prng: &mut Prng) -> Vec<u8> {
        self.records.key(self.choice.draw(prng, self.inserted.all_below()))
    }

    /// Returns a value to write.
    pub fn value(&self, prng: &mut Prng) -> Bytes {
        self.records.value(prng)
    }

    /// Counts the writes of a step.
    pub fn wrote(&self, step: &Step) {
        let records = step.keys.len() as u64;
        self.payload_bytes.fetch_add(records * self.records.record_bytes(), Relaxed);
        if step.inserted > 0 {
            self.inserted.note(step.inserted - records, step.inserted);
        }
    }

    /// Counts the result of a read.
    pub fn read(&self, value_bytes: Option<u64>) {
        match value_bytes {
            Some(bytes) => self.read_bytes.fetch_add(bytes, Relaxed),
            None => self.not_found.fetch_add(1, Relaxed),
        };
    }
}

/// Records that are inserted, by several threads: only those below every unfinished insert are read.
struct Inserted {
    all_below: AtomicU64,
    /// Begin and end of finished inserts above an unfinished one.
    beyond: Mutex<BTreeMap<u64, u64>>,
}

impl Inserted {
    /// Finished inserts that wait for an earlier one, at most: an insert that failed never finishes.
    const BEYOND_MAX: usize = 1 << 12;

    fn new(all_below: u64) -> Self {
        Self { all_below: AtomicU64::new(all_below), beyond: Mutex::default() }
    }

    fn all_below(&self) -> u64 {
        self.all_below.load(Relaxed)
    }

    /// Notes that the records from `begin` to `end`, exclusive, are inserted.
    fn note(&self, begin: u64, end: u64) {
        let mut beyond = self.beyond.lock();
        beyond.insert(begin, end);
        let mut all_below = self.all_below();
        while let Some((&first, &end)) = beyond.first_key_value()
            && (first <= all_below || beyond.len() > Self::BEYOND_MAX)
        {
            all_below = end;
            beyond.pop_first();
        }
        self.all_below.store(all_below, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn shares_of_every_workload_are_whole() {
        for workload in Workload::value_variants() {
            let whole: u64 = shares(*workload).iter().map(|(_, percent)| percent).sum();
            assert_eq!(whole, 100, "{workload:?}");
        }
    }

    #[test]
    fn only_records_below_every_unfinished_insert_are_read() {
        let inserted = Inserted::new(10);
        inserted.note(12, 14);
        assert_eq!(inserted.all_below(), 10);
        inserted.note(10, 12);
        assert_eq!(inserted.all_below(), 14);
        // The insert of record 14 fails.
        (0..5_000).for_each(|at| inserted.note(15 + at, 16 + at));
        assert!(inserted.all_below() > 900, "{}", inserted.all_below());
        assert!(inserted.beyond.lock().len() <= Inserted::BEYOND_MAX);
    }
}
