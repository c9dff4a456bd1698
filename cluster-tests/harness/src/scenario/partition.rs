use super::{kill, three};
use crate::args::{Setup, need};
use crate::client::{FailedAnswer, Outcome, Session, SessionOptions};
use crate::cluster::Cluster;
use crate::cluster::control::POLL;
use crate::cluster::network::Direction;
use crate::history::{Checker, Ledger, Load, LoadOptions};
use crate::report::{Report, percentile, rounded};
use crate::verify;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_proto::stele::control::v1::RegionDetailRequest;
use stele_types::{Prng, RegionKind};

const KEY: &[u8] = b"partition";
const HEAL_SECONDS_MAX: f64 = 3.0;
const HEAL_LIMIT: Duration = Duration::from_secs(20);
const FLAPS: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Messages between the leader and the others are lost in this direction.
    Steady(Direction),
    /// The symmetric partition, several times on and off.
    Flapping,
}

const KINDS: [Kind; 4] = [
    Kind::Steady(Direction::Both),
    Kind::Steady(Direction::From),
    Kind::Steady(Direction::To),
    Kind::Flapping,
];

// Catalogue: 29, 30, 31.
/// Under load, the leader is cut off from its peers but not from its clients. No write that begins
/// after a full partition may be acknowledged there. After the partition heals, the time is
/// measured until every replica has caught up and knows a leader.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let rounds = setup.rounds(16, 4);
    let mut checker = Checker::new(need(&setup.programs.porcupine, "--porcupine")?, setup.work());
    let mut prng = Prng::new(setup.seed);
    let mut spec = three(setup, &[]);
    spec.namespaces = true;
    let mut cluster = Cluster::start(spec).await?;
    let mut ledger = Ledger::new(1);
    let (mut heals, mut refused) = (Vec::new(), 0);
    for round in 0..rounds {
        let kind = KINDS[round as usize % KINDS.len()];
        let options = LoadOptions { recorders: 5, writers: 1, ..LoadOptions::default() };
        let (name, nodes) = (format!("{round:04}"), cluster.addresses());
        let load = Load::start(&cluster.channels, &nodes, &options, &name, prng.draw(), &ledger);
        tokio::time::sleep(Duration::from_millis(300 + prng.below(700))).await;
        let leader = cluster.leader_of(KEY).await?;
        let attempts = cut(&cluster, leader, kind, &mut prng).await?;
        let heal = heal(&mut cluster).await.with_context(|| format!("round {round}, {kind:?}"))?;
        let recorded = load.stop(&mut ledger).await?;
        let verdict = checker.check(&name, &recorded).await?;
        verify::everything(&mut cluster, &ledger, 3).await?;
        report.require(
            attempts.acknowledged == 0,
            format!("round {round}, {kind:?}: the minority acknowledged a write"),
        );
        refused += attempts.others;
        heals.push(heal.whole_s());
        println!(
            "round {round}: {kind:?} around node {leader}, healed in {heal}, {} operations, {}",
            verdict.operations, verdict.result
        );
    }
    let worst = percentile(&heals, 1.0);
    report.record("rounds", rounds);
    report.record("writes_refused_by_the_minority", refused);
    report.record("heal_median_s", rounded(percentile(&heals, 0.5)));
    report.record("heal_max_s", rounded(worst));
    report.require(worst < HEAL_SECONDS_MAX, format!("healed within 3 s: {worst:.3} s"));
    kill::check(&checker, report);
    Ok(())
}

#[derive(Default)]
struct Attempts {
    acknowledged: u64,
    others: u64,
}

async fn cut(cluster: &Cluster, node: usize, kind: Kind, prng: &mut Prng) -> Result<Attempts> {
    let network = cluster.network.as_ref().context("no network to cut")?;
    // Caches the route to the leader before the partition.
    let nodes = vec![cluster.nodes[node].address().to_owned()];
    let options = SessionOptions { nodes, limit: Duration::from_millis(300) };
    let mut session = Session::new(Arc::clone(&cluster.channels), options);
    session.put(KEY, Bytes::from_static(b"before")).await;
    let Kind::Steady(direction) = kind else {
        network.isolate(node, Direction::Both)?;
        for flap in 0..FLAPS {
            tokio::time::sleep(Duration::from_millis(50 + prng.below(400))).await;
            match flap % 2 {
                0 => network.heal_all()?,
                _ => network.isolate(node, Direction::Both)?,
            }
        }
        return Ok(Attempts::default());
    };
    network.isolate(node, direction)?;
    let mut attempts = Attempts::default();
    let until = Instant::now() + Duration::from_millis(1_500 + prng.below(2_500));
    while Instant::now() < until {
        let mut writer = direct_writer(cluster, &mut session, node).await?;
        match writer.put(KEY, Bytes::from_static(b"minority")).await {
            Outcome::Done(()) => attempts.acknowledged += 1,
            _ => attempts.others += 1,
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(attempts)
}

/// A write to this node's peer only, as a client from before the partition sends it.
struct DirectWriter {
    client: stele_proto::tikvpb::tikv_client::TikvClient<tonic::transport::Channel>,
    context: stele_proto::kvrpcpb::Context,
}

async fn direct_writer(
    cluster: &Cluster,
    session: &mut Session,
    node: usize,
) -> Result<DirectWriter> {
    let route = session.route(KEY).await?;
    let store = cluster.store_of(node).await?;
    let mut peers = route.region.peers.iter();
    let peer =
        peers.find(|peer| peer.store_id == store.0).copied().context("no peer on the node")?;
    let address = cluster.nodes[node].address();
    let client = cluster.channels.tikv(address, Duration::from_millis(300))?;
    Ok(DirectWriter { client, context: route.context(&peer, false) })
}

impl DirectWriter {
    async fn put(&mut self, key: &[u8], value: Bytes) -> Outcome<()> {
        let request = stele_proto::kvrpcpb::RawPutRequest {
            context: Some(self.context.clone()),
            key: Bytes::copy_from_slice(key),
            value,
            ..Default::default()
        };
        let answer = match self.client.raw_put(request).await.map(tonic::Response::into_inner) {
            Ok(response) => {
                FailedAnswer::of_response(response.region_error.as_ref(), &response.error)
            }
            Err(status) => Some(FailedAnswer::of_status(&status)),
        };
        answer.map_or(Outcome::Done(()), FailedAnswer::into_outcome)
    }
}

/// Seconds of each phase of a recovery.
pub(super) struct Healed {
    put_s: f64,
    replicas_s: f64,
    /// Obstacles, with the seconds since the partition healed.
    waited_for: Vec<String>,
}

impl Healed {
    /// Returns the seconds of all phases.
    pub(super) fn whole_s(&self) -> f64 {
        self.put_s + self.replicas_s
    }
}

impl std::fmt::Display for Healed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { put_s, replicas_s, .. } = self;
        write!(out, "{:.3} s (put {put_s:.3}, replicas {replicas_s:.3})", self.whole_s())?;
        if self.whole_s() < HEAL_SECONDS_MAX / 2.0 {
            return Ok(());
        }
        self.waited_for.iter().try_for_each(|line| write!(out, "\n  {line}"))
    }
}

/// Heals the partition and measures the time until a put succeeds, and until every replica of every
/// region knows a leader and has applied what was committed then.
pub(super) async fn heal(cluster: &mut Cluster) -> Result<Healed> {
    cluster.network.as_ref().context("no network to heal")?.heal_all()?;
    let started = Instant::now();
    let mut waited_for = Vec::new();
    let mut note_obstacle =
        |what: String| waited_for.push(format!("{:.3} s: {what}", seconds(started)));
    let options = SessionOptions { nodes: cluster.addresses(), limit: Duration::from_millis(500) };
    let mut session = Session::new(Arc::clone(&cluster.channels), options);
    loop {
        let outcome = session.put(KEY, Bytes::from_static(b"after")).await;
        if outcome.is_done() {
            break;
        }
        note_obstacle(format!("{outcome:?}"));
        ensure!(started.elapsed() < HEAL_LIMIT, "no put succeeded within {HEAL_LIMIT:?}");
        tokio::time::sleep(POLL).await;
    }
    let put_s = seconds(started);
    let regions: Vec<u64> = {
        let regions = cluster.regions().await?.into_iter();
        regions
            .filter(|one| one.region.kind == RegionKind::Data)
            .map(|one| one.region.id.0)
            .collect()
    };
    for region in regions {
        let committed = applied(cluster, region).await?.into_iter().map(|one| one.0).max();
        let mut last = Vec::new();
        loop {
            let all = applied(cluster, region).await?;
            let caught_up = |one: &(u64, u64)| Some(one.0) >= committed && one.1 != 0;
            if all.len() == cluster.nodes.len() && all.iter().all(caught_up) {
                break;
            }
            ensure!(started.elapsed() < HEAL_LIMIT, "region {region} did not catch up: {all:?}");
            if all != last {
                note_obstacle(format!(
                    "region {region} to {committed:?}: (applied, leader) {all:?}"
                ));
                last = all;
            }
            tokio::time::sleep(POLL).await;
        }
    }
    Ok(Healed { put_s, replicas_s: seconds(started) - put_s, waited_for })
}

fn seconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64()
}

/// Returns the applied index and known leader of each replica of a region.
async fn applied(cluster: &Cluster, region: u64) -> Result<Vec<(u64, u64)>> {
    let mut all = Vec::new();
    for node in 0..cluster.nodes.len() {
        let request = RegionDetailRequest { region_id: region, ..Default::default() };
        let Ok(answer) = cluster.control(node)?.region_detail(request).await else { continue };
        let replicas = answer.into_inner().replicas;
        all.extend(replicas.iter().map(|one| (one.applied_index, one.leader_peer_id)));
    }
    Ok(all)
}
