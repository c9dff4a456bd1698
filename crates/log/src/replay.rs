//! Surviving entries, for rebuilding what a crash took from memory.

use stele_types::{LogIndex, Lsn, RegionId, Term, ValueRef};

/// One entry to apply again.
#[derive(Clone, Copy, Debug)]
pub struct ReplayEntry<'a> {
    /// Its region.
    pub region: RegionId,
    /// Its index.
    pub index: LogIndex,
    /// Its term.
    pub term: Term,
    /// Where its payload lies.
    pub at: Lsn,
    /// Its operations; none when it is not a command.
    pub ops: &'a [ReplayOp<'a>],
}

/// One operation of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayOp<'a> {
    /// Sets a key.
    Put {
        /// The key.
        key: &'a [u8],
        /// The value when small, else where it lies.
        value: ValueRef,
        /// Unix seconds at which the pair ceases to exist; 0 for never.
        expires_at_s: u64,
    },
    /// Removes a key.
    Delete {
        /// The key.
        key: &'a [u8],
    },
    /// Removes the keys in [start, end); an empty end is no bound.
    DeleteRange {
        /// First key removed.
        start: &'a [u8],
        /// First key kept.
        end: &'a [u8],
    },
}
