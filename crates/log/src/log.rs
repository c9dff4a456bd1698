//! The public interface of the log.

use crate::append::Appender;
use crate::catalog::{FileList, ValueFileInfo};
use crate::dir::Dir;
use crate::history::{HistoryReader, PinState, Pinned};
use crate::iter::LogIter;
use crate::read::RecordHeader;
use crate::read_many::ReadMode;
use crate::read_pool::{ReadMany, Unchecked};
use crate::region::RegionLog;
use crate::shared::{Shared, StopOnPanic};
use crate::sorted::{self, SealedFile, SortedWriter};
use crate::verify::{VerifyEvent, VerifySummary, verify};
use crate::versions::{ReplayEntry, VersionedOp};
use crate::{FileKind, LogOptions, RecoverFrom, Recovery, recover, remove};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use stele_types::lock::{Mutex, MutexGuard, rank};
use stele_types::{
    Cause, CommittedEntry, EntryRecord, Error, FileId, Locator, LogBatch, LogIndex, Lsn, Record,
    RegionId, Result, Term,
};
use stele_vfs::Vfs;

type AppenderGuard<'a> = MutexGuard<'a, Appender, { rank::LOG_APPENDER }>;

/// Positions of an appended batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// For each `Record::Entry` of the batch in order: the position of its payload's first byte.
    /// A value's position is this plus its offset in the command, which is known since encoding.
    pub payloads: Vec<Lsn>,
    /// The log's end after the batch.
    pub head: Lsn,
}

/// Statistics of a log since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Number of segments, including the active one.
    pub segments: usize,
    /// Number of sorted value files.
    pub sorted_files: usize,
    /// Number of files with retained tombstones.
    pub tombstone_files: usize,
    /// Number of freed segments waiting for reuse.
    pub free_segments: usize,
    /// Position of the next batch.
    pub head: Lsn,
    /// Bytes of memory: entry positions, entry cache, buffers of long reads, write buffer, sidecar
    /// buffer.
    pub memory_bytes: u64,
    /// Number of entries of all regions that are not truncated.
    pub entries: u64,
    /// Number of batches appended.
    pub batches: u64,
    /// Number of segment syncs.
    pub syncs: u64,
    /// Bytes of entry payloads appended.
    pub payload_bytes: u64,
    /// Bytes written to segments, including padding and headers.
    pub written_bytes: u64,
    /// Number of segments begun.
    pub rolls: u64,
    /// Number of those in the blocks of a freed segment.
    pub recycled: u64,
    /// Number of those in zeros that the device did not write. The others grow with their batches.
    pub zeroed: u64,
    /// Number of entries served from memory.
    pub cache_hits: u64,
    /// Number of entries read from files.
    pub cache_misses: u64,
    /// Number of short reads that bypassed the page cache together with others.
    pub batched_reads: u64,
    /// Number of reads repeated on the device because of a checksum mismatch.
    pub direct_retries: u64,
}

/// Device space for a batch that must not fail for lack of it. No other batch is appended while it
/// is held.
#[derive(Debug)]
pub struct Reserved<'a> {
    /// Dropped before the lock is freed.
    _stop: StopOnPanic<'a>,
    appender: AppenderGuard<'a>,
    shared: &'a Shared,
}

impl Reserved<'_> {
    /// Appends the batch for which the space was reserved.
    pub fn append(mut self, batch: &LogBatch) -> Result<Appended> {
        self.appender.append(self.shared, &batch.records, true)
    }
}

/// The log of one store. Appends run one at a time; reads never wait for a write or sync.
#[derive(Debug)]
pub struct Log {
    pub(crate) shared: Arc<Shared>,
    appender: Mutex<Appender, { rank::LOG_APPENDER }>,
    /// Serializes removals.
    maintenance: Mutex<(), { rank::LOG_MAINTENANCE }>,
}

impl Log {
    /// Opens the log in `dir`, which is the log's own directory; creates both when missing.
    ///
    /// Fails with `Missing` or `Corrupt`, truncating nothing, when data that may have been
    /// acknowledged is missing or damaged. Fails with `WrongStore` or `NewerFormat` when the files
    /// belong to another store or a newer version.
    pub fn open(
        vfs: Arc<dyn Vfs>,
        dir: &Path,
        options: LogOptions,
        from: RecoverFrom,
    ) -> Result<(Self, Recovery)> {
        let (store, direct) = (options.store, options.direct);
        let dir = Dir { vfs, path: dir.to_path_buf(), store, direct };
        let (shared, appender, recovery) = recover::open(dir, options, &from)?;
        let log = Self {
            shared: Arc::new(shared),
            appender: Mutex::new(appender),
            maintenance: Mutex::new(()),
        };
        Ok((log, recovery))
    }

    /// Makes a batch durable by one write and one sync. Returns its position.
    ///
    /// Fails with `Invalid` when it does not continue its regions' logs, with `NoSpace` when the
    /// device is full (nothing is appended; a later attempt may succeed), with `Poisoned` after any
    /// earlier failure of a write or sync.
    pub fn append(&self, batch: &LogBatch) -> Result<Appended> {
        let (mut appender, _stop) = self.lock_appender();
        if batch.records.is_empty() {
            self.shared.poison.check()?;
            return Ok(Appended { payloads: Vec::new(), head: self.head() });
        }
        appender.append(&self.shared, &batch.records, true)
    }

    /// Reserves device space for a batch that must not fail for lack of it. Other appends wait
    /// until the result is dropped. Fails with `NoSpace` and changes nothing.
    pub fn reserve(&self, batch: &LogBatch) -> Result<Reserved<'_>> {
        let (mut appender, stop) = self.lock_appender();
        appender.preallocate(&self.shared, &batch.records)?;
        Ok(Reserved { appender, shared: &self.shared, _stop: stop })
    }

    /// Makes a confirming frame durable. Appended batches are durable already.
    pub fn sync(&self) -> Result<()> {
        let (mut appender, _stop) = self.lock_appender();
        self.shared.poison.check()?;
        appender.sync(&self.shared)
    }

    /// Returns the position of the next batch, unless a new segment begins.
    pub fn head(&self) -> Lsn {
        self.shared.state.read().head
    }

    /// Marks the last batch as acknowledged; called when idle. The mark distinguishes damage to the
    /// batch from a torn write. It is written without a sync, and the next batch overwrites it.
    pub fn confirm(&self) -> Result<()> {
        let (mut appender, _stop) = self.lock_appender();
        appender.confirm(&self.shared)
    }

    /// Measures the device by a small write with its sync, which stores nothing: for a log to which
    /// nothing is appended. Returns false, and writes nothing, while there is no place for it.
    pub fn measure(&self) -> Result<bool> {
        let (mut appender, _stop) = self.lock_appender();
        appender.measure(&self.shared)
    }

    /// Returns the value at a locator. Fails with `Corrupt` when it differs from what was written.
    pub fn get(&self, at: &Locator) -> Result<Bytes> {
        self.shared.get(at)
    }

    /// Returns the values at many locators, in their order. Neighbours are read together, and long
    /// stretches bypass the page cache where it does not keep them. If most of a read is requested,
    /// its values share one buffer (at most about 4 MiB): a caller that keeps few of them for long
    /// must copy them.
    pub fn get_many(&self, at: &[Locator]) -> Result<Vec<Bytes>> {
        self.shared.get_many(at)
    }

    /// Reads like [`Log::get_many`] and checks nothing: for a thread that reads ahead of the thread
    /// that uses the values.
    pub fn read_many(&self, at: &[Locator]) -> Result<ReadMany> {
        self.shared.read_many(at)
    }

    /// [`Log::read_many`], which calls `ahead` before it waits for short reads, and requests
    /// from the device what that returns, up to about 4 MiB, for a later read of the same values.
    pub fn read_many_ahead(
        &self,
        at: &[Locator],
        ahead: impl FnOnce() -> Vec<Locator>,
    ) -> Result<ReadMany> {
        self.shared.read_many_ahead(at, ahead)
    }

    /// Returns whether memory holds the begin of a value. Never waits for the device.
    pub fn is_in_memory(&self, at: &Locator) -> bool {
        self.shared.is_in_memory(at)
    }

    /// Returns the value at a locator from `read`, which was read for it. If that does not match
    /// the checksum, reads the value again as [`Log::get`] does.
    pub fn checked(&self, at: &Locator, read: Unchecked) -> Result<Bytes> {
        self.shared.checked(at, read)
    }

    /// [`Log::read_many`] of values that are in memory, each in an open file; `None` if one is not.
    /// Never waits for the device.
    pub fn read_many_in_memory(&self, at: &[Locator]) -> Result<Option<ReadMany>> {
        self.shared.read_many_in_memory(at)
    }

    /// [`Log::read_many`] of values that [`Log::get_cached`] did not find: they are not tried again
    /// without waiting. One of the reads is measured.
    pub fn read_many_missed(&self, at: &[Locator]) -> Result<ReadMany> {
        self.shared.read_many_with(at, ReadMode::MISSED)
    }

    /// [`Log::read_many`] from the device itself, for scrubbing.
    pub fn read_many_direct(&self, at: &[Locator]) -> Result<ReadMany> {
        self.shared.read_many_with(at, ReadMode::FROM_DEVICE)
    }

    /// Reads ahead for later calls of [`Log::record`]: each value and the record header before it.
    /// Takes the length of each value's key.
    pub fn read_records(&self, places: &[(usize, Locator)]) -> Result<Vec<Unchecked>> {
        self.shared.read_records(places, ReadMode::BACKGROUND)
    }

    /// [`Log::read_records`] of values that come into key order: reads at most two bytes for each byte
    /// of them.
    pub fn read_records_to_sort(&self, places: &[(usize, Locator)]) -> Result<Vec<Unchecked>> {
        self.shared.read_records(places, ReadMode::SORT)
    }

    /// Returns the value at a locator under this key, and its version, from the bytes that
    /// [`Log::read_records`] returned for it. Reads again if those differ from what was written.
    pub fn record(&self, key: &[u8], at: &Locator, read: Unchecked) -> Result<(Bytes, Lsn)> {
        self.shared.record(key, at, read)
    }

    /// Checks the value that [`Log::read_many_direct`] read; on a mismatch reads the device once
    /// more.
    pub fn check_read(&self, at: &Locator, read: &Unchecked) -> Result<()> {
        self.shared.check_read(at, read)
    }

    /// Checks that the device holds the value at a locator. Bypasses the page cache.
    pub fn check(&self, at: &Locator) -> Result<()> {
        self.shared.check(at)
    }

    /// Returns the entries from `from` to `to` (exclusive), at most `bytes_max` of payload, but at
    /// least one if there is any. Fails with `Invalid` when `from` is truncated.
    pub fn entries(
        &self,
        region: RegionId,
        from: LogIndex,
        to: LogIndex,
        bytes_max: usize,
    ) -> Result<Vec<CommittedEntry>> {
        self.shared.entries(region, from, to, bytes_max)
    }

    /// Returns a region's log; `None` when nothing was ever appended for it, or when it was
    /// destroyed and no segment holds its records any longer.
    pub fn region(&self, region: RegionId) -> Option<RegionLog> {
        self.shared.state.read().regions.get(region).map(|region| region.log())
    }

    /// Returns the positions of consecutive entries of a region. Fails with `Invalid` unless the
    /// region's log holds each of them at its index, in its term: what the log shows is durable.
    pub fn positions(&self, region: RegionId, entries: &[CommittedEntry]) -> Result<Vec<Lsn>> {
        let state = self.shared.state.read();
        let log = state.regions.get(region);
        let position = |entry: &CommittedEntry| {
            let place = log.and_then(|log| log.place(entry.index));
            let place = place.filter(|place| place.term == entry.term);
            let place = place.filter(|place| place.bytes() as usize == entry.payload.len());
            place.map(|place| place.at).ok_or_else(|| {
                Error::invalid(format!(
                    "region {region}: entry {} of term {} is not persisted on this store",
                    entry.index, entry.term
                ))
            })
        };
        entries.iter().map(position).collect()
    }

    /// Returns where a replay of the entries above `applied` must start, and the head: the position
    /// of the oldest such entry over all regions, or the head if there is none. Both are of one
    /// moment.
    pub fn replay_from(&self, applied: &dyn Fn(RegionId) -> LogIndex) -> (Lsn, Lsn) {
        let state = self.shared.state.read();
        let above = state.regions.iter().filter_map(|(id, log)| log.first_above(applied(id)));
        (above.min().map_or(state.head, |oldest| oldest.min(state.head)), state.head)
    }

    /// Returns the bytes of payloads appended since the log was opened.
    pub fn payload_bytes(&self) -> u64 {
        self.shared.counters.payload_bytes.load(Relaxed)
    }

    /// Returns all regions, including destroyed ones with records in a segment.
    pub fn regions(&self) -> Vec<RegionId> {
        self.shared.state.read().regions.ids()
    }

    /// Returns the term of an entry in the log, or of the truncated index.
    pub fn term(&self, region: RegionId, index: LogIndex) -> Option<Term> {
        self.shared.state.read().regions.get(region)?.term(index)
    }

    /// Passes every surviving entry above `applied(region)` to `f`, per region in index order.
    /// Sealed segments are read from their sidecars, without values.
    pub fn replay(
        &self,
        applied: &dyn Fn(RegionId) -> LogIndex,
        f: &mut dyn FnMut(ReplayEntry<'_>) -> Result<()>,
    ) -> Result<()> {
        self.shared.replay(applied, f)
    }

    /// Returns an iterator over all physical records; `seek` it first.
    pub fn iter(&self) -> LogIter {
        LogIter::new(self.shared.clone())
    }

    /// Returns all files, oldest first.
    pub fn files(&self) -> Vec<ValueFileInfo> {
        let (wanted_from, pinned) = (self.shared.wanted_from(), self.shared.pins());
        let mut files = self.shared.catalog.read().infos(wanted_from, pinned);
        let head = self.head();
        let active = files.iter_mut().find(|info| info.file == head.file);
        if let (Some(info), Some(appender)) = (active, self.appender.try_lock()) {
            info.payload_bytes = appender.sidecar.totals.payload_bytes;
        }
        for info in files.iter_mut().filter(|info| info.file == head.file) {
            info.bytes = info.bytes.max(u64::from(head.offset));
        }
        files
    }

    /// Returns the state of the list that [`Log::files`] returns, and the bytes of the head as it states
    /// them. Costs the same however many files there are.
    pub fn file_list(&self) -> (FileList, u64) {
        let wanted_from = self.shared.wanted_from();
        let pinned_from = self.shared.pins().from;
        let head = self.head();
        let catalog = self.shared.catalog.read();
        let bytes = catalog.get(head.file).map_or(0, |meta| meta.bytes);
        let list =
            FileList { changes: catalog.changes(), wanted_from, pinned_from, head: head.file };
        (list, bytes.max(u64::from(head.offset)))
    }

    /// States what readers of regions' logs need: the entries of these regions above these indexes. From
    /// then on segments stay for them, within [`LogOptions::history_bytes_max`].
    pub fn pin(&self, needed: &Pinned) -> Result<PinState> {
        self.shared.set_needed(needed)
    }

    /// Returns which segments stay for readers of regions' logs.
    pub fn pinned(&self) -> PinState {
        self.shared.pins()
    }

    /// Changes [`LogOptions::history_bytes_max`].
    pub fn set_history_bytes_max(&self, bytes_max: u64) {
        self.shared.set_pinned_bytes_max(bytes_max);
    }

    /// Returns a reader of the region's committed entries from `next` on.
    pub fn history(&self, region: RegionId, next: LogIndex) -> HistoryReader {
        HistoryReader::new(self.shared.clone(), region, next)
    }

    /// Returns the number of freed segments that wait for reuse.
    pub fn free_segments(&self) -> usize {
        self.shared.free.lock().len()
    }

    /// Removes a file. The caller has proven that nothing refers to it and no reader holds it.
    /// Fails with `Invalid` for a segment that Raft or a reader of a region's log still needs.
    pub fn remove(&self, file: FileId) -> Result<()> {
        let _one = self.maintenance.lock();
        remove::remove(&self.shared, file)
    }

    /// Returns at most `count` freed segments that wait for reuse to the file system. Returns their
    /// bytes.
    pub fn drop_free(&self, count: usize) -> Result<u64> {
        let _one = self.maintenance.lock();
        remove::drop_free(&self.shared, count)
    }

    /// Seals the active segment, so that it can be removed once nothing needs it. Returns whether it
    /// held a batch; otherwise does nothing. Fails with `NoSpace` and changes nothing.
    pub fn roll(&self) -> Result<bool> {
        let (mut appender, _stop) = self.lock_appender();
        self.shared.poison.check()?;
        if appender.has_batches {
            appender.roll(&self.shared)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Creates a sorted value file; its bytes are counted under `cause`.
    pub fn sorted_writer(&self, cause: Cause) -> Result<SortedWriter> {
        SortedWriter::create(self.shared.clone(), cause)
    }

    /// Gives sealed files their names, durably with one sync of the directory, and makes their
    /// values readable. Garbage collection must not remove them before something refers to them.
    pub fn publish(&self, files: &mut [SealedFile]) -> Result<()> {
        sorted::publish(&self.shared, files)
    }

    /// Fails with `Poisoned` once the log has stopped.
    pub fn check_poison(&self) -> Result<()> {
        self.shared.poison.check()
    }

    /// Stops the log: the caller's memory and the durable state no longer agree. Returns `error`.
    pub fn stop(&self, error: Error) -> Error {
        self.shared.poison.set(error)
    }

    /// Returns a guard that stops the log if a panic drops it, for work that another lock protects.
    /// Declare it after that lock.
    pub fn stop_on_panic(&self, interrupted: &'static str) -> StopOnPanic<'_> {
        self.shared.poison.on_panic(interrupted)
    }

    fn lock_appender(&self) -> (AppenderGuard<'_>, StopOnPanic<'_>) {
        (self.appender.lock(), self.stop_on_panic("a write of the log"))
    }

    /// Returns the version of the record with its value at `at`; in sorted files also key and
    /// expiry.
    pub fn record_of(&self, at: &Locator) -> Result<RecordHeader> {
        self.shared.record_of(at)
    }

    /// Appends the entries of idle regions below segment `below` again, so that they pin no old
    /// segment. Takes whole regions, at most `bytes_max` of payload. Returns the payload bytes.
    ///
    /// The positions of these entries change, and with them the order of replay. Therefore only
    /// regions take part that have no entry above `checkpointed`, up to which nothing is replayed.
    /// Invariant: the appender is held from this choice to the publication, so that no entry is
    /// appended to a chosen region in between.
    pub fn reappend_tails(
        &self,
        below: FileId,
        bytes_max: u64,
        checkpointed: &dyn Fn(RegionId) -> LogIndex,
    ) -> Result<u64> {
        let (mut appender, _stop) = self.lock_appender();
        let mut done = 0;
        for region in self.regions() {
            let (left, checkpointed) = (bytes_max - done, checkpointed(region));
            let records = match self.tail(region, below, left, checkpointed) {
                // Damaged entries keep their own segment, but not that of another region.
                Err(error) if error.is_damage() => continue,
                other => other?,
            };
            let Some(records) = records else { continue };
            done += bytes_of(&records);
            // One batch: a crash leaves either all old positions or all new ones.
            appender.append(&self.shared, &records, false)?;
        }
        Ok(done)
    }

    fn tail(
        &self,
        region: RegionId,
        below: FileId,
        bytes_max: u64,
        checkpointed: LogIndex,
    ) -> Result<Option<Vec<Record>>> {
        let (first, last) = {
            let state = self.shared.state.read();
            let Some(log) = state.regions.get(region) else { return Ok(None) };
            let old = log.first_file().is_some_and(|file| file < below);
            if !old || log.payload_bytes() > bytes_max || log.last().0 > checkpointed {
                return Ok(None);
            }
            (log.truncated.0.next(), log.last().0)
        };
        let entries = self.shared.entries(region, first, last.next(), usize::MAX)?;
        let record = |entry: CommittedEntry| {
            let CommittedEntry { term, index, is_command, payload, .. } = entry;
            Record::Entry(EntryRecord { region, term, index, is_command, payload })
        };
        Ok(Some(entries.into_iter().map(record).collect()))
    }

    /// Checks every checksum of every file. Reports damage and continues.
    pub fn verify(&self, f: &mut dyn FnMut(VerifyEvent)) -> Result<VerifySummary> {
        verify(&self.shared, f)
    }

    /// Passes every version of every key in the files to `f`, file by file, and the deletes. An
    /// index can be rebuilt from them.
    pub fn scan_versions(&self, f: &mut dyn FnMut(VersionedOp<'_>) -> Result<()>) -> Result<()> {
        self.shared.scan_versions(f)
    }

    /// Confirms the last batch durably. Without this call the end is that of a crash, which loses
    /// nothing.
    pub fn close(&self) -> Result<()> {
        let (mut appender, _stop) = self.lock_appender();
        appender.confirm(&self.shared)?;
        appender.sync(&self.shared)
    }

    /// Whether an earlier failure stopped the log. Reads continue.
    pub fn poisoned(&self) -> bool {
        self.shared.poison.is_set()
    }

    /// Returns the number of the next file.
    pub fn next_file(&self) -> FileId {
        FileId(self.shared.next_file.load(Relaxed))
    }

    /// Returns statistics since the log was opened.
    pub fn stats(&self) -> LogStats {
        let shared = &self.shared;
        let counters = &shared.counters;
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
        let (head, entries, memory_bytes) = {
            let state = shared.state.read();
            (state.head, state.regions.entries(), state.regions.memory_bytes() as u64)
        };
        let catalog = shared.catalog.read();
        LogStats {
            segments: catalog.segments().len(),
            sorted_files: catalog.of_kind(FileKind::Sorted).len(),
            tombstone_files: catalog.of_kind(FileKind::Tombstones).len(),
            free_segments: shared.free.lock().len(),
            head,
            memory_bytes: memory_bytes
                + shared.cache.used_bytes()
                + shared.read_pool.memory_bytes()
                + load(&counters.buffer_bytes),
            entries,
            batches: load(&counters.batches),
            syncs: load(&counters.syncs),
            payload_bytes: load(&counters.payload_bytes),
            written_bytes: load(&counters.written_bytes),
            rolls: load(&counters.rolls),
            recycled: load(&counters.recycled),
            zeroed: load(&counters.zeroed),
            cache_hits: load(&shared.cache.hits),
            cache_misses: load(&shared.cache.misses),
            batched_reads: load(&counters.batched_reads),
            direct_retries: load(&counters.direct_retries),
        }
    }
}

fn bytes_of(records: &[Record]) -> u64 {
    let bytes = |record: &Record| match record {
        Record::Entry(entry) => entry.payload.len() as u64,
        _ => 0,
    };
    records.iter().map(bytes).sum()
}
