//! Recorded operations of a simulated disk, and crash points.

use bytes::Bytes;
use std::path::PathBuf;
use stele_types::Cause;

/// Kind of a numbered operation. Every operation that affects a restart is numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// Creation of a file and its name.
    Create,
    /// Write to a file.
    Write,
    /// Data sync of a file.
    Sync,
    /// Sync of a directory.
    SyncDir,
    /// Rename of a file.
    Rename,
    /// Removal of a name.
    Unlink,
    /// Change of a file's length.
    SetLen,
    /// Reservation of blocks for a file.
    Allocate,
    /// Creation of a directory.
    CreateDir,
}

/// One numbered operation, recorded when it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The operation's number; the first operation of a disk is 0.
    pub operation: u64,
    /// The operation's kind.
    pub kind: Operation,
    /// The file or directory, by the path it was opened with.
    pub path: PathBuf,
    /// The new path of a rename.
    pub to: Option<PathBuf>,
    /// Offset of a write, in bytes from the start of the file.
    pub offset: u64,
    /// Bytes of a write; the requested length of `set_len` and `allocate`.
    pub bytes: u64,
    /// Cause of a write.
    pub cause: Option<Cause>,
    /// Content of a write, after `record_writes(true)`.
    pub data: Option<Bytes>,
}

impl Event {
    pub(super) fn new(kind: Operation, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { operation: 0, kind, path, to: None, offset: 0, bytes: 0, cause: None, data: None }
    }
}

/// Moment of a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashPoint {
    /// The operation's number; a past one means the next operation.
    pub operation: u64,
    /// Position within that operation.
    pub at: CrashAt,
}

/// Position of a power cut within an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashAt {
    /// The operation has no effect and fails.
    Before,
    /// The operation takes effect in part and fails: a write is torn between sectors, a sync makes
    /// only a part durable, a change of names happens or not.
    Inside,
    /// The operation succeeds; the next one fails.
    After,
}

impl CrashAt {
    /// All positions, for tests that try each.
    pub const ALL: [Self; 3] = [Self::Before, Self::Inside, Self::After];
}
