//! Raft log and key-values, both in RocksDB, as one storage engine. Which design it is, its
//! [`Settings`] say.
//!
//! Laws kept here: applied ≤ persisted; checkpointed ≤ applied; truncated ≤ checkpointed.

use super::key_values::{Change, KeyValues, Keeping, RockIncoming};
use super::pairs::Applied;
use super::raft_log::{Edit, Entries, RaftLog};
use super::region::Region;
use super::tuning::Settings;
use super::view::RockView;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_storage::{
    EngineStats, Maintained, Order, Pair, Progress, RangeSize, StorageEngine,
};
use stele_types::{
    Appended, Command, CommittedEntry, Error, KeyRange, LogBatch, LogIndex, Lsn, Mark, Record,
    RegionId, Result, Term,
};

const EXPORT_SLICE_BYTES: usize = 1 << 20;

/// See the module.
#[derive(Debug)]
pub struct RockStore {
    log: RaftLog,
    pairs: KeyValues,
    /// Unkept bytes after which maintenance keeps what is applied.
    keep_after_bytes: u64,
    state: Mutex<State>,
    user_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    regions: BTreeMap<RegionId, Region>,
    /// Where the next entry lies. Entries are ordered by it over all regions.
    head: u64,
}

impl State {
    fn region(&self, id: RegionId) -> Result<&Region> {
        let region = self.regions.get(&id);
        region.ok_or_else(|| Error::invalid(format!("region {id} is not on this store")))
    }
}

impl RockStore {
    /// Opens the store in `dir`, creating it when there is none, and applies what is committed.
    pub fn open(dir: &Path, settings: &Settings) -> Result<Self> {
        std::fs::create_dir_all(dir).map_err(|source| Error::io("create", dir, source))?;
        let log = RaftLog::open(&dir.join("raft"), &settings.raft_options())?;
        let pairs = KeyValues::open(dir, &settings.pair_options(), settings.keeping)?;
        let state = State { regions: log.regions()?, head: 0 };
        let store = Self {
            log,
            pairs,
            keep_after_bytes: settings.keep_after_bytes,
            state: Mutex::new(state),
            user_bytes: AtomicU64::new(0),
        };
        store.finish_installations()?;
        store.replay()?;
        Ok(store)
    }

    /// What the key-values know of their regions. An installation is whole when the key-values have
    /// it: a crash between the two databases left the log behind them.
    fn finish_installations(&self) -> Result<()> {
        let mut state = self.state.lock();
        for (id, known) in self.pairs.all_applied()? {
            let region = state.regions.entry(id).or_default();
            if known.life > region.life {
                self.start_log(id, region, known)?;
            }
            if known.life == region.life && !region.destroyed {
                region.applied = known.index.max(region.truncated.0);
                region.checkpointed = region.applied;
            }
        }
        Ok(())
    }

    fn start_log(&self, id: RegionId, region: &mut Region, life: Applied) -> Result<()> {
        let mut edit = Edit::default();
        edit.remove(id, region.truncated.0.next(), region.last.next());
        region.start(life.start);
        edit.state(id, region);
        self.log.write(&edit)
    }

    /// Applies what is committed and not in the key-values, in log order over all regions: keys that
    /// moved between regions meet their writes in their order.
    fn replay(&self) -> Result<()> {
        let regions = self.state.lock().regions.clone();
        let mut sources: Vec<(RegionId, Entries<'_>, CommittedEntry)> = Vec::new();
        let mut head = 0;
        for (&id, region) in regions.iter().filter(|(_, region)| !region.destroyed) {
            if let Some(last) = self.log.entry(id, region.last)? {
                head = head.max(last.at.as_u64() + 1);
            }
            let mut entries = self.log.entries_from(id, region.applied.next());
            if let Some(first) = entries.next()? {
                sources.push((id, entries, first));
            }
        }
        self.state.lock().head = head;
        let due = |id: RegionId, entry: &CommittedEntry| {
            regions.get(&id).is_some_and(|region| entry.index <= region.hard_state.commit)
        };
        sources.retain(|(id, _, first)| due(*id, first));
        while let Some(at) = (0..sources.len()).min_by_key(|at| sources.get(*at).map(|s| s.2.at)) {
            let Some((id, entries, entry)) = sources.get_mut(at) else { break };
            self.apply(*id, std::slice::from_ref(entry))?;
            match entries.next()?.filter(|next| due(*id, next)) {
                Some(next) => *entry = next,
                None => drop(sources.swap_remove(at)),
            }
        }
        Ok(())
    }

    /// Notes that everything applied by `before` survives a crash.
    fn note_kept(&self, before: &BTreeMap<RegionId, (u64, LogIndex)>) {
        for (id, region) in &mut self.state.lock().regions {
            if let Some((_, kept)) = before.get(id).filter(|(life, _)| *life == region.life) {
                region.checkpointed = region.checkpointed.max(*kept);
            }
        }
    }

    /// Notes what RocksDB flushed of its own accord.
    fn note_flushed(&self) -> Result<()> {
        let behind = |region: &Region| region.checkpointed < region.applied;
        let due: Vec<RegionId> = {
            let state = self.state.lock();
            let due = state.regions.iter().filter(|(_, region)| behind(region));
            due.map(|(id, _)| *id).collect()
        };
        let mut kept = BTreeMap::new();
        for id in due {
            if let Some(flushed) = self.pairs.flushed(id)? {
                kept.insert(id, (flushed.life, flushed.index));
            }
        }
        self.note_kept(&kept);
        Ok(())
    }

    /// Makes a change of ranges, and everything before it, survive a crash.
    fn make_and_keep(&self, change: &Change) -> Result<()> {
        self.pairs.make(change)?;
        self.checkpoint()
    }

    fn check_next(region: &Region, id: RegionId, entries: &[CommittedEntry]) -> Result<LogIndex> {
        region.check_alive(id)?;
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
}

/// Checks one record against its region and adds what it changes.
fn record(
    region: &mut Region,
    record: &Record,
    edit: &mut Edit,
    at: Lsn,
) -> Result<()> {
    match record {
        Record::Entry(entry) => {
            let before = region.last;
            region.push(entry)?;
            edit.remove(entry.region, entry.index, before.next());
            edit.put(entry, at);
        }
        Record::HardState(id, hard_state) => {
            region.check_alive(*id)?;
            region.hard_state = *hard_state;
        }
        Record::Mark(id, mark) => {
            let (first, last) = (region.truncated.0.next(), region.last);
            region.mark(*id, mark)?;
            match mark {
                Mark::Start(..) | Mark::Destroy => edit.remove(*id, first, last.next()),
                Mark::TruncatePrefix(..) => edit.remove(*id, first, region.truncated.0.next()),
                Mark::TruncateSuffix(from) => edit.remove(*id, *from, last.next()),
            }
        }
    }
    Ok(())
}

impl StorageEngine for RockStore {
    type View = RockView;
    type Incoming = RockIncoming;

    fn append(&self, batch: &LogBatch) -> Result<Appended> {
        // What a region did stays when its log goes: nothing could apply it again.
        let ends_a_life =
            |it: &Record| matches!(it, Record::Mark(_, Mark::Destroy | Mark::Start(..)));
        if batch.records.iter().any(ends_a_life) {
            self.checkpoint()?;
        }
        let mut state = self.state.lock();
        let mut touched: BTreeMap<RegionId, Region> = BTreeMap::new();
        let (mut edit, mut payloads, mut head) = (Edit::default(), Vec::new(), state.head);
        for it in &batch.records {
            let id = match it {
                Record::Entry(entry) => entry.region,
                Record::HardState(id, _) | Record::Mark(id, _) => *id,
            };
            let known = || state.regions.get(&id).cloned().unwrap_or_default();
            let region = touched.entry(id).or_insert_with(known);
            record(region, it, &mut edit, Lsn::from_u64(head))?;
            if matches!(it, Record::Entry(_)) {
                payloads.push(Lsn::from_u64(head));
                head += 1;
            }
        }
        for (id, region) in &touched {
            edit.state(*id, region);
        }
        self.log.write(&edit)?;
        state.regions.extend(touched);
        state.head = head;
        Ok(Appended { payloads, head: Lsn::from_u64(head) })
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
        while let Some(entry) = stored.next()?.filter(|entry| entry.index < to) {
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

    fn apply(&self, id: RegionId, entries: &[CommittedEntry]) -> Result<()> {
        let (upto, life, start) = {
            let state = self.state.lock();
            let region = state.region(id)?;
            (Self::check_next(region, id, entries)?, region.life, region.truncated)
        };
        let mut change = self.pairs.change();
        for entry in entries.iter().filter(|entry| entry.is_command) {
            change.command(&Command::parse(entry.payload.clone())?);
        }
        change.applied(id, Applied { life, index: upto, start });
        self.pairs.make(&change)?;
        self.user_bytes.fetch_add(change.user_bytes, Ordering::Relaxed);
        if let Some(region) = self.state.lock().regions.get_mut(&id) {
            region.applied = upto;
            if self.pairs.keeping == Keeping::SyncedLog {
                region.checkpointed = upto;
            }
        }
        // Maintenance has come too late: RocksDB would soon flush pointers whose values are not synced.
        if self.pairs.keeping == Keeping::FlushesAndValueLog
            && self.pairs.unkept_bytes() > 2 * self.keep_after_bytes
        {
            self.checkpoint()?;
        }
        Ok(())
    }

    fn view(&self) -> Result<RockView> {
        Ok(RockView::new(&self.pairs.db, self.pairs.values.as_ref(), &self.pairs.path))
    }

    fn progress(&self, region: RegionId) -> Option<Progress> {
        self.state.lock().regions.get(&region).map(Region::progress)
    }

    fn truncate(&self, id: RegionId, index: LogIndex) -> Result<LogIndex> {
        let mut state = self.state.lock();
        state.region(id)?.check_alive(id)?;
        let Some(region) = state.regions.get_mut(&id) else { return Ok(LogIndex(0)) };
        let first = region.truncated.0.next();
        region.truncate(index);
        let upto = region.truncated.0;
        if upto >= first {
            let mut edit = Edit::default();
            edit.remove(id, first, upto.next());
            edit.state(id, region);
            self.log.write_later(&edit)?;
        }
        Ok(upto)
    }

    fn export(
        &self,
        range: &KeyRange,
        sink: &mut dyn FnMut(Vec<Pair>) -> Result<()>,
    ) -> Result<()> {
        let (mut slice, mut bytes) = (Vec::new(), 0);
        self.view()?.walk(range, Order::Forward, |key, found| {
            let pair = found.pair(key, self.pairs.values.as_deref())?;
            bytes += pair.key.len() + pair.value.len();
            slice.push(pair);
            if bytes >= EXPORT_SLICE_BYTES {
                sink(std::mem::take(&mut slice))?;
                bytes = 0;
            }
            Ok(true)
        })?;
        if slice.is_empty() { Ok(()) } else { sink(slice) }
    }

    fn incoming(&self, ranges: Vec<KeyRange>) -> Result<RockIncoming> {
        RockIncoming::new(ranges)
    }

    fn receive(&self, incoming: &mut RockIncoming, pairs: Vec<Pair>) -> Result<()> {
        incoming.receive(pairs)
    }

    /// The key-values change first, all at once; the log's beginning is repeated at open if need be.
    fn install(&self, id: RegionId, at: (LogIndex, Term), incoming: RockIncoming) -> Result<()> {
        let (ranges, pairs) = incoming.finish()?;
        let known = self.state.lock().regions.get(&id).cloned().unwrap_or_default();
        let begun = Applied { life: known.life + 1, index: at.0, start: at };
        let mut change = self.pairs.change();
        ranges.iter().for_each(|range| change.delete_range(range));
        change.pairs(&pairs);
        change.applied(id, begun);
        self.make_and_keep(&change)?;
        let mut state = self.state.lock();
        self.start_log(id, state.regions.entry(id).or_default(), begun)
    }

    fn drop_ranges(&self, ranges: &[KeyRange]) -> Result<()> {
        stele_storage::check_ranges(ranges)?;
        let mut change = self.pairs.change();
        ranges.iter().for_each(|range| change.delete_range(range));
        self.make_and_keep(&change)
    }

    /// Counted, not estimated.
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

    /// RocksDB keeps nothing in reserve.
    fn admit(&self, _bytes: u64) -> Result<()> {
        Ok(())
    }

    fn checkpoint(&self) -> Result<()> {
        let applied = {
            let state = self.state.lock();
            let applied = state.regions.iter();
            applied.map(|(id, region)| (*id, (region.life, region.applied))).collect()
        };
        self.pairs.keep()?;
        self.note_kept(&applied);
        Ok(())
    }

    /// RocksDB flushes and compacts on threads of its own; what is left is to keep up with them.
    fn maintain(&self, _bytes_max: u64) -> Result<Maintained> {
        match self.pairs.keeping {
            Keeping::SyncedLog => {}
            Keeping::Flushes => self.note_flushed()?,
            Keeping::Log | Keeping::FlushesAndValueLog => {
                if self.pairs.unkept_bytes() >= self.keep_after_bytes {
                    self.checkpoint()?;
                }
            }
        }
        Ok(Maintained::default())
    }

    fn stats(&self) -> EngineStats {
        let pairs = self.pairs.db.figure(c"rocksdb.cur-size-all-mem-tables");
        let cache = self.pairs.db.figure(c"rocksdb.block-cache-usage");
        EngineStats {
            user_bytes: self.user_bytes.load(Ordering::Relaxed),
            memory_bytes: pairs + cache + self.log.memory_bytes(),
            ..EngineStats::default()
        }
    }
}
