//! File systems of a scenario: a small one in a file, for a store with a disk that becomes full, hangs or
//! is lost, and one in memory.

use super::power::shut_down;
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

const HINT: &str = "(apt-get install e2fsprogs mount)";

/// A mounted ext4 file system; unmounted when dropped.
#[derive(Debug)]
pub(crate) struct SmallDisk {
    image: PathBuf,
    mount: PathBuf,
    bytes: u64,
}

impl SmallDisk {
    /// Creates and mounts a file system of so many bytes below `work`.
    pub(crate) fn create(work: &Path, name: &str, bytes: u64) -> Result<Self> {
        let (image, mount) = (work.join(format!("{name}.img")), work.join(name));
        std::fs::create_dir_all(&mount)?;
        let disk = Self { image, mount, bytes };
        disk.replace()?;
        Ok(disk)
    }

    pub(crate) fn replace(&self) -> Result<()> {
        // The kernel may still use the image of a file system that was lost.
        let _ = std::fs::remove_file(&self.image);
        File::create(&self.image)?.set_len(self.bytes)?;
        let image = self.image.display().to_string();
        run("mkfs.ext4", &["-q", "-F", "-m", "0", &image]).context(HINT)?;
        run("mount", &["-o", "loop", &image, &self.place()]).context(HINT)
    }

    /// Loses the device: all I/O of open files fails, and the mount point is empty.
    pub(crate) fn lose(&self) -> Result<()> {
        shut_down(&File::open(&self.mount)?)
            .with_context(|| format!("shutting down {}", self.mount.display()))?;
        run("umount", &["-l", &self.place()])
    }

    /// Makes all writes and syncs wait until [`SmallDisk::thaw`].
    pub(crate) fn freeze(&self) -> Result<()> {
        run("fsfreeze", &["-f", &self.place()]).context("(apt-get install util-linux)")
    }

    /// Ends what [`SmallDisk::freeze`] began.
    pub(crate) fn thaw(&self) -> Result<()> {
        run("fsfreeze", &["-u", &self.place()])
    }

    fn place(&self) -> String {
        self.mount.display().to_string()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.mount
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A lazy unmount: a node that is being killed may still hold files.
        // Writes to a frozen file system would wait permanently; most disks are not frozen.
        let _ = self.thaw();
        let _ = run("umount", &["-l", &self.place()]);
    }
}

/// A mounted file system in memory: what a scenario injects is all that its syncs wait for. Unmounted
/// when dropped.
#[derive(Debug)]
pub(crate) struct MemoryDisk(PathBuf);

impl MemoryDisk {
    /// Mounts a file system of at most so many bytes at `place`, which it creates.
    pub(crate) fn mount(place: &Path, bytes_max: u64) -> Result<Self> {
        std::fs::create_dir_all(place)?;
        let options = format!("size={bytes_max}");
        run("mount", &["-t", "tmpfs", "-o", &options, "none", &place.display().to_string()])
            .context("(apt-get install mount)")?;
        Ok(Self(place.to_owned()))
    }
}

impl Drop for MemoryDisk {
    fn drop(&mut self) {
        // A lazy unmount: a node that is being killed may still hold files.
        let _ = run("umount", &["-l", &self.0.display().to_string()]);
    }
}

/// Runs a program; fails with its standard error.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("starting {program}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", arguments.join(" "), errors.trim());
    Ok(())
}
