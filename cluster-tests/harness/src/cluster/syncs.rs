//! Syncs that fail or are slow. `strace` attaches to threads of a node and injects EIO into one
//! `fdatasync` or `fsync` of each, or a delay into all. It records the threads' file operations.

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

/// Prefixes of the names of the threads that sync a log: the loop of its store while appends are short,
/// otherwise its writer.
pub(crate) const LOG_THREADS: [&str; 2] = ["stele-store-", "stele-write-"];

#[derive(Clone, Copy, Debug)]
pub(crate) enum Injection {
    /// The call with this number, of each kind of sync and of each thread, fails.
    Fail { nth: u64 },
    /// Each sync takes this much longer.
    Delay(Duration),
}

/// Threads under trace; detached when dropped.
#[derive(Debug)]
pub(crate) struct TracedSyncs {
    strace: Child,
    trace: PathBuf,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Trace {
    pub syncs_before: usize,
    pub failed: Option<String>,
    /// What the thread did after its sync had failed.
    pub after: Vec<String>,
}

impl TracedSyncs {
    /// Changes the syncs of the threads with these name prefixes.
    pub(crate) async fn attach(
        process: u32,
        threads: &[&str],
        injection: Injection,
        trace: PathBuf,
    ) -> Result<Self> {
        let ids = threads.iter().map(|thread| process::thread(process, thread));
        let ids = ids.collect::<Result<Vec<_>>>()?;
        let (calls, change) = match injection {
            Injection::Fail { nth } => (CALLS, format!("error=EIO:when={nth}")),
            Injection::Delay(delay) => (SYNCS, format!("delay_exit={}", delay.as_micros())),
        };
        let mut command = Command::new("strace");
        command.args(["-y", "-e", &format!("trace={calls}")]);
        for id in &ids {
            command.args(["-p", &id.to_string()]);
        }
        command.args(["-e", &format!("inject={SYNCS}:{change}"), "-o"]);
        command.arg(&trace).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let strace = command.spawn().context("starting strace (apt-get install strace)")?;
        let mut attached = Self { strace, trace };
        let started = Instant::now();
        // A thread that has ended has already had its failed sync; the trace contains it.
        for id in ids {
            while process::tracer(id)?.is_some_and(|tracer| tracer != attached.strace.id()) {
                if let Some(status) = attached.strace.try_wait()? {
                    bail!("strace cannot attach to threads {threads:?} of {process}: {status}");
                }
                ensure!(started.elapsed() < ATTACHED_LIMIT, "strace did not attach to {threads:?}");
                tokio::time::sleep(POLL).await;
            }
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

/// Parses lines like `17 fdatasync(9</d/a.seg>) = -1 EIO (Input/output error) (INJECTED)`; skips lines
/// that begin with `+++` or `---`. The number of the thread is there if there are several.
fn parse_trace(trace: &str) -> Trace {
    let mut seen = Trace::default();
    let mut failed_thread = "";
    for line in trace.lines() {
        let call = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
        let thread = line.strip_suffix(call).unwrap_or_default().trim();
        let line = call;
        if line.starts_with(['+', '-']) {
            continue;
        }
        if seen.failed.is_some() {
            if thread == failed_thread {
                seen.after.push(line.to_owned());
            }
        } else if line.ends_with("(INJECTED)") {
            (seen.failed, failed_thread) = (Some(line.to_owned()), thread);
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
        let of = |thread: &str| {
            let lines = all.lines().map(|line| format!("{thread} {line}\n"));
            lines.collect::<String>()
        };
        let other = "8     fdatasync(9</d/a>) = 0\n";
        let several = of("17").replace("17 fsync", &format!("{other}17   fsync"));
        assert_eq!(parse_trace(&several), expected);
    }
}
