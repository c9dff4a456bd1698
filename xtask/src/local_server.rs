//! Server on this machine for one command: a node, or the server of another project.

use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const STARTED_WITHIN: Duration = Duration::from_secs(60);

/// Process that serves one address, killed on drop.
pub(crate) struct LocalServer {
    process: Child,
    log: PathBuf,
    /// Address of clients.
    pub address: String,
    _data: tempfile::TempDir,
}

impl LocalServer {
    /// Starts a node of which the Redis listener has this port, or any if it is 0.
    pub(crate) fn redis_node(stele: &Path, work: &Path, port: u16) -> Result<Self> {
        let own = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        Self::start(work, port, |data, address| {
            let mut command = Command::new(stele);
            command.args(["server", "--listen", &own, "--redis-listen", address]);
            command.args(["--redis-flush", "true", "--store"]).arg(data.join("store"));
            command
        })
    }

    /// Starts a program that serves an address and keeps its files in a folder.
    pub(crate) fn start(
        work: &Path,
        port: u16,
        command: impl FnOnce(&Path, &str) -> Command,
    ) -> Result<Self> {
        let data = tempfile::tempdir_in(work)?;
        let bound = TcpListener::bind(("127.0.0.1", port));
        let bound = bound.with_context(|| format!("port {port} of this machine is needed"))?;
        let address = bound.local_addr()?.to_string();
        drop(bound);
        let log = data.path().join("log");
        let file = File::create(&log)?;
        let mut command = command(data.path(), &address);
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let process = command.spawn().with_context(|| format!("starting {command:?}"))?;
        let mut server = Self { process, log, address, _data: data };
        let started = Instant::now();
        while TcpStream::connect(&server.address).is_err() {
            ensure!(server.process.try_wait()?.is_none(), "the server ended: {}", server.log());
            ensure!(started.elapsed() < STARTED_WITHIN, "it is not ready: {}", server.log());
            thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    /// Returns the end of what the server printed.
    pub(crate) fn log(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
