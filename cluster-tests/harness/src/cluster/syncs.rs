//! A sync that fails once: `strace` attaches to one thread of a node, answers one `fdatasync` or `fsync`
//! with EIO in the kernel's place, and writes down what the thread does to files before and after.

use super::process;
use anyhow::{Context, Result, bail, ensure};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Calls that write to files or sync them.
const CALLS: &str = "fdatasync,fsync,pwrite64,pwritev,pwritev2,io_submit,ftruncate,fallocate";
const ATTACHED_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(10);

/// One thread whose syncs are watched; let go of when dropped.
#[derive(Debug)]
pub struct FailingSync {
    strace: Child,
    trace: PathBuf,
}

/// What the thread did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Syncs before the one that failed.
    pub syncs_before: usize,
    /// The call that failed.
    pub failed: Option<String>,
    /// Writes to files and syncs after it.
    pub after: Vec<String>,
}

impl FailingSync {
    /// From now on the `nth` call of each kind of sync fails in the thread whose name begins so.
    pub async fn attach(process: u32, thread: &str, nth: u64, trace: PathBuf) -> Result<Self> {
        let id = process::thread(process, thread)?;
        let mut command = Command::new("strace");
        command.args(["-y", "-e", &format!("trace={CALLS}"), "-p", &id.to_string()]);
        command.args(["-e", &format!("inject=fdatasync,fsync:error=EIO:when={nth}"), "-o"]);
        command.arg(&trace).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let strace = command.spawn().context("starting strace (apt-get install strace)")?;
        let mut attached = Self { strace, trace };
        let started = Instant::now();
        // A thread that has ended met its failing sync already: what was traced says so.
        while process::tracer(id)?.is_some_and(|tracer| tracer != attached.strace.id()) {
            if let Some(status) = attached.strace.try_wait()? {
                bail!("strace can't attach to thread {thread} of {process}: {status}");
            }
            ensure!(started.elapsed() < ATTACHED_LIMIT, "strace did not attach to {thread}");
            tokio::time::sleep(POLL).await;
        }
        Ok(attached)
    }

    /// What the thread did so far.
    pub fn seen(&self) -> Result<Seen> {
        Ok(seen(&std::fs::read_to_string(&self.trace).context("reading what strace wrote")?))
    }
}

impl Drop for FailingSync {
    fn drop(&mut self) {
        // It may have ended with the thread; what it watched goes on.
        let _ = self.strace.kill();
        let _ = self.strace.wait();
    }
}

/// Reads lines like `fdatasync(9</d/a.seg>) = -1 EIO (Input/output error) (INJECTED)`; others begin
/// with `+++` or `---`.
fn seen(trace: &str) -> Seen {
    let mut seen = Seen::default();
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
    fn what_follows_the_failure_is_told_from_what_came_before() {
        let before = "pwrite64(9</d/a>, \"\"..., 512, 0) = 512\nfdatasync(9</d/a>) = 0\n";
        let failed = "fdatasync(9</d/a>) = -1 EIO (Input/output error) (INJECTED)";
        let all =
            format!("{before}{failed}\n--- SIGCHLD {{}} ---\nfsync(8</d>) = 0\n+++ exited +++\n");
        let expected = Seen {
            syncs_before: 1,
            failed: Some(failed.to_owned()),
            after: vec!["fsync(8</d>) = 0".to_owned()],
        };
        assert_eq!(seen(&all), expected);
        assert_eq!(seen(before).failed, None);
    }
}
