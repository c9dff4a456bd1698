//! `Original` of the Nezha paper: Raft beside RocksDB, each with a log of its own. A value is
//! written to the Raft log, to the key-values' write-ahead log, and to tables as they are flushed and
//! compacted.

use super::{Persistence, Settings};

/// `syncs_pairs`: the key-values' write-ahead log is synced with every application. TiKV does not,
/// and nothing is lost by that, for the Raft log is kept until it was; it is the faster way.
pub fn original(syncs_pairs: bool) -> Settings {
    Settings::new(if syncs_pairs { Persistence::SyncedLog } else { Persistence::Log })
}
