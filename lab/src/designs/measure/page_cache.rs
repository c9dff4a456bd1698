//! Page cache of a fixed size for this process, by a memory cgroup of version 1. Its limit follows
//! the memory that is not page cache, which differs between designs. Memory that grows before the
//! limit follows is taken from the page cache.

use anyhow::{Context, Result, anyhow};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const LIMIT: &str = "memory.limit_in_bytes";
const USED: &str = "memory.usage_in_bytes";
const STATISTICS: &str = "memory.stat";
const NO_LIMIT: &str = "-1";
const FOLLOWS_EVERY: Duration = Duration::from_millis(5);
/// Smallest change of the limit.
const STEP_BYTES: u64 = 2 << 20;

/// Enforced limit; it is adjusted until this is dropped.
pub(super) struct PageCache {
    bytes: Arc<AtomicU64>,
    running: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PageCache {
    /// Limits the cgroup in `folder`, which must contain this process.
    pub(super) fn limit(folder: PathBuf, bytes: u64) -> Result<Self> {
        let file = folder.join(LIMIT);
        // Reports missing permissions early.
        fs::write(&file, NO_LIMIT).with_context(|| format!("writing {}", file.display()))?;
        wanted(&folder, bytes)?;
        let (bytes, running) = (Arc::new(AtomicU64::new(bytes)), Arc::new(AtomicBool::new(true)));
        let (of, goes_on) = (bytes.clone(), running.clone());
        let mut last = u64::MAX;
        let follow = move || {
            while goes_on.load(Ordering::Acquire) {
                let limit = wanted(&folder, of.load(Ordering::Acquire)).unwrap_or(last);
                // A lower limit may be refused during writeback; it is tried again.
                if limit.abs_diff(last) >= STEP_BYTES && fs::write(&file, limit.to_string()).is_ok()
                {
                    last = limit;
                }
                std::thread::sleep(FOLLOWS_EVERY);
            }
        };
        let thread = std::thread::Builder::new().name("page-cache".to_owned()).spawn(follow)?;
        Ok(Self { bytes, running, thread: Some(thread) })
    }

    pub(super) fn resize(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Release);
    }

    /// Stops adjusting; the limit stays as it is.
    pub(super) fn end(mut self) -> Result<()> {
        self.running.store(false, Ordering::Release);
        let thread = self.thread.take().context("the page cache limit has already ended")?;
        thread.join().map_err(|_| anyhow!("the thread that limits the page cache panicked"))
    }
}

impl Drop for PageCache {
    fn drop(&mut self) {
        self.running.store(false, Ordering::Release);
    }
}

fn wanted(folder: &Path, page_cache_bytes: u64) -> Result<u64> {
    let used: u64 = fs::read_to_string(folder.join(USED))?.trim().parse()?;
    let text = fs::read_to_string(folder.join(STATISTICS))?;
    let cache = text.lines().find_map(|line| line.strip_prefix("cache "));
    let cache: u64 = cache.context("memory.stat has no field cache")?.trim().parse()?;
    Ok(used.saturating_sub(cache) + page_cache_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn the_limit_follows_what_is_not_page_cache_and_the_size() {
        let folder = tempfile::tempdir().unwrap();
        let say = |used: u64, cache: u64| {
            let text = format!("cache {}\nrss {}\n", cache << 20, (used - cache) << 20);
            fs::write(folder.path().join(STATISTICS), text).unwrap();
            fs::write(folder.path().join(USED), format!("{}\n", used << 20)).unwrap();
        };
        let reaches = |mib: u64| {
            let started = Instant::now();
            let read = || fs::read_to_string(folder.path().join(LIMIT)).unwrap();
            while read() != (mib << 20).to_string() {
                assert!(started.elapsed() < Duration::from_secs(20), "{} of {mib} MiB", read());
                std::thread::sleep(FOLLOWS_EVERY);
            }
        };
        say(100, 70);
        let cache = PageCache::limit(folder.path().to_owned(), 50 << 20).unwrap();
        reaches(80);
        say(500, 100);
        reaches(450);
        cache.resize(10 << 20);
        reaches(410);
        cache.end().unwrap();
    }

    #[test]
    fn without_the_cgroups_files_it_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(PageCache::limit(folder.path().join("none"), 1).is_err());
        assert!(PageCache::limit(folder.path().to_owned(), 1).is_err());
    }
}
