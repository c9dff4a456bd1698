//! Counters of the operating system for this process, and its page cache.

use anyhow::{Context, Result};
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

/// Unit of processor time in `/proc`.
const TICKS_PER_S: f64 = 100.0;
/// Positions of user and system time in `/proc/self/stat`, counted after the name, which may hold
/// spaces.
const USER_AND_SYSTEM: [usize; 2] = [11, 12];

/// Returns the bytes that this process sent to the storage layer. Direct writes count immediately,
/// others when a page becomes dirty.
pub fn written_bytes() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/io")?;
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes:"));
    Ok(line.context("/proc/self/io has no field write_bytes")?.trim().parse()?)
}

/// Returns the processor time of this process.
pub fn cpu_seconds() -> Result<f64> {
    let text = fs::read_to_string("/proc/self/stat")?;
    let (_, rest) = text.rsplit_once(')').context("/proc/self/stat has no process name")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let mut ticks = 0.0;
    for field in USER_AND_SYSTEM {
        ticks += fields.get(field).context("/proc/self/stat has too few fields")?.parse::<f64>()?;
    }
    Ok(ticks / TICKS_PER_S)
}

/// Waits until nothing was written for `idle`: flushes and compactions have finished.
pub fn settle(idle: Duration) -> Result<()> {
    const AT_MOST: Duration = Duration::from_secs(60);
    const LOOK_EVERY: Duration = Duration::from_millis(50);
    let started = Instant::now();
    let (mut last, mut since) = (written_bytes()?, Instant::now());
    while since.elapsed() < idle && started.elapsed() < AT_MOST {
        std::thread::sleep(LOOK_EVERY);
        let written = written_bytes()?;
        if written != last {
            (last, since) = (written, Instant::now());
        }
    }
    Ok(())
}

/// Writes back and drops the cached pages of every file below `folder`, as after a restart.
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
