//! `http-schema`: requests that schemathesis derives from the OpenAPI description of `/v1/`, sent to a node.
//!
//! A status or header that the description lacks, a body of another shape, an accepted request that the
//! description forbids, a refused one that it allows, or a failure of the server ends it.

use crate::process::{Ended, run_limited, run_shown};
use crate::programs::{self, STELE};
use crate::tools::{self, PYTHON};
use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use xtask::flags::Flags;

const STARTED_WITHIN: Duration = Duration::from_secs(60);
const RUN_LIMIT: Duration = Duration::from_secs(300);
/// Requests for each operation beside those of the coverage of the description.
const EXAMPLES: &str = "20";

/// Runs schemathesis on a node, or with `--address` on one that is running. `--seed` repeats a run.
pub(crate) fn run(workspace: &Workspace, mut flags: Flags) -> Result<()> {
    tools::require(tools::FOR_HTTP_SCHEMA)?;
    let (address, seed) = (flags.value("--address")?, flags.value("--seed")?);
    flags.end()?;
    let sources = workspace.root.join("cluster-tests/http");
    let work = workspace.target.join("http-schema");
    std::fs::create_dir_all(&work)?;
    let schemathesis = schemathesis(&sources, &work)?;
    let node = match &address {
        Some(_) => None,
        None => Some(Node::start(&programs::build(workspace, STELE, false)?, &work)?),
    };
    let address = node.as_ref().map(|node| node.address.clone()).or(address);
    let address = address.context("a node has an address")?;
    let mut command = Command::new(schemathesis);
    command.arg("--config-file").arg(sources.join("schemathesis.toml"));
    command.args(["run", &format!("http://{address}/v1/openapi.json")]);
    // It has no end.
    command.args(["--exclude-path", "/v1/watch"]);
    command.args(["--phases", "coverage,fuzzing", "--max-examples", EXAMPLES]);
    command.args(["--continue-on-failure", "--request-timeout", "30"]);
    command.args(seed.iter().flat_map(|seed| ["--seed", seed])).current_dir(&work);
    let (ended, printed) = run_limited(&mut command, RUN_LIMIT)?;
    print!("{printed}");
    let log = || node.as_ref().map_or(String::new(), Node::log);
    ensure!(ended == Ended::Exited(true), "schemathesis: {ended:?}; the node printed {}", log());
    Ok(())
}

/// Installs schemathesis, and returns its program.
fn schemathesis(sources: &Path, work: &Path) -> Result<PathBuf> {
    let python = work.join("python/bin/python");
    if !python.is_file() {
        let mut create = Command::new(PYTHON);
        run_shown(create.args(["-m", "venv"]).arg(work.join("python")))?;
    }
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    run_shown(install.arg("--requirement").arg(sources.join("requirements.txt")))?;
    Ok(work.join("python/bin/schemathesis"))
}

/// A node, killed on drop.
struct Node {
    process: Child,
    log: PathBuf,
    address: String,
    _data: tempfile::TempDir,
}

impl Node {
    fn start(stele: &Path, work: &Path) -> Result<Self> {
        let data = tempfile::tempdir_in(work)?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let log = data.path().join("log");
        let file = File::create(&log)?;
        let process = Command::new(stele)
            .args(["server", "--listen", &address, "--store"])
            .arg(data.path().join("store"))
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .context("starting a node")?;
        let mut node = Self { process, log, address, _data: data };
        let started = Instant::now();
        while !is_ready(&node.address) {
            ensure!(node.process.try_wait()?.is_none(), "the node has ended: {}", node.log());
            ensure!(started.elapsed() < STARTED_WITHIN, "the node is not ready: {}", node.log());
            thread::sleep(Duration::from_millis(50));
        }
        Ok(node)
    }

    /// Returns the end of what the node printed.
    fn log(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns whether every region of a node has a leader.
fn is_ready(address: &str) -> bool {
    let answer = || -> Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(STARTED_WITHIN))?;
        let request =
            format!("GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    answer().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 "))
}
