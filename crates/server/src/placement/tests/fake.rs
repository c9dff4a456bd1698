//! A placement region in memory, shared by the services of several nodes.

use super::super::{LostQuorum, PlacementService, System};
use crate::transport::BoxFuture;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use stele_placement::{Bootstrap, PairChange};
use stele_proto::stele::control::v1 as wire;
use stele_replica::LeaseTimes;
use stele_types::{
    ClusterId, Error, Level, ManualClock, Peer, PeerId, Region, RegionId, Result, StoreId, Term,
};
use tokio::sync::Semaphore;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Fault {
    /// It is not made.
    Lost,
    /// It is made, but its outcome is unknown to the proposer.
    Unknown,
}

#[derive(Default)]
pub(super) struct World {
    pub pairs: BTreeMap<Bytes, Bytes>,
    pub term: u64,
    /// `host:port` of the leader.
    pub leader: Option<String>,
    pub fault: Option<Fault>,
    pub proposals: u64,
    /// Voters that all nodes reach, if they are too few.
    pub lost_quorum: Option<LostQuorum>,
    /// A former leader that has not noticed, and its term.
    pub former: Option<(String, u64)>,
}

pub(super) type Shared = Arc<Mutex<World>>;

pub(super) struct FakeSystem {
    pub world: Shared,
    pub address: String,
    /// A permit lets one proposal through.
    pub gate: Option<Arc<Semaphore>>,
}

impl System for FakeSystem {
    fn leader_term(&self) -> Option<Term> {
        let world = self.world.lock();
        let former = world.former.as_ref().filter(|(address, _)| *address == self.address);
        match world.leader.as_ref() == Some(&self.address) {
            true => Some(Term(world.term)),
            false => former.map(|(_, term)| Term(*term)),
        }
    }

    fn confirm(&self, term: Term) -> BoxFuture<'static, Result<()>> {
        let world = self.world.lock();
        let leads = world.leader.as_ref() == Some(&self.address) && Term(world.term) == term;
        let confirmed = if leads { Ok(()) } else { Err(Error::Busy("not leader".into())) };
        Box::pin(async move { confirmed })
    }

    fn load(&self, term: Term) -> BoxFuture<'static, Result<Vec<(Bytes, Bytes)>>> {
        let leads = self.leader_term() == Some(term);
        let pairs = self.world.lock().pairs.clone().into_iter().collect();
        Box::pin(async move {
            tokio::task::yield_now().await;
            if leads { Ok(pairs) } else { Err(Error::Busy("not leader".into())) }
        })
    }

    fn propose(&self, term: Term, changes: Vec<PairChange>) -> BoxFuture<'static, Result<()>> {
        let (world, address, gate) = (self.world.clone(), self.address.clone(), self.gate.clone());
        Box::pin(async move {
            if let Some(gate) = gate {
                gate.acquire().await.unwrap().forget();
            }
            tokio::task::yield_now().await;
            let mut world = world.lock();
            let fault = world.fault.take();
            let leads = world.leader.as_ref() == Some(&address) && Term(world.term) == term;
            if !leads || fault == Some(Fault::Lost) {
                return Err(Error::Busy("stale command".into()));
            }
            world.proposals += 1;
            for change in changes {
                match change.value {
                    Some(value) => world.pairs.insert(change.key, value),
                    None => world.pairs.remove(&change.key),
                };
            }
            match fault {
                Some(_) => Err(Error::Undetermined("outcome unknown".into())),
                None => Ok(()),
            }
        })
    }

    fn leader_address(&self) -> Option<String> {
        self.world.lock().leader.clone()
    }

    fn own_address(&self) -> String {
        self.address.clone()
    }

    fn nodes(&self) -> Vec<String> {
        (1..=3).map(address).collect()
    }

    fn lost_quorum(&self) -> Option<LostQuorum> {
        self.world.lock().lost_quorum
    }
}

pub(super) const CLUSTER: ClusterId = ClusterId(77);
pub(super) const TIMES: LeaseTimes = LeaseTimes { tick_nanos: 50_000_000, election_ticks_min: 10 };

/// Three nodes; the first bootstrapped the cluster and leads.
pub(super) struct Nodes {
    pub world: Shared,
    pub clock: Arc<ManualClock>,
    pub services: Vec<Arc<PlacementService>>,
}

pub(super) fn address(node: usize) -> String {
    format!("127.0.0.1:{}", 9000 + node)
}

impl Nodes {
    pub(super) fn new() -> Self {
        Self::of_level(Level::OLDEST)
    }

    /// Creates the nodes of a cluster that has this level.
    pub(super) fn of_level(level: Level) -> Self {
        Self::with(None, level)
    }

    pub(super) fn with_gate(gate: Option<Arc<Semaphore>>) -> Self {
        Self::with(gate, Level::OLDEST)
    }

    fn with(gate: Option<Arc<Semaphore>>, level: Level) -> Self {
        let world = Shared::default();
        let clock = Arc::new(ManualClock::at(1_000_000));
        let service = |node: usize| {
            let gate = gate.clone();
            let system = FakeSystem { world: world.clone(), address: address(node), gate };
            let bootstrap = Bootstrap {
                cluster: CLUSTER,
                address: address(1),
                capacities_bytes: vec![1 << 40],
            };
            let bootstrap = (node == 1).then_some((bootstrap, level));
            let system = Arc::new(system);
            PlacementService::with_clock(CLUSTER, TIMES, system, bootstrap, clock.clone())
        };
        let services = (1..=3).map(service).collect();
        let nodes = Self { world, clock, services };
        nodes.elect(Some(1));
        nodes
    }

    pub(super) fn elect(&self, node: Option<usize>) {
        let mut world = self.world.lock();
        world.term += 1;
        world.leader = node.map(address);
    }

    /// Returns the service of a node, counted from 1.
    pub(super) fn node(&self, node: usize) -> &Arc<PlacementService> {
        &self.services[node - 1]
    }

    /// Joins a node with one store; returns the store's id.
    pub(super) async fn join(&self, node: usize, token: &'static [u8]) -> u64 {
        let store = wire::NewStore {
            token: Bytes::from_static(token),
            capacity: 1 << 40,
            ..wire::NewStore::default()
        };
        let request = wire::JoinRequest {
            address: address(node),
            stores: vec![store],
            ..wire::JoinRequest::default()
        };
        self.node(1).join(request).await.unwrap().store_ids[0]
    }
}

pub(super) fn heartbeat(
    node: usize,
    store: u64,
    sequence: u64,
    regions: Vec<wire::RegionReport>,
) -> wire::HeartbeatRequest {
    wire::HeartbeatRequest {
        address: address(node),
        sequence,
        stores: vec![wire::StoreStats {
            id: store,
            capacity: 1 << 40,
            free: 1 << 39,
            ..wire::StoreStats::default()
        }],
        regions,
        all_regions: true,
        ..wire::HeartbeatRequest::default()
    }
}

/// Returns a region of the bootstrap node, reported by its leader on store 1; peers on further
/// stores.
pub(super) fn region(id: u64, conf_version: u64, others: &[u64]) -> Region {
    let mut region = Bootstrap::regions().into_iter().find(|region| region.id.0 == id).unwrap();
    region.epoch.conf_version = conf_version;
    let peer = |store: &u64| Peer {
        id: PeerId(id * 20 + store),
        store: StoreId(*store),
        ..Peer::default()
    };
    region.peers.extend(others.iter().map(peer));
    region
}

pub(super) fn report(region: &Region) -> wire::RegionReport {
    wire::RegionReport {
        region: region.encode(),
        leader_store: 1,
        leader_peer: region.peers[0].id.0,
        term: 5,
        approximate_bytes: 1 << 20,
        ..wire::RegionReport::default()
    }
}

/// Splits the region of user data, as in reports: `[.., m)` stays, `[m, ..)` is new.
pub(super) fn halves(version: u64, new_id: u64) -> [Region; 2] {
    let mut left = region(2, 1, &[]);
    left.epoch.version = version;
    let mut right = left.clone();
    left.range.end = Bytes::from_static(b"m");
    right.range.start = Bytes::from_static(b"m");
    right.id = RegionId(new_id);
    right.peers[0].id = PeerId(new_id);
    [left, right]
}
