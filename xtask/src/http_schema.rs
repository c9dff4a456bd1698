//! `http-schema`: requests that schemathesis derives from the OpenAPI description of `/v1/`, sent to a node.
//!
//! A status or header that the description lacks, a body of another shape, an accepted request that the
//! description forbids, a refused one that it allows, or a failure of the server ends it.

use crate::local_server::LocalServer;
use crate::process::{Ended, run_limited};
use crate::programs::{self, STELE};
use crate::tools::{self, python_environment};
use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
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
    let requirements = sources.join("requirements.txt");
    let python = python_environment(&work.join("python"), Some(&requirements))?;
    let node = match &address {
        Some(_) => None,
        None => Some(start(&programs::build(workspace, STELE, false)?, &work)?),
    };
    let address = node.as_ref().map(|node| node.address.clone()).or(address);
    let address = address.context("a node has an address")?;
    let mut command = Command::new(python.with_file_name("schemathesis"));
    command.arg("--config-file").arg(sources.join("schemathesis.toml"));
    command.args(["run", &format!("http://{address}/v1/openapi.json")]);
    // It has no end.
    command.args(["--exclude-path", "/v1/watch"]);
    command.args(["--phases", "coverage,fuzzing", "--max-examples", EXAMPLES]);
    command.args(["--continue-on-failure", "--request-timeout", "30"]);
    command.args(seed.iter().flat_map(|seed| ["--seed", seed])).current_dir(&work);
    let (ended, printed) = run_limited(&mut command, RUN_LIMIT)?;
    print!("{printed}");
    let log = || node.as_ref().map_or(String::new(), LocalServer::log);
    ensure!(ended == Ended::Exited(true), "schemathesis: {ended:?}; the node printed {}", log());
    Ok(())
}

/// Starts a node, and waits until it executes requests.
fn start(stele: &Path, work: &Path) -> Result<LocalServer> {
    let node = LocalServer::start(work, 0, |data, address| {
        let mut command = Command::new(stele);
        command.args(["server", "--listen", address, "--store"]).arg(data.join("store"));
        command
    })?;
    let started = Instant::now();
    while !is_ready(&node.address) {
        ensure!(started.elapsed() < STARTED_WITHIN, "the node is not ready: {}", node.log());
        thread::sleep(Duration::from_millis(50));
    }
    Ok(node)
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
