//! Figures of a log and of its files.

use stele_types::{FileId, Lsn};

/// Figures of a log since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Segments, the active one included.
    pub segments: usize,
    /// Sorted value files.
    pub sorted_files: usize,
    /// Graves files.
    pub tombstone_files: usize,
    /// Freed segments waiting for reuse.
    pub free_segments: usize,
    /// Where the next batch goes.
    pub head: Lsn,
    /// Bytes of memory: entry positions, entry cache, write buffer, sidecar buffer.
    pub memory_bytes: u64,
    /// Entries not truncated, of all regions.
    pub entries: u64,
    /// Batches appended.
    pub batches: u64,
    /// Syncs of segments.
    pub syncs: u64,
    /// Bytes of entry payloads appended.
    pub payload_bytes: u64,
    /// Bytes written to segments, padding and heads included.
    pub written_bytes: u64,
    /// Segments begun.
    pub rolls: u64,
    /// Of those, in recycled blocks.
    pub recycled: u64,
    /// Entries served from memory.
    pub cache_hits: u64,
    /// Entries read back.
    pub cache_misses: u64,
    /// Reads that were repeated because a checksum did not hold.
    pub direct_retries: u64,
}

/// What a file of the log holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// Batches in arrival order.
    Segment {
        /// Whether no more batches come.
        sealed: bool,
        /// Whether it took over the blocks of a freed segment.
        recycled: bool,
    },
    /// Values in key order.
    Sorted,
    /// Deletes kept after their segment was removed, for rebuilding a lost index.
    Graves,
}

/// A file of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueFileInfo {
    /// The file.
    pub file: FileId,
    /// What it holds.
    pub kind: FileKind,
    /// Bytes of the device it takes.
    pub bytes: u64,
    /// Of those, keys and values too long to be inline, with [`crate::RECORD_OVERHEAD_BYTES`] each.
    pub payload_bytes: u64,
    /// Whether removal would lose untruncated entries of some region, or tear the chain of segments
    /// that recovery reads.
    pub wanted_by_raft: bool,
    /// No operation in the file is older.
    pub min_lsn: Lsn,
}
