//! Counters of the operating system for this process, and its page cache.

use anyhow::{Context, Result};
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};
use stele_load::process_io::{ProcessIo, processor_seconds, seconds};

/// Returns the bytes that this process sent to the storage layer. Direct writes count immediately,
/// others when a page becomes dirty.
pub(crate) fn written_bytes() -> Result<u64> {
    Ok(ProcessIo::of(std::process::id())?.write_bytes)
}

/// Returns the resident memory and its peak in bytes.
pub(crate) fn resident_bytes() -> Result<(u64, u64)> {
    let status = "/proc/self/status";
    Ok((field(status, "VmRSS:")? << 10, field(status, "VmHWM:")? << 10))
}

/// Returns the resident memory of another process in bytes: with the pages of files that it maps, and without.
pub(crate) fn resident_bytes_of(pid: u32) -> Result<(u64, u64)> {
    let status = format!("/proc/{pid}/status");
    Ok((field(&status, "VmRSS:")? << 10, field(&status, "RssAnon:")? << 10))
}

/// Returns the processor time that all processes of the machine have used since it started, in seconds.
pub(crate) fn machine_seconds() -> Result<f64> {
    let text = fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
    busy_ticks(&text).map(seconds).context("/proc/stat has an unexpected format")
}

/// Returns the ticks of the first line without those in which a processor was idle, the fourth and fifth. The
/// eighth are those of other machines, and later ones are in those before.
fn busy_ticks(text: &str) -> Option<u64> {
    let fields = text.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace();
    let ticks: Vec<u64> = fields.map(|it| it.parse().ok()).collect::<Option<_>>()?;
    let is_busy = |(number, _): &(usize, &u64)| !(3..5).contains(number);
    Some(ticks.iter().enumerate().take(7).filter(is_busy).map(|(_, ticks)| ticks).sum())
}

fn field(file: &str, name: &str) -> Result<u64> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {file}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    number
        .with_context(|| format!("{file} has no field {name}"))?
        .parse()
        .context("reading a count")
}

/// Returns the processor time of all threads of this process, including ended ones.
pub(crate) fn processor_time() -> Result<Duration> {
    Ok(Duration::from_secs_f64(processor_seconds(std::process::id())?))
}

/// Waits until nothing was written for `idle`, at most a minute: flushes and compactions have
/// finished.
pub(crate) fn wait_until_idle(idle: Duration) -> Result<()> {
    const AT_MOST: Duration = Duration::from_secs(60);
    const POLL: Duration = Duration::from_millis(5);
    let started = Instant::now();
    let (mut last, mut since) = (written_bytes()?, Instant::now());
    while since.elapsed() < idle && started.elapsed() < AT_MOST {
        std::thread::sleep(POLL);
        let written = written_bytes()?;
        if written != last {
            (last, since) = (written, Instant::now());
        }
    }
    Ok(())
}

/// Writes back and drops the cached pages of every file below `folder`, as after a restart.
pub(crate) fn forget_cached(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("listing {}", folder.display()))? {
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

/// Shortest processor time that the kernel counts.
const TICK: Duration = Duration::from_millis(10);

/// Wall time and processor time since the start.
pub(crate) struct Stopwatch {
    wall: Instant,
    processor: Duration,
}

impl Stopwatch {
    pub(crate) fn start() -> Result<Self> {
        Ok(Self { wall: Instant::now(), processor: processor_time()? })
    }

    /// Returns the seconds of wall time, and of processor time of all threads.
    pub(crate) fn seconds(&self) -> Result<(f64, f64)> {
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
        assert!(machine_seconds().unwrap() >= 0.03);
    }

    #[test]
    fn time_without_work_and_of_other_machines_is_not_that_of_processes() {
        let text = "cpu  1 2 4 1000 2000 8 16 32 1 2\ncpu0 9 9 9 9 9 9 9 9 9 9\n";
        assert_eq!(busy_ticks(text), Some(31));
        assert_eq!((busy_ticks(""), busy_ticks("cpu x")), (None, None));
    }
}
