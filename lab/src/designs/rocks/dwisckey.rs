//! `Dwisckey` of the Nezha paper: Raft with WiscKey (Lu et al., FAST 2016) as state machine. The
//! Raft log is as in `Original`. The state machine writes keys and values to a value log and
//! pointers to RocksDB. As in WiscKey, the value log is also the write-ahead log, so RocksDB has
//! none.

use super::{Persistence, Settings};

/// Returns the default settings.
pub fn dwisckey() -> Settings {
    Settings::new(Persistence::FlushesAndValueLog)
}
