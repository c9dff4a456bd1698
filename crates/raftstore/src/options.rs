//! What a store's consensus is told when it opens.

use stele_types::{ClusterId, Error, Result, StoreId};

/// What a store's consensus is told when it opens. See [`Options::new`] for the usual values.
#[derive(Clone, Debug)]
pub struct Options {
    /// This store.
    pub store: StoreId,
    /// The cluster it belongs to.
    pub cluster: ClusterId,
    /// A number this store never had before, for example nanoseconds at start: read contexts of an
    /// earlier life are never taken for this one's.
    pub incarnation: u64,
    /// Where election timeouts are drawn from.
    pub seed: u64,
    /// Nanoseconds between ticks.
    pub tick_nanos: u64,
    /// Fewest ticks without a leader before a follower campaigns, and how long it keeps its vote
    /// from others after it heard of a leader.
    pub election_ticks_min: u64,
    /// Most ticks without a leader before a follower campaigns (excluded).
    pub election_ticks_max: u64,
    /// Ticks between a leader's heartbeats.
    pub heartbeat_ticks: u64,
    /// How much faster than this store's clock another store's may run, in percent.
    pub lease_drift_percent: u64,
    /// Ticks after which an unfinished transfer of leadership is given up.
    pub transfer_timeout_ticks: u64,
    /// Ticks without work after which a region rests; 0 for never.
    pub hibernate_after_ticks: u64,
    /// Largest command.
    pub entry_bytes_max: u64,
    /// Bytes of entries in one message, save that one entry always fits.
    pub append_message_bytes_max: u64,
    /// Unanswered messages with entries to one follower.
    pub inflight_messages_max: usize,
    /// Bytes of proposed entries of one region that are not applied.
    pub uncommitted_bytes_max: u64,
    /// Bytes of requests that wait in this store, over all regions.
    pub pending_bytes_max: u64,
    /// Bytes of entries handed to one application.
    pub apply_bytes_max: u64,
    /// Bytes of a region's latest entries kept in memory.
    pub entry_cache_bytes_max: u64,
    /// What of the log is kept though it is applied.
    pub log_kept: LogKept,
}

/// What of a region's log is kept though a checkpoint covers it.
#[derive(Clone, Copy, Debug)]
pub struct LogKept {
    /// Latest entries that are always kept.
    pub entries: u64,
    /// Bytes of entries kept for a follower that lags; beyond, it gets a snapshot.
    pub pin_bytes_max: u64,
}

impl Options {
    /// The usual values for a store of a cluster.
    pub fn new(store: StoreId, cluster: ClusterId, incarnation: u64, seed: u64) -> Self {
        Self {
            store,
            cluster,
            incarnation,
            seed,
            tick_nanos: 50_000_000,
            election_ticks_min: 10,
            election_ticks_max: 20,
            heartbeat_ticks: 2,
            lease_drift_percent: 10,
            transfer_timeout_ticks: 20,
            hibernate_after_ticks: 100,
            entry_bytes_max: 96 << 20,
            append_message_bytes_max: 1 << 20,
            inflight_messages_max: 256,
            uncommitted_bytes_max: 64 << 20,
            pending_bytes_max: 256 << 20,
            apply_bytes_max: 16 << 20,
            entry_cache_bytes_max: 8 << 20,
            log_kept: LogKept { entries: 1_000, pin_bytes_max: 256 << 20 },
        }
    }

    /// How long after a round was sent its answers keep every other peer from leading. The first
    /// tick after an answer may come at once, so one tick does not count.
    pub fn lease_nanos(&self) -> u64 {
        let ticks = self.election_ticks_min.saturating_sub(1);
        let nanos = ticks.saturating_mul(self.tick_nanos);
        if stele_types::mutant::active("raftstore.lease_without_drift") {
            return nanos + self.tick_nanos * 4;
        }
        nanos / 100 * 100u64.saturating_sub(self.lease_drift_percent)
    }

    /// Fails with `Invalid` when a value makes no sense.
    pub fn validate(&self) -> Result<()> {
        let rules = [
            (self.store.0 != 0, "store is 0"),
            (self.tick_nanos > 0, "tick_nanos is 0"),
            (self.heartbeat_ticks > 0, "heartbeat_ticks is 0"),
            (
                self.election_ticks_min > 2 * self.heartbeat_ticks,
                "election_ticks_min is not more than two heartbeats",
            ),
            (self.election_ticks_max > self.election_ticks_min, "election_ticks_max is too small"),
            (self.lease_drift_percent < 100, "lease_drift_percent is not below 100"),
            (self.inflight_messages_max > 0, "inflight_messages_max is 0"),
            (self.entry_bytes_max > 0, "entry_bytes_max is 0"),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, broken)) => Err(Error::invalid(format!("raftstore options: {broken}"))),
            None => Ok(()),
        }
    }
}
