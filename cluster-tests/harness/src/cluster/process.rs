//! What the kernel says of a process.

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::time::Duration;

/// Clock ticks of `/proc/PID/stat`, the same on every Linux machine.
const TICKS_PER_SECOND: f64 = 100.0;

/// Sends a signal.
pub fn signal(process: u32, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(process as i32).context("no process")?;
    kill_process(pid, signal).with_context(|| format!("signal to {process}"))
}

/// Bytes the process caused to be sent to the storage layer since it started.
pub fn written_bytes(process: u32) -> Result<u64> {
    field(process, "io", "write_bytes:")
}

/// The most memory it held at once, in bytes.
pub fn peak_memory_bytes(process: u32) -> Result<u64> {
    Ok(field(process, "status", "VmHWM:")? * 1024)
}

/// Processor time it used.
pub fn processor_time(process: u32) -> Result<Duration> {
    let text = read(process, "stat")?;
    // The name, in brackets, may hold anything; the fields follow the last bracket.
    let rest = text.rsplit_once(')').context("no name in stat")?.1;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok());
    let (user, system) = ticks(11).zip(ticks(12)).context("stat has too few fields")?;
    Ok(Duration::from_secs_f64((user + system) as f64 / TICKS_PER_SECOND))
}

/// The thread of a process whose name begins so. Names are cut off after 15 bytes.
pub fn thread(process: u32, name: &str) -> Result<u32> {
    for entry in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let entry = entry?;
        // One that ended meanwhile has no name.
        let Ok(found) = std::fs::read_to_string(entry.path().join("comm")) else { continue };
        if found.starts_with(name) {
            return entry.file_name().to_string_lossy().parse().context("no number of a thread");
        }
    }
    bail!("process {process} has no thread {name}")
}

/// The process that traces a thread; 0 if none does, nothing if the thread has ended.
pub fn tracer(thread: u32) -> Result<Option<u32>> {
    match field(thread, "status", "TracerPid:") {
        Err(_) if !Path::new(&format!("/proc/{thread}")).exists() => Ok(None),
        found => found.map(|process| Some(process as u32)),
    }
}

fn field(process: u32, file: &str, name: &str) -> Result<u64> {
    let text = read(process, file)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.with_context(|| format!("no {name} in /proc/{process}/{file}"))
}

fn read(process: u32, file: &str) -> Result<String> {
    let path = format!("/proc/{process}/{file}");
    std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_figures_are_there() {
        let me = std::process::id();
        assert!(peak_memory_bytes(me).unwrap() > 100_000);
        written_bytes(me).unwrap();
        processor_time(me).unwrap();
        assert_eq!(tracer(me).unwrap(), Some(0));
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        assert_eq!(tracer(ended.id()).unwrap(), None);
        let name = std::fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(thread(me, name.trim()).unwrap(), me);
        assert!(thread(me, "nobody").is_err());
    }
}
