//! Loop devices with a file system and a limit. The device reads and writes its file past the page
//! cache where the file system of the file allows it.

use super::memory::is_leftover;
use super::throttle::{Limit, Throttle, run};
use super::undo::{Undo, quoted};
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// End of the names of the files behind loop devices.
pub(super) const IMAGE: &str = ".img";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backing {
    /// File on a disk. All its blocks are allocated first: allocation by the file system below must not
    /// be measured.
    Disk,
    /// File in memory. Its blocks are allocated when they are written, and freed when the file system on
    /// the device frees them.
    Memory,
}

/// Creates a file of `bytes`, a loop device on it and a file system on that, mounts it and sets its
/// limit. Returns its throttle.
pub(super) fn mount(
    image: &Path,
    folder: &Path,
    bytes: u64,
    backing: Backing,
    limit: Limit,
    undo: &mut Undo,
) -> Result<Throttle> {
    undo.add(&format!("rm -f {}", quoted(image)))?;
    let (size, image) = (bytes.to_string(), image.display().to_string());
    let mut made =
        vec!["-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"];
    match backing {
        Backing::Disk => run("fallocate", &["--length", &size, &image])?,
        // A small journal and few inodes: both take memory.
        Backing::Memory => {
            made.extend(["-N", "8192", "-J", "size=32"]);
            run("truncate", &["--size", &size, &image])?
        }
    };
    let device = run("losetup", &["--find", "--show", "--direct-io=on", &image]);
    let device = match backing {
        Backing::Disk => device?,
        Backing::Memory => device.or_else(|_| run("losetup", &["--find", "--show", &image]))?,
    };
    let device = device.trim();
    undo.add(&format!("losetup -d {device}"))?;
    made.push(device);
    let throttle = Throttle::of(device)?;
    // The kernel may still hold the limits of an earlier device with this number.
    throttle.set(Limit::default(), undo)?;
    run("mkfs.ext4", &made)?;
    let place = folder.display().to_string();
    run("mount", &["-o", "noatime", device, &place])?;
    undo.add(&unmounting(folder))?;
    throttle.change(limit)?;
    Ok(throttle)
}

/// Returns the command that unmounts a folder, even while it is in use.
pub(super) fn unmounting(folder: &Path) -> String {
    let place = quoted(folder);
    format!("umount {place} || {{ sleep 1; umount -l {place}; }}")
}

/// Unmounts and removes the devices of runs that were killed together with their shell.
pub(super) fn remove_leftovers(work: &Path) {
    let devices = run("losetup", &["--list", "--noheadings", "--output", "NAME,BACK-FILE"]);
    for line in devices.unwrap_or_default().lines() {
        let Some((device, file)) = line.split_once(' ') else { continue };
        let file = Path::new(file.trim().trim_end_matches(" (deleted)"));
        // The file itself, or the folder of files in memory, has the name of the run.
        let is_left = |path: &Path, suffix: &str| {
            path.file_name().is_some_and(|name| is_leftover(&name.to_string_lossy(), suffix))
        };
        let is_in_left = file.ancestors().skip(1).any(|folder| is_left(folder, ""));
        if !is_left(file, IMAGE) && !is_in_left {
            continue;
        }
        // An earlier run may have done each of these already.
        let _ = run("umount", &["--all-targets", device]);
        let _ = run("losetup", &["--detach", device]);
        let _ = fs::remove_file(file);
        println!("removed {device}, left by an earlier run");
    }
    let Ok(entries) = fs::read_dir(work) else { return };
    for entry in entries.flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let name = name.to_string_lossy();
        if is_leftover(&name, IMAGE) {
            let _ = fs::remove_file(path);
        } else if is_leftover(&name, "") {
            unmount_below(&path);
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Unmounts all below `folder`, the last mount first.
fn unmount_below(folder: &Path) {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let places: Vec<&str> = mounts.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    for place in places.iter().rev().filter(|place| Path::new(place).starts_with(folder)) {
        // What cannot be unmounted stays; the next run tries again.
        let _ = run("umount", &["-l", place]);
    }
}

/// Deletes everything in a mounted folder and gives the freed blocks back to the file behind it.
pub(super) fn clear(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        match path.is_dir() {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        }
        .with_context(|| format!("removing {}", path.display()))?;
    }
    let place = folder.display().to_string();
    run("sync", &["--file-system", &place])?;
    run("fstrim", &[&place])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::memory::PREFIX;
    use super::*;

    /// Returns early where the machine lacks loop devices or the permission to use them.
    #[test]
    fn mounts_and_devices_of_a_killed_run_are_removed() {
        let work = tempfile::tempdir().unwrap();
        let bed = work.path().join(format!("{PREFIX}{}", u32::MAX)).join("test-bed");
        let (image, place) = (bed.join("N1.img"), bed.join("N1"));
        let text = |path: &Path| path.display().to_string();
        let make = || -> Result<()> {
            fs::create_dir_all(&bed)?;
            run("mount", &["-t", "tmpfs", "-o", "size=64M", "none", &text(&bed)])?;
            fs::create_dir(&place)?;
            run("truncate", &["--size", "32M", &text(&image)])?;
            let device = run("losetup", &["--find", "--show", &text(&image)])?;
            run("mkfs.ext4", &["-q", "-F", device.trim()])?;
            run("mount", &[device.trim(), &text(&place)])?;
            Ok(())
        };
        let made = make();
        remove_leftovers(work.path());
        assert_eq!(fs::read_dir(work.path()).unwrap().count(), 0);
        match made {
            Ok(()) => {
                let devices = run("losetup", &["--list", "--output", "BACK-FILE"]).unwrap();
                assert!(!devices.contains(&text(work.path())), "{devices}");
            }
            Err(error) => println!("not possible here: {error:#}"),
        }
    }
}
