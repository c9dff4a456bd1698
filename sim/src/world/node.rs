//! Simulated machine: its clock and its process.

use crate::group::Member;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_node::members::Table;
use stele_replica::Now;
use stele_types::Clock;

/// Unix seconds at the start of every run.
/// Unix seconds of virtual time 0.
pub(crate) const EPOCH_S: u64 = 1_700_000_000;
const MILLION: u128 = 1_000_000;

/// Clock of a node's engines. It shows the time that the simulation last set.
#[derive(Debug, Default)]
pub struct NodeClock {
    monotonic_nanos: AtomicU64,
    unix_millis: AtomicU64,
}

impl Clock for NodeClock {
    fn unix_millis(&self) -> u64 {
        self.unix_millis.load(Ordering::Relaxed)
    }

    fn monotonic_nanos(&self) -> u64 {
        self.monotonic_nanos.load(Ordering::Relaxed)
    }
}

/// State of a node.
pub struct Node {
    /// Number of the node.
    pub id: u64,
    /// Clock of its engines.
    pub clock: Arc<NodeClock>,
    /// Incremented by each start and stop: events of an earlier incarnation are ignored.
    pub incarnation: u64,
    /// The process runs.
    pub up: bool,
    /// The process is paused before this global time.
    pub paused_until: u64,
    /// Number of times that its directories were moved to another machine, which has another address.
    pub moves: u64,
    /// The stores run with the other settings.
    pub is_upgraded: bool,
    /// Error of the wall clock in seconds.
    pub wall_shift_s: i64,
    /// State in the placement group.
    pub member: Member,
    /// Stores of the cluster as it knows them.
    pub table: Table,
    /// Rate of the clock in millionths, since it last showed `base_local` at the global time
    /// `base_global`.
    rate_ppm: u64,
    base_local: u64,
    base_global: u64,
    /// Global time at which the clock first showed `base_local`; before `base_global` if it stopped.
    base_since: u64,
}

impl Node {
    /// Creates a node that never ran.
    pub fn new(id: u64) -> Self {
        Self {
            id,
            clock: Arc::default(),
            incarnation: 0,
            up: false,
            paused_until: 0,
            moves: 0,
            is_upgraded: false,
            wall_shift_s: 0,
            member: Member::default(),
            table: Table::default(),
            rate_ppm: 1_000_000,
            base_local: id * 1_000_000_000,
            base_global: 0,
            base_since: 0,
        }
    }

    /// Returns the address as `host:port`.
    pub fn address(&self) -> String {
        match self.moves {
            0 => format!("node{}:20160", self.id),
            moves => format!("node{}-{moves}:20160", self.id),
        }
    }

    /// Returns the number of its process, which is drawn at random in a node.
    pub fn boot_nonce(&self) -> u64 {
        (self.incarnation.max(1) << 16) | self.id
    }

    /// Returns the monotonic clock at a global time.
    pub fn local(&self, global: u64) -> u64 {
        let passed = u128::from(global.saturating_sub(self.base_global));
        self.base_local + (passed * u128::from(self.rate_ppm) / MILLION) as u64
    }

    /// Returns the first global time at which the clock shows at least `local`.
    pub fn global(&self, local: u64) -> u64 {
        if local <= self.base_local {
            return self.base_since;
        }
        let passed = u128::from(local.saturating_sub(self.base_local)) * MILLION;
        self.base_global + passed.div_ceil(u128::from(self.rate_ppm)) as u64
    }

    /// Changes the rate of the clock. A clock that stands still goes on at that rate later.
    pub fn set_rate(&mut self, global: u64, rate_ppm: u64) {
        self.set_base(global);
        self.rate_ppm = rate_ppm;
    }

    /// Stops the clock until a global time; then it goes on from what it shows now.
    pub fn stop_clock(&mut self, global: u64, until: u64) {
        self.set_base(global);
        self.base_global = self.base_global.max(until);
    }

    /// Lets a clock that stands still go on.
    pub fn start_clock(&mut self, global: u64) {
        self.base_global = self.base_global.min(global);
    }

    fn set_base(&mut self, global: u64) {
        if global > self.base_global {
            (self.base_local, self.base_global) = (self.local(global), global);
            self.base_since = global;
        }
    }

    /// Sets the clock of the engines to a global time. Returns what the clocks show.
    pub fn now(&self, global: u64) -> Now {
        let monotonic_nanos = self.local(global);
        let shift_ms = self.wall_shift_s.saturating_mul(1_000);
        let unix_millis = (EPOCH_S * 1_000 + global / 1_000_000).saturating_add_signed(shift_ms);
        self.clock.monotonic_nanos.store(monotonic_nanos, Ordering::Relaxed);
        self.clock.unix_millis.store(unix_millis, Ordering::Relaxed);
        Now { monotonic_nanos, unix_millis }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_goes_on_from_where_its_rate_changed_and_never_back() {
        let mut node = Node::new(3);
        let before = node.local(1_000);
        node.set_rate(1_000, 1_090_000);
        assert_eq!(node.local(1_000), before);
        assert_eq!(node.local(1_001_000), before + 1_090_000);
        for local in [before, before + 1, before + 77, before + 1_090_001] {
            let global = node.global(local);
            assert!(node.local(global) >= local);
            assert!(global <= 1_000 || node.local(global - 1) < local);
        }
    }

    #[test]
    fn a_clock_that_stands_still_goes_on_from_what_it_showed() {
        let mut node = Node::new(3);
        let before = node.local(1_000);
        node.stop_clock(1_000, 5_000);
        node.set_rate(2_000, 2_000_000);
        assert_eq!([1_000, 4_999, 5_000].map(|at| node.local(at)), [before; 3]);
        assert_eq!((node.global(before), node.global(before + 2)), (1_000, 5_001));
        assert_eq!(node.local(5_001), before + 2);
        node.stop_clock(6_000, 9_000);
        node.start_clock(7_000);
        assert_eq!([6_000, 7_000].map(|at| node.local(at)), [before + 2_000; 2]);
        assert_eq!(node.local(7_001), before + 2_002);
    }
}
