use super::{Counts, Engine, Inbox, Item, OutputSink, StoreHandle, maintain, spawn};
use crate::threads::Thread;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use stele_engine::{Options, Replay};
use stele_raftstore::{
    Admin, AdminCall, Done, Event, Header, Input, Modification, Modified, Modify, Now,
    Options as CoreOptions, PeerMessage, RaftStore, Reply, SendSnapshot,
};
use stele_storage::{EngineView, ModelEngine, StateMachine};
use stele_types::{
    Clock, ClusterId, Error, Peer, PeerId, PeerRole, Region, RegionId, StoreId, StoreIdent,
};
use stele_vfs::{SimOptions, SimVfs, SystemClock};

const SIGABRT: i32 = 6;
/// Marks the process in which this test must panic.
const INSIDE: &str = "STELE_TEST_PANICS";

#[test]
fn fault_05_a_panic_in_a_stores_thread_ends_the_process() {
    if std::env::var_os(INSIDE).is_some() {
        let thread = spawn(Thread::Store, StoreId(1), || panic!("half done")).unwrap();
        let _ = thread.join();
        return;
    }
    let name = "store::tests::fault_05_a_panic_in_a_stores_thread_ends_the_process";
    let mut inside = Command::new(std::env::current_exe().unwrap());
    let ended = inside.args(["--exact", name, "--nocapture"]).env(INSIDE, "1").output().unwrap();
    assert_eq!(ended.status.signal(), Some(SIGABRT), "{ended:?}");
    let output = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(output.contains("half done") && output.contains("stele-store-1"), "{output}");
}

// Catalogue: 17.
#[test]
fn a_store_that_its_maintenance_stopped_ends_though_nothing_is_appended() {
    let disk = Arc::new(SimVfs::new(SimOptions::default()));
    let (clock, dir) = (Arc::new(SystemClock::new()), Path::new("/store"));
    let opened = Engine::open(disk, clock, dir, Options::default(), Replay::Committed);
    let (engine, _) = opened.unwrap();
    engine.log().stop(Error::invalid("a sync failed"));
    let inbox = Inbox::new(1 << 20);
    let (running, wants_checkpoint) = (AtomicBool::new(true), AtomicBool::new(false));
    maintain::run(&engine, &running, &wants_checkpoint, &inbox, &Counts::default());
    let mut items = Vec::new();
    inbox.queue.take(&mut items);
    let [Item::Stopped(error)] = &items[..] else { panic!("{} items", items.len()) };
    assert!(matches!(error, Error::Poisoned(_)), "{error}");
}

struct Alone;

impl OutputSink<ModelEngine> for Alone {
    fn send(&self, _messages: Vec<PeerMessage>) {}
    fn send_snapshot(&self, _snapshot: SendSnapshot<ModelEngine>) {}
    fn events(&self, _events: Vec<Event>) {}
    fn failed(&self, store: StoreId, error: Error) {
        panic!("store {store}: {error}");
    }
}

#[test]
fn modifications_read_their_values_beside_the_loop_and_each_counts_once() {
    const REGION: RegionId = RegionId(2);
    let (store, cluster) = (StoreId(1), ClusterId(5));
    let (engine, clock) = (Arc::new(ModelEngine::new()), Arc::new(SystemClock::new()));
    let peers = vec![Peer { id: PeerId(11), store, role: PeerRole::Voter }];
    let region = Region { id: REGION, peers, ..Region::default() };
    RaftStore::bootstrap(&*engine, &StoreIdent { cluster, store }, &[region]).unwrap();
    // Every value is read from the device.
    engine.set_cold(true);
    let now = Now { monotonic_nanos: clock.monotonic_nanos(), unix_seconds: clock.unix_seconds() };
    let core = RaftStore::open(engine.clone(), CoreOptions::new(store, cluster, 1, 1), now);
    let sink = Arc::new(Alone);
    let handle = StoreHandle::start(store, engine.clone(), core.unwrap(), clock, sink, 1 << 20);
    let handle = handle.unwrap();
    let header = Header { region: REGION, ..Header::default() };
    let campaign = |id| Input::Admin(AdminCall { id, header, call: Admin::Campaign });
    assert!(matches!(handle.request_blocking(campaign), Reply::Done(_)));
    let increment = || {
        let (key, change) = (bytes::Bytes::from("n"), Modification::Increment { by: 1 });
        let reply = handle.request_blocking(|id| Input::Modify(Modify { id, header, key, change }));
        match reply {
            Reply::Done(Done::Modified { result: Modified::Updated { value }, .. }) => value,
            other => panic!("{other:?}"),
        }
    };
    let mut sums: Vec<u32> = std::thread::scope(|scope| {
        let count = || (0..25).map(|_| increment()).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(count)).collect();
        let sums = threads.into_iter().flat_map(|thread| thread.join().unwrap());
        sums.map(|sum| std::str::from_utf8(&sum).unwrap().parse().unwrap()).collect()
    });
    sums.sort_unstable();
    assert_eq!(sums, (1..=100).collect::<Vec<u32>>());
    let pair = engine.view().unwrap().get(b"n").unwrap().unwrap();
    assert_eq!(&pair.value[..], b"100");
    handle.stop_threads();
}
