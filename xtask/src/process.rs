//! Child processes with a time limit.

use anyhow::{Context, Result, bail};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(20);

/// End of a child.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// Exited by itself; `true` for success.
    Exited(bool),
    /// Killed at the time limit.
    TimedOut,
}

/// Runs `command` for at most `limit`. Returns how it ended and all that it printed.
pub fn run_limited(command: &mut Command, limit: Duration) -> Result<(Ended, String)> {
    let output = tempfile::NamedTempFile::new().context("creating a file for output")?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(appender(output.path())?)
        .stderr(appender(output.path())?)
        .spawn()
        .with_context(|| format!("starting {command:?}"))?;
    let deadline = Instant::now() + limit;
    let ended = loop {
        if let Some(status) = child.try_wait()? {
            break Ended::Exited(status.success());
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            break Ended::TimedOut;
        }
        thread::sleep(POLL);
    };
    let printed = std::fs::read(output.path())?;
    Ok((ended, String::from_utf8_lossy(&printed).into_owned()))
}

/// Does `work` for each item, for as many items at a time as there are processors. Returns like
/// [`in_parallel_by`].
pub fn in_parallel<T: Send, R: Send>(
    items: impl Iterator<Item = T> + Send,
    work: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    in_parallel_by(processors, items, work)
}

/// Does `work` for each item, for at most `workers` items at a time. Returns the results in the order in which
/// they were done, or an error of `work`, after which no worker takes an item.
pub fn in_parallel_by<T: Send, R: Send>(
    workers: usize,
    items: impl Iterator<Item = T> + Send,
    work: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let (items, done) = (Mutex::new(items), Mutex::new(Vec::new()));
    let failed = AtomicBool::new(false);
    let take = || items.lock().ok().filter(|_| !failed.load(Ordering::Relaxed))?.next();
    let worker = || -> Result<()> {
        while let Some(item) = take() {
            let result = work(item).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
            if let Ok(mut done) = done.lock() {
                done.push(result);
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    Ok(done.into_inner().unwrap_or_default())
}

/// Opens a file for appending, so that two writers of one file do not overwrite each other.
pub fn appender(path: &Path) -> Result<File> {
    File::options().append(true).open(path).with_context(|| format!("opening {}", path.display()))
}

/// Runs `command` and shows its output; fails unless it succeeds.
pub fn run_shown(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("starting {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

/// Runs `command` and shows its output at its end, in one piece; fails unless it succeeds.
pub fn run_buffered(command: &mut Command) -> Result<()> {
    let output = tempfile::NamedTempFile::new().context("creating a file for output")?;
    command.stdin(Stdio::null()).stdout(appender(output.path())?).stderr(appender(output.path())?);
    let status = command.status().with_context(|| format!("starting {command:?}"))?;
    print!("{}", String::from_utf8_lossy(&std::fs::read(output.path())?));
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

/// Runs `command` like [`run_shown`]; it may run other programs, as `cargo test` does. Past `limit`
/// it kills the command and its children. A hanging test thus fails, and the next steps still run.
pub fn run_shown_limited(command: &mut Command, limit: Duration) -> Result<()> {
    let mut child = command.spawn().with_context(|| format!("starting {command:?}"))?;
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => bail!("{command:?} ended with {status}"),
            None if Instant::now() >= deadline => break,
            None => thread::sleep(POLL),
        }
    }
    let killed = kill(&children(child.id()));
    child.kill()?;
    child.wait()?;
    killed?;
    bail!("{command:?} did not end within {} s and was killed", limit.as_secs())
}

fn children(parent: u32) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = processes.filter_map(|entry| entry.file_name().into_string().ok());
    let is_child = |pid: &String| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The command name in parentheses may contain spaces; state and parent follow it.
        let after_name = stat.rsplit_once(") ").map(|(_, after)| after);
        let field = after_name.and_then(|after| after.split(' ').nth(1));
        field.and_then(|it| it.parse().ok()) == Some(parent)
    };
    names.filter(is_child).collect()
}

/// Kills processes with SIGKILL. A process that has ended is no error.
pub fn kill(pids: &[String]) -> Result<()> {
    if pids.is_empty() {
        return Ok(());
    }
    // The shell's own `kill`: the program of that name belongs to a package that may be missing.
    let mut shell = Command::new("sh");
    shell.args(["-c", "kill -KILL \"$@\"", "sh"]).args(pids).stderr(Stdio::null());
    shell.status().context("starting sh to kill processes")?;
    Ok(())
}

/// Returns the same command with the prefix `words`, which runs the command after it.
pub fn within(words: &[String], command: &Command) -> Command {
    let mut all = words.iter().map(AsRef::as_ref).chain([command.get_program()]);
    let mut wrapped = Command::new(all.next().unwrap_or_default());
    wrapped.args(all).args(command.get_args());
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_before_a_command_run_it() {
        let mut command = Command::new("echo");
        command.args(["a b", "c"]);
        let words = ["sh", "-c", "\"$@\"", "sh"].map(str::to_owned);
        for words in [&words[..], &[]] {
            let (_, printed) =
                run_limited(&mut within(words, &command), Duration::from_secs(20)).unwrap();
            assert_eq!(printed, "a b c\n");
        }
    }

    #[test]
    fn what_a_command_runs_is_killed_with_it_at_the_limit() {
        let shell = |script: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", script]);
            shell
        };
        let started = Instant::now();
        let long = Duration::from_secs(50);
        run_shown_limited(&mut shell("exit 0"), long).unwrap();
        run_shown_limited(&mut shell("exit 3"), long).unwrap_err();
        let file = tempfile::NamedTempFile::new().unwrap();
        let script = format!("sleep 60 & echo $! > {}; wait", file.path().display());
        let error = run_shown_limited(&mut shell(&script), Duration::from_millis(500)).unwrap_err();
        assert!(error.to_string().contains("did not end within 0 s"), "{error}");
        assert!(started.elapsed() < long);
        let pid = std::fs::read_to_string(file.path()).unwrap();
        // A zombie that nothing has reaped yet has ended as well.
        let is_running = || {
            let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
            state.is_ok_and(|state| !state.contains(") Z "))
        };
        while is_running() {
            assert!(started.elapsed() < long, "still runs");
            thread::sleep(POLL);
        }
    }

    #[test]
    fn a_child_past_its_limit_is_killed_and_both_streams_are_kept() {
        let mut both = Command::new("sh");
        both.args(["-c", "echo out; echo err >&2; exit 3"]);
        let (ended, printed) = run_limited(&mut both, Duration::from_secs(20)).unwrap();
        assert_eq!(ended, Ended::Exited(false));
        assert!(printed.contains("out") && printed.contains("err"), "{printed}");

        let mut slow = Command::new("sleep");
        slow.arg("60");
        let started = Instant::now();
        let (ended, _) = run_limited(&mut slow, Duration::from_millis(100)).unwrap();
        assert_eq!(ended, Ended::TimedOut);
        assert!(started.elapsed() < Duration::from_secs(30));
    }
}
