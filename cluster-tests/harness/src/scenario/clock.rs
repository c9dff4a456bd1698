use super::stale_reads::{Reads, StaleReads};
use super::{kill, partition, three};
use crate::args::{Setup, need};
use crate::client::{Outcome, Session, SessionOptions};
use crate::cluster::Cluster;
use crate::cluster::clocks::{FakeTime, WallClock};
use crate::cluster::network::Direction;
use crate::cluster::node::get;
use crate::history::{Checker, Ledger, Load, LoadOptions};
use crate::report::{Report, percentile, rounded};
use crate::verify;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_proto::kvrpcpb::{RawGetKeyTtlRequest, RawPutRequest};
use stele_types::{Prng, StoreId};

const KEY: &[u8] = b"clock";
/// Node with the jumping wall clock; its monotonic clock is correct.
const JUMPER: usize = 0;
/// Nodes with clocks that run at other rates.
const FAST: usize = 1;
const SLOW: usize = 2;
/// Rates of the nodes' clocks. A leader's lease holds if its clock is slower than a follower's by
/// at most 10 % (`lease_drift_percent`); the fast and the slow one are 8.7 % apart.
const RATES: [f64; 3] = [1.0, 1.04, 0.95];
/// Tolerated relative error of a measured rate.
const RATE_TOLERANCE: f64 = 0.015;
const JUMP_SECONDS: u64 = 6 * 3600;
/// Time until a process has seen that its clock was set.
const JUMP_SEEN: Duration = Duration::from_millis(1_300);
/// Longer than the difference of any two wall clocks, and shorter than most.
const TIMES_TO_LIVE_S: [i64; 2] = [48 * 3600, 1_800];
/// Tolerated error of a time to live from drift and latency.
const TTL_TOLERANCE_S: i64 = 60;
const LIMIT: Duration = Duration::from_secs(20);

// Catalogue: 38, 39.
/// The wall clock of one node jumps by hours in both directions; the monotonic clocks of the two
/// others drift apart by nearly what the lease allows. In each round another node leads, the slow
/// one first, and is cut off from its peers while clients still reach it. It must serve no read
/// under a lease that has expired by the clock of the new leader.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let mut fake = FakeTime::find()?;
    let mut wall = WallClock::create(setup.work())?;
    let rounds = setup.rounds(9, 2);
    let mut checker = Checker::new(need(&setup.programs.porcupine, "--porcupine")?, setup.work());
    let mut prng = Prng::new(setup.seed);
    let mut spec = three(setup, &[]);
    spec.namespaces = true;
    let mut cluster = Cluster::start(spec).await?;
    set_clocks(&mut cluster, &mut fake, &wall).await?;
    let before = uptimes(&cluster).await?;
    let mut ledger = Ledger::new(2);
    let (mut heals, mut gone, mut reads) = (Vec::new(), 0, Reads::default());
    for round in 0..rounds {
        let leader = [SLOW, JUMPER, FAST][round as usize % 3];
        let options = LoadOptions {
            recorders: 5,
            writers: 2,
            limit: Duration::from_millis(700),
            ..LoadOptions::default()
        };
        let (name, nodes) = (format!("{round:04}"), cluster.addresses());
        let load = Load::start(&cluster.channels, &nodes, &options, &name, prng.draw(), &ledger);
        jump(&mut wall, &mut prng)?;
        cluster.lead_all(cluster.store_of(leader).await?).await?;
        let cut = cut(&cluster, leader, &mut wall, &mut prng).await;
        let heal = partition::heal(&mut cluster).await;
        reads.add(&cut.with_context(|| format!("round {round}"))?);
        let heal = heal.with_context(|| format!("round {round}"))?;
        tokio::time::sleep(JUMP_SEEN).await;
        for ttl_s in TIMES_TO_LIVE_S {
            let found = times_to_live(&cluster, &wall, ttl_s).await;
            gone += found.with_context(|| format!("round {round}, time to live {ttl_s} s"))?;
        }
        let recorded = load.stop(&mut ledger).await?;
        let verdict = checker.check(&name, &recorded).await?;
        verify::everything(&mut cluster, &ledger, 3).await?;
        heals.push(heal.whole_s());
        println!(
            "round {round}: node {leader} led and was cut off, healed in {heal}, node {JUMPER} \
             {:+} s; {} operations, {}",
            wall.offset_s(),
            verdict.operations,
            verdict.result
        );
    }
    let rates = rates(&before, &uptimes(&cluster).await?);
    for (node, (rate, wanted)) in rates.iter().zip(RATES).enumerate() {
        let is_so = (rate / wanted - 1.0).abs() < RATE_TOLERANCE;
        report.require(is_so, format!("node {node}'s clock runs at {rate:.3}, not at {wanted}"));
    }
    report.record("rounds", rounds);
    report.record("rates", rates.map(rounded).to_vec());
    report.record("heal_max_s", rounded(percentile(&heals, 1.0)));
    report.record("acknowledged_writes", ledger.acknowledged());
    report.record("reads_past_the_time_to_live", gone);
    report.record("reads_of_leaders_cut_off", reads.served);
    report.record("reads_they_refused", reads.refused);
    report.require(reads.stale == 0, format!("{} stale reads", reads.stale));
    kill::check(&checker, report);
    Ok(())
}

async fn set_clocks(cluster: &mut Cluster, fake: &mut FakeTime, wall: &WallClock) -> Result<()> {
    for (number, node) in cluster.nodes.iter_mut().enumerate() {
        node.kill()?;
        let variables = match number {
            JUMPER => fake.wall(wall),
            other => fake.rate(RATES[other]),
        };
        node.launch.settings.extend(variables);
        node.restart()?;
        fake.register(node.process()?);
    }
    cluster.wait_ready().await?;
    cluster.wait_replicated(3, LIMIT).await
}

/// Sets the clock ahead or back by one to six hours.
fn jump(wall: &mut WallClock, prng: &mut Prng) -> Result<()> {
    let seconds = (3600 + prng.below(JUMP_SECONDS - 3600)) as i64;
    wall.set(if prng.coin() { seconds } else { -seconds })
}

/// Cuts a node off from its peers for longer than any lease, during which the wall clock jumps.
async fn cut(
    cluster: &Cluster,
    node: usize,
    wall: &mut WallClock,
    prng: &mut Prng,
) -> Result<Reads> {
    let network = cluster.network.as_ref().context("no network to cut")?;
    let stale = StaleReads::new(cluster, node).await?;
    // Waits for a lease: a leader just elected has none, and would prove nothing.
    tokio::time::sleep(Duration::from_millis(500 + prng.below(500))).await;
    network.isolate(node, Direction::Both)?;
    jump(wall, prng)?;
    stale.run(Duration::from_millis(1_800 + prng.below(800))).await
}

/// Puts a pair with a time to live, then reads from every node how much of it is left; returns how
/// many nodes report that it has expired. The leader's clock sets the expiry and the reading node's
/// clock evaluates it, so it comes earlier or later by the difference of the two. That also proves
/// that the clocks are wrong.
async fn times_to_live(cluster: &Cluster, wall: &WallClock, ttl_s: i64) -> Result<usize> {
    let ahead = |node: usize| if node == JUMPER { wall.offset_s() } else { 0 };
    let options = SessionOptions { nodes: cluster.addresses(), limit: Duration::from_secs(1) };
    let mut session = Session::new(Arc::clone(&cluster.channels), options);
    let leader = put(cluster, &mut session, ttl_s).await?;
    let mut over = 0;
    for node in 0..cluster.nodes.len() {
        let left = left(cluster, &mut session, node).await?;
        let expected = ttl_s + ahead(leader) - ahead(node);
        let is_so = match left {
            Some(left) => (left - expected).abs() < TTL_TOLERANCE_S,
            None => expected < TTL_TOLERANCE_S,
        };
        let text = format!("by node {leader}, read from node {node}: {left:?}, not {expected} s");
        ensure!(is_so, "put {text}");
        over += usize::from(left.is_none());
    }
    Ok(over)
}

/// Puts until one is acknowledged; returns the node that acknowledged it.
async fn put(cluster: &Cluster, session: &mut Session, ttl_s: i64) -> Result<usize> {
    let started = Instant::now();
    loop {
        // A refused put corrects the presumed leader.
        let known = session.put(KEY, Bytes::from_static(b"permanent")).await;
        if matches!(known, Outcome::Done(())) {
            let route = session.route(KEY).await?;
            let peer = route.region.peers.get(route.leader).copied().context("no leader")?;
            let node = cluster.node_of(StoreId(peer.store_id)).await?;
            let address = cluster.nodes[node].address();
            let request = RawPutRequest {
                context: Some(route.context(&peer, false)),
                key: Bytes::from_static(KEY),
                value: Bytes::from_static(b"temporary"),
                ttl: ttl_s as u64,
                ..Default::default()
            };
            let mut client = cluster.channels.tikv(address, LIMIT)?;
            let answer = client.raw_put(request).await?.into_inner();
            if answer.region_error.is_none() && answer.error.is_empty() {
                return Ok(node);
            }
        }
        ensure!(started.elapsed() < LIMIT, "no put in {LIMIT:?}: {known:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns the remaining time to live that a node's replica reports; `None` if the pair has
/// expired.
async fn left(cluster: &Cluster, session: &mut Session, node: usize) -> Result<Option<i64>> {
    let store = cluster.store_of(node).await?.0;
    let started = Instant::now();
    loop {
        let route = session.route(KEY).await?;
        let mut peers = route.region.peers.iter();
        let peer =
            peers.find(|peer| peer.store_id == store).copied().context("no peer on the node")?;
        let context = Some(route.context(&peer, true));
        let key = Bytes::from_static(KEY);
        let request = RawGetKeyTtlRequest { context, key, ..Default::default() };
        let mut client = cluster.channels.tikv(cluster.nodes[node].address(), LIMIT)?;
        let answer = client.raw_get_key_ttl(request).await?.into_inner();
        if answer.region_error.is_none() && answer.error.is_empty() {
            return Ok((!answer.not_found).then_some(answer.ttl as i64));
        }
        ensure!(started.elapsed() < LIMIT, "node {node} has refused for {LIMIT:?}: {answer:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns for each node a moment at which its uptime reached a new whole second, and that second.
async fn uptimes(cluster: &Cluster) -> Result<Vec<(Instant, u64)>> {
    let mut all = Vec::new();
    for node in &cluster.nodes {
        let first = uptime(node.address()).await?;
        let started = Instant::now();
        let changed = loop {
            let now = uptime(node.address()).await?;
            if now != first {
                break (Instant::now(), now);
            }
            ensure!(started.elapsed() < LIMIT, "the clock of {} does not advance", node.address());
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        all.push(changed);
    }
    Ok(all)
}

async fn uptime(address: &str) -> Result<u64> {
    let (_, body) = get(address, "/status", Duration::from_secs(2)).await?;
    let status: serde_json::Value = serde_json::from_str(&body).context("no status")?;
    status.get("uptime_s").and_then(serde_json::Value::as_u64).context("no uptime")
}

/// Returns the seconds of each node per second of the harness.
fn rates(before: &[(Instant, u64)], after: &[(Instant, u64)]) -> [f64; 3] {
    std::array::from_fn(|node| match (before.get(node), after.get(node)) {
        (Some(from), Some(to)) => (to.1 - from.1) as f64 / (to.0 - from.0).as_secs_f64(),
        _ => 0.0,
    })
}
