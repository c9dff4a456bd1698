//! A disk whose power can be cut. Two file systems, one in a file of the other:
//!
//! ```text
//! upper   what the node sees: ext4 or xfs on a loop device
//! image   that device's bytes: a file of the lower one. A write of the device goes to the file's page
//!         cache, a flush of the device is an fsync of the file
//! lower   ext4 on a loop device; what reaches it stays
//! ```
//!
//! The cut shuts the lower one down as it is (`EXT4_IOC_SHUTDOWN` without a flush of its journal), then
//! the upper one. Lost is what waited in the upper page cache and journal, and what the device was
//! given but not told to flush, direct I/O included. What was written without a flush and is lost is
//! lost as a whole, and none of it is torn: the kernel writes it back as it likes, as a rule after some
//! seconds. Kept is what was flushed.

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
/// `EXT4_GOING_FLAGS_NOLOGFLUSH` and `XFS_FSOP_GOING_FLAGS_NOLOGFLUSH`: not even the journal is written.
const NO_LOG_FLUSH: u32 = 2;
/// What the lower file system takes for itself.
const LOWER_OVERHEAD_BYTES: u64 = 256 << 20;
/// A loop device lets go of its file a moment after its last user.
const BUSY_LIMIT: Duration = Duration::from_secs(10);
const BLOCK_BYTES: usize = 4096;
const HINT: &str = "(needs root: apt-get install e2fsprogs mount)";

/// What a node sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    Ext4,
    Xfs,
}

impl FileSystem {
    /// The kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    /// Those that this machine can make and mount.
    pub fn available() -> Result<Vec<Self>> {
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
pub struct PowerDisk {
    lower_image: PathBuf,
    lower: PathBuf,
    upper_image: PathBuf,
    upper: PathBuf,
}

impl PowerDisk {
    /// Makes one of so many bytes below `work`; its images take only what is written.
    pub fn create(work: &Path, name: &str, kind: FileSystem, bytes: u64) -> Result<Self> {
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

    /// Where the node may have its store.
    pub fn path(&self) -> &Path {
        &self.upper
    }

    /// Cuts the power. Nothing works until [`PowerDisk::restore`].
    pub fn cut(&self) -> Result<()> {
        // Opened before: afterwards a file system that noticed opens nothing any more.
        let (lower, upper) = (File::open(&self.lower)?, File::open(&self.upper)?);
        shut_down(&lower).with_context(|| format!("cutting {}", self.lower.display()))?;
        shut_down(&upper).with_context(|| format!("cutting {}", self.upper.display()))
    }

    /// Brings the disk back with what it kept; both journals are replayed. Nobody may use it.
    pub fn restore(&self) -> Result<()> {
        unmount(&self.upper)?;
        unmount(&self.lower)?;
        mount(&self.lower_image, &self.lower)?;
        mount(&self.upper_image, &self.upper)
    }

    /// Whether a cut loses what it should: of a block that was written and flushed, then written
    /// again without a flush, both past the page cache, the first version must be left.
    pub fn forgets(&self) -> Result<bool> {
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
        // Lazily: a node that is being killed may still hold files. What was never mounted can't be
        // unmounted.
        for place in [&self.upper, &self.lower] {
            let _ = run("umount", &["-l", &place.display().to_string()]);
        }
    }
}

/// Aligned as direct I/O needs it.
#[repr(align(4096))]
struct Block([u8; BLOCK_BYTES]);

impl Block {
    fn filled(byte: u8) -> Self {
        Self([byte; BLOCK_BYTES])
    }
}

fn shut_down(root: &File) -> rustix::io::Result<()> {
    // SAFETY: the request reads one `u32`, which `Setter` points at; both file systems know it by this
    // number, and others refuse it.
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
                // A scenario with network namespaces has copies of mounts made before it began.
                let is_late = started.elapsed() > BUSY_LIMIT;
                ensure!(!is_late, "{} stays busy: run no other scenario", place.display());
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => {
                return Err(error).with_context(|| format!("unmounting {}", place.display()));
            }
        }
    }
}
