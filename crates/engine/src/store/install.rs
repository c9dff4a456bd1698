//! Moving key ranges as sorted pairs: Raft snapshots out (`export`) and in (`install`).

use super::apply::ApplyState;
use super::slice::Extent;
use super::{Shared, Store, View};
use parking_lot::MutexGuard;
use std::sync::Arc;
use stele_log::{SealedFile, SortedWriter};
use stele_storage::{Order, Pair};
use stele_types::{
    Cause, Error, KeyRange, LogBatch, LogIndex, Lsn, Mark, Record, RegionId, Result, Term,
    ValueRef, mutant,
};
use stele_vfs::DirLock;

/// Bytes that an export holds at a time.
const EXPORT_SLICE_BYTES: u64 = 1 << 20;
/// Flushes tried before an installation gives way to writes into its ranges.
const FLUSHES_MAX: usize = 3;

pub(crate) fn export(
    shared: &Arc<Shared>,
    range: &KeyRange,
    sink: &mut dyn FnMut(Vec<Pair>) -> Result<()>,
) -> Result<()> {
    let view = View::new(shared);
    let mut iter = view.references(range.clone(), Order::Forward)?;
    let extent = Extent { pairs_max: usize::MAX, bytes_max: EXPORT_SLICE_BYTES, keys_only: false };
    loop {
        let slice = view.next_slice(&mut iter, extent)?;
        if slice.is_empty() {
            return Ok(());
        }
        sink(slice)?;
    }
}

/// Pairs of a snapshot on their way in: values in sorted files, references in runs, all of them off
/// to the side under temporary names, which nothing reads and garbage collection does not see.
#[derive(Debug)]
pub struct Ingest {
    shared: Arc<Shared>,
    index: stele_index::Ingest,
    /// The version of the values. Only a rebuild from values asks for it, and a store that takes
    /// installations is not rebuilt from values.
    version: Lsn,
    values: Option<SortedWriter>,
    sealed: Vec<SealedFile>,
    /// A value could not be written.
    is_broken: bool,
    /// What is removed when this is dropped must not be another holder's.
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
            is_broken: false,
            shared: shared.clone(),
            _lock: lock.clone(),
        })
    }

    pub(super) fn receive(&mut self, pairs: Vec<Pair>) -> Result<()> {
        let received = pairs.into_iter().try_for_each(|pair| self.receive_pair(pair));
        self.is_broken |= received.is_err();
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
        // Files of a size that collection is used to.
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

    /// Makes everything durable, save for names and for what only installing can say.
    pub(super) fn finish(&mut self) -> Result<()> {
        if self.is_broken {
            return Err(Error::invalid("pairs that were refused can't be installed"));
        }
        self.seal_values()?;
        self.index.finish()
    }
}

/// Order: values and runs durable off to the side → room on the device for the mark → values named →
/// one manifest edit makes runs, the removal of what was there, and the region's applied index current
/// → the mark from which its log starts. If a crash comes before the mark, opening repeats it: the
/// manifest then knows an applied entry that the log does not.
pub(crate) fn install(
    store: &Store,
    region: RegionId,
    at: (LogIndex, Term),
    mut incoming: Ingest,
) -> Result<()> {
    let shared = store.shared();
    shared.check_has_replicas()?;
    incoming.finish()?;
    let batch = LogBatch { records: vec![Record::Mark(region, Mark::Start(at.0, at.1))] };
    let mut state = lock_flushed(store, incoming.index.ranges())?;
    // The device may fill up meanwhile.
    if !mutant::active("engine.mark_without_room") {
        shared.log.preallocate(&batch)?;
    }
    make_current(shared, incoming, Some((region, at)))?;
    // The range is replaced for good: a log that can't say so has nothing right to say any more.
    let stop = |error| Error::Poisoned(shared.log.stop(error).to_string());
    let appended = shared.log.append(&batch).map_err(stop)?;
    state.note_appended(&batch, &appended);
    Ok(())
}

/// Values named, then one manifest edit.
pub(super) fn make_current(
    shared: &Shared,
    incoming: Ingest,
    region: Option<(RegionId, (LogIndex, Term))>,
) -> Result<()> {
    let Ingest { index, mut sealed, .. } = incoming;
    shared.log.publish(&mut sealed)?;
    let installed = shared.index.install(index, region);
    // The edit of a manifest that failed may be durable, and then refers to these files.
    let is_kept = installed.is_ok() || shared.index.poisoned();
    if is_kept {
        sealed.into_iter().for_each(SealedFile::keep);
    }
    installed
}

/// Makes what memtables hold into runs: it would be newer than what a manifest edit says of the
/// ranges. With the lock nothing is applied meanwhile.
pub(super) fn lock_flushed<'a>(
    store: &'a Store,
    ranges: &[KeyRange],
) -> Result<MutexGuard<'a, ApplyState>> {
    for _ in 0..FLUSHES_MAX {
        if !mutant::active("engine.install_unflushed") {
            store.flush()?;
        }
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
