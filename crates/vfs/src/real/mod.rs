//! The machine's file system (Linux).

mod batch;
mod clock;
mod file;
mod queue;
mod zeroes;

pub use batch::{BatchRead, KernelFile, ReadBatch};
pub use clock::SystemClock;

use crate::{
    Create, DirEntry, DirLock, FileSystem, FsKind, Meter, Open, PinState, Pinned, Vfs, VfsFile,
    check_open, check_rename,
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
use stele_types::{Error, Place, Result};
use zeroes::Zeroes;

/// Unit of `st_blocks`.
const STAT_BLOCK_BYTES: u64 = 512;

/// The machine's file system.
#[derive(Clone, Debug, Default)]
pub struct RealVfs {
    meter: Arc<Meter>,
    queues: Arc<Queues>,
    zeroes: Arc<Zeroes>,
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
        let zeroes = self.zeroes.clone();
        Ok(Arc::new(RealFile { file, path, block_bytes, meter, queues, queue, zeroes }))
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
