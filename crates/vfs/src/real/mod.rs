//! The machine's file system (Linux).
//!
//! The machine's clock. It is read only here.

mod file;
mod queue;

use crate::{
    Create, DirEntry, DirLock, FileSystem, FsKind, Meter, Open, PinState, Pinned, Sleep, Vfs,
    VfsFile, check_open, check_rename,
};
use file::RealFile;
use parking_lot::Mutex;
use queue::Queues;
use rustix::fs::{Advice, AtFlags, CWD, FlockOperation, OFlags, StatVfsMountFlags, StatxFlags};
use rustix::io::{Errno, retry_on_intr};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stele_types::{Clock, Error, Place, Result};

/// Unit of `st_blocks`.
const STAT_BLOCK_BYTES: u64 = 512;

/// The machine's file system.
#[derive(Clone, Debug, Default)]
pub struct RealVfs {
    meter: Arc<Meter>,
    queues: Arc<Queues>,
}

#[derive(Debug)]
struct RealLock {
    /// The lock is released when this descriptor is closed.
    _file: File,
}

impl DirLock for RealLock {}

#[derive(Debug)]
struct RealPin {
    file: File,
    path: PathBuf,
}

impl Pinned for RealPin {
    fn path(&self) -> &Path {
        &self.path
    }

    fn state(&self) -> Result<PinState> {
        let failed = |e| Error::io("stat", &self.path, e);
        let own = self.file.metadata().map_err(failed)?;
        match fs::metadata(or_current_dir(&self.path)) {
            Ok(there) if (there.dev(), there.ino()) == (own.dev(), own.ino()) => {
                Ok(PinState::InPlace)
            }
            Ok(_) => Ok(PinState::Replaced),
            Err(e)
                if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
            {
                Ok(PinState::Missing)
            }
            Err(e) => Err(failed(e)),
        }
    }
}

impl RealVfs {
    /// Creates a file system with a meter at zero.
    pub fn new() -> Self {
        Self::default()
    }
}

fn open_with(path: &Path, how: Open, flags: OFlags) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(how.write)
        .create(how.create == Create::IfMissing)
        .create_new(how.create == Create::New)
        .custom_flags(flags.bits() as i32)
        .open(path)
}

fn lock_file(file: File, path: &Path, kind: FlockOperation) -> Result<Box<dyn DirLock>> {
    match retry_on_intr(|| rustix::fs::flock(&file, kind)) {
        Ok(()) => Ok(Box::new(RealLock { _file: file })),
        Err(Errno::WOULDBLOCK) => Err(Error::Locked(path.to_path_buf())),
        Err(e) => Err(Error::io("lock", path, e.into())),
    }
}

/// Returns the number that tells a snapshot of btrfs from its original: it keeps inodes and times. 0 on
/// another file system, of which the number may change when it is mounted again.
fn snapshot_number(dir: &Path) -> Result<u64> {
    let error = |e: Errno| Error::io("stat", dir, e.into());
    let stat = rustix::fs::statfs(or_current_dir(dir)).map_err(error)?;
    match file::kind_of(&stat, dir) == FsKind::Btrfs {
        true => Ok(rustix::fs::statvfs(or_current_dir(dir)).map_err(error)?.f_fsid),
        false => Ok(0),
    }
}

/// Opens a file for direct I/O with its alignment, or through the page cache, with `None`, where the
/// file system does not write directly.
fn open_direct(path: &Path, how: Open) -> (io::Result<File>, Option<usize>) {
    let file = open_with(path, how, OFlags::DIRECT);
    // A file system without direct I/O returns EINVAL, possibly after creating the name.
    let refused = file.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::InvalidInput);
    let block_bytes = file.as_ref().ok().and_then(|file| file::block_bytes(file, path));
    if refused || (file.is_ok() && block_bytes.is_none()) {
        let create = if path.exists() { Create::Never } else { how.create };
        return (open_with(path, Open { create, ..how }, OFlags::empty()), None);
    }
    (file, block_bytes)
}

fn or_current_dir(dir: &Path) -> &Path {
    if dir.as_os_str().is_empty() { Path::new(".") } else { dir }
}

impl Vfs for RealVfs {
    fn open(&self, path: &Path, how: Open) -> Result<Arc<dyn VfsFile>> {
        check_open(path, how)?;
        let (file, block_bytes) = match how.direct {
            true => open_direct(path, how),
            false => (open_with(path, how, OFlags::empty()), None),
        };
        let file = file.map_err(|e| Error::io("open", path, e))?;
        if !how.write && block_bytes.is_none() {
            // Readers here read exactly what they need; readahead would only fill the cache.
            let _hint_refused = rustix::fs::fadvise(&file, 0, None, Advice::Random);
        }
        let meter = Arc::clone(&self.meter);
        let (path, queues, queue) = (path.to_path_buf(), self.queues.clone(), Mutex::new(None));
        Ok(Arc::new(RealFile { file, path, block_bytes, meter, queues, queue }))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        check_rename(from, to)?;
        fs::rename(from, to).map_err(|e| Error::io("rename", from, e))
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        fs::remove_file(path).map_err(|e| Error::io("unlink", path, e))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        // A synced file without a durable name is lost with its bytes.
        // bug vfs.skip_dir_sync: return Ok(());
        let file = File::open(or_current_dir(dir)).map_err(|e| Error::io("open", dir, e))?;
        retry_on_intr(|| rustix::fs::fsync(&file))
            .map_err(|e| Error::io("sync directory", dir, e.into()))?;
        self.meter.count_dir_sync();
        Ok(())
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        let missing: Vec<&Path> =
            dir.ancestors().take_while(|d| !or_current_dir(d).is_dir()).collect();
        for dir in missing.into_iter().rev() {
            match fs::create_dir(dir) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => {}
                done => done.map_err(|e| Error::io("create directory", dir, e))?,
            }
            self.sync_dir(dir)?;
            // The name of a directory is stored in its parent.
            // bug vfs.skip_parent_sync: skip
            self.sync_dir(dir.parent().unwrap_or(dir))?;
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        let error = |e| Error::io("list", dir, e);
        let mut entries = Vec::new();
        for entry in fs::read_dir(or_current_dir(dir)).map_err(error)? {
            let entry = entry.map_err(error)?;
            let stat = match entry.metadata() {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                stat => stat.map_err(error)?,
            };
            entries.push(DirEntry {
                name: entry.file_name().to_string_lossy().into_owned(),
                bytes: stat.len(),
                allocated_bytes: stat.blocks() * STAT_BLOCK_BYTES,
                is_dir: stat.is_dir(),
            });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        path.try_exists().map_err(|e| Error::io("stat", path, e))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn DirLock>> {
        let how = Open { write: true, create: Create::IfMissing, direct: false };
        let file = open_with(path, how, OFlags::empty()).map_err(|e| Error::io("open", path, e))?;
        // Exclusive: two writers in one directory would overwrite each other's records.
        let kind = FlockOperation::NonBlockingLockExclusive;
        // bug vfs.shared_lock: let kind = FlockOperation::NonBlockingLockShared;
        lock_file(file, path, kind)
    }

    fn lock_for_reading(&self, path: &Path) -> Result<Option<Box<dyn DirLock>>> {
        // bug vfs.lock_opened_for_writing: `Open::READ` is `Open::WRITE`
        let file =
            open_with(path, Open::READ, OFlags::empty()).map_err(|e| Error::io("open", path, e))?;
        let stat = rustix::fs::fstatvfs(&file).map_err(|e| Error::io("stat", path, e.into()))?;
        // Shared: an exclusive lock needs a file that is open for writing on some file systems (NFS).
        match lock_file(file, path, FlockOperation::NonBlockingLockShared) {
            // No process of this machine can write there.
            Err(Error::Io { .. }) if stat.f_flag.contains(StatVfsMountFlags::RDONLY) => Ok(None),
            locked => locked.map(Some),
        }
    }

    fn pin(&self, path: &Path) -> Result<Box<dyn Pinned>> {
        let failed = |e| Error::io("open", path, e);
        let file = File::open(or_current_dir(path)).map_err(failed)?;
        Ok(Box::new(RealPin { file, path: path.to_path_buf() }))
    }

    fn file_system(&self, file: &Path) -> Result<FileSystem> {
        let failed = |e| Error::io("stat", file, e);
        // Opened as `open` opens it, so that the mode is the one in use.
        let (open, direct_bytes) = open_direct(file, Open { direct: true, ..Open::READ });
        let stat = rustix::fs::fstatfs(open.map_err(failed)?).map_err(|e| failed(e.into()))?;
        Ok(FileSystem {
            kind: file::kind_of(&stat, file.parent().unwrap_or(Path::new(""))),
            block_bytes: u64::try_from(stat.f_bsize).unwrap_or_default(),
            direct_bytes: direct_bytes.map(|bytes| bytes as u64),
        })
    }

    fn free_bytes(&self, dir: &Path) -> Result<u64> {
        let stat = rustix::fs::statvfs(or_current_dir(dir))
            .map_err(|e| Error::io("stat", dir, e.into()))?;
        Ok(stat.f_bavail * stat.f_frsize)
    }

    fn total_bytes(&self, dir: &Path) -> Result<u64> {
        let stat = rustix::fs::statvfs(or_current_dir(dir))
            .map_err(|e| Error::io("stat", dir, e.into()))?;
        Ok(stat.f_blocks * stat.f_frsize)
    }

    fn can_reserve(&self, dir: &Path) -> Result<bool> {
        let stat = rustix::fs::statfs(or_current_dir(dir))
            .map_err(|e| Error::io("stat", dir, e.into()))?;
        Ok(file::kind_of(&stat, dir).can_reserve())
    }

    fn keeps_changes(&self) -> bool {
        true
    }

    fn device_number(&self, dir: &Path) -> Result<u64> {
        let stat = fs::metadata(or_current_dir(dir)).map_err(|e| Error::io("stat", dir, e))?;
        Ok(stat.dev())
    }

    fn place(&self, dir: &Path) -> Result<Option<Place>> {
        let wanted = StatxFlags::INO | StatxFlags::BTIME;
        let stat = match rustix::fs::statx(CWD, or_current_dir(dir), AtFlags::empty(), wanted) {
            Err(Errno::NOSYS) => return Ok(None),
            stat => stat.map_err(|e| Error::io("stat", dir, e.into()))?,
        };
        // Network file systems have no time of creation, and some of them other inodes at each mount.
        let is_known = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
        let seconds = u64::try_from(stat.stx_btime.tv_sec).ok().filter(|_| is_known);
        let Some(seconds) = seconds else { return Ok(None) };
        let nanos = u64::from(stat.stx_btime.tv_nsec);
        let born_nanos = seconds.saturating_mul(1_000_000_000).saturating_add(nanos);
        Ok(Some(Place { inode: stat.stx_ino, born_nanos, file_system: snapshot_number(dir)? }))
    }

    fn random(&self) -> Result<u64> {
        let path = Path::new("/dev/urandom");
        let mut bytes = [0; 8];
        let read = File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
        read.map_err(|error| Error::io("read", path, error))?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}

/// The machine's clock.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    /// Time since the boot at which monotonic time starts.
    started_nanos: u64,
}

impl SystemClock {
    /// Creates a clock with monotonic time starting now.
    pub fn new() -> Self {
        Self { started_nanos: nanos_since_boot() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn unix_seconds(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }

    fn monotonic_nanos(&self) -> u64 {
        nanos_since_boot().saturating_sub(self.started_nanos)
    }
}

impl Sleep for SystemClock {
    fn sleep_until(&self, monotonic_nanos: u64) {
        loop {
            let left = monotonic_nanos.saturating_sub(self.monotonic_nanos());
            if left == 0 {
                return;
            }
            std::thread::sleep(Duration::from_nanos(left));
        }
    }
}

/// Returns the time since the boot. Invariant: it includes the time in which the machine was
/// suspended, which `CLOCK_MONOTONIC` and so `std::time::Instant` leave out: a lease would be valid
/// after the machine resumes, although other nodes have elected a leader.
///
/// The C library reads it, as it does for the standard library, so that libfaketime can replace both
/// clocks.
fn nanos_since_boot() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a `timespec` that lives through the call, which writes only to it.
    // The call fails only for a clock that the kernel does not have; Linux has this one since 2.6.39.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel counts `/proc/uptime` with time in suspend, in hundredths of a second.
    fn uptime_nanos() -> u64 {
        let text = std::fs::read_to_string("/proc/uptime").expect("Linux has it");
        let seconds = text.split(' ').next().and_then(|word| word.parse::<f64>().ok());
        (seconds.expect("the first word is a number") * 1e9) as u64
    }

    #[test]
    fn the_clock_counts_from_the_boot_with_time_in_suspend() {
        const STEP_NANOS: u64 = 20_000_000;
        let clock = SystemClock { started_nanos: 0 };
        let before = uptime_nanos();
        let now = clock.monotonic_nanos();
        let after = uptime_nanos();
        assert!(before.saturating_sub(STEP_NANOS) <= now, "{now} after {before}");
        assert!(now <= after + STEP_NANOS, "{now} before {after}");
    }

    #[test]
    fn a_sleep_ends_at_its_time() {
        let clock = SystemClock::new();
        let until = clock.monotonic_nanos() + 3_000_000;
        clock.sleep_until(until);
        assert!(clock.monotonic_nanos() >= until);
        clock.sleep_until(0);
    }

    #[test]
    fn a_new_clock_starts_at_zero() {
        assert!(SystemClock::new().monotonic_nanos() < 60_000_000_000);
    }
}
