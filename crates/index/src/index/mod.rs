//! The public interface of the index.

mod install;
mod jobs;
mod open;
mod shared;
mod verify;

pub use install::Ingest;
pub use open::Opened;
pub(crate) use shared::{Frozen, Shared, Tables};
pub use verify::VerifyReport;

use crate::cursor::Found;
use crate::manifest::Checkpoint;
use crate::manifest::{Change, Edit};
use crate::memtable::{KeyWrite, RangeSet};
use crate::merge::{Job, JobDone, MergeProgress, MergeSpec, ValueMover};
use crate::options::IndexOptions;
use crate::run::ScrubbedBlocks;
use crate::version::{Version, VersionId};
use crate::view::{Direction, View, ViewIter};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use stele_types::{FileId, KeyRange, LogIndex, Lsn, RegionId, Result, RunId, Seq, Term, ValueRef};
use stele_vfs::Vfs;

/// The index of one store. Any thread may read; writes (`write`, `put`, `delete`,
/// `delete_range`, `publish`, `freeze`) come from one thread at a time.
#[derive(Debug)]
pub struct Index {
    shared: Arc<Shared>,
}

impl Index {
    /// Opens the index in `dir` and creates both if they are missing. Removes files that the
    /// manifest does not reference. Fails with `Missing` when the manifest or a current run is
    /// missing, and with `Corrupt` when one is damaged; [`crate::rebuild`] may then help.
    pub fn open(vfs: Arc<dyn Vfs>, dir: &Path, options: IndexOptions) -> Result<(Self, Opened)> {
        let (shared, opened) = open::open(vfs, dir, options)?;
        Ok((Self { shared }, opened))
    }

    /// Writes keys in the order of `writes`. Sequence numbers start over at each open and never
    /// decrease. Invariant: the active memtable stays the active one meanwhile, although no lock of
    /// the tables is held: only the thread that writes freezes it.
    pub fn write(&self, writes: &[KeyWrite<'_>]) {
        let active = self.shared.tables.read().active.clone();
        active.write(writes);
    }

    /// Sets a key.
    pub fn put(&self, seq: Seq, key: &[u8], value: ValueRef, expires_at_s: u64) {
        self.write(&[KeyWrite { seq, key, value: Some((&value).into()), expires_at_s }]);
    }

    /// Deletes a key.
    pub fn delete(&self, seq: Seq, key: &[u8]) {
        self.write(&[KeyWrite { seq, key, value: None, expires_at_s: 0 }]);
    }

    /// Deletes the keys of [start, end); an empty `end` is unbounded.
    pub fn delete_range(&self, seq: Seq, start: &[u8], end: &[u8]) {
        self.shared.tables.read().active.delete_range(seq, start, end);
    }

    /// Makes writes up to and including `seq` visible to readers.
    pub fn publish(&self, seq: Seq) {
        // bug index.publish_ignored: skip
        self.shared.published.store(seq.0, Ordering::Release);
    }

    /// Returns the newest published entry of `key`; `Some(Deleted)` and `None` both mean that there
    /// is no value.
    pub fn get(&self, key: &[u8]) -> Result<Option<Found>> {
        let (tables, seq) = self.shared.snapshot();
        tables.get(key, seq)
    }

    /// Returns a consistent view of all published writes.
    pub fn view(&self) -> View {
        let (tables, seq) = self.shared.snapshot();
        View::new(tables, seq)
    }

    /// Returns the pairs of `range` in key order, from one point in time.
    pub fn export(&self, range: KeyRange) -> Result<ViewIter> {
        self.view().iter(range, Direction::Forward)
    }

    /// Returns the memory of the active memtable in bytes.
    pub fn memtable_bytes(&self) -> usize {
        self.shared.tables.read().active.bytes()
    }

    /// Returns whether nothing was written since the last freeze.
    pub fn memtable_is_empty(&self) -> bool {
        self.shared.tables.read().active.is_empty()
    }

    /// Returns how many keys the active memtable holds, and how many deletes of one key were written to
    /// it.
    pub fn memtable_entries(&self) -> (u64, u64) {
        let tables = self.shared.tables.read();
        (tables.active.entries(), tables.active.tombstones())
    }

    /// Returns the keys under published range deletes of the active memtable.
    pub fn memtable_ranges(&self) -> Arc<RangeSet> {
        let (tables, seq) = self.shared.snapshot();
        tables.active.ranges(seq)
    }

    /// Returns the memory of all memtables in bytes: their runs take less.
    pub fn unflushed_bytes(&self) -> u64 {
        let tables = self.shared.tables.read().clone();
        tables.memtables().map(|memtable| memtable.bytes() as u64).sum()
    }

    /// Returns the number of memtables that wait for a flush.
    pub fn frozen_count(&self) -> usize {
        self.shared.tables.read().frozen.len()
    }

    /// Starts a new memtable. Everything written so far must be published, and `checkpoint` must
    /// describe exactly that. The checkpoint becomes durable with the flush of the frozen memtable.
    pub fn freeze(&self, checkpoint: Checkpoint) {
        self.shared.freeze(checkpoint);
    }

    /// Starts the flush of the oldest frozen memtable. Returns `None` when there is none, or when a
    /// flush is running.
    pub fn start_flush(&self) -> Option<Job> {
        jobs::start_flush(&self.shared)
    }

    /// Starts a merge and discards an interrupted one. Fails with `Busy` while another merge runs,
    /// and with `Invalid` when the inputs are not current or the tiers are not adjacent. Entries
    /// that expired by `drop_s` (Unix seconds; 0 keeps all) are dropped where no older tier lies
    /// below.
    pub fn start_merge(
        &self,
        spec: MergeSpec,
        mover: Option<Box<dyn ValueMover>>,
        drop_s: u64,
    ) -> Result<Job> {
        jobs::start_merge(&self.shared, spec, mover, drop_s)
    }

    /// Starts to rewrite a run without the entries that newer tiers hide. It takes
    /// the space of one run, where a merge of all tiers takes that of all runs. Fails as
    /// [`Index::start_merge`] does.
    pub fn start_trim(&self, run: RunId, drop_s: u64) -> Result<Job> {
        jobs::start_trim(&self.shared, run, drop_s)
    }

    /// Resumes the interrupted merge after its last key. Returns `None` if there is none.
    pub fn resume_merge(
        &self,
        mover: Option<Box<dyn ValueMover>>,
        drop_s: u64,
    ) -> Result<Option<Job>> {
        jobs::resume_merge(&self.shared, mover, drop_s)
    }

    /// Discards the interrupted merge and its outputs. Fails with `Busy` while a merge runs.
    pub fn abandon_merge(&self) -> Result<()> {
        jobs::abandon_merge(&self.shared)
    }

    /// Returns the running or interrupted merge, once it has finished an output.
    pub fn pending_merge(&self) -> Option<MergeProgress> {
        self.shared.manifest.lock().state().pending.clone()
    }

    /// Makes a finished job's outputs current, durably, and drops its inputs.
    pub fn commit(&self, done: JobDone) -> Result<()> {
        jobs::commit(&self.shared, done)?;
        shared::balance(&self.shared);
        Ok(())
    }

    /// Returns the current version.
    pub fn version(&self) -> Arc<Version> {
        self.shared.tables.read().version.clone()
    }

    /// Returns the versions that readers pin, and the current one, in ascending order. What first
    /// appeared after version M and became obsolete with version N may be removed once none is in
    /// M..N.
    pub fn pinned_versions(&self) -> Vec<VersionId> {
        self.shared.pins.all()
    }

    /// Returns the number of runs unlinked since the index was opened.
    pub fn removed_runs(&self) -> u64 {
        self.shared.removed_runs.load(Ordering::Acquire)
    }

    /// Unlinks obsolete runs that no reader pins; returns how many. Commits do this too.
    pub fn purge(&self) -> Result<usize> {
        let removed = self.shared.purge()?;
        shared::balance(&self.shared);
        Ok(removed)
    }

    /// Makes an edit durable.
    pub fn edit(&self, edit: Edit) -> Result<()> {
        self.shared.manifest.lock().append(&[Change::from(edit)])
    }

    /// Returns the first segment with needed Raft entries, as last edited.
    pub fn raft_from(&self) -> FileId {
        self.shared.manifest.lock().state().raft_from
    }

    /// Returns the lower bound of the next value file's id, as last edited.
    pub fn next_file(&self) -> FileId {
        self.shared.manifest.lock().state().next_file
    }

    /// Returns the state of garbage collection, as last edited.
    pub fn gc_state(&self) -> Bytes {
        self.shared.manifest.lock().state().gc_state.clone()
    }

    /// Returns the last durable checkpoint.
    pub fn checkpoint(&self) -> Checkpoint {
        self.shared.manifest.lock().state().checkpoint.clone()
    }

    /// Returns the position from which the log must be replayed after the last durable checkpoint.
    /// Costs the same however many regions there are.
    pub fn replay_from(&self) -> Lsn {
        self.shared.manifest.lock().state().checkpoint.replay_from
    }

    /// Returns the applied index and term of `region` in the last durable checkpoint.
    pub fn checkpointed(&self, region: RegionId) -> Option<(LogIndex, Term)> {
        self.shared.checkpointed.read().get(&region).copied()
    }

    /// Returns the value files that current runs or the outputs of an unfinished merge reference,
    /// ascending. Invariant: none of them may be removed.
    pub fn needed_files(&self) -> Result<Vec<FileId>> {
        self.shared.needed_files()
    }

    /// Begins to stage pairs that replace the contents of `ranges` (ascending, disjoint).
    pub fn begin_ingest(&self, ranges: Vec<KeyRange>) -> Result<Ingest> {
        Ingest::new(&self.shared, ranges)
    }

    /// Replaces the contents of the ranges by the staged pairs, durably and at once, and marks
    /// `region` applied up to an index. Fails with `Busy` while memtables hold keys of a range.
    /// Commits wait meanwhile, for the footers of the runs and one manifest edit.
    pub fn install(
        &self,
        ingest: Ingest,
        region: Option<(RegionId, (LogIndex, Term))>,
    ) -> Result<()> {
        install::install(&self.shared, ingest, region)?;
        shared::balance(&self.shared);
        Ok(())
    }

    /// Removes the contents of `ranges` (ascending, disjoint), durably and at once. Fails with
    /// `Busy` as [`Index::install`] does.
    pub fn drop_ranges(&self, ranges: &[KeyRange]) -> Result<()> {
        self.install(self.begin_ingest(ranges.to_vec())?, None)
    }

    /// Returns whether memtables hold keys of the ranges.
    pub fn touches_memtables(&self, ranges: &[KeyRange]) -> Result<bool> {
        install::touches_memtables(&self.shared, ranges)
    }

    /// Removes a region from the durable checkpoint and from those of pending flushes.
    pub fn forget_region(&self, region: RegionId) -> Result<()> {
        install::forget_region(&self.shared, region)
    }

    /// Returns the memory of memtables, cached blocks, filters and fences, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.shared.memory_bytes()
    }

    /// Returns the memory of filters, fences and footers of the current runs, in bytes: at most
    /// `index_memory_bytes_max`, and a few kilobytes for each run.
    pub fn index_memory_bytes(&self) -> u64 {
        self.shared.run_bytes()
    }

    /// Returns the number of reads of filters and fences of cold runs since the index was opened,
    /// and their bytes.
    pub fn cold_reads(&self) -> (u64, u64) {
        self.shared.cache.cold_reads()
    }

    /// Returns the current runs of which reads found the filter or fences damaged since the last
    /// call. They are complete; rewriting them repairs them.
    pub fn take_damaged_runs(&self) -> Vec<RunId> {
        self.version().runs().filter(|run| run.take_damaged()).map(|run| run.id()).collect()
    }

    /// Scrubs a part of a current run: reads about `bytes_max` bytes from block `from` on. Returns
    /// `None` when the run is no longer current.
    pub fn scrub_run(
        &self,
        run: RunId,
        from: usize,
        bytes_max: u64,
    ) -> Result<Option<ScrubbedBlocks>> {
        let version = self.version();
        let found = version.runs().find(|other| other.id() == run);
        found.map(|run| run.scrub_blocks(from, bytes_max)).transpose()
    }

    /// Masks these blocks of a run: views taken later treat them as empty. Invariant: a newer tier
    /// already determines all their keys. The file stays as it is until a merge, so that the next
    /// open detects the damage again.
    pub fn mask_blocks(&self, run: RunId, blocks: &[usize]) {
        self.shared.mask(run, |run| run.without(blocks));
    }

    /// Records that newer tiers determine all keys of a range: views taken later read them without the
    /// damaged blocks of this run.
    pub fn cover_range(&self, run: RunId, range: &KeyRange) {
        self.shared.mask(run, |run| run.covered_by(range));
    }

    /// Returns whether a failed write or sync of the manifest has stopped all changes.
    pub fn poisoned(&self) -> bool {
        self.shared.manifest.lock().poisoned()
    }

    /// Reads every byte of the manifest and of all current runs. Passes each damage to `f` and
    /// continues.
    pub fn verify(&self, f: &mut dyn FnMut(&stele_types::Error)) -> Result<VerifyReport> {
        verify::verify(&self.shared, f)
    }
}
