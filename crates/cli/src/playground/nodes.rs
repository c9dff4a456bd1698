//! The playground's processes: one per node, each with its own directory. None outlives the
//! playground.

use crate::terminal::print;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use stele_types::{Error, Result};

const READY_WITHIN: Duration = Duration::from_secs(60);
const HOST: &str = "127.0.0.1";
/// Files that keep a node's ports, so that the same directory always has the same ones.
const PORT_FILE: &str = "port";
const REDIS_PORT_FILE: &str = "redis-port";
const LOG_FILE: &str = "log";
const SCALE_FILE: &str = "device-scale";
/// Lines and bytes of the log that an error shows.
const LOG_END_LINES: usize = 8;
const LOG_END_BYTES: u64 = 8 << 10;
const OWN_SETTINGS: [&str; 5] =
    ["STELE_LISTEN", "STELE_REDIS_LISTEN", "STELE_ADVERTISE", "STELE_JOIN", "STELE_STORE"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Up,
    /// Stopped by SIGSTOP.
    Paused,
    Down,
}

pub(super) struct Node {
    /// `n1`, `n2`, …
    pub name: String,
    /// `host:port`.
    pub address: String,
    /// `host:port` for clients of Redis.
    pub redis_address: String,
    pub state: State,
    dir: PathBuf,
    child: Option<Child>,
}

pub(super) struct Nodes {
    list: Vec<Node>,
    stores: u64,
}

impl Nodes {
    /// Creates the directories and chooses the ports. Starts no process.
    pub(super) fn new(dir: &Path, count: u64, stores: u64, base_port: Option<u16>) -> Result<Self> {
        // Ports stay bound until all are chosen, so that no port is chosen twice.
        let mut reserved = Vec::new();
        let mut list: Vec<Node> = Vec::new();
        for number in 1..=count {
            let name = format!("n{number}");
            let dir = dir.join(&name);
            fs::create_dir_all(&dir).map_err(|error| Error::io("create", &dir, error))?;
            let requested = base_port.map(|base| base.saturating_add((number - 1) as u16));
            let port = port((&name, &dir.join(PORT_FILE)), requested, &mut reserved)?;
            list.push(Node {
                name,
                address: format!("{HOST}:{port}"),
                redis_address: String::new(),
                state: State::Down,
                dir,
                child: None,
            });
        }
        // After those of all nodes, which are next to each other if a first one was requested.
        for (node, number) in list.iter_mut().zip(count..) {
            let requested = base_port.map(|base| base.saturating_add(number as u16));
            let name = format!("Redis on {}", node.name);
            let place = node.dir.join(REDIS_PORT_FILE);
            let port = port((&name, &place), requested, &mut reserved)?;
            node.redis_address = format!("{HOST}:{port}");
        }
        Ok(Self { list, stores })
    }

    pub(super) fn list(&self) -> &[Node] {
        &self.list
    }

    pub(super) fn find(&self, name: &str) -> Result<usize> {
        let found = self.list.iter().position(|node| node.name == name);
        let names = || {
            let names: Vec<&str> = self.list.iter().map(|node| node.name.as_str()).collect();
            Error::invalid(format!("there is no node `{name}`; the nodes are {}", names.join(", ")))
        };
        found.ok_or_else(names)
    }

    pub(super) fn start_all(&mut self) -> Result<()> {
        let waits: Vec<Wait> =
            (0..self.list.len()).map(|at| self.spawn(at)).collect::<Result<_>>()?;
        waits.into_iter().try_for_each(|wait| self.wait(wait))
    }

    pub(super) fn start(&mut self, at: usize) -> Result<()> {
        let wait = self.spawn(at)?;
        self.wait(wait)
    }

    fn spawn(&mut self, at: usize) -> Result<Wait> {
        let first = self.list.first().map(|node| node.address.clone()).unwrap_or_default();
        let stores = self.stores;
        let node = self.node(at)?;
        if node.state != State::Down {
            return Err(Error::invalid(format!("{} is running", node.name)));
        }
        let log_path = node.dir.join(LOG_FILE);
        let log = File::options().create(true).append(true).open(&log_path);
        let log = log.map_err(|error| Error::io("open", &log_path, error))?;
        let failed = |error| Error::io("start", "a node's process", error);
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["server", "--with-parent", &std::process::id().to_string()]);
        command.args(["--listen", &node.address, "--redis-listen", &node.redis_address]);
        for store in 1..=stores {
            command.arg("--store").arg(node.dir.join(format!("s{store}")));
        }
        command.arg("--device-scale").arg(node.dir.join(SCALE_FILE));
        if node.address != first {
            command.args(["--join", &first]);
        }
        for name in OWN_SETTINGS {
            command.env_remove(name);
        }
        // A process group of its own: an interrupt at the terminal goes to the playground only.
        command.process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().map_err(failed)?;
        let first_line = first_line(child.stdout.take());
        node.child = Some(child);
        node.state = State::Up;
        Ok(Wait { at, first_line, since: Instant::now() })
    }

    fn wait(&mut self, wait: Wait) -> Result<()> {
        let left = READY_WITHIN.saturating_sub(wait.since.elapsed());
        let line = wait.first_line.recv_timeout(left);
        if line.as_ref().is_ok_and(|line| line.starts_with("ready")) {
            return Ok(());
        }
        self.kill(wait.at)?;
        let node = self.node(wait.at)?;
        let reason = match line {
            Err(RecvTimeoutError::Timeout) => "was not ready in time",
            _ => "ended before it was ready",
        };
        Err(Error::Refused(format!("{} {reason}{}", node.name, node.log_end())))
    }

    /// Fails with the end of the log of a node that ended by itself.
    pub(super) fn check_running(&mut self) -> Result<()> {
        self.check_exits();
        match self.list.iter().find(|node| node.state == State::Down) {
            Some(node) => Err(Error::Refused(format!("{} ended{}", node.name, node.log_end()))),
            None => Ok(()),
        }
    }

    pub(super) fn log_ends(&self) -> String {
        self.list.iter().map(|node| format!("\n{}{}", node.name, node.log_end())).collect()
    }

    pub(super) fn kill(&mut self, at: usize) -> Result<()> {
        let node = self.node(at)?;
        if let Some(mut child) = node.child.take() {
            // The process may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
        node.state = State::Down;
        Ok(())
    }

    /// Makes the devices of a node slower by `factor`, while it runs and at later starts; 1 makes them
    /// as fast as they are.
    pub(super) fn slow(&mut self, at: usize, factor: u32) -> Result<()> {
        let path = self.node(at)?.dir.join(SCALE_FILE);
        // The node reads the file all the time: it must never see a part of the number.
        let new = path.with_extension("new");
        let written = fs::write(&new, factor.to_string()).and_then(|()| fs::rename(&new, &path));
        written.map_err(|error| Error::io("write", &path, error))
    }

    pub(super) fn pause(&mut self, at: usize) -> Result<()> {
        self.signal(at, rustix::process::Signal::STOP, State::Up, State::Paused)
    }

    pub(super) fn resume(&mut self, at: usize) -> Result<()> {
        self.signal(at, rustix::process::Signal::CONT, State::Paused, State::Up)
    }

    fn signal(
        &mut self,
        at: usize,
        signal: rustix::process::Signal,
        from: State,
        to: State,
    ) -> Result<()> {
        let node = self.node(at)?;
        if node.state != from {
            let is = format!("{:?}", node.state).to_lowercase();
            return Err(Error::invalid(format!("{} is {is}", node.name)));
        }
        let failed =
            |error: rustix::io::Errno| Error::io("signal", "a node's process", error.into());
        if let Some(child) = &node.child {
            let id = rustix::process::Pid::from_child(child);
            rustix::process::kill_process(id, signal).map_err(failed)?;
        }
        node.state = to;
        Ok(())
    }

    pub(super) fn check_exits(&mut self) {
        for node in &mut self.list {
            if let Some(child) = &mut node.child
                && child.try_wait().is_ok_and(|status| status.is_some())
            {
                node.child = None;
                node.state = State::Down;
            }
        }
    }

    pub(super) fn kill_all(&mut self) {
        for at in 0..self.list.len() {
            // Only an unknown node fails.
            let _ = self.kill(at);
        }
    }

    fn node(&mut self, at: usize) -> Result<&mut Node> {
        self.list.get_mut(at).ok_or_else(|| Error::invalid("there is no such node"))
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.kill_all();
    }
}

struct Wait {
    at: usize,
    first_line: Receiver<String>,
    since: Instant,
}

/// Receives the first line that a process prints. Further output is read and discarded, so that the
/// process never blocks.
fn first_line(stdout: Option<ChildStdout>) -> Receiver<String> {
    let (send, first_line) = channel();
    std::thread::spawn(move || {
        let Some(stdout) = stdout else { return };
        let mut reader = BufReader::new(stdout);
        let mut line = String::new();
        if reader.read_line(&mut line).is_ok() && !line.is_empty() {
            // The receiver may have timed out.
            let _ = send.send(line);
        }
        drop(send);
        let _ = std::io::copy(&mut reader, &mut std::io::sink());
    });
    first_line
}

impl Node {
    fn log_end(&self) -> String {
        let path = self.dir.join(LOG_FILE);
        let head = format!("; the end of its log ({}):", path.display());
        match log_end(&path) {
            Ok(lines) if !lines.is_empty() => {
                lines.iter().fold(head, |text, line| format!("{text}\n    {line}"))
            }
            Ok(_) => "; its log is empty".to_owned(),
            Err(error) => format!("; its log {}: {error}", path.display()),
        }
    }
}

fn log_end(path: &Path) -> std::io::Result<Vec<String>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_END_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(LOG_END_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let mut lines: Vec<String> = text
        .lines()
        .rev()
        .filter(|l| !l.trim().is_empty())
        .take(LOG_END_LINES)
        .map(plain)
        .collect();
    lines.reverse();
    Ok(lines)
}

fn plain(line: &str) -> String {
    let mut out = String::new();
    let mut is_escape = false;
    for character in line.chars() {
        match (is_escape, character) {
            (false, '\u{1b}') => is_escape = true,
            (false, _) => out.push(character),
            (true, _) => is_escape = !character.is_ascii_alphabetic(),
        }
    }
    out
}

/// Returns the port recorded in the file, else the requested one, else a free one; instead of one
/// that is in use the next free one, which it records and prints.
fn port(
    (name, path): (&str, &Path),
    requested: Option<u16>,
    reserved: &mut Vec<TcpListener>,
) -> Result<u16> {
    let recorded = fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
    let wanted = recorded.or(requested).unwrap_or(0);
    let listener = next_free(wanted)?;
    let bound = listener.local_addr();
    let port = bound.map_err(|error| Error::io("bind a port of", HOST, error))?.port();
    reserved.push(listener);
    if wanted != 0 && port != wanted {
        print(&format!("port {wanted} is in use: {name} takes {port}\n"));
    }
    if recorded != Some(port) {
        fs::write(path, port.to_string()).map_err(|error| Error::io("write", path, error))?;
    }
    Ok(port)
}

/// Binds the wanted port, or the next one that is free; 0 stands for any.
fn next_free(wanted: u16) -> Result<TcpListener> {
    let mut port = wanted;
    loop {
        match TcpListener::bind((HOST, port)) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && port < u16::MAX => {
                port += 1;
            }
            Err(error) => {
                return Err(Error::io("bind a port of", format!("{HOST}:{port}"), error));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_end_of_a_log_is_its_last_lines_without_colours() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let text: String = (0..5000).map(|n| format!("\u{1b}[2mline\u{1b}[0m {n}\n\n")).collect();
        fs::write(&path, text).unwrap();
        let lines = log_end(&path).unwrap();
        assert_eq!(lines.len(), LOG_END_LINES);
        assert_eq!((lines[0].as_str(), lines[7].as_str()), ("line 4992", "line 4999"));
    }

    #[test]
    fn instead_of_a_port_in_use_the_next_free_one_is_taken() {
        let port_of =
            |node: &Node| node.address.rsplit_once(':').unwrap().1.parse::<u16>().unwrap();
        let held = next_free(20_360).unwrap();
        let busy = held.local_addr().unwrap().port();
        let dir = tempfile::tempdir().unwrap();
        let ports = |base| {
            let nodes = Nodes::new(dir.path(), 2, 1, Some(base)).unwrap();
            nodes.list().iter().map(port_of).collect::<Vec<_>>()
        };
        let first = ports(busy);
        assert!(first[0] > busy && first[1] > first[0], "{first:?} beside {busy}");
        drop(held);
        assert_eq!(ports(busy), first, "a directory keeps its port");
        let held = TcpListener::bind((HOST, first[0])).unwrap();
        let moved = ports(busy);
        assert!(!moved.contains(&first[0]), "{moved:?}");
        drop(held);
        assert_eq!(ports(busy), moved, "the new port is recorded");
    }

    #[test]
    fn ports_are_free_distinct_and_the_same_again() {
        let dir = tempfile::tempdir().unwrap();
        let addresses = |base| {
            let nodes = Nodes::new(dir.path(), 3, 1, base).unwrap();
            let both = |node: &Node| [node.address.clone(), node.redis_address.clone()];
            nodes.list().iter().flat_map(both).collect::<Vec<_>>()
        };
        let first = addresses(None);
        let all: HashSet<&String> = first.iter().collect();
        assert_eq!(all.len(), 6, "{first:?}");
        assert_eq!(addresses(None), first);
        assert_eq!(addresses(Some(9)), first, "a directory keeps its port");
        let other = tempfile::tempdir().unwrap();
        let nodes = Nodes::new(other.path(), 2, 1, Some(20_160)).unwrap();
        assert!(nodes.find("n3").unwrap_err().to_string().contains("n1, n2"));
    }
}
