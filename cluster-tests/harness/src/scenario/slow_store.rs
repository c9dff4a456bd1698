use super::three;
use crate::args::Setup;
use crate::client::{Session, SessionOptions};
use crate::cluster::Cluster;
use crate::cluster::disk::MemoryDisk;
use crate::report::{Report, rounded};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use stele_types::{Prng, RegionId, RegionKind, StoreId};
use tokio::task::JoinHandle;

/// Time that is added to each sync of a fast device, so that devices and not processors are the limit.
const SYNC: Duration = Duration::from_millis(5);
/// A sync of the slow device takes so many times as long.
const SLOWER: u32 = 10;
const CLIENTS: u64 = 32;
const VALUE_BYTES: usize = 1 << 10;
/// Keys of the load, in as many regions.
const REGIONS: u64 = 12;
const KEYS: u64 = 1000;
const DATA_BYTES_MAX: u64 = 4 << 30;
const CALL_LIMIT: Duration = Duration::from_secs(2);
const REFUSED_PAUSE: Duration = Duration::from_millis(20);
const SAMPLE: Duration = Duration::from_millis(100);
/// Requirements.
const GONE_LIMIT_S: f64 = 5.0;
const RECOVERED_LIMIT_S: f64 = 30.0;
const SHARE_MIN: f64 = 0.9;
const MOVES_MAX: u64 = 2;
/// Time in which the slow store must lead again: a class rises after a minute.
const RETURNED_LIMIT: Duration = Duration::from_secs(180);
/// Time without changes after the return that shows that nothing flaps.
const CALM: Duration = Duration::from_secs(20);
/// Time for which the store is slow; the throughput counts after `RECOVERED_LIMIT_S`.
const SLOW_TIME: Duration = Duration::from_secs(40);
const SPREAD_LIMIT: Duration = Duration::from_secs(90);
/// Load before a store becomes slow. The delays are added after the stores' first start, so that each
/// store must first measure that its device is no longer what its probe found.
const WARM_UP: Duration = Duration::from_secs(12);
/// The short form checks only that the leaders leave and do not come back: other work on the machine
/// decides about rates and about the first seconds.
const SHORT_GONE_LIMIT_S: f64 = 15.0;
const SHORT_SLOW_TIME: Duration = Duration::from_secs(20);

// Catalogue: 21.
/// One store becomes ten times slower under load, and fast again. Its leaders leave by themselves, the
/// throughput is what the fast stores allow, and the leaders return without moving to and fro. That
/// throughput is measured before, on a cluster in which the slow store leads nothing by order.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let nodes = if setup.short { vec![3] } else { vec![3, 5] };
    report.record("configuration", format!(
        "{nodes:?} nodes, fsync on, each sync {} ms longer, {CLIENTS} clients put and get {VALUE_BYTES} B in {REGIONS} regions",
        SYNC.as_millis()
    ));
    if setup.short {
        return check_short(setup, report).await;
    }
    for nodes in nodes {
        let before = reference(setup, nodes, "before").await?;
        let watched = watch_case(setup, nodes).await?;
        // Other work on the machine changes: the lower one counts, and both are recorded.
        let after = reference(setup, nodes, "after").await?;
        let allowed = before.min(after);
        let both = vec![rounded(before), rounded(after)];
        report.record(&format!("allowed_per_s_before_and_after_{nodes}_nodes"), both);
        watched.check(report, nodes, allowed);
    }
    Ok(())
}

async fn check_short(setup: &Setup, report: &mut Report) -> Result<()> {
    let (mut cluster, _disk) = start(setup, 3, "watched").await?;
    let load = Load::start(&cluster, setup.seed);
    let (victim, store, led_before) = warm_up(&mut cluster).await?;
    cluster.nodes[victim].slow_syncs(SYNC * SLOWER).await?;
    let slow = watch(&mut cluster, &load, SHORT_SLOW_TIME, |_| false).await?;
    load.stop().await?;
    let (gone_s, moves) = (gone_after(&slow, store), changes_max(&slow));
    report.record("leaders_before", led_before);
    report.record("leaders_gone_s", gone_s.map(rounded));
    report.record("moves_of_a_region_max", moves);
    let is_gone = gone_s.is_some_and(|gone| gone <= SHORT_GONE_LIMIT_S);
    report.require(is_gone, format!("leaders gone after {gone_s:?} s"));
    report.require(moves <= MOVES_MAX, format!("a region moved {moves} times"));
    Ok(())
}

/// Returns the operations per second while one store is slow and leads nothing.
async fn reference(setup: &Setup, nodes: usize, name: &str) -> Result<f64> {
    let (mut cluster, _disk) = start(setup, nodes, name).await?;
    cluster.set_option("balance", "0").await?;
    let slow = cluster.store_of(nodes - 1).await?;
    let regions = cluster.regions().await?;
    for known in regions.iter().filter(|known| known.leader == Some(slow)) {
        let other = known.region.peers.iter().find(|peer| peer.store != slow);
        cluster
            .transfer(known.region.id, other.context("a region with one replica")?.store)
            .await?;
    }
    cluster.nodes[nodes - 1].slow_syncs(SYNC * SLOWER).await?;
    let load = Load::start(&cluster, setup.seed);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (begun, before) = (Instant::now(), load.done());
    tokio::time::sleep(Duration::from_secs(10)).await;
    let per_second = (load.done() - before) as f64 / begun.elapsed().as_secs_f64();
    load.stop().await?;
    Ok(per_second)
}

/// Starts a cluster with regions for the load, on devices that are equally fast. Its data lies in memory:
/// the disk of the machine serves all nodes at once, and other work slows it down for all of them.
async fn start(setup: &Setup, nodes: usize, name: &str) -> Result<(Cluster, MemoryDisk)> {
    let mut own = three(setup, &[]);
    own.nodes = nodes;
    own.work = setup.work().join(format!("{name}-{nodes}"));
    let disk = MemoryDisk::mount(&own.work, DATA_BYTES_MAX)?;
    let mut cluster = Cluster::start(own).await?;
    let keys = (1..REGIONS).map(|region| Bytes::from(format!("{region:02}"))).collect();
    cluster.split(cluster.region_of(b"00").await?.region.id, keys).await?;
    cluster.wait_replicated(3, SPREAD_LIMIT).await?;
    for node in &mut cluster.nodes {
        node.slow_syncs(SYNC).await?;
    }
    Ok((cluster, disk))
}

/// Makes the store with the most leaders slow and fast again, and watches the cluster.
async fn watch_case(setup: &Setup, nodes: usize) -> Result<Watched> {
    let (mut cluster, _disk) = start(setup, nodes, "watched").await?;
    let load = Load::start(&cluster, setup.seed);
    let (victim, store, led_before) = warm_up(&mut cluster).await?;
    let led_after = led_before.min(REGIONS / nodes as u64);
    cluster.nodes[victim].slow_syncs(SYNC * SLOWER).await?;
    let slow = watch(&mut cluster, &load, SLOW_TIME, |_| false).await?;
    cluster.nodes[victim].slow_syncs(SYNC).await?;
    let has_returned = |sample: &Sample| 2 * sample.led_by(store) >= led_after;
    let mut fast = watch(&mut cluster, &load, RETURNED_LIMIT, has_returned).await?;
    let returned_s = fast.last().filter(|sample| has_returned(sample)).map(|it| it.at_s);
    fast.extend(watch(&mut cluster, &load, CALM, |_| false).await?);
    load.stop().await?;
    cluster.check_alive()?;
    Ok(Watched { store, led_before, slow, fast, returned_s })
}

/// Lets the load run; returns the node with the most leaders, its store and their number.
async fn warm_up(cluster: &mut Cluster) -> Result<(usize, StoreId, u64)> {
    tokio::time::sleep(WARM_UP).await;
    cluster.check_alive()?;
    let sample = Sample::take(cluster, Instant::now(), 0).await?;
    let mut most = None;
    for node in 0..cluster.nodes.len() {
        let store = cluster.store_of(node).await?;
        most = most.max(Some((sample.led_by(store), node, store)));
    }
    let (led, node, store) = most.context("a cluster without nodes")?;
    ensure!(led > 0, "no store leads a region");
    Ok((node, store, led))
}

struct Watched {
    store: StoreId,
    led_before: u64,
    /// Samples since it became slow, and since it was fast again.
    slow: Vec<Sample>,
    fast: Vec<Sample>,
    /// Seconds after which it led half of its regions again.
    returned_s: Option<f64>,
}

impl Watched {
    fn check(&self, report: &mut Report, nodes: usize, allowed: f64) {
        let slow = &self.slow;
        let gone_s = gone_after(slow, self.store);
        let late = rate(slow, RECOVERED_LIMIT_S, f64::MAX).unwrap_or(0.0);
        let recovered_s = slow.iter().map(|sample| sample.at_s).find(|from| {
            rate(slow, *from, from + 3.0).is_some_and(|rate| rate >= SHARE_MIN * allowed)
        });
        let moves = [changes_max(slow), changes_max(&self.fast)];
        let mut record = |name: &str, value: serde_json::Value| {
            report.record(&format!("{name}_{nodes}_nodes"), value);
        };
        record("leaders_before", self.led_before.into());
        record("leaders_gone_s", gone_s.map(rounded).into());
        record("recovered_s", recovered_s.map(rounded).into());
        record("per_s_after_30_s", rounded(late).into());
        record("share_of_allowed", rounded(late / allowed).into());
        record("leaders_returned_s", self.returned_s.map(rounded).into());
        record("moves_of_a_region_max_while_slow_and_after", moves.to_vec().into());
        let in_time = gone_s.is_some_and(|gone| gone <= GONE_LIMIT_S);
        report.require(in_time, format!("{nodes} nodes: leaders gone after {gone_s:?} s"));
        let is_fast = late >= SHARE_MIN * allowed;
        report.require(is_fast, format!("{nodes} nodes: {late:.0} of {allowed:.0} per s"));
        report.require(self.returned_s.is_some(), format!("{nodes} nodes: no leader returned"));
        let is_calm = moves.iter().all(|moves| *moves <= MOVES_MAX);
        report.require(is_calm, format!("{nodes} nodes: a region moved {moves:?} times"));
    }
}

#[derive(Debug)]
struct Sample {
    /// Seconds since the start of the watch.
    at_s: f64,
    done: u64,
    leaders: BTreeMap<RegionId, StoreId>,
}

impl Sample {
    async fn take(cluster: &Cluster, zero: Instant, done: u64) -> Result<Self> {
        let regions = cluster.regions().await?;
        let data = regions.iter().filter(|known| known.region.kind == RegionKind::Data);
        let leaders = data.filter_map(|known| Some((known.region.id, known.leader?))).collect();
        Ok(Self { at_s: zero.elapsed().as_secs_f64(), done, leaders })
    }

    fn led_by(&self, store: StoreId) -> u64 {
        self.leaders.values().filter(|leader| **leader == store).count() as u64
    }
}

/// Samples the cluster for `limit`, or until a sample is `enough`.
async fn watch(
    cluster: &mut Cluster,
    load: &Load,
    limit: Duration,
    enough: impl Fn(&Sample) -> bool,
) -> Result<Vec<Sample>> {
    let zero = Instant::now();
    let mut samples: Vec<Sample> = Vec::new();
    while zero.elapsed() < limit && !samples.last().is_some_and(&enough) {
        cluster.check_alive()?;
        samples.push(Sample::take(cluster, zero, load.done()).await?);
        tokio::time::sleep(SAMPLE).await;
    }
    Ok(samples)
}

/// Returns the seconds after which the store leads nothing until the end.
fn gone_after(samples: &[Sample], store: StoreId) -> Option<f64> {
    let last_led = samples.iter().rposition(|sample| sample.led_by(store) > 0);
    let first = last_led.map_or(0, |at| at + 1);
    samples.get(first).map(|sample| sample.at_s)
}

fn rate(samples: &[Sample], from_s: f64, to_s: f64) -> Option<f64> {
    let mut within = samples.iter().filter(|it| (from_s..=to_s).contains(&it.at_s));
    let first = within.next()?;
    let last = within.next_back()?;
    Some((last.done - first.done) as f64 / (last.at_s - first.at_s))
}

/// Returns how often the leader of a region changed, for the region with the most changes.
fn changes_max(samples: &[Sample]) -> u64 {
    let mut last: BTreeMap<RegionId, (StoreId, u64)> = BTreeMap::new();
    for (region, leader) in samples.iter().flat_map(|sample| &sample.leaders) {
        let (known, changes) = last.entry(*region).or_insert((*leader, 0));
        if known != leader {
            (*known, *changes) = (*leader, *changes + 1);
        }
    }
    last.values().map(|(_, changes)| *changes).max().unwrap_or(0)
}

struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(cluster: &Cluster, seed: u64) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let clients = (0..CLIENTS).map(|number| {
            let options = SessionOptions { nodes: cluster.addresses(), limit: CALL_LIMIT };
            let session = Session::new(Arc::clone(&cluster.channels), options);
            let prng = Prng::new(seed ^ (number + 1) << 32);
            tokio::spawn(put_and_get(session, prng, Arc::clone(&stop), Arc::clone(&done)))
        });
        let clients = clients.collect();
        Self { stop, done, clients }
    }

    fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    async fn stop(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.await?;
        }
        Ok(())
    }
}

async fn put_and_get(
    mut session: Session,
    mut prng: Prng,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
) {
    let value = Bytes::from(vec![b'v'; VALUE_BYTES]);
    while !stop.load(Ordering::Relaxed) {
        let key = format!("{:02}/{:04}", prng.below(REGIONS), prng.below(KEYS));
        let is_done = match prng.coin() {
            true => session.put(key.as_bytes(), value.clone()).await.is_done(),
            false => session.get(key.as_bytes(), None).await.is_done(),
        };
        match is_done {
            true => drop(done.fetch_add(1, Ordering::Relaxed)),
            false => tokio::time::sleep(REFUSED_PAUSE).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_s: f64, done: u64, leader: u64) -> Sample {
        Sample { at_s, done, leaders: BTreeMap::from([(RegionId(2), StoreId(leader))]) }
    }

    #[test]
    fn a_watch_is_judged_by_its_last_state_and_its_changes() {
        let samples = [
            sample(0.0, 0, 3),
            sample(1.0, 100, 1),
            sample(2.0, 300, 3),
            sample(3.0, 500, 1),
            sample(4.0, 700, 1),
        ];
        assert_eq!(gone_after(&samples, StoreId(3)), Some(3.0), "it led again");
        assert_eq!(gone_after(&samples, StoreId(1)), None);
        assert_eq!(gone_after(&samples, StoreId(9)), Some(0.0));
        assert_eq!(rate(&samples, 2.0, f64::MAX), Some(200.0));
        assert_eq!(rate(&samples, 3.5, 9.0), None, "one sample has no rate");
        assert_eq!(changes_max(&samples), 3);
    }
}
