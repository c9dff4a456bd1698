//! Results with machine and commit: one JSON line per measurement.

use crate::args::Args;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

pub(super) struct Report {
    name: &'static str,
    origin: Value,
    save_to: Option<PathBuf>,
}

impl Report {
    pub(super) fn start(name: &'static str, args: &Args, settings: &Value) -> Result<Self> {
        let origin = json!({ "commit": commit(), "machine": machine(), "unix_s": unix_seconds() });
        println!("bench {name}: {settings}");
        println!("origin: {origin}");
        let save_to = if args.save() { Some(results_folder()?.join(name)) } else { None };
        Ok(Self { name, origin, save_to: save_to.map(|path| path.with_extension("jsonl")) })
    }

    /// Prints one measurement and, with `--save`, appends it to the results.
    pub(super) fn line(&self, settings: &Value, result: &Value) -> Result<()> {
        let line = json!({
            "bench": self.name, "origin": self.origin, "settings": settings, "result": result,
        });
        println!("{}", json!({ "settings": settings, "result": result }));
        if let Some(path) = &self.save_to {
            let mut file = std::fs::File::options().create(true).append(true).open(path)?;
            writeln!(file, "{line}").with_context(|| format!("appending to {}", path.display()))?;
        }
        Ok(())
    }
}

/// Creates a directory for one measurement's store, removed afterwards.
pub(super) fn scratch(args: &Args) -> Result<tempfile::TempDir> {
    let dir = args.dir();
    std::fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    tempfile::Builder::new()
        .prefix("stele-bench-")
        .tempdir_in(&dir)
        .with_context(|| format!("creating a folder in {}", dir.display()))
}

fn results_folder() -> Result<PathBuf> {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let folder = here.unwrap_or_else(|| Path::new("lab").to_owned()).join("results");
    std::fs::create_dir_all(&folder).context("creating lab/results")?;
    Ok(folder)
}

fn commit() -> Option<String> {
    let output = Command::new("git").args(["describe", "--always", "--dirty"]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn machine() -> Value {
    let field = |file: &str, name: &str| {
        let text = std::fs::read_to_string(file).ok()?;
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split(':').nth(1)?.trim().to_owned())
    };
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok();
    json!({
        "processor": field("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism().map(usize::from).ok(),
        "memory": field("/proc/meminfo", "MemTotal"),
        "kernel": kernel.map(|text| text.trim().to_owned()),
    })
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
