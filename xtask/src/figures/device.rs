//! The disk of the measurements: as it is, or with limited bandwidth.
//!
//! The limited disk is a loop device with a file system. The kernel throttles it (`blkio.throttle`,
//! cgroups of version 1) in the root group and in the group of this process. A write belongs to the
//! group of the thread that submits it. A program's sync belongs to the group of the program. Later
//! write-back belongs to the kernel's threads, which are in the root group. Nothing else uses the
//! device, so the limit of both groups applies to all writes. The device reads and writes its file
//! past the page cache.

use super::memory::{self, PREFIX, is_leftover};
use super::undo::{Undo, quoted};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Factor by which a trial may exceed the limit: the kernel counts in slices of time, so that short
/// bursts are faster.
const TOLERANCE: f64 = 1.25;
/// Share of the limit below which something else than the limit is the bottleneck.
const FAR_BELOW: f64 = 0.7;
const TRIAL: Duration = Duration::from_millis(500);
const TRIAL_BYTES_MIN: u64 = 4 * MIB;
const IMAGE: &str = ".img";
/// File systems without a disk.
const MEMORY: [&str; 2] = ["tmpfs", "ramfs"];
const NEEDS: &str = "--device limited needs root, loop devices and the blkio cgroup of version 1";

/// Kind of disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    #[default]
    AsIs,
    /// Bytes per second, for reads and for writes.
    Limited(u64),
}

impl Profile {
    /// Parses `as-is` or `limited=200MBps`.
    pub fn parse(text: &str) -> Result<Self> {
        let refusal = || format!("`{text}` must be as-is or limited=200MBps");
        let Some(rate) = text.strip_prefix("limited=") else {
            ensure!(text == "as-is", refusal());
            return Ok(Self::AsIs);
        };
        let digits = rate.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = match rate.get(digits.len()..) {
            Some("kBps" | "KBps") => 1_000,
            Some("MBps") => 1_000_000,
            Some("GBps") => 1_000_000_000,
            _ => bail!(refusal()),
        };
        let number: u64 = digits.parse().with_context(refusal)?;
        ensure!(number > 0, refusal());
        Ok(Self::Limited(number * unit))
    }
}

/// A prepared place for the data.
#[derive(Debug)]
pub struct Device {
    pub folder: PathBuf,
    /// Text for the page.
    pub description: String,
    /// Whether the files are in memory and not on a disk.
    pub is_memory: bool,
}

/// Creates the place below `work`, for at most `bytes`, and proves that its limit holds.
pub fn prepare(profile: Profile, work: &Path, bytes: u64, undo: &mut Undo) -> Result<Device> {
    fs::create_dir_all(work).with_context(|| format!("creating {}", work.display()))?;
    remove_leftovers(work);
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
        Profile::Limited(rate) => {
            ensure!(
                !is_memory,
                "{path} is in memory ({below}): name a folder on a disk with --work DIR"
            );
            let image = work.join(format!("{PREFIX}{}{IMAGE}", std::process::id()));
            let limits = mount(&image, &folder, bytes, undo).context(NEEDS)?;
            limits.set(rate, undo).context(NEEDS)?;
            let description = prove(&folder, rate)?;
            let description = format!("{description}; below it {below}");
            Ok(Device { folder, description, is_memory })
        }
    }
}

/// Creates a file of `bytes`, a loop device on it and a file system on that, and mounts it.
fn mount(image: &Path, folder: &Path, bytes: u64, undo: &mut Undo) -> Result<Limits> {
    let (mount, own) =
        memory::folders("blkio").context("this machine has no blkio cgroup of version 1")?;
    undo.add(&format!("rm -f {}", quoted(image)))?;
    // Allocates all blocks first: allocation by the file system below must not be measured.
    let (size, image) = (bytes.to_string(), image.display().to_string());
    run("fallocate", &["--length", &size, &image])?;
    let made = run("losetup", &["--find", "--show", "--direct-io=on", &image])?;
    let device = made.trim().to_owned();
    undo.add(&format!("losetup -d {device}"))?;
    let lazy = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
    run("mkfs.ext4", &["-q", "-F", "-m", "0", "-E", lazy, &device])?;
    let place = folder.display().to_string();
    run("mount", &["-o", "noatime", &device, &place])?;
    let place = quoted(folder);
    undo.add(&format!("umount {place} || {{ sleep 1; umount -l {place}; }}"))?;
    let name = device.rsplit('/').next().unwrap_or_default();
    let number = fs::read_to_string(Path::new("/sys/block").join(name).join("dev"))?;
    let mut groups = vec![mount];
    groups.extend((own != groups[0]).then_some(own));
    Ok(Limits { number: number.trim().to_owned(), groups })
}

/// Throttle of one device, by its number, in the groups of all its writers.
struct Limits {
    number: String,
    groups: Vec<PathBuf>,
}

impl Limits {
    fn set(&self, rate: u64, undo: &mut Undo) -> Result<()> {
        for group in &self.groups {
            for file in ["blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"] {
                let file = group.join(file);
                let clear = format!("echo '{} 0' > {}", self.number, quoted(&file));
                undo.add(&format!("[ ! -e {} ] || {clear}", quoted(&file)))?;
                fs::write(&file, format!("{} {rate}", self.number))
                    .with_context(|| format!("writing {}", file.display()))?;
            }
        }
        Ok(())
    }
}

/// Writes and reads for half a second each; fails if one of them was faster than the limit.
fn prove(folder: &Path, rate: u64) -> Result<String> {
    let bytes = (rate as f64 * TRIAL.as_secs_f64()) as u64;
    let mib = bytes.max(TRIAL_BYTES_MIN).div_ceil(MIB);
    let file = folder.join("trial").display().to_string();
    let (count, output, input) =
        (format!("count={mib}"), format!("of={file}"), format!("if={file}"));
    let zeros = "if=/dev/zero";
    let trial = |what: &str, steps: &[(&str, Vec<&str>)]| -> Result<String> {
        let started = Instant::now();
        for (program, arguments) in steps {
            run(program, arguments)?;
        }
        let speed = (mib * MIB) as f64 / started.elapsed().as_secs_f64();
        judge(what, speed, rate as f64)
    };
    let written = ["bs=1M", &count, zeros, &output];
    let synced = [&written[..], &["conv=fsync"]].concat();
    let later = [("dd", written.to_vec()), ("sync", vec!["--file-system", &file])];
    let found = [
        trial("synced writes", &[("dd", synced)])?,
        trial("writes by the kernel's threads", &later)?,
        trial("reads", &[("dd", vec!["bs=1M", &input, "of=/dev/null", "iflag=direct"])])?,
    ];
    fs::remove_file(&file)?;
    Ok(format!(
        "a loop device on the disk, limited to {} MB/s for reads and for writes; tried before: {}",
        rate as f64 / 1e6,
        found.join(", ")
    ))
}

/// Describes a trial. Fails if the limit did not hold.
fn judge(what: &str, speed: f64, rate: f64) -> Result<String> {
    let (mb, limit_mb) = (speed / 1e6, rate / 1e6);
    ensure!(
        speed <= rate * TOLERANCE,
        "the limit does not hold: {what} went at {mb:.1} MB/s, not at {limit_mb} MB/s"
    );
    let slower = if speed < rate * FAR_BELOW { " (slower than the limit by itself)" } else { "" };
    Ok(format!("{what} {mb:.1} MB/s{slower}"))
}

/// Unmounts and removes the devices of runs that were killed together with their shell.
fn remove_leftovers(work: &Path) {
    let devices = run("losetup", &["--list", "--noheadings", "--output", "NAME,BACK-FILE"]);
    for line in devices.unwrap_or_default().lines() {
        let Some((device, file)) = line.split_once(' ') else { continue };
        let file = Path::new(file.trim().trim_end_matches(" (deleted)"));
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if !is_leftover(&name, IMAGE) {
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
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Runs a program and returns its output. An error contains what it wrote to standard error.
fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("starting {program}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", arguments.join(" "), errors.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_read() {
        assert_eq!(Profile::parse("as-is").unwrap(), Profile::AsIs);
        assert_eq!(Profile::parse("limited=200MBps").unwrap(), Profile::Limited(200_000_000));
        assert_eq!(Profile::parse("limited=5kBps").unwrap(), Profile::Limited(5_000));
        for wrong in ["", "limited", "limited=", "limited=0MBps", "limited=200", "limited=2MBpsx"] {
            assert!(Profile::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_limit_that_does_not_hold_is_refused() {
        let refused = judge("writes", 300e6, 200e6).unwrap_err().to_string();
        assert_eq!(refused, "the limit does not hold: writes went at 300.0 MB/s, not at 200 MB/s");
        assert_eq!(judge("writes", 201e6, 200e6).unwrap(), "writes 201.0 MB/s");
        assert!(judge("reads", 90e6, 200e6).unwrap().contains("slower than the limit"));
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
        let made = prepare(Profile::Limited(20_000_000), work.path(), 64 * MIB, &mut undo);
        match made {
            Ok(device) => assert!(device.description.contains("20 MB/s"), "{device:?}"),
            Err(error) => println!("not possible here: {error:#}"),
        }
        drop(undo);
        assert_eq!(fs::read_dir(work.path()).unwrap().count(), 0);
    }
}
