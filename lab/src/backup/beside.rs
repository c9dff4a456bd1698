//! A process that runs beside a load, or alone, and what the kernel counts for it until its end.

use super::burner::Profile;
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use stele_load::process_io::{processor_seconds, read};

const SAMPLE: Duration = Duration::from_millis(100);
const POLL: Duration = Duration::from_millis(5);

/// A process with its output in a file, killed on drop.
pub(super) struct Beside {
    child: Child,
    output: PathBuf,
    begun: Instant,
}

/// What was seen of a process while a load ran.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub profile: Profile,
    /// Time after which the awaited text was in the output.
    pub printed_after: Option<Duration>,
}

/// What a process has done when it has ended.
#[derive(Debug)]
pub(super) struct Done {
    pub output: String,
    pub seconds: f64,
    pub processor_seconds: f64,
    /// Bytes that it read from files. What it received from sockets is not in them.
    pub file_read_bytes: u64,
}

impl Beside {
    /// Starts a process with its output in a new file.
    pub(super) fn start(command: &mut Command, output: &Path) -> Result<Self> {
        let file =
            File::create(output).with_context(|| format!("creating {}", output.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("starting {command:?}"))?;
        Ok(Self { child, output: output.to_owned(), begun: Instant::now() })
    }

    /// Samples its processor time while `is_running`. Fails if it ends before, unless it `may_end`.
    pub(super) fn watch(
        &mut self,
        awaited: Option<&str>,
        may_end: bool,
        is_running: impl Fn() -> bool,
    ) -> Result<Seen> {
        let mut seen = Seen::default();
        loop {
            let is_last = !is_running();
            // Until the process is waited for, the kernel keeps the counts of one that has ended.
            seen.profile.push(self.begun.elapsed(), processor_seconds(self.child.id())?);
            if let (None, Some(awaited)) = (seen.printed_after, awaited)
                && self.printed()?.contains(awaited)
            {
                seen.printed_after = Some(self.begun.elapsed());
            }
            if is_last {
                return Ok(seen);
            }
            ensure!(may_end || !self.has_ended()?, "it has ended early: {}", self.printed()?);
            let next = (self.begun.elapsed().as_millis() / SAMPLE.as_millis() + 1) as u32;
            let until = SAMPLE * next;
            while self.begun.elapsed() < until && is_running() {
                thread::sleep(POLL);
            }
        }
    }

    /// Requests it to end, as Ctrl-C does.
    pub(super) fn terminate(&self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).context("terminating a process")
    }

    /// Waits for its end. Fails if it does not end within `limit`, or has failed.
    pub(super) fn end(mut self, limit: Duration) -> Result<Done> {
        let deadline = Instant::now() + limit;
        while !self.has_ended()? {
            if Instant::now() >= deadline {
                bail!("it did not end within {} s: {}", limit.as_secs(), self.printed()?);
            }
            thread::sleep(POLL);
        }
        let seconds = self.begun.elapsed().as_secs_f64();
        let processor_seconds = processor_seconds(self.child.id())?;
        let file_read_bytes = read_bytes(&read(self.child.id(), "io")?)?;
        let (status, output) = (self.child.wait()?, self.printed()?);
        ensure!(status.success(), "it has failed, {status}: {output}");
        Ok(Done { output, seconds, processor_seconds, file_read_bytes })
    }

    /// Returns whether it has ended; the kernel keeps its counts.
    fn has_ended(&self) -> Result<bool> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let status = waitid(WaitId::Pid(Pid::from_child(&self.child)), options);
        Ok(status.context("waiting for a process")?.is_some())
    }

    fn printed(&self) -> Result<String> {
        let bytes = fs::read(&self.output).context("reading the output of a process")?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_bytes(io: &str) -> Result<u64> {
    let line = io.lines().find_map(|line| line.strip_prefix("rchar:"));
    Ok(line.with_context(|| format!("no rchar in `{io}`"))?.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn shell(script: &str, output: &Path) -> Beside {
        let mut shell = Command::new("sh");
        Beside::start(shell.args(["-c", script]), output).unwrap()
    }

    #[test]
    fn a_process_is_watched_until_the_load_ends_and_counted_until_its_own_end() {
        let dir = tempfile::tempdir().unwrap();
        let script = "trap 'cat /dev/zero | head -c 1000000 | wc -c; exit 0' TERM; echo begun; \
                      while :; do :; done";
        let mut beside = shell(script, &dir.path().join("output"));
        let samples = Cell::new(0);
        let is_running = || {
            samples.set(samples.get() + 1);
            samples.get() < 100
        };
        let seen = beside.watch(Some("begun"), false, is_running).unwrap();
        assert!(seen.printed_after.is_some(), "{seen:?}");
        let used_seconds = seen.profile.used_seconds();
        beside.terminate().unwrap();
        let done = beside.end(Duration::from_secs(20)).unwrap();
        assert!(done.output.ends_with("1000000\n"), "{done:?}");
        assert!(done.file_read_bytes > 0 && done.processor_seconds >= used_seconds, "{done:?}");
    }

    #[test]
    fn an_early_end_a_failure_and_a_late_end_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let output = dir.path().join("output");
        let text = |error: anyhow::Error| format!("{error:#}");
        let early = shell("echo reason", &output).watch(None, false, || true).unwrap_err();
        assert!(text(early).contains("ended early: reason"));
        let failed = shell("echo reason; exit 3", &output).end(Duration::from_secs(20));
        assert!(text(failed.unwrap_err()).contains("reason"));
        let late = shell("sleep 60", &output).end(Duration::from_millis(50)).unwrap_err();
        assert!(text(late).contains("did not end"));
    }

    #[test]
    fn bytes_are_found_in_the_text_of_the_kernel() {
        assert_eq!(read_bytes("rchar: 9\nwchar: 8\n").unwrap(), 9);
        read_bytes("wchar: 8\n").unwrap_err();
    }
}
