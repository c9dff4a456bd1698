//! Owners of orphaned ranges, as a store learns them.

use super::fake::{CLUSTER, halves, heartbeat, region, report};
use super::reports::three_nodes;
use crate::node::orphaned_ranges::find_owners;
use crate::store::{Core, Engine, OutputSink, StoreHandle};
use crate::stores::Stores;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stele_engine::{Options, Replay};
use stele_raftstore::{Event, Now, Options as CoreOptions, PeerMessage, SendSnapshot};
use stele_storage::{EngineView, LogStore, StateMachine};
use stele_types::{
    Clock, ColumnFamily, CommandBuilder, EntryRecord, Error, HardState, KeyRange, LogBatch, Record,
    Region, RegionId, StoreId, StoreIdent, Term, keyspace,
};
use stele_vfs::{SimOptions, SimVfs, SystemClock};

struct Alone;

impl OutputSink for Alone {
    fn send(&self, _messages: Vec<PeerMessage>) {}
    fn send_snapshot(&self, _snapshot: SendSnapshot<Engine>) {}
    fn events(&self, _events: Vec<Event>) {}
    fn failed(&self, store: StoreId, error: Error) {
        panic!("store {store}: {error}");
    }
}

/// Returns a store with pairs at b and x, left by a replica that is gone.
fn left_by(region: &Region, store: StoreId) -> Arc<StoreHandle> {
    let (disk, clock) = (SimVfs::new(SimOptions::default()), Arc::new(SystemClock::new()));
    let dir = Path::new("/store");
    let opened =
        Engine::open(Arc::new(disk), clock.clone(), dir, Options::default(), Replay::Committed);
    let engine = Arc::new(opened.unwrap().0);
    Core::bootstrap(&*engine, &StoreIdent { cluster: CLUSTER, store }, &[]).unwrap();
    let mut command = CommandBuilder::new();
    let note = keyspace::orphaned_range_key(region.id, region.epoch.version);
    command.put(&note, &region.encode(), 0).unwrap();
    for name in [b"b", b"x"] {
        command.put(&ColumnFamily::Default.engine_key(name), b"1", 0).unwrap();
    }
    let (journal, term) = (RegionId(0), Term(1));
    let index = engine.progress(journal).unwrap().persisted.0.next();
    let payload = command.build().bytes().clone();
    let entry = EntryRecord { region: journal, term, index, is_command: true, payload };
    let hard_state = HardState { term, vote: 0, commit: index };
    let records = vec![Record::Entry(entry), Record::HardState(journal, hard_state)];
    engine.append(&LogBatch { records }).unwrap();
    let now = Now { monotonic_nanos: clock.monotonic_nanos(), unix_seconds: clock.unix_seconds() };
    let core = Core::open(engine.clone(), CoreOptions::new(store, CLUSTER, 1, 42), now).unwrap();
    StoreHandle::start(store, engine, core, clock, Arc::new(Alone), 1 << 20).unwrap()
}

#[tokio::test]
async fn a_store_drops_orphaned_pairs_once_placement_knows_their_owner() {
    let (nodes, [number, _]) = three_nodes().await;
    let store = left_by(&region(2, 1, &[number]), StoreId(number));
    let stores = Stores::new(1 << 20);
    stores.add(store.clone());
    let ranges = || async { store.with_core(|core| core.orphaned_ranges()).await.unwrap() };
    let settles = async |wanted: &[KeyRange]| {
        for _ in 0..500 {
            if ranges().await == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(ranges().await, wanted);
    };
    let has = |name: &[u8]| {
        let key = ColumnFamily::Default.engine_key(name);
        store.engine().view().unwrap().get(&key).unwrap().is_some()
    };
    // Placement knows of nothing later.
    find_owners(&stores, nodes.node(1)).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    settles(&[KeyRange::all()]).await;
    let [left, mut right] = halves(2, 50);
    right.peers.push(region(2, 1, &[number]).peers[1]);
    let reports = vec![report(&left), report(&right)];
    nodes.node(1).heartbeat(heartbeat(1, 1, 2, reports)).await.unwrap();
    find_owners(&stores, nodes.node(1)).await;
    // A replica of the other half is expected.
    settles(&[right.range.clone()]).await;
    assert_eq!((has(b"b"), has(b"x")), (false, true));
    right.peers.pop();
    right.epoch.conf_version += 1;
    nodes.node(1).heartbeat(heartbeat(1, 1, 3, vec![report(&right)])).await.unwrap();
    find_owners(&stores, nodes.node(1)).await;
    settles(&[]).await;
    assert!(!has(b"x"));
    store.stop().unwrap();
}
