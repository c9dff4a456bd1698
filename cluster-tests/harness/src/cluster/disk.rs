//! A small file system in a file, for a node with a disk that becomes full.

use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted ext4 file system; unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk {
    mount: PathBuf,
}

impl SmallDisk {
    /// Creates and mounts a file system of so many bytes below `work`.
    pub fn create(work: &Path, name: &str, bytes: u64) -> Result<Self> {
        let (image, mount) = (work.join(format!("{name}.img")), work.join(name));
        File::create(&image)?.set_len(bytes)?;
        std::fs::create_dir_all(&mount)?;
        let (image, place) = (image.display().to_string(), mount.display().to_string());
        let hint = "(apt-get install e2fsprogs mount)";
        run("mkfs.ext4", &["-q", "-F", "-m", "0", &image]).context(hint)?;
        run("mount", &["-o", "loop", &image, &place]).context(hint)?;
        Ok(Self { mount })
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        &self.mount
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A lazy unmount: a node that is being killed may still hold files.
        let _ = run("umount", &["-l", &self.mount.display().to_string()]);
    }
}

/// Runs a program; fails with its standard error.
pub fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("starting {program}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", arguments.join(" "), errors.trim());
    Ok(())
}
