//! The index as one object.

mod commit;
mod install;
mod jobs;
mod open;
mod shared;
mod verify;

pub use install::Ingest;
pub use open::Opened;
pub(crate) use shared::{Frozen, Shared, Tables};
pub use verify::VerifyReport;

use crate::checkpoint::Checkpoint;
use crate::manifest::{Change, Edit};
use crate::memtable::RangeSet;
use crate::merge::{Job, JobDone, MergeProgress, MergeSpec, ValueMover};
use crate::options::IndexOptions;
use crate::run::ScrubbedBlocks;
use crate::slot::Found;
use crate::version::{Version, VersionId};
use crate::view::{Direction, View, ViewIter};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use stele_types::{
    FileId, KeyRange, LogIndex, RegionId, Result, RunId, Seq, Term, ValueRef, mutant,
};
use stele_vfs::Vfs;

/// The index of one store. Any thread may read; writes (`put`, `delete`, `delete_range`,
/// `publish`, `freeze`) come from one thread at a time.
#[derive(Debug)]
pub struct Index {
    shared: Arc<Shared>,
}

impl Index {
    /// Opens the index in `dir`, creating both when missing. Files no manifest refers to are
    /// removed. `Missing` when the manifest or a current run is gone, `Corrupt` when one is
    /// damaged: [`crate::rebuild`] may then help.
    pub fn open(vfs: Arc<dyn Vfs>, dir: &Path, options: IndexOptions) -> Result<(Self, Opened)> {
        let (shared, opened) = open::open(vfs, dir, options)?;
        Ok((Self { shared }, opened))
    }

    /// Sets a key. Sequence numbers start anew at each open and never decrease.
    pub fn put(&self, seq: Seq, key: &[u8], value: ValueRef, expires_at_s: u64) {
        self.shared.tables.read().active.put(seq, key, &Found::Value { value, expires_at_s });
    }

    /// Removes a key.
    pub fn delete(&self, seq: Seq, key: &[u8]) {
        self.shared.tables.read().active.put(seq, key, &Found::Deleted);
    }

    /// Removes the keys of [start, end); an empty `end` is no bound.
    pub fn delete_range(&self, seq: Seq, start: &[u8], end: &[u8]) {
        self.shared.tables.read().active.delete_range(seq, start, end);
    }

    /// Shows readers everything up to `seq`.
    pub fn publish(&self, seq: Seq) {
        if !mutant::active("index.publish_ignored") {
            self.shared.published.store(seq.0, Ordering::Release);
        }
    }

    /// The newest published entry of `key`; `Some(Deleted)` and `None` both mean there is no value.
    pub fn get(&self, key: &[u8]) -> Result<Option<Found>> {
        let (tables, seq) = self.shared.moment();
        tables.get(key, seq)
    }

    /// A consistent view of everything published.
    pub fn view(&self) -> View {
        let (tables, seq) = self.shared.moment();
        View::new(tables, seq)
    }

    /// The pairs of `range` in key order, from one point in time.
    pub fn export(&self, range: KeyRange) -> Result<ViewIter> {
        self.view().iter(range, Direction::Forward)
    }

    /// Bytes of memory the active memtable takes.
    pub fn memtable_bytes(&self) -> usize {
        self.shared.tables.read().active.bytes()
    }

    /// Whether nothing was written since the last freeze.
    pub fn memtable_is_empty(&self) -> bool {
        self.shared.tables.read().active.is_empty()
    }

    /// Keys under range deletes that only the active memtable knows.
    pub fn memtable_ranges(&self) -> Arc<RangeSet> {
        let (tables, seq) = self.shared.moment();
        tables.active.ranges(seq)
    }

    /// How many memtables wait for their flush.
    pub fn frozen_count(&self) -> usize {
        self.shared.tables.read().frozen.len()
    }

    /// Starts a new memtable. Everything put so far must be published, and `checkpoint` must
    /// describe exactly that; it becomes durable with the flush of what is frozen here.
    pub fn freeze(&self, checkpoint: Checkpoint) {
        self.shared.freeze(checkpoint);
    }

    /// Starts turning the oldest frozen memtable into a run. `None` when there is none, or when a
    /// flush is running.
    pub fn start_flush(&self) -> Option<Job> {
        jobs::start_flush(&self.shared)
    }

    /// Starts a merge. `Busy` while another runs; `Invalid` when the inputs are not current, or the
    /// tiers not neighbours. Forgets a merge that was cut short. Entries that expired by `now_s`
    /// (Unix seconds, 0 for none) go where nothing older lies below.
    pub fn start_merge(
        &self,
        spec: MergeSpec,
        mover: Option<Box<dyn ValueMover>>,
        now_s: u64,
    ) -> Result<Job> {
        jobs::start_merge(&self.shared, spec, mover, now_s)
    }

    /// Goes on with the merge that was cut short, after its last key, if there is one.
    pub fn resume_merge(
        &self,
        mover: Option<Box<dyn ValueMover>>,
        now_s: u64,
    ) -> Result<Option<Job>> {
        jobs::resume_merge(&self.shared, mover, now_s)
    }

    /// Forgets the merge that was cut short and removes its outputs. `Busy` while a merge runs.
    pub fn abandon_merge(&self) -> Result<()> {
        jobs::abandon_merge(&self.shared)
    }

    /// The merge that runs or was cut short, once it has finished an output.
    pub fn pending_merge(&self) -> Option<MergeProgress> {
        self.shared.manifest.lock().state().pending.clone()
    }

    /// Makes a finished job's outputs current, durably, and drops its inputs.
    pub fn commit(&self, done: JobDone) -> Result<()> {
        commit::commit(&self.shared, done)
    }

    /// The current runs.
    pub fn version(&self) -> Arc<Version> {
        self.shared.tables.read().version.clone()
    }

    /// The oldest version someone looks at. What became obsolete with version N may be removed once
    /// this is at least N.
    pub fn oldest_pinned(&self) -> VersionId {
        self.shared.pins.oldest()
    }

    /// Unlinks obsolete runs nobody looks at any more; returns how many. Commits do this too.
    pub fn purge(&self) -> Result<usize> {
        self.shared.purge()
    }

    /// Makes a fact durable.
    pub fn edit(&self, edit: Edit) -> Result<()> {
        self.shared.manifest.lock().append(&[Change::from(edit)])
    }

    /// First segment with wanted Raft entries, as last edited.
    pub fn raft_from(&self) -> FileId {
        self.shared.manifest.lock().state().raft_from
    }

    /// Lower bound of the next value file's id, as last edited.
    pub fn next_file(&self) -> FileId {
        self.shared.manifest.lock().state().next_file
    }

    /// State of garbage collection, as last edited.
    pub fn gc_state(&self) -> Bytes {
        self.shared.manifest.lock().state().gc_state.clone()
    }

    /// The last durable checkpoint.
    pub fn checkpoint(&self) -> Checkpoint {
        self.shared.manifest.lock().state().checkpoint.clone()
    }

    /// How far `region` is applied by the last durable checkpoint.
    pub fn checkpointed(&self, region: RegionId) -> Option<(LogIndex, Term)> {
        self.shared.checkpointed.read().get(&region).copied()
    }

    /// Value files that current runs or the outputs of an unfinished merge refer to, ascending:
    /// none of them may go.
    pub fn needed_files(&self) -> Result<Vec<FileId>> {
        self.shared.needed_files()
    }

    /// Begins to take in the pairs that are to replace what `ranges` (ascending, disjoint) hold.
    pub fn begin_ingest(&self, ranges: Vec<KeyRange>) -> Result<Ingest> {
        Ingest::new(&self.shared, ranges)
    }

    /// Replaces what the ranges hold by the pairs taken in, durably and at once, and marks `region`
    /// applied up to an index. `Busy` while memtables hold something in a range. Commits wait
    /// meanwhile, for the footers of the runs and one edit.
    pub fn install(
        &self,
        incoming: Ingest,
        region: Option<(RegionId, (LogIndex, Term))>,
    ) -> Result<()> {
        install::install(&self.shared, incoming, region)
    }

    /// Removes what `ranges` (ascending, disjoint) hold, durably and at once. `Busy` as in
    /// [`Index::install`].
    pub fn drop_ranges(&self, ranges: &[KeyRange]) -> Result<()> {
        self.install(self.begin_ingest(ranges.to_vec())?, None)
    }

    /// Whether memtables hold something of the ranges.
    pub fn touches_memtables(&self, ranges: &[KeyRange]) -> Result<bool> {
        install::touches_memtables(&self.shared, ranges)
    }

    /// Takes a region out of the durable checkpoint, and out of those that flushes will establish.
    pub fn forget_region(&self, region: RegionId) -> Result<()> {
        install::forget_region(&self.shared, region)
    }

    /// Bytes of memory held: memtables, cached blocks, filters and fences of runs.
    pub fn memory_bytes(&self) -> u64 {
        self.shared.memory_bytes()
    }

    /// Reads a part of a current run anew, from block `from` on, about `bytes_max` bytes. `None` when
    /// the run is current no more.
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

    /// From the next view on these blocks of a run count as empty. A newer tier must say by now what
    /// becomes of all their keys. Until a merge the file stays as it is, so that the next open finds
    /// the damage again.
    pub fn mask_blocks(&self, run: RunId, blocks: &[usize]) {
        self.shared.mask_blocks(run, blocks);
    }

    /// Whether a failed sync has stopped all changes.
    pub fn poisoned(&self) -> bool {
        self.shared.manifest.lock().poisoned()
    }

    /// Reads every byte of the manifest and of all current runs; damage goes to `f`, and the rest
    /// is still read.
    pub fn verify(&self, f: &mut dyn FnMut(&stele_types::Error)) -> Result<VerifyReport> {
        verify::verify(&self.shared, f)
    }
}
