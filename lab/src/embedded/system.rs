//! Counters of the operating system for this process.

use anyhow::{Context, Result};
use std::time::{Duration, Instant};

/// Unit of processor time in `/proc`.
const TICK: Duration = Duration::from_millis(10);

/// Returns the bytes that this process sent to the storage layer. Direct writes count immediately,
/// others when a page becomes dirty.
pub fn written_bytes() -> Result<u64> {
    field("/proc/self/io", "write_bytes:")
}

/// Returns the resident memory and its peak in bytes.
pub fn resident_bytes() -> Result<(u64, u64)> {
    let status = "/proc/self/status";
    Ok((field(status, "VmRSS:")? << 10, field(status, "VmHWM:")? << 10))
}

fn field(file: &str, name: &str) -> Result<u64> {
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {file}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    number
        .with_context(|| format!("{file} has no field {name}"))?
        .parse()
        .context("reading a count")
}

/// Returns the processor time of all threads of this process, including ended ones.
pub fn processor_time() -> Result<Duration> {
    let text = std::fs::read_to_string("/proc/self/stat").context("reading /proc/self/stat")?;
    // The second field is the program's name in parentheses and may hold spaces.
    let after = text.rsplit_once(')').context("/proc/self/stat has no process name")?.1;
    let ticks = |nth: usize| after.split_whitespace().nth(nth)?.parse::<u32>().ok();
    let (user, system) = (ticks(11), ticks(12));
    Ok(TICK * (user.unwrap_or(0) + system.unwrap_or(0)))
}

/// Wall time and processor time since the start.
pub struct Stopwatch {
    wall: Instant,
    processor: Duration,
}

impl Stopwatch {
    /// Starts the watch.
    pub fn start() -> Result<Self> {
        Ok(Self { wall: Instant::now(), processor: processor_time()? })
    }

    /// Returns the seconds of wall time, and of processor time of all threads.
    pub fn seconds(&self) -> Result<(f64, f64)> {
        let processor = processor_time()?.saturating_sub(self.processor);
        Ok((self.wall.elapsed().as_secs_f64(), processor.max(TICK).as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_counts() {
        let watch = Stopwatch::start().unwrap();
        let mut sum = 0u64;
        while watch.seconds().unwrap().1 < 0.03 {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(processor_time().unwrap() >= Duration::from_millis(30));
        let (now, peak) = resident_bytes().unwrap();
        assert!(now > 0 && peak >= now);
        written_bytes().unwrap();
    }
}
