//! What a store knows of its scans: whether an attempt to scan what memory holds is worth its time, and
//! which scans continue others, so that the values of the next one are read ahead. The slices of one scan,
//! of which the next is known while one is read.

use super::Shared;
use super::slice::{Extent, Slice, near};
use bytes::Bytes;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use stele_index::{ValueSlice, ViewIter};
use stele_storage::{Order, ScanOptions};
use stele_types::checksum::crc32c;
use stele_types::{Locator, Result, key_after};

/// Attempts in a row that fail before 2^`SKIPPED_MAX` scans are not tried in memory.
const SKIPPED_MAX: u32 = 6;

/// Chooses the scans that are tried in memory. Where the values are not there, an attempt walks the
/// index in vain: after each attempt that fails, twice as many scans are not tried.
#[derive(Debug, Default)]
pub(crate) struct ScansInMemory {
    failed: AtomicU32,
    skipped: AtomicU32,
}

impl ScansInMemory {
    pub(super) fn is_due(&self) -> bool {
        // Threads that change it at the same time skip one more or less.
        let left = self.skipped.load(Ordering::Relaxed).checked_sub(1);
        if let Some(left) = left {
            self.skipped.store(left, Ordering::Relaxed);
        }
        left.is_none()
    }

    pub(super) fn note(&self, succeeded: bool) {
        let failed = self.failed.load(Ordering::Relaxed);
        let next = if succeeded { 0 } else { (failed + 1).min(SKIPPED_MAX) };
        if next != failed {
            self.failed.store(next, Ordering::Relaxed);
        }
        if !succeeded {
            self.skipped.store(1 << next, Ordering::Relaxed);
        }
    }
}

/// Long scans that ended at their limit of pairs or bytes, by the key from which the next one goes on:
/// the last of those with the same place here. A client that scans page by page, and the pages of one
/// answer, are recognized without a session.
#[derive(Debug)]
pub(crate) struct ContinuedScans([AtomicU64; CONTINUED_MAX]);

const CONTINUED_MAX: usize = 64;

impl Default for ContinuedScans {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// Returns the bound of the scan that goes on after one that ended with `last`.
fn ends_at(last: &[u8], order: Order) -> Bytes {
    match order {
        Order::Forward => key_after(last),
        Order::Reverse => Bytes::copy_from_slice(last),
    }
}

impl ContinuedScans {
    pub(super) fn note(&self, end: &[u8], order: Order) {
        let number = number_of(end, order);
        if let Some(place) = self.place(number) {
            place.store(number, Ordering::Relaxed);
        }
    }

    /// Returns whether a scan goes on where one ended; once for each that ended.
    pub(super) fn take(&self, options: &ScanOptions) -> bool {
        let from = match options.order {
            Order::Forward => &options.range.start,
            Order::Reverse => &options.range.end,
        };
        let number = number_of(from, options.order);
        let taken = self.place(number).map(|place| {
            place.compare_exchange(number, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        });
        // bug engine.every_scan_reads_ahead: return true;
        taken.unwrap_or(false)
    }

    fn place(&self, number: u64) -> Option<&AtomicU64> {
        self.0.get(number as usize % CONTINUED_MAX)
    }
}

/// Returns a number for a bound; never 0. Two bounds with one number make a scan read ahead in vain.
fn number_of(bound: &[u8], order: Order) -> u64 {
    let order = if order == Order::Forward { 1 } else { 2 };
    order << 32 | u64::from(crc32c(bound))
}

/// Most reads of values that are read ahead. A device's queue holds about so many requests (`nr_requests` in Linux
/// is 256): for the next one the scan waits, as for its own.
const AHEAD_READS_MAX: usize = 256;
/// Bytes of values that are read ahead, but for the last value.
const AHEAD_BYTES_MAX: u64 = 4 << 20;
/// Values of which one must not be in memory before others are requested.
const PROBED_PAIRS: usize = 4;

/// Slices of one scan, up to its limits.
pub(super) struct Slices {
    iter: ViewIter,
    order: Order,
    keys_only: bool,
    pairs_left: usize,
    bytes_left: u64,
    /// Whether no pair was returned: the first is, even if it exceeds the bytes.
    is_first: bool,
    /// Most pairs after the last slice of which the values are read ahead; 0 for none.
    ahead_max: usize,
    /// Pairs that the caller is known to want after those that were returned.
    wanted: usize,
    /// Whether it continues a scan, so that another probably continues it.
    is_continued: bool,
    /// Whether the last slice ends at a limit, and not at the end of the range.
    is_cut: bool,
}

impl Slices {
    /// Creates the slices of a scan, of which `is_continued` states whether it continues one; `None` if
    /// nothing after it is read ahead.
    pub(super) fn new(iter: ViewIter, options: &ScanOptions, is_continued: Option<bool>) -> Self {
        Self {
            iter,
            order: options.order,
            keys_only: options.keys_only,
            pairs_left: options.limit,
            bytes_left: options.bytes_max as u64,
            is_first: true,
            ahead_max: if is_continued.is_some() { options.limit } else { 0 },
            wanted: options.wanted,
            is_continued: is_continued.unwrap_or(false),
            is_cut: false,
        }
    }

    /// Returns the next slice; `None` at the end of the range or a limit.
    pub(super) fn next(&mut self) -> Result<Option<Slice>> {
        let is_bounded = self.pairs_left == 0 || (self.bytes_left == 0 && !self.is_first);
        if is_bounded || self.is_cut {
            return Ok(None);
        }
        let extent = Extent {
            pairs_max: self.pairs_left,
            bytes_max: self.bytes_left.max(1),
            keys_only: self.keys_only,
        };
        let mut slice = Slice::collect(&mut self.iter, extent)?;
        // Only the last pair of a slice may exceed the limit: the next scan returns it.
        // Invariant: a scan passes on no pair that exceeds its bytes, and does not read it.
        // Test: `a_scan_of_a_view_ends_with_the_last_pair_that_fits_and_reads_no_value_after_it`.
        let exceeds = slice.bytes() > self.bytes_left && !(self.is_first && slice.len() == 1);
        // bug engine.scan_passes_on_more: never
        if exceeds {
            slice.remove_last();
        }
        self.is_first = false;
        self.pairs_left -= slice.len();
        self.wanted = self.wanted.saturating_sub(slice.len());
        self.bytes_left = self.bytes_left.saturating_sub(slice.bytes());
        self.is_cut = exceeds || self.pairs_left == 0 || self.bytes_left == 0;
        Ok(Some(slice).filter(|slice| !slice.is_empty()))
    }

    /// Returns the bound of the scan that continues this one, if the slice is the last before a limit.
    pub(super) fn end_of(&self, slice: &Slice) -> Option<Bytes> {
        self.is_cut.then(|| ends_at(slice.last_key(), self.order))
    }

    /// Returns the places of the values after a slice: those of the next one, or after the last one those
    /// that the next scan of the caller requests.
    pub(super) fn places_after(&mut self, next: Option<&Slice>, shared: &Shared) -> Vec<Locator> {
        let mut ahead = Readahead { shared, places: Vec::new(), bytes: 0 };
        match next {
            // bug engine.next_slice_is_not_requested: `next.places().iter()` is `[].iter()`
            Some(next) => ahead.take(&mut next.places().iter().copied()),
            None if self.is_cut => {
                let wanted = if self.is_continued { usize::MAX } else { self.wanted };
                let iter = &mut self.iter;
                // A block that cannot be read ends them: the scan that needs it reports it.
                let pairs = (0..wanted.min(self.ahead_max))
                    .map_while(|_| iter.advance().unwrap_or(false).then(|| place(iter)));
                ahead.take(&mut pairs.flatten());
            }
            None => {}
        }
        ahead.places
    }
}

fn place(iter: &ViewIter) -> Option<Locator> {
    if let ValueSlice::At(at) = iter.value() { Some(at) } else { None }
}

/// Values that a scan needs after those that it reads.
///
/// Invariant: only values that the same scan returns, or that its caller is known to request next, are read
/// ahead: of the latter at most as many pairs as it returns. They stay in the page cache. It changes no
/// result, and a scan of what memory holds tries a few reads in vain.
/// Test: `a_scan_that_continues_another_reads_ahead_what_memory_does_not_hold`,
/// `the_second_page_and_the_second_slice_are_requested_before_the_first_is_used`.
struct Readahead<'a> {
    shared: &'a Shared,
    places: Vec<Locator>,
    bytes: u64,
}

impl Readahead<'_> {
    /// Takes the first of these places, up to the limits; none if memory holds the first few.
    fn take(&mut self, places: &mut dyn Iterator<Item = Locator>) {
        let probed: Vec<Locator> = places.take(PROBED_PAIRS).collect();
        // bug engine.reads_ahead_what_memory_holds: never
        if probed.iter().all(|at| self.is_in_memory(at)) {
            return;
        }
        let mut reads = 0;
        for at in probed.into_iter().chain(places) {
            reads += usize::from(!self.places.last().is_some_and(|last| near(last, &at)));
            if reads > AHEAD_READS_MAX || self.bytes >= AHEAD_BYTES_MAX {
                return;
            }
            self.bytes += u64::from(at.length);
            self.places.push(at);
        }
    }

    fn is_in_memory(&self, at: &Locator) -> bool {
        self.shared.values.contains(at) || self.shared.log.is_in_memory(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::KeyRange;

    #[test]
    fn a_scan_continues_one_that_ended_where_it_begins_once() {
        let scans = ContinuedScans::default();
        let scan = |order: Order, start: &'static [u8], end: &'static [u8]| {
            let range = KeyRange::new(start, end);
            scans.take(&ScanOptions { order, ..ScanOptions::new(range, 500) })
        };
        assert!(!scan(Order::Forward, b"", b"") && !scan(Order::Reverse, b"", b""));
        scans.note(&ends_at(b"k", Order::Forward), Order::Forward);
        assert!(!scan(Order::Forward, b"k", b"z") && !scan(Order::Reverse, b"a", b"k\0"));
        assert!(scan(Order::Forward, b"k\0", b"z") && !scan(Order::Forward, b"k\0", b"z"));
        scans.note(&ends_at(b"k", Order::Reverse), Order::Reverse);
        assert!(!scan(Order::Forward, b"k", b"") && scan(Order::Reverse, b"a", b"k"));
    }

    #[test]
    fn attempts_in_memory_become_rare_while_they_fail() {
        let scans = ScansInMemory::default();
        let attempts = |count: usize| {
            let tried = (0..count).filter(|_| scans.is_due());
            tried.inspect(|_| scans.note(false)).count()
        };
        assert!((5..9).contains(&attempts(127)));
        scans.skipped.store(0, Ordering::Relaxed);
        assert!(scans.is_due());
        scans.note(true);
        assert!(scans.is_due() && scans.is_due());
    }
}
