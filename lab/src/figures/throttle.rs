//! Limits of a block device by the kernel's throttle (`blkio.throttle`, cgroups of version 1), and the
//! proof that they hold.
//!
//! A write belongs to the group of the thread that submits it. A program's sync belongs to the group of
//! the program. Later write-back belongs to the kernel's threads, which are in the root group. Nothing
//! else uses the device, so the limit of both groups applies to all writes.

use super::memory;
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
/// Time of a trial of bytes at the limit.
const BYTES_TRIAL: Duration = Duration::from_millis(500);
/// Time of a trial of operations at the limit. A burst is at most a tenth of it.
const OPS_TRIAL: Duration = Duration::from_secs(1);
const TRIAL_BYTES_MIN: u64 = 4 * MIB;
/// Amounts of the trials of a device without a limit.
const FREE_BYTES: u64 = 64 * MIB;
const FREE_OPS: u64 = 4000;
/// Bytes of a small read or write: one operation of the device.
const SMALL: u64 = 4096;
/// Device that has no limit.
const UNLIMITED: &str = "unlimited";

/// Limits for reads, and the same for writes; 0 disables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limit {
    pub bytes_per_s: u64,
    pub ops_per_s: u64,
}

impl Limit {
    /// Parses `unlimited`, `200MBps` or `40MBps,2000ops`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        if text == UNLIMITED {
            return Ok(Self::default());
        }
        let refusal = || format!("`{text}` must be 200MBps, or 40MBps,2000ops, or {UNLIMITED}");
        let (rate, ops) = match text.split_once(',') {
            Some((rate, ops)) => (rate, Some(ops)),
            None => (text, None),
        };
        let digits = rate.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = match rate.get(digits.len()..) {
            Some("kBps" | "KBps") => 1_000,
            Some("MBps") => 1_000_000,
            Some("GBps") => 1_000_000_000,
            _ => bail!(refusal()),
        };
        let number: u64 = digits.parse().with_context(refusal)?;
        let ops_per_s = match ops {
            Some(ops) => {
                ops.strip_suffix("ops").with_context(refusal)?.parse().with_context(refusal)?
            }
            None => 0,
        };
        ensure!(number > 0 && (ops.is_none() || ops_per_s > 0), refusal());
        Ok(Self { bytes_per_s: number * unit, ops_per_s })
    }

    /// Returns the limits divided by `factor`.
    pub(crate) fn divided_by(self, factor: u64) -> Self {
        Self {
            bytes_per_s: self.bytes_per_s / factor.max(1),
            ops_per_s: self.ops_per_s / factor.max(1),
        }
    }

    /// Describes the limits for the page.
    pub(crate) fn words(self) -> String {
        let bytes = format!("{} MB/s", self.bytes_per_s as f64 / 1e6);
        match (self.bytes_per_s, self.ops_per_s) {
            (0, 0) => "no limit".to_owned(),
            (_, 0) => bytes,
            (_, ops) => format!("{bytes} and {ops} operations/s"),
        }
    }
}

/// Throttle of one device, by its number, in the groups of all its writers.
#[derive(Debug)]
pub(super) struct Throttle {
    number: String,
    groups: Vec<PathBuf>,
}

impl Throttle {
    /// Finds the throttle of a device such as `/dev/loop0`.
    pub(super) fn of(device: &str) -> Result<Self> {
        let (mount, own) =
            memory::folders("blkio").context("this machine has no blkio cgroup of version 1")?;
        let name = device.rsplit('/').next().unwrap_or_default();
        let number = fs::read_to_string(Path::new("/sys/block").join(name).join("dev"))?;
        let mut groups = vec![mount];
        groups.extend((own != groups[0]).then_some(own));
        Ok(Self { number: number.trim().to_owned(), groups })
    }

    /// Sets the limit until the end of `undo`.
    pub(super) fn set(&self, limit: Limit, undo: &mut Undo) -> Result<()> {
        for (file, _) in self.files(limit) {
            let clear = format!("echo '{} 0' > {}", self.number, quoted(&file));
            undo.add(&format!("[ ! -e {} ] || {clear}", quoted(&file)))?;
        }
        self.change(limit)
    }

    /// Sets the limit. A limit of 0 is written as well, because the kernel keeps the limits of an
    /// earlier device with the same number.
    pub(super) fn change(&self, limit: Limit) -> Result<()> {
        for (file, value) in self.files(limit) {
            fs::write(&file, format!("{} {value}", self.number))
                .with_context(|| format!("writing {}", file.display()))?;
        }
        Ok(())
    }

    fn files(&self, limit: Limit) -> Vec<(PathBuf, u64)> {
        let mut files = Vec::new();
        for group in &self.groups {
            for (what, value) in [("bps", limit.bytes_per_s), ("iops", limit.ops_per_s)] {
                for side in ["read", "write"] {
                    files.push((group.join(format!("blkio.throttle.{side}_{what}_device")), value));
                }
            }
        }
        files
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Bytes,
    Operations,
}

/// Reads and writes in `folder` with all that each limit allows; fails if one of them was faster than
/// the limit. Returns the measured speeds in words.
pub(super) fn prove(folder: &Path, limit: Limit) -> Result<String> {
    let file = folder.join("trial").display().to_string();
    let (output, input) = (format!("of={file}"), format!("if={file}"));
    let bytes = match limit.bytes_per_s {
        0 => FREE_BYTES,
        rate => (rate as f64 * BYTES_TRIAL.as_secs_f64()) as u64,
    };
    let mib = bytes.max(TRIAL_BYTES_MIN).div_ceil(MIB);
    let bytes_trial = |what: &str, steps: &[(&str, Vec<&str>)]| -> Result<String> {
        let speed = (mib * MIB) as f64 / timed(steps)?.as_secs_f64();
        judge(what, speed, limit.bytes_per_s as f64, Unit::Bytes)
    };
    let (zeros, count) = ("if=/dev/zero", format!("count={mib}"));
    let written = ["bs=1M", &count, zeros, &output];
    let synced = [&written[..], &["conv=fsync"]].concat();
    let later = [("dd", written.to_vec()), ("sync", vec!["--file-system", &file])];
    let mut found = vec![
        bytes_trial("synced writes", &[("dd", synced)])?,
        bytes_trial("writes by the kernel's threads", &later)?,
        bytes_trial("reads", &[("dd", vec!["bs=1M", &input, "of=/dev/null", "iflag=direct"])])?,
    ];
    if limit.ops_per_s > 0 || limit.bytes_per_s == 0 {
        found.extend(small(limit, mib * MIB, &input, &output)?);
    }
    fs::remove_file(&file)?;
    Ok(found.join(", "))
}

/// Tries small operations on a file of `bytes` that is written already, so that each write is one
/// operation. A sync is at least one more.
fn small(limit: Limit, bytes: u64, input: &str, output: &str) -> Result<Vec<String>> {
    let at_the_limit = (limit.ops_per_s as f64 * OPS_TRIAL.as_secs_f64()) as u64;
    let ops = if limit.ops_per_s == 0 { FREE_OPS } else { at_the_limit }.min(bytes / SMALL);
    let trial = |what: &str, steps: Vec<&str>, each: u64| -> Result<String> {
        let speed = (ops * each) as f64 / timed(&[("dd", steps)])?.as_secs_f64();
        judge(what, speed, limit.ops_per_s as f64, Unit::Operations)
    };
    let (size, count) = (format!("bs={SMALL}"), format!("count={ops}"));
    let write = [&size[..], &count, "if=/dev/zero", output, "conv=notrunc"];
    let direct = [&write[..], &["oflag=direct"]].concat();
    let synced = [&write[..], &["oflag=direct,dsync"]].concat();
    let read = vec![&size[..], &count, input, "of=/dev/null", "iflag=direct"];
    Ok(vec![
        trial("small writes", direct, 1)?,
        trial("operations of small synced writes", synced, 2)?,
        trial("small reads", read, 1)?,
    ])
}

fn timed(steps: &[(&str, Vec<&str>)]) -> Result<Duration> {
    let started = Instant::now();
    for (program, arguments) in steps {
        run(program, arguments)?;
    }
    Ok(started.elapsed())
}

/// Describes a trial. Fails if the limit did not hold; a limit of 0 always holds.
fn judge(what: &str, speed: f64, limit: f64, unit: Unit) -> Result<String> {
    let words = |number: f64| match unit {
        Unit::Bytes => format!("{:.1} MB/s", number / 1e6),
        Unit::Operations => format!("{number:.0} operations/s"),
    };
    if limit == 0.0 {
        return Ok(format!("{what} {}", words(speed)));
    }
    ensure!(
        speed <= limit * TOLERANCE,
        "the limit does not hold: {what} went at {}, not at {}",
        words(speed),
        words(limit)
    );
    let slower = if speed < limit * FAR_BELOW { " (slower than the limit by itself)" } else { "" };
    Ok(format!("{what} {}{slower}", words(speed)))
}

/// Runs a program and returns its output. An error contains what it wrote to standard error.
pub(super) fn run(program: &str, arguments: &[&str]) -> Result<String> {
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
    fn limits_are_read() {
        let limit = |bytes_per_s, ops_per_s| Limit { bytes_per_s, ops_per_s };
        assert_eq!(Limit::parse("unlimited").unwrap(), Limit::default());
        assert_eq!(Limit::parse("200MBps").unwrap(), limit(200_000_000, 0));
        assert_eq!(Limit::parse("5kBps").unwrap(), limit(5_000, 0));
        let both = Limit::parse("40MBps,2000ops").unwrap();
        assert_eq!(both, limit(40_000_000, 2000));
        assert_eq!(both.words(), "40 MB/s and 2000 operations/s");
        let wrong = [
            "",
            "0MBps",
            "200",
            "2MBpsx",
            "2MBps,",
            "2MBps,0ops",
            "2MBps,3",
            "2MBps,xops",
            "300ops",
        ];
        for wrong in wrong {
            assert!(Limit::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_limit_that_does_not_hold_is_refused() {
        let refused =
            |speed, limit, unit| judge("writes", speed, limit, unit).unwrap_err().to_string();
        assert_eq!(
            refused(300e6, 200e6, Unit::Bytes),
            "the limit does not hold: writes went at 300.0 MB/s, not at 200.0 MB/s"
        );
        assert_eq!(
            refused(400.0, 300.0, Unit::Operations),
            "the limit does not hold: writes went at 400 operations/s, not at 300 operations/s"
        );
        assert_eq!(judge("writes", 201e6, 200e6, Unit::Bytes).unwrap(), "writes 201.0 MB/s");
        assert_eq!(judge("writes", 9e9, 0.0, Unit::Bytes).unwrap(), "writes 9000.0 MB/s");
        assert!(
            judge("reads", 90e6, 200e6, Unit::Bytes).unwrap().contains("slower than the limit")
        );
    }
}
