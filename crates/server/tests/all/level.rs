//! Tests of whole nodes and the level of their cluster: what they may write.

use crate::common::{LIMIT, config, start, stores, until};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_engine::{Options, Replay, Store};
use stele_node::start::bootstrap;
use stele_placement::{Bootstrap, Levels, pairs};
use stele_proto::stele::control::v1::control_client::ControlClient;
use stele_proto::stele::control::v1::{
    FinalizeRequest, FinalizeResponse, HeartbeatRequest, JoinRequest, StoreInfo, TakeMomentRequest,
};
use stele_server::config::Config;
use stele_server::node::Node;
use stele_storage::{LogStore, StateMachine};
use stele_types::{
    ClusterId, CommandBuilder, CommittedEntry, EntryRecord, HardState, Level, LogBatch, Record,
    RegionId, TickMillis,
};
use stele_vfs::{RealVfs, SystemClock};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

const JOURNAL: RegionId = RegionId(0);

fn joining(dir: &Path, join: &[&Node]) -> Config {
    let join: Vec<String> = join.iter().map(|node| node.ready.address.clone()).collect();
    config(&[dir.to_path_buf()], &join)
}

fn open(dir: &Path) -> Store {
    let (vfs, clock) = (Arc::new(RealVfs::new()), Arc::new(SystemClock::new()));
    Store::open(vfs, clock, dir, Options::default(), Replay::Committed).unwrap().0
}

/// Makes the directory that of the first store of a cluster of the oldest level.
fn of_the_oldest_level(at: &Path) -> PathBuf {
    let dir = at.join("a");
    let store = Arc::new(open(&dir));
    let address = "127.0.0.1:1".to_owned();
    let plan = Bootstrap { cluster: ClusterId(7), address, capacities_bytes: vec![1 << 40] };
    bootstrap(std::slice::from_ref(&store), &plan, Some(TickMillis::OF_NEW_CLUSTERS)).unwrap();
    store.close().unwrap();
    dir
}

fn newest() -> u32 {
    Level::NEWEST.get()
}

/// Writes the levels into the placement region, as consensus would have.
fn write_levels(dir: &Path, levels: Levels) {
    let store = open(dir);
    let pair = pairs::levels(levels);
    let mut command = CommandBuilder::new();
    command.put(&pair.key, &pair.value.unwrap(), 0).unwrap();
    let (last, term) = store.progress(JOURNAL).unwrap().persisted;
    let (index, payload) = (last.next(), command.build().bytes().clone());
    let entry =
        EntryRecord { region: JOURNAL, term, index, is_command: true, payload: payload.clone() };
    let hard_state = HardState { term, vote: 0, commit: index };
    let records = vec![Record::Entry(entry), Record::HardState(JOURNAL, hard_state)];
    store.append(&LogBatch { records }).unwrap();
    let entry = CommittedEntry { term, index, is_command: true, payload };
    store.apply(JOURNAL, &[entry]).unwrap();
    store.close().unwrap();
}

fn control(node: &Node) -> ControlClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{}", node.ready.address)).unwrap();
    ControlClient::new(endpoint.connect_lazy())
}

/// Calls until the leader answers.
async fn finalize(node: &Node) -> Result<FinalizeResponse, Status> {
    let started = Instant::now();
    loop {
        match control(node).finalize(FinalizeRequest::default()).await {
            Err(status) if status.code() == Code::Unavailable && started.elapsed() < LIMIT => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            answered => return answered.map(tonic::Response::into_inner),
        }
    }
}

fn in_use(level: u32) -> impl Fn(u16, &str) -> bool {
    move |_, body| body.contains(&format!("\"level_in_use\":{level},"))
}

/// Returns the format that the file `STORE` states.
fn format(dir: &Path) -> String {
    let text = std::fs::read_to_string(dir.join("STORE")).unwrap();
    text.lines().nth(1).unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_cluster_begins_with_the_newest_level_and_so_do_the_nodes_that_join() {
    let at = tempfile::tempdir().unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| at.path().join(name));
    let first = start(joining(&a, &[])).await;
    until(&first.ready.address, "/status", in_use(newest())).await;
    let two = Config { stores: vec![b.clone(), c.clone()], ..joining(&b, &[&first]) };
    let second = start(two).await;
    // Before an answer to a report could have raised it.
    assert!([&a, &b, &c].iter().all(|dir| format(dir) == "format 3"));
    until(&second.ready.address, "/status", in_use(newest())).await;
    let answer = finalize(&second).await.unwrap();
    assert_eq!((answer.level, answer.level_in_use, answer.raised), (newest(), newest(), false));
    second.stop().await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_level_1_writes_nothing_of_later_levels_until_it_is_finalized() {
    let at = tempfile::tempdir().unwrap();
    let (a, b, c) = (of_the_oldest_level(at.path()), at.path().join("b"), at.path().join("c"));
    let first = start(joining(&a, &[])).await;
    let second = start(joining(&b, &[&first])).await;
    // A directory that is added to a member joins by another way.
    second.stop().await;
    let second = start(Config { stores: vec![b.clone(), c.clone()], ..joining(&b, &[]) }).await;
    stores(&first.ready.address, |stores| {
        stores.len() == 3 && stores.iter().all(|store| !store.version.is_empty())
    })
    .await;
    until(&first.ready.address, "/status", in_use(1)).await;
    until(&second.ready.address, "/status", in_use(1)).await;
    assert!([&a, &b, &c].iter().all(|dir| format(dir) == "format 2"));
    let refused = control(&first).take_moment(TakeMomentRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("run `stele ctl finalize`"), "{refused:?}");
    let answer = finalize(&second).await.unwrap();
    assert_eq!((answer.level, answer.raised), (newest(), true));
    until(&first.ready.address, "/status", in_use(newest())).await;
    until(&second.ready.address, "/status", in_use(newest())).await;
    assert!([&a, &b, &c].iter().all(|dir| format(dir) == "format 3"));
    control(&first).take_moment(TakeMomentRequest::default()).await.unwrap();
    let answer = finalize(&first).await.unwrap();
    assert_eq!((answer.level_in_use, answer.raised), (newest(), false));
    assert_eq!(answer.behind, [] as [&str; 0]);
    // It stays.
    second.stop().await;
    first.stop().await;
    let first = start(joining(&a, &[])).await;
    assert_eq!(format(&a), "format 3");
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_below_the_level_of_the_cluster_is_refused_at_join_and_report() {
    let at = tempfile::tempdir().unwrap();
    let first = start(joining(&at.path().join("a"), &[])).await;
    until(&first.ready.address, "/status", in_use(newest())).await;
    let address = || "10.0.0.9:1".to_owned();
    let refusals = [
        control(&first).join(JoinRequest { address: address(), ..Default::default() }).await.err(),
        control(&first)
            .heartbeat(HeartbeatRequest { address: address(), ..Default::default() })
            .await
            .err(),
    ];
    for refusal in refusals {
        let refusal = refusal.unwrap();
        assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
        assert_eq!(refusal.metadata().get("stele-level").unwrap(), &newest().to_string());
        let text = refusal.message();
        assert!(text.contains("10.0.0.9:1 supports up to level 1: run version 0.2.0"), "{text}");
    }
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_below_the_level_of_its_cluster_stops_and_names_the_version() {
    let at = tempfile::tempdir().unwrap();
    let dir = of_the_oldest_level(at.path());
    // The second run records that the first pairs are committed: they are not applied again later.
    for _ in 0..2 {
        let node = start(joining(&dir, &[])).await;
        let has_reported = |stores: &[StoreInfo]| stores.iter().any(|it| !it.version.is_empty());
        stores(&node.ready.address, has_reported).await;
        node.stop().await;
    }
    write_levels(&dir, Levels::of_new_cluster(Level::new(Level::NEWEST.get() + 1)));
    let mut node = start(joining(&dir, &[])).await;
    let ended = tokio::time::timeout(LIMIT, node.wait()).await.expect("it does not serve");
    let text = ended.unwrap_err().to_string();
    assert!(
        text.contains(&format!("supports up to level {}: run version of that level", newest())),
        "{text}"
    );
    node.stop().await;
}
