//! One `stele server` process.

use super::process;
use super::syncs::{Injection, LOG_THREADS, TracedSyncs};
use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use stele_types::StoreId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const READY_LIMIT: Duration = Duration::from_secs(30);
const READY_POLL: Duration = Duration::from_millis(5);

#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub stele: PathBuf,
    /// "host:port".
    pub address: String,
    /// "host:port" of its probes; `None`: that of the node.
    pub health: Option<String>,
    /// Address of a node of the cluster to join; `None` creates a cluster.
    pub join: Option<String>,
    pub stores: Vec<PathBuf>,
    /// Directories of which the disk was replaced.
    pub replaced_disks: Vec<PathBuf>,
    /// File to which its output is appended.
    pub log: PathBuf,
    pub settings: Vec<(String, String)>,
    pub namespace: Option<String>,
}

/// A node, running or not.
#[derive(Debug)]
pub(crate) struct Node {
    pub launch: Launch,
    child: Option<Child>,
    slow: Option<TracedSyncs>,
}

impl Node {
    /// Starts the process without waiting.
    pub(crate) fn start(launch: Launch) -> Result<Self> {
        let mut node = Self { launch, child: None, slow: None };
        node.restart()?;
        Ok(node)
    }

    pub(crate) fn restart(&mut self) -> Result<()> {
        ensure!(self.child.is_none(), "{} runs already", self.launch.address);
        let log = File::options().create(true).append(true).open(&self.launch.log)?;
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("starting {command:?}"))?;
        self.child = Some(child);
        Ok(())
    }

    /// Builds the command. `setpriv` makes the kernel kill the process when the harness ends.
    fn command(&self) -> Command {
        let launch = &self.launch;
        let mut command = match &launch.namespace {
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace, "setpriv"]);
                command
            }
            None => Command::new("setpriv"),
        };
        command.args(["--pdeathsig", "KILL", "--"]).arg(&launch.stele).arg("server");
        command.args(["--listen", &launch.address]);
        launch.stores.iter().for_each(|dir| {
            command.arg("--store").arg(dir);
        });
        launch.replaced_disks.iter().for_each(|dir| {
            command.arg("--replaced-disk").arg(dir);
        });
        if let Some(health) = &launch.health {
            command.args(["--health-listen", health]);
        }
        if let Some(join) = &launch.join {
            command.args(["--join", join]);
        }
        command.envs(launch.settings.iter().map(|(key, value)| (key, value)));
        command
    }

    /// "host:port".
    pub(crate) fn address(&self) -> &str {
        &self.launch.address
    }

    /// Returns the process ID. Fails if the node does not run.
    pub(crate) fn process(&self) -> Result<u32> {
        let child = self.child.as_ref();
        Ok(child.with_context(|| format!("{} does not run", self.launch.address))?.id())
    }

    /// Returns whether the harness has started the node and not stopped it.
    pub(crate) fn is_started(&self) -> bool {
        self.child.is_some()
    }

    pub(crate) fn kill(&mut self) -> Result<()> {
        self.slow = None;
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Stops the process with SIGTERM. If it does not end within `limit`, kills it and fails.
    pub(crate) async fn stop(&mut self, limit: Duration) -> Result<()> {
        self.slow = None;
        let Some(mut child) = self.child.take() else { return Ok(()) };
        process::signal(child.id(), Signal::TERM)?;
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            if let Some(status) = child.try_wait()? {
                ensure!(status.success(), "{} ended with {status}", self.launch.address);
                return Ok(());
            }
            tokio::time::sleep(READY_POLL).await;
        }
        child.kill()?;
        child.wait()?;
        bail!("{} did not stop in {limit:?}", self.launch.address)
    }

    /// Waits until the process ends by itself; returns its exit status.
    pub(crate) async fn wait_end(&mut self, limit: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        let child = self.child.as_mut().context("the node does not run")?;
        loop {
            if let Some(status) = child.try_wait()? {
                self.child = None;
                return Ok(status);
            }
            ensure!(
                Instant::now() < deadline,
                "{} is still running after {limit:?}",
                self.launch.address
            );
            tokio::time::sleep(READY_POLL).await;
        }
    }

    /// Makes the next sync of a store's log fail. The store's threads are under trace until the result
    /// is dropped.
    pub(crate) async fn fail_sync(&self, store: StoreId) -> Result<TracedSyncs> {
        let threads = LOG_THREADS.map(|prefix| format!("{prefix}{store}"));
        let trace = self.launch.log.with_extension("failed");
        let names = threads.each_ref().map(String::as_str);
        TracedSyncs::attach(self.process()?, &names, Injection::Fail { nth: 1 }, trace).await
    }

    /// Makes each sync of the log take this much longer, until the process ends or
    /// [`Node::restore_syncs`].
    pub(crate) async fn slow_syncs(&mut self, delay: Duration) -> Result<()> {
        self.slow = None;
        let trace = self.launch.log.with_extension("syncs");
        let attached =
            TracedSyncs::attach(self.process()?, &LOG_THREADS, Injection::Delay(delay), trace);
        self.slow = Some(attached.await?);
        Ok(())
    }

    /// Returns whether the syncs of the log are slowed down.
    pub(crate) fn has_slow_syncs(&self) -> bool {
        self.slow.is_some()
    }

    /// Ends what [`Node::slow_syncs`] began.
    pub(crate) fn restore_syncs(&mut self) {
        self.slow = None;
    }

    pub(crate) fn pause(&self) -> Result<()> {
        process::signal(self.process()?, Signal::STOP)
    }

    pub(crate) fn resume(&self) -> Result<()> {
        process::signal(self.process()?, Signal::CONT)
    }

    /// Fails with the last lines of its log if the process ended by itself.
    pub(crate) fn check_alive(&mut self) -> Result<()> {
        let Some(child) = &mut self.child else { return Ok(()) };
        if let Some(status) = child.try_wait()? {
            let end = tail(&self.launch.log);
            bail!("{} ended by itself with {status}:\n{end}", self.launch.address);
        }
        Ok(())
    }

    /// Waits until `/readyz` returns 200.
    pub(crate) async fn wait_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            self.check_alive()?;
            let probed = self.launch.health.as_deref().unwrap_or(&self.launch.address);
            let answer = get(probed, "/readyz", Duration::from_millis(500)).await;
            if matches!(answer, Ok((200, _))) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let end = tail(&self.launch.log);
                bail!("{} is not ready after {READY_LIMIT:?}: {answer:?}\n{end}", self.address());
            }
            tokio::time::sleep(READY_POLL).await;
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // SIGKILL also ends a paused process. A failure means that the process has ended.
        let _ = self.kill();
    }
}

/// Makes a `GET` request; returns status and body.
pub(crate) async fn get(address: &str, path: &str, limit: Duration) -> Result<(u16, String)> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        let head = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        anyhow::Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = tokio::time::timeout(limit, exchange).await.context("no response in time")??;
    let (head, body) = answer.split_once("\r\n\r\n").context("not an HTTP response")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.context("no status")?, body.to_owned()))
}

/// Returns the last 3,000 bytes of a log.
pub(crate) fn tail(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let from = text.len().saturating_sub(3_000);
    String::from_utf8_lossy(text.get(from..).unwrap_or_default()).into_owned()
}
