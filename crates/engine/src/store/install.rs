//! Installation of sorted pairs of key ranges: Raft snapshots from other stores.

use super::apply::ApplyState;
use super::{Shared, Store};
use std::sync::Arc;
use stele_log::{Appended, SealedFile, SortedWriter};
use stele_storage::Pair;
use stele_types::lock::{MutexGuard, rank};
use stele_types::{
    Cause, Error, KeyRange, LogBatch, LogIndex, Lsn, Mark, Record, RegionId, Result, Term, ValueRef,
};
use stele_vfs::DirLock;

/// Number of flushes after which an installation gives way to writes into its ranges.
const FLUSHES_MAX: usize = 3;

/// Staged pairs of a snapshot: values in sorted files and references in runs. All have temporary
/// names, under which nothing reads them and garbage collection does not see them.
#[derive(Debug)]
pub struct Ingest {
    shared: Arc<Shared>,
    index: stele_index::Ingest,
    /// Version of the values. Only a rebuild from values uses it, and a store that installs
    /// snapshots is not rebuilt from values.
    version: Lsn,
    values: Option<SortedWriter>,
    sealed: Vec<SealedFile>,
    /// A value could not be written.
    has_failed: bool,
    /// Lock on the directory. Files removed when this is dropped must not belong to another holder.
    _lock: Arc<dyn DirLock>,
}

impl Ingest {
    pub(super) fn new(
        shared: &Arc<Shared>,
        lock: &Arc<dyn DirLock>,
        ranges: Vec<KeyRange>,
    ) -> Result<Self> {
        stele_storage::check_ranges(&ranges)?;
        Ok(Self {
            index: shared.index.begin_ingest(ranges)?,
            version: shared.log.head(),
            values: None,
            sealed: Vec::new(),
            has_failed: false,
            shared: shared.clone(),
            _lock: lock.clone(),
        })
    }

    pub(super) fn receive(&mut self, pairs: Vec<Pair>) -> Result<()> {
        let received = pairs.into_iter().try_for_each(|pair| self.receive_pair(pair));
        self.has_failed |= received.is_err();
        received
    }

    fn receive_pair(&mut self, pair: Pair) -> Result<()> {
        let Pair { key, value, expires_at_s } = pair;
        self.index.check(&key)?;
        if value.len() <= self.shared.options.inline_value_bytes_max {
            return self.index.add(&key, ValueRef::Inline(value), expires_at_s);
        }
        let values = match &mut self.values {
            Some(values) => values,
            none => none.insert(self.shared.log.sorted_writer(Cause::Snapshot)?),
        };
        let at = values.append(&key, self.version, expires_at_s, &value)?;
        // Keeps files at the size for which garbage collection is designed.
        if values.bytes() >= self.shared.options.segment_bytes_max {
            self.seal_values()?;
        }
        self.index.add(&key, ValueRef::At(at), expires_at_s)
    }

    fn seal_values(&mut self) -> Result<()> {
        if let Some(values) = self.values.take() {
            self.sealed.push(values.seal()?);
        }
        Ok(())
    }

    /// Makes everything durable, except names and what the installation determines.
    pub(super) fn finish(&mut self) -> Result<()> {
        if self.has_failed {
            return Err(Error::invalid(
                "an ingest with a failed receive cannot be installed; begin a new one",
            ));
        }
        self.seal_values()?;
        self.index.finish()
    }
}

/// Installs staged pairs as the state of `region` at `at`. Invariant: all of a snapshot becomes visible at one
/// moment, with the start of its log. Order: staged values and runs are
/// durable → device space for the mark is reserved → values get their names → one manifest edit
/// makes the runs, the removal of the old pairs and the region's applied index current → the mark
/// is written from which its log starts. If a crash prevents the mark, opening repeats it: the
/// manifest then has an applied entry that the log lacks.
/// Test: `a_crash_in_an_installation_leaves_the_old_range_or_the_new_one_with_its_log`.
pub(crate) fn install(
    store: &Store,
    region: RegionId,
    at: (LogIndex, Term),
    mut ingest: Ingest,
) -> Result<()> {
    let shared = store.shared();
    shared.check_has_replicas()?;
    ingest.finish()?;
    let (log, start) = (&shared.log, Some((region, at)));
    let batch = LogBatch { records: vec![Record::Mark(region, Mark::Start(at.0, at.1))] };
    let mut state = lock_flushed(store, ingest.index.ranges())?;
    // The range is replaced permanently: if the log cannot record it, the log must stop.
    let mut note = |appended: Result<Appended>| -> Result<()> {
        appended.map_err(|error| Error::Poisoned(log.stop(error).to_string()))?;
        state.note_marks(&batch);
        Ok(())
    };
    // The device may fill up in the meantime.
    // bug engine.mark_without_room: make_current(shared, ingest, start)?; return note(log.append(&batch));
    let reserved = log.reserve(&batch)?;
    make_current(shared, ingest, start)?;
    note(reserved.append(&batch))
}

/// Gives the values their names, then writes one manifest edit.
pub(super) fn make_current(
    shared: &Shared,
    ingest: Ingest,
    region: Option<(RegionId, (LogIndex, Term))>,
) -> Result<()> {
    let Ingest { index, mut sealed, .. } = ingest;
    shared.log.publish(&mut sealed)?;
    let installed = shared.index.install(index, region);
    // A failed manifest edit may be durable, and would then refer to these files.
    let is_kept = installed.is_ok() || shared.index.poisoned();
    if is_kept {
        sealed.into_iter().for_each(SealedFile::keep);
    }
    installed
}

/// Flushes memtables to runs, because their pairs in the ranges would be newer than the manifest
/// edit. While the lock is held, nothing is applied.
pub(super) fn lock_flushed<'a>(
    store: &'a Store,
    ranges: &[KeyRange],
) -> Result<MutexGuard<'a, ApplyState, { rank::APPLY }>> {
    for _ in 0..FLUSHES_MAX {
        // bug engine.install_unflushed: skip
        store.flush()?;
        let state = store.shared().apply.lock();
        if !store.shared().index.touches_memtables(ranges)? {
            return Ok(state);
        }
    }
    Err(Error::Busy("the ranges to replace are being written".to_owned()))
}

pub(crate) fn drop_ranges(store: &Store, ranges: &[KeyRange]) -> Result<()> {
    stele_storage::check_ranges(ranges)?;
    store.shared().check_has_replicas()?;
    let _applying = lock_flushed(store, ranges)?;
    store.shared().index.drop_ranges(ranges)
}
