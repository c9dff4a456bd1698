//! Statistics of a log and of its files.

use stele_types::{FileId, Lsn};

/// Statistics of a log since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Number of segments, including the active one.
    pub segments: usize,
    /// Number of sorted value files.
    pub sorted_files: usize,
    /// Number of files with retained tombstones.
    pub tombstone_files: usize,
    /// Number of freed segments waiting for reuse.
    pub free_segments: usize,
    /// Position of the next batch.
    pub head: Lsn,
    /// Bytes of memory: entry positions, entry cache, buffers of long reads, write buffer, sidecar
    /// buffer.
    pub memory_bytes: u64,
    /// Number of entries of all regions that are not truncated.
    pub entries: u64,
    /// Number of batches appended.
    pub batches: u64,
    /// Number of segment syncs.
    pub syncs: u64,
    /// Bytes of entry payloads appended.
    pub payload_bytes: u64,
    /// Bytes written to segments, including padding and headers.
    pub written_bytes: u64,
    /// Number of segments begun.
    pub rolls: u64,
    /// Number of those in recycled blocks.
    pub recycled: u64,
    /// Number of entries served from memory.
    pub cache_hits: u64,
    /// Number of entries read from files.
    pub cache_misses: u64,
    /// Number of reads repeated on the device because of a checksum mismatch.
    pub direct_retries: u64,
}

/// State of the list of files. While two are equal, so are the files, except for the size of the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileList {
    /// Number of changes of the list since the log was opened.
    pub changes: u64,
    /// First segment that a region needs.
    pub wanted_from: FileId,
    /// The active segment.
    pub head: FileId,
}

/// Kind of a file of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// Batches in arrival order.
    Segment {
        /// Whether it takes no further batches.
        sealed: bool,
        /// Whether it reuses the blocks of a freed segment.
        recycled: bool,
    },
    /// Values in key order.
    Sorted,
    /// Tombstones retained after their segment was removed, for rebuilding a lost index.
    Tombstones,
}

/// Description of one file of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueFileInfo {
    /// The file's number.
    pub file: FileId,
    /// The file's kind.
    pub kind: FileKind,
    /// Bytes it takes on the device.
    pub bytes: u64,
    /// Of those, bytes of keys and of values too long to be inline, plus
    /// [`crate::RECORD_OVERHEAD_BYTES`] for each.
    pub payload_bytes: u64,
    /// Whether removal would lose untruncated entries of a region, or break the chain of segments
    /// that recovery reads.
    pub wanted_by_raft: bool,
    /// Lower bound of the versions in the file.
    pub min_lsn: Lsn,
}
