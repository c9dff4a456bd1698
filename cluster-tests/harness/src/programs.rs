//! Client programs that run beside the cluster. The last line that one prints is a JSON object.

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Time limit of a program unless a scenario gives another one.
const TIME_LIMIT: Duration = Duration::from_secs(240);
/// Time for a program to print its stacks after the limit.
const STACKS_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Printed {
    pub succeeded: bool,
    /// Whether it ended within the limit.
    pub in_time: bool,
    pub object: serde_json::Value,
    pub text: String,
    pub errors: String,
}

impl Printed {
    /// Returns a number of the object; 0 if it is missing.
    pub(crate) fn number(&self, name: &str) -> f64 {
        self.object.get(name).and_then(serde_json::Value::as_f64).unwrap_or_default()
    }
}

/// Starts a program; the handle returns its output. A program above the limit gets SIGABRT, on
/// which a Go program prints its stacks, and is then killed.
pub(crate) fn start(command: Command) -> JoinHandle<Result<Printed>> {
    start_for(command, TIME_LIMIT, STACKS_LIMIT)
}

/// Starts a program as [`start`] does, with its own limit.
pub(crate) fn start_within(command: Command, limit: Duration) -> JoinHandle<Result<Printed>> {
    start_for(command, limit, STACKS_LIMIT)
}

fn start_for(command: Command, limit: Duration, grace: Duration) -> JoinHandle<Result<Printed>> {
    tokio::spawn(async move {
        let name = format!("{command:?}");
        let mut command = tokio::process::Command::from(command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().with_context(|| format!("starting {name}"))?;
        let process = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let output = child.wait_with_output();
        tokio::pin!(output);
        let (output, in_time) = match timeout(limit, output.as_mut()).await {
            Ok(output) => (output?, true),
            Err(_) => {
                // Not SIGQUIT: a process that a shell starts in the background ignores it.
                process.map(|process| kill_process(process, Signal::ABORT)).transpose()?;
                match timeout(grace, output.as_mut()).await {
                    Ok(output) => (output?, false),
                    Err(_) => {
                        process.map(|process| kill_process(process, Signal::KILL)).transpose()?;
                        (output.await?, false)
                    }
                }
            }
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let last = text.lines().last().unwrap_or_default();
        let object = serde_json::from_str(last).unwrap_or(serde_json::Value::Null);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let succeeded = output.status.success() && object.is_object();
        Ok(Printed { succeeded, in_time, object, text, errors })
    })
}

/// Builds a go-ycsb command with `-p` settings in addition to the address.
pub(crate) fn ycsb(
    program: &Path,
    address: &str,
    command: &str,
    settings: &[(&str, String)],
) -> Command {
    let mut process = Command::new(program);
    process.args(["-cmd", command, "-p", &format!("tikv.pd={address}"), "-p", "tikv.type=raw"]);
    process.args(["-p", "workload=core", "-p", "tikv.conncount=4"]);
    for (key, value) in settings {
        process.args(["-p", &format!("{key}={value}")]);
    }
    process
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_above_its_time_limit_prints_its_stacks_and_ends() {
        let mut command = Command::new("sh");
        command.args(["-c", "trap 'echo here >&2; exit 2' ABRT; while :; do sleep 0.05; done"]);
        let (limit, grace) = (Duration::from_millis(500), Duration::from_secs(60));
        let printed = start_for(command, limit, grace).await.unwrap().unwrap();
        assert!(!printed.succeeded && !printed.in_time, "{printed:?}");
        assert_eq!(printed.errors.trim(), "here");
        let mut command = Command::new("sh");
        command.args(["-c", "echo '{\"operations\":3}'"]);
        let printed = start_for(command, grace, grace).await.unwrap().unwrap();
        assert!(printed.succeeded && printed.in_time, "{printed:?}");
        assert_eq!(printed.number("operations"), 3.0);
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' ABRT; exec sleep 600"]);
        let printed = start_for(command, limit, limit).await.unwrap().unwrap();
        assert!(!printed.succeeded && !printed.in_time, "{printed:?}");
    }
}
