//! Stores of a group.

use super::mode::{Mode, Setup};
use super::network::Network;
use crate::designs::buc::Costs;
use crate::designs::queued::{Applied, Queued};
use anyhow::{Context, Result, bail};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_replica::{Admin, AdminCall, Header, Now, Options, RaftStore, StageSums};
use stele_server::store::StoreHandle;
use stele_storage::StorageEngine;
use stele_types::{
    Clock, ClusterId, Peer, PeerId, PeerRole, Region, RegionEpoch, RegionId, StoreId, StoreIdent,
};
use stele_vfs::SystemClock;

const CLUSTER: ClusterId = ClusterId(5);
pub(super) const DATA: RegionId = RegionId(2);
const ELECTED_WITHIN: Duration = Duration::from_secs(30);
const CHECK_EVERY: Duration = Duration::from_millis(20);
/// Messages one after the other in an election: pre-vote and vote, each with its answer.
const ELECTION_DELAYS: u32 = 4;
/// Bytes of requests in progress, and of waiting messages: a node's default.
const PENDING_BYTES_MAX: u64 = 256 << 20;

pub(super) type Store<E> = StoreHandle<Queued<E>>;

/// Running group of stores.
pub struct Cluster<E: StorageEngine> {
    stores: Vec<Arc<Store<E>>>,
    leader: usize,
    network: Arc<Network<Queued<E>>>,
    mode: Mode,
    costs: Costs,
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

impl<E: StorageEngine + 'static> Cluster<E> {
    /// Starts a group on these engines, one for each store, new or reopened.
    pub fn start(engines: Vec<E>, setup: &Setup) -> Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let count = engines.len() as u64;
        let ids: Vec<StoreId> = (1..=count).map(StoreId).collect();
        let network = Arc::new(Network::new(&ids, setup.delay)?);
        let mut stores = Vec::new();
        for (engine, id) in engines.into_iter().zip(ids) {
            let engine = Arc::new(match setup.mode.apply_queue {
                true => Queued::new(engine, clock.clone())?,
                false => Queued::direct(engine, clock.clone()),
            });
            let core = open_core(&engine, id, region(count), setup, &*clock)?;
            let (clock, sink) = (clock.clone(), network.clone());
            let store = StoreHandle::start(id, engine, core, clock, sink, PENDING_BYTES_MAX)?;
            network.connect(id, &store);
            stores.push(store);
        }
        let leader = elect(&stores, &network, setup.delay)?;
        let (mode, costs) = (setup.mode, Costs::default());
        Ok(Self { stores, leader, network, mode, costs })
    }

    /// Returns when the group answers writes and serves reads.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the measured costs of scans and apply, and the decisions that rest on them.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    pub(super) fn leader(&self) -> &Store<E> {
        &self.stores[self.leader]
    }

    /// Returns the times of the leader's stages so far, and of the queue before its engine.
    pub fn times(&self) -> (StageSums, Applied) {
        (self.leader().times().sums(), self.leader().engine().times())
    }

    /// Returns the leader's engine.
    pub fn engine(&self) -> &E {
        self.leader().engine().inner()
    }

    /// Stops the threads and drops the engines without closing them, as in a crash.
    pub fn stop(self) -> Result<()> {
        self.stores.iter().for_each(|store| store.stop_threads());
        match self.network.take_failure() {
            Some(reason) => bail!(reason),
            None => Ok(()),
        }
    }
}

/// Lets the first store campaign until a store leads. Returns the position of the leader.
fn elect<E: StorageEngine + 'static>(
    stores: &[Arc<StoreHandle<E>>],
    network: &Network<E>,
    delay: Duration,
) -> Result<usize> {
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
        if let Some(reason) = network.take_failure() {
            bail!(reason);
        }
        if Instant::now() > deadline {
            bail!("no leader within {ELECTED_WITHIN:?}");
        }
        // A later round repeats what is refused. The votes of this one arrive before.
        let campaign = AdminCall { header, call: Admin::Campaign };
        let _ = first.submit_blocking(campaign);
        std::thread::sleep(CHECK_EVERY + ELECTION_DELAYS * delay);
    }
}

fn open_core<E: StorageEngine>(
    engine: &Arc<E>,
    store: StoreId,
    region: Region,
    setup: &Setup,
    clock: &dyn Clock,
) -> Result<RaftStore<E>> {
    let ident = StoreIdent::new(CLUSTER, store);
    if RaftStore::ident(&**engine)?.is_none() {
        RaftStore::bootstrap(&**engine, &ident, &[region])?;
    }
    let incarnation = clock.unix_seconds() * 1_000_000_000 + clock.monotonic_nanos();
    let mut options = Options::new(store, CLUSTER, incarnation, incarnation ^ store.0);
    options.election_ticks_min = setup.election_ticks;
    options.election_ticks_max = setup.election_ticks * 2;
    options.commit_return = setup.mode.commit_return;
    options.read_acceleration = setup.mode.read_acceleration;
    options.hibernate_after_ticks = 0;
    let (monotonic_nanos, unix_millis) = (clock.monotonic_nanos(), clock.unix_millis());
    Ok(RaftStore::open(engine.clone(), options, Now { monotonic_nanos, unix_millis })?)
}
