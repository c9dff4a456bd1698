//! `Original` of the Nezha paper: Raft and RocksDB with separate logs. A value is written to the
//! Raft log, to the key-values' write-ahead log, and to tables by flushes and compactions.

use super::{Persistence, Settings};

/// Returns the settings. `syncs_pairs`: sync the key-values' write-ahead log on every apply. TiKV
/// does not sync it: the Raft log is kept until it was synced, so nothing is lost, and that is
/// faster.
pub fn original(syncs_pairs: bool) -> Settings {
    Settings::new(if syncs_pairs { Persistence::SyncedLog } else { Persistence::Log })
}
