use super::three;
use crate::args::{Setup, need};
use crate::cluster::node::{Node, tail};
use crate::cluster::{Cluster, Spec};
use crate::history::{Checker, Ledger, Load, LoadOptions, Recorded};
use crate::report::{Report, percentile, rounded};
use crate::scenario::kill;
use crate::verify;
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use stele_types::Prng;

const WRITERS: usize = 3;
const NODES: usize = 3;
const LIMIT: Duration = Duration::from_secs(30);

/// Restarts before the level is raised: node, and whether it gets the present program. The last two roll a
/// node back and forward again.
const STEPS: [(usize, bool); 5] = [(0, true), (1, true), (2, true), (1, false), (1, true)];

/// Three nodes of the oldest supported version get the present one, one after the other under load; one goes
/// back and forth. Then the level is raised, after which the former program opens no directory and joins no
/// cluster. Nothing acknowledged is lost, and the histories are linearizable.
// Catalogue: 65.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let former = need(&setup.programs.former, "--former")?;
    let spec = Spec { stele: former.to_owned(), ..three(setup, &[]) };
    let cluster = Cluster::start(spec).await?;
    let checker = Checker::new(need(&setup.programs.porcupine, "--porcupine")?, setup.work());
    let prng = Prng::new(setup.seed);
    let ledger = Ledger::new(WRITERS);
    let mut upgrade =
        Upgrade { setup, former, cluster, checker, prng, ledger, restarts: Vec::new() };
    for (step, (node, is_present)) in STEPS.into_iter().enumerate() {
        upgrade.restart(step, node, is_present).await?;
        if !upgrade.all_present() {
            let refused = upgrade.finalize(0).await?;
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            let names_all = !refused.status.success() && said.contains("earlier version");
            report.require(names_all, format!("a mixed cluster is not finalized: {}", said.trim()));
        }
    }
    let formats = upgrade.formats()?;
    let is_former = formats.iter().all(|format| format == "format 2");
    report.require(
        is_former,
        format!("the directories are as the former version wrote them: {formats:?}"),
    );
    upgrade.raise(report).await?;
    upgrade.refuse_former(report).await?;
    verify::everything(&mut upgrade.cluster, &upgrade.ledger, NODES).await?;
    report.record("restarts", upgrade.restarts.len());
    report.record("restart_longest_s", rounded(percentile(&upgrade.restarts, 1.0)));
    report.record("acknowledged_writes", upgrade.ledger.acknowledged());
    kill::check(&upgrade.checker, report);
    Ok(())
}

struct Upgrade<'a> {
    setup: &'a Setup,
    former: &'a Path,
    cluster: Cluster,
    checker: Checker,
    prng: Prng,
    ledger: Ledger,
    /// Seconds of each restart.
    restarts: Vec<f64>,
}

impl Upgrade<'_> {
    fn load(&mut self, name: &str) -> Load {
        let options = LoadOptions { writers: WRITERS, recorders: 3, ..LoadOptions::default() };
        let (channels, nodes) = (&self.cluster.channels, self.cluster.addresses());
        Load::start(channels, &nodes, &options, name, self.prng.draw(), &self.ledger)
    }

    /// Checks the history of a load, and that every acknowledged write is on every replica.
    async fn check(&mut self, name: &str, recorded: &Recorded) -> Result<()> {
        self.cluster.check_alive()?;
        let verdict = self.checker.check(name, recorded).await?;
        println!("{name}: {}", verdict.result);
        verify::everything(&mut self.cluster, &self.ledger, NODES).await
    }

    /// Restarts a node with another program under load.
    async fn restart(&mut self, step: usize, node: usize, is_present: bool) -> Result<()> {
        let program = if is_present { &self.setup.stele } else { self.former };
        let name =
            format!("{step:02}-node-{node}-{}", if is_present { "present" } else { "former" });
        let load = self.load(&name);
        kill::wait(&mut self.prng, 500, 1_000).await;
        let started = Instant::now();
        let restarted = &mut self.cluster.nodes[node];
        restarted.stop(LIMIT).await?;
        restarted.launch.stele = program.to_owned();
        restarted.restart()?;
        self.cluster.wait_ready().await.with_context(|| name.clone())?;
        self.restarts.push(started.elapsed().as_secs_f64());
        kill::wait(&mut self.prng, 500, 1_000).await;
        let recorded = load.stop(&mut self.ledger).await?;
        self.check(&name, &recorded).await
    }

    fn all_present(&self) -> bool {
        self.cluster.nodes.iter().all(|node| node.launch.stele == self.setup.stele)
    }

    /// Runs `stele ctl finalize` of the present program.
    async fn finalize(&self, node: usize) -> Result<Output> {
        let mut command = Command::new(&self.setup.stele);
        let node = self.cluster.nodes.get(node).context("no such node")?;
        command.args(["ctl", "--cluster", node.address(), "finalize"]);
        Ok(tokio::task::spawn_blocking(move || command.output()).await??)
    }

    /// Returns the second line of the file `STORE` of each node.
    fn formats(&self) -> Result<Vec<String>> {
        let dirs = self.cluster.nodes.iter().flat_map(|node| &node.launch.stores);
        dirs.map(|dir| {
            let text = std::fs::read_to_string(dir.join("STORE"))?;
            Ok(text.lines().nth(1).unwrap_or_default().to_owned())
        })
        .collect()
    }

    /// Raises the level under load.
    async fn raise(&mut self, report: &mut Report) -> Result<()> {
        let load = self.load("finalize");
        kill::wait(&mut self.prng, 300, 600).await;
        let started = Instant::now();
        let raised = self.finalize(1).await?;
        report.record("finalize_s", rounded(started.elapsed().as_secs_f64()));
        let said = String::from_utf8_lossy(&raised.stdout).into_owned();
        let text = format!("{}{}", said.trim(), String::from_utf8_lossy(&raised.stderr).trim());
        report.require(
            raised.status.success() && said.starts_with("the cluster writes level 4"),
            format!("the level is raised: {text}"),
        );
        kill::wait(&mut self.prng, 300, 600).await;
        let recorded = load.stop(&mut self.ledger).await?;
        self.check("finalize", &recorded).await?;
        let formats = self.formats()?;
        let is_recorded = formats.iter().all(|format| format == "format 3");
        report.require(is_recorded, format!("every directory records it: {formats:?}"));
        Ok(())
    }

    /// Starts the former program in a directory of the cluster, and as a new node of it.
    async fn refuse_former(&mut self, report: &mut Report) -> Result<()> {
        let node = &mut self.cluster.nodes[2];
        node.stop(LIMIT).await?;
        node.launch.stele = self.former.to_owned();
        node.restart()?;
        let said = refusal(node).await?;
        let is_clear =
            said.contains("STORE has format 3, this build reads up to 2; use a newer version");
        report.require(is_clear, format!("the former program opens no directory: {said}"));
        node.launch.stele.clone_from(&self.setup.stele);
        node.restart()?;
        self.cluster.wait_ready().await?;
        let mut launch = self.cluster.next_launch()?;
        launch.stele = self.former.to_owned();
        let mut joining = Node::start(launch)?;
        let said = refusal(&mut joining).await?;
        let is_clear = said.contains("supports up to level 1: run version 0.2.0 or later there");
        report.require(is_clear, format!("the former program joins no cluster: {said}"));
        Ok(())
    }
}

/// Waits until a node ends with a failure; returns the last line of its log.
async fn refusal(node: &mut Node) -> Result<String> {
    let status = node.wait_end(LIMIT).await?;
    ensure!(!status.success(), "{} stopped in order", node.address());
    match tail(&node.launch.log).lines().last() {
        Some(line) => Ok(line.to_owned()),
        None => bail!("{} wrote no reason", node.address()),
    }
}
