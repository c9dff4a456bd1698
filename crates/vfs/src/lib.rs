//! Files as a trait: the machine's file system ([`RealVfs`]), emulated devices of stated speed
//! ([`ProfiledVfs`]), and one that keeps all changes in memory ([`CopyOnWriteVfs`]). Below the edges
//! only this crate uses `std::fs`.

mod aligned;
mod content;
mod copy_on_write;
mod device_latency;
mod file_system;
mod handles;
mod meter;
mod probe;
mod profiled;
mod real;

pub use aligned::{AlignedBuf, MEMORY_ALIGN_BYTES, check_direct};
pub use content::Content;
pub use copy_on_write::CopyOnWriteVfs;
pub use device_latency::{DeviceTimer, DeviceTimes, UnderWay};
pub use file_system::{FileLayer, FileSystem, FsKind, VfsLayer, warnings};
pub use handles::{FrugalVfs, HandlePool, Handles, PinState, Pinned};
pub use meter::{Meter, MeterSnapshot};
pub use probe::{Curve, Probed, probe, remove_probe};
pub use profiled::{DeviceProfile, DeviceScale, ProfiledVfs, Sleep, SlowedVfs};
pub use real::{BatchRead, KernelFile, ReadBatch, RealVfs, SystemClock};

use std::fmt::Debug;
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use stele_types::{Cause, Place, Result};

/// Options for opening a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Whether writes are allowed.
    pub write: bool,
    /// Whether to create the file.
    pub create: Create,
    /// Bypass the page cache where the file system allows it. Offsets, lengths and memory of writes
    /// and reads must then be multiples of [`VfsFile::block_bytes`].
    pub direct: bool,
}

/// Whether [`Vfs::open`] creates the file.
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
    /// Existing file, read-only, through the page cache.
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
    /// Bytes the file takes on the device (as counted by `du`).
    pub allocated_bytes: u64,
    /// Whether this is a directory.
    pub is_dir: bool,
}

/// A lock on a directory, held until dropped or until the process ends.
pub trait DirLock: Send + Sync + Debug {}

/// A file system. Paths are used unchanged. Every error names the operation and the path.
pub trait Vfs: Send + Sync + Debug {
    /// Opens a file. A new name is durable only after [`Vfs::sync_dir`] of its directory. A missing
    /// file is [`stele_types::Error::Io`] with the kind `NotFound`.
    fn open(&self, path: &Path, how: Open) -> Result<Arc<dyn VfsFile>>;
    /// Renames a file within its directory, replacing `to` if present: atomic; durable after
    /// [`Vfs::sync_dir`]. Fails across directories, because one sync cannot make that durable.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    /// Removes a file; durable after [`Vfs::sync_dir`].
    fn unlink(&self, path: &Path) -> Result<()>;
    /// Makes the names in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> Result<()>;
    /// Creates a directory and its missing parents, durable on return.
    fn create_dir_all(&self, dir: &Path) -> Result<()>;
    /// Returns the entries of a directory, sorted by name.
    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>>;
    /// Whether a file or directory exists.
    fn exists(&self, path: &Path) -> Result<bool>;
    /// Takes the lock file `path` (created when missing) exclusively for this process.
    /// Fails with [`stele_types::Error::Locked`] when another holder has it.
    fn lock(&self, path: &Path) -> Result<Box<dyn DirLock>>;
    /// Takes the existing lock file `path` for a process that only reads, beside others that do. The
    /// file is not opened for writing. `None` where a file system that is mounted read-only has no
    /// locks. Fails with [`stele_types::Error::Locked`] when a holder of [`Vfs::lock`] has it.
    fn lock_for_reading(&self, path: &Path) -> Result<Option<Box<dyn DirLock>>> {
        self.lock(path).map(Some)
    }
    /// Keeps a file or directory open, to compare it later with what its path names then.
    fn pin(&self, path: &Path) -> Result<Box<dyn Pinned>>;
    /// Returns facts about the file system that holds an existing file.
    fn file_system(&self, file: &Path) -> Result<FileSystem>;
    /// Returns the free bytes of the device that holds `dir`.
    fn free_bytes(&self, dir: &Path) -> Result<u64>;
    /// Returns the size in bytes of the device that holds `dir`.
    fn total_bytes(&self, dir: &Path) -> Result<u64>;
    /// Returns whether [`VfsFile::allocate`] keeps blocks of the device that holds `dir` from other
    /// files until the file is truncated.
    fn can_reserve(&self, dir: &Path) -> Result<bool>;
    /// Returns the number of the device that holds `dir` (`st_dev`). Directories of one file system
    /// have the same number. A number is valid until the device is detached.
    fn device_number(&self, dir: &Path) -> Result<u64>;
    /// Returns the place of `dir`, which a move within the file system keeps and a copy does not;
    /// `None` where the file system has no such numbers.
    fn place(&self, dir: &Path) -> Result<Option<Place>>;
    /// Whether changes reach the files of a device or of an emulated one: false where they stay in
    /// memory and are dropped.
    fn keeps_changes(&self) -> bool;
    /// Returns a random number: of the machine's random source, or by the seed of a simulated disk.
    fn random(&self) -> Result<u64>;
    /// Returns the meter of bytes written through this file system, by cause.
    fn meter(&self) -> &Meter;
}

#[expect(clippy::len_without_is_empty, reason = "querying the length of a file can fail")]
/// An open file. Positions are explicit, so threads may share a handle.
pub trait VfsFile: Send + Sync + Debug {
    /// Reads at most `buffer.len()` bytes at `offset`; fewer only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;
    /// Fills `buffer` from `offset` if the page cache holds all of it, and never waits for the
    /// device. Otherwise returns `false` and leaves `buffer` undefined. Always `false` for a direct
    /// handle.
    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> Result<bool>;
    /// Hints that `bytes` at `offset` will be read soon, so that the device can start.
    fn will_read(&self, offset: u64, bytes: u64) {
        let (_, _) = (offset, bytes);
    }
    /// Writes all of `buffers` at `offset`, counted under `cause`, with one vectored call where the
    /// system supports it. Durable only after [`VfsFile::sync_data`].
    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64, cause: Cause) -> Result<()>;
    /// Starts to write `part` at `offset`. Returns the buffer if the write is already complete.
    /// Otherwise the file keeps it until [`VfsFile::finish_writes`]. Parts reach the device in any
    /// order.
    fn start_write(
        &self,
        part: AlignedBuf,
        offset: u64,
        cause: Cause,
    ) -> Result<Option<AlignedBuf>> {
        self.write_at(&[IoSlice::new(&part)], offset, cause)?;
        Ok(Some(part))
    }
    /// Waits for all started writes and returns their buffers in the order they were started. The
    /// bytes are then written, not durable. After a failure the state of all of them is unknown.
    fn finish_writes(&self) -> Result<Vec<AlignedBuf>> {
        Ok(Vec::new())
    }
    /// Makes written bytes and the length durable. After a failure the state of every earlier
    /// unsynced write is unknown, and a retry proves nothing: the caller must stop.
    fn sync_data(&self) -> Result<()>;
    /// Reserves blocks for [0, bytes) without changing the length. A hint: succeeds where
    /// unsupported.
    fn allocate(&self, bytes: u64) -> Result<()>;
    /// Makes [0, bytes) blocks that count as written, with zeros, and `bytes` the length of a file that is
    /// shorter: a later write there changes no metadata. The device writes nothing for it. Returns false,
    /// and changes nothing, where file system or device cannot. After a full device the length is unknown.
    fn write_zeroes(&self, bytes: u64) -> Result<bool> {
        let _ = bytes;
        Ok(false)
    }
    /// Truncates to `bytes`, or extends with zeros.
    fn set_len(&self, bytes: u64) -> Result<()>;
    /// Returns the length in bytes.
    fn len(&self) -> Result<u64>;
    /// Returns the alignment that direct operations need, or `None` for a handle through the page
    /// cache. A handle opened with `direct` may also return `None` where the file system refuses
    /// direct I/O.
    fn block_bytes(&self) -> Option<usize>;
    /// Returns the file's path, for messages.
    fn path(&self) -> &Path;
    /// Returns a file of the machine that bypasses the page cache, for a [`ReadBatch`]. `None` for any
    /// other: layers above one are not to be passed by.
    fn kernel_file(&self) -> Option<KernelFile<'_>> {
        None
    }

    /// Fills `buffer` from `offset`. Fails with [`stele_types::Error::Corrupt`] if the file ends
    /// before.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let got = self.read_at(buffer, offset)?;
        if got == buffer.len() {
            return Ok(());
        }
        let detail = format!("file ends {} bytes early", buffer.len() - got);
        Err(stele_types::Error::corrupt(self.path(), offset + got as u64, detail))
    }
}

/// Fails with `Invalid` if a handle of these options would create a file that it cannot write.
pub fn check_open(path: &Path, how: Open) -> Result<()> {
    if how.write || how.create == Create::Never {
        return Ok(());
    }
    let detail =
        format!("{} cannot be created by a read-only handle; open it for writing", path.display());
    Err(stele_types::Error::invalid(detail))
}

/// Fails with `Invalid` unless both names are in one directory.
pub fn check_rename(from: &Path, to: &Path) -> Result<()> {
    if from.parent() == to.parent() {
        return Ok(());
    }
    let detail = format!("rename of {} to {} leaves its directory", from.display(), to.display());
    Err(stele_types::Error::invalid(detail))
}
