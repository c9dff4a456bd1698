//! `Dwisckey` of the Nezha paper: WiscKey (Lu et al., FAST 2016) behind Raft. The Raft log is as in
//! `Original`; the state machine writes keys and values to a value log and pointers to RocksDB. The
//! value log is the write-ahead log as well, as in WiscKey, so RocksDB has none.

use super::{Persistence, Settings};

/// The usual settings.
pub fn dwisckey() -> Settings {
    Settings::new(Persistence::FlushesAndValueLog)
}
