use super::space_watch::SpaceWatch;
use super::{Counts, Engine, Inbox, Item, OutputSink, StoreHandle, Writer, maintain, spawn};
use crate::tasks::Thread;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use stele_conformance::ModelEngine;
use stele_engine::{Options, Replay};
use stele_replica::{
    Admin, AdminCall, Append, Body, Done, Event, Header, Modification, Modified, Modify, Now,
    Options as CoreOptions, PeerMessage, RaftKind, RaftMessage, RaftStore, Reply, SendSnapshot,
    SlowWriters, Ticket, Write,
};
use stele_simulated_disk::{SimOptions, SimVfs};
use stele_storage::{EngineView, StateMachine};
use stele_types::{
    Clock, ClusterId, CommandBuilder, EntryRecord, Error, LogBatch, LogIndex, Peer, PeerId,
    PeerRole, Record, Region, RegionId, StoreId, StoreIdent, Term,
};
use stele_vfs::SystemClock;

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
    let inbox = Arc::new(Inbox::new(1 << 20));
    let (running, wants_checkpoint) = (AtomicBool::new(true), AtomicBool::new(false));
    let (clock, writers) = (SystemClock::new(), SlowWriters::default());
    let (counts, pace) = (Counts::default(), (&clock as &dyn Clock, &writers));
    let space = SpaceWatch::new(StoreId(1));
    maintain(&engine, &running, &wants_checkpoint, &inbox, &counts, &space, pace);
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

const REGION: RegionId = RegionId(2);

fn start() -> (Arc<StoreHandle<ModelEngine>>, Header) {
    let (store, cluster) = (StoreId(1), ClusterId(5));
    let (engine, clock) = (Arc::new(ModelEngine::new()), Arc::new(SystemClock::new()));
    let peers = vec![Peer { id: PeerId(11), store, role: PeerRole::Voter }];
    let region = Region { id: REGION, peers, ..Region::default() };
    RaftStore::bootstrap(&*engine, &StoreIdent::new(cluster, store), &[region]).unwrap();
    let now = Now { monotonic_nanos: clock.monotonic_nanos(), unix_millis: clock.unix_millis() };
    let options = CoreOptions::new(store, cluster, 1, 1);
    let core = RaftStore::open(engine.clone(), options, now).unwrap();
    let handle = StoreHandle::start(store, engine, core, clock, Arc::new(Alone), 1 << 20).unwrap();
    let header = Header { region: REGION, ..Header::default() };
    let campaign = AdminCall { header, call: Admin::Campaign };
    assert!(matches!(handle.submit_blocking(campaign), Reply::Done(_)));
    (handle, header)
}

#[test]
fn entries_wake_the_loop_again_once_the_write_under_way_has_ended() {
    let (handle, header) = start();
    let mut command = CommandBuilder::new();
    command.put(b"k", b"v", 0).unwrap();
    let command = command.build().bytes().clone();
    let reply = handle.submit_blocking(Write { header, command, only_deletes: false });
    assert!(matches!(reply, Reply::Done(Done::Written { .. })), "{reply:?}");
    let body = Body::Raft(RaftMessage::new(RaftKind::Append, Term(1)));
    let entries = PeerMessage::between_stores(StoreId(9), StoreId(1), body);
    assert!(handle.messages([(entries, 100)]));
    handle.stop_threads();
}

#[test]
fn puts_wait_while_a_replica_lags_and_deletes_do_not() {
    let (handle, header) = start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let write = |value: Option<usize>| {
        let mut command = CommandBuilder::new();
        match value {
            Some(bytes) => command.put(b"k", &vec![7; bytes], 0).map(|_| ()).unwrap(),
            None => command.delete(b"k").map(|_| ()).unwrap(),
        }
        let command = command.build().bytes().clone();
        let write = Write { header, command, only_deletes: value.is_none() };
        let started = Instant::now();
        let reply = runtime.block_on(handle.submit(write, None));
        assert!(matches!(reply, Reply::Done(Done::Written { .. })), "{reply:?}");
        started.elapsed()
    };
    let slow = Duration::from_millis(300);
    assert!(write(Some(300 << 10)) < slow);
    // The store of a replica of the region, and one that has none.
    handle.set_slowdowns([(StoreId(1), 1_000_000), (StoreId(9), 1_000_000)].into());
    assert!(write(Some(300 << 10)) >= slow);
    assert!(write(None) < slow, "a delete frees space");
    handle.set_slowdowns([(StoreId(9), 1_000_000)].into());
    assert!(write(Some(300 << 10)) < slow, "no replica is there");
    handle.set_slowdowns([].into());
    assert!(write(Some(300 << 10)) < slow);
    handle.stop_threads();
}

#[test]
fn modifications_read_their_values_beside_the_loop_and_each_counts_once() {
    let (handle, header) = start();
    // Every value is read from the device.
    handle.engine().set_cold(true);
    let increment = || {
        let (key, change) = (bytes::Bytes::from("n"), Modification::Increment { by: 1 });
        let reply = handle.submit_blocking(Modify { header, key, change, session: None });
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
    let pair = handle.engine().view().unwrap().get(b"n").unwrap().unwrap();
    assert_eq!(&pair.value[..], b"100");
    handle.stop_threads();
}

/// Clock that each call moves forward, so that an append takes this time.
#[derive(Debug, Default)]
struct Steps {
    now_nanos: AtomicU64,
    step_nanos: AtomicU64,
}

impl Clock for Steps {
    fn unix_millis(&self) -> u64 {
        0
    }

    fn monotonic_nanos(&self) -> u64 {
        self.now_nanos.fetch_add(self.step_nanos.load(Ordering::Relaxed), Ordering::Relaxed)
    }
}

#[test]
fn a_loop_writes_itself_while_appends_are_short_and_hands_over_while_they_are_not() {
    let clock = Arc::new(Steps::default());
    let engine = Arc::new(ModelEngine::new());
    let (mut writer, thread) = Writer::start(StoreId(1), engine, clock.clone()).unwrap();
    // Returns how many of so many batches the loop has written itself.
    let mut write = |count: u64, nanos: u64, bytes: usize| {
        clock.step_nanos.store(nanos, Ordering::Relaxed);
        let mut own = 0;
        for _ in 0..count {
            let payload = vec![7; bytes].into();
            let (region, term, index) = (REGION, Term(1), LogIndex(1));
            let entry = EntryRecord { region, term, index, is_command: false, payload };
            let batch = Arc::new(LogBatch { records: vec![Record::Entry(entry)] });
            writer.write(Append { ticket: Ticket(1), batch });
            own += u64::from(!writer.is_writing());
            writer.write_own();
            while writer.is_writing() {
                if writer.written().is_some() {
                    break;
                }
                std::thread::park_timeout(Duration::from_millis(1));
            }
        }
        own
    };
    assert_eq!(write(1, 100_000, 10), 0, "nothing is known of the device");
    write(40, 100_000, 10);
    assert_eq!(write(10, 100_000, 10), 10);
    assert_eq!(write(10, 100_000, 200 << 10), 0, "long ones take long");
    assert!(write(1, 2_000_000_000, 10) == 1, "one that hangs is waited for once");
    assert_eq!(write(10, 3_000_000, 10), 0);
    write(100, 100_000, 10);
    assert_eq!(write(10, 100_000, 10), 10, "the device is fast again");
    drop(writer);
    thread.join().unwrap();
}

#[test]
fn a_snapshot_that_begins_and_ends_between_two_reports_is_reported() {
    let (store, _) = start();
    assert_eq!(store.take_receiving(), 0);
    drop([store.begin_receiving(), store.begin_receiving()]);
    assert_eq!([store.take_receiving(), store.take_receiving()], [2, 0]);
    let under_way = store.begin_receiving();
    assert_eq!([store.take_receiving(), store.take_receiving()], [1, 1]);
    drop(under_way);
    assert_eq!(store.take_receiving(), 0);
    store.stop_threads();
}
