//! Messages, nodes and a faulty network, for tests.

use super::super::frame::{self, FrameKind};
use super::super::{
    Boots, BoxFuture, CloseReason, Deliver, Identity, RefusedStore, Resolve, SnapshotOffer,
    Transport, TransportOptions,
};
use crate::access::{Rights, plain};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use stele_node::members::NotOwner;
use stele_node::succession::{Evidence, Refusal, Verdict};
use stele_replica::{Body, LeaseTimes, PeerMessage, RaftEntry, RaftKind, RaftMessage, wire};
use stele_types::{
    Boot, ClusterId, CommandBuilder, Error, KeyRange, Lineage, LogIndex, Peer, PeerId, PeerRole,
    RegionEpoch, RegionId, RegionKind, StartId, StoreId, StoreRun, Term,
};
use tokio::net::TcpListener;

pub(crate) fn message(from: u64, to: u64, kind: RaftKind, index: u64) -> PeerMessage {
    let peer =
        |store| Peer { id: PeerId(store + 10), store: StoreId(store), role: PeerRole::Voter };
    let mut raft = RaftMessage::new(kind, Term(3));
    raft.index = LogIndex(index);
    PeerMessage {
        from_store: StoreId(from),
        to_store: StoreId(to),
        region: RegionId(2),
        kind: RegionKind::Data,
        range: KeyRange::new(&b"a"[..], &b"z"[..]),
        epoch: RegionEpoch { conf_version: 1, version: 1 },
        from: peer(from),
        to: peer(to),
        body: Body::Raft(raft),
    }
}

/// Creates a heartbeat: urgent.
pub(crate) fn heartbeat(from: u64, to: u64, index: u64) -> PeerMessage {
    message(from, to, RaftKind::Heartbeat, index)
}

/// Creates an append with one entry, a command that puts `bytes` bytes; none is a leader's first.
pub(crate) fn append(from: u64, to: u64, index: u64, bytes: usize) -> PeerMessage {
    let mut message = message(from, to, RaftKind::Append, index);
    if let Body::Raft(raft) = &mut message.body {
        let mut command = CommandBuilder::new();
        command.put(b"\x01key", &vec![index as u8; bytes], 0).unwrap();
        let payload = match bytes {
            0 => Bytes::new(),
            _ => command.build().bytes().clone(),
        };
        raft.entries.push(RaftEntry { term: Term(3), index: LogIndex(index + 1), payload });
    }
    message
}

pub(crate) fn framed(message: &PeerMessage) -> Bytes {
    let (mut body, mut payloads) = (Vec::new(), Vec::new());
    wire::encode(message, &mut body, &mut payloads);
    payloads.iter().for_each(|payload| body.extend_from_slice(payload));
    frame::whole(FrameKind::Message, &body)
}

pub(crate) fn index_of(message: &PeerMessage) -> u64 {
    match &message.body {
        Body::Raft(raft) => raft.index.0,
        other => panic!("{other:?}"),
    }
}

pub(crate) type OnSnapshot = Box<dyn Fn(SnapshotOffer) -> BoxFuture<'static, ()> + Send + Sync>;

#[derive(Default)]
pub(crate) struct Seen {
    pub messages: Mutex<Vec<PeerMessage>>,
    pub reported: Mutex<Vec<(&'static str, u64)>>,
    pub closed: Mutex<Vec<String>>,
    /// Stores of the node that others do not hear.
    pub refused: Mutex<Vec<(StoreId, Refusal)>>,
    pub on_snapshot: Mutex<Option<OnSnapshot>>,
}

impl Deliver for Seen {
    fn messages(&self, messages: &mut Vec<(PeerMessage, u64)>) {
        self.messages.lock().extend(messages.drain(..).map(|(message, _)| message));
    }

    fn reachable(&self, store: StoreId) {
        self.reported.lock().push(("reachable", store.0));
    }

    fn unreachable(&self, store: StoreId) {
        self.reported.lock().push(("unreachable", store.0));
    }

    fn dropped(&self, store: StoreId) {
        self.reported.lock().push(("dropped", store.0));
    }

    fn snapshot(&self, offer: SnapshotOffer) -> BoxFuture<'static, ()> {
        match &*self.on_snapshot.lock() {
            Some(on_snapshot) => on_snapshot(offer),
            None => Box::pin(async move { offer.refuse("not wanted").await }),
        }
    }

    fn task_failed(&self, task: &str, error: Error) {
        self.closed.lock().push(format!("{task} failed: {error}"));
    }

    fn refused(&self, refused: &RefusedStore) {
        self.refused.lock().push((refused.store, refused.refusal));
    }

    fn closed(&self, remote: &str, reason: &CloseReason) {
        self.closed.lock().push(format!("{remote}: {} ({reason})", reason.label()));
    }
}

impl Seen {
    pub(crate) fn count(&self) -> usize {
        self.messages.lock().len()
    }

    pub(crate) fn last_reported(&self, store: u64) -> Option<&'static str> {
        self.reported.lock().iter().rev().find(|report| report.1 == store).map(|report| report.0)
    }

    pub(crate) fn saw_closed(&self, text: &str) -> bool {
        self.closed.lock().iter().any(|line| line.contains(text))
    }
}

/// Address that a node stated, with the run of a store.
pub(crate) type Stated = (String, StoreId, StoreRun);

/// Addresses of stores; shared by all nodes of a test.
#[derive(Default)]
pub(crate) struct Book {
    pub addresses: Mutex<HashMap<StoreId, String>>,
    pub removed: Mutex<HashSet<StoreId>>,
    /// Names of the nodes to which stores are bound.
    pub owners: Mutex<HashMap<StoreId, String>>,
    /// Stores that no list has named.
    pub unlisted: Mutex<HashSet<StoreId>>,
    pub stated: Mutex<Vec<Stated>>,
}

impl Book {
    pub(crate) fn set(&self, store: u64, address: &str) {
        self.addresses.lock().insert(StoreId(store), address.to_owned());
    }
}

impl Resolve for Book {
    fn address(&self, store: StoreId) -> Option<String> {
        self.addresses.lock().get(&store).cloned()
    }

    fn is_removed(&self, store: StoreId) -> bool {
        self.removed.lock().contains(&store)
    }

    fn check_owner(&self, store: StoreId, node: &str) -> Result<(), NotOwner> {
        match self.owners.lock().get(&store).filter(|owner| *owner != node) {
            Some(owner) => Err(NotOwner::Other(owner.clone())),
            None if self.unlisted.lock().contains(&store) => Err(NotOwner::NotListed),
            None => Ok(()),
        }
    }

    fn admit(
        &self,
        store: StoreId,
        run: &StoreRun,
        address: &str,
        _evidence: &Evidence,
    ) -> Verdict {
        self.stated.lock().push((address.to_owned(), store, run.clone()));
        Verdict::Same
    }
}

/// Returns options with short pauses, so that tests are short.
pub(crate) fn options() -> TransportOptions {
    TransportOptions {
        keepalive_interval: Duration::from_millis(50),
        silence_max: Duration::from_millis(300),
        stall_max: Duration::from_secs(5),
        dial_timeout: Duration::from_millis(500),
        backoff_min: Duration::from_millis(10),
        backoff_max: Duration::from_millis(100),
        ..TransportOptions::default()
    }
}

pub(crate) const TIMES: LeaseTimes = LeaseTimes { tick_nanos: 50_000_000, election_ticks_min: 10 };

pub(crate) fn start_of(store: u64, starts: &[u64]) -> StoreRun {
    let id = |start: &u64| StartId(u128::from(store) << 64 | u128::from(*start));
    let before = starts.last().copied().unwrap_or(1) - 1;
    let boot = Boot { count: before + starts.len() as u64, nonce: 1 };
    StoreRun { boot, lineage: Lineage::new(starts.iter().map(id)) }
}

pub(crate) struct TestNode {
    pub transport: Transport,
    pub seen: Arc<Seen>,
    pub address: String,
    listening: tokio::task::JoinHandle<()>,
}

impl TestNode {
    pub(crate) async fn start(book: &Arc<Book>, stores: &[u64]) -> Self {
        Self::start_with(book, stores, 1, options(), "127.0.0.1:0").await
    }

    pub(crate) async fn start_with(
        book: &Arc<Book>,
        stores: &[u64],
        cluster: u64,
        options: TransportOptions,
        bind: &str,
    ) -> Self {
        Self::start_at(book, stores, (cluster, TIMES), options, bind).await
    }

    pub(crate) async fn start_at(
        book: &Arc<Book>,
        stores: &[u64],
        (cluster, times): (u64, LeaseTimes),
        options: TransportOptions,
        bind: &str,
    ) -> Self {
        let runs = stores.iter().map(|store| (*store, start_of(*store, &[1]))).collect::<Vec<_>>();
        let node = Self::start_runs(book.clone(), &runs, (cluster, times), options, bind).await;
        for store in stores {
            book.set(*store, &node.address);
        }
        node
    }

    pub(crate) async fn start_runs(
        resolve: Arc<dyn Resolve>,
        runs: &[(u64, StoreRun)],
        (cluster, times): (u64, LeaseTimes),
        options: TransportOptions,
        bind: &str,
    ) -> Self {
        let listener = TcpListener::bind(bind).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen = Arc::new(Seen::default());
        let boots = Boots::new(1);
        runs.iter().for_each(|(store, run)| boots.add(StoreId(*store), run.clone()));
        let identity = Identity {
            cluster: ClusterId(cluster),
            address: address.clone(),
            stores: runs.iter().map(|(store, _)| StoreId(*store)).collect(),
            times,
            boots: Arc::new(boots),
        };
        let transport = Transport::start(options, identity, resolve, seen.clone());
        let accepting = transport.clone();
        let listening = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let transport = accepting.clone();
                tokio::spawn(
                    async move { transport.serve(plain(stream), Rights::of_plain()).await },
                );
            }
        });
        Self { transport, seen, address, listening }
    }

    /// Stops the node as if its process ended.
    pub(crate) async fn stop(self) -> String {
        self.listening.abort();
        let _ = self.listening.await;
        self.transport.shutdown().await;
        self.address
    }

    pub(crate) fn send(&self, message: PeerMessage) {
        self.transport.send(vec![message]);
    }

    pub(crate) fn closed(&self, label: &str) -> u64 {
        let closed = self.transport.stats().closed();
        closed.iter().find(|(known, _)| *known == label).map_or(0, |(_, count)| *count)
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        let counters = self.transport.stats().each();
        counters.iter().find(|(known, _)| *known == name).map_or(0, |(_, count)| *count)
    }
}

/// Waits until `holds` returns true; fails after ten seconds.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("waited in vain: {what}");
}

/// Sends heartbeats until one of them arrives.
pub(crate) async fn until_heard(from: &TestNode, to: &TestNode, stores: (u64, u64)) {
    let before = to.seen.count();
    for index in 0..2000 {
        from.send(heartbeat(stores.0, stores.1, index));
        tokio::time::sleep(Duration::from_millis(5)).await;
        if to.seen.count() > before {
            return;
        }
    }
    panic!("no heartbeat arrives");
}
