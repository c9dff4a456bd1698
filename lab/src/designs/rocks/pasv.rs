//! `PASV` of the Nezha paper (Huang et al., "Removing Double-Logging with Passive Data
//! Persistence", FAST 2022): the key-values have no write-ahead log. After a crash the Raft log is
//! replayed from the last flush.

use super::{Persistence, Settings};

/// Returns the default settings.
pub fn pasv() -> Settings {
    Settings::new(Persistence::Flushes)
}
