//! The disk of the measurements: as it is, or a loop device with limits.

use super::loop_device::{self, Backing, IMAGE};
use super::memory::PREFIX;
use super::throttle::{Limit, prove, run};
use super::undo::{Undo, quoted};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};

/// File systems without a disk.
const MEMORY: [&str; 2] = ["tmpfs", "ramfs"];
pub(super) const NEEDS: &str =
    "limited devices need root, loop devices and the blkio cgroup of version 1";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Profile {
    #[default]
    AsIs,
    Limited(Limit),
}

impl Profile {
    /// Parses `as-is`, or `limited=` with the limits.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        match text.strip_prefix("limited=") {
            Some(limit) => Ok(Self::Limited(Limit::parse(limit)?)),
            None => {
                ensure!(text == "as-is", "`{text}` must be as-is or limited=200MBps");
                Ok(Self::AsIs)
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Device {
    pub folder: PathBuf,
    pub description: String,
    /// Whether the files are in memory and not on a disk.
    pub is_memory: bool,
}

/// Creates the place below `work`, for at most `bytes`, and proves that its limit holds.
pub(super) fn prepare(
    profile: Profile,
    work: &Path,
    bytes: u64,
    undo: &mut Undo,
) -> Result<Device> {
    fs::create_dir_all(work).with_context(|| format!("creating {}", work.display()))?;
    loop_device::remove_leftovers(work);
    let folder = work.join(format!("{PREFIX}{}", std::process::id()));
    fs::create_dir(&folder).with_context(|| format!("creating {}", folder.display()))?;
    undo.add(&format!("rm -rf {}", quoted(&folder)))?;
    let path = work.display().to_string();
    let below = run("df", &["--output=source,fstype", &path])?;
    let below = below.lines().last().unwrap_or_default().split_whitespace().collect::<Vec<_>>();
    let is_memory = below.iter().any(|kind| MEMORY.contains(kind));
    let below = below.join(", ");
    match profile {
        Profile::AsIs => {
            let description = format!("the disk as it is ({below})");
            Ok(Device { folder, description, is_memory })
        }
        Profile::Limited(limit) => {
            ensure!(
                !is_memory,
                "{path} is in memory ({below}): name a folder on a disk with --work DIR"
            );
            let image = work.join(format!("{PREFIX}{}{IMAGE}", std::process::id()));
            loop_device::mount(&image, &folder, bytes, Backing::Disk, limit, undo)
                .context(NEEDS)?;
            let description = format!(
                "a loop device on the disk, limited to {} for reads and for writes; tried before: {}; \
                 below it {below}",
                limit.words(),
                prove(&folder, limit)?
            );
            Ok(Device { folder, description, is_memory })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn profiles_are_read() {
        let limit = Limit { bytes_per_s: 200_000_000, ops_per_s: 0 };
        assert_eq!(Profile::parse("as-is").unwrap(), Profile::AsIs);
        assert_eq!(Profile::parse("limited=200MBps").unwrap(), Profile::Limited(limit));
        for wrong in ["", "limited", "limited=", "limited=0MBps", "200MBps"] {
            assert!(Profile::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_disk_as_it_is_leaves_nothing() {
        let (work, mut undo) = (tempfile::tempdir().unwrap(), Undo::new().unwrap());
        let left = work.path().join(format!("{PREFIX}{}", u32::MAX));
        fs::create_dir(&left).unwrap();
        let device = prepare(Profile::AsIs, work.path(), 0, &mut undo).unwrap();
        assert!(device.folder.is_dir() && !left.exists());
        drop(undo);
        assert_eq!(fs::read_dir(work.path()).unwrap().count(), 0);
    }

    /// Returns early where the machine lacks loop devices, the cgroup or the permission to use
    /// them.
    #[test]
    fn a_limited_disk_is_slow_and_leaves_nothing() {
        let (work, mut undo) = (tempfile::tempdir().unwrap(), Undo::new().unwrap());
        let limit = Limit { bytes_per_s: 20_000_000, ops_per_s: 1000 };
        let made = prepare(Profile::Limited(limit), work.path(), 64 * MIB, &mut undo);
        match made {
            Ok(device) => assert!(device.description.contains("20 MB/s"), "{device:?}"),
            Err(error) => println!("not possible here: {error:#}"),
        }
        drop(undo);
        assert_eq!(fs::read_dir(work.path()).unwrap().count(), 0);
    }
}
