//! Statistics and signals of a process.

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::time::Duration;

/// Clock ticks of `/proc/PID/stat`, the same on every Linux machine.
const TICKS_PER_SECOND: f64 = 100.0;

pub(crate) fn signal(process: u32, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(process as i32).context("no process")?;
    kill_process(pid, signal).with_context(|| format!("signal to {process}"))
}

/// Returns the bytes that the process has sent to the storage layer.
pub(crate) fn written_bytes(process: u32) -> Result<u64> {
    field(process, "io", "write_bytes:")
}

/// Returns the peak resident memory in bytes.
pub(crate) fn peak_memory_bytes(process: u32) -> Result<u64> {
    Ok(field(process, "status", "VmHWM:")? * 1024)
}

/// Returns the TCP ports on which a process listens.
pub(crate) fn listening(process: u32) -> Result<Vec<u16>> {
    let mut sockets = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{process}/fd"))? {
        // It may be closed meanwhile.
        if let Ok(link) = std::fs::read_link(entry?.path()) {
            sockets.push(link.display().to_string());
        }
    }
    let mut ports = Vec::new();
    for table in ["net/tcp", "net/tcp6"] {
        for line in read(process, table)?.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (Some(local), Some(&"0A"), Some(inode)) =
                (words.get(1), words.get(3), words.get(9))
            else {
                continue;
            };
            let port = local.rsplit_once(':').map(|(_, port)| u16::from_str_radix(port, 16));
            if sockets.contains(&format!("socket:[{inode}]")) {
                ports.push(port.context("no port")??);
            }
        }
    }
    Ok(ports)
}

pub(crate) fn processor_time(process: u32) -> Result<Duration> {
    let text = read(process, "stat")?;
    // The name, in parentheses, may contain any character; the fields follow the last parenthesis.
    let rest = text.rsplit_once(')').context("no name in stat")?.1;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok());
    let (user, system) = ticks(11).zip(ticks(12)).context("stat has too few fields")?;
    Ok(Duration::from_secs_f64((user + system) as f64 / TICKS_PER_SECOND))
}

/// Returns the thread of a process with this name prefix. The kernel truncates names to 15 bytes.
pub(crate) fn thread(process: u32, name: &str) -> Result<u32> {
    for entry in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let entry = entry?;
        // A thread that ended meanwhile has no name.
        let Ok(found) = std::fs::read_to_string(entry.path().join("comm")) else { continue };
        if found.starts_with(name) {
            return entry.file_name().to_string_lossy().parse().context("the thread has no ID");
        }
    }
    bail!("process {process} has no thread {name}")
}

/// Returns the process that traces a thread: 0 for none, `None` if the thread has ended.
pub(crate) fn tracer(thread: u32) -> Result<Option<u32>> {
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
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(listening(me).unwrap().contains(&socket.local_addr().unwrap().port()));
        processor_time(me).unwrap();
        assert_eq!(tracer(me).unwrap(), Some(0));
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        assert_eq!(tracer(ended.id()).unwrap(), None);
        let name = std::fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(thread(me, name.trim()).unwrap(), me);
        assert!(thread(me, "absent").is_err());
    }
}
