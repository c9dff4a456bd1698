//! Calls of the protocol, and many commands in one message, against a whole node.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use stele_proto::kvrpcpb::{
    Context, KeyRange, RawBatchGetRequest, RawBatchScanRequest, RawChecksumRequest, RawGetRequest,
    RawPutRequest, RawPutResponse, RawScanRequest,
};
use stele_proto::pdpb::pd_client::PdClient;
use stele_proto::pdpb::{GetRegionRequest, TsoRequest};
use stele_proto::stele::control::v1::control_client::ControlClient;
use stele_proto::stele::control::v1::{
    ListRegionsRequest, RegionDetailRequest, RegionReport, SplitRequest,
};
use stele_proto::stele::kv::v1::kv_client::KvClient;
use stele_proto::stele::kv::v1::modify_request::Change;
use stele_proto::stele::kv::v1::{
    Append, ExistRequest, GetAndDelete, Increment, ModifyRequest, PutIfAbsent, PutIfPresent,
    Refusal,
};
use stele_proto::tikvpb::batch_commands_request::{Request, request::Cmd};
use stele_proto::tikvpb::batch_commands_response::response::Cmd as Done;
use stele_proto::tikvpb::tikv_client::TikvClient;
use stele_proto::tikvpb::{BatchCommandsRequest, BatchCommandsResponse};
use stele_server::config::Config;
use stele_server::node::Node;
use tonic::Code;
use tonic::codec::CompressionEncoding;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;

const LIMIT: Duration = Duration::from_secs(30);

struct Served {
    _node: Node,
    channel: Channel,
    context: Context,
}

async fn served(dir: &tempfile::TempDir) -> Served {
    let config = Config {
        listen: "127.0.0.1:0".to_owned(),
        stores: vec![dir.path().join("a")],
        tick_ms: 20,
        reserved_bytes: 0,
        ..Config::default()
    };
    let node = Node::start(config).await.unwrap();
    let url = format!("http://{}", node.ready.address);
    let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
    let started = Instant::now();
    loop {
        let request = GetRegionRequest { region_key: Bytes::from("k"), ..Default::default() };
        let answer = PdClient::new(channel.clone()).get_region(request).await;
        if let Ok(found) = answer.map(tonic::Response::into_inner)
            && let (Some(region), Some(leader)) = (found.region, found.leader)
        {
            let context = Context {
                region_id: region.id,
                region_epoch: region.region_epoch,
                peer: Some(leader),
                ..Context::default()
            };
            return Served { _node: node, channel, context };
        }
        assert!(started.elapsed() < LIMIT);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl Served {
    /// Waits until the region of the context has a lease, so that gets of one message are read together.
    async fn leased(&self) {
        let (mut client, started) = (ControlClient::new(self.channel.clone()), Instant::now());
        let region_id = self.context.region_id;
        loop {
            let request = RegionDetailRequest { region_id, ..RegionDetailRequest::default() };
            let found = client.region_detail(request).await.unwrap().into_inner();
            if found.replicas.first().is_some_and(|replica| replica.lease_nanos > 0) {
                return;
            }
            assert!(started.elapsed() < LIMIT, "no lease");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Sends commands in one message; returns the answers by id.
    async fn send(&self, commands: Vec<Cmd>) -> BTreeMap<u64, Done> {
        let mut all = BTreeMap::new();
        for batch in self.messages(commands).await {
            for (id, response) in batch.request_ids.into_iter().zip(batch.responses) {
                assert!(all.insert(id, response.cmd.unwrap()).is_none(), "{id} is answered twice");
            }
        }
        all
    }

    /// Sends commands in one message; returns the messages that answer them.
    async fn messages(&self, commands: Vec<Cmd>) -> Vec<BatchCommandsResponse> {
        let wanted = commands.len();
        let batch = BatchCommandsRequest {
            request_ids: (1..=wanted as u64).collect(),
            requests: commands.into_iter().map(|cmd| Request { cmd: Some(cmd) }).collect(),
            ..BatchCommandsRequest::default()
        };
        let (sender, messages) = tokio::sync::mpsc::channel(1);
        sender.send(batch).await.unwrap();
        let messages = tokio_stream::wrappers::ReceiverStream::new(messages);
        let mut client = TikvClient::new(self.channel.clone());
        let mut answers = client.batch_commands(messages).await.unwrap().into_inner();
        let (mut all, mut answered) = (Vec::new(), 0);
        while answered < wanted {
            let batch = answers.message().await.unwrap().unwrap();
            answered += batch.responses.len();
            all.push(batch);
        }
        all
    }

    fn put(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> RawPutRequest {
        let (key, value) = (key.into(), value.into());
        RawPutRequest { context: Some(self.context.clone()), key, value, ..Default::default() }
    }

    async fn get(&self, key: impl Into<Bytes>) -> Option<Bytes> {
        let context = Some(self.context.clone());
        let request = RawGetRequest { context, key: key.into(), ..Default::default() };
        let mut done = self.send(vec![Cmd::RawGet(request)]).await;
        let Some(Done::RawGet(found)) = done.remove(&1) else { panic!("{done:?}") };
        assert!(found.region_error.is_none() && found.error.is_empty(), "{found:?}");
        (!found.not_found).then_some(found.value)
    }

    async fn last_index(&self) -> u64 {
        let request =
            RegionDetailRequest { region_id: self.context.region_id, ..Default::default() };
        let detail = ControlClient::new(self.channel.clone()).region_detail(request).await;
        detail.unwrap().into_inner().replicas[0].last_index
    }

    async fn report(&self) -> RegionReport {
        let request =
            ListRegionsRequest { region_id: self.context.region_id, ..Default::default() };
        let listed = ControlClient::new(self.channel.clone()).list_regions(request).await;
        listed.unwrap().into_inner().regions[0].report.clone().unwrap_or_default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_traffic_of_a_region_is_a_total_of_the_pairs_and_bytes_of_its_clients() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    let keys = || (0..4).map(|n| format!("key{n}"));
    served.send(keys().map(|key| Cmd::RawPut(served.put(key, vec![7; 1000]))).collect()).await;
    assert!(served.get("key1").await.is_some());
    assert!(served.get("none").await.is_none());
    let context = Some(served.context.clone());
    let scan = RawScanRequest { context, limit: 100, ..RawScanRequest::default() };
    let scanned = TikvClient::new(served.channel.clone()).raw_scan(scan).await.unwrap();
    assert_eq!(scanned.into_inner().kvs.len(), 4);
    // Another reader of the same state.
    served.last_index().await;
    let started = Instant::now();
    let report = loop {
        let report = served.report().await;
        if report.reads >= 6 && report.writes >= 4 || started.elapsed() > LIMIT {
            break report;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!((report.reads, report.read_bytes), (1 + 1 + 4, 1004 + 4 * 1004), "{report:?}");
    assert_eq!(report.writes, 4, "{report:?}");
    assert!((4 * 1004..5000).contains(&report.written_bytes), "{report:?}");
    assert!(report.counted_since > 0);
    served.get("key2").await;
    let started = Instant::now();
    while served.report().await.reads != 7 {
        assert!(started.elapsed() < LIMIT);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(served.report().await.writes, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_modified_in_the_terms_of_the_other_calls() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    let request = |change| ModifyRequest {
        context: Some(served.context.clone()),
        key: Bytes::from("k"),
        change: Some(change),
        ..ModifyRequest::default()
    };
    let send = async |request: ModifyRequest| {
        KvClient::new(served.channel.clone()).modify(request).await.map(|it| it.into_inner())
    };
    let modify = async |change| {
        let response = send(request(change)).await.unwrap();
        assert!(response.region_error.is_none() && response.error.is_empty(), "{response:?}");
        response
    };
    let increment = |by| Change::Increment(Increment { by });
    let put = |value: &'static str| {
        Change::PutIfAbsent(PutIfAbsent { value: Bytes::from(value), ttl: 0 })
    };
    let append = |value: Vec<u8>| Change::Append(Append { value: value.into() });
    assert_eq!(modify(increment(-5)).await.number, -5);
    assert_eq!(modify(put("x")).await.previous.unwrap(), "-5");
    assert_eq!(modify(append(b"0".to_vec())).await.length, 3);
    assert_eq!(served.get("k").await.unwrap(), "-50");
    assert_eq!(modify(Change::GetAndDelete(GetAndDelete {})).await.previous.unwrap(), "-50");
    assert_eq!(modify(Change::GetAndDelete(GetAndDelete {})).await.previous, None);
    let replace = |value: &'static str| {
        Change::PutIfPresent(PutIfPresent { value: Bytes::from(value), ttl: 0 })
    };
    assert_eq!(modify(replace("y")).await.previous, None);
    assert_eq!(served.get("k").await, None);
    assert_eq!(modify(put("z")).await.previous, None);
    assert_eq!(modify(replace("x")).await.previous.unwrap(), "z");
    assert_eq!(modify(increment(1)).await.refusal(), Refusal::NotANumber);
    let long = modify(append(vec![0; 64 << 10])).await;
    assert_eq!((long.refusal(), long.length), (Refusal::TooLong, 65_537));
    assert_eq!(served.get("k").await.unwrap(), "x");

    let nothing = send(ModifyRequest { change: None, ..request(increment(1)) }).await.unwrap();
    assert!(ended(nothing.region_error).contains("names no change"));
    let long_key = ModifyRequest { key: vec![0; 9000].into(), ..request(increment(1)) };
    assert!(ended(send(long_key).await.unwrap().region_error).contains("max key size"));
    let elsewhere = Context { region_id: 77, ..served.context.clone() };
    let elsewhere = ModifyRequest { context: Some(elsewhere), ..request(increment(1)) };
    assert!(send(elsewhere).await.unwrap().region_error.unwrap().region_not_found.is_some());
    let foreign = Context { cluster_id: 77, ..served.context.clone() };
    let foreign = ModifyRequest { context: Some(foreign), ..request(increment(1)) };
    assert_eq!(send(foreign).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn existence_of_many_keys_is_checked_in_their_order_without_expired_ones() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    let ttl = RawPutRequest { ttl: 1, ..served.put("short", "v") };
    let puts = vec![
        Cmd::RawPut(served.put("a", vec![7; 5000])),
        Cmd::RawPut(served.put("b", "")),
        Cmd::RawPut(ttl),
    ];
    served.send(puts).await;
    tokio::time::sleep(std::time::Duration::from_millis(2100)).await;
    let keys = ["short", "b", "absent", "a", "b"].map(Bytes::from).to_vec();
    let request =
        ExistRequest { context: Some(served.context.clone()), keys, ..ExistRequest::default() };
    let send = async |request: ExistRequest| {
        KvClient::new(served.channel.clone()).exist(request).await.map(|it| it.into_inner())
    };
    let found = send(request.clone()).await.unwrap();
    assert!(found.region_error.is_none() && found.error.is_empty(), "{found:?}");
    assert_eq!(found.keys, ["b", "a", "b"].map(Bytes::from));
    let in_lock = ExistRequest { cf: "lock".to_owned(), ..request.clone() };
    assert!(send(in_lock).await.unwrap().keys.is_empty());
    let long_key = ExistRequest { keys: vec![vec![0; 9000].into()], ..request.clone() };
    assert!(ended(send(long_key).await.unwrap().region_error).contains("max key size"));
    let elsewhere = Context { region_id: 77, ..served.context.clone() };
    let elsewhere = ExistRequest { context: Some(elsewhere), ..request };
    assert!(send(elsewhere).await.unwrap().region_error.unwrap().region_not_found.is_some());
}

/// Returns the text of an error that every client returns to its caller at once.
fn ended(error: Option<stele_proto::errorpb::Error>) -> String {
    let error = error.unwrap();
    assert_eq!(error.raft_entry_too_large.unwrap().entry_size, 0, "{error:?}");
    error.message
}

fn put_answer(done: &Done) -> &RawPutResponse {
    let Done::RawPut(response) = done else { panic!("{done:?}") };
    response
}

/// Splits the region at `at`; returns the parts' contexts.
async fn split(served: &Served, at: &'static str) -> [Context; 2] {
    let request = SplitRequest {
        region_id: served.context.region_id,
        keys: vec![Bytes::from(at)],
        ..SplitRequest::default()
    };
    ControlClient::new(served.channel.clone()).split(request).await.unwrap();
    let started = Instant::now();
    loop {
        let find = async |key: &'static str| {
            let request = GetRegionRequest { region_key: key.into(), ..Default::default() };
            let found = PdClient::new(served.channel.clone()).get_region(request).await.unwrap();
            let found = found.into_inner();
            let (region_id, region_epoch) = (found.region.clone()?.id, found.region?.region_epoch);
            Some(Context {
                region_id,
                region_epoch,
                peer: Some(found.leader?),
                ..served.context.clone()
            })
        };
        // The new region serves when its leader has applied its first entry.
        let serves = async |context: &Context, key: &'static str| {
            let context = Some(context.clone());
            let get = RawGetRequest { key: key.into(), context, ..Default::default() };
            let got = TikvClient::new(served.channel.clone()).raw_get(get).await.unwrap();
            got.into_inner().region_error.is_none()
        };
        if let (Some(lower), Some(upper)) = (find("").await, find(at).await)
            && lower.region_id != upper.region_id
            && serves(&lower, "a").await
            && serves(&upper, at).await
        {
            return [lower, upper];
        }
        assert!(started.elapsed() < LIMIT, "not split");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scans_and_checksums_of_another_region_are_refused_and_none_returns_a_part_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    served.send(["a", "k", "m", "t"].map(|key| Cmd::RawPut(served.put(key, "v"))).into()).await;
    let [lower, upper] = split(&served, "m").await;
    let mut client = TikvClient::new(served.channel.clone());
    let mut scan =
        async |context: &Context, (start, end): (&'static str, &'static str), reverse| {
            let (start_key, end_key) = (Bytes::from(start), Bytes::from(end));
            let context = Some(context.clone());
            let request = RawScanRequest {
                context: context.clone(),
                start_key: start_key.clone(),
                end_key: end_key.clone(),
                limit: 10,
                reverse,
                ..Default::default()
            };
            let found = client.raw_scan(request).await.unwrap().into_inner();
            let range = vec![KeyRange { start_key, end_key }];
            let batch = RawBatchScanRequest {
                context: context.clone(),
                ranges: range.clone(),
                each_limit: 10,
                reverse,
                ..Default::default()
            };
            let batch = client.raw_batch_scan(batch).await.unwrap().into_inner();
            assert_eq!((&batch.kvs, &batch.region_error), (&found.kvs, &found.region_error));
            if !reverse {
                let sum = RawChecksumRequest { context, ranges: range, ..Default::default() };
                let sum = client.raw_checksum(sum).await.unwrap().into_inner();
                assert_eq!(sum.total_kvs, found.kvs.len() as u64);
                assert_eq!(sum.region_error, found.region_error);
            }
            let keys: Vec<Bytes> = found.kvs.into_iter().map(|pair| pair.key).collect();
            match found.region_error {
                None => Ok(keys),
                Some(error) => Err(error.key_not_in_region.unwrap().key),
            }
        };
    let keys = |keys: &[&'static str]| Ok(keys.iter().map(|key| Bytes::from(*key)).collect());
    let not = |key: &'static str| Err(Bytes::from(key));
    assert_eq!(scan(&lower, ("", "z"), false).await, keys(&["a", "k"]));
    assert_eq!(scan(&upper, ("m", ""), false).await, keys(&["m", "t"]));
    assert_eq!(scan(&lower, ("p", "z"), false).await, not("p"));
    assert_eq!(scan(&upper, ("a", "z"), false).await, not("a"));
    // A reverse scan begins below its start key.
    assert_eq!(scan(&lower, ("m", "a"), true).await, keys(&["k", "a"]));
    assert_eq!(scan(&upper, ("", "a"), true).await, keys(&["t", "m"]));
    assert_eq!(scan(&lower, ("z", "a"), true).await, not("z"));
    assert_eq!(scan(&lower, ("", "a"), true).await, not(""));
}

#[tokio::test(flavor = "multi_thread")]
async fn puts_of_one_message_are_one_entry_and_each_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    served.send(vec![Cmd::RawPut(served.put("first", "entry"))]).await;
    let before = served.last_index().await;
    let puts = (0..50).map(|i| Cmd::RawPut(served.put(format!("k{i}"), format!("v{i}")))).collect();
    for (id, done) in served.send(puts).await {
        let answer = put_answer(&done);
        assert!(answer.region_error.is_none() && answer.error.is_empty(), "{id}: {answer:?}");
    }
    assert_eq!(served.last_index().await, before + 1);
    for i in 0..50 {
        assert_eq!(served.get(format!("k{i}")).await.unwrap(), format!("v{i}"));
    }
}

/// A client processes the first values while the others are in flight.
#[tokio::test(flavor = "multi_thread")]
async fn large_answers_to_one_message_come_in_several() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    let value = vec![7; 16 << 10];
    served.send(vec![Cmd::RawPut(served.put("k", value.clone()))]).await;
    let get = || {
        let (context, key) = (Some(served.context.clone()), Bytes::from("k"));
        Cmd::RawGet(RawGetRequest { context, key, ..Default::default() })
    };
    let messages = served.messages((0..64).map(|_| get()).collect()).await;
    let values: usize = messages.iter().map(|message| message.responses.len()).sum();
    let most = messages.iter().map(|message| message.responses.len()).max();
    assert_eq!(values, 64);
    assert!(most <= Some(17), "{most:?} of 64 values of 16 KiB in one message");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_puts_to_the_same_key_in_one_message_the_last_remains() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    let puts = (0..9).map(|i| Cmd::RawPut(served.put("k", format!("{i}")))).collect();
    served.send(puts).await;
    assert_eq!(served.get("k").await.unwrap(), "8");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_is_refused_takes_no_other_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    let mut stale = served.put("stale", "v");
    let epoch = stale.context.as_mut().unwrap().region_epoch.as_mut().unwrap();
    epoch.version += 7;
    let mut nowhere = served.put("nowhere", "v");
    nowhere.cf = "no such family".to_owned();
    let long = served.put(vec![b'x'; 100 << 10], "v");
    let commands = [served.put("a", "1"), stale, nowhere, long, served.put("b", "2")];
    let done = served.send(commands.into_iter().map(Cmd::RawPut).collect()).await;
    assert!(put_answer(&done[&2]).region_error.as_ref().unwrap().epoch_not_match.is_some());
    assert!(ended(put_answer(&done[&3]).region_error.clone()).contains("unknown column family"));
    assert!(ended(put_answer(&done[&4]).region_error.clone()).contains("max key size exceeded"));
    for (id, key, value) in [(1, "a", "1"), (5, "b", "2")] {
        assert_eq!(*put_answer(&done[&id]), RawPutResponse::default());
        assert_eq!(served.get(key).await.unwrap(), value);
    }
    assert_eq!(served.get("stale").await, None);
}

/// Entries are bounded: one of any size is not proposed, replicated and applied as a whole.
#[tokio::test(flavor = "multi_thread")]
async fn long_values_of_one_message_are_several_entries() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    served.send(vec![Cmd::RawPut(served.put("first", "entry"))]).await;
    let before = served.last_index().await;
    let value = vec![7; 20 << 10];
    let puts = (0..6).map(|i| Cmd::RawPut(served.put(format!("k{i}"), value.clone()))).collect();
    served.send(puts).await;
    assert_eq!(served.last_index().await, before + 2);
    assert_eq!(served.get("k5").await.unwrap(), value);
}

/// A get sent alone and the same get among others have the same answer.
#[tokio::test(flavor = "multi_thread")]
async fn gets_of_one_message_are_answered_like_each_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    // Some values are in the index, and some in the log, of which no file is open for reads.
    let value = |i: usize| format!("v{i}").repeat(1 + i % 3 * 400);
    let mut puts: Vec<Cmd> =
        (0..100).map(|i| Cmd::RawPut(served.put(format!("k{i}"), value(i)))).collect();
    let brief = RawPutRequest { ttl: 1, ..served.put("brief", "gone soon") };
    puts.push(Cmd::RawPut(brief));
    served.send(puts).await;
    let get = |key: &str| {
        let key = Bytes::copy_from_slice(key.as_bytes());
        RawGetRequest { context: Some(served.context.clone()), key, ..Default::default() }
    };
    let mut gets: Vec<RawGetRequest> = (0..110).map(|i| get(&format!("k{i}"))).collect();
    let mut elsewhere = served.context.clone();
    elsewhere.region_epoch.as_mut().unwrap().version += 1;
    gets.insert(7, RawGetRequest { context: Some(elsewhere), ..get("k7") });
    gets.insert(9, RawGetRequest { context: None, ..get("k9") });
    gets.push(RawGetRequest { cf: "nonsense".to_owned(), ..get("k1") });
    gets.push(RawGetRequest { cf: "lock".to_owned(), ..get("k1") });
    gets.push(get(&"k".repeat(70_000)));
    gets.push(get("brief"));
    gets.extend((0..20).map(|i| get(&format!("k{i}"))));
    tokio::time::sleep(Duration::from_millis(2100)).await;
    let together = served.send(gets.iter().cloned().map(Cmd::RawGet).collect()).await;
    let mut client = TikvClient::new(served.channel.clone());
    for (id, request) in (1..).zip(gets) {
        let alone = client.raw_get(request.clone()).await.unwrap().into_inner();
        assert_eq!(together[&id], Done::RawGet(alone), "{request:?}");
    }
    let found = together.values().filter(
        |done| matches!(done, Done::RawGet(found) if !found.not_found && found.value.starts_with(b"v")),
    );
    assert_eq!(found.count(), 120);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_keys_are_read_in_the_order_of_the_request_from_memory_and_from_the_device() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    let value = |i: usize| format!("v{i}").repeat(1 + i % 3 * 400);
    let puts = (0..100).map(|i| Cmd::RawPut(served.put(format!("k{i}"), value(i))));
    served.send(puts.collect()).await;
    let mut client = TikvClient::new(served.channel.clone());
    // Keys that are absent, or asked for twice; and more than are searched on the request thread.
    let numbers: Vec<usize> = (0..1300).map(|at| at * 37 % 130).collect();
    let keys: Vec<Bytes> = numbers.iter().map(|i| Bytes::from(format!("k{i}"))).collect();
    let wanted: Vec<(Bytes, String)> = (keys.iter().cloned().zip(&numbers))
        .filter(|(_, i)| **i < 100)
        .map(|(key, i)| (key, value(*i)))
        .collect();
    for count in [130, 1300, 1300] {
        let context = Some(served.context.clone());
        let keys = keys[..count].to_vec();
        let request = RawBatchGetRequest { context, keys, ..Default::default() };
        let found = client.raw_batch_get(request).await.unwrap().into_inner();
        assert!(found.region_error.is_none(), "{found:?}");
        let pairs = found.pairs.into_iter().map(|pair| (pair.key, pair.value));
        let wanted = wanted[..count / 130 * 100].iter().map(|(key, value)| (key.clone(), value));
        assert!(pairs.eq(wanted.map(|(key, value)| (key, Bytes::from(value.clone())))), "{count}");
    }
    let context = Some(served.context.clone());
    let request = ExistRequest { context, keys, ..ExistRequest::default() };
    let found = KvClient::new(served.channel.clone()).exist(request).await.unwrap().into_inner();
    assert!(found.keys.iter().eq(wanted.iter().map(|(key, _)| key)), "{found:?}");
}

/// A runtime with one thread for work that may wait for the device.
#[test]
fn warm_gets_of_a_group_are_answered_before_its_cold_ones_are_read() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).max_blocking_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let served = served(&dir).await;
        let value = |i: usize| format!("v{i}").repeat(1 + i % 2 * 400);
        let puts = (0..20).map(|i| Cmd::RawPut(served.put(format!("k{i}"), value(i))));
        served.send(puts.collect()).await;
        served.leased().await;
        let (release, released) = std::sync::mpsc::channel::<()>();
        let device = tokio::task::spawn_blocking(move || released.recv().is_err());
        let get = |i: usize| {
            let context = Some(served.context.clone());
            let key = Bytes::from(format!("k{i}"));
            Cmd::RawGet(RawGetRequest { context, key, ..Default::default() })
        };
        let requests = (0..20).map(|i| Request { cmd: Some(get(i)) }).collect();
        let request_ids = (0..20).collect();
        let batch = BatchCommandsRequest { request_ids, requests, ..Default::default() };
        let (sender, messages) = tokio::sync::mpsc::channel(1);
        sender.send(batch).await.unwrap();
        let messages = tokio_stream::wrappers::ReceiverStream::new(messages);
        let mut client = TikvClient::new(served.channel.clone());
        let mut answers = client.batch_commands(messages).await.unwrap().into_inner();
        let mut take = async |wanted: &[u64]| {
            let mut ids = Vec::new();
            while ids.len() < wanted.len() {
                let message = tokio::time::timeout(LIMIT, answers.message()).await;
                let message = message.expect("no answer").unwrap().unwrap();
                for (id, response) in message.request_ids.into_iter().zip(message.responses) {
                    let Some(Done::RawGet(found)) = response.cmd else { panic!("{response:?}") };
                    assert_eq!(found.value, value(id as usize), "{id}");
                    ids.push(id);
                }
            }
            ids.sort_unstable();
            assert_eq!(ids, wanted);
        };
        // Values of the index, and then those of the log.
        take(&(0..20).step_by(2).collect::<Vec<_>>()).await;
        drop(release);
        assert!(device.await.unwrap());
        take(&(1..20).step_by(2).collect::<Vec<_>>()).await;
    });
}

/// Changes a byte of a value in the files of a store.
fn damage(dir: &Path, value: &[u8]) {
    let log = std::fs::read_dir(dir.join("a/log")).unwrap().map(|entry| entry.unwrap().path());
    let mut damaged = 0;
    for path in log.filter(|path| path.extension().is_some_and(|kind| kind == "seg")) {
        let bytes = std::fs::read(&path).unwrap();
        let Some(at) = bytes.windows(value.len()).position(|part| part == value) else { continue };
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.write_at(&[!value[9]], at as u64 + 9).unwrap();
        damaged += 1;
    }
    assert_eq!(damaged, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_value_fails_only_its_own_get_of_a_group() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    let value = |i: usize| format!("value-{i:03}").repeat(100);
    let puts = (0..30).map(|i| Cmd::RawPut(served.put(format!("k{i}"), value(i))));
    served.send(puts.collect()).await;
    damage(dir.path(), value(7).as_bytes());
    let get = |i: usize| {
        let context = Some(served.context.clone());
        let key = Bytes::from(format!("k{i}"));
        Cmd::RawGet(RawGetRequest { context, key, ..Default::default() })
    };
    served.leased().await;
    // Several times: some of them may be without a lease.
    let send = || served.send((0..30).map(get).collect());
    let (one, other, third) = tokio::join!(send(), send(), send());
    for (id, done) in one.into_iter().chain(other).chain(third) {
        let (i, Done::RawGet(found)) = (id as usize - 1, done) else { panic!() };
        match i {
            7 => assert!(ended(found.region_error).contains("checksum"), "{i}"),
            _ => assert_eq!(found.value, value(i), "{i}"),
        }
    }
}

/// Sends an empty call of the protocol; returns its error.
async fn empty_call(channel: &Channel, path: &'static str) -> Option<tonic::Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    client.unary(tonic::Request::new(()), PathAndQuery::from_static(path), codec).await.err()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_of_the_protocol_is_served_and_others_are_named_as_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    let calls = include_str!("../../../proto/proto/tikvpb.proto").lines().filter_map(|line| {
        let (name, _) = line.trim().strip_prefix("rpc ")?.split_once('(')?;
        Some(&*format!("/tikvpb.Tikv/{name}").leak())
    });
    let calls: Vec<&str> = calls.collect();
    assert_eq!(calls.len(), 13);
    for path in calls {
        let refused = empty_call(&served.channel, path).await;
        // An empty message gets an answer with its own error; a stream ends without an answer.
        let is_served = refused.as_ref().is_none_or(|status| {
            path.ends_with("BatchCommands") && status.code() == Code::Internal
        });
        assert!(is_served, "{path}: {refused:?}");
    }
    let others = [
        ("/tikvpb.Tikv/KvGet", "raw key-value calls only"),
        ("/pdpb.PD/StoreHeartbeat", "raw key-value calls only"),
        ("/meta_storagepb.MetaStorage/Put", "raw key-value calls only"),
        ("/resource_manager.ResourceManager/AcquireTokenBuckets", "raw key-value calls only"),
        ("/stele.control.v1.Control/Recall", "upgrade the node"),
    ];
    for (path, text) in others {
        let refused = empty_call(&served.channel, path).await.unwrap();
        assert_eq!(refused.code(), Code::Unimplemented, "{path}");
        assert!(refused.message().contains(path) && refused.message().contains(text), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stream_of_timestamps_opens_and_each_request_for_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    for _ in 0..2 {
        let (sender, requests) = tokio::sync::mpsc::channel(1);
        let requests = tokio_stream::wrappers::ReceiverStream::new(requests);
        let mut client = PdClient::new(served.channel.clone());
        let mut answers = client.tso(requests).await.unwrap().into_inner();
        let unused = tokio::time::timeout(Duration::from_millis(200), answers.message()).await;
        assert!(unused.is_err(), "{unused:?}");
        sender.send(TsoRequest::default()).await.unwrap();
        let refused = answers.message().await.unwrap_err();
        assert_eq!(refused.code(), Code::Unimplemented);
        assert!(refused.message().contains("raw key-value calls only"), "{refused}");
    }
    assert_eq!(served.get("k").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_commands_of_a_message_are_refused_each_and_the_others_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    let content = Bytes::from_static(b"\x0a\x00\xff not a message");
    let commands = vec![
        Cmd::RawPut(served.put("k", "v")),
        Cmd::Get(content.clone()),
        Cmd::Prewrite(content.clone()),
        Cmd::Coprocessor(content.clone()),
        Cmd::BufferBatchGet(content),
    ];
    let mut done = served.send(commands).await;
    assert_eq!(put_answer(&done[&1]), &RawPutResponse::default());
    let mut refused = |id| match done.remove(&id).unwrap() {
        Done::Get(answer) if id == 2 => answer.region_error,
        Done::Prewrite(answer) if id == 3 => answer.region_error,
        Done::Coprocessor(answer) if id == 4 => answer.region_error,
        Done::BufferBatchGet(answer) if id == 5 => answer.region_error,
        other => panic!("{id}: {other:?}"),
    };
    for error in (2..=5).map(|id| refused(id).unwrap()) {
        assert_eq!(error.message, "raw key-value calls only");
        // Clients return this one to their caller and repeat nothing.
        assert!(error.raft_entry_too_large.is_some(), "{error:?}");
    }
    assert_eq!(served.get("k").await.unwrap(), "v");
}

/// Most clients accept compressed answers and gain nothing by them.
#[tokio::test(flavor = "multi_thread")]
async fn compressed_requests_are_understood_and_no_answer_is_compressed() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    let gzip = CompressionEncoding::Gzip;
    let mut client =
        TikvClient::new(served.channel.clone()).send_compressed(gzip).accept_compressed(gzip);
    let value = vec![7; 100 << 10];
    let answer = client.raw_put(served.put("k", value.clone())).await.unwrap();
    assert_eq!(answer.get_ref(), &RawPutResponse::default());
    let (context, key) = (Some(served.context.clone()), Bytes::from("k"));
    let request = RawGetRequest { context, key, ..Default::default() };
    let answer = client.raw_get(request).await.unwrap();
    assert_eq!(answer.metadata().get("grpc-encoding"), None);
    assert_eq!(answer.get_ref().value, value);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_compressed_in_another_way_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    let mut request = tonic::Request::new(RawGetRequest::default());
    request.metadata_mut().insert("grpc-encoding", "snappy".parse().unwrap());
    let refused = TikvClient::new(served.channel.clone()).raw_get(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    assert!(refused.message().contains("snappy"), "{refused}");
}
