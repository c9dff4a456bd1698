//! Waits of the writers of one store, because garbage collection lags here or at another replica.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use stele_node::store::{WAIT_NANOS_MAX, WriterQueue};
use stele_types::{Region, StoreId, mutant};

/// Time for which a report of other stores counts. Reports come every second.
const REPORT_NANOS: u64 = 10_000_000_000;
/// Shorter waits are not worth a timer: they add up.
const WAIT_NANOS_MIN: u64 = 1_000_000;

/// Nanoseconds that writers wait for each KiB, by store; those that do not lag are left out.
pub type Slowdowns = BTreeMap<StoreId, u64>;

/// Writers of one store.
#[derive(Debug, Default)]
pub(super) struct SlowWriters {
    /// Of this store, from its maintenance.
    pub own: Arc<AtomicU64>,
    /// Monotonic nanoseconds until which the report of other stores counts; 0 if none of them lags.
    reported_until: AtomicU64,
    reported: Mutex<Slowdowns>,
    queue: Mutex<WriterQueue>,
}

impl SlowWriters {
    /// Takes over the last report of all stores.
    pub fn reported(&self, slowdowns: Slowdowns, now_nanos: u64) {
        let until = if slowdowns.is_empty() { 0 } else { now_nanos + REPORT_NANOS };
        *self.reported.lock() = slowdowns;
        self.reported_until.store(until, Relaxed);
    }

    /// Returns the time that a write of `bytes` waits. `region` is called only if a store lags.
    pub fn wait(
        &self,
        now_nanos: u64,
        bytes: u64,
        region: impl FnOnce() -> Option<Arc<Region>>,
    ) -> Option<Duration> {
        let own = self.own.load(Relaxed);
        let is_reported = now_nanos < self.reported_until.load(Relaxed);
        if own == 0 && !is_reported {
            return None;
        }
        let others = if is_reported { self.slowest(region().as_deref()) } else { 0 };
        let nanos_per_kib = own.max(others);
        let nanos = self.queue.lock().wait_nanos(now_nanos, bytes, nanos_per_kib);
        (WAIT_NANOS_MIN..=WAIT_NANOS_MAX).contains(&nanos).then_some(Duration::from_nanos(nanos))
    }

    /// Returns the slowdown of the replica that lags most.
    fn slowest(&self, region: Option<&Region>) -> u64 {
        if mutant::active("server.followers_pressure_ignored") {
            return 0;
        }
        let reported = self.reported.lock();
        let stores = region.into_iter().flat_map(|region| &region.peers).map(|peer| peer.store);
        stores.filter_map(|store| reported.get(&store).copied()).max().unwrap_or_default()
    }
}
