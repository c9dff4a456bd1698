//! Options of a store's consensus.
//!
//! Times of an election are ticks: they shrink with the tick. Times of devices, of people, and between
//! messages that are costly or many are ticks of 50 ms at least ([`Options::device_nanos`]): a device that
//! is slow for a second is as slow with a short tick. Each comment beside its number tells which it is.
//!
//! ```text
//! of an election                          ticks   50 ms   20 ms
//!   heartbeat                                 2     100      40  ms
//!   vote hold, check of the quorum           10     500     200
//!   lease, less the drift                     9     405     162
//!   election begins                    11 to 19    to 950  to 380
//!   next rank campaigns                       2     100      40
//!   forwarded read is sent again             10     500     200
//! of devices, people and messages
//!   attempt of a transfer                    10     500     600  at least; Raft's are 10 ticks each
//!   answer to a transfer                     20   1,000   1,000
//!   voter counts as down                     20   1,000   1,000
//!   forwarded read is refused                20   1,000   1,000
//!   follower counts as live                 200  10,000  10,000
//!   question for the membership              40   2,000   2,000  between two
//!   snapshot is offered without a leader     60   3,000   3,000
//!   failed snapshot is sent again            10     500     500  at first
//!   question for the outcome of a merge      20   1,000   1,000  between two
//!   full device is tried again                1      50      50
//!   logs of 16 regions are checked            1      50      50
//! ```
//!
//! Idle time before hibernation is a setting in milliseconds.

use stele_types::{ClusterId, Error, Result, StoreId};

/// Options of a store's consensus. [`Options::new`] gives the usual values.
#[derive(Clone, Debug)]
pub struct Options {
    /// Id of this store.
    pub store: StoreId,
    /// The cluster it belongs to.
    pub cluster: ClusterId,
    /// Number that is unique to this run of the process, for example nanoseconds at start. It
    /// distinguishes this run's read contexts from those of earlier runs.
    pub process_incarnation: u64,
    /// Seed of the election timeouts.
    pub seed: u64,
    /// Nanoseconds between ticks.
    pub tick_nanos: u64,
    /// Least ticks without a leader before a follower campaigns. A follower also withholds its vote
    /// for this long after a heartbeat from a leader.
    pub election_ticks_min: u64,
    /// Most ticks without a leader before a follower campaigns, exclusive.
    pub election_ticks_max: u64,
    /// Ticks between a leader's heartbeats.
    pub heartbeat_ticks: u64,
    /// Most percent by which another store's clock may run faster than this store's.
    pub lease_drift_percent: u64,
    /// Whether leases serve reads until the owner sends [`crate::Input::Leases`].
    pub leases: bool,
    /// Idle ticks before a region hibernates; 0 disables hibernation.
    pub hibernate_after_ticks: u64,
    /// Largest command in bytes.
    pub entry_bytes_max: u64,
    /// Most bytes of entries in one message; one entry always fits.
    pub append_message_bytes_max: u64,
    /// Most unacknowledged messages with entries to one follower.
    pub inflight_messages_max: usize,
    /// Most bytes of entries of one region that are not applied, above which its leader proposes
    /// nothing. The effects of their operations for readers count.
    pub uncommitted_bytes_max: u64,
    /// Most bytes of pairs that look-ups found and that wait for their modifications to be proposed,
    /// over all regions. The requests themselves are bounded by the queue.
    pub found_bytes_max: u64,
    /// Most bytes of entries applied in one call of the engine.
    pub apply_bytes_max: u64,
    /// Most bytes of entries in memory that are not applied, over all regions of this store, with the
    /// effects of their operations for readers. Above
    /// that, leaders answer new writes with busy and followers drop received entries, except for
    /// regions without any in memory.
    pub tail_bytes_max: u64,
    /// Whether a write is answered when it is committed, before it is applied here (BUC-Raft, commit
    /// return). It is then on the disks of a quorum, which need not contain this store's.
    pub commit_return: bool,
    /// Whether reads see committed entries that are not applied (BUC-Raft, read acceleration);
    /// otherwise they wait for apply.
    pub read_acceleration: bool,
    /// Part of the log kept although it is applied.
    pub log_kept: LogKept,
    /// Nanoseconds for which pairs are kept that a replica owned before a snapshot of its smaller
    /// region replaced it: another region's replicas may need values of them.
    pub orphaned_kept_nanos: u64,
}

/// Part of a region's log kept although a checkpoint covers it.
#[derive(Clone, Copy, Debug)]
pub struct LogKept {
    /// Number of latest entries that are always kept.
    pub entries: u64,
    /// Most bytes of entries kept for a lagging follower; above that it gets a snapshot.
    pub pin_bytes_max: u64,
}

/// Times on which leases and vote holds rest.
///
/// Invariant: all stores of a cluster have the same. A store counts its lease in its own ticks, and
/// the stores that granted it count their vote holds in theirs: the lease of a longer tick outlives
/// the hold of a shorter one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseTimes {
    /// [`Options::tick_nanos`].
    pub tick_nanos: u64,
    /// [`Options::election_ticks_min`].
    pub election_ticks_min: u64,
}

impl LeaseTimes {
    /// Returns the time for which a follower withholds its vote after a heartbeat.
    pub fn vote_hold_nanos(&self) -> u64 {
        self.election_ticks_min.saturating_mul(self.tick_nanos)
    }

    /// Returns problem and remedy if the nodes at two addresses, this one's first, have different
    /// times.
    pub fn mismatch(&self, other: &Self, addresses: [&str; 2]) -> Option<String> {
        let [one, two] = addresses;
        let millis = |times: &Self| times.tick_nanos / 1_000_000;
        if self.tick_nanos != other.tick_nanos {
            return Some(format!(
                "{one} has tick_ms = {} and {two} has tick_ms = {}, and leases need the same tick \
                 on all nodes: set tick_ms to the same value on every node and restart the nodes \
                 that have another",
                millis(self),
                millis(other)
            ));
        }
        (self.election_ticks_min != other.election_ticks_min).then(|| {
            format!(
                "an election begins after {} ticks at {one} and after {} ticks at {two}, and leases \
                 need the same number on all nodes: run the same version on both",
                self.election_ticks_min, other.election_ticks_min
            )
        })
    }
}

/// Shortest tick in times of devices.
const DEVICE_TICK_NANOS: u64 = 50_000_000;

impl Options {
    /// Returns the usual values for a store of a cluster.
    pub fn new(store: StoreId, cluster: ClusterId, process_incarnation: u64, seed: u64) -> Self {
        Self {
            store,
            cluster,
            process_incarnation,
            seed,
            tick_nanos: 50_000_000,
            election_ticks_min: 10,
            election_ticks_max: 20,
            heartbeat_ticks: 2,
            lease_drift_percent: 10,
            leases: true,
            hibernate_after_ticks: 100,
            entry_bytes_max: 96 << 20,
            append_message_bytes_max: 1 << 20,
            inflight_messages_max: 256,
            uncommitted_bytes_max: 64 << 20,
            found_bytes_max: 256 << 20,
            apply_bytes_max: 16 << 20,
            tail_bytes_max: 256 << 20,
            commit_return: true,
            read_acceleration: true,
            log_kept: LogKept { entries: 1_000, pin_bytes_max: 256 << 20 },
            orphaned_kept_nanos: 600_000_000_000,
        }
    }

    /// Returns the nanoseconds of ticks in a time that does not shrink with the tick.
    ///
    /// Invariant: with a short tick no snapshot begins earlier, no voter counts as down earlier, and no
    /// transfer is given up earlier. A slow device would otherwise be taken for a failed one.
    /// Tests: `times_of_devices_do_not_shrink_with_the_tick`,
    /// `a_transfer_with_a_short_tick_has_as_long_as_one_with_the_usual`.
    pub(crate) fn device_nanos(&self, ticks: u64) -> u64 {
        // bug replica.device_times_shrink: return ticks * self.tick_nanos;
        ticks.saturating_mul(self.tick_nanos.max(DEVICE_TICK_NANOS))
    }

    /// Returns [`Options::device_nanos`] in ticks of this store.
    pub(crate) fn device_ticks(&self, ticks: u64) -> u64 {
        self.device_nanos(ticks).div_ceil(self.tick_nanos)
    }

    /// Returns the times that must be equal on all stores of a cluster.
    pub fn lease_times(&self) -> LeaseTimes {
        LeaseTimes { tick_nanos: self.tick_nanos, election_ticks_min: self.election_ticks_min }
    }

    /// Returns the lease duration: for how long after a heartbeat round was sent its answers
    /// prevent another peer from leading. One tick is subtracted, because the first tick after an
    /// answer may come at once.
    pub fn lease_nanos(&self) -> u64 {
        let ticks = self.election_ticks_min.saturating_sub(1);
        let nanos = ticks.saturating_mul(self.tick_nanos);
        // bug replica.lease_without_drift: return nanos + self.tick_nanos * 4;
        nanos / 100 * 100u64.saturating_sub(self.lease_drift_percent)
    }

    /// Fails with `Invalid` if a value is out of range.
    pub fn validate(&self) -> Result<()> {
        let rules = [
            (self.store.0 != 0, "store is 0"),
            (self.tick_nanos > 0, "tick_nanos is 0"),
            (self.heartbeat_ticks > 0, "heartbeat_ticks is 0"),
            (
                self.election_ticks_min > 2 * self.heartbeat_ticks,
                "election_ticks_min is not more than two heartbeats",
            ),
            (
                self.election_ticks_max > self.election_ticks_min,
                "election_ticks_max is not above election_ticks_min",
            ),
            (self.lease_drift_percent < 100, "lease_drift_percent is not below 100"),
            (self.inflight_messages_max > 0, "inflight_messages_max is 0"),
            (self.entry_bytes_max > 0, "entry_bytes_max is 0"),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, broken)) => Err(Error::invalid(format!("replica options: {broken}"))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether a lease of `leader` ends before the vote hold of `follower`, if the leader's
    /// clock runs slower by the drift bound.
    fn fits(leader: &Options, follower: &Options) -> bool {
        let lease_nanos = leader.lease_nanos() * (100 + leader.lease_drift_percent) / 100;
        lease_nanos <= follower.lease_times().vote_hold_nanos()
    }

    fn options(tick_millis: u64, election_ticks_min: u64) -> Options {
        let options = Options::new(StoreId(1), ClusterId(7), 1, 1);
        Options { tick_nanos: tick_millis * 1_000_000, election_ticks_min, ..options }
    }

    #[test]
    fn a_lease_fits_the_vote_holds_of_equal_times_and_outlives_those_of_shorter_ones() {
        for (tick, election_ticks) in [(5, 10), (20, 10), (50, 10), (50, 20), (1_000, 10)] {
            let own = options(tick, election_ticks);
            assert!(fits(&own, &own), "{tick} ms, {election_ticks} ticks");
            for shorter in [options(tick / 2, election_ticks), options(tick, election_ticks / 2)] {
                assert!(!fits(&own, &shorter), "{tick} ms, {election_ticks} ticks");
                let [own, other] = [own.lease_times(), shorter.lease_times()];
                assert!(own.mismatch(&other, ["a", "b"]).is_some());
            }
        }
    }

    #[test]
    fn times_of_devices_do_not_shrink_with_the_tick() {
        // Milliseconds of a tick, of 20 ticks of devices, and these in own ticks.
        for (tick, millis, ticks) in
            [(5, 1_000, 200), (20, 1_000, 50), (30, 1_000, 34), (50, 1_000, 20), (100, 2_000, 20)]
        {
            let options = options(tick, 10);
            assert_eq!(options.device_nanos(20), millis * 1_000_000, "{tick} ms");
            assert_eq!(options.device_ticks(20), ticks, "{tick} ms");
        }
    }

    #[test]
    fn a_mismatch_states_both_values_and_the_remedy() {
        let [own, other] = [options(50, 10).lease_times(), options(100, 10).lease_times()];
        assert_eq!(own.mismatch(&own, ["a:1", "b:2"]), None);
        let text = own.mismatch(&other, ["a:1", "b:2"]).unwrap_or_default();
        assert!(text.contains("a:1 has tick_ms = 50 and b:2 has tick_ms = 100"), "{text}");
        assert!(text.contains("set tick_ms to the same value on every node"), "{text}");
        let text = own.mismatch(&options(50, 12).lease_times(), ["a:1", "b:2"]);
        assert!(
            text.is_some_and(|text| text.contains("10 ticks at a:1 and after 12 ticks at b:2"))
        );
    }
}
