//! `LSM-Raft` of the Nezha paper (Zhang et al., "LSM-Raft: Optimizing Raft for LSM-Tree Store", PACMMOD
//! 2025), read from what that paper says of it: it "transmits compacted SSTables instead of fine-grained
//! log entries, reducing follower-side redundant compaction", and "leaders still experience full
//! redundant writes".
//!
//! The store that applies entries first, which is the leader's, does it as `original` does. When a
//! memtable's bytes were applied it ships its tables, flushed and compacted as they are. The others
//! follow: they write neither a write-ahead log nor memtables of key-values, flush nothing and compact
//! nothing, but copy each table of a shipment that they lack. They do persist the Raft log: what a
//! quorum has in its logs is committed, also between two shipments. What they applied after the last
//! shipment is in that log alone.
//!
//! A follower whose key-values somebody looks at or changes in another way, or that comes to apply
//! entries first, opens the tables, applies the rest of its log, and goes on as `original` until it is
//! opened again.

use super::{Persistence, Settings};

/// The usual settings, for the stores of one group.
pub fn lsm_raft() -> Settings {
    Settings::new(Persistence::Tables)
}
