//! Reports to the placement group, and what it answers: every second, and soon after something
//! changed.

use super::edge::Edge;
use super::ids::IdSource;
use super::orphaned_ranges::find_owners;
use super::split::{Sizes, Splitter};
use super::steps;
use crate::config::Config;
use crate::members::Members;
use crate::observe::counts;
use crate::placement::PlacementService;
use crate::stores::Stores;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_proto::stele::control::v1 as wire;
use stele_raftstore::{Admin, AdminCall, Header, RegionReport, RequestId, Role};
use stele_storage::StorageEngine;
use stele_types::{PeerId, RegionId, StoreId};
use tokio::sync::{Mutex, watch};

/// Between two reports when nothing happens.
const INTERVAL: Duration = Duration::from_secs(1);
/// Between two looks at what the placement group should do.
const TICK: Duration = Duration::from_millis(100);
/// After a report that nobody answered.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// News waits so long for more of it.
const NEWS_DELAY: Duration = Duration::from_millis(20);
/// Between two looks at the sizes of regions, and when one is led here that was not measured yet.
const SPLIT_INTERVAL: Duration = Duration::from_secs(10);
const MEASURE_SOON: Duration = Duration::from_secs(1);
/// A region is busy after so many reports in a row above the limit.
const BUSY_REPORTS: u32 = 3;
/// A peer without a leader for so long asks whether it is still wanted.
const STRAY_AFTER_S: u64 = 60;

pub(super) struct Tasks {
    pub config: Arc<Config>,
    pub address: String,
    pub members: Arc<Members>,
    pub stores: Arc<Stores>,
    pub edge: Arc<Edge>,
    pub placement: Arc<PlacementService>,
    pub started_at: u64,
}

/// What was told, and what is to be told.
struct Told {
    sequence: u64,
    /// Region reports of the last answered heartbeat, without their traffic.
    regions: BTreeMap<RegionId, wire::RegionReport>,
    all_wanted: bool,
    outcomes: Arc<Mutex<Vec<wire::OperatorOutcome>>>,
    /// Operators at work: a step that comes again is not begun again.
    working: Arc<Mutex<BTreeSet<(u64, u64)>>>,
    busy: HashMap<RegionId, u32>,
    /// A region is led here whose range was not measured yet.
    has_unmeasured: bool,
    reported_at: Instant,
    /// Until the next report.
    interval: Duration,
}

impl Tasks {
    /// Until `stopping` says so.
    pub async fn run(self, mut stopping: watch::Receiver<bool>) {
        let tasks = Arc::new(self);
        let splitter = Arc::new(Mutex::new(Splitter::new()));
        let mut sizes = Sizes::new();
        let mut told = Told {
            sequence: 0,
            regions: BTreeMap::new(),
            all_wanted: true,
            outcomes: Arc::default(),
            working: Arc::default(),
            busy: HashMap::new(),
            has_unmeasured: true,
            reported_at: Instant::now(),
            interval: INTERVAL,
        };
        let mut looked_at = Instant::now();
        tokio::spawn(tick(tasks.placement.clone(), stopping.clone()));
        loop {
            let is_due = match told.has_unmeasured {
                true => looked_at.elapsed() >= MEASURE_SOON,
                false => looked_at.elapsed() >= SPLIT_INTERVAL,
            };
            if is_due {
                looked_at = Instant::now();
                tasks.look_at_sizes(&mut told, &splitter);
            }
            // While it is at work what it found before has to do.
            if let Ok(splitter) = splitter.try_lock() {
                sizes.clone_from(splitter.sizes());
            }
            tasks.report(&mut told, &sizes).await;
            tokio::select! {
                () = stopped(&mut stopping) => return,
                () = tokio::time::sleep(told.interval) => {}
                () = tasks.edge.news.notified() => tokio::time::sleep(NEWS_DELAY).await,
            }
        }
    }

    fn look_at_sizes(self: &Arc<Self>, told: &mut Told, splitter: &Arc<Mutex<Splitter>>) {
        let busy: Vec<RegionId> = told
            .busy
            .iter()
            .filter(|(_, reports)| **reports >= BUSY_REPORTS)
            .map(|(id, _)| *id)
            .collect();
        told.busy.retain(|_, reports| *reports < BUSY_REPORTS);
        let (tasks, splitter) = (self.clone(), splitter.clone());
        tokio::spawn(async move {
            let Ok(mut splitter) = splitter.try_lock_owned() else { return };
            let ids = IdSource(tasks.placement.clone());
            let bytes_max = tasks.config.region_bytes_max;
            splitter.check(&tasks.stores, &ids, bytes_max, &busy).await;
        });
    }

    async fn report(self: &Arc<Self>, told: &mut Told, sizes: &Sizes) {
        let reports = self.reports().await;
        let interval_s = told.reported_at.elapsed().as_secs_f64().max(0.001);
        told.reported_at = Instant::now();
        self.note_busy(told, &reports, interval_s);
        let led = led_regions(&reports, sizes);
        told.has_unmeasured = led.iter().any(|report| report.approximate_bytes == 0);
        let is_news = |report: &&wire::RegionReport| {
            let id = region_id(report);
            told.all_wanted
                || has_traffic(report)
                || told.regions.get(&id) != Some(&without_traffic(report))
        };
        told.sequence += 1;
        let request = wire::HeartbeatRequest {
            address: self.address.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: self.started_at,
            sequence: told.sequence,
            stores: self.store_stats(),
            regions: led.iter().filter(is_news).cloned().collect(),
            all_regions: told.all_wanted,
            members_version: self.members.version(),
            outcomes: told.outcomes.lock().await.clone(),
            stray_peers: strays(&reports),
            ..wire::HeartbeatRequest::default()
        };
        match self.placement.heartbeat(request).await {
            Ok(answer) => {
                told.regions = led.iter().map(|r| (region_id(r), without_traffic(r))).collect();
                told.outcomes.lock().await.clear();
                told.all_wanted = answer.all_regions_wanted;
                told.interval = match answer.interval_ms {
                    0 => INTERVAL,
                    soon => Duration::from_millis(u64::from(soon)).min(INTERVAL),
                };
                self.take_answer(told, answer).await;
                find_owners(&self.stores, &self.placement).await;
            }
            Err(status) => {
                tracing::debug!("heartbeat: {}", status.message());
                (told.all_wanted, told.interval) = (true, RETRY_INTERVAL);
            }
        }
    }

    async fn reports(&self) -> Vec<(StoreId, RegionReport)> {
        let mut all = Vec::new();
        for store in self.stores.all() {
            let found = store.with_core(|core| core.regions()).await.unwrap_or_default();
            all.extend(found.into_iter().map(|report| (store.id(), report)));
        }
        all
    }

    fn note_busy(&self, told: &mut Told, reports: &[(StoreId, RegionReport)], interval_s: f64) {
        let limit = self.config.region_ops_max as f64;
        if limit == 0.0 {
            return;
        }
        for (_, report) in reports.iter().filter(|(_, report)| report.role == Role::Leader) {
            let ops = (report.traffic.write_ops + report.traffic.read_ops) as f64 / interval_s;
            if ops > limit {
                *told.busy.entry(report.region.id).or_default() += 1;
            } else {
                told.busy.remove(&report.region.id);
            }
        }
    }

    fn store_stats(&self) -> Vec<wire::StoreStats> {
        let stats = |store: &Arc<crate::store::StoreHandle>| {
            let stats = store.engine().stats();
            let (replicas, leaders) = counts(&self.stores, store.id());
            wire::StoreStats {
                id: store.id().0,
                capacity: stats.device_bytes,
                free: stats.device_free_bytes,
                used: stats.disk_bytes,
                region_count: replicas as u64,
                leader_count: leaders as u64,
                disk_full: store.engine().admit(1).is_err(),
                failed: !store.is_running(),
                append_p99_nanos: store.append_p99_nanos(),
                ..wire::StoreStats::default()
            }
        };
        self.stores.all().iter().map(stats).collect()
    }

    async fn take_answer(self: &Arc<Self>, told: &Told, answer: wire::HeartbeatResponse) {
        if !answer.members.is_empty() {
            match self.members.update(answer.members_version, &answer.members) {
                Ok(true) => {
                    if let Some(transport) = self.edge.transport() {
                        transport.members_changed();
                    }
                }
                Ok(false) => {}
                Err(error) => tracing::error!("the list of members is not kept: {error}"),
            }
        }
        for gone in &answer.gone_peers {
            let Some(store) = self.stores.get(StoreId(gone.store_id)) else { continue };
            let header = Header { region: RegionId(gone.region_id), ..Header::default() };
            let call = Admin::Destroy(PeerId(gone.peer_id));
            // Whether it went shows in the next report.
            let _ = store.admin(AdminCall { id: RequestId::default(), header, call }).await;
        }
        for step in answer.steps {
            let key = (step.operator_id, step.region_id);
            if !told.working.lock().await.insert(key) {
                continue;
            }
            let (tasks, outcomes) = (self.clone(), told.outcomes.clone());
            let working = told.working.clone();
            tokio::spawn(async move {
                let ids = IdSource(tasks.placement.clone());
                let outcome = steps::carry_out(&tasks.stores, &ids, step).await;
                outcomes.lock().await.extend(outcome);
                working.lock().await.remove(&key);
                tasks.edge.news.notify_one();
            });
        }
    }
}

/// The placement group's own pace, while it is led here.
async fn tick(placement: Arc<PlacementService>, mut stopping: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            () = stopped(&mut stopping) => return,
            () = tokio::time::sleep(TICK) => placement.tick().await,
        }
    }
}

async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // The sender gone means the same.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// One that leads but does not know its followers yet would call all of them pending, and every
/// order would be refused: it is told once it does.
fn led_regions(reports: &[(StoreId, RegionReport)], sizes: &Sizes) -> Vec<wire::RegionReport> {
    let led = reports.iter().filter(|(_, report)| report.is_leading);
    led.map(|(store, report)| region_report(*store, report, sizes)).collect()
}

fn region_id(report: &wire::RegionReport) -> RegionId {
    stele_types::Region::decode(&report.region).map(|region| region.id).unwrap_or_default()
}

fn has_traffic(report: &wire::RegionReport) -> bool {
    report.reads + report.writes > 0
}

fn without_traffic(report: &wire::RegionReport) -> wire::RegionReport {
    wire::RegionReport { reads: 0, writes: 0, read_bytes: 0, written_bytes: 0, ..report.clone() }
}

fn region_report(store: StoreId, report: &RegionReport, sizes: &Sizes) -> wire::RegionReport {
    // Nothing at all means that this range was not measured.
    let measured = sizes.get(&report.region.id);
    let measured = measured.filter(|measured| measured.version == report.region.epoch.version);
    let size = measured.map(|of| (of.size.bytes.max(1), of.size.keys)).unwrap_or_default();
    wire::RegionReport {
        region: report.region.encode(),
        leader_store: store.0,
        leader_peer: report.peer.id.0,
        term: report.term.0,
        down_peers: report
            .down_peers
            .iter()
            .map(|(peer, seconds)| wire::DownPeer { peer_id: peer.id.0, down_seconds: *seconds })
            .collect(),
        pending_peers: report.pending_peers.iter().map(|peer| peer.id.0).collect(),
        approximate_bytes: size.0,
        approximate_keys: size.1,
        reads: report.traffic.read_ops,
        writes: report.traffic.write_ops,
        written_bytes: report.traffic.write_bytes,
        hibernating: report.hibernating,
        ..wire::RegionReport::default()
    }
}

/// Replicas here that heard of no leader for long: their region may have gone on without them.
fn strays(reports: &[(StoreId, RegionReport)]) -> Vec<wire::StrayPeer> {
    let is_stray = |report: &RegionReport| report.leaderless_seconds >= STRAY_AFTER_S;
    reports
        .iter()
        .filter(|(_, report)| is_stray(report))
        .map(|(store, report)| wire::StrayPeer {
            store_id: store.0,
            region_id: report.region.id.0,
            peer_id: report.peer.id.0,
            conf_version: report.region.epoch.conf_version,
            version: report.region.epoch.version,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_raftstore::Traffic;
    use stele_types::{LogIndex, Peer, PeerRole, Region, Term};

    fn leader_of(id: u64, is_leading: bool) -> (StoreId, RegionReport) {
        let peer = Peer { id: PeerId(id), store: StoreId(1), role: PeerRole::Voter };
        let region = Region { id: RegionId(id), peers: vec![peer], ..Region::default() };
        let report = RegionReport {
            region,
            peer,
            role: Role::Leader,
            is_leading,
            leader: Some(peer),
            term: Term(1),
            last: LogIndex(1),
            committed: LogIndex(1),
            applied: LogIndex(1),
            truncated: LogIndex(0),
            pending_peers: Vec::new(),
            down_peers: Vec::new(),
            leaderless_seconds: 0,
            hibernating: false,
            traffic: Traffic::default(),
        };
        (StoreId(1), report)
    }

    #[test]
    fn a_region_is_told_once_its_leader_knows_its_followers() {
        let led = led_regions(&[leader_of(5, true), leader_of(6, false)], &Sizes::new());
        assert_eq!(led.iter().map(region_id).collect::<Vec<_>>(), [RegionId(5)]);
    }
}
