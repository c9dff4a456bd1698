//! A disk with power that can be cut. Two file systems, one in a file of the other:
//!
//! ```text
//! upper   the node's file system: ext4 or xfs on a loop device
//! image   that device's bytes: a file of the lower one. A write of the device goes to the file's page
//!         cache, a flush of the device is an fsync of the file
//! lower   ext4 on a loop device; bytes that reach it are kept
//! ```
//!
//! A power cut shuts the lower one down (`EXT4_IOC_SHUTDOWN` without a flush of its journal), then
//! the upper one. Lost are the contents of the upper page cache and journal, and all writes to the
//! device that were not flushed, direct I/O included. Of the unflushed writes, those that the
//! kernel has not written back by itself, usually after some seconds, are lost entirely; none is
//! torn. Flushed writes are kept.

use super::disk::run;
use anyhow::{Context, Result, ensure};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// `EXT4_IOC_SHUTDOWN` of `fs/ext4/ext4.h`, which is `XFS_IOC_GOINGDOWN` too: `_IOR('X', 125, __u32)`.
const SHUTDOWN: Opcode = opcode::read::<u32>(b'X', 125);
/// `EXT4_GOING_FLAGS_NOLOGFLUSH` and `XFS_FSOP_GOING_FLAGS_NOLOGFLUSH`: the journal is not written
/// either.
const NO_LOG_FLUSH: u32 = 2;
/// Space that the lower file system needs for itself.
const LOWER_OVERHEAD_BYTES: u64 = 256 << 20;
/// Time limit until a loop device releases its file after its last user.
const BUSY_LIMIT: Duration = Duration::from_secs(10);
const BLOCK_BYTES: usize = 4096;
const HINT: &str = "(needs root: apt-get install e2fsprogs mount)";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileSystem {
    Ext4,
    Xfs,
}

impl FileSystem {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    pub(crate) fn available() -> Result<Vec<Self>> {
        let known = std::fs::read_to_string("/proc/filesystems")?;
        let xfs =
            known.lines().any(|line| line.trim() == "xfs") && run("mkfs.xfs", &["-V"]).is_ok();
        Ok(if xfs { vec![Self::Ext4, Self::Xfs] } else { vec![Self::Ext4] })
    }

    fn make(self, image: &Path) -> Result<()> {
        let image = image.display().to_string();
        match self {
            Self::Ext4 => run("mkfs.ext4", &["-q", "-F", "-m", "0", &image]),
            Self::Xfs => run("mkfs.xfs", &["-q", "-f", &image]),
        }
    }
}

/// Both file systems, mounted; unmounted when dropped.
#[derive(Debug)]
pub(crate) struct PowerDisk {
    lower_image: PathBuf,
    lower: PathBuf,
    upper_image: PathBuf,
    upper: PathBuf,
}

impl PowerDisk {
    /// Creates a disk of so many bytes below `work`. Its images are sparse.
    pub(crate) fn create(work: &Path, name: &str, kind: FileSystem, bytes: u64) -> Result<Self> {
        let place = work.join(name);
        let disk = Self {
            lower_image: place.join("lower.img"),
            lower: place.join("lower"),
            upper_image: place.join("lower/upper.img"),
            upper: place.join("upper"),
        };
        std::fs::create_dir_all(&disk.lower)?;
        std::fs::create_dir_all(&disk.upper)?;
        File::create(&disk.lower_image)?.set_len(bytes + LOWER_OVERHEAD_BYTES)?;
        FileSystem::Ext4.make(&disk.lower_image).context(HINT)?;
        mount(&disk.lower_image, &disk.lower).context(HINT)?;
        let image = File::create(&disk.upper_image)?;
        image.set_len(bytes)?;
        kind.make(&disk.upper_image).context(HINT)?;
        image.sync_all()?;
        mount(&disk.upper_image, &disk.upper).context(HINT)?;
        Ok(disk)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.upper
    }

    /// Cuts the power. All I/O fails until [`PowerDisk::restore`].
    pub(crate) fn cut(&self) -> Result<()> {
        // Both are opened first: a file system that is shut down opens no files.
        let (lower, upper) = (File::open(&self.lower)?, File::open(&self.upper)?);
        shut_down(&lower).with_context(|| format!("cutting {}", self.lower.display()))?;
        shut_down(&upper).with_context(|| format!("cutting {}", self.upper.display()))
    }

    /// Remounts the disk with what it kept; both journals are replayed. No process may use the
    /// disk.
    pub(crate) fn restore(&self) -> Result<()> {
        unmount(&self.upper)?;
        unmount(&self.lower)?;
        mount(&self.lower_image, &self.lower)?;
        mount(&self.upper_image, &self.upper)
    }

    /// Returns whether a power cut loses unflushed writes. Writes a block with direct I/O and
    /// flushes it, then overwrites it without a flush: after the cut, the first version must be
    /// left.
    pub(crate) fn loses_unflushed_writes(&self) -> Result<bool> {
        let path = self.upper.join("canary");
        let open = || {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false);
            options.custom_flags(OFlags::DIRECT.bits() as i32).open(&path)
        };
        let file = open()?;
        file.write_all_at(&Block::filled(1).0, 0)?;
        file.sync_all()?;
        File::open(&self.upper)?.sync_all()?;
        file.write_all_at(&Block::filled(2).0, 0)?;
        drop(file);
        self.cut()?;
        self.restore()?;
        let mut found = Block::filled(0);
        open()?.read_exact_at(&mut found.0, 0)?;
        std::fs::remove_file(&path)?;
        Ok(found.0 == Block::filled(1).0)
    }
}

impl Drop for PowerDisk {
    fn drop(&mut self) {
        // A lazy unmount: a node that is being killed may still hold files. A file system that was
        // never mounted cannot be unmounted.
        for place in [&self.upper, &self.lower] {
            let _ = run("umount", &["-l", &place.display().to_string()]);
        }
    }
}

/// A block aligned for direct I/O.
#[repr(align(4096))]
struct Block([u8; BLOCK_BYTES]);

impl Block {
    fn filled(byte: u8) -> Self {
        Self([byte; BLOCK_BYTES])
    }
}

/// Makes all I/O of a file system fail.
pub(super) fn shut_down(root: &File) -> rustix::io::Result<()> {
    // SAFETY: the request reads one `u32`, to which `Setter` points. Both file systems know the
    // request by this number, and others refuse it.
    unsafe { ioctl(root, Setter::<SHUTDOWN, u32>::new(NO_LOG_FLUSH)) }
}

fn mount(image: &Path, place: &Path) -> Result<()> {
    run("mount", &["-o", "loop", &image.display().to_string(), &place.display().to_string()])
}

fn unmount(place: &Path) -> Result<()> {
    let started = Instant::now();
    loop {
        match rustix::mount::unmount(place, rustix::mount::UnmountFlags::empty()) {
            Ok(()) => return Ok(()),
            Err(Errno::BUSY) => {
                // Network namespaces of another scenario hold copies of mounts made before it
                // started.
                let is_late = started.elapsed() > BUSY_LIMIT;
                ensure!(
                    !is_late,
                    "{} stays busy: run no other scenario at the same time",
                    place.display()
                );
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => {
                return Err(error).with_context(|| format!("unmounting {}", place.display()));
            }
        }
    }
}
