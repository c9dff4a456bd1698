//! The log of one store: records of all regions, made durable together. A store with unreadable log
//! entries does not open, so it neither votes nor acknowledges, until copies from other stores
//! replace the entries (protocol-aware recovery: Alagappan et al., FAST 2018).

use bytes::Bytes;
use stele_types::{
    CommittedEntry, HardState, LogBatch, LogIndex, RegionId, Result, Term, checksum,
};

/// Progress of a region on this store. Invariant: truncated ≤ checkpointed ≤ applied ≤ persisted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Last entry removed from the log, or never in it (index and term).
    pub truncated: (LogIndex, Term),
    /// Last entry with effects that survive a crash without the log.
    pub checkpointed: LogIndex,
    /// Last entry with visible effects.
    pub applied: LogIndex,
    /// Last durable entry (index and term).
    pub persisted: (LogIndex, Term),
    /// The last durable hard state.
    pub hard_state: HardState,
    /// The region was destroyed on this store; its log accepts no entries.
    pub destroyed: bool,
}

/// Space of a store's device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes that the store may still write, the reserve included.
    pub free_bytes: u64,
    /// Bytes kept for what frees space: the writes of garbage collection, and deletes.
    pub reserve_bytes: u64,
    /// Whether the file system holds the reserve for this store, so that nothing else can take it.
    pub is_reserve_allocated: bool,
    /// Garbage collection works without its budget, and no region keeps entries that no live
    /// follower lacks. Ends with more room than it begins with.
    pub is_short: bool,
    /// Puts are refused.
    pub is_full: bool,
}

/// Log of one store. Reads may come from any thread.
///
/// [`Mark::Destroy`](stele_types::Mark::Destroy), and a start over an earlier incarnation of a
/// region, checkpoint what the region applied. Its pairs stay until their ranges are dropped,
/// because another region may own them.
pub trait LogStore: Send + Sync {
    /// Makes a batch durable: one write and one sync for all its regions. Applying, views and reads
    /// do not wait for them. After a failure other than `NoSpace` or `Invalid` the store is
    /// poisoned. `NoSpace` and `Invalid` change nothing. What [`LogStore::admit`] refuses may still
    /// be appended.
    ///
    /// Fails with `Invalid` when a record does not continue its region's log, and when it truncates
    /// entries above the checkpoint of its region: a crash would lose their effects.
    fn append(&self, batch: &LogBatch) -> Result<()>;

    /// Returns durable entries from `from` (inclusive) to `to` (exclusive): at least one if any
    /// exists, then up to `bytes_max`. Fails with `Invalid` when `from` was truncated.
    fn entries(
        &self,
        region: RegionId,
        from: LogIndex,
        to: LogIndex,
        bytes_max: usize,
    ) -> Result<Vec<CommittedEntry>>;

    /// Returns the term of a durable entry or of the truncation point.
    fn term(&self, region: RegionId, index: LogIndex) -> Option<Term>;

    /// Returns a region's progress, or `None` if it was never on this store. A destroyed region may
    /// be forgotten, as if it never was.
    fn progress(&self, region: RegionId) -> Option<Progress>;

    /// Checks that puts of `bytes` may be proposed. Fails with `NoSpace` when the remaining space
    /// is needed to free space. Not required for entries that only free space.
    fn admit(&self, bytes: u64) -> Result<()>;

    /// Checks that `bytes` of entries can be appended without the reserve. What [`LogStore::admit`]
    /// refuses on the store that proposes, this refuses on those that receive.
    fn admit_append(&self, bytes: u64) -> bool;

    /// Returns the space of the store's device, as last read.
    fn space(&self) -> Space;

    /// Takes the request of garbage collection that the logs of regions are truncated now. Returns
    /// `false` if there is none, or if it was taken.
    fn take_truncation_request(&self) -> bool;
}

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
