//! Stores of a group, and their threads.

use super::inbox::Inbox;
use super::slots::Slots;
use super::store_loop::{StoreLoop, maintain, now};
use anyhow::{Context, Result, anyhow, bail};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use stele_raftstore::{Admin, AdminCall, Header, Input, Options, RaftStore, Readers, RequestId};
use stele_storage::StorageEngine;
use stele_types::{
    Clock, ClusterId, Peer, PeerId, PeerRole, Region, RegionEpoch, RegionId, StoreId, StoreIdent,
};
use stele_vfs::SystemClock;

const CLUSTER: ClusterId = ClusterId(5);
/// Region of all user keys.
pub(super) const DATA: RegionId = RegionId(2);
/// Store that campaigns first.
const FIRST: StoreId = StoreId(1);
const ELECTED_WITHIN: Duration = Duration::from_secs(30);
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// Running group of stores.
pub struct Cluster<E: StorageEngine> {
    pub(super) engine: Arc<E>,
    pub(super) readers: Arc<Readers>,
    pub(super) inbox: Arc<Inbox<E>>,
    pub(super) slots: Arc<Slots>,
    pub(super) clock: Arc<dyn Clock>,
    inboxes: Arc<BTreeMap<StoreId, Arc<Inbox<E>>>>,
    running: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
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
    /// Starts a group on these engines, one for each store, new or reopened. At most `clients`
    /// clients use it. Elections start after `election_ticks` to twice as many ticks without a
    /// leader.
    pub fn start(engines: Vec<E>, clients: usize, election_ticks: u64) -> Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let engines: Vec<Arc<E>> = engines.into_iter().map(Arc::new).collect();
        let stores = (1..=engines.len() as u64).map(StoreId);
        let inboxes: BTreeMap<_, _> = stores.map(|id| (id, Arc::new(Inbox::new()))).collect();
        let inboxes = Arc::new(inboxes);
        let slots = Arc::new(Slots::new(clients));
        let running = Arc::new(AtomicBool::new(true));
        let mut threads = Vec::new();
        let mut all_readers = Vec::new();
        for (engine, (&id, inbox)) in engines.iter().zip(inboxes.iter()) {
            let region = region(engines.len() as u64);
            let core = open_core(engine, id, region, election_ticks, &*clock)?;
            all_readers.push(core.readers());
            let wants_checkpoint = Arc::new(AtomicBool::new(false));
            let store_loop = StoreLoop {
                core,
                engine: engine.clone(),
                inbox: inbox.clone(),
                inboxes: inboxes.clone(),
                slots: slots.clone(),
                clock: clock.clone(),
                wants_checkpoint: wants_checkpoint.clone(),
            };
            let failed = slots.clone();
            threads.push(spawn(format!("store-{id}"), move || {
                if let Err(error) = store_loop.run() {
                    failed.fail(format!("store {id} stopped: {error}"));
                }
            })?);
            let (engine, running, failed) = (engine.clone(), running.clone(), slots.clone());
            threads.push(spawn(format!("maintain-{id}"), move || {
                if let Err(error) = maintain(&*engine, &running, &wants_checkpoint) {
                    failed.fail(format!("maintenance of store {id} stopped: {error}"));
                }
            })?);
        }
        let leader = elect(&all_readers, &inboxes, &slots)?;
        let inbox = inboxes.values().nth(leader).context("no store is leader")?.clone();
        let engine = engines.into_iter().nth(leader).context("no store is leader")?;
        let readers = all_readers.into_iter().nth(leader).context("no store is leader")?;
        Ok(Self { engine, readers, inbox, slots, clock, inboxes, running, threads })
    }

    /// Returns the leader's engine.
    pub fn engine(&self) -> &Arc<E> {
        &self.engine
    }

    /// Stops the threads and drops the engines without closing them, as in a crash.
    pub fn stop(self) -> Result<()> {
        self.running.store(false, Ordering::Release);
        self.inboxes.values().for_each(|inbox| inbox.stop());
        for thread in self.threads {
            thread.join().map_err(|_| anyhow!("a store's thread panicked"))?;
        }
        match self.slots.failure() {
            Some(reason) => bail!(reason),
            None => Ok(()),
        }
    }
}

/// Lets the first store campaign until a store leads. Returns the position of the leader.
fn elect<E: StorageEngine>(
    readers: &[Arc<Readers>],
    inboxes: &BTreeMap<StoreId, Arc<Inbox<E>>>,
    slots: &Slots,
) -> Result<usize> {
    let deadline = Instant::now() + ELECTED_WITHIN;
    let header = Header { region: DATA, ..Header::default() };
    let leads = |it: &Arc<Readers>| it.get(DATA).and_then(|it| it.leading_term()).is_some();
    loop {
        if let Some(leader) = readers.iter().position(leads) {
            return Ok(leader);
        }
        if let Some(reason) = slots.failure() {
            bail!(reason);
        }
        if Instant::now() > deadline {
            bail!("no leader within {ELECTED_WITHIN:?}");
        }
        if let Some(inbox) = inboxes.get(&FIRST) {
            // The reply is ignored.
            let id = RequestId(u64::MAX);
            inbox.push([Input::Admin(AdminCall { id, header, call: Admin::Campaign })]);
        }
        std::thread::sleep(CHECK_EVERY);
    }
}

fn spawn(name: String, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    Ok(std::thread::Builder::new().name(name).spawn(run)?)
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
    Ok(RaftStore::open(engine.clone(), options, now(clock))?)
}
