//! Moving a key range as sorted pairs: Raft snapshots out (`export`) and in (`install`).

use super::{Shared, Store, View};
use std::sync::Arc;
use stele_index::Slot;
use stele_storage::{Order, Pair, StorageEngine};
use stele_types::{
    Cause, Error, KeyRange, LogBatch, LogIndex, Mark, Record, RegionId, Result, Term, ValueRef,
};

pub(crate) fn export(
    shared: &Arc<Shared>,
    range: &KeyRange,
    sink: &mut dyn FnMut(Vec<Pair>) -> Result<()>,
) -> Result<()> {
    let view = View::new(shared);
    let mut iter = view.references(range.clone(), Order::Forward)?;
    loop {
        let slice = view.next_slice(&mut iter, usize::MAX, u64::MAX, false)?;
        if slice.is_empty() {
            return Ok(());
        }
        sink(slice)?;
    }
}

/// Values go to one sorted value file, references to one run; a single manifest edit makes both
/// current. The region's log starts after it: if a crash comes between, opening repeats that mark,
/// because the manifest then knows a later index than the log.
pub(crate) fn install(
    store: &Store,
    region: RegionId,
    range: &KeyRange,
    at: (LogIndex, Term),
    pairs: &mut dyn Iterator<Item = Result<Pair>>,
) -> Result<()> {
    // The installed run is the newest: nothing older may still wait in a memtable.
    store.flush()?;
    let shared = store.shared();
    let version = shared.log.head();
    let inline_max = shared.options.inline_value_bytes_max;
    let mut values = shared.log.sorted_writer(Cause::Snapshot)?;
    let mut slots = Vec::new();
    for pair in pairs {
        let Pair { key, value, expires_at_s } = pair?;
        if !range.contains(&key) {
            return Err(Error::invalid("a pair lies outside the range to install"));
        }
        let value = if value.len() <= inline_max {
            ValueRef::Inline(value)
        } else {
            ValueRef::At(values.append(&key, version, expires_at_s, &value)?)
        };
        slots.push((key, Slot::Put { value, expires_at_s }));
    }
    values.finish()?;
    let mut state = shared.apply.lock();
    shared.index.install(range, (region, at), &mut slots.into_iter())?;
    let batch = LogBatch { records: vec![Record::Mark(region, Mark::Start(at.0, at.1))] };
    let appended = shared.log.append(&batch)?;
    state.note_appended(&batch, &appended);
    Ok(())
}

pub(crate) fn drop_range(store: &Store, range: &KeyRange) -> Result<()> {
    // What waits in memtables is newer than any manifest edit: it becomes a run first.
    store.flush()?;
    let _applying = store.shared().apply.lock();
    store.shared().index.drop_range(range)
}
