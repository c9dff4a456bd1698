//! One process: its stores, its port, and the tasks that keep it part of the cluster.

mod dirs;
#[cfg(test)]
mod hanging_tests;
mod heartbeat;
mod identity;
mod join_stores;
mod leave;
mod listen;
mod open;
mod ready;
mod reload;
mod router;
mod seeds;
mod split;
pub(crate) mod stopped_run;
mod system;
mod waiting;

pub(crate) use open::{SPEED_OP_BYTES, lease_times};
pub use ready::Ready;
pub(crate) use stele_node::report::split::{oversized_group, size_of};

use crate::access::Access;
use crate::config::{Config, LiveConfig};
use crate::control::ControlService;
use crate::majorities::Majorities;
use crate::members::Members;
use crate::memory::NodeMemory;
use crate::observe::{Health, Metrics, SlowLog, routes};
use crate::pd::PdService;
use crate::placement::PlacementService;
use crate::port::{self, MESSAGE_BYTES_MAX};
use crate::redis::{self, ScanCursors};
use crate::store::{Engine, StoreHandle};
use crate::stores::{Boots, FailedDir, Stores};
use crate::tasks::{Failures, NodeFailure, Tasks, blocking};
use crate::tikv::TikvService;
use crate::transport::{self, Transport};
use dirs::Dirs;
use identity::Opened;
use listen::{Addresses, Bound, Signal, Signals};
use reload::Reload;
use router::NodeRouter;
use seeds::{ClusterQuestion, Seeds};
use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use stele_placement::Bootstrap;
use stele_proto::keyspacepb::keyspace_server::KeyspaceServer;
use stele_proto::meta_storagepb::meta_storage_server::MetaStorageServer;
use stele_proto::pdpb::pd_server::PdServer;
use stele_proto::stele::control::v1::control_server::ControlServer;
use stele_storage::StateMachine;
use stele_types::{Clock, ClusterId, Error, Result, StoreId, StoreIdent, TickMillis};
use stele_vfs::SystemClock;
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};
use tonic::service::Routes;

/// Largest Raft entry of a batch that is not atomic; a larger batch becomes several entries.
const BATCH_ENTRY_BYTES_MAX: usize = 8 << 20;

/// Time between two looks at the files of TLS.
const FILES_INTERVAL: Duration = Duration::from_secs(5);
/// Time in which the last tasks leave the stores of a node that stops.
const UNUSED_WITHIN: Duration = Duration::from_secs(2);
const UNUSED_POLL: Duration = Duration::from_millis(1);

/// Most stores of one node, as the placement group allows.
const STORES_MAX: u64 = 256;

/// Runs a node until a signal stops it or its last store fails. `configuration` reads the settings
/// again.
pub async fn run(
    config: Config,
    on_ready: impl FnOnce(&Ready),
    configuration: impl Fn() -> Result<Config>,
) -> Result<()> {
    let mut signals = Signals::new()?;
    let mut node = tokio::select! {
        node = Node::start(config) => node?,
        () = signals.stop() => return Ok(()),
    };
    on_ready(&node.ready);
    let ended = loop {
        let signal = tokio::select! {
            ended = node.wait() => break ended,
            signal = signals.next() => signal,
        };
        match signal {
            Signal::Reload => node.reload(configuration()),
            Signal::Stop => {
                tokio::select! {
                    () = node.leave() => {}
                    () = signals.stop() => tracing::info!("the hand-over of leaders ends early"),
                }
                break Ok(());
            }
        }
    };
    node.stop().await;
    ended
}

/// A running node.
pub struct Node {
    /// Result of the start.
    pub ready: Ready,
    stores: Arc<Stores>,
    transport: Transport,
    tasks: Tasks,
    failures: Failures,
    stopping: watch::Sender<bool>,
    /// Ends when the port is closed.
    port: oneshot::Receiver<()>,
    router: Arc<NodeRouter>,
    reload: Reload,
}

impl Node {
    /// Opens the stores, bootstraps or joins a cluster, and serves. The future is boxed so that this crate
    /// contains its code once: otherwise each program that starts a node compiles all of it again.
    pub fn start(config: Config) -> Pin<Box<dyn Future<Output = Result<Self>> + Send>> {
        Box::pin(Self::open(config))
    }

    async fn open(config: Config) -> Result<Self> {
        let started = Instant::now();
        let access = Access::open(&config)?;
        let (bound, addresses) = listen::bind(&config).await?;
        let address = addresses.nodes.clone();
        let question = ClusterQuestion::ask(&config, &access, &address);
        let opened = config.clone();
        let mut dirs = blocking(move || dirs::open_all(&opened)).await?;
        let cluster = match dirs.cluster {
            Some(cluster) => question.check(cluster).await.map(|()| cluster)?,
            None => new_cluster((&config, &access), &mut dirs, &addresses).await?,
        };
        access.restore_grants(&config.stores, cluster)?;
        let idents = dirs.idents();
        let config = Arc::new(open::with_tick(config, &idents)?);
        let stores = Arc::new(Stores::new(BATCH_ENTRY_BYTES_MAX));
        let (tasks, failures) = Tasks::new();
        let router = Arc::new(NodeRouter::new(stores.clone(), tasks.clone(), access.clone()));
        let boots = dirs.boots();
        let members = dirs.keep_members(cluster, &addresses, &boots);
        router.set_members(members.clone());
        let identity = transport::Identity {
            cluster,
            address: address.clone(),
            stores: idents.iter().map(|ident| ident.store).collect(),
            times: open::times_of(&config),
            boots: boots.clone(),
        };
        let options = transport::TransportOptions {
            seed: random(),
            access: access.clone(),
            ..transport::TransportOptions::default()
        };
        let transport = Transport::start(options, identity, members.clone(), router.clone());
        router.set_transport(transport.clone());
        let parts = Parts {
            config,
            access,
            cluster,
            address,
            addresses,
            members,
            stores,
            router,
            clock: Arc::new(SystemClock::new()),
            boots,
            transport,
            cursors: Arc::default(),
        };
        let new = parts.start_stores(dirs)?;
        let (stopping, _) = watch::channel(false);
        let placement = parts.placement(&idents);
        let (port, reload) = parts.serve(bound, placement.clone(), &stopping);
        parts.join_new_stores(new, placement.clone(), &stopping);
        parts.start_address_exchange(&stopping);
        parts.follow_files(&reload, &stopping);
        parts.start_heartbeats(placement, &stopping);
        parts.start_sweeper(&stopping);
        let ready = parts.ready(&idents, started);
        let Parts { stores, router, transport, .. } = parts;
        Ok(Self { ready, stores, transport, tasks, failures, stopping, port, router, reload })
    }

    /// Waits until the last store or a required task fails.
    pub async fn wait(&mut self) -> Result<()> {
        while let Some(failure) = self.failures.recv().await {
            let runs = self.stores.all().iter().any(|store| store.is_running());
            match failure {
                NodeFailure::Task(error) => return Err(error),
                NodeFailure::Store(error) if !runs && self.stores.recovering().is_empty() => {
                    return Err(error);
                }
                NodeFailure::Store(_) => {}
            }
        }
        Ok(())
    }

    /// Takes over the settings that need no restart. A configuration that is refused changes nothing.
    pub fn reload(&self, configuration: Result<Config>) {
        let applied = configuration.and_then(|wanted| self.reload.apply(&wanted));
        if let Err(error) = applied {
            tracing::error!("the configuration is refused, and nothing changes: {error}");
        }
    }

    /// Makes the node unready, tells the placement group, and hands the leaders over.
    pub async fn leave(&self) {
        self.stores.set_stopping();
        self.router.report_due.notify_one();
        leave::hand_over(&self.stores).await;
    }

    /// Returns the background tasks of the node, for further ones of its owner.
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Stops the tasks, the port, the connections to other nodes and the stores, in this order:
    /// requests in progress need the stores and the other nodes.
    pub async fn stop(self) {
        self.stores.set_stopping();
        self.tasks.stop();
        // Without receivers no task runs.
        let _ = self.stopping.send(true);
        // The sender is dropped when the port is closed.
        let _ = self.port.await;
        self.transport.shutdown().await;
        self.router.stop_snapshots();
        let (stores, access) = (self.stores.clone(), self.reload.access.clone());
        let engines: Vec<_> = stores.all().iter().map(|it| Arc::downgrade(it.engine())).collect();
        let stopped = tokio::task::spawn_blocking(move || {
            access.audit().flush();
            // Recovering stores first: one may be opening.
            stores.recovering().iter().for_each(|store| store.stop());
            for store in stores.all() {
                if let Err(error) = store.stop() {
                    tracing::warn!("store {} did not stop cleanly: {error}", store.id());
                }
            }
        });
        // The task fails only by a panic, which has ended the process.
        let _ = stopped.await;
        // Other tasks hold the list: a store left in it would keep its directory locked. So would one that a task has
        // taken from it, for the moment in which it works with it.
        self.stores.clear();
        let unused = async {
            while engines.iter().any(|engine| engine.strong_count() > 0) {
                sleep(UNUSED_POLL).await;
            }
        };
        // A directory that is in use for longer is free when the process ends.
        let _ = timeout(UNUSED_WITHIN, unused).await;
    }
}

#[derive(Clone)]
struct Parts {
    config: Arc<Config>,
    access: Access,
    cluster: ClusterId,
    /// `host:port` of this node for other nodes.
    address: String,
    addresses: Addresses,
    members: Arc<Members>,
    stores: Arc<Stores>,
    router: Arc<NodeRouter>,
    clock: Arc<dyn Clock>,
    boots: Arc<Boots>,
    transport: Transport,
    cursors: Arc<ScanCursors>,
}

impl Parts {
    fn tikv(&self, metrics: &Arc<Metrics>, stop: &watch::Receiver<bool>) -> TikvService {
        let (stores, cursors) = (self.stores.clone(), self.cursors.clone());
        TikvService::new(stores, self.cluster, metrics.clone(), cursors, stop.clone())
    }

    /// Starts the stores of the directories; returns the directories that are new. A store that does
    /// not start leaves the others running; it is an error if none starts.
    fn start_stores(&self, dirs: Dirs) -> Result<Opened> {
        let Dirs { opened, damaged, failed, .. } = dirs;
        failed.into_iter().for_each(|dir| self.stores.add_failed(dir));
        let (mut new, mut first_error) = (Vec::new(), None);
        let mut fail = |dir, store, error: Error| {
            self.stores.add_failed(FailedDir::new(dir, Some(store), &error));
            first_error.get_or_insert(error);
        };
        for open in opened {
            let Some(ident) = open.ident else {
                new.push(open);
                continue;
            };
            match self.start_store(open.engine, ident) {
                Ok(store) => self.stores.add(store),
                Err(error) => fail(open.dir, ident.store, error),
            }
        }
        for damaged in damaged {
            let (dir, store) = (damaged.dir.clone(), damaged.ident.store);
            if let Err(error) = open::start_recovery(damaged, self) {
                fail(dir, store, error);
            }
        }
        let none = self.stores.all().is_empty() && self.stores.recovering().is_empty();
        self.add_absent();
        let gone = self.stores.failed().into_iter().filter_map(|failed| failed.store);
        gone.for_each(|store| self.router.store_gone(store));
        first_error.filter(|_| none).map_or(Ok(new), Err)
    }

    fn add_absent(&self) {
        let failed = self.stores.failed();
        for (store, dir) in self.members.own() {
            let is_failed = failed.iter().any(|failed| failed.store == Some(store));
            if !self.stores.has(store) && !is_failed {
                self.stores.add_failed(FailedDir::absent(store, dir));
            }
        }
    }

    fn placement(&self, idents: &[StoreIdent]) -> Arc<PlacementService> {
        let system = system::SystemRegion::new(
            self.stores.clone(),
            self.members.clone(),
            self.transport.clone(),
            self.addresses.clone(),
        );
        let founded = idents.iter().any(|ident| ident.store == StoreId(1));
        let bootstrap = || Bootstrap {
            cluster: self.cluster,
            address: self.address.clone(),
            capacities_bytes: self.capacities_bytes(),
        };
        let recorded = self.stores.all().iter().map(|store| store.engine().level()).min();
        let bootstrap = founded.then(|| (bootstrap(), recorded.unwrap_or_default()));
        let times = open::times_of(&self.config);
        PlacementService::new(self.cluster, times, Arc::new(system), bootstrap)
    }

    /// Returns the sizes of the devices of the stores that bootstrapped the cluster, in the order of
    /// their numbers; 0 for one that does not serve.
    ///
    /// Invariant: each has its number in the first pairs, also if it is missing when they are written.
    /// Its number would be allocated again.
    fn capacities_bytes(&self) -> Vec<u64> {
        let (open, recovering) = (self.stores.all(), self.stores.recovering());
        let open = open.iter().map(|store| (store.id(), store.engine().stats().device_bytes));
        let recovering = recovering.iter().map(|store| (store.id, store.device_bytes));
        let known: BTreeMap<StoreId, u64> = open.chain(recovering).collect();
        let last = self.members.own().into_keys().chain(known.keys().copied()).max();
        // Once stores have joined, their numbers may be greater, and the pairs were written.
        let ids = 1..=last.map_or(0, |last| last.0).min(STORES_MAX);
        ids.map(|id| known.get(&StoreId(id)).copied().unwrap_or_default()).collect()
    }

    fn serve(
        &self,
        Bound { listeners, probes, redis }: Bound,
        placement: Arc<PlacementService>,
        stopping: &watch::Sender<bool>,
    ) -> (oneshot::Receiver<()>, Reload) {
        let metrics = Arc::new(Metrics::new(SlowLog::new(self.config.slow_log_ms)));
        let stop = stopping.subscribe();
        let tikv = self.tikv(&metrics, &stop);
        let members = self.members.clone();
        let pd = PdService::new(self.cluster, placement.clone(), members, stop.clone());
        let reload = self.settings(metrics.clone());
        let majorities = self.watch_majorities(stopping);
        let control = ControlService::new(
            reload.config.clone(),
            placement,
            self.stores.clone(),
            self.members.clone(),
            Arc::new(self.clone()),
            majorities.clone(),
        );
        let (_, health) = tonic_health::server::health_reporter();
        let grpc = Routes::new(PdServer::new(pd.clone()))
            .add_service(MetaStorageServer::new(pd.clone()))
            .add_service(KeyspaceServer::new(pd))
            .add_service(ControlServer::new(control).max_decoding_message_size(MESSAGE_BYTES_MAX))
            .add_service(health);
        let stats = Arc::new(port::Stats::default());
        let memory = NodeMemory::new(self.config.request_memory_bytes_max);
        let health = Health {
            cluster: self.cluster,
            tick_ms: self.config.tick_ms,
            address: self.addresses.for_clients().to_owned(),
            stores: self.stores.clone(),
            tasks: self.router.tasks.clone(),
            metrics,
            transport: self.transport.clone(),
            majorities,
            port: stats.clone(),
            access: self.access.clone(),
            memory: memory.clone(),
        };
        self.serve_probes(probes, &health, stopping);
        let status = routes(health);
        let grpc = port::with_text_of_unsupported(grpc.into_axum_router()).merge(tikv.routes());
        let options = port::PortOptions {
            access: self.access.clone(),
            connections_max: reload.connections_max.clone(),
            handles: self.config.descriptors.handles().clone(),
            ..port::PortOptions::default()
        };
        let client = self.cluster_client(grpc.clone(), &options, &memory);
        let http = self.http(client.clone(), stats.clone(), stop).routes();
        let routes = grpc.merge(http).merge(status).fallback(port::answer_unsupported);
        self.serve_redis((redis, client), (&options, &memory, &stats), stopping);
        let (transport, stopped) = (self.transport.clone(), stopping.subscribe());
        let serving = port::serve(listeners, routes, transport, options, memory, stats, stopped);
        let (closed, port) = oneshot::channel();
        self.router.tasks.spawn_lasting("port", async move {
            let _closed: oneshot::Sender<()> = closed;
            serving.await;
        });
        (port, reload)
    }

    /// Returns the settings that change while the node serves.
    fn settings(&self, metrics: Arc<Metrics>) -> Reload {
        let connections_max = self.config.connections_max;
        let connections_max = self.config.descriptors.connections_max(connections_max);
        Reload {
            config: Arc::new(LiveConfig::new(self.config.clone())),
            access: self.access.clone(),
            stores: self.stores.clone(),
            metrics,
            connections_max: Arc::new(AtomicU64::new(connections_max)),
        }
    }

    fn watch_majorities(&self, stopping: &watch::Sender<bool>) -> Arc<Majorities> {
        let (stores, members) = (self.stores.clone(), self.members.clone());
        let (address, transport) = (self.address.clone(), self.transport.clone());
        let majorities = Majorities::new(self.cluster, address, stores, members, transport);
        let majorities = Arc::new(majorities);
        let (watching, mut stopping) = (majorities.clone(), stopping.subscribe());
        self.router.tasks.spawn_lasting("majorities", async move {
            tokio::select! {
                () = heartbeat::stopped(&mut stopping) => {}
                () = watching.run() => {}
            }
        });
        majorities
    }

    /// Reads the files of TLS again every few seconds.
    fn follow_files(&self, reload: &Reload, stopping: &watch::Sender<bool>) {
        if self.access.tls().is_none() {
            return;
        }
        let (access, config) = (self.access.clone(), reload.config.clone());
        let mut stopping = stopping.subscribe();
        self.router.tasks.spawn_lasting("tls-files", async move {
            let mut last_error = String::new();
            loop {
                tokio::select! {
                    () = heartbeat::stopped(&mut stopping) => return,
                    () = sleep(FILES_INTERVAL) => {}
                }
                let (access, config) = (access.clone(), config.get());
                // Fails only by a panic, which has been logged, or when the node stops.
                let read = tokio::task::spawn_blocking(move || access.reload(&config)).await;
                let error = read.unwrap_or(Ok(false)).err().map(|error| error.to_string());
                let error = error.unwrap_or_default();
                if !error.is_empty() && error != last_error {
                    tracing::error!("TLS: the files in force stay: {error}");
                }
                last_error = error;
            }
        });
    }

    fn join_new_stores(
        &self,
        new: Opened,
        placement: Arc<PlacementService>,
        stopping: &watch::Sender<bool>,
    ) {
        if !new.is_empty() {
            let joining = self.clone().join_new(placement, new, stopping.subscribe());
            self.router.tasks.spawn_finite("new-directories", joining);
        }
    }

    fn start_address_exchange(&self, stopping: &watch::Sender<bool>) {
        let (members, router) = (self.members.clone(), self.router.clone());
        let using = Seeds::use_learned(members, router, stopping.subscribe());
        self.router.tasks.spawn_lasting("addresses", using);
        let seeds = Seeds {
            config: self.config.clone(),
            access: self.access.clone(),
            cluster: self.cluster,
            address: self.address.clone(),
            members: self.members.clone(),
            router: self.router.clone(),
        };
        self.router.tasks.spawn_lasting("seeds", seeds.run(stopping.subscribe()));
    }

    fn start_heartbeats(&self, placement: Arc<PlacementService>, stopping: &watch::Sender<bool>) {
        let ticking = heartbeat::tick(placement.clone(), stopping.subscribe());
        self.router.tasks.spawn_lasting("placement-ticks", ticking);
        let heartbeats = heartbeat::Heartbeats {
            config: self.config.clone(),
            addresses: self.addresses.clone(),
            members: self.members.clone(),
            stores: self.stores.clone(),
            router: self.router.clone(),
            placement,
            boots: self.boots.clone(),
            started_at: self.clock.unix_seconds(),
            displaced: Default::default(),
        };
        self.router.tasks.spawn_lasting("heartbeats", heartbeats.run(stopping.subscribe()));
    }

    fn start_sweeper(&self, stopping: &watch::Sender<bool>) {
        let sweeping = redis::sweep(self.stores.clone(), stopping.subscribe());
        self.router.tasks.spawn_lasting("redis-sweeper", sweeping);
    }

    fn start_store(&self, engine: Arc<Engine>, ident: StoreIdent) -> Result<Arc<StoreHandle>> {
        let core = open::core(&self.config, &engine, ident, &*self.clock, random())?;
        let (clock, router) = (self.clock.clone(), self.router.clone());
        let pending_bytes_max = self.config.pending_bytes_max;
        StoreHandle::start(ident.store, engine, core, clock, router, pending_bytes_max)
    }
}

/// Bootstraps or joins a cluster with directories that are all new. New ones beside members join
/// later, through this node: the cluster may be waiting for its stores.
async fn new_cluster(
    (config, access): (&Config, &Access),
    dirs: &mut Dirs,
    own: &Addresses,
) -> Result<ClusterId> {
    let (opened, members) = (&mut dirs.opened, &dirs.members);
    if config.join.is_empty() {
        let capacities_bytes = opened.iter().map(|open| open.engine.stats().device_bytes).collect();
        let cluster = ClusterId(random() | 1);
        let bootstrap = Bootstrap { cluster, address: own.nodes.clone(), capacities_bytes };
        let tick = config.tick().unwrap_or(TickMillis::OF_NEW_CLUSTERS);
        identity::bootstrap(opened, &bootstrap, tick)?;
        return Ok(cluster);
    }
    let mut addresses = config.join.clone();
    addresses.extend(members.addresses());
    addresses.retain(|other| *other != own.nodes && *other != own.clients);
    if addresses.is_empty() {
        return Err(Error::invalid("`join` names only this node: name another one"));
    }
    identity::join((config, access), opened, &addresses, &own.nodes, members).await
}

/// Returns an unpredictable number: the standard library seeds its maps from the system.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
