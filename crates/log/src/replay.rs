//! Surviving entries, for rebuilding the state that a crash removed from memory.

use stele_types::{LogIndex, Lsn, RegionId, Term, ValueRef};

/// One entry to apply again.
#[derive(Clone, Copy, Debug)]
pub struct ReplayEntry<'a> {
    /// The entry's region.
    pub region: RegionId,
    /// The entry's index.
    pub index: LogIndex,
    /// The entry's term.
    pub term: Term,
    /// Position of the payload.
    pub at: Lsn,
    /// The entry's operations; empty if it is not a command.
    pub ops: &'a [ReplayOp<'a>],
}

/// One operation of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayOp<'a> {
    /// Sets a key.
    Put {
        /// The key.
        key: &'a [u8],
        /// The value if it is short, otherwise its locator.
        value: ValueRef,
        /// Expiry in Unix seconds; 0 disables it.
        expires_at_s: u64,
    },
    /// Removes a key.
    Delete {
        /// The key.
        key: &'a [u8],
    },
    /// Removes the keys in [start, end); an empty end means no upper bound.
    DeleteRange {
        /// First key removed.
        start: &'a [u8],
        /// First key kept.
        end: &'a [u8],
    },
}
