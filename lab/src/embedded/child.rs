//! Measurements in child processes of this program: `lab one <name> <settings>` runs one and
//! prints its result as the last line.

use crate::embedded::{
    amplification, engine, index, index_memory, log, memory, placement, restart,
};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::process::{Child, Command, Stdio};

/// Internal command of the child process.
pub(super) const COMMAND: &str = "one";

pub(super) fn serve(arguments: &[String]) -> Result<()> {
    let [name, settings] = arguments else { bail!("`{COMMAND}` takes a name and settings") };
    let settings: Value = serde_json::from_str(settings).context("reading the settings")?;
    let result = match name.as_str() {
        "index" => index::one(&settings)?,
        "engine" => engine::one(&settings)?,
        "log" => log::one(&settings)?,
        "restart-fill" => restart::fill(&settings)?,
        "restart-open" => restart::open(&settings)?,
        "amplification" => amplification::one(&settings)?,
        "memory" => memory::one(&settings)?,
        "index-memory-fill" => index_memory::fill(&settings)?,
        "placement-round" => placement::measure(&settings)?,
        "index-memory-open" => index_memory::open(&settings)?,
        other => bail!("unknown measurement `{other}`"),
    };
    println!("{result}");
    Ok(())
}

pub(super) fn start(name: &str, settings: &Value) -> Result<Child> {
    let program = std::env::current_exe().context("finding this program")?;
    Command::new(program)
        .args([COMMAND, name, &settings.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting a measurement")
}

/// Runs a measurement. Returns its last line.
pub(super) fn measure(name: &str, settings: &Value) -> Result<Value> {
    let output = start(name, settings)?.wait_with_output()?;
    ensure!(output.status.success(), "{name} {settings} ended with {}", output.status);
    let printed = String::from_utf8_lossy(&output.stdout);
    let line = printed.lines().last().context("the measurement printed nothing")?;
    serde_json::from_str(line).with_context(|| format!("reading `{line}`"))
}

pub(super) fn number(settings: &Value, name: &str) -> Result<u64> {
    settings[name].as_u64().with_context(|| format!("the settings have no number `{name}`"))
}

pub(super) fn text<'a>(settings: &'a Value, name: &str) -> Result<&'a str> {
    settings[name].as_str().with_context(|| format!("the settings have no text `{name}`"))
}
