//! Client programs run beside the cluster: their last line is a JSON object.

use anyhow::{Context, Result};
use std::path::Path;
use std::process::{Command, Stdio};
use tokio::task::JoinHandle;

/// What a program printed.
#[derive(Debug)]
pub struct Printed {
    pub succeeded: bool,
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

/// Starts a program; the handle brings what it printed.
pub fn start(mut command: Command) -> JoinHandle<Result<Printed>> {
    tokio::task::spawn_blocking(move || {
        command.stdin(Stdio::null());
        let output = command.output().with_context(|| format!("starting {command:?}"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let last = text.lines().last().unwrap_or_default();
        let object = serde_json::from_str(last).unwrap_or(serde_json::Value::Null);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok(Printed { succeeded: output.status.success() && object.is_object(), object, errors })
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
