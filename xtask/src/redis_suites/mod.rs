//! Test suites of other projects, run on a node's Redis listener. They are fetched, never copied.

mod outcomes;
mod suites;

use crate::programs::{self, STELE};
use crate::tools;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail, ensure};
use outcomes::{Outcomes, Skips};
use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use suites::{Place, SUITES};
use xtask::flags::Flags;

const STARTED_WITHIN: Duration = Duration::from_secs(60);

/// Runs the suites, or those that `--only` names, and prints what each of their tests came to. Fails if a
/// test fails that the list of skips does not name. With `--address` they run on a server that is running.
pub(crate) fn run(workspace: &Workspace, mut flags: Flags) -> Result<()> {
    tools::require(tools::FOR_REDIS_SUITES)?;
    let (only, address) = (flags.value("--only")?, flags.value("--address")?);
    let is_short = flags.switch("--short");
    flags.end()?;
    let work = workspace.target.join("redis-suites");
    std::fs::create_dir_all(&work)?;
    let skips = Skips::load(&workspace.root.join("cluster-tests/redis/skips.toml"))?;
    let stele = programs::build(workspace, STELE, false)?;
    let mut all = Vec::new();
    for suite in SUITES.iter().filter(|suite| only.as_deref().is_none_or(|it| it == suite.name)) {
        let place = Place { sources: &workspace.root.join("cluster-tests/redis"), work: &work };
        let text = match &address {
            Some(address) => (suite.run)(&place, address, is_short)?,
            None => {
                let server = Server::start(&stele, &work, suite.port)?;
                let run = (suite.run)(&place, &server.address, is_short);
                run.with_context(|| format!("{}: the node printed {}", suite.name, server.log()))?
            }
        };
        let outcomes = Outcomes::of(suite, &text, &skips)?;
        print!("{}", outcomes.row());
        all.push(outcomes);
    }
    ensure!(!all.is_empty(), "no suite has this name; there are {}", names());
    for outcomes in &all {
        print!("{}", outcomes.details());
    }
    match all.iter().map(Outcomes::failed).sum::<usize>() {
        0 => Ok(()),
        failed => bail!(
            "{failed} tests of other projects failed; skips need a line in cluster-tests/redis/skips.toml"
        ),
    }
}

fn names() -> String {
    SUITES.iter().map(|suite| suite.name).collect::<Vec<_>>().join(", ")
}

/// Node with a Redis listener, killed on drop.
struct Server {
    process: Child,
    log: PathBuf,
    /// Of clients of Redis.
    address: String,
    _data: tempfile::TempDir,
}

impl Server {
    /// Starts a node of which the Redis listener has this port, or any if it is 0.
    fn start(stele: &Path, work: &Path, port: u16) -> Result<Self> {
        let data = tempfile::tempdir_in(work)?;
        let bound = TcpListener::bind(("127.0.0.1", port));
        let bound =
            bound.with_context(|| format!("the suite needs port {port} of this machine"))?;
        let own = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let address = bound.local_addr()?.to_string();
        drop(bound);
        let log = data.path().join("log");
        let file = File::create(&log)?;
        let process = Command::new(stele)
            .args(["server", "--listen", &own, "--redis-listen", &address, "--redis-flush", "true"])
            .arg("--store")
            .arg(data.path().join("store"))
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .context("starting a node")?;
        let mut server = Self { process, log, address, _data: data };
        let started = Instant::now();
        while TcpStream::connect(&server.address).is_err() {
            ensure!(server.process.try_wait()?.is_none(), "the node has ended: {}", server.log());
            ensure!(started.elapsed() < STARTED_WITHIN, "the node is not ready: {}", server.log());
            thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    /// Returns the end of what the node printed.
    fn log(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
