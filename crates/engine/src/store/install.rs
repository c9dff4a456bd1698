//! Moving a key range as sorted pairs: Raft snapshots out (`export`) and in (`install`).

use super::{Shared, Store, View};
use bytes::Bytes;
use std::sync::Arc;
use stele_log::{Log, SortedWriter};
use stele_storage::{Order, Pair};
use stele_types::{
    Cause, Error, KeyRange, LogBatch, LogIndex, Lsn, Mark, Record, RegionId, Result, Term, ValueRef,
};

/// Bytes that an export holds at a time.
const EXPORT_SLICE_BYTES: u64 = 1 << 20;

/// A value file of a snapshot ends after the value that reaches this size.
const VALUE_FILE_BYTES_MAX: u64 = 128 << 20;

pub(crate) fn export(
    shared: &Arc<Shared>,
    range: &KeyRange,
    sink: &mut dyn FnMut(Vec<Pair>) -> Result<()>,
) -> Result<()> {
    let view = View::new(shared);
    let mut iter = view.references(range.clone(), Order::Forward)?;
    loop {
        let slice = view.next_slice(&mut iter, usize::MAX, EXPORT_SLICE_BYTES, false)?;
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
    let mut state = shared.apply.lock();
    let mut incoming = Incoming {
        range,
        pairs,
        version: shared.log.head(),
        inline_value_bytes_max: shared.options.inline_value_bytes_max,
        log: &shared.log,
        values: None,
        last_key: None,
    };
    shared.index.install(range, Some((region, at)), &mut incoming)?;
    let batch = LogBatch { records: vec![Record::Mark(region, Mark::Start(at.0, at.1))] };
    let appended = shared.log.append(&batch)?;
    state.note_appended(&batch, &appended);
    Ok(())
}

/// Writes the values of pairs on their way to the index, and yields where they lie.
struct Incoming<'a> {
    range: &'a KeyRange,
    pairs: &'a mut dyn Iterator<Item = Result<Pair>>,
    version: Lsn,
    inline_value_bytes_max: usize,
    log: &'a Log,
    values: Option<SortedWriter>,
    last_key: Option<Bytes>,
}

impl Incoming<'_> {
    fn place(&mut self, pair: Pair) -> Result<(Bytes, ValueRef, u64)> {
        let Pair { key, value, expires_at_s } = pair;
        if !self.range.contains(&key) {
            return Err(Error::invalid("a pair lies outside the range to install"));
        }
        if self.last_key.as_ref().is_some_and(|last| *last >= key) {
            return Err(Error::invalid("the pairs to install are not in ascending order"));
        }
        self.last_key = Some(key.clone());
        if value.len() <= self.inline_value_bytes_max {
            return Ok((key, ValueRef::Inline(value), expires_at_s));
        }
        if self.values.as_ref().is_some_and(|values| values.bytes() >= VALUE_FILE_BYTES_MAX) {
            self.finish()?;
        }
        let values = match &mut self.values {
            Some(values) => values,
            none => none.insert(self.log.sorted_writer(Cause::Snapshot)?),
        };
        let at = values.append(&key, self.version, expires_at_s, &value)?;
        Ok((key, ValueRef::At(at), expires_at_s))
    }

    /// The values are durable before the index can refer to them.
    fn finish(&mut self) -> Result<()> {
        match self.values.take() {
            Some(values) => values.finish().map(|_| ()),
            None => Ok(()),
        }
    }
}

impl Iterator for Incoming<'_> {
    type Item = Result<(Bytes, ValueRef, u64)>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.pairs.next() {
            Some(pair) => Some(pair.and_then(|pair| self.place(pair))),
            None => self.finish().err().map(Err),
        }
    }
}

pub(crate) fn drop_range(store: &Store, range: &KeyRange) -> Result<()> {
    // What waits in memtables is newer than any manifest edit: it becomes a run first.
    store.flush()?;
    let _applying = store.shared().apply.lock();
    store.shared().index.drop_range(range)
}
