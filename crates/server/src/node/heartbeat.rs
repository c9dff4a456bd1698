//! Reports to the placement group and its replies: every second, and soon after a change.

use super::edge::Edge;
use super::ids::IdSource;
use super::open;
use super::split;
use super::steps;
use crate::config::Config;
use crate::members::Members;
use crate::placement::{PlacementService, answer_of, heartbeat_request, wire_times};
use crate::stores::Stores;
use crate::tasks::caught;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_node::report::split::{Limits, Splitter};
use stele_node::report::{Obstacle, Reporter, StalePeer, StepKey};
use stele_placement::{Instruction, NodeReport, StoreReport};
use stele_proto::stele::control::v1 as wire;
use stele_raftstore::{Input, RegionReport, RequestId};
use stele_storage::{LogStore, StateMachine};
use stele_types::StoreId;
use tokio::sync::watch;

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

/// State that the report, its steps and the measurement of sizes share.
struct Shared {
    reporter: Mutex<Reporter>,
    splitter: Mutex<Splitter>,
    /// Held during a measurement.
    measuring: Arc<tokio::sync::Mutex<()>>,
    started: Instant,
}

impl Heartbeats {
    /// Runs until `stopping` is set.
    pub async fn run(self, mut stopping: watch::Receiver<bool>) {
        let tasks = Arc::new(self);
        let shared = Arc::new(Shared {
            reporter: Mutex::new(Reporter::new(0, STALE_AFTER_S)),
            splitter: Mutex::default(),
            measuring: Arc::default(),
            started: Instant::now(),
        });
        let (mut measured_at, mut reported_at) = (Instant::now(), Instant::now());
        loop {
            let is_due = match shared.reporter.lock().has_unmeasured() {
                true => measured_at.elapsed() >= FIRST_MEASURE_DELAY,
                false => measured_at.elapsed() >= SPLIT_INTERVAL,
            };
            if is_due {
                measured_at = Instant::now();
                tasks.measure_sizes(&shared);
            }
            let interval_s = reported_at.elapsed().as_secs_f64().max(0.001);
            reported_at = Instant::now();
            let pause = tasks.report(&shared, interval_s).await;
            tokio::select! {
                () = stopped(&mut stopping) => return,
                () = tokio::time::sleep(pause) => {}
                () = tasks.edge.report_due.notified() => tokio::time::sleep(REPORT_DELAY).await,
            }
        }
    }

    fn limits(&self) -> Limits {
        let (bytes_max, ops_max) = (self.config.region_bytes_max, self.config.region_ops_max);
        Limits { bytes_max, ops_max }
    }

    /// Measures region sizes and splits regions, unless the measurement before still runs.
    fn measure_sizes(self: &Arc<Self>, shared: &Arc<Shared>) {
        let Ok(measuring) = shared.measuring.clone().try_lock_owned() else { return };
        let (tasks, shared) = (self.clone(), shared.clone());
        self.edge.tasks.spawn_finite("split-check", async move {
            let ids = IdSource(tasks.placement.clone());
            let (splitter, started) = (&shared.splitter, shared.started);
            split::check(&tasks.stores, &ids, tasks.limits(), splitter, started).await;
            drop(measuring);
            Ok(())
        });
    }

    /// Reports once. Returns the time until the next report.
    async fn report(self: &Arc<Self>, shared: &Arc<Shared>, interval_s: f64) -> Duration {
        let regions = self.regions().await;
        let report = {
            let mut splitter = shared.splitter.lock();
            splitter.count_busy(&regions, interval_s, self.limits());
            let node = NodeReport {
                address: self.address.clone(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                started_at: self.started_at,
            };
            let (stores, sizes) = (self.store_reports(), splitter.sizes());
            shared.reporter.lock().report(node, stores, &regions, sizes)
        };
        let sequence = report.sequence;
        let request = wire::HeartbeatRequest {
            members_version: self.members.version(),
            lease_times: Some(wire_times(&open::lease_times(&self.config))),
            ..heartbeat_request(report)
        };
        match self.placement.heartbeat(request).await {
            Ok(response) => {
                self.update_members(&response);
                self.apply(shared, &response, sequence).await;
                match response.interval_ms {
                    0 => INTERVAL,
                    soon => Duration::from_millis(u64::from(soon)).min(INTERVAL),
                }
            }
            Err(status) => {
                tracing::debug!("heartbeat: {}", status.message());
                shared.reporter.lock().failed();
                RETRY_INTERVAL
            }
        }
    }

    async fn regions(&self) -> Vec<(StoreId, RegionReport)> {
        let mut all = Vec::new();
        for store in self.stores.all() {
            let found = store.with_core(|core| core.regions()).await.unwrap_or_default();
            all.extend(found.into_iter().map(|report| (store.id(), report)));
        }
        all
    }

    fn store_reports(&self) -> Vec<StoreReport> {
        let report = |store: &Arc<crate::store::StoreHandle>| {
            let stats = store.engine().stats();
            StoreReport {
                id: store.id(),
                capacity_bytes: stats.device_bytes,
                free_bytes: stats.device_free_bytes,
                used_bytes: stats.disk_bytes,
                is_full: store.engine().admit(1).is_err(),
                has_failed: !store.is_running(),
                append_p99_nanos: store.append_p99_nanos(),
            }
        };
        self.stores.all().iter().map(report).collect()
    }

    fn update_members(&self, response: &wire::HeartbeatResponse) {
        if response.members.is_empty() {
            return;
        }
        match self.members.update(response.members_version, &response.members) {
            Ok(true) => {
                if let Some(transport) = self.edge.transport() {
                    transport.members_changed();
                }
            }
            Ok(false) => {}
            Err(error) => tracing::error!("the list of members is not kept: {error}"),
        }
    }

    /// Puts the settings into force, destroys removed replicas, and starts steps.
    async fn apply(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        response: &wire::HeartbeatResponse,
        sequence: u64,
    ) {
        let (answer, refusals) = answer_of(response, sequence);
        let (steps, removed) = {
            let mut reporter = shared.reporter.lock();
            let before = reporter.settings.leases();
            let started = reporter.answered(answer);
            refusals.into_iter().for_each(|refused| reporter.refuse(refused));
            let leases = reporter.settings.leases();
            if let Some(leases) = leases.filter(|_| before.is_some() && before != leases) {
                tracing::info!("leases are {} from now on", if leases { "on" } else { "off" });
            }
            if let Some(fail) = reporter.settings.undetermined_writes_fail() {
                self.stores.set_undetermined_writes_fail(fail);
            }
            for store in self.stores.all() {
                // A store starts once in a process.
                if let Some(leases) = reporter.settings.take_leases_for(store.id(), 0) {
                    store.input(Input::Leases(leases));
                }
            }
            started
        };
        self.destroy(&removed).await;
        steps.into_iter().for_each(|step| self.start(shared, step));
    }

    async fn destroy(&self, removed: &[StalePeer]) {
        for peer in removed {
            let Some(store) = self.stores.get(peer.store) else { continue };
            // The next report shows whether the replica was destroyed.
            let _ = store.admin(peer.destroy(RequestId::default())).await;
        }
    }

    fn start(self: &Arc<Self>, shared: &Arc<Shared>, step: Instruction) {
        let (tasks, shared) = (self.clone(), shared.clone());
        self.edge.tasks.spawn_finite("operator-step", async move {
            let ids = IdSource(tasks.placement.clone());
            let execute = steps::execute(&tasks.stores, &ids, &step);
            // After a panic, too, the step may be started again.
            let (outcome, panicked) = match caught("an operator step", execute).await {
                Ok(outcome) => (outcome, Ok(())),
                Err(error) => (Err(Obstacle::now(error.to_string())), Err(error)),
            };
            shared.reporter.lock().ended(StepKey::of(&step), step.step, outcome);
            tasks.edge.report_due.notify_one();
            panicked
        });
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
