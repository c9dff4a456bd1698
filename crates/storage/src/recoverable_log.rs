//! A store whose log holds entries that can't be read. It does not open, so it neither votes nor
//! acknowledges, until other stores' copies are in their places (protocol-aware recovery: Alagappan
//! et al., FAST 2018).

use bytes::Bytes;
use stele_types::{LogIndex, RegionId, Result, Term, checksum};

/// An entry of the log that can't be read, and what proves a copy of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LostEntry {
    /// The region whose log it belongs to.
    pub region: RegionId,
    /// Its index there.
    pub index: LogIndex,
    /// Its term.
    pub term: Term,
    /// Bytes of its payload.
    pub bytes: u32,
    /// CRC-32C of its payload.
    pub crc: u32,
}

impl LostEntry {
    /// Whether these bytes are the entry's payload.
    pub fn is(&self, payload: &[u8]) -> bool {
        payload.len() == self.bytes as usize && checksum::crc32c(payload) == self.crc
    }
}

/// A store that waits for copies of its lost entries before it opens. It holds the directory's lock.
pub trait RecoverableLog: Send {
    /// The next entries that are still lost, at most so many; all of them in turn, by many calls.
    fn lost_entries(&mut self, count_max: usize) -> Vec<LostEntry>;

    /// The payload of an entry that another store lost, if it is whole here.
    fn find(&self, lost: &LostEntry) -> Option<Bytes>;

    /// Puts a copy in its place, durably. `false` when it is not what was lost here. Errors are the
    /// device's: it is not written to any more.
    fn restore_entry(&mut self, lost: &LostEntry, payload: &[u8]) -> Result<bool>;

    /// Whether nothing is lost any more: the store can be opened.
    fn is_recovered(&self) -> bool;
}
