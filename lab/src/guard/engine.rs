//! The engine of a store without consensus: batches of entries, gets, scans and flushes.

use super::{Batch, Source, open_store, user_key};
use anyhow::{Result, ensure};
use bytes::Bytes;
use stele_engine::Store;
use stele_simulated_disk::SimVfs;
use stele_storage::{EngineView, LogStore, ScanOptions, StateMachine};
use stele_types::{
    ColumnFamily, CommittedEntry, EntryRecord, HardState, KeyRange, LogBatch, LogIndex, Record,
    RegionId, StoreId, Term,
};

const REGION: RegionId = RegionId(2);
const TERM: Term = Term(1);
const ENTRIES: u64 = 64;
/// Records that gets and scans read.
const RECORDS: u64 = 4096;
const GETS: u64 = 256;
const SCANS: u64 = 4;
const SCAN_PAIRS: usize = 50;
const FLUSHED: u64 = 1024;

/// A store that one region writes to.
struct Written {
    disk: SimVfs,
    store: Store,
    source: Source,
    next: LogIndex,
    batch: LogBatch,
    entries: Vec<CommittedEntry>,
}

impl Written {
    fn new() -> Result<Self> {
        let (disk, store) = open_store(StoreId(1))?;
        let (source, next) = (Source::new(), LogIndex(1));
        let (batch, entries) = (LogBatch::default(), Vec::new());
        Ok(Self { disk, store, source, next, batch, entries })
    }

    /// Returns a store with every record, of which the values are in sorted files.
    fn sorted() -> Result<Self> {
        let mut written = Self::new()?;
        for from in (0..RECORDS).step_by(ENTRIES as usize) {
            // In another order than that of the keys.
            written.prepare((from..from + ENTRIES).map(|at| at * 1021 % RECORDS))?;
            written.write()?;
        }
        written.store.compact()?;
        Ok(written)
    }

    /// Makes the next batch: an entry for each record.
    fn prepare(&mut self, records: impl Iterator<Item = u64>) -> Result<()> {
        self.disk.clear_events();
        self.entries.clear();
        self.batch.records.clear();
        for record in records {
            let (payload, index) = (self.source.put_record(0, record)?, self.next);
            let (term, is_command) = (TERM, true);
            let entry = EntryRecord { region: REGION, term, index, is_command, payload };
            self.entries.push(CommittedEntry {
                term,
                index,
                is_command,
                payload: entry.payload.clone(),
            });
            self.batch.records.push(Record::Entry(entry));
            self.next = index.next();
        }
        let state = HardState { term: TERM, vote: 0, commit: LogIndex(self.next.0 - 1) };
        self.batch.records.push(Record::HardState(REGION, state));
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        self.store.append(&self.batch)?;
        Ok(self.store.apply(REGION, &self.entries)?)
    }

    fn check(&self) -> Result<()> {
        let applied = self.store.progress(REGION).map(|it| it.applied);
        ensure!(applied == Some(LogIndex(self.next.0 - 1)), "applied up to {applied:?}");
        Ok(())
    }
}

fn key(record: u64) -> Bytes {
    ColumnFamily::Default.engine_key(&user_key(0, record))
}

/// Batches of 64 entries, appended and applied.
pub(super) struct EnginePuts(Written);

impl EnginePuts {
    pub(super) fn new() -> Result<Self> {
        Written::new().map(Self)
    }
}

impl Batch for EnginePuts {
    fn prepare(&mut self) -> Result<()> {
        let from = self.0.next.0;
        self.0.prepare((from..from + ENTRIES).map(|at| at * 1021 % RECORDS))
    }

    fn run(&mut self) -> Result<u64> {
        self.0.write()?;
        Ok(ENTRIES)
    }

    fn check(&mut self) -> Result<()> {
        self.0.check()
    }
}

/// Gets of values that are in memory.
pub(super) struct Gets {
    written: Written,
    keys: Vec<Bytes>,
    next: u64,
}

impl Gets {
    pub(super) fn new() -> Result<Self> {
        let written = Written::sorted()?;
        let view = written.store.view()?;
        for record in 0..RECORDS {
            view.get(&key(record))?;
        }
        Ok(Self { written, keys: Vec::new(), next: 0 })
    }
}

impl Batch for Gets {
    fn prepare(&mut self) -> Result<()> {
        let keys = (self.next..self.next + GETS).map(|at| key(at * 1021 % RECORDS));
        self.keys = keys.collect();
        self.next += GETS;
        Ok(())
    }

    fn run(&mut self) -> Result<u64> {
        for key in &self.keys {
            let found = self.written.store.view()?.get(key)?;
            ensure!(found.is_some(), "a record is missing");
        }
        Ok(self.keys.len() as u64)
    }

    fn check(&mut self) -> Result<()> {
        self.written.check()
    }
}

/// Scans of 50 pairs, sorted by the garbage collection.
pub(super) struct Scans {
    written: Written,
    next: u64,
}

impl Scans {
    pub(super) fn new() -> Result<Self> {
        Ok(Self { written: Written::sorted()?, next: 0 })
    }
}

impl Batch for Scans {
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    fn run(&mut self) -> Result<u64> {
        for _ in 0..SCANS {
            let from = self.next * 1021 % (RECORDS - SCAN_PAIRS as u64);
            self.next += 1;
            let range = KeyRange::new(key(from), key(RECORDS));
            let view = self.written.store.view()?;
            let pairs = view.scan(&ScanOptions::new(range, SCAN_PAIRS))?;
            ensure!(pairs.len() == SCAN_PAIRS, "a scan returned {} pairs", pairs.len());
        }
        Ok(SCANS)
    }

    fn check(&mut self) -> Result<()> {
        self.written.check()
    }
}

/// Flushes of a memtable.
pub(super) struct Flushes(Written);

impl Flushes {
    pub(super) fn new() -> Result<Self> {
        Written::new().map(Self)
    }
}

impl Batch for Flushes {
    fn prepare(&mut self) -> Result<()> {
        let from = self.0.next.0;
        self.0.prepare((from..from + FLUSHED).map(|at| at * 1021 % RECORDS))?;
        self.0.write()
    }

    fn run(&mut self) -> Result<u64> {
        self.0.store.flush()?;
        Ok(FLUSHED)
    }

    fn check(&mut self) -> Result<()> {
        self.0.check()
    }
}
