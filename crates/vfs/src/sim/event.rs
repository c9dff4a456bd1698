//! What a simulated disk was asked to do, and where it stops.

use bytes::Bytes;
use std::path::PathBuf;
use stele_types::Cause;

/// The kinds of numbered operations: all that change what a restart can find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// A new file and its name.
    Create,
    /// Bytes into a file.
    Write,
    /// A file's data sync.
    Sync,
    /// A directory's sync.
    SyncDir,
    /// A new name for a file.
    Rename,
    /// The end of a name.
    Unlink,
    /// A new length of a file.
    SetLen,
    /// Blocks set aside for a file.
    Allocate,
    /// A new directory.
    CreateDir,
}

/// One numbered operation, recorded when it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its number: the first operation of a disk is 0.
    pub operation: u64,
    /// What it is.
    pub kind: Operation,
    /// The file or directory, as it was called when opened.
    pub path: PathBuf,
    /// The new path of a rename.
    pub to: Option<PathBuf>,
    /// Where a write starts, in bytes from the start of the file.
    pub offset: u64,
    /// Bytes of a write; the length that `set_len` and `allocate` ask for.
    pub bytes: u64,
    /// Why a write is done.
    pub cause: Option<Cause>,
    /// What a write writes, after `record_writes(true)`.
    pub data: Option<Bytes>,
}

impl Event {
    pub(super) fn new(kind: Operation, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { operation: 0, kind, path, to: None, offset: 0, bytes: 0, cause: None, data: None }
    }
}

/// When the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashPoint {
    /// The operation's number; one already past means the next operation.
    pub operation: u64,
    /// Where in that operation.
    pub at: CrashAt,
}

/// Where in an operation the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashAt {
    /// The operation does nothing and fails.
    Before,
    /// The operation is done in part and fails: a write is torn between sectors, a sync makes only
    /// a part durable, a change of names happens or not.
    Inside,
    /// The operation is done and succeeds; the next one fails.
    After,
}

impl CrashAt {
    /// All of them, for tests that try each.
    pub const ALL: [Self; 3] = [Self::Before, Self::Inside, Self::After];
}
