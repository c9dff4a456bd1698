//! Storage engine with Raft log and key-values in RocksDB. [`Settings`](super::Settings) select the
//! design.
//!
//! Invariant: truncated ≤ checkpointed ≤ applied ≤ persisted.

mod append;
mod open;
mod persistence;
mod tables;

use crate::designs::rocks::key_values::{KeyValues, Persistence, RockIngest};
use crate::designs::rocks::pairs::Applied;
use crate::designs::rocks::raft_log::RaftLog;
use crate::designs::rocks::region::Region;
use crate::designs::rocks::view::RockView;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_storage::{
    EngineStats, LogStore, Maintained, Order, Pair, Progress, RangeSize, Repair, Snapshots, Space,
    StateMachine,
};
use stele_types::{
    Command, CommittedEntry, Error, KeyRange, LogBatch, LogIndex, RegionId, Result, Term,
};
use tables::Tables;

/// Store on RocksDB.
#[derive(Debug)]
pub struct RockStore {
    log: RaftLog,
    /// `None` while the store follows another one.
    pairs: RwLock<Option<Arc<KeyValues>>>,
    tables: Tables,
    /// Unpersisted bytes after which maintenance persists the key-values.
    persist_after_bytes: u64,
    /// Held while a batch is written. Lock order: before `state`, which is free during the write.
    appending: Mutex<()>,
    state: Mutex<State>,
    user_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    regions: BTreeMap<RegionId, Region>,
    /// Position of the next entry. It orders entries over all regions.
    head: u64,
}

impl State {
    fn region(&self, id: RegionId) -> Result<&Region> {
        let region = self.regions.get(&id);
        region.ok_or_else(|| Error::invalid(format!("region {id} is not on this store")))
    }
}

impl RockStore {
    fn check_next(region: &Region, id: RegionId, entries: &[CommittedEntry]) -> Result<LogIndex> {
        region.check_present(id)?;
        let mut applied = region.applied;
        for entry in entries {
            let next = applied.next();
            if entry.index != next || region.term(next) != Some(entry.term) || next > region.last {
                return Err(Error::invalid(format!(
                    "region {id}: entry {} of term {} is not the persisted entry {next}",
                    entry.index, entry.term
                )));
            }
            applied = next;
        }
        Ok(applied)
    }

    fn apply_here(&self, id: RegionId, entries: &[CommittedEntry]) -> Result<()> {
        let (upto, region) = {
            let state = self.state.lock();
            let region = state.region(id)?;
            (Self::check_next(region, id, entries)?, region.clone())
        };
        let pairs = self.pairs()?;
        self.make(&pairs, (id, &region), upto, entries)?;
        if let Some(region) = self.state.lock().regions.get_mut(&id) {
            region.applied = upto;
            if pairs.persistence == Persistence::SyncedLog {
                region.checkpointed = upto;
            }
        }
        // Maintenance was too slow: RocksDB would soon flush pointers to unsynced values.
        if pairs.persistence == Persistence::FlushesAndValueLog
            && pairs.unpersisted_bytes() > 2 * self.persist_after_bytes
        {
            self.persist_applied(&pairs)?;
        }
        Ok(())
    }

    fn make(
        &self,
        pairs: &KeyValues,
        (id, region): (RegionId, &Region),
        upto: LogIndex,
        entries: &[CommittedEntry],
    ) -> Result<()> {
        let mut change = pairs.change();
        for entry in entries.iter().filter(|entry| entry.is_command) {
            change.command(&Command::parse(entry.payload.clone())?);
        }
        change.applied(
            id,
            Applied { incarnation: region.incarnation, index: upto, start: region.truncated },
        );
        pairs.make(&change)?;
        self.user_bytes.fetch_add(change.user_bytes, Ordering::Relaxed);
        Ok(())
    }
}

impl LogStore for RockStore {
    fn append(&self, batch: &LogBatch) -> Result<()> {
        self.append_records(batch)
    }

    fn entries(
        &self,
        region: RegionId,
        from: LogIndex,
        to: LogIndex,
        bytes_max: usize,
    ) -> Result<Vec<CommittedEntry>> {
        if from <= self.state.lock().region(region)?.truncated.0 {
            return Err(Error::invalid(format!("entry {from} is truncated")));
        }
        let mut out: Vec<CommittedEntry> = Vec::new();
        let mut bytes = 0;
        let mut stored = self.log.entries_from(region, from);
        while let Some(entry) = stored.next()?.map(|(_, it)| it).filter(|it| it.index < to) {
            bytes += entry.payload.len();
            if !out.is_empty() && bytes > bytes_max {
                break;
            }
            out.push(entry);
        }
        Ok(out)
    }

    fn term(&self, region: RegionId, index: LogIndex) -> Option<Term> {
        self.state.lock().regions.get(&region)?.term(index)
    }

    fn progress(&self, region: RegionId) -> Option<Progress> {
        self.state.lock().regions.get(&region).map(Region::progress)
    }

    /// RocksDB has no reserve.
    fn admit(&self, _bytes: u64) -> Result<()> {
        Ok(())
    }

    fn admit_append(&self, _bytes: u64) -> bool {
        true
    }

    /// RocksDB does not say how full its device is.
    fn space(&self) -> Space {
        Space::default()
    }

    fn take_truncation_request(&self) -> bool {
        false
    }
}

impl StateMachine for RockStore {
    type View = RockView;

    fn apply(&self, id: RegionId, entries: &[CommittedEntry]) -> Result<()> {
        if self.follows(id, entries)? { Ok(()) } else { self.apply_here(id, entries) }
    }

    fn view(&self) -> Result<RockView> {
        let pairs = self.pairs()?;
        Ok(RockView::new(&pairs.db, pairs.values.as_ref(), &pairs.path))
    }

    fn drop_ranges(&self, ranges: &[KeyRange]) -> Result<()> {
        stele_storage::check_ranges(ranges)?;
        let pairs = self.pairs()?;
        let mut change = pairs.change();
        ranges.iter().for_each(|range| change.delete_range(range));
        self.apply_and_persist(&pairs, &change)
    }

    /// Exact, not estimated.
    fn range_size(&self, range: &KeyRange) -> Result<RangeSize> {
        let mut size = RangeSize::default();
        self.view()?.walk(range, Order::Forward, |key, found| {
            size.bytes += key.len() as u64 + found.value_bytes();
            size.keys += 1;
            Ok(true)
        })?;
        Ok(size)
    }

    fn split_key(&self, range: &KeyRange) -> Result<Option<Bytes>> {
        let half = self.range_size(range)?.bytes.div_ceil(2);
        let (mut before, mut middle, mut is_first) = (0, None, true);
        self.view()?.walk(range, Order::Forward, |key, found| {
            before += key.len() as u64 + found.value_bytes();
            if !is_first {
                middle = Some(key);
            }
            Ok(std::mem::take(&mut is_first) || before < half)
        })?;
        Ok(middle)
    }

    fn checkpoint(&self) -> Result<()> {
        self.persist_applied(&*self.pairs()?)
    }

    fn maintain(&self, _bytes_max: u64) -> Result<Maintained> {
        self.persist_due()?;
        Ok(Maintained::default())
    }

    fn stats(&self) -> EngineStats {
        let open = self.pairs.read().clone();
        let figure = |name| open.as_ref().map_or(0, |pairs| pairs.db.figure(name));
        let pairs = figure(c"rocksdb.cur-size-all-mem-tables");
        let cache = figure(c"rocksdb.block-cache-usage");
        EngineStats {
            user_bytes: self.user_bytes.load(Ordering::Relaxed),
            memory_bytes: pairs + cache + self.log.memory_bytes(),
            ..EngineStats::default()
        }
    }
}

impl Snapshots for RockStore {
    type Ingest = RockIngest;

    fn begin_ingest(&self, ranges: Vec<KeyRange>) -> Result<RockIngest> {
        RockIngest::new(ranges)
    }

    fn receive(&self, ingest: &mut RockIngest, pairs: Vec<Pair>) -> Result<()> {
        ingest.receive(pairs)
    }

    /// Changes the key-values first, atomically; opening repeats the start of the log if needed.
    fn install(&self, id: RegionId, at: (LogIndex, Term), ingest: RockIngest) -> Result<()> {
        let (ranges, pairs) = ingest.finish()?;
        let known = self.state.lock().regions.get(&id).cloned().unwrap_or_default();
        let begun = Applied { incarnation: known.incarnation + 1, index: at.0, start: at };
        let db = self.pairs()?;
        let mut change = db.change();
        ranges.iter().for_each(|range| change.delete_range(range));
        change.pairs(&pairs);
        change.applied(id, begun);
        self.apply_and_persist(&db, &change)?;
        let _appending = self.appending.lock();
        let mut state = self.state.lock();
        self.start_log(id, state.regions.entry(id).or_default(), begun)
    }
}

impl Repair for RockStore {}
