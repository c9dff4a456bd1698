//! Reports to the placement group and its replies: every second, and soon after a change.

use super::cluster_settings::ClusterSettings;
use super::edge::Edge;
use super::ids::IdSource;
use super::open;
use super::orphaned_ranges::find_owners;
use super::split::{Sizes, Splitter};
use super::steps;
use crate::config::Config;
use crate::members::Members;
use crate::observe::counts;
use crate::placement::{PlacementService, wire_times};
use crate::stores::Stores;
use crate::tasks::caught;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_proto::stele::control::v1 as wire;
use stele_raftstore::{Admin, AdminCall, Header, RegionReport, RequestId, Role};
use stele_storage::StorageEngine;
use stele_types::{PeerId, RegionId, StoreId};
use tokio::sync::{Mutex, watch};

/// Time between two reports without changes.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time between two ticks of the placement service.
const TICK: Duration = Duration::from_millis(100);
/// Time before the next report after one that failed.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Delay of a report after a change, so that it carries further changes.
const REPORT_DELAY: Duration = Duration::from_millis(20);
/// Time between two measurements of region sizes; the second if a region led here was not measured
/// yet.
const SPLIT_INTERVAL: Duration = Duration::from_secs(10);
const FIRST_MEASURE_DELAY: Duration = Duration::from_secs(1);
/// Reports in a row above the limit after which a region is busy.
const BUSY_REPORTS: u32 = 3;
/// Time without a leader after which a peer asks whether it is still a member.
const STALE_AFTER_S: u64 = 60;

pub(super) struct Heartbeats {
    pub config: Arc<Config>,
    pub address: String,
    pub members: Arc<Members>,
    pub stores: Arc<Stores>,
    pub edge: Arc<Edge>,
    pub placement: Arc<PlacementService>,
    pub started_at: u64,
}

/// State kept between reports.
struct ReportState {
    sequence: u64,
    /// Region reports of the last answered heartbeat, without their traffic.
    regions: BTreeMap<RegionId, wire::RegionReport>,
    send_all: bool,
    outcomes: Arc<Mutex<Vec<wire::OperatorOutcome>>>,
    /// Operators in progress: a repeated step is not started again.
    running: Arc<Mutex<BTreeSet<(u64, u64)>>>,
    busy: HashMap<RegionId, u32>,
    /// A region led here has a range that was not measured yet.
    has_unmeasured: bool,
    reported_at: Instant,
    settings: ClusterSettings,
    /// Time until the next report.
    interval: Duration,
}

impl Heartbeats {
    /// Runs until `stopping` is set.
    pub async fn run(self, mut stopping: watch::Receiver<bool>) {
        let tasks = Arc::new(self);
        let splitter = Arc::new(Mutex::new(Splitter::new()));
        let mut sizes = Sizes::new();
        let mut state = ReportState {
            sequence: 0,
            regions: BTreeMap::new(),
            send_all: true,
            outcomes: Arc::default(),
            running: Arc::default(),
            busy: HashMap::new(),
            has_unmeasured: true,
            reported_at: Instant::now(),
            settings: ClusterSettings::default(),
            interval: INTERVAL,
        };
        let mut measured_at = Instant::now();
        loop {
            let is_due = match state.has_unmeasured {
                true => measured_at.elapsed() >= FIRST_MEASURE_DELAY,
                false => measured_at.elapsed() >= SPLIT_INTERVAL,
            };
            if is_due {
                measured_at = Instant::now();
                tasks.measure_sizes(&mut state, &splitter);
            }
            // During a measurement the previous sizes are used.
            if let Ok(splitter) = splitter.try_lock() {
                sizes.clone_from(splitter.sizes());
            }
            tasks.report(&mut state, &sizes).await;
            tokio::select! {
                () = stopped(&mut stopping) => return,
                () = tokio::time::sleep(state.interval) => {}
                () = tasks.edge.report_due.notified() => tokio::time::sleep(REPORT_DELAY).await,
            }
        }
    }

    fn measure_sizes(self: &Arc<Self>, state: &mut ReportState, splitter: &Arc<Mutex<Splitter>>) {
        let busy: Vec<RegionId> = state
            .busy
            .iter()
            .filter(|(_, reports)| **reports >= BUSY_REPORTS)
            .map(|(id, _)| *id)
            .collect();
        state.busy.retain(|_, reports| *reports < BUSY_REPORTS);
        let (tasks, splitter) = (self.clone(), splitter.clone());
        self.edge.tasks.spawn_finite("split-check", async move {
            let Ok(mut splitter) = splitter.try_lock_owned() else { return Ok(()) };
            let ids = IdSource(tasks.placement.clone());
            let bytes_max = tasks.config.region_bytes_max;
            splitter.check(&tasks.stores, &ids, bytes_max, &busy).await;
            Ok(())
        });
    }

    async fn report(self: &Arc<Self>, state: &mut ReportState, sizes: &Sizes) {
        let reports = self.reports().await;
        let interval_s = state.reported_at.elapsed().as_secs_f64().max(0.001);
        state.reported_at = Instant::now();
        self.count_busy(state, &reports, interval_s);
        let leading = leader_reports(&reports, sizes);
        state.has_unmeasured = leading.iter().any(|report| report.approximate_bytes == 0);
        let is_changed = |report: &&wire::RegionReport| {
            let id = region_id(report);
            state.send_all
                || has_traffic(report)
                || state.regions.get(&id) != Some(&without_traffic(report))
        };
        state.sequence += 1;
        let request = wire::HeartbeatRequest {
            address: self.address.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: self.started_at,
            sequence: state.sequence,
            stores: self.store_stats(),
            regions: leading.iter().filter(is_changed).cloned().collect(),
            all_regions: state.send_all,
            members_version: self.members.version(),
            outcomes: state.outcomes.lock().await.clone(),
            stray_peers: stale_peers(&reports),
            lease_times: Some(wire_times(&open::lease_times(&self.config))),
            ..wire::HeartbeatRequest::default()
        };
        match self.placement.heartbeat(request).await {
            Ok(answer) => {
                state.regions =
                    leading.iter().map(|r| (region_id(r), without_traffic(r))).collect();
                state.outcomes.lock().await.clear();
                state.send_all = answer.all_regions_wanted;
                state.interval = match answer.interval_ms {
                    0 => INTERVAL,
                    soon => Duration::from_millis(u64::from(soon)).min(INTERVAL),
                };
                state.settings.accept(&answer);
                state.settings.apply(&self.stores);
                self.apply_reply(state, answer).await;
                find_owners(&self.stores, &self.placement).await;
            }
            Err(status) => {
                tracing::debug!("heartbeat: {}", status.message());
                (state.send_all, state.interval) = (true, RETRY_INTERVAL);
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

    fn count_busy(
        &self,
        state: &mut ReportState,
        reports: &[(StoreId, RegionReport)],
        interval_s: f64,
    ) {
        let limit = self.config.region_ops_max as f64;
        if limit == 0.0 {
            return;
        }
        for (_, report) in reports.iter().filter(|(_, report)| report.role == Role::Leader) {
            let ops = (report.traffic.write_ops + report.traffic.read_ops) as f64 / interval_s;
            if ops > limit {
                *state.busy.entry(report.region.id).or_default() += 1;
            } else {
                state.busy.remove(&report.region.id);
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

    async fn apply_reply(self: &Arc<Self>, state: &ReportState, answer: wire::HeartbeatResponse) {
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
        for removed in &answer.gone_peers {
            let Some(store) = self.stores.get(StoreId(removed.store_id)) else { continue };
            let header = Header { region: RegionId(removed.region_id), ..Header::default() };
            let call = Admin::Destroy(PeerId(removed.peer_id));
            // The next report shows whether the replica was destroyed.
            let _ = store.admin(AdminCall { id: RequestId::default(), header, call }).await;
        }
        for step in answer.steps {
            let key = (step.operator_id, step.region_id);
            if !state.running.lock().await.insert(key) {
                continue;
            }
            let (tasks, outcomes) = (self.clone(), state.outcomes.clone());
            let running = state.running.clone();
            self.edge.tasks.spawn_finite("operator-step", async move {
                let ids = IdSource(tasks.placement.clone());
                let execute = steps::execute(&tasks.stores, &ids, step);
                // After a panic, too, the step may be started again.
                let outcome = caught("an operator step", execute).await;
                running.lock().await.remove(&key);
                outcomes.lock().await.extend(outcome?);
                tasks.edge.report_due.notify_one();
                Ok(())
            });
        }
    }
}

/// Ticks the placement service, which acts only as leader, until `stopping` is set.
pub(super) async fn tick(placement: Arc<PlacementService>, mut stopping: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            () = stopped(&mut stopping) => return,
            () = tokio::time::sleep(TICK) => placement.tick().await,
        }
    }
}

async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // A dropped sender also means stopping.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// Returns the reports of leaders that know their followers. A new leader would report all of them
/// as pending, and every operator would be refused: its region is reported later.
fn leader_reports(reports: &[(StoreId, RegionReport)], sizes: &Sizes) -> Vec<wire::RegionReport> {
    let leading = reports.iter().filter(|(_, report)| report.is_leading);
    leading.map(|(store, report)| region_report(*store, report, sizes)).collect()
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
    // Zero means that this range was not measured.
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

/// Returns replicas without a leader for long: their region may have continued without them.
fn stale_peers(reports: &[(StoreId, RegionReport)]) -> Vec<wire::StrayPeer> {
    let is_stale = |report: &RegionReport| report.leaderless_seconds >= STALE_AFTER_S;
    reports
        .iter()
        .filter(|(_, report)| is_stale(report))
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
        let leading = leader_reports(&[leader_of(5, true), leader_of(6, false)], &Sizes::new());
        assert_eq!(leading.iter().map(region_id).collect::<Vec<_>>(), [RegionId(5)]);
    }
}
