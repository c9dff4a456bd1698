//! Rounds of the placement group at a large scale: time of one round, and memory of its state.

use crate::args::Args;
use crate::embedded::child::{self, number, text};
use crate::embedded::report::Report;
use crate::embedded::stats::rounded;
use crate::machine::resident_bytes;
use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};
use std::time::Instant;
use stele_placement::schedule::region_survey::RegionSurvey;
use stele_placement::schedule::round;
use stele_placement::{
    Cluster, ClusterView, Millis, NodeReport, Operators, RegionReport, Store, StoreReport, Traffic,
    pairs,
};
use stele_types::{
    ClusterId, DeviceSpeed, KeyRange, OpCost, Peer, PeerId, PeerRole, Prng, Region, RegionEpoch,
    RegionId, RegionKind, StoreId, Term,
};

const COPIES: u64 = 3;
const REGION_BYTES: u64 = 96 << 20;
const USABLE_BYTES: u64 = 4 << 40;
const START: Millis = Millis(1_000_000_000);

const CASES: [&str; 4] = ["at rest", "a slow store", "an empty store", "a lost store"];

pub(super) fn run(args: &Args) -> Result<()> {
    let regions = args.size("regions", 100_000, 2_000)?;
    let stores = args.size("stores", 100, 10)?;
    let rounds = args.rounds(20)?;
    let settings = json!({
        "regions": regions, "stores": stores, "copies": COPIES, "region_bytes": REGION_BYTES,
        "rounds": rounds,
    });
    let report = Report::start("placement", args, &settings)?;
    for case in CASES {
        let one = json!({ "regions": regions, "stores": stores, "rounds": rounds, "case": case });
        let result = child::measure("placement-round", &one)?;
        report.line(&json!({ "case": case, "regions": regions, "stores": stores }), &result)?;
    }
    Ok(())
}

pub(super) fn measure(settings: &Value) -> Result<Value> {
    let (regions, stores) = (number(settings, "regions")?, number(settings, "stores")?);
    let (rounds, case) = (number(settings, "rounds")?, text(settings, "case")?);
    let (before, _) = resident_bytes()?;
    let mut cluster = build(regions, stores, case)?;
    let (after, _) = resident_bytes()?;
    let mut operators = Operators::default();
    let (mut survey_ms, mut round_ms, mut admitted) = (Vec::new(), Vec::new(), 0);
    // A lost store is replaced after `down_after_seconds`.
    let since = if case == "a lost store" { START.0 + 2_000_000 } else { START.0 };
    for at in 0..rounds {
        let now = Millis(since + at * 1000);
        heartbeats(&mut cluster, stores, case, now);
        let started = Instant::now();
        let survey =
            RegionSurvey::of(&ClusterView { cluster: &cluster, operators: &operators, now });
        survey_ms.push(started.elapsed().as_secs_f64() * 1e3);
        ensure!(survey.loads.iter().count() as u64 == stores, "a store is missing");
        drop(survey);
        let started = Instant::now();
        admitted += round(&mut cluster, &mut operators, now);
        round_ms.push(started.elapsed().as_secs_f64() * 1e3);
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied().context("no round")
    };
    let (survey, typical) = (median(&mut survey_ms)?, median(&mut round_ms)?);
    let most = round_ms.last().copied().context("no round")?;
    Ok(json!({
        "round_ms_median": rounded(typical), "round_ms_max": rounded(most),
        "survey_ms_median": rounded(survey), "operators": admitted,
        "state_mb": rounded(after.saturating_sub(before) as f64 / 1e6),
        "state_bytes_per_region": after.saturating_sub(before) / regions.max(1),
    }))
}

fn build(regions: u64, stores: u64, case: &str) -> Result<Cluster> {
    let mut changes = vec![pairs::cluster(ClusterId(7)), pairs::ids(1 << 40)];
    for id in 1..=stores {
        let store = Store { id: StoreId(id), address: address(id), ..Store::default() };
        changes.push(pairs::store(&store));
    }
    let pairs = changes.into_iter().filter_map(|change| Some((change.key, change.value?)));
    let loaded = Cluster::load(pairs, Millis(START.0 - 10_000_000), 0)?;
    let mut cluster = loaded.context("an empty state")?;
    let ids = cluster.plan_ids(10_000)?;
    cluster.apply(&ids)?;
    heartbeats(&mut cluster, stores, "at rest", START);
    (1..=stores).for_each(|id| cluster.note_full_report(&address(id)));
    // The last store is empty in one case.
    let used = if case == "an empty store" { stores - 1 } else { stores };
    let mut draw = Prng::new(1);
    for at in 0..regions {
        let report = region(at, regions, used, &mut draw);
        // Two reports, so that the second one has traffic.
        let traffic = Traffic { counted_since: 1, ..Traffic::default() };
        let first = RegionReport { traffic, ..report.clone() };
        let known = |_| anyhow!("a region was refused");
        cluster.observe(first, Millis(START.0 - 10_000)).map_err(known)?;
        cluster.observe(report, START).map_err(known)?;
    }
    Ok(cluster)
}

fn region(at: u64, regions: u64, stores: u64, draw: &mut Prng) -> RegionReport {
    let peer = |copy: u64| Peer {
        id: PeerId(1 + at * COPIES + copy),
        store: StoreId(1 + (at + copy * (1 + at / stores % 4)) % stores),
        role: PeerRole::Voter,
    };
    let key = |at: u64| at.to_be_bytes().to_vec();
    let start = if at == 0 { Vec::new() } else { key(at) };
    let end = if at + 1 == regions { Vec::new() } else { key(at + 1) };
    let region = Region {
        id: RegionId(10 * regions + at),
        kind: RegionKind::Data,
        range: KeyRange::new(start, end),
        epoch: RegionEpoch { conf_version: 1, version: 1 },
        peers: (0..COPIES).map(peer).collect(),
        ..Region::default()
    };
    let writes = if at.is_multiple_of(10) { draw.below(1000) } else { 0 };
    let traffic = Traffic {
        writes,
        reads: writes * 4,
        written_bytes: writes << 14,
        read_bytes: writes << 16,
        counted_since: 1,
    };
    let (leader, size_bytes) = (peer(0), REGION_BYTES / 2 + draw.below(REGION_BYTES));
    RegionReport { region, leader, term: Term(5), size_bytes, traffic, ..RegionReport::default() }
}

fn address(store: u64) -> String {
    format!("node-{store}:20160")
}

fn heartbeats(cluster: &mut Cluster, stores: u64, case: &str, now: Millis) {
    for id in 1..=stores {
        if case == "a lost store" && id == 1 {
            continue;
        }
        let is_slow = case == "a slow store" && id == 1;
        let fixed_nanos = if is_slow { 10_000_000 } else { 1_000_000 };
        let write = OpCost { fixed_nanos, picos_per_byte: 1000 };
        let report = StoreReport {
            id: StoreId(id),
            usable_bytes: USABLE_BYTES,
            live_bytes: USABLE_BYTES / 4,
            device: DeviceSpeed { write, writes: 100, ..DeviceSpeed::default() },
            ..StoreReport::default()
        };
        let node = NodeReport { address: address(id), ..NodeReport::default() };
        // Two for each second, so that a slow store counts as slow from the second round.
        cluster.record_heartbeat(&node, &[report], Millis(now.0 - 500));
        cluster.record_heartbeat(&node, &[report], now);
    }
}
