//! Reports to the placement group and its replies: every second, and soon after a change. The steps
//! of a reply for regions led here are executed.

use super::dirs::Displaced;
use super::listen::Addresses;
use super::open;
use super::router::NodeRouter;
use super::split::{self, IdSource};
use crate::access::LiveRules;
use crate::config::Config;
use crate::members::Members;
use crate::placement::{
    PlacementService, answer_of, grants_of, heartbeat_request, is_below_level, wire_times,
};
use crate::store::{Sample, StoreHandle};
use crate::stores::{Boots, Stores};
use crate::tasks::caught;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_node::report::split::{Limits, Splitter};
use stele_node::report::steps::{self, Execution};
use stele_node::report::{Obstacle, Reporter, StalePeer, StepKey};
use stele_placement::{FollowedFrom, Instruction, NodeReport, StoreReport};
use stele_proto::stele::control::v1 as wire;
use stele_replica::{Changes, Input};
use stele_types::{Clock, Error, Level, StoreId};
use stele_vfs::SystemClock;
use tokio::sync::watch;

/// Time between two reports without changes.
const INTERVAL: Duration = Duration::from_secs(1);
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
    pub addresses: Addresses,
    pub members: Arc<Members>,
    pub stores: Arc<Stores>,
    pub router: Arc<NodeRouter>,
    pub placement: Arc<PlacementService>,
    pub boots: Arc<Boots>,
    pub started_at: u64,
    pub displaced: Displaced<Sample>,
}

struct Shared {
    reporter: Mutex<Reporter>,
    splitter: Mutex<Splitter>,
    /// Held during a measurement of a store.
    measuring: Mutex<BTreeMap<StoreId, Arc<tokio::sync::Mutex<()>>>>,
    measuring_devices: Mutex<BTreeSet<StoreId>>,
    recording_level: Mutex<BTreeSet<StoreId>>,
    started: Instant,
}

impl Heartbeats {
    pub(super) async fn run(self, mut stopping: watch::Receiver<bool>) {
        let tasks = Arc::new(self);
        let shared = Arc::new(Shared {
            reporter: Mutex::new(Reporter::new(0, STALE_AFTER_S)),
            splitter: Mutex::default(),
            measuring: Mutex::default(),
            measuring_devices: Mutex::default(),
            recording_level: Mutex::default(),
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
                () = tasks.router.report_due.notified() => tokio::time::sleep(REPORT_DELAY).await,
            }
        }
    }

    fn limits(&self) -> Limits {
        let (bytes_max, ops_max) = (self.config.region_bytes_max, self.config.region_ops_max);
        Limits { bytes_max, ops_max }
    }

    /// Measures region sizes and splits regions, in each store of which the measurement before has
    /// ended: the device of one may hang.
    fn measure_sizes(self: &Arc<Self>, shared: &Arc<Shared>) {
        for store in self.stores.all() {
            let measuring = shared.measuring.lock().entry(store.id()).or_default().clone();
            let Ok(measuring) = measuring.try_lock_owned() else { continue };
            let (tasks, shared) = (self.clone(), shared.clone());
            self.router.tasks.spawn_finite("split-check", async move {
                let ids = IdSource(tasks.placement.clone());
                let (splitter, started) = (&shared.splitter, shared.started);
                split::check(&store, &ids, tasks.limits(), splitter, started).await;
                let stores = tasks.stores.all();
                let leads = |id| stores.iter().any(|store| store.leads(id));
                splitter.lock().retain(leads);
                drop(measuring);
                Ok(())
            });
        }
    }

    /// Reports once. Returns the time until the next report.
    async fn report(self: &Arc<Self>, shared: &Arc<Shared>, interval_s: f64) -> Duration {
        let OfStores { stores, changes, is_complete } = self.of_stores(shared).await;
        let mut report = {
            let mut splitter = shared.splitter.lock();
            let changed = changes.iter().flat_map(|changes| &changes.regions);
            splitter.count_busy(changed, interval_s, self.limits());
            let node = NodeReport {
                address: self.addresses.nodes.clone(),
                client_address: self.addresses.clients.clone(),
                admin_address: self.addresses.administrators.clone(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                level: Level::NEWEST,
                started_at: self.started_at,
                boot_nonce: self.boots.nonce(),
                lineages: stores
                    .iter()
                    .map(|store| (store.id, self.boots.get(store.id).lineage))
                    .filter(|(_, lineage)| lineage.is_known())
                    .collect(),
                region_bytes_max: self.config.region_bytes_max,
                labels: Some(self.config.label_pairs()),
                unix_s: SystemClock::new().unix_seconds(),
                is_stopping: self.stores.is_stopping(),
                access_version: self.enforced_version(),
                followed: self.stores.followers().needed(),
                name: None,
            };
            let mut reporter = shared.reporter.lock();
            reporter.note_sizes(splitter.take_changed());
            reporter.report(node, stores, splitter.sizes())
        };
        // Invariant: a report is full only with the regions of every store.
        report.is_full &= is_complete;
        let sequence = report.sequence;
        let request = wire::HeartbeatRequest {
            members_version: self.members.version(),
            lease_times: Some(wire_times(&open::times_of(&self.config))),
            ..heartbeat_request(report)
        };
        match self.placement.report(request).await {
            Ok(response) => {
                self.update_members(&response);
                self.update_grants(&response);
                self.update_level(shared, &response);
                self.apply(shared, &response, sequence).await;
                match response.interval_ms {
                    0 => INTERVAL,
                    soon => Duration::from_millis(u64::from(soon)).min(INTERVAL),
                }
            }
            Err(status) => {
                tracing::debug!("heartbeat: {}", status.message());
                // Invariant: a node that may not understand what the cluster writes does not serve.
                // bug server.serves_below_the_level: never
                if is_below_level(&status) {
                    let error = Error::Refused(status.message().to_owned());
                    self.router.tasks.end_node("heartbeats", error);
                }
                shared.reporter.lock().failed();
                self.router.leader_unknown.notify_one();
                RETRY_INTERVAL
            }
        }
    }

    /// Returns the reports of all stores, and collects what has changed in their regions.
    ///
    /// Invariant: no store keeps the report of another waiting. All are asked at once, with a limit,
    /// and the last state counts of one that does not answer.
    async fn of_stores(&self, shared: &Shared) -> OfStores {
        let ask = |store: Arc<StoreHandle>| {
            let since = shared.reporter.lock().collected(store.id());
            tokio::spawn(async move {
                let (sample, changes) = tokio::join!(store.sample(), store.changed_regions(since));
                (store, sample, changes)
            })
        };
        // A store that waits for the operator has not failed, and does not serve.
        let mut reported = self.stores.all();
        reported.retain(|store| !self.router.is_stopped_beside(store.id()));
        let asked: Vec<_> = reported.into_iter().map(ask).collect();
        let (mut stores, mut all, mut is_complete) = (Vec::new(), Vec::new(), true);
        let mut kept = BTreeSet::new();
        for asked in asked {
            // Fails only by a panic, which has been logged, or when the node stops.
            let Ok((store, sample, changes)) = asked.await else {
                is_complete = false;
                continue;
            };
            if let Some(sample) = &sample {
                self.stop_if_displaced(&store, sample);
            }
            let mut reporter = shared.reporter.lock();
            // A store that ended leads nothing, and refuses nothing.
            let is_running = store.is_running();
            if is_running {
                kept.insert(store.id());
                changes.iter().for_each(|changes| reporter.collect(store.id(), changes));
                is_complete &= changes.is_some();
                all.extend(changes);
            }
            let refuses_entries = is_running && reporter.refuses_entries(store.id());
            drop(reporter);
            store.set_refuses_entries(refuses_entries);
            let report = store_report(&store, sample.as_deref());
            // Invariant: a store that ends with its node has not failed. Its replicas would be rebuilt
            // at once, and it would be named as failed until the node is back.
            let ends_in_order =
                self.stores.is_stopping() && self.router.tasks.store_failure(store.id()).is_none();
            stores.push(StoreReport {
                boot_count: self.boots.get(store.id()).boot.count,
                has_failed: report.has_failed && !ends_in_order,
                is_full: report.is_full || refuses_entries,
                ..report
            });
        }
        shared.reporter.lock().keep_stores(&kept);
        let failed = self.stores.failed().into_iter().filter_map(|dir| dir.store);
        // It may have been removed, or have moved to another node.
        let own = self.members.own();
        let failed = failed.filter(|store| own.contains_key(store));
        let report = |id| StoreReport { id, has_failed: true, ..StoreReport::default() };
        stores.extend(failed.map(report));
        OfStores { stores, changes: all, is_complete }
    }

    /// Stops a store of which the directory is no longer where it was opened: what it would acknowledge
    /// would be lost with it. Its replicas are rebuilt elsewhere, as those of a device that failed.
    fn stop_if_displaced(&self, store: &StoreHandle, sample: &Arc<Sample>) {
        let reason = sample.displaced.as_ref();
        let must_stop = self.displaced.note(store.id(), sample, reason.is_some());
        if let Some(reason) = reason.filter(|_| must_stop && store.is_running()) {
            let error = store.engine().stop(reason.duplicate());
            store.fail(error);
        }
    }

    fn update_members(&self, response: &wire::HeartbeatResponse) {
        let is_listed = !response.members.is_empty();
        if is_listed
            && self.members.update(
                response.members_version,
                &response.members,
                &self.addresses.nodes,
            )
        {
            self.members.announce();
        }
    }

    /// Returns the rules of those that connect to this node; `None` without TLS.
    fn rules(&self) -> Option<&Arc<LiveRules>> {
        self.router.access().tls().map(|tls| tls.live_rules())
    }

    /// Returns the version of the grants that the node enforces; `None` while callers without TLS have every
    /// right: the placement group takes no grant before all nodes enforce them.
    fn enforced_version(&self) -> Option<u64> {
        let is_enforced = !self.router.access().is_in_transition();
        // bug server.transition_enforces_grants: `is_enforced` is `true`
        let rules = self.rules().filter(|_| is_enforced);
        rules.map(|rules| rules.get().grants.version)
    }

    /// Takes newer grants over.
    fn update_grants(&self, response: &wire::HeartbeatResponse) {
        let Some(rules) = self.rules() else { return };
        match response.access.as_ref().map(grants_of) {
            None => {}
            Some(Ok(grants)) => {
                let (version, count) = (grants.version, grants.by_name.len());
                if rules.take_grants(grants) {
                    tracing::info!("{count} grants are in force, version {version}");
                    // An administrator may wait for it.
                    self.router.report_due.notify_one();
                }
            }
            Some(Err(error)) => tracing::error!("the grants in force stay: {error}"),
        }
        self.router.save_grants(&self.members, rules);
    }

    async fn apply(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        response: &wire::HeartbeatResponse,
        sequence: u64,
    ) {
        let (mut answer, refusals) = answer_of(response, sequence);
        self.keep_for_readers(answer.followed.take());
        let slowdowns = std::mem::take(&mut answer.slowdowns);
        self.stores.all().iter().for_each(|store| store.set_slowdowns(slowdowns.clone()));
        let unix_s = answer.unix_s;
        // bug server.cluster_time_unnoted: skip
        for store in self.stores.all().iter() {
            store.engine().note_cluster_time(unix_s);
            store.input(Input::ClusterTime(unix_s));
        }
        answer.measured.iter().for_each(|store| self.measure_device(shared, *store));
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
        removed.into_iter().for_each(|peer| self.destroy(peer));
        steps.into_iter().for_each(|step| self.start(shared, step));
    }

    /// Makes the stores keep what readers of logs need. A node that does not learn what they need keeps what it
    /// kept.
    fn keep_for_readers(&self, needed: Option<FollowedFrom>) {
        let Some(needed) = needed else { return };
        let followers = self.stores.followers();
        for store in self.stores.all().into_iter().filter(|store| store.is_running()) {
            if !followers.begin_stating(store.id(), &needed) {
                continue;
            }
            let (followers, needed) = (followers.clone(), needed.clone());
            self.router.tasks.spawn_finite("log-readers", async move {
                followers.state(store, needed).await;
                Ok(())
            });
        }
    }

    /// Measures the device of a store on a thread of its own, one measurement at a time: the device may
    /// hang.
    fn measure_device(&self, shared: &Arc<Shared>, id: StoreId) {
        let Some(store) = self.stores.get(id).filter(|store| store.is_running()) else { return };
        if !shared.measuring_devices.lock().insert(id) {
            return;
        }
        let shared = shared.clone();
        self.router.tasks.spawn_finite("device-measurement", async move {
            let measured =
                tokio::task::spawn_blocking(move || store.engine().measure_writes()).await;
            shared.measuring_devices.lock().remove(&id);
            // A panic in it has been logged.
            if let Ok(Err(error)) = measured {
                tracing::debug!("store {id} does not measure its device: {error}");
            }
            Ok(())
        });
    }

    /// Takes the levels over. The stores that record less record the level now, each on a thread of its own:
    /// its device may hang.
    fn update_level(&self, shared: &Arc<Shared>, response: &wire::HeartbeatResponse) {
        let level = Level::new(response.level);
        self.stores.note_level_in_use(Level::new(response.level_in_use));
        for store in self.stores.all() {
            let is_below = store.is_running() && store.engine().level() < level;
            if !is_below || !shared.recording_level.lock().insert(store.id()) {
                continue;
            }
            let (shared, router) = (shared.clone(), self.router.clone());
            self.router.tasks.spawn_finite("level", async move {
                let id = store.id();
                let recorded =
                    tokio::task::spawn_blocking(move || store.engine().record_level(level)).await;
                shared.recording_level.lock().remove(&id);
                // A panic in it has been logged.
                match recorded {
                    Ok(Err(error)) => {
                        tracing::warn!("store {id} cannot record level {level}: {error}")
                    }
                    Ok(Ok(())) => {
                        tracing::info!("store {id} has recorded level {level}");
                        router.report_due.notify_one();
                    }
                    Err(_) => {}
                }
                Ok(())
            });
        }
    }

    /// Destroys a removed replica. Does not wait: its store may hang.
    fn destroy(&self, peer: StalePeer) {
        let Some(store) = self.stores.get(peer.store) else { return };
        self.router.tasks.spawn_finite("destroy-replica", async move {
            // The next report shows whether the replica was destroyed.
            let _ = store.submit(peer.destroy(), None).await;
            Ok(())
        });
    }

    fn start(self: &Arc<Self>, shared: &Arc<Shared>, step: Instruction) {
        let (tasks, shared) = (self.clone(), shared.clone());
        self.router.tasks.spawn_finite("operator-step", async move {
            let ids = IdSource(tasks.placement.clone());
            let execute = execute(&tasks.stores, &ids, &step);
            // After a panic, too, the step may be started again.
            let (outcome, panicked) = match caught("an operator step", execute).await {
                Ok(outcome) => (outcome, Ok(())),
                Err(error) => (Err(Obstacle::now(error.to_string())), Err(error)),
            };
            shared.reporter.lock().ended(StepKey::of(&step), step.step, outcome);
            tasks.router.report_due.notify_one();
            panicked
        });
    }
}

struct OfStores {
    stores: Vec<StoreReport>,
    changes: Vec<Arc<Changes>>,
    /// The regions of every store are known.
    is_complete: bool,
}

/// Returns the report of a store without its run; without a sample its sizes are unknown.
fn store_report(store: &StoreHandle, sample: Option<&Sample>) -> StoreReport {
    let engine = store.engine();
    let stats = sample.map(|sample| sample.stats.clone()).unwrap_or_default();
    let space = sample.map(|sample| sample.space).unwrap_or_default();
    StoreReport {
        id: store.id(),
        capacity_bytes: stats.device_bytes,
        free_bytes: stats.device_free_bytes,
        used_bytes: stats.disk_bytes,
        is_full: space.is_full,
        has_failed: !store.is_running(),
        append_p99_nanos: engine.append_p99_nanos(),
        append_age_ms: engine.append_age_nanos() / 1_000_000,
        live_bytes: stats.live_bytes_estimate,
        usable_bytes: stats.device_bytes.saturating_sub(space.reserve_bytes),
        device: engine.device_speed(),
        receiving: store.take_receiving(),
        slowdown_nanos_per_kib: store.slowdown(),
        level: engine.level(),
        ..StoreReport::default()
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

pub(super) async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // A dropped sender also means stopping.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// Executes one step. Its effect shows in the next report; an obstacle is returned.
pub(super) async fn execute(
    stores: &Stores,
    ids: &IdSource,
    step: &Instruction,
) -> Result<(), Obstacle> {
    let outcome = run(stores, ids, step).await;
    if let Err(Obstacle { reason, .. }) = &outcome {
        tracing::info!("operator {}: region {}: {reason}", step.operator, step.region);
    }
    outcome
}

async fn run(stores: &Stores, ids: &IdSource, step: &Instruction) -> Result<(), Obstacle> {
    let store = stores.holding(step.region);
    let region = store.as_ref().and_then(|store| store.readers().get(step.region));
    let region = region.map(|reader| reader.region());
    let execution = steps::execution(step, region.as_deref())?;
    let (Some(store), Some(region)) = (store, region) else { return Ok(()) };
    match execution {
        Execution::Request(call) => split::change(&store, &region, call).await,
        Execution::Split { keys, new } => split::split_at(&store, ids, &region, keys, new).await,
    }
}
