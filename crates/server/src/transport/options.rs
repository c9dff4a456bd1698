//! Bounds and pauses of the transport.

use std::time::Duration;
use stele_types::{ClusterId, StoreId};

/// Bounds and pauses of the transport.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sent whenever nothing else was for so long.
    pub alive_interval: Duration,
    /// A connection on which nothing came for so long is dead. What a partition swallowed is repeated
    /// after 0.2, 0.6, 1.4, 3 and 6 s (Linux): beyond 2 s a new connection is sooner through than the
    /// old one's next attempt.
    pub silence_max: Duration,
    /// A connection that takes no byte for so long is closed; a snapshot's receiver may also be busy
    /// for so long.
    pub stall_max: Duration,
    /// For a connection to be made and the hello to be answered. What is dialled into a partition
    /// repeats itself after 1, 3 and 7 s (Linux): an attempt that goes on for longer is behind a new
    /// one when the partition heals.
    pub dial_timeout: Duration,
    /// Before the second attempt; doubles up to `backoff_max`, half of it by chance.
    pub backoff_min: Duration,
    /// See `backoff_min`.
    pub backoff_max: Duration,
    /// Bytes of entries and acknowledgements that wait for one node.
    pub data_queue_bytes_max: u64,
    /// Bytes of all other messages that wait for one node.
    pub urgent_queue_bytes_max: u64,
    /// Bytes that are encoded and written at once.
    pub batch_bytes_max: u64,
    /// Large frames on their way in, of all connections together; beyond it nothing more of them is
    /// read, and their senders wait.
    pub received_bytes_max: usize,
    /// Connections from other nodes.
    pub incoming_max: usize,
    /// Snapshots on their way in at the same time.
    pub snapshots_in_max: usize,
    /// Decides what is left to chance.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            alive_interval: Duration::from_millis(500),
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

/// Who this node is to the others.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Its cluster.
    pub cluster: ClusterId,
    /// `host:port` under which others dial it.
    pub address: String,
    /// Its stores.
    pub stores: Vec<StoreId>,
}
