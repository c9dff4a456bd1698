//! Wrong clocks for single nodes. libfaketime intercepts the C library's `clock_gettime`, with
//! which Rust's standard library reads both clocks.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

const HINT: &str = "apt-get install faketime";

/// Prefixes of the library's shared memory files; the process ID follows.
const SHARED: [&str; 2] = ["/dev/shm/faketime_shm_", "/dev/shm/sem.faketime_sem_"];

#[derive(Debug)]
pub(crate) struct FakeTime {
    preload: String,
    processes: Vec<u32>,
}

impl FakeTime {
    /// Locates the library through the `faketime` program. Fails if it is not installed.
    pub(crate) fn find() -> Result<Self> {
        let mut command = Command::new("faketime");
        command.args(["-m", "-f", "+0", "sh", "-c", "printf %s \"$LD_PRELOAD\""]);
        let output = command.output().with_context(|| format!("starting faketime ({HINT})"))?;
        let preload = String::from_utf8_lossy(&output.stdout).into_owned();
        let is_found = output.status.success() && preload.contains("libfaketimeMT");
        ensure!(is_found, "faketime names no library with thread support: `{preload}` ({HINT})");
        Ok(Self { preload, processes: Vec::new() })
    }

    /// Returns the variables of a process of which only the wall clock is set by `wall`.
    pub(crate) fn wall(&self, wall: &WallClock) -> Vec<(String, String)> {
        let path = wall.path.display().to_string();
        self.variables(&[
            ("FAKETIME_TIMESTAMP_FILE", &path),
            // Seconds between reads of the file; ten by default.
            ("FAKETIME_CACHE_DURATION", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ])
    }

    pub(crate) fn rate(&self, rate: f64) -> Vec<(String, String)> {
        self.variables(&[("FAKETIME", &format!("+0 x{rate}"))])
    }

    /// Registers a process with such variables; the files it leaves when killed are removed with
    /// `self`.
    pub(crate) fn register(&mut self, process: u32) {
        self.processes.push(process);
    }

    fn variables(&self, all: &[(&str, &str)]) -> Vec<(String, String)> {
        let preload = [("LD_PRELOAD", self.preload.as_str())];
        let all = preload.iter().chain(all);
        all.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }
}

impl Drop for FakeTime {
    fn drop(&mut self) {
        for process in &self.processes {
            for name in SHARED {
                // A process that ended by itself has removed them.
                let _ = std::fs::remove_file(format!("{name}{process}"));
            }
        }
    }
}

/// A wall clock that can be set while its process runs, which takes up to a second.
#[derive(Debug)]
pub(crate) struct WallClock {
    path: PathBuf,
    offset_s: i64,
}

impl WallClock {
    pub(crate) fn create(work: &Path) -> Result<Self> {
        let mut clock = Self { path: work.join("wall-clock"), offset_s: 0 };
        clock.set(0)?;
        Ok(clock)
    }

    /// Returns the seconds by which it is ahead.
    pub(crate) fn offset_s(&self) -> i64 {
        self.offset_s
    }

    /// Sets the clock ahead by so many seconds.
    pub(crate) fn set(&mut self, offset_s: i64) -> Result<()> {
        // A rename, so that a reader never sees a partial file.
        let new = self.path.with_extension("new");
        std::fs::write(&new, format!("{offset_s:+}\n"))?;
        std::fs::rename(&new, &self.path)?;
        self.offset_s = offset_s;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_is_a_signed_number_of_seconds_in_a_file() {
        let work = tempfile::tempdir().unwrap();
        let mut clock = WallClock::create(work.path()).unwrap();
        let found = || std::fs::read_to_string(work.path().join("wall-clock")).unwrap();
        assert_eq!(found(), "+0\n");
        clock.set(-7200).unwrap();
        assert_eq!((found().as_str(), clock.offset_s()), ("-7200\n", -7200));
        clock.set(3600).unwrap();
        assert_eq!(found(), "+3600\n");
    }
}
