//! What the system counts about this process, and its page cache.

use anyhow::{Context, Result};
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

/// `/proc` counts processor time in these.
const TICKS_PER_S: f64 = 100.0;
/// Fields of `/proc/self/stat` after the name, which may hold spaces: user and system time.
const USER_AND_SYSTEM: [usize; 2] = [11, 12];

/// Bytes this process has caused to be sent to the storage layer: past the page cache at once,
/// through it when a page becomes dirty.
pub fn written_bytes() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/io")?;
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes:"));
    Ok(line.context("/proc/self/io has no write_bytes")?.trim().parse()?)
}

/// Processor time of this process.
pub fn cpu_seconds() -> Result<f64> {
    let text = fs::read_to_string("/proc/self/stat")?;
    let (_, rest) = text.rsplit_once(')').context("/proc/self/stat has no name")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let mut ticks = 0.0;
    for field in USER_AND_SYSTEM {
        ticks += fields.get(field).context("/proc/self/stat is short")?.parse::<f64>()?;
    }
    Ok(ticks / TICKS_PER_S)
}

/// Waits until nothing was written for `rest`: flushes and compactions have come to rest.
pub fn settle(rest: Duration) -> Result<()> {
    const AT_MOST: Duration = Duration::from_secs(60);
    const LOOK_EVERY: Duration = Duration::from_millis(50);
    let started = Instant::now();
    let (mut last, mut since) = (written_bytes()?, Instant::now());
    while since.elapsed() < rest && started.elapsed() < AT_MOST {
        std::thread::sleep(LOOK_EVERY);
        let written = written_bytes()?;
        if written != last {
            (last, since) = (written, Instant::now());
        }
    }
    Ok(())
}

/// Writes back and forgets the cached pages of every file below `folder`, as if after a restart.
pub fn forget_cached(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            forget_cached(&path)?;
        } else if let Ok(file) = File::open(&path) {
            file.sync_all()?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
    }
    Ok(())
}
