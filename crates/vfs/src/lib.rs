//! Files as a trait: the machine's ([`RealVfs`]), and one in memory whose every operation can fail
//! or be cut by a crash ([`SimVfs`]). The only place below the edges that touches `std::fs`.

mod aligned;
mod meter;
mod real;
mod sim;

pub use aligned::{AlignedBuf, MEMORY_ALIGN_BYTES};
pub use meter::{Meter, MeterSnapshot};
pub use real::{RealVfs, SystemClock};
pub use sim::{CrashAt, CrashPoint, Event, Fault, Operation, SimOptions, SimVfs};

use std::fmt::Debug;
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use stele_types::{Cause, Result};

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Whether writes are allowed.
    pub write: bool,
    /// What happens when the file is (or is not) there.
    pub create: Create,
    /// Bypass the page cache where the file system allows it; offsets, lengths and memory of writes
    /// must then be multiples of [`VfsFile::block_bytes`]. Reads through such a handle too.
    pub direct: bool,
}

/// What [`Vfs::open`] does about existence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Create {
    /// The file must exist.
    Never,
    /// The file must not exist; it is created.
    New,
    /// The file is created when missing.
    IfMissing,
}

impl Open {
    /// Existing file, reads only, through the page cache.
    pub const READ: Self = Self { write: false, create: Create::Never, direct: false };
    /// New file, through the page cache.
    pub const CREATE: Self = Self { write: true, create: Create::New, direct: false };
    /// Existing file, reads and writes, through the page cache.
    pub const WRITE: Self = Self { write: true, create: Create::Never, direct: false };
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name, without the directory.
    pub name: String,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Bytes of the device the file takes (what `du` counts).
    pub allocated_bytes: u64,
    /// Whether this is a directory.
    pub is_dir: bool,
}

/// A lock on a directory, held until dropped or until the process ends.
pub trait DirLock: Send + Sync + Debug {}

/// A file system. Paths are used as they are. Every error names the operation and the path.
pub trait Vfs: Send + Sync + Debug {
    /// Opens a file. A new name is durable only after [`Vfs::sync_dir`] of its directory. A missing
    /// file is [`stele_types::Error::Io`] with the kind `NotFound`.
    fn open(&self, path: &Path, how: Open) -> Result<Arc<dyn VfsFile>>;
    /// Renames a file within its directory, replacing `to` if present: atomic; durable after
    /// [`Vfs::sync_dir`]. Across directories it is refused: no one sync makes that durable.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    /// Removes a file; durable after [`Vfs::sync_dir`].
    fn unlink(&self, path: &Path) -> Result<()>;
    /// Makes the names in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> Result<()>;
    /// Creates a directory and its missing parents, durable on return.
    fn create_dir_all(&self, dir: &Path) -> Result<()>;
    /// The names in a directory, sorted.
    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>>;
    /// Whether a file or directory is there.
    fn exists(&self, path: &Path) -> Result<bool>;
    /// Takes the lock file `path` (created when missing) for this process alone.
    /// Fails with [`stele_types::Error::Locked`] when another holder has it.
    fn lock(&self, path: &Path) -> Result<Box<dyn DirLock>>;
    /// Free bytes on the device that holds `dir`.
    fn free_bytes(&self, dir: &Path) -> Result<u64>;
    /// Size of the device that holds `dir`.
    fn total_bytes(&self, dir: &Path) -> Result<u64>;
    /// The bytes written through this file system, by cause.
    fn meter(&self) -> &Meter;
}

#[expect(clippy::len_without_is_empty, reason = "asking a file for its length can fail")]
/// An open file. Positions are explicit, so a handle may be shared by threads.
pub trait VfsFile: Send + Sync + Debug {
    /// Reads up to `buffer.len()` bytes at `offset`; fewer only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;
    /// Fills `buffer` from `offset` if the page cache holds all of it, and never waits for the
    /// device: `false`, with nothing known of `buffer`, if it would. Always `false` past the page cache.
    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> Result<bool>;
    /// Says that `bytes` at `offset` are read soon, so that the device may begin. Only a hint.
    fn will_read(&self, offset: u64, bytes: u64) {
        let (_, _) = (offset, bytes);
    }
    /// Writes all of `buffers` at `offset` with one call where the system can (vectored), counted
    /// under `cause`. Durable only after [`VfsFile::sync_data`].
    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64, cause: Cause) -> Result<()>;
    /// Begins to write `part` at `offset`, and gives it back if that was done at once. Else the file
    /// keeps it until [`VfsFile::finish_writes`]. Parts reach the device in any order.
    fn start_write(
        &self,
        part: AlignedBuf,
        offset: u64,
        cause: Cause,
    ) -> Result<Option<AlignedBuf>> {
        self.write_at(&[IoSlice::new(&part)], offset, cause)?;
        Ok(Some(part))
    }
    /// Waits for all writes begun, and gives back their memory in the order they were begun. They
    /// are written then, not durable. After a failure nothing is known of any of them.
    fn finish_writes(&self) -> Result<Vec<AlignedBuf>> {
        Ok(Vec::new())
    }
    /// Makes written bytes (and the length) durable. After a failure nothing is known about any
    /// earlier unsynced write, and a retry proves nothing: the caller must stop.
    fn sync_data(&self) -> Result<()>;
    /// Reserves blocks for [0, bytes) without changing the length. A hint: unsupported is success.
    fn allocate(&self, bytes: u64) -> Result<()>;
    /// Cuts or extends (with zeros) to `bytes`.
    fn set_len(&self, bytes: u64) -> Result<()>;
    /// The length in bytes.
    fn len(&self) -> Result<u64>;
    /// The alignment direct operations need, or `None` for a handle through the page cache. A handle
    /// asked for with `direct` may come back as `None` where the file system refuses direct I/O.
    fn block_bytes(&self) -> Option<usize>;
    /// Where the file lies, for messages.
    fn path(&self) -> &Path;

    /// Fills `buffer` from `offset`; a file that ends before is [`stele_types::Error::Corrupt`].
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let got = self.read_at(buffer, offset)?;
        if got == buffer.len() {
            return Ok(());
        }
        let detail = format!("file ends {} bytes early", buffer.len() - got);
        Err(stele_types::Error::corrupt(self.path(), offset + got as u64, detail))
    }
}

fn check_open(path: &Path, how: Open) -> Result<()> {
    if how.write || how.create == Create::Never {
        return Ok(());
    }
    let detail = format!("{} cannot be created by a handle that only reads", path.display());
    Err(stele_types::Error::invalid(detail))
}

fn check_rename(from: &Path, to: &Path) -> Result<()> {
    if from.parent() == to.parent() {
        return Ok(());
    }
    let detail = format!("rename of {} to {} leaves its directory", from.display(), to.display());
    Err(stele_types::Error::invalid(detail))
}
