//! What a store knows of its scans: whether an attempt to scan what memory holds is worth its time, and
//! which scans continue others, so that the values of the next one are read ahead.

use bytes::Bytes;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use stele_index::{ValueSlice, ViewIter};
use stele_log::Log;
use stele_storage::{Order, ScanOptions};
use stele_types::checksum::crc32c;
use stele_types::{Locator, key_after};

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
pub(super) fn ends_at(last: &[u8], order: Order) -> Bytes {
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

/// Most values that are read ahead. A device's queue holds about so many requests (`nr_requests` in Linux
/// is 256): for the next one the scan waits, as for its own.
const AHEAD_PAIRS_MAX: usize = 256;
/// Bytes of values that are read ahead, but for the last value.
const AHEAD_BYTES_MAX: u64 = 4 << 20;
/// Values of which one must not be in memory before others are requested.
const PROBED_PAIRS: usize = 4;

/// Values of the page after a scan that continued another.
///
/// Invariant: only such a scan reads ahead, at most as many pairs as it returns, and what it reads ahead stays in
/// the page cache. It changes no result, and a scan of what memory holds tries a few reads in vain.
/// Test: `a_scan_that_continues_another_reads_ahead_what_memory_does_not_hold`.
pub(crate) struct Readahead<'a> {
    log: &'a Log,
    /// At the last pair of the scan.
    iter: &'a mut ViewIter,
    pairs_left: usize,
    places: Vec<Locator>,
}

impl<'a> Readahead<'a> {
    pub(super) fn new(log: &'a Log, iter: &'a mut ViewIter, pairs: usize) -> Self {
        Self { log, iter, pairs_left: pairs.min(AHEAD_PAIRS_MAX), places: Vec::new() }
    }

    /// Returns the places of the next values; none if memory holds the first of them.
    pub(super) fn places(mut self) -> Vec<Locator> {
        let bytes = self.collect(PROBED_PAIRS, 0);
        if self.places.iter().all(|at| self.log.is_in_memory(at)) {
            return Vec::new();
        }
        self.collect(usize::MAX, bytes);
        self.places
    }

    /// Adds the places of the values of the next pairs. Returns the bytes of all. A block that cannot be read
    /// ends them: the scan that needs it reports it.
    fn collect(&mut self, pairs: usize, mut bytes: u64) -> u64 {
        for _ in 0..pairs.min(self.pairs_left) {
            if bytes >= AHEAD_BYTES_MAX || !self.iter.advance().unwrap_or(false) {
                self.pairs_left = 0;
                break;
            }
            self.pairs_left -= 1;
            if let ValueSlice::At(at) = self.iter.value() {
                bytes += u64::from(at.length);
                self.places.push(at);
            }
        }
        bytes
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
