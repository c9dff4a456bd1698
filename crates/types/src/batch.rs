//! Input of one append to the log, and its entries as they are applied.

use crate::{LogIndex, RegionId, Term};
use bytes::Bytes;

/// Raft state of a region that must be durable before its messages are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// Latest term seen.
    pub term: Term,
    /// Peer voted for in `term`; 0 for none.
    pub vote: u64,
    /// Highest index known to be committed.
    pub commit: LogIndex,
}

/// One Raft entry of one region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryRecord {
    /// The region of the extended log. An `index` at or below the region's last one replaces
    /// everything from there on (a conflict resolved by a newer leader).
    pub region: RegionId,
    /// Term of the entry.
    pub term: Term,
    /// Index of the entry.
    pub index: LogIndex,
    /// Whether `payload` is a [`crate::Command`]; other payloads (no-op, membership) are opaque.
    pub is_command: bool,
    /// The entry's bytes, written unchanged.
    pub payload: Bytes,
}

/// Lifecycle step of a region on this store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The region's log starts after this index and term: creation, or an installed snapshot.
    Start(LogIndex, Term),
    /// Entries up to and including this index (of this term) are no longer needed here.
    TruncatePrefix(LogIndex, Term),
    /// Entries from this index on are withdrawn (a conflict without a replacement yet).
    TruncateSuffix(LogIndex),
    /// The region left this store permanently; its older records are obsolete.
    Destroy,
}

/// One record of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A Raft entry.
    Entry(EntryRecord),
    /// A region's hard state.
    HardState(RegionId, HardState),
    /// A region's lifecycle mark.
    Mark(RegionId, Mark),
}

/// Records of any regions, made durable by one write and one sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogBatch {
    /// In log order.
    pub records: Vec<Record>,
}

impl LogBatch {
    /// Returns the bytes of its entries' payloads.
    pub fn payload_bytes(&self) -> u64 {
        let bytes = |record: &Record| match record {
            Record::Entry(entry) => entry.payload.len() as u64,
            _ => 0,
        };
        self.records.iter().map(bytes).sum()
    }
}

/// An entry to apply. Region, index and term name it: an engine that keeps positions finds its
/// own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedEntry {
    /// Term of the entry.
    pub term: Term,
    /// Index of the entry.
    pub index: LogIndex,
    /// Whether `payload` is a [`crate::Command`].
    pub is_command: bool,
    /// The entry's bytes.
    pub payload: Bytes,
}
