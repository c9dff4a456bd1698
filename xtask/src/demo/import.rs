//! An import that is killed at random moments and resumed.

use crate::process::appender;
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, SystemTime};

const POLL: Duration = Duration::from_millis(1);
/// Share of the input, in per mille, after which a run is killed.
const KILL_AFTER_MILLE: std::ops::Range<u64> = 10..300;
/// Microseconds between that write and the kill, so that the kill is not tied to a write.
const KILL_DELAY_US: std::ops::Range<u64> = 0..5_000;

/// Random numbers from a seed (splitmix64).
pub(super) struct Seeded(u64);

impl Seeded {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn within(&mut self, range: std::ops::Range<u64>) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        range.start + (mixed ^ (mixed >> 31)) % (range.end - range.start)
    }
}

pub(super) fn seed_from_time() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64 % 1_000_000_000
}

/// Imports `source`: kills the import `kills` times, then lets it finish.
pub(super) fn import_killed(
    stele: &Path,
    source: &Path,
    store: &Path,
    source_bytes: u64,
    kills: usize,
    seeded: &mut Seeded,
) -> Result<()> {
    let log = tempfile::NamedTempFile::new()?;
    let import = |what: &str| -> Result<Child> {
        let mut command = Command::new(stele);
        command.args(["import", "--store"]).arg(store).arg("--from").arg(source);
        command.stdin(Stdio::null()).stdout(appender(log.path())?).stderr(appender(log.path())?);
        command.spawn().with_context(|| format!("starting the import {what}"))
    };
    for kill in 1..=kills {
        let after_bytes = source_bytes / 1000 * seeded.within(KILL_AFTER_MILLE);
        let delay = Duration::from_micros(seeded.within(KILL_DELAY_US));
        let mut child = import("to be killed")?;
        if let Some(status) = kill_after(&mut child, after_bytes, delay)? {
            bail!("the import ended ({status}) before kill {kill}: {}", tail(log.path())?);
        }
        println!("kill {kill}: SIGKILL after {after_bytes} written bytes and {delay:?}");
    }
    let status = import("to its end")?.wait()?;
    ensure!(status.success(), "the resumed import ended with {status}: {}", tail(log.path())?);
    Ok(())
}

/// Kills the child once it has written `bytes` and `delay` has passed. Returns `Some` if it ended
/// by itself.
fn kill_after(child: &mut Child, bytes: u64, delay: Duration) -> Result<Option<ExitStatus>> {
    while written_bytes(child.id()).unwrap_or(0) < bytes {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(POLL);
    }
    thread::sleep(delay);
    if let Some(status) = child.try_wait()? {
        return Ok(Some(status));
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

/// Returns the bytes that a process has sent to the storage layer.
fn written_bytes(process: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/io")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "))?;
    line.trim().parse().ok()
}

fn tail(log: &Path) -> Result<String> {
    let text = std::fs::read(log)?;
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(2000)..]).into_owned();
    Ok(text.replace('\r', "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_moments() {
        let moments = |seed| {
            let mut seeded = Seeded::new(seed);
            [0; 8].map(|_| seeded.within(10..300))
        };
        assert_eq!(moments(7), moments(7));
        assert_ne!(moments(7), moments(8));
        assert!(moments(7).iter().all(|moment| (10..300).contains(moment)));
    }

    #[test]
    fn a_child_is_killed_at_its_moment_or_seen_to_end() {
        let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
        assert_eq!(kill_after(&mut sleeper, 0, Duration::ZERO).unwrap(), None);
        assert!(!sleeper.wait().unwrap().success());
        let mut brief = Command::new("true").spawn().unwrap();
        assert!(kill_after(&mut brief, 1 << 40, Duration::ZERO).unwrap().is_some());
    }
}
