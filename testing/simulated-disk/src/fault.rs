//! Injected faults, the operations that trigger them, recorded operations of a simulated disk, and
//! crash points.

use bytes::Bytes;
use std::path::{Path, PathBuf};
use stele_types::Cause;

/// A fault of the device. `nth` counts matching operations from the injection: 1 is the next one.
/// `path_contains` matches a part of the path; an empty string matches every path. Each fault
/// happens once, except [`Fault::NoSpace`] and [`Fault::Unreadable`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// One stored bit changes now; `bit` is 0..=7.
    FlipBit {
        /// The file's path.
        path: PathBuf,
        /// The byte's offset.
        offset: u64,
        /// The bit within the byte, 0..=7.
        bit: u8,
    },
    /// The device refuses to read these bytes from now on (EIO). Each sector is readable again after
    /// a write replaces all of it. Restarts and [`crate::SimVfs::clear_faults`] change nothing.
    Unreadable {
        /// The file's path.
        path: PathBuf,
        /// The first byte's offset.
        offset: u64,
        /// The number of bytes; whole sectors of 512 bytes around them are refused.
        bytes: u64,
    },
    /// A write reports success and goes elsewhere: to another sector of its file, otherwise to
    /// another file, otherwise nowhere.
    MisdirectWrite {
        /// Number of the write.
        nth: u64,
    },
    /// A write reports success and changes nothing but the file's length.
    LoseWrite {
        /// Number of the write.
        nth: u64,
    },
    /// A write fails; a part of its sectors is written.
    WriteFails {
        /// Substring of matching file paths.
        path_contains: String,
        /// Number of the write.
        nth: u64,
    },
    /// A data sync fails. A part of the unsynced bytes becomes durable, the rest never will,
    /// although it stays readable until a restart and later syncs succeed.
    SyncFails {
        /// Substring of matching file paths.
        path_contains: String,
        /// Number of the sync.
        nth: u64,
    },
    /// A directory's sync fails; a part of its changes becomes durable.
    SyncDirFails {
        /// Substring of matching directory paths.
        path_contains: String,
        /// Number of the sync.
        nth: u64,
    },
    /// A rename fails; it has happened or not.
    RenameFails {
        /// Substring of matching new paths.
        path_contains: String,
        /// Number of the rename.
        nth: u64,
    },
    /// A rename finds no space for the new name, and changes nothing.
    NoRoomForName {
        /// Substring of matching new paths.
        path_contains: String,
        /// Number of the rename.
        nth: u64,
    },
    /// A read fails.
    ReadFails {
        /// Substring of matching file paths.
        path_contains: String,
        /// Number of the read.
        nth: u64,
    },
    /// A read returns one wrong bit; the stored bytes stay right.
    ReadFlipsOnce {
        /// Substring of matching file paths.
        path_contains: String,
        /// Number of the read.
        nth: u64,
    },
    /// From an operation on no allocation succeeds, until the faults are cleared. Bytes already
    /// allocated can be rewritten.
    NoSpace {
        /// Number on this disk of the first operation that fails.
        from_operation: u64,
    },
    /// One write finds no space, even for bytes that it would replace: copy-on-write file systems
    /// allocate space for every write.
    NoRoomOnce {
        /// Substring of matching file paths.
        path_contains: String,
        /// Number of the write.
        nth: u64,
    },
    /// A write or data sync takes long: it is counted, and the stall hook runs before it returns.
    Stall {
        /// Substring of matching file paths.
        path_contains: String,
        /// Number of the write or sync.
        nth: u64,
    },
    /// A read takes long, like a write in [`Fault::Stall`].
    ReadStalls {
        /// Substring of matching file paths.
        path_contains: String,
        /// Number of the read.
        nth: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trigger {
    Read,
    Write,
    Sync,
    SyncDir,
    Rename,
}

/// The faults that have not happened yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    pending: Vec<Fault>,
}

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.pending.push(fault);
    }

    pub(super) fn clear(&mut self) {
        self.pending.clear();
    }

    pub(super) fn no_space(&self, operation: u64) -> bool {
        let begun = |fault: &Fault| matches!(fault, Fault::NoSpace { from_operation } if *from_operation <= operation);
        self.pending.iter().any(begun)
    }

    /// Counts one operation for every fault it matches. Removes and returns the faults that happen
    /// now.
    pub(super) fn take_due(&mut self, trigger: Trigger, path: &Path) -> Vec<Fault> {
        if self.pending.is_empty() {
            return Vec::new();
        }
        let path = path.to_string_lossy();
        let due = |fault: &mut Fault| match fault.countdown(trigger, &path) {
            Some(nth) => {
                *nth = nth.saturating_sub(1);
                *nth == 0
            }
            None => false,
        };
        self.pending.extract_if(.., due).collect()
    }
}

impl Fault {
    /// Returns the countdown of the fault if such an operation on `path` advances it.
    fn countdown(&mut self, trigger: Trigger, path: &str) -> Option<&mut u64> {
        let (matches, path_contains, nth) = match self {
            Self::MisdirectWrite { nth } | Self::LoseWrite { nth } => {
                return (trigger == Trigger::Write).then_some(nth);
            }
            Self::WriteFails { path_contains, nth } | Self::NoRoomOnce { path_contains, nth } => {
                (trigger == Trigger::Write, path_contains, nth)
            }
            Self::SyncFails { path_contains, nth } => {
                (trigger == Trigger::Sync, path_contains, nth)
            }
            Self::SyncDirFails { path_contains, nth } => {
                (trigger == Trigger::SyncDir, path_contains, nth)
            }
            Self::RenameFails { path_contains, nth }
            | Self::NoRoomForName { path_contains, nth } => {
                (trigger == Trigger::Rename, path_contains, nth)
            }
            Self::ReadFails { path_contains, nth }
            | Self::ReadFlipsOnce { path_contains, nth }
            | Self::ReadStalls { path_contains, nth } => {
                (trigger == Trigger::Read, path_contains, nth)
            }
            Self::Stall { path_contains, nth } => {
                (matches!(trigger, Trigger::Write | Trigger::Sync), path_contains, nth)
            }
            Self::FlipBit { .. } | Self::Unreadable { .. } | Self::NoSpace { .. } => return None,
        };
        (matches && path.contains(path_contains.as_str())).then_some(nth)
    }
}

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
