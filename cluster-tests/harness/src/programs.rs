//! Client programs run beside the cluster: their last line is a JSON object.

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// The longest run takes a minute where nothing else runs.
const ENDS_WITHIN: Duration = Duration::from_secs(240);
/// For a program to say where it stands.
const SAYS_WITHIN: Duration = Duration::from_secs(10);

/// What a program printed.
#[derive(Debug)]
pub struct Printed {
    pub succeeded: bool,
    /// It ended by itself.
    pub in_time: bool,
    /// Its last line.
    pub object: serde_json::Value,
    pub errors: String,
}

impl Printed {
    /// A number of the object; 0 if it is not there.
    pub fn number(&self, name: &str) -> f64 {
        self.object.get(name).and_then(serde_json::Value::as_f64).unwrap_or_default()
    }
}

/// Starts a program; the handle brings what it printed. One that takes too long is asked where it
/// stands (a Go program prints its stacks) and ended.
pub fn start(command: Command) -> JoinHandle<Result<Printed>> {
    start_for(command, ENDS_WITHIN, SAYS_WITHIN)
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
                // Not SIGQUIT: what a shell starts in the background ignores it for good.
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
        Ok(Printed { succeeded, in_time, object, errors })
    })
}

/// A go-ycsb run: `-p` settings besides the address.
pub fn ycsb(program: &Path, address: &str, command: &str, settings: &[(&str, String)]) -> Command {
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
    async fn a_program_that_takes_too_long_says_where_it_stands_and_ends() {
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
