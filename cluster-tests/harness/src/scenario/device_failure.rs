use super::three;
use crate::args::{Setup, need};
use crate::client::{Session, SessionOptions};
use crate::cluster::Cluster;
use crate::cluster::control::{Known, POLL};
use crate::cluster::disk::SmallDisk;
use crate::cluster::node::get;
use crate::history::{Checker, Ledger, Load, LoadOptions, PREFIX_SPLITS, Recorded};
use crate::report::{Report, percentile, rounded};
use crate::verify;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use stele_proto::stele::control::v1::StoreAction;
use stele_types::{Prng, RegionId, StoreId};
use tokio::task::JoinHandle;

const DISK_BYTES: u64 = 1 << 30;
const SETTINGS: [(&str, &str); 1] = [("reserved_bytes", "64MiB")];
/// Keys that are put and read all the time, in different regions.
const PROBES: [&[u8]; 3] = [b"a/probe", b"i/probe", b"z/probe"];
/// Time after which a request that is repeated must have succeeded.
const REPEATED_LIMIT: Duration = Duration::from_secs(10);
const REBUILT_LIMIT: Duration = Duration::from_secs(60);
const STATUS_LIMIT: Duration = Duration::from_secs(20);
/// Seconds after which a store that hangs counts as down; a failed store does not wait for that.
const DOWN_AFTER_S: [(Kind, &str); 3] =
    [(Kind::Lost, "1800"), (Kind::FailedSync, "1800"), (Kind::Hang, "5")];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// All I/O fails, and the mount point is empty afterwards.
    Lost,
    /// A sync of the log returns EIO.
    FailedSync,
    /// Writes and syncs do not return.
    Hang,
}

type Places = BTreeMap<RegionId, BTreeSet<StoreId>>;

// Catalogue: 26.
/// A store of each node lies on a disk of its own. Under load, one disk fails. The node and its other
/// store continue, the replicas of the failed store are rebuilt on another store, no other replica
/// moves, and each request succeeds when it is repeated. Then the node is restarted without the
/// directory and with a new disk, or the device returns.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let rounds = setup.rounds(6, 3);
    let mut checker = Checker::new(need(&setup.programs.porcupine, "--porcupine")?, setup.work());
    let mut prng = Prng::new(setup.seed);
    let disk = |node: usize| SmallDisk::create(setup.work(), &format!("disk{node}"), DISK_BYTES);
    let disks = (0..3).map(disk).collect::<Result<Vec<_>>>()?;
    let mut spec = three(setup, &SETTINGS);
    let stores = disks.iter().enumerate().map(|(node, disk)| {
        (node, vec![setup.work().join(format!("store{node}")), disk.path().to_owned()])
    });
    spec.stores = stores.collect();
    let mut cluster = Cluster::start(spec).await?;
    cluster.set_option("balance", "0").await?;
    cluster.set_option("silent_after_seconds", "2").await?;
    cluster
        .split(cluster.region_of(b"a").await?.region.id, PREFIX_SPLITS.map(Bytes::from).into())
        .await?;
    let mut ledger = Ledger::new(2);
    let (mut rebuilt, mut longest) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let (kind, down_after_s) = DOWN_AFTER_S[round as usize % DOWN_AFTER_S.len()];
        cluster.set_option("down_after_seconds", down_after_s).await?;
        let victim = prng.below(3) as usize;
        let text = format!("round {round}: {kind:?} on node {victim}");
        let case = Case { kind, victim, disk: &disks[victim], name: format!("{round:04}") };
        let done = case.run(&mut cluster, &mut ledger, prng.draw()).await;
        let (recorded, rebuilt_s, longest_s) = done.with_context(|| text.clone())?;
        let verdict = checker.check(&case.name, &recorded).await?;
        verify::everything(&mut cluster, &ledger, 3).await.with_context(|| text.clone())?;
        println!(
            "{text}: rebuilt after {rebuilt_s:.3} s, longest repeated request {longest_s:.3} s, {} operations, {}",
            verdict.operations, verdict.result
        );
        rebuilt.push(rebuilt_s);
        longest.push(longest_s);
    }
    report.record("rounds", rounds);
    report.record("acknowledged_writes", ledger.acknowledged());
    report.record("rebuilt_max_s", rounded(percentile(&rebuilt, 1.0)));
    report.record("repeated_request_max_s", rounded(percentile(&longest, 1.0)));
    super::kill::check(&checker, report);
    Ok(())
}

struct Case<'a> {
    kind: Kind,
    victim: usize,
    disk: &'a SmallDisk,
    name: String,
}

impl Case<'_> {
    /// Returns the records, the seconds until all replicas were rebuilt, and those of the longest
    /// repeated request.
    async fn run(
        &self,
        cluster: &mut Cluster,
        ledger: &mut Ledger,
        seed: u64,
    ) -> Result<(Recorded, f64, f64)> {
        let stores = stores_of(cluster, self.victim).await?;
        spread(cluster).await?;
        let failing = *stores.last().context("a node without stores")?;
        let before = places(&cluster.regions().await?);
        let held = before.values().filter(|stores| stores.contains(&failing)).count();
        ensure!(held > 1, "store {failing} holds {held} regions: {before:?}");
        let (options, nodes) =
            (LoadOptions { writers: 2, ..Default::default() }, cluster.addresses());
        let load = Load::start(&cluster.channels, &nodes, &options, &self.name, seed, ledger);
        let probes = Probes::start(cluster);
        tokio::time::sleep(Duration::from_millis(500)).await;
        let started = Instant::now();
        let traced = match self.kind {
            Kind::Lost => self.disk.lose().map(|()| None)?,
            Kind::FailedSync => Some(cluster.nodes[self.victim].fail_sync(failing).await?),
            Kind::Hang => self.disk.freeze().map(|()| None)?,
        };
        let rebuilt = self.wait_rebuilt(cluster, failing, &before).await;
        if self.kind == Kind::Hang {
            self.disk.thaw()?;
        }
        rebuilt?;
        let rebuilt_s = started.elapsed().as_secs_f64();
        drop(traced);
        self.restart(cluster, failing).await?;
        let longest_s = probes.stop().await?;
        ensure!(longest_s < REPEATED_LIMIT.as_secs_f64(), "a request took {longest_s:.3} s");
        Ok((load.stop(ledger).await?, rebuilt_s, longest_s))
    }

    /// Waits until each region has three voters on other stores. No other replica may move.
    async fn wait_rebuilt(
        &self,
        cluster: &mut Cluster,
        failing: StoreId,
        before: &Places,
    ) -> Result<()> {
        let deadline = Instant::now() + REBUILT_LIMIT;
        loop {
            cluster.check_alive()?;
            let now = places(&cluster.regions().await?);
            let left = now.values().filter(|stores| stores.contains(&failing)).count();
            if left == 0 {
                break;
            }
            ensure!(
                Instant::now() < deadline,
                "{left} regions are still on store {failing}: {now:?}"
            );
            tokio::time::sleep(POLL).await;
        }
        cluster.wait_replicated(3, REBUILT_LIMIT).await?;
        for (region, stores) in places(&cluster.regions().await?) {
            let mut kept = before.get(&region).cloned().unwrap_or_default();
            kept.remove(&failing);
            let has_kept = stores.is_superset(&kept);
            ensure!(has_kept, "region {region} moved from {kept:?} to {stores:?} for no reason");
        }
        Ok(())
    }

    /// Brings the device back, or a new one.
    async fn restart(&self, cluster: &mut Cluster, failing: StoreId) -> Result<()> {
        let victim = self.victim;
        match self.kind {
            Kind::Hang => {}
            Kind::FailedSync => {
                cluster.nodes[victim].kill()?;
                cluster.nodes[victim].restart()?;
            }
            Kind::Lost => {
                cluster.nodes[victim].kill()?;
                cluster.nodes[victim].restart()?;
                self.wait_named(cluster).await?;
                cluster.nodes[victim].kill()?;
                self.disk.replace()?;
                cluster.nodes[victim].launch.replaced_disks = vec![self.disk.path().to_owned()];
                cluster.nodes[victim].restart()?;
                cluster.nodes[victim].launch.replaced_disks.clear();
                self.wait_new(cluster, failing).await?;
                cluster.set_store(failing, StoreAction::Remove).await?;
            }
        }
        cluster.wait_ready().await
    }

    /// Waits until the node serves with one store and names the directory of the other one.
    async fn wait_named(&self, cluster: &mut Cluster) -> Result<()> {
        let deadline = Instant::now() + STATUS_LIMIT;
        let dir = self.disk.path().display().to_string();
        loop {
            let node = &mut cluster.nodes[self.victim];
            node.check_alive()?;
            let health = get(node.address(), "/healthz", STATUS_LIMIT).await;
            let ready = get(node.address(), "/readyz", STATUS_LIMIT).await;
            let serves = matches!(&health, Ok((200, _)));
            if serves && matches!(&ready, Ok((_, text)) if text.contains(&dir)) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{dir} is not named: {health:?}, {ready:?}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until the empty disk is a new store.
    async fn wait_new(&self, cluster: &Cluster, old: StoreId) -> Result<()> {
        let deadline = Instant::now() + STATUS_LIMIT;
        while stores_of(cluster, self.victim).await?.last().is_none_or(|store| *store <= old) {
            ensure!(Instant::now() < deadline, "the new disk did not become a new store");
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }
}

/// Returns the stores of a node, the last one on its own disk.
async fn stores_of(cluster: &Cluster, node: usize) -> Result<Vec<StoreId>> {
    let address = cluster.nodes[node].address();
    let stores = cluster.stores().await?.into_iter();
    Ok(stores.filter(|(_, store)| store.address == address).map(|(id, _)| id).collect())
}

fn places(regions: &[Known]) -> Places {
    let stores = |known: &Known| known.region.peers.iter().map(|peer| peer.store).collect();
    regions.iter().map(|known| (known.region.id, stores(known))).collect()
}

/// Places the replicas of every second region on the first store of each node, and those of the others
/// on the second one.
async fn spread(cluster: &mut Cluster) -> Result<()> {
    cluster.wait_replicated(3, REBUILT_LIMIT).await?;
    for (number, (region, held)) in places(&cluster.regions().await?).into_iter().enumerate() {
        for node in 0..cluster.nodes.len() {
            let stores = stores_of(cluster, node).await?;
            let wanted = *stores.get(number % stores.len()).context("a node without stores")?;
            let here = held.iter().find(|store| stores.contains(store)).copied();
            match here {
                Some(from) if from != wanted => cluster.move_replica(region, from, wanted).await?,
                _ => {}
            }
        }
    }
    cluster.wait_replicated(3, REBUILT_LIMIT).await
}

/// A client that puts and reads a key of each region, and repeats each request until it succeeds.
struct Probes {
    stop: Arc<AtomicBool>,
    running: JoinHandle<Result<f64>>,
}

impl Probes {
    fn start(cluster: &Cluster) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let options =
            SessionOptions { nodes: cluster.addresses(), limit: Duration::from_millis(500) };
        let session = Session::new(Arc::clone(&cluster.channels), options);
        Self { stop: stop.clone(), running: tokio::spawn(probe(session, stop)) }
    }

    /// Returns the seconds that the longest request took, with its repetitions.
    async fn stop(self) -> Result<f64> {
        self.stop.store(true, Ordering::Relaxed);
        self.running.await?
    }
}

async fn probe(mut session: Session, stop: Arc<AtomicBool>) -> Result<f64> {
    let mut longest_s: f64 = 0.0;
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let value = Bytes::from(number.to_string());
        for key in PROBES {
            let started = Instant::now();
            while !session.put(key, value.clone()).await.is_done() {
                ensure!(started.elapsed() < 2 * REPEATED_LIMIT, "no put of {key:?} succeeded");
                tokio::time::sleep(POLL).await;
            }
            longest_s = longest_s.max(started.elapsed().as_secs_f64());
            let started = Instant::now();
            while !session.get(key, None).await.is_done() {
                ensure!(started.elapsed() < 2 * REPEATED_LIMIT, "no get of {key:?} succeeded");
                tokio::time::sleep(POLL).await;
            }
            longest_s = longest_s.max(started.elapsed().as_secs_f64());
        }
    }
    Ok(longest_s)
}
