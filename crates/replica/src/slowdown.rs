//! Slowing of writers while garbage collection lags behind them. An embedded store makes writers do a
//! part of the work; on a node they wait for as long as that work takes, because request threads must
//! not. Writers slow down early and never stop.

use crate::{Modification, NewPair, ReadGate, Request};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use stele_types::{RegionId, StoreId};

/// Longest wait of one write.
pub const WAIT_NANOS_MAX: u64 = 1_000_000_000;
/// Shorter waits are not worth a timer: they add up.
const WAIT_NANOS_MIN: u64 = 1_000_000;
/// Time for which a report of other stores counts. Reports come every second.
pub const REPORT_NANOS: u64 = 10_000_000_000;
/// Longest time for a KiB that writers wait: they write at least 1 MiB a second.
const NANOS_PER_KIB_MAX: u64 = 1_000_000;
/// Speed of maintenance before it was measured: 100 MiB a second.
const NANOS_PER_BYTE_UNKNOWN: f64 = 10.0;
/// Weight of the newest slice in the mean.
const NEWEST: f64 = 0.1;

#[derive(Clone, Copy, Debug)]
struct Pace {
    nanos_per_byte: f64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { nanos_per_byte: NANOS_PER_BYTE_UNKNOWN }
    }
}

impl Pace {
    fn worked(&mut self, bytes: u64, nanos: u64) {
        if bytes > 0 {
            let newest = nanos as f64 / bytes as f64;
            self.nanos_per_byte += NEWEST * (newest - self.nanos_per_byte);
        }
    }

    /// Returns the nanoseconds that writers wait for each KiB, if each byte written makes so many bytes
    /// of maintenance due.
    fn slowdown(&self, pressure: f64) -> u64 {
        let nanos = (pressure.max(0.0) * self.nanos_per_byte * 1024.0) as u64;
        nanos.min(NANOS_PER_KIB_MAX)
    }
}

/// Order in which the writers of a store wait: one after the other, so that their sum is slowed.
#[derive(Clone, Copy, Debug, Default)]
struct WriterQueue {
    /// Monotonic nanoseconds at which the last one may go on.
    last_nanos: u64,
}

impl WriterQueue {
    /// Returns the nanoseconds that a write of `bytes` waits.
    ///
    /// Invariant: no write waits longer than [`WAIT_NANOS_MAX`], however many wait before it.
    fn wait_nanos(&mut self, now_nanos: u64, bytes: u64, nanos_per_kib: u64) -> u64 {
        if nanos_per_kib == 0 {
            return 0;
        }
        let nanos = bytes.saturating_mul(nanos_per_kib.min(NANOS_PER_KIB_MAX)) / 1024;
        let latest_nanos = now_nanos.saturating_add(WAIT_NANOS_MAX);
        // bug replica.waits_of_writers_add_up: let latest_nanos = u64::MAX;
        let go_on_nanos = self.last_nanos.max(now_nanos).saturating_add(nanos).min(latest_nanos);
        self.last_nanos = go_on_nanos;
        go_on_nanos - now_nanos
    }
}

/// Nanoseconds that writers wait for each KiB, by store; those that do not lag are left out.
pub type Slowdowns = BTreeMap<StoreId, u64>;

/// Writers of one store, which wait while garbage collection lags here or at another replica.
#[derive(Debug, Default)]
pub struct SlowWriters {
    pace: Mutex<Pace>,
    /// Nanoseconds for each KiB because this store lags.
    own: AtomicU64,
    /// Monotonic nanoseconds until which the report of other stores counts; 0 if none of them lags.
    reported_until: AtomicU64,
    reported: Mutex<Slowdowns>,
    queue: Mutex<WriterQueue>,
}

impl SlowWriters {
    /// Records a slice of this store's maintenance: the bytes and nanoseconds of its work, if it did
    /// any, and the bytes of maintenance that each byte written makes due after it.
    pub fn maintained(&self, work: Option<(u64, u64)>, pressure: f64) {
        let mut pace = self.pace.lock();
        if let Some((bytes, nanos)) = work {
            pace.worked(bytes, nanos);
        }
        self.own.store(pace.slowdown(pressure), Relaxed);
    }

    /// Returns the nanoseconds that writers wait for each KiB because this store lags; 0 for none.
    pub fn own(&self) -> u64 {
        self.own.load(Relaxed)
    }

    /// Takes over the last report of all stores.
    pub fn reported(&self, slowdowns: Slowdowns, now_nanos: u64) {
        let until = if slowdowns.is_empty() { 0 } else { now_nanos + REPORT_NANOS };
        *self.reported.lock() = slowdowns;
        self.reported_until.store(until, Relaxed);
    }

    /// Returns the nanoseconds that a request waits before it is proposed; `None` for none. Only one
    /// that may make the store larger waits. `readers` has the replicas of the store.
    pub fn wait_nanos(&self, request: &Request, readers: &ReadGate, now_nanos: u64) -> Option<u64> {
        let region = match request {
            Request::Write(write) if !write.only_deletes => write.header.region,
            Request::Modify(modify) if adds_bytes(&modify.change) => modify.header.region,
            Request::Run(run) => run.header.region,
            _ => return None,
        };
        let own = self.own();
        let is_reported = now_nanos < self.reported_until.load(Relaxed);
        if own == 0 && !is_reported {
            return None;
        }
        let others = if is_reported { self.slowest(region, readers) } else { 0 };
        let nanos = self.queue.lock().wait_nanos(now_nanos, request.bytes(), own.max(others));
        (nanos >= WAIT_NANOS_MIN).then_some(nanos)
    }

    /// Returns the slowdown of the replica of a region that lags most.
    fn slowest(&self, region: RegionId, readers: &ReadGate) -> u64 {
        // bug replica.followers_pressure_ignored: return 0;
        let Some(region) = readers.get(region).map(|reader| reader.region()) else { return 0 };
        let reported = self.reported.lock();
        let stores = region.peers.iter().map(|peer| peer.store);
        stores.filter_map(|store| reported.get(&store).copied()).max().unwrap_or_default()
    }
}

/// Returns whether a modification may make the store larger. One that may not never waits: it frees
/// space, as a delete does.
fn adds_bytes(change: &Modification) -> bool {
    match change {
        Modification::Compare { new, .. }
        | Modification::Replace { new }
        | Modification::Set { new } => matches!(new, NewPair::Put { .. }),
        Modification::Increment { .. } | Modification::Append { .. } => true,
        Modification::GetAndDelete => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn writers_wait_as_long_as_the_maintenance_that_they_make_due_takes() {
        let mut pace = Pace::default();
        for _ in 0..100 {
            pace.worked(MIB, 20_000_000);
        }
        assert_eq!(pace.slowdown(0.0), 0);
        // 50 MiB a second, and each byte makes two bytes due.
        let nanos_per_kib = pace.slowdown(2.0);
        let mut writers = WriterQueue::default();
        let (mut now_nanos, mut written) = (0, 0);
        while now_nanos < 10_000_000_000 {
            now_nanos += writers.wait_nanos(now_nanos, MIB / 4, nanos_per_kib);
            written += MIB / 4;
        }
        assert!((240 * MIB..260 * MIB).contains(&written), "{} MiB in 10 s", written / MIB);
    }

    #[test]
    fn many_writers_share_the_rate_and_none_waits_longer_than_a_second() {
        let mut writers = WriterQueue::default();
        let waits: Vec<u64> =
            (0..100).map(|_| writers.wait_nanos(5, 64 << 10, 1_000_000)).collect();
        assert_eq!(waits[..3], [64_000_000, 128_000_000, 192_000_000]);
        assert!(waits.iter().all(|nanos| *nanos <= WAIT_NANOS_MAX));
        assert_eq!(*waits.last().unwrap(), WAIT_NANOS_MAX);
        let soon_nanos = 5 + WAIT_NANOS_MAX;
        assert_eq!(writers.wait_nanos(soon_nanos, 1024, 1_000_000), 1_000_000, "no debt is left");
        assert_eq!(writers.wait_nanos(soon_nanos, 1 << 30, 0), 0, "without pressure");
    }

    #[test]
    fn pressure_without_end_leaves_a_mib_a_second() {
        assert_eq!(Pace::default().slowdown(f64::INFINITY), NANOS_PER_KIB_MAX);
        assert_eq!(Pace::default().slowdown(f64::NAN), 0);
    }
}
