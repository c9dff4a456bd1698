//! Stores of a group, and the network between them.

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use stele_raftstore::{
    Admin, AdminCall, Event, Header, Input, Now, Options, PeerMessage, RaftStore, SendSnapshot,
};
use stele_server::store::{OutputSink, StoreHandle};
use stele_server::transport::message_bytes;
use stele_storage::StorageEngine;
use stele_types::{
    Clock, ClusterId, Error, Peer, PeerId, PeerRole, Region, RegionEpoch, RegionId, StoreId,
    StoreIdent,
};
use stele_vfs::SystemClock;

const CLUSTER: ClusterId = ClusterId(5);
/// Region of all user keys.
pub(super) const DATA: RegionId = RegionId(2);
const ELECTED_WITHIN: Duration = Duration::from_secs(30);
const CHECK_EVERY: Duration = Duration::from_millis(20);
/// Bytes of requests in progress, and of waiting messages: a node's default.
const PENDING_BYTES_MAX: u64 = 256 << 20;

/// Stores by id; each is set once it has started.
type Stores<E> = BTreeMap<StoreId, OnceLock<Weak<StoreHandle<E>>>>;

/// Passes messages between the stores, and keeps the first failure.
struct Network<E: StorageEngine> {
    stores: Stores<E>,
    failure: Mutex<Option<String>>,
}

impl<E: StorageEngine> Network<E> {
    fn fail(&self, reason: String) {
        self.failure.lock().get_or_insert(reason);
    }
}

impl<E> OutputSink<E> for Network<E>
where
    E: StorageEngine + 'static,
    E::View: 'static,
    E::Ingest: 'static,
{
    fn send(&self, messages: Vec<PeerMessage>) {
        for message in messages {
            let to = self.stores.get(&message.to_store).and_then(|store| store.get()?.upgrade());
            if let Some(store) = to {
                let bytes = message_bytes(&message);
                store.message(message, bytes);
            }
        }
    }

    fn send_snapshot(&self, _: SendSnapshot<E>) {
        self.fail("a follower lags so far that it needs a snapshot".to_owned());
    }

    fn events(&self, _: Vec<Event>) {}

    fn failed(&self, store: StoreId, error: Error) {
        self.fail(format!("store {store} stopped: {error}"));
    }
}

/// Running group of stores.
pub struct Cluster<E: StorageEngine> {
    stores: Vec<Arc<StoreHandle<E>>>,
    leader: usize,
    network: Arc<Network<E>>,
}

fn region(stores: u64) -> Region {
    let voter =
        |store: u64| Peer { id: PeerId(100 + store), store: StoreId(store), role: PeerRole::Voter };
    Region {
        id: DATA,
        epoch: RegionEpoch { conf_version: 1, version: 1 },
        peers: (1..=stores).map(voter).collect(),
        ..Region::default()
    }
}

impl<E> Cluster<E>
where
    E: StorageEngine + 'static,
    E::View: 'static,
    E::Ingest: 'static,
{
    /// Starts a group on these engines, one for each store, new or reopened. Elections start after
    /// `election_ticks` to twice as many ticks without a leader.
    pub fn start(engines: Vec<E>, election_ticks: u64) -> Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let count = engines.len() as u64;
        let ids: Vec<StoreId> = (1..=count).map(StoreId).collect();
        let stores = ids.iter().map(|id| (*id, OnceLock::new())).collect();
        let network = Arc::new(Network { stores, failure: Mutex::new(None) });
        let mut stores = Vec::new();
        for (engine, id) in engines.into_iter().map(Arc::new).zip(ids) {
            let core = open_core(&engine, id, region(count), election_ticks, &*clock)?;
            let (clock, sink) = (clock.clone(), network.clone());
            let store = StoreHandle::start(id, engine, core, clock, sink, PENDING_BYTES_MAX)?;
            if let Some(slot) = network.stores.get(&id) {
                // Each store is set once.
                let _ = slot.set(Arc::downgrade(&store));
            }
            stores.push(store);
        }
        let leader = elect(&stores, &network)?;
        Ok(Self { stores, leader, network })
    }

    /// Returns the store that leads.
    pub(super) fn leader(&self) -> &StoreHandle<E> {
        &self.stores[self.leader]
    }

    /// Returns the leader's engine.
    pub fn engine(&self) -> &Arc<E> {
        self.leader().engine()
    }

    /// Stops the threads and drops the engines without closing them, as in a crash.
    pub fn stop(self) -> Result<()> {
        self.stores.iter().for_each(|store| store.stop_threads());
        match self.network.failure.lock().take() {
            Some(reason) => bail!(reason),
            None => Ok(()),
        }
    }
}

/// Lets the first store campaign until a store leads. Returns the position of the leader.
fn elect<E>(stores: &[Arc<StoreHandle<E>>], network: &Network<E>) -> Result<usize>
where
    E: StorageEngine + 'static,
    E::View: 'static,
    E::Ingest: 'static,
{
    let deadline = Instant::now() + ELECTED_WITHIN;
    let header = Header { region: DATA, ..Header::default() };
    let first = stores.first().context("a group without stores")?;
    let leads = |store: &Arc<StoreHandle<E>>| {
        store.readers().get(DATA).and_then(|reader| reader.leading_term()).is_some()
    };
    loop {
        if let Some(leader) = stores.iter().position(leads) {
            return Ok(leader);
        }
        if let Some(reason) = network.failure.lock().take() {
            bail!(reason);
        }
        if Instant::now() > deadline {
            bail!("no leader within {ELECTED_WITHIN:?}");
        }
        // A later round repeats what is refused.
        let campaign = |id| Input::Admin(AdminCall { id, header, call: Admin::Campaign });
        let _ = first.request_blocking(campaign);
        std::thread::sleep(CHECK_EVERY);
    }
}

fn open_core<E: StorageEngine>(
    engine: &Arc<E>,
    store: StoreId,
    region: Region,
    election_ticks: u64,
    clock: &dyn Clock,
) -> Result<RaftStore<E>> {
    let ident = StoreIdent { cluster: CLUSTER, store };
    if RaftStore::ident(&**engine)?.is_none() {
        RaftStore::bootstrap(&**engine, &ident, &[region])?;
    }
    let incarnation = clock.unix_seconds() * 1_000_000_000 + clock.monotonic_nanos();
    let mut options = Options::new(store, CLUSTER, incarnation, incarnation ^ store.0);
    options.election_ticks_min = election_ticks;
    options.election_ticks_max = election_ticks * 2;
    options.hibernate_after_ticks = 0;
    let (monotonic_nanos, unix_seconds) = (clock.monotonic_nanos(), clock.unix_seconds());
    Ok(RaftStore::open(engine.clone(), options, Now { monotonic_nanos, unix_seconds })?)
}
