//! A file system in memory, for tests. Every operation that changes something is numbered, can be
//! recorded, can fail, and can be the point of a power cut. [`SimVfs::restart`] then returns a disk
//! that holds what POSIX guarantees and no more: unsynced bytes are lost, torn or kept sector by
//! sector; names without a later directory sync exist or not. Every choice follows from a seed.

mod disk;
mod fault;
mod file;
mod inode;
mod names;

pub use fault::{CrashAt, CrashPoint, Event, Fault, Operation};

use disk::Disk;
use file::SimFile;
use parking_lot::Mutex;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stele_types::{Error, Place, Result};
use stele_vfs::{
    DirEntry, DirLock, FileSystem, FsKind, Meter, Open, PinState, Pinned, Vfs, VfsFile, check_open,
    check_rename,
};

/// Free bytes of a disk without a capacity.
const UNLIMITED_BYTES: u64 = 1 << 40;

/// Properties of a simulated disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimOptions {
    /// Determines what is torn, lost and damaged.
    pub seed: u64,
    /// Alignment that direct handles enforce; `None` makes them handles through the page cache.
    pub block_bytes: Option<usize>,
    /// Maximum bytes of all files, in chunks of 4096; `None` disables the limit.
    pub capacity_bytes: Option<u64>,
    /// Whether allocated blocks of a file may be taken by others, as on tmpfs and btrfs.
    pub is_without_reservations: bool,
    /// Whether [`VfsFile::write_zeroes`] succeeds.
    pub writes_zeroes: bool,
}

type StallHook = Arc<dyn Fn(&Path) + Send + Sync>;

/// A simulated disk. Clones share it.
#[derive(Clone)]
pub struct SimVfs {
    shared: Arc<Shared>,
}

struct Shared {
    disk: Mutex<Disk>,
    meter: Meter,
    stall_hook: Mutex<Option<StallHook>>,
    is_cached: AtomicBool,
}

impl Shared {
    /// Runs the hook without holding the disk's lock, so that it may use the disk.
    fn stall(&self, path: &Path) {
        let hook = self.stall_hook.lock().clone();
        if let Some(hook) = hook {
            hook(path);
        }
    }
}

impl fmt::Debug for SimVfs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let disk = self.shared.disk.lock();
        write!(f, "SimVfs(operations {}, crashed {})", disk.next_operation, disk.crashed)
    }
}

impl Default for SimVfs {
    fn default() -> Self {
        Self::new(SimOptions::default())
    }
}

impl SimVfs {
    /// Creates an empty disk.
    pub fn new(options: SimOptions) -> Self {
        Self::with(Disk::new(options))
    }

    fn with(disk: Disk) -> Self {
        let disk = Mutex::new(disk);
        let shared = Shared {
            disk,
            meter: Meter::default(),
            stall_hook: Mutex::default(),
            is_cached: AtomicBool::new(true),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the number of numbered operations begun, which is the number of the next one.
    pub fn operations(&self) -> u64 {
        self.shared.disk.lock().next_operation
    }

    /// Returns the numbered operations since the start or the last [`SimVfs::clear_events`].
    pub fn events(&self) -> Vec<Event> {
        self.shared.disk.lock().events.clone()
    }

    /// Drops the recorded operations; numbering continues.
    pub fn clear_events(&self) {
        self.shared.disk.lock().events.clear();
    }

    /// Sets whether events of writes keep the written bytes.
    pub fn record_writes(&self, record: bool) {
        self.shared.disk.lock().record_writes = record;
    }

    /// Plans a power cut; a later plan replaces an earlier one.
    pub fn crash_at(&self, point: CrashPoint) {
        self.shared.disk.lock().crash_point = Some(point);
    }

    /// Cancels a planned power cut.
    pub fn no_crash(&self) {
        self.shared.disk.lock().crash_point = None;
    }

    /// Cuts the power now: every later operation fails, reads included.
    pub fn crash_now(&self) {
        self.shared.disk.lock().crashed = true;
    }

    /// Whether the power is cut.
    pub fn crashed(&self) -> bool {
        self.shared.disk.lock().crashed
    }

    /// Returns the disk after a power cut at this moment: the synced state, and a part of the rest
    /// chosen by `seed`. Locks and faults are cleared; operation numbers and meter are zero. This
    /// disk is not changed, so other seeds can be tried.
    pub fn restart(&self, seed: u64) -> Self {
        Self::with(self.shared.disk.lock().restart(seed))
    }

    /// Returns the disk after the process was killed at this moment: everything written is kept,
    /// synced or not. Otherwise like [`SimVfs::restart`].
    pub fn fork(&self) -> Self {
        Self::with(self.shared.disk.lock().fork())
    }

    /// Returns a disk with copies of all files in other places: what `cp -a` makes of a directory of a
    /// process that was killed. A disk that moves to another node is [`SimVfs::fork`].
    pub fn copy(&self) -> Self {
        let mut disk = self.shared.disk.lock().fork();
        disk.copies = disk.copies.map(|copies| copies + 1);
        Self::with(disk)
    }

    /// Sets whether directories have a place, as on most file systems (the default).
    pub fn set_places(&self, has_places: bool) {
        self.shared.disk.lock().copies = has_places.then_some(1);
    }

    /// Injects a fault. A [`Fault::FlipBit`] and a [`Fault::Unreadable`] happen now; their file and
    /// first byte must exist.
    pub fn inject(&self, fault: Fault) -> Result<()> {
        let mut disk = self.shared.disk.lock();
        let (path, offset, bit) = match fault {
            Fault::FlipBit { path, offset, bit } => (path, offset, bit),
            Fault::Unreadable { path, offset, bytes } => {
                let inode = disk.file_mut(&path).ok_or_else(|| missing("read", &path))?;
                if offset >= inode.visible.len || bytes == 0 {
                    let file = path.display();
                    return Err(Error::invalid(format!("no byte {offset} of {file}")));
                }
                inode.refuse_reads(offset..offset.saturating_add(bytes));
                return Ok(());
            }
            fault => {
                disk.faults.add(fault);
                return Ok(());
            }
        };
        let inode = disk.file_mut(&path).ok_or_else(|| missing("flip", &path))?;
        let mut byte = [0];
        if inode.visible.read(&mut byte, offset) == 0 || bit > 7 {
            return Err(Error::invalid(format!("no bit {bit} at {offset} of {}", path.display())));
        }
        inode.damage(offset, &[byte[0] ^ (1 << bit)]);
        Ok(())
    }

    /// Removes all faults that have not happened yet.
    pub fn clear_faults(&self) {
        self.shared.disk.lock().faults.clear();
    }

    /// Sets the maximum bytes of all files.
    pub fn set_capacity(&self, capacity_bytes: Option<u64>) {
        self.shared.disk.lock().options.capacity_bytes = capacity_bytes;
    }

    /// Sets whether every read finds its bytes in the page cache (the default) or none does.
    pub fn set_cached(&self, is_cached: bool) {
        self.shared.is_cached.store(is_cached, Ordering::Relaxed);
    }

    /// Returns how many [`Fault::Stall`] and [`Fault::ReadStalls`] happened.
    pub fn stalls(&self) -> u64 {
        self.shared.disk.lock().stalls
    }

    /// Runs `hook` with the file's path in each [`Fault::Stall`] and [`Fault::ReadStalls`], for
    /// example to advance a clock. The hook holds no lock and may panic.
    pub fn on_stall(&self, hook: impl Fn(&Path) + Send + Sync + 'static) {
        *self.shared.stall_hook.lock() = Some(Arc::new(hook));
    }

    /// Overwrites stored bytes like damage: durable, not metered, without a numbered operation.
    pub fn corrupt(&self, path: impl AsRef<Path>, offset: u64, bytes: &[u8]) -> Result<()> {
        let path = path.as_ref();
        let mut disk = self.shared.disk.lock();
        let inode = disk.file_mut(path).ok_or_else(|| missing("corrupt", path))?;
        inode.damage(offset, bytes);
        Ok(())
    }

    /// Returns a file's content, for tests: works after a crash, triggers no faults.
    pub fn read_file(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        let disk = self.shared.disk.lock();
        let inode = disk.file(path).ok_or_else(|| missing("read", path))?;
        let mut bytes = vec![0; inode.visible.len as usize];
        inode.visible.read(&mut bytes, 0);
        Ok(bytes)
    }

    /// Creates or replaces a file with its directories: durable, without a numbered operation.
    pub fn write_file(&self, path: impl AsRef<Path>, bytes: &[u8]) {
        self.shared.disk.lock().place(path.as_ref(), bytes);
    }

    /// Moves a directory with all below it, as an operator does while files in it are open: durable,
    /// without a numbered operation.
    pub fn move_dir(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) {
        self.shared.disk.lock().move_dir(from.as_ref(), Some(to.as_ref()));
    }

    /// Deletes a directory with all below it. Otherwise like [`SimVfs::move_dir`].
    pub fn remove_dir(&self, dir: impl AsRef<Path>) {
        self.shared.disk.lock().move_dir(dir.as_ref(), None);
    }

    /// Returns a file's length; `None` when there is no such file.
    pub fn file_bytes(&self, path: impl AsRef<Path>) -> Option<u64> {
        Some(self.shared.disk.lock().file(path.as_ref())?.visible.len)
    }

    /// Returns the paths of all files.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.shared.disk.lock().paths()
    }
}

fn missing(op: &'static str, path: &Path) -> Error {
    Error::io(op, path, io::ErrorKind::NotFound.into())
}

struct SimLock {
    shared: Arc<Shared>,
    path: PathBuf,
}

impl fmt::Debug for SimLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimLock({})", self.path.display())
    }
}

impl DirLock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.shared.disk.lock().locks.remove(&self.path);
    }
}

struct SimPin {
    shared: Arc<Shared>,
    path: PathBuf,
    id: names::InodeId,
}

impl fmt::Debug for SimPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimPin({})", self.path.display())
    }
}

impl Pinned for SimPin {
    fn path(&self) -> &Path {
        &self.path
    }

    fn state(&self) -> Result<PinState> {
        self.shared.disk.lock().pin_state(&self.path, self.id)
    }
}

impl Vfs for SimVfs {
    fn open(&self, path: &Path, how: Open) -> Result<Arc<dyn VfsFile>> {
        check_open(path, how)?;
        let mut disk = self.shared.disk.lock();
        let id = disk.open(path, how)?;
        let block_bytes = disk.options.block_bytes.filter(|_| how.direct);
        let (shared, path) = (Arc::clone(&self.shared), path.to_path_buf());
        let started = Mutex::default();
        Ok(Arc::new(SimFile { shared, id, path, block_bytes, write: how.write, started }))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        check_rename(from, to)?;
        self.shared.disk.lock().rename(from, to)
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        self.shared.disk.lock().unlink(path)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.shared.disk.lock().sync_dir(dir)?;
        self.shared.meter.count_dir_sync();
        Ok(())
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.shared.disk.lock().create_dir_all(dir)
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        self.shared.disk.lock().list(dir)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.shared.disk.lock().exists(path)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn DirLock>> {
        let how = Open { create: stele_vfs::Create::IfMissing, ..Open::WRITE };
        let _created = self.open(path, how)?;
        if !self.shared.disk.lock().locks.insert(path.to_path_buf()) {
            return Err(Error::Locked(path.to_path_buf()));
        }
        Ok(Box::new(SimLock { shared: Arc::clone(&self.shared), path: path.to_path_buf() }))
    }

    fn pin(&self, path: &Path) -> Result<Box<dyn Pinned>> {
        let id = self.shared.disk.lock().pin(path)?;
        Ok(Box::new(SimPin { shared: Arc::clone(&self.shared), path: path.to_path_buf(), id }))
    }

    fn file_system(&self, file: &Path) -> Result<FileSystem> {
        let disk = self.shared.disk.lock();
        disk.check_power("stat", file)?;
        let direct_bytes = disk.options.block_bytes.map(|bytes| bytes as u64);
        Ok(FileSystem { kind: FsKind::Simulated, block_bytes: 4096, direct_bytes })
    }

    fn free_bytes(&self, dir: &Path) -> Result<u64> {
        let disk = self.shared.disk.lock();
        disk.check_power("stat", dir)?;
        Ok(disk.room_bytes(disk.next_operation).unwrap_or(UNLIMITED_BYTES))
    }

    fn total_bytes(&self, dir: &Path) -> Result<u64> {
        let disk = self.shared.disk.lock();
        disk.check_power("stat", dir)?;
        Ok(disk.options.capacity_bytes.unwrap_or(UNLIMITED_BYTES))
    }

    fn can_reserve(&self, dir: &Path) -> Result<bool> {
        let disk = self.shared.disk.lock();
        disk.check_power("stat", dir)?;
        Ok(!disk.options.is_without_reservations)
    }

    fn keeps_changes(&self) -> bool {
        true
    }

    fn device_number(&self, dir: &Path) -> Result<u64> {
        self.shared.disk.lock().check_power("stat", dir)?;
        // The same for all clones, and different for each disk in use.
        Ok(Arc::as_ptr(&self.shared) as u64)
    }

    fn place(&self, dir: &Path) -> Result<Option<Place>> {
        let disk = self.shared.disk.lock();
        disk.check_power("stat", dir)?;
        Ok(disk.copies.map(|copies| Place { inode: 1, born_nanos: copies, file_system: 0 }))
    }

    fn random(&self) -> Result<u64> {
        Ok(self.shared.disk.lock().random.draw())
    }

    fn meter(&self) -> &Meter {
        &self.shared.meter
    }
}
