//! Bounds and pauses of the transport.

use crate::stores::Boots;
use std::sync::Arc;
use std::time::Duration;
use stele_replica::LeaseTimes;
use stele_types::{ClusterId, StoreId};

/// Bounds and pauses of the transport.
#[derive(Clone, Debug)]
pub struct TransportOptions {
    /// Idle time after which a keepalive is sent.
    pub keepalive_interval: Duration,
    /// Time without a received byte after which a connection is closed. TCP repeats what a
    /// partition dropped after 0.2, 0.6, 1.4, 3 and 6 s (Linux): beyond 2 s a new connection
    /// recovers earlier than the old one's next attempt.
    pub silence_max: Duration,
    /// Time without an accepted byte after which a connection is closed; also the longest pause of
    /// a snapshot's receiver.
    pub stall_max: Duration,
    /// Time to connect and to receive the reply to the hello. TCP repeats a connection attempt into
    /// a partition after 1, 3 and 7 s (Linux): a longer attempt would be slower than a new one when
    /// the partition heals.
    pub dial_timeout: Duration,
    /// Pause before the second attempt; doubles up to `backoff_max`, half of it random.
    pub backoff_min: Duration,
    /// Longest pause; see `backoff_min`.
    pub backoff_max: Duration,
    /// Bytes of entries and acknowledgements that wait for one node, at most.
    pub data_queue_bytes_max: u64,
    /// Bytes of all other messages that wait for one node, at most.
    pub urgent_queue_bytes_max: u64,
    /// Bytes that are encoded and written at once, at most.
    pub batch_bytes_max: u64,
    /// Bytes of incomplete large frames, of all connections together, at most; above, they are not
    /// read further and their senders wait.
    pub received_bytes_max: usize,
    /// Most connections from other nodes.
    pub incoming_max: usize,
    /// Most snapshots received at the same time.
    pub snapshots_in_max: usize,
    /// Seed of random pauses.
    pub seed: u64,
}

impl Default for TransportOptions {
    fn default() -> Self {
        Self {
            keepalive_interval: Duration::from_millis(500),
            silence_max: Duration::from_secs(2),
            stall_max: Duration::from_secs(30),
            dial_timeout: Duration::from_millis(1_500),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_millis(250),
            data_queue_bytes_max: 64 << 20,
            urgent_queue_bytes_max: 4 << 20,
            batch_bytes_max: 1 << 20,
            received_bytes_max: 256 << 20,
            incoming_max: 1024,
            snapshots_in_max: 8,
            seed: 0,
        }
    }
}

/// Identity of this node to the others.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Cluster of the node.
    pub cluster: ClusterId,
    /// `host:port` under which others dial it.
    pub address: String,
    /// Stores of the node.
    pub stores: Vec<StoreId>,
    /// Times of its leases, which must be those of the other nodes.
    pub times: LeaseTimes,
    /// Runs of its stores.
    pub boots: Arc<Boots>,
}
