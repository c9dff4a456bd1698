//! `LSM-Raft` of the Nezha paper (Zhang et al., "LSM-Raft: Optimizing Raft for LSM-Tree Store",
//! PACMMOD 2025), according to that paper's description: it "transmits compacted SSTables instead
//! of fine-grained log entries, reducing follower-side redundant compaction", and "leaders still
//! experience full redundant writes".
//!
//! The store that applies entries first, the leader's, does so like `original`. After a memtable's
//! worth of applied bytes it ships its tables, flushed and compacted as they are. Followers write
//! no write-ahead log and no memtables of key-values, and do not flush or compact. They copy each
//! table of a shipment that they lack. They persist the Raft log: entries that a quorum has are
//! committed, also between two shipments. Entries applied after the last shipment are in that log
//! alone.
//!
//! A follower opens the tables and applies the rest of its log if its key-values are read or
//! changed in another way, or if it applies entries first. It then works like `original` until it
//! is reopened.

use super::{Persistence, Settings};

/// Returns the default settings for the stores of one group.
pub fn lsm_raft() -> Settings {
    Settings::new(Persistence::Tables)
}
