//! The log's calls.

use crate::append::Appender;
use crate::dir::Dir;
use crate::iter::LogIter;
use crate::read::RecordHead;
use crate::read_many::{How, ReadMany, Unchecked};
use crate::region::RegionLog;
use crate::remove;
use crate::replay::ReplayEntry;
use crate::shared::Shared;
use crate::sorted::{self, SealedFile, SortedWriter};
use crate::stats::{LogStats, ValueFileInfo};
use crate::verify::{VerifyEvent, VerifySummary, verify};
use crate::versions::VersionedOp;
use crate::{FileKind, LogOptions, RecoverFrom, Recovery, recover};
use bytes::Bytes;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use stele_types::{
    Appended, Cause, CommittedEntry, EntryRecord, Error, FileId, Locator, LogBatch, LogIndex, Lsn,
    Record, RegionId, Result, Term,
};
use stele_vfs::Vfs;

/// The log of one store. Appends are made one at a time; reads never wait for a write or sync.
#[derive(Debug)]
pub struct Log {
    shared: Arc<Shared>,
    appender: Mutex<Appender>,
    /// One removal at a time.
    maintenance: Mutex<()>,
}

impl Log {
    /// Opens the log in `dir`, which is the log's own directory; creates both when missing.
    ///
    /// Fails with `Missing` or `Corrupt`, having cut nothing, when something is gone or damaged that
    /// may have been acknowledged; with `WrongStore` or `NewerFormat` when the files are another's.
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

    /// Makes a batch durable by one write and one sync, and says where it lies.
    ///
    /// Fails with `Invalid` when it does not continue its regions' logs, with `NoSpace` when the
    /// device is full (nothing is appended; a later attempt may pass), with `Poisoned` after any
    /// earlier failure of a write or sync.
    pub fn append(&self, batch: &LogBatch) -> Result<Appended> {
        let mut appender = self.appender.lock();
        if batch.records.is_empty() {
            self.shared.poison.check()?;
            return Ok(Appended { payloads: Vec::new(), head: self.head() });
        }
        appender.append(&self.shared, &batch.records, true)
    }

    /// Takes room on the device for a batch that must not fail for want of it: the next one appended.
    /// Fails with `NoSpace` having changed nothing.
    pub fn preallocate(&self, batch: &LogBatch) -> Result<()> {
        self.appender.lock().preallocate(&self.shared, &batch.records)
    }

    /// Everything appended is durable already; this adds a confirming frame's.
    pub fn sync(&self) -> Result<()> {
        let mut appender = self.appender.lock();
        self.shared.poison.check()?;
        appender.sync(&self.shared)
    }

    /// Where the next batch goes, unless a new segment begins.
    pub fn head(&self) -> Lsn {
        self.shared.state.read().head
    }

    /// When idle: marks the last batch as acknowledged, so that damage to it is told from a write a
    /// crash tore. Without a sync; the next batch takes the mark's place.
    pub fn confirm(&self) -> Result<()> {
        self.appender.lock().confirm(&self.shared)
    }

    /// The value at a locator. Fails with `Corrupt` when it is not what was written.
    pub fn get(&self, at: &Locator) -> Result<Bytes> {
        self.shared.get(at)
    }

    /// [`Log::get`] without waiting for the device; `None` when it would have to.
    pub fn get_cached(&self, at: &Locator) -> Result<Option<Bytes>> {
        self.shared.get_cached(at)
    }

    /// The values at many locators, in their order; neighbours are read together, long stretches of
    /// them past the page cache as far as it does not keep them. Where most of what was read is
    /// wanted, values share its memory (up to some 4 MiB): who keeps few of them for long keeps copies.
    pub fn get_many(&self, at: &[Locator]) -> Result<Vec<Bytes>> {
        self.shared.get_many(at)
    }

    /// Reads like [`Log::get_many`] and checks nothing: for a thread that reads ahead of the one
    /// that uses the values.
    pub fn read_many(&self, at: &[Locator]) -> Result<ReadMany> {
        self.shared.read_many(at)
    }

    /// The value at a locator, out of what was read for it. If that does not match its checksum, the
    /// value is read again as [`Log::get`] does.
    pub fn checked(&self, at: &Locator, read: Unchecked) -> Result<Bytes> {
        self.shared.checked(at, read)
    }

    /// [`Log::read_many`] off the device itself: for who looks for damage.
    pub fn read_many_direct(&self, at: &[Locator]) -> Result<Vec<Unchecked>> {
        Ok(self.shared.read_many_so(at, How::FROM_DEVICE)?.values)
    }

    /// Reads ahead what [`Log::record`] is asked next: values, each with the length of its key, and
    /// what stands before them.
    pub fn read_records(&self, places: &[(usize, Locator)]) -> Result<Vec<Unchecked>> {
        self.shared.read_records(places)
    }

    /// The value at a locator under this key, and its version, out of what [`Log::read_records`]
    /// read for it; read again if that is not what was written.
    pub fn record(&self, key: &[u8], at: &Locator, read: Unchecked) -> Result<(Bytes, Lsn)> {
        self.shared.record(key, at, read)
    }

    /// Whether what [`Log::read_many_direct`] read, or else another read of the device, is the value.
    pub fn check_read(&self, at: &Locator, read: &Unchecked) -> Result<()> {
        self.shared.check_read(at, read)
    }

    /// Whether the device has the value at a locator, whatever the page cache says.
    pub fn check(&self, at: &Locator) -> Result<()> {
        self.shared.check(at)
    }

    /// Entries `from` up to but without `to`, until `bytes_max` of payload; at least one if there is
    /// any. Fails with `Invalid` when `from` is truncated.
    pub fn entries(
        &self,
        region: RegionId,
        from: LogIndex,
        to: LogIndex,
        bytes_max: usize,
    ) -> Result<Vec<CommittedEntry>> {
        self.shared.entries(region, from, to, bytes_max)
    }

    /// A region's log; `None` when nothing was ever appended for it.
    pub fn region(&self, region: RegionId) -> Option<RegionLog> {
        self.shared.state.read().regions.get(region).map(|region| region.log())
    }

    /// All regions, destroyed ones included.
    pub fn regions(&self) -> Vec<RegionId> {
        self.shared.state.read().regions.ids()
    }

    /// The term of an entry that is here, or of the truncated one.
    pub fn term(&self, region: RegionId, index: LogIndex) -> Option<Term> {
        self.shared.state.read().regions.get(region)?.term(index)
    }

    /// Gives every surviving entry above `applied(region)`, per region in index order. Sealed
    /// segments are read by their sidecars: values are not touched.
    pub fn replay(
        &self,
        applied: &dyn Fn(RegionId) -> LogIndex,
        f: &mut dyn FnMut(ReplayEntry<'_>) -> Result<()>,
    ) -> Result<()> {
        self.shared.replay(applied, f)
    }

    /// An iterator over all physical records; `seek` it first.
    pub fn iter(&self) -> LogIter {
        LogIter::new(self.shared.clone())
    }

    /// All files, oldest first.
    pub fn files(&self) -> Vec<ValueFileInfo> {
        let mut files = self.shared.catalog.read().infos(self.shared.wanted_from());
        let head = self.head();
        let active = files.iter_mut().find(|info| info.file == head.file);
        if let (Some(info), Some(appender)) = (active, self.appender.try_lock()) {
            let sidecar = appender.sidecar.as_ref();
            info.payload_bytes = sidecar.map_or(0, |sidecar| sidecar.totals.payload_bytes);
        }
        for info in files.iter_mut().filter(|info| info.file == head.file) {
            info.bytes = info.bytes.max(u64::from(head.offset));
        }
        files
    }

    /// Removes a file whose death the caller proved: nothing refers to it, no reader holds it. Fails
    /// with `Invalid` for a segment that Raft still wants.
    pub fn remove(&self, file: FileId) -> Result<()> {
        let _one = self.maintenance.lock();
        remove::remove(&self.shared, file)
    }

    /// Gives up to `count` freed segments that wait for reuse back to the file system. Returns the
    /// bytes.
    pub fn drop_free(&self, count: usize) -> Result<u64> {
        let _one = self.maintenance.lock();
        remove::drop_free(&self.shared, count)
    }

    /// Begins a sorted value file, its bytes counted under `cause`.
    pub fn sorted_writer(&self, cause: Cause) -> Result<SortedWriter> {
        SortedWriter::create(self.shared.clone(), cause)
    }

    /// Gives sealed files their names, durably, with one sync of the directory, and makes their
    /// values readable. Nothing may collect them before something refers to them.
    pub fn publish(&self, files: &mut [SealedFile]) -> Result<()> {
        sorted::publish(&self.shared, files)
    }

    /// Fails with `Poisoned` once the log has stopped.
    pub fn check_runs(&self) -> Result<()> {
        self.shared.poison.check()
    }

    /// Stops the log: what the caller holds in memory and what is durable no longer agree.
    pub fn stop(&self, error: Error) -> Error {
        self.shared.poison.set(error)
    }

    /// Version, and in sorted files key and expiry, of the record whose value lies at `at`.
    pub fn record_of(&self, at: &Locator) -> Result<RecordHead> {
        self.shared.record_of(at)
    }

    /// Appends the entries of idle regions that lie below `below` once more, so that they pin no old
    /// segment; at most `bytes_max` of payload, whole regions only. Returns the payload bytes. The
    /// entries' places change, and with them the order of replay: only regions take part whose last
    /// entry is not above `settled`, up to which nothing is ever replayed.
    pub fn reappend_tails(
        &self,
        below: FileId,
        bytes_max: u64,
        checkpointed: &dyn Fn(RegionId) -> LogIndex,
    ) -> Result<u64> {
        let mut appender = self.appender.lock();
        let mut done = 0;
        for region in self.regions() {
            let (left, checkpointed) = (bytes_max - done, checkpointed(region));
            let records = match self.tail(region, below, left, checkpointed) {
                // Damaged entries keep their own segment, and no other region's.
                Err(error) if error.is_damage() => continue,
                other => other?,
            };
            let Some(records) = records else { continue };
            done += bytes_of(&records);
            // One batch: a crash leaves all of the old places or all of the new ones.
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

    /// Checks every checksum of every file, telling of damage and going on.
    pub fn verify(&self, f: &mut dyn FnMut(VerifyEvent)) -> Result<VerifySummary> {
        verify(&self.shared, f)
    }

    /// Every version of every key the files hold, file by file, and the deletes: what an index can be
    /// rebuilt from.
    pub fn scan_versions(&self, f: &mut dyn FnMut(VersionedOp<'_>) -> Result<()>) -> Result<()> {
        self.shared.scan_versions(f)
    }

    /// Confirms the last batch durably. Not calling it is a crash, and loses nothing either.
    pub fn close(&self) -> Result<()> {
        let mut appender = self.appender.lock();
        appender.confirm(&self.shared)?;
        appender.sync(&self.shared)
    }

    /// Whether an earlier failure stopped the log. Reads go on.
    pub fn poisoned(&self) -> bool {
        self.shared.poison.is_set()
    }

    /// The number the next file gets.
    pub fn next_file(&self) -> FileId {
        FileId(self.shared.next_file.load(Relaxed))
    }

    /// Figures since the log was opened.
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
            tombstone_files: catalog.of_kind(FileKind::Graves).len(),
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
            cache_hits: load(&shared.cache.hits),
            cache_misses: load(&shared.cache.misses),
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
