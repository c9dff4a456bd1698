//! A store with unreadable log entries. It does not open, so it neither votes nor acknowledges,
//! until copies from other stores replace the entries (protocol-aware recovery: Alagappan et al.,
//! FAST 2018).

use bytes::Bytes;
use stele_types::{LogIndex, RegionId, Result, Term, checksum};

/// An unreadable log entry, with the checksum that identifies a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LostEntry {
    /// Region of the log.
    pub region: RegionId,
    /// Index in that log.
    pub index: LogIndex,
    /// Term of the entry.
    pub term: Term,
    /// Length of its payload in bytes.
    pub bytes: u32,
    /// CRC-32C of its payload.
    pub crc: u32,
}

impl LostEntry {
    /// Returns whether `payload` is a copy of the entry's payload.
    pub fn is_copy(&self, payload: &[u8]) -> bool {
        payload.len() == self.bytes as usize && checksum::crc32c(payload) == self.crc
    }
}

/// Unopened log that accepts copies of its lost entries. It holds the directory's lock.
pub trait RecoverableLog: Send {
    /// Returns the next lost entries, at most `count_max`; successive calls cycle through all.
    fn lost_entries(&mut self, count_max: usize) -> Vec<LostEntry>;

    /// Returns the payload of an entry that another store lost, if it is intact here.
    fn find(&self, lost: &LostEntry) -> Option<Bytes>;

    /// Writes a copy to its place, durably. Returns `false` when the copy does not match a lost
    /// entry. Errors are those of the device; nothing more is written after one.
    fn restore_entry(&mut self, lost: &LostEntry, payload: &[u8]) -> Result<bool>;

    /// Returns whether no entry is lost any more, so that the store can open.
    fn is_recovered(&self) -> bool;
}
