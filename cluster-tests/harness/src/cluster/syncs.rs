//! Syncs that fail or are slow. `strace` attaches to one thread of a node and injects EIO into one
//! `fdatasync` or `fsync`, or a delay into all. It records the thread's file operations.

use super::process;
use anyhow::{Context, Result, bail, ensure};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Traced calls: those that write to files or sync them.
const CALLS: &str = "fdatasync,fsync,pwrite64,pwritev,pwritev2,io_submit,ftruncate,fallocate";
const SYNCS: &str = "fdatasync,fsync";
const ATTACHED_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(10);

/// Prefix of the name of the thread that syncs the log.
pub(crate) const LOG_WRITER: &str = "stele-write-";

#[derive(Clone, Copy, Debug)]
pub(crate) enum Injection {
    /// The call with this number, of each kind of sync, fails.
    Fail { nth: u64 },
    /// Each sync takes this much longer.
    Delay(Duration),
}

/// A thread under trace; detached when dropped.
#[derive(Debug)]
pub(crate) struct TracedSyncs {
    strace: Child,
    trace: PathBuf,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Trace {
    pub syncs_before: usize,
    pub failed: Option<String>,
    pub after: Vec<String>,
}

impl TracedSyncs {
    /// Changes the syncs of the thread with this name prefix.
    pub(crate) async fn attach(
        process: u32,
        thread: &str,
        injection: Injection,
        trace: PathBuf,
    ) -> Result<Self> {
        let id = process::thread(process, thread)?;
        let (calls, change) = match injection {
            Injection::Fail { nth } => (CALLS, format!("error=EIO:when={nth}")),
            Injection::Delay(delay) => (SYNCS, format!("delay_exit={}", delay.as_micros())),
        };
        let mut command = Command::new("strace");
        command.args(["-y", "-e", &format!("trace={calls}"), "-p", &id.to_string()]);
        command.args(["-e", &format!("inject={SYNCS}:{change}"), "-o"]);
        command.arg(&trace).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let strace = command.spawn().context("starting strace (apt-get install strace)")?;
        let mut attached = Self { strace, trace };
        let started = Instant::now();
        // A thread that has ended has already had its failed sync; the trace contains it.
        while process::tracer(id)?.is_some_and(|tracer| tracer != attached.strace.id()) {
            if let Some(status) = attached.strace.try_wait()? {
                bail!("strace cannot attach to thread {thread} of {process}: {status}");
            }
            ensure!(started.elapsed() < ATTACHED_LIMIT, "strace did not attach to {thread}");
            tokio::time::sleep(POLL).await;
        }
        Ok(attached)
    }

    pub(crate) fn trace(&self) -> Result<Trace> {
        Ok(parse_trace(
            &std::fs::read_to_string(&self.trace).context("reading the output of strace")?,
        ))
    }
}

impl Drop for TracedSyncs {
    fn drop(&mut self) {
        // strace may have ended with the thread. The traced process continues.
        let _ = self.strace.kill();
        let _ = self.strace.wait();
    }
}

/// Parses lines like `fdatasync(9</d/a.seg>) = -1 EIO (Input/output error) (INJECTED)`; skips lines
/// that begin with `+++` or `---`.
fn parse_trace(trace: &str) -> Trace {
    let mut seen = Trace::default();
    for line in trace.lines().filter(|line| !line.starts_with(['+', '-'])) {
        if seen.failed.is_some() {
            seen.after.push(line.to_owned());
        } else if line.ends_with("(INJECTED)") {
            seen.failed = Some(line.to_owned());
        } else if line.starts_with("fdatasync") || line.starts_with("fsync") {
            seen.syncs_before += 1;
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_after_the_failure_are_separated_from_those_before() {
        let before = "pwrite64(9</d/a>, \"\"..., 512, 0) = 512\nfdatasync(9</d/a>) = 0\n";
        let failed = "fdatasync(9</d/a>) = -1 EIO (Input/output error) (INJECTED)";
        let all =
            format!("{before}{failed}\n--- SIGCHLD {{}} ---\nfsync(8</d>) = 0\n+++ exited +++\n");
        let expected = Trace {
            syncs_before: 1,
            failed: Some(failed.to_owned()),
            after: vec!["fsync(8</d>) = 0".to_owned()],
        };
        assert_eq!(parse_trace(&all), expected);
        assert_eq!(parse_trace(before).failed, None);
    }
}
