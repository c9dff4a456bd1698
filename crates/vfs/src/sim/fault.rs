//! Faults to inject, and which operation they meet.

use std::path::{Path, PathBuf};

/// A fault of the device. `nth` counts matching operations from the injection: 1 is the next one.
/// `path_contains` matches a part of the path; an empty string matches every path. Each fault
/// happens once, except [`Fault::NoSpace`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// One stored bit changes now; `bit` is 0..=7.
    FlipBit {
        /// The file.
        path: PathBuf,
        /// The byte.
        offset: u64,
        /// The bit of the byte.
        bit: u8,
    },
    /// A write reports success and lands elsewhere: at another sector of its file, else in another
    /// file, else nowhere.
    MisdirectWrite {
        /// Which write.
        nth: u64,
    },
    /// A write reports success and changes nothing but the file's length.
    LoseWrite {
        /// Which write.
        nth: u64,
    },
    /// A write fails; a part of its sectors is written.
    WriteFails {
        /// Of which files.
        path_contains: String,
        /// Which write.
        nth: u64,
    },
    /// A data sync fails. A part of what was unsynced becomes durable, the rest never will, though
    /// it can still be read until a restart and though later syncs succeed.
    SyncFails {
        /// Of which files.
        path_contains: String,
        /// Which sync.
        nth: u64,
    },
    /// A directory's sync fails; a part of its changes becomes durable.
    SyncDirFails {
        /// Of which directories.
        path_contains: String,
        /// Which sync.
        nth: u64,
    },
    /// A read fails.
    ReadFails {
        /// Of which files.
        path_contains: String,
        /// Which read.
        nth: u64,
    },
    /// A read returns one wrong bit; what is stored stays right.
    ReadFlipsOnce {
        /// Of which files.
        path_contains: String,
        /// Which read.
        nth: u64,
    },
    /// From an operation on nothing more can be allocated, until the faults are cleared. Bytes
    /// already allocated can be rewritten.
    NoSpace {
        /// The first operation that fails, by its number on this disk.
        from_operation: u64,
    },
    /// One write finds no room, of whatever it would replace: file systems that write in new places need
    /// some for every write.
    NoRoomOnce {
        /// Of which files.
        path_contains: String,
        /// Which write.
        nth: u64,
    },
    /// A write or data sync takes long: it is counted and the stall hook runs before it returns.
    Stall {
        /// Of which files.
        path_contains: String,
        /// Which write or sync.
        nth: u64,
    },
}

/// What a fault waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meets {
    Read,
    Write,
    Sync,
    SyncDir,
}

/// The faults that are still to happen.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    waiting: Vec<Fault>,
}

impl Faults {
    pub fn add(&mut self, fault: Fault) {
        self.waiting.push(fault);
    }

    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    pub fn no_space(&self, operation: u64) -> bool {
        let begun = |fault: &Fault| matches!(fault, Fault::NoSpace { from_operation } if *from_operation <= operation);
        self.waiting.iter().any(begun)
    }

    /// Counts one operation for every fault it matches and takes out those that happen now.
    pub fn meet(&mut self, meets: Meets, path: &Path) -> Vec<Fault> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let path = path.to_string_lossy();
        let due = |fault: &mut Fault| match fault.wait(meets, &path) {
            Some(nth) => {
                *nth = nth.saturating_sub(1);
                *nth == 0
            }
            None => false,
        };
        self.waiting.extract_if(.., due).collect()
    }
}

impl Fault {
    /// The countdown of a fault that such an operation on `path` advances.
    fn wait(&mut self, meets: Meets, path: &str) -> Option<&mut u64> {
        let (matches, path_contains, nth) = match self {
            Self::MisdirectWrite { nth } | Self::LoseWrite { nth } => {
                return (meets == Meets::Write).then_some(nth);
            }
            Self::WriteFails { path_contains, nth } | Self::NoRoomOnce { path_contains, nth } => {
                (meets == Meets::Write, path_contains, nth)
            }
            Self::SyncFails { path_contains, nth } => (meets == Meets::Sync, path_contains, nth),
            Self::SyncDirFails { path_contains, nth } => {
                (meets == Meets::SyncDir, path_contains, nth)
            }
            Self::ReadFails { path_contains, nth } | Self::ReadFlipsOnce { path_contains, nth } => {
                (meets == Meets::Read, path_contains, nth)
            }
            Self::Stall { path_contains, nth } => {
                (matches!(meets, Meets::Write | Meets::Sync), path_contains, nth)
            }
            Self::FlipBit { .. } | Self::NoSpace { .. } => return None,
        };
        (matches && path.contains(path_contains.as_str())).then_some(nth)
    }
}
