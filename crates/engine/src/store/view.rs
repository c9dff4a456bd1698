//! Consistent views: one point in time of index and value files.

use super::Shared;
use super::scans::Slices;
use super::slice::{Ahead, Extent, ReadSlice, Slice};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_gc::{Gc, Scanned};
use stele_index::{Found, Lookup, View as IndexView, ViewIter};
use stele_storage::{
    Admit, Admitted, Cached, CachedGet, EngineView, FoundPair, GotAdmitted, Order, Pair, PairMeta,
    PairSink, Passed, PendingGet, ScanOptions,
};
use stele_types::{KeyRange, Locator, Result, ValueRef};

/// Pairs, and bytes of keys and values, of a scan that is tried in memory: its thread has other work.
const IN_MEMORY_PAIRS_MAX: usize = 128;
const IN_MEMORY_BYTES_MAX: u64 = 256 << 10;
/// One point in time of a store. While it exists, no file it refers to is removed.
#[derive(Debug)]
pub struct View {
    index: IndexView,
    shared: Arc<Shared>,
    /// Receiver of scan statistics; `None` for internal views.
    gc: Option<Arc<Gc>>,
    /// Reads in excess of one for each slice, since a scan was last recorded.
    scattered_reads: AtomicU64,
}

impl View {
    /// Creates a view for internal work, or for a caller that reports its scans itself.
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        let (index, scattered_reads) = (shared.index.view(), AtomicU64::new(0));
        Self { index, shared: shared.clone(), gc: None, scattered_reads }
    }

    pub(super) fn of_users(shared: &Arc<Shared>, gc: &Arc<Gc>) -> Self {
        Self { gc: Some(gc.clone()), ..Self::new(shared) }
    }

    pub(crate) fn references(&self, range: KeyRange, order: Order) -> Result<ViewIter> {
        // The first block is read here.
        let found = self.index.iter(range, direction(order));
        // bug engine.damage_at_first_key_unnoted: return found;
        found.inspect_err(|error| self.shared.lost_blocks.suspect(error))
    }

    /// Returns the location of the value of `key`; reads no value.
    pub(crate) fn reference(&self, key: &[u8]) -> Result<Option<(ValueRef, u64)>> {
        let found =
            self.index.get(key).inspect_err(|error| self.shared.lost_blocks.suspect(error))?;
        Ok(match found {
            Some(Found::Value { value, expires_at_s }) => Some((value, expires_at_s)),
            Some(Found::Deleted) | None => None,
        })
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Returns the value at a location if that needs no read of the device.
    fn cached_value(&self, at: &Locator) -> Result<Option<Bytes>> {
        let Shared { values, log, .. } = &*self.shared;
        if let Some(value) = values.get(at) {
            return Ok(Some(value));
        }
        let value = log.get_cached(at)?;
        if let Some(value) = &value {
            values.insert(at, value);
        }
        Ok(value)
    }

    pub(crate) fn read(&self, slice: Slice) -> Result<ReadSlice> {
        slice.read(&self.shared, None)
    }

    pub(crate) fn next_pair(&self, read: &mut ReadSlice) -> Result<Option<Pair>> {
        Ok(read.next(&self.shared)?.map(FoundPair::to_pair))
    }

    fn next_slice(&self, slices: &mut Slices) -> Result<Option<Slice>> {
        slices.next().inspect_err(|error| self.shared.lost_blocks.suspect(error))
    }

    /// Reads the values of a slice and passes its pairs to `sink`.
    ///
    /// Invariant: no memory is used for values that are not admitted.
    /// Test: `a_read_of_which_the_memory_is_refused_reads_no_value`.
    fn pass(
        &self,
        slice: Slice,
        admit: Admit<'_>,
        (sink, ahead): (&mut dyn PairSink, Ahead<'_>),
    ) -> Result<Admitted<Passed>> {
        let is_admitted = admit(slice.len(), slice.bytes());
        // bug engine.scan_reads_unadmitted: never
        if !is_admitted {
            return Ok(Admitted::Refused);
        }
        sink.expect(slice.len(), slice.bytes());
        let passed = slice.passed();
        let mut read = slice.read(&self.shared, ahead)?;
        self.scattered_reads.fetch_add(read.scattered_reads(), Ordering::Relaxed);
        let mut failed = None;
        // Continues after a failure, so that all unreadable values are recorded at once.
        loop {
            match read.next(&self.shared) {
                Ok(Some(pair)) => sink.take(pair),
                Ok(None) => break,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(Admitted::Read(passed)), Err)
    }

    fn value_of(&self, key: &[u8], value: ValueRef) -> Result<Bytes> {
        match value {
            ValueRef::Inline(value) => Ok(value),
            ValueRef::At(at) => self
                .shared
                .value(&at)
                .inspect_err(|error| self.shared.lost_values.note(key, &at, error)),
        }
    }

    /// Scans what memory holds. Fails with [`Error::needs_io`] where it would wait.
    ///
    /// Invariant: it never waits for the device, and answers what a scan that may wait answers.
    /// Test: `a_scan_in_memory_never_waits_and_answers_what_every_scan_does`.
    fn scan_in_memory(
        &self,
        options: &ScanOptions,
        admit: Admit<'_>,
        sink: &mut dyn PairSink,
    ) -> Result<Cached<Admitted<Passed>>> {
        let (range, order) = (options.range.clone(), options.order);
        let mut iter = self.index.iter_in_memory(range, direction(order))?;
        let bytes_max = IN_MEMORY_BYTES_MAX.min(options.bytes_max as u64);
        let (pairs_max, keys_only) = (options.limit, options.keys_only);
        let slice = Slice::collect(&mut iter, Extent { pairs_max, bytes_max, keys_only })?;
        // bug engine.scan_in_memory_cut: never
        if slice.bytes() >= bytes_max {
            return Ok(Cached::NeedsIo);
        }
        let is_admitted = slice.is_empty() || admit(slice.len(), slice.bytes());
        if !is_admitted {
            return Ok(Cached::Ready(Admitted::Refused));
        }
        let (passed, bytes) = (slice.passed(), slice.bytes());
        let Some(mut read) = slice.read_in_memory(&self.shared)? else {
            return Ok(Cached::NeedsIo);
        };
        sink.expect(passed.pairs, bytes);
        while let Some(pair) = read.next_in_memory(&self.shared)? {
            sink.take(pair);
        }
        self.scattered_reads.fetch_add(read.scattered_reads(), Ordering::Relaxed);
        Ok(Cached::Ready(Admitted::Read(passed)))
    }
}

fn meta(value: &ValueRef, expires_at_s: u64) -> PairMeta {
    PairMeta { value_bytes: u64::from(value.len()), expires_at_s }
}

fn direction(order: Order) -> stele_index::Direction {
    match order {
        Order::Forward => stele_index::Direction::Forward,
        Order::Reverse => stele_index::Direction::Reverse,
    }
}

impl EngineView for View {
    fn get(&self, key: &[u8]) -> Result<Option<Pair>> {
        let Some((value, expires_at_s)) = self.reference(key)? else { return Ok(None) };
        let value = self.value_of(key, value)?;
        Ok(Some(Pair { key: Bytes::copy_from_slice(key), value, expires_at_s }))
    }

    fn get_cached(&self, key: &[u8]) -> Result<CachedGet> {
        let found = match self.index.get_cached(key)? {
            Lookup::Known(found) => found,
            Lookup::NeedsIo => return Ok(CachedGet::needs_io(key)),
        };
        let Some(Found::Value { value, expires_at_s }) = found else {
            return Ok(CachedGet::Ready(None));
        };
        let key = Bytes::copy_from_slice(key);
        let value = match value {
            ValueRef::Inline(value) => value,
            ValueRef::At(at) => match self.cached_value(&at)? {
                Some(value) => value,
                None => {
                    let located = Some((at, expires_at_s));
                    return Ok(CachedGet::NeedsIo(PendingGet { key, located }));
                }
            },
        };
        Ok(CachedGet::Ready(Some(Pair { key, value, expires_at_s })))
    }

    fn prefetch(&self, keys: &[Bytes]) {
        self.index.prefetch(keys);
    }

    fn get_many(&self, gets: Vec<PendingGet>, admit: Admit<'_>) -> Vec<Result<GotAdmitted>> {
        self.read_pairs(gets, admit)
    }

    fn get_meta(&self, key: &[u8]) -> Result<Option<PairMeta>> {
        Ok(self.reference(key)?.map(|(value, expires_at_s)| meta(&value, expires_at_s)))
    }

    fn get_meta_cached(&self, key: &[u8]) -> Result<Cached<Option<PairMeta>>> {
        Ok(match self.index.get_cached(key)? {
            Lookup::Known(Some(Found::Value { value, expires_at_s })) => {
                Cached::Ready(Some(meta(&value, expires_at_s)))
            }
            Lookup::Known(_) => Cached::Ready(None),
            Lookup::NeedsIo => Cached::NeedsIo,
        })
    }

    fn scan(&self, options: &ScanOptions) -> Result<Vec<Pair>> {
        let mut pairs = Vec::new();
        self.scan_into(options, &mut |_, _| true, &mut pairs)?.read()?;
        Ok(pairs)
    }

    fn scan_into(
        &self,
        options: &ScanOptions,
        admit: Admit<'_>,
        sink: &mut dyn PairSink,
    ) -> Result<Admitted<Passed>> {
        let iter = self.references(options.range.clone(), options.order)?;
        let continued = &self.shared.continued;
        let is_long = options.limit > IN_MEMORY_PAIRS_MAX && !options.keys_only;
        let is_continued = is_long && continued.take(options);
        let mut slices = Slices::new(iter, options, is_long.then_some(is_continued));
        let mut passed = Passed::default();
        let mut slice = self.next_slice(&mut slices)?;
        while let Some(current) = slice {
            if let Some(end) = slices.end_of(&current).filter(|_| is_long) {
                continued.note(&end, options.order);
            }
            let mut next = None;
            let mut ahead = || {
                let next = next.insert(self.next_slice(&mut slices));
                slices.places_after(next.as_ref().ok().and_then(Option::as_ref), &self.shared)
            };
            match self.pass(current, &mut *admit, (&mut *sink, Some(&mut ahead)))? {
                Admitted::Read(read) => passed.add(read),
                Admitted::Refused => return Ok(Admitted::Refused),
            }
            slice = next.unwrap_or_else(|| self.next_slice(&mut slices))?;
        }
        Ok(Admitted::Read(passed))
    }

    fn scan_cached(
        &self,
        options: &ScanOptions,
        admit: Admit<'_>,
        sink: &mut dyn PairSink,
    ) -> Result<Cached<Admitted<Passed>>> {
        let scans = &self.shared.scans_in_memory;
        if options.limit > IN_MEMORY_PAIRS_MAX || !scans.is_due() {
            return Ok(Cached::NeedsIo);
        }
        let found = match self.scan_in_memory(options, admit, sink) {
            Err(error) if error.needs_io() => Cached::NeedsIo,
            found => found?,
        };
        scans.note(!matches!(found, Cached::NeedsIo));
        Ok(found)
    }

    fn note_scan(&self, scanned: &Passed) {
        let Some(gc) = self.gc.as_ref().filter(|_| scanned.pairs > 1) else { return };
        // bug engine.scan_untold: return;
        let counted = Scanned {
            values: scanned.pairs as u64,
            bytes: scanned.value_bytes,
            scattered_reads: self.scattered_reads.swap(0, Ordering::Relaxed),
        };
        gc.note_scan(&scanned.range(), counted);
    }
}
