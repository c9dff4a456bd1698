//! A fake cluster in this process that serves the protocols: one map of pairs behind any number of
//! nodes, with failures on demand.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod control;
mod follow;
mod kv;
mod pd;
mod tikv;
mod unruly;

use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use stele_proto::pdpb::pd_server::PdServer;
use stele_proto::stele::control::v1::{self as messages, control_server::ControlServer};
use stele_proto::stele::kv::v1::kv_server::KvServer;
use stele_proto::stele::kv::v1::region_change::Kind as ChangeKind;
use stele_proto::stele::kv::v1::{Merged, PreparedMerge, Split};
use stele_proto::stele::kv::v1::{ModifyResponse, SessionRequest};
use stele_proto::tikvpb::tikv_server::TikvServer;
use stele_proto::{errorpb, metapb};
use stele_types::{KeyRange, Peer, PeerId, PeerRole, Prng, Region, RegionEpoch, RegionId, StoreId};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;

pub(crate) const CLUSTER: u64 = 7001;

#[derive(Clone, Debug)]
pub(crate) enum Fate {
    /// Not executed; a region error is returned.
    Refuse(errorpb::Error),
    /// Not executed; the call fails.
    Fail(tonic::Code),
    /// Executed, but a region error is returned.
    ActAndRefuse(errorpb::Error),
    /// Executed, but the connection breaks before the response.
    ActAndFail(tonic::Code),
    /// The response carries this final error.
    Final(&'static str),
    Hang,
}

/// Step of the script: the outcome of the next call with this name; an empty name matches any call.
#[derive(Debug)]
pub(crate) struct Step {
    pub method: &'static str,
    /// Number of calls with this name that come before.
    pub after: u32,
    pub fate: Fate,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub address: String,
    pub stores: Vec<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub value: Bytes,
    pub ttl: u64,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub nodes: Vec<Node>,
    pub regions: Vec<Region>,
    pub leaders: BTreeMap<u64, u64>,
    /// Regions that PD returns in place of `regions`.
    pub pd_regions: Option<Vec<Region>>,
    pub pairs: BTreeMap<(String, Bytes), Stored>,
    /// First results of requests, by session and number.
    pub records: BTreeMap<(u64, u64), ModifyResponse>,
    /// Attempts of requests of sessions that arrived.
    pub sessions: Vec<SessionRequest>,
    /// The cluster's time; 0: any deadline is right.
    pub cluster_time_s: u64,
    /// The cluster's time after the next executed request of a session.
    pub advances_to_s: Option<u64>,
    pub script: VecDeque<Step>,
    /// Raw calls that arrived, with their store.
    pub calls: Vec<(&'static str, u64)>,
    /// Node that leads the placement group.
    pub placement: usize,
    /// Number of calls that the placement leader answers with a request to retry.
    pub unsettled: u32,
    pub operators: Vec<messages::OperatorInfo>,
    pub stores: BTreeMap<u64, messages::StoreInfo>,
    /// Responses to progress requests; the last one repeats.
    pub progress: VecDeque<messages::StoreProgress>,
    pub config: Vec<messages::ConfigItem>,
    pub moves: Vec<messages::OperatorInfo>,
    /// Seconds by which the clock of a store is ahead.
    pub clocks_ahead: BTreeMap<u64, u64>,
    /// Logs of all regions that there were.
    pub logs: BTreeMap<u64, follow::Log>,
    /// Region errors with which the next streams end.
    pub unfollowed: VecDeque<errorpb::Error>,
    /// Number of copies that end after their first response.
    pub interrupted_copies: u32,
    /// Draws the outcomes of calls that no script sets.
    pub unruly: Option<Prng>,
}

impl State {
    /// Returns a cluster without nodes: region 2 has a replica on each of so many stores.
    pub(crate) fn with_stores(stores: u64) -> Self {
        let peers = (1..=stores).map(|store| Peer {
            id: PeerId(20 + store),
            store: StoreId(store),
            role: PeerRole::Voter,
        });
        let region = Region {
            id: RegionId(2),
            range: KeyRange::all(),
            epoch: RegionEpoch { conf_version: 1, version: 1 },
            peers: peers.collect(),
            ..Region::default()
        };
        Self { regions: vec![region], leaders: BTreeMap::from([(2, 1)]), ..Self::default() }
    }

    pub(crate) fn region_of(&self, key: &[u8]) -> &Region {
        self.regions.iter().find(|region| region.range.contains(key)).unwrap()
    }

    pub(crate) fn leader(&self, region: &Region) -> Option<Peer> {
        region.peer_on(StoreId(*self.leaders.get(&region.id.0)?)).copied()
    }

    /// Splits the region of `key` there; the new region has the left half.
    pub(crate) fn split(&mut self, key: &'static str, new_id: u64) {
        let at = self.regions.iter().position(|r| r.range.contains(key.as_bytes())).unwrap();
        let mut left = self.regions[at].clone();
        left.epoch.version += 1;
        self.regions[at].epoch.version += 1;
        self.regions[at].range.start = Bytes::from(key);
        left.range.end = Bytes::from(key);
        left.id = RegionId(new_id);
        for peer in &mut left.peers {
            peer.id = PeerId(new_id * 10 + peer.store.0);
        }
        let leader = self.leaders.get(&self.regions[at].id.0).copied();
        self.leaders.extend(leader.map(|leader| (new_id, leader)));
        let after = self.regions[at].clone();
        let children = follow::children(&[&left]);
        self.log_change(&after, ChangeKind::Split(Split { children }));
        self.regions.insert(at, left);
    }

    /// Merges the region of a key into the one before it.
    pub(crate) fn merge(&mut self, key: &'static str) {
        let at = self.regions.iter().position(|r| r.range.contains(key.as_bytes())).unwrap();
        let source = self.regions.remove(at);
        let target = &mut self.regions[at - 1];
        target.epoch.version = target.epoch.version.max(source.epoch.version) + 1;
        target.range.end = source.range.end.clone();
        let (after, source_id) = (target.clone(), source.id.0);
        let prepared = PreparedMerge { target: after.id.0 };
        self.log_change(&source, ChangeKind::Prepared(prepared));
        let prepared_index = self.logs[&source_id].next_index() - 1;
        let merged = Merged { source: source_id, prepared_index };
        self.log_change(&after, ChangeKind::Merged(merged));
    }

    pub(crate) fn fail(&mut self, method: &'static str, fate: Fate) {
        self.fail_after(method, 0, fate);
    }

    /// Sets the outcome of a later call: so many with this name are executed before it.
    pub(crate) fn fail_after(&mut self, method: &'static str, after: u32, fate: Fate) {
        self.script.push_back(Step { method, after, fate });
    }

    /// Returns the value of a key of the default family.
    pub(crate) fn value(&self, key: &'static str) -> Option<&[u8]> {
        self.pairs.get(&(String::new(), Bytes::from(key))).map(|stored| &stored.value[..])
    }

    fn fate(&mut self, method: &'static str) -> Option<Fate> {
        let Some(next) = self.script.front_mut() else {
            return self.unruly.as_mut().and_then(unruly::draw);
        };
        let hit = next.method.is_empty() || next.method == method;
        if hit && next.after > 0 {
            next.after -= 1;
            return None;
        }
        if hit { self.script.pop_front().map(|step| step.fate) } else { None }
    }
}

pub(crate) struct Fake {
    state: Arc<Mutex<State>>,
    servers: Vec<Option<Runtime>>,
}

#[derive(Clone)]
pub(crate) struct Service {
    pub state: Arc<Mutex<State>>,
    pub node: usize,
}

impl Service {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl Fake {
    /// Starts nodes with one store each, numbered from 1, and region 2 with a replica on each.
    pub(crate) fn start(nodes: u64) -> Self {
        let state = State::with_stores(nodes);
        let mut fake = Self { state: Arc::new(Mutex::new(state)), servers: Vec::new() };
        for store in 1..=nodes {
            fake.add_node(vec![store]);
        }
        fake
    }

    pub(crate) fn add_node(&mut self, stores: Vec<u64>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let node = self.servers.len();
        for id in &stores {
            let info = control::store_info(*id, &address);
            self.state().stores.insert(*id, info);
        }
        self.state().nodes.push(Node { address, stores });
        self.servers.push(Some(self.serve(node, listener)));
    }

    fn serve(&self, node: usize, listener: std::net::TcpListener) -> Runtime {
        let service = Service { state: Arc::clone(&self.state), node };
        let router = Server::builder()
            .add_service(TikvServer::new(service.clone()))
            .add_service(KvServer::new(service.clone()))
            .add_service(PdServer::new(service.clone()))
            .add_service(ControlServer::new(service));
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(async move {
            let incoming = TcpListenerStream::new(TcpListener::from_std(listener).unwrap());
            let _ = router.serve_with_incoming(incoming).await;
        });
        runtime
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.state().nodes.iter().map(|node| node.address.clone()).collect()
    }

    /// Stops a node. Its connections are closed when this returns.
    pub(crate) fn kill(&mut self, node: usize) {
        if let Some(server) = self.servers[node].take() {
            let end = move || server.shutdown_timeout(Duration::from_secs(20));
            std::thread::spawn(end).join().unwrap();
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.servers.drain(..).flatten().for_each(Runtime::shutdown_background);
    }
}

pub(crate) fn peer(peer: &Peer) -> metapb::Peer {
    let (id, store_id, role) = (peer.id.0, peer.store.0, peer.role as i32);
    metapb::Peer { id, store_id, role, is_witness: false }
}

pub(crate) fn region(region: &Region) -> metapb::Region {
    let RegionEpoch { conf_version, version } = region.epoch;
    metapb::Region {
        id: region.id.0,
        start_key: region.range.start.clone(),
        end_key: region.range.end.clone(),
        region_epoch: Some(metapb::RegionEpoch { conf_ver: conf_version, version }),
        peers: region.peers.iter().map(peer).collect(),
        is_in_flashback: false,
    }
}

/// Makes a region error with one variant set.
pub(crate) fn error(set: impl FnOnce(&mut errorpb::Error)) -> errorpb::Error {
    let mut error = errorpb::Error { message: "scripted".to_owned(), ..Default::default() };
    set(&mut error);
    error
}
