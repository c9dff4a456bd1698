use super::three;
use crate::args::{Setup, need};
use crate::client::{Session, SessionOptions};
use crate::cluster::Cluster;
use crate::history::{Checker, Ledger, Load, LoadOptions};
use crate::report::{Report, percentile, rounded};
use crate::scenario::kill;
use crate::verify;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use stele_types::{Prng, RegionKind};
use tokio::task::JoinHandle;

const FULL_ROUNDS: u64 = 30;
const WRITERS: usize = 3;
/// Clients that measure; each writes to another region.
const PROBES: usize = 4;
/// Longest time of a write, with all its attempts, while nodes stop in order.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// The same beside the other tests of CI, where the machine itself stops processes for as long.
const WAIT_MAX_SHORT: Duration = Duration::from_millis(500);
/// A hand-over of 5 s, the end of the requests in progress, and the close of the stores.
const STOP_LIMIT: Duration = Duration::from_secs(15);
const LIMIT: Duration = Duration::from_secs(20);

/// Each round stops the node that leads most regions by SIGTERM and starts it again, under load. No
/// write waits longer than a limit, and the histories are linearizable.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let rounds = setup.rounds(FULL_ROUNDS, 4);
    let mut checker = Checker::new(need(&setup.programs.porcupine, "--porcupine")?, setup.work());
    let mut prng = Prng::new(setup.seed);
    let mut cluster = Cluster::start(three(setup, &[])).await?;
    split(&cluster).await?;
    cluster.wait_replicated(3, LIMIT).await?;
    let mut ledger = Ledger::new(WRITERS);
    let (mut waits, mut stops, mut led_at_most) = (Vec::new(), Vec::new(), 0);
    for round in 0..rounds {
        let options = LoadOptions { writers: WRITERS, recorders: 3, ..LoadOptions::default() };
        let name = format!("{round:04}");
        let nodes = cluster.addresses();
        let load = Load::start(&cluster.channels, &nodes, &options, &name, prng.draw(), &ledger);
        let probes = Probes::start(&cluster);
        kill::wait(&mut prng, 300, 1_000).await;
        let (victim, led) = most_leaders(&cluster).await?;
        led_at_most = led_at_most.max(led);
        let stopped = Instant::now();
        cluster.nodes[victim].stop(STOP_LIMIT).await?;
        stops.push(stopped.elapsed().as_secs_f64());
        kill::wait(&mut prng, 100, 1_000).await;
        cluster.nodes[victim].restart()?;
        cluster.wait_ready().await?;
        kill::wait(&mut prng, 300, 800).await;
        let found = probes.stop().await?;
        let longest = percentile(&found, 1.0);
        waits.extend(found);
        let recorded = load.stop(&mut ledger).await?;
        cluster.check_alive()?;
        let verdict = checker.check(&name, &recorded).await?;
        println!(
            "round {round}: node {victim} with {led} leaders stopped, longest write {:.1} ms; {}",
            longest * 1e3,
            verdict.result
        );
        verify::everything(&mut cluster, &ledger, 3).await?;
        cluster.wait_replicated(3, LIMIT).await?;
    }
    let longest = percentile(&waits, 1.0);
    report.record("rounds", rounds);
    report.record("writes", waits.len());
    report.record("leaders_of_a_node_max", led_at_most);
    report.record("write_p99_ms", rounded(percentile(&waits, 0.99) * 1e3));
    report.record("write_longest_ms", rounded(longest * 1e3));
    report.record("stop_longest_s", rounded(percentile(&stops, 1.0)));
    let limit = if setup.short { WAIT_MAX_SHORT } else { WAIT_MAX };
    report.require(
        longest <= limit.as_secs_f64(),
        format!("no write waits longer than {limit:?}: {:.1} ms", longest * 1e3),
    );
    report.require(led_at_most > 0, "a node with leaders was stopped");
    kill::check(&checker, report);
    Ok(())
}

fn probe_key(probe: usize) -> String {
    format!("probe/{probe}")
}

async fn split(cluster: &Cluster) -> Result<()> {
    let region = cluster.region_of(probe_key(0).as_bytes()).await?.region.id;
    let keys = (0..PROBES).map(|probe| Bytes::from(probe_key(probe))).collect();
    cluster.split(region, keys).await
}

/// Returns the node that leads most regions of user keys, and their number.
async fn most_leaders(cluster: &Cluster) -> Result<(usize, usize)> {
    let mut led = vec![0; cluster.nodes.len()];
    let regions = cluster.regions().await?;
    let users = regions.iter().filter(|one| one.region.kind == RegionKind::Data);
    for store in users.filter_map(|one| one.leader) {
        let node = cluster.node_of(store).await?;
        *led.get_mut(node).context("a node that was not started")? += 1;
    }
    let most = led.iter().enumerate().max_by_key(|(node, led)| (**led, usize::MAX - node));
    most.map(|(node, led)| (node, *led)).context("no nodes")
}

/// Clients that write one after the other and repeat each write until it is acknowledged.
struct Probes {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Result<Vec<f64>>>>,
}

impl Probes {
    fn start(cluster: &Cluster) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let clients = (0..PROBES).map(|probe| {
            let options = SessionOptions { nodes: cluster.addresses(), limit: LIMIT };
            let session = Session::new(Arc::clone(&cluster.channels), options);
            tokio::spawn(write(session, probe_key(probe), Arc::clone(&stop)))
        });
        let clients = clients.collect();
        Self { stop, clients }
    }

    /// Stops the clients; returns the seconds that each write took.
    async fn stop(self) -> Result<Vec<f64>> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for client in self.clients {
            all.extend(client.await??);
        }
        Ok(all)
    }
}

async fn write(mut session: Session, key: String, stop: Arc<AtomicBool>) -> Result<Vec<f64>> {
    let mut waits = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let started = Instant::now();
        while !session.put(key.as_bytes(), Bytes::from_static(b"value")).await.is_done() {
            ensure!(started.elapsed() < LIMIT, "{key} was not written within {LIMIT:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        waits.push(started.elapsed().as_secs_f64());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(waits)
}
