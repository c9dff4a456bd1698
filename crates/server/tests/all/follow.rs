//! Streams that follow the logs of regions on whole nodes.

use crate::addresses::until_voters;
use crate::common::tls::Certificates;
use crate::common::{LIMIT, config, get, start, until};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use stele_proto::kvrpcpb::{
    Context, RawDeleteRangeRequest, RawDeleteRequest, RawPutRequest, RawPutResponse,
};
use stele_proto::pdpb::GetRegionRequest;
use stele_proto::pdpb::pd_client::PdClient;
use stele_proto::stele::control::v1::control_client::ControlClient;
use stele_proto::stele::control::v1::{
    AccessGrant, AccessGrantRequest, MergeRequest, SplitRequest, TransferRequest,
};
use stele_proto::stele::kv::v1::followed_write::Kind;
use stele_proto::stele::kv::v1::kv_client::KvClient;
use stele_proto::stele::kv::v1::region_change::Kind as Change;
use stele_proto::stele::kv::v1::{
    FollowRequest, FollowResponse, FollowedEntry, FollowedPut, KeyWrite, ReadIndexRequest,
    WriteRequest, WriteResponse,
};
use stele_proto::tikvpb::tikv_client::TikvClient;
use stele_server::config::Config;
use stele_server::node::Node;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Streaming};

const PAUSE: Duration = Duration::from_millis(20);

fn channel(address: &str) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy()
}

/// Returns the context of the leader of the region of a key, once there is one.
async fn context(channel: &Channel, key: &'static str) -> Context {
    let began = Instant::now();
    loop {
        let request = GetRegionRequest { region_key: key.into(), ..Default::default() };
        let found = PdClient::new(channel.clone()).get_region(request).await;
        if let Ok(found) = found.map(tonic::Response::into_inner)
            && let (Some(region), Some(leader)) = (found.region, found.leader)
        {
            let (region_id, region_epoch) = (region.id, region.region_epoch);
            return Context { region_id, region_epoch, peer: Some(leader), ..Context::default() };
        }
        assert!(began.elapsed() < LIMIT);
        sleep(PAUSE).await;
    }
}

async fn put(channel: &Channel, key: &'static str) {
    put_at(std::slice::from_ref(channel), key).await;
}

/// Puts a key with its name as value at its leader, also while that moves. Each store is alone on a node, in
/// the order of their numbers.
async fn put_at(channels: &[Channel], key: &'static str) {
    let began = Instant::now();
    loop {
        let context = context(&channels[0], key).await;
        let leader = context.peer.as_ref().unwrap().store_id as usize;
        let at = channels[leader - 1].clone();
        let context = Some(context);
        let request =
            RawPutRequest { context, key: key.into(), value: key.into(), ..Default::default() };
        match TikvClient::new(at).raw_put(request).await.map(|it| it.into_inner()) {
            Ok(answer) if answer == RawPutResponse::default() => return,
            other => assert!(began.elapsed() < LIMIT, "{other:?}"),
        }
        sleep(PAUSE).await;
    }
}

/// Reader of one region's log.
struct Reader {
    stream: Streaming<FollowResponse>,
    next: u64,
}

impl Reader {
    async fn of(channel: &Channel, region_id: u64, next: u64) -> Self {
        Self::of_keys(channel, region_id, next, ("", "")).await
    }

    async fn of_keys(
        channel: &Channel,
        region_id: u64,
        next_index: u64,
        (start, end): (&'static str, &'static str),
    ) -> Self {
        let context = Some(Context { region_id, ..Context::default() });
        let (start_key, end_key) = (start.into(), end.into());
        let request = FollowRequest { context, next_index, start_key, end_key, old_values: false };
        let stream = KvClient::new(channel.clone()).follow(request).await.unwrap().into_inner();
        Self { stream, next: next_index }
    }

    async fn from_now(channel: &Channel, region_id: u64) -> Self {
        let mut reader = Self::of(channel, region_id, 0).await;
        let first = reader.response().await;
        assert!(first.region.is_some(), "{first:?}");
        reader.next = first.next_index;
        reader
    }

    async fn response(&mut self) -> FollowResponse {
        let response = timeout(LIMIT, self.stream.message()).await.unwrap();
        response.unwrap().expect("a response ends the stream before it ends")
    }

    /// Returns the entries up to the first one that is accepted by `is_last`.
    async fn until(&mut self, is_last: impl Fn(&FollowedEntry) -> bool) -> Vec<FollowedEntry> {
        let mut all = Vec::new();
        loop {
            let response = self.response().await;
            let failed = response.region_error.is_some() || response.too_old;
            assert!(!failed, "{response:?} after {all:?}");
            for entry in &response.entries {
                assert!(entry.index >= self.next && entry.index < response.next_index);
                self.next = entry.index + 1;
            }
            assert!(response.next_index >= self.next);
            self.next = response.next_index;
            let ends = response.entries.iter().any(&is_last);
            all.extend(response.entries);
            if ends {
                return all;
            }
        }
    }

    /// Returns the keys that were put, up to the put of `last`.
    async fn puts_until(&mut self, last: &'static str) -> Vec<String> {
        let has_last = |entry: &FollowedEntry| entry.writes.iter().any(|write| write.key == last);
        let entries = self.until(has_last).await;
        let writes = entries.into_iter().flat_map(|entry| entry.writes);
        writes.map(|write| String::from_utf8(write.key.to_vec()).unwrap()).collect()
    }

    /// Returns the entries up to one with a change.
    async fn change(&mut self) -> (Vec<FollowedEntry>, Change) {
        let mut entries = self.until(|entry| entry.change.is_some()).await;
        let at = entries.iter().position(|entry| entry.change.is_some()).unwrap();
        let change = entries[at].change.clone().unwrap();
        assert!(entries[at].writes.is_empty() && change.region.is_some());
        entries.truncate(at);
        (entries, change.kind.unwrap())
    }

    /// Returns the last response, which ends the stream.
    async fn end(&mut self) -> FollowResponse {
        loop {
            let response = self.response().await;
            if response.next_index == 0 {
                let rest = timeout(LIMIT, self.stream.message()).await.unwrap();
                assert_eq!(rest.unwrap(), None, "{response:?} is the last one");
                return response;
            }
        }
    }
}

async fn one(dir: &tempfile::TempDir) -> (Node, Channel) {
    let node = start(config(&[dir.path().join("a")], &[])).await;
    let channel = channel(&node.ready.address);
    (node, channel)
}

fn writes_of(entries: Vec<FollowedEntry>) -> Vec<(String, Bytes, Kind)> {
    let writes = entries.into_iter().flat_map(|entry| entry.writes);
    writes.map(|write| (write.cf, write.key, write.kind.unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_are_followed_from_now_on_in_order_within_the_keys_of_the_request() {
    let dir = tempfile::tempdir().unwrap();
    let (node, channel) = one(&dir).await;
    put(&channel, "before").await;
    let here = context(&channel, "k").await;
    let mut all = Reader::of(&channel, here.region_id, 0).await;
    let mut part = Reader::of_keys(&channel, here.region_id, 0, ("d", "m")).await;
    let first = all.response().await;
    assert!(first.entries.is_empty() && first.next_index > 6, "{first:?}");
    let region = first.region.unwrap();
    assert_eq!((region.id, region.start_key, region.end_key), (2, Bytes::new(), Bytes::new()));
    all.next = first.next_index;
    assert!(part.response().await.region.is_some());

    let mut tikv = TikvClient::new(channel.clone());
    let expiring = RawPutRequest {
        context: Some(here.clone()),
        key: "e".into(),
        value: "1".into(),
        cf: "lock".to_owned(),
        ttl: 1000,
        ..Default::default()
    };
    tikv.raw_put(expiring).await.unwrap();
    put(&channel, "z").await;
    let delete =
        RawDeleteRequest { context: Some(here.clone()), key: "f".into(), ..Default::default() };
    tikv.raw_delete(delete).await.unwrap();
    let range = RawDeleteRangeRequest {
        context: Some(here.clone()),
        start_key: "a".into(),
        end_key: "g".into(),
        ..Default::default()
    };
    tikv.raw_delete_range(range).await.unwrap();
    put(&channel, "last").await;

    let is_last = |entry: &FollowedEntry| entry.writes.iter().any(|write| write.key == "last");
    let all = all.until(is_last).await;
    let part = part.until(is_last).await;
    let value = |key: &'static str| Kind::Put(FollowedPut { value: key.into(), expires_at_s: 0 });
    let (all, part) = (writes_of(all), writes_of(part));
    let expires = match &all[0].2 {
        Kind::Put(FollowedPut { value, expires_at_s }) if value == "1" => *expires_at_s,
        other => panic!("{other:?}"),
    };
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    assert!((now + 900..=now + 1000).contains(&expires), "{expires} is absolute");
    let write = |cf: &str, key: &'static str, kind| (cf.to_owned(), Bytes::from(key), kind);
    let lock = Kind::Put(FollowedPut { value: "1".into(), expires_at_s: expires });
    let expected = [
        write("lock", "e", lock.clone()),
        write("", "z", value("z")),
        write("", "f", Kind::Delete(true)),
        write("", "a", Kind::DeleteRangeTo("g".into())),
        write("", "last", value("last")),
    ];
    assert_eq!(all, expected);
    let expected = [
        write("lock", "e", lock),
        write("", "f", Kind::Delete(true)),
        write("", "d", Kind::DeleteRangeTo("g".into())),
        write("", "last", value("last")),
    ];
    assert_eq!(part, expected, "a range is cut to the keys, and other keys are left out");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_region_is_followed_through_a_split_a_merge_and_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (node, channel) = one(&dir).await;
    put(&channel, "a").await;
    let parent = context(&channel, "a").await.region_id;
    let mut reader = Reader::of(&channel, parent, 6).await;
    let mut control = ControlClient::new(channel.clone());
    let split = SplitRequest { region_id: parent, keys: vec!["m".into()], header: None };
    control.split(split).await.unwrap();
    let (before, change) = reader.change().await;
    assert!(before.iter().any(|entry| entry.writes[0].key == "a"));
    let Change::Split(split) = change else { panic!("{change:?}") };
    let [child] = &split.children[..] else { panic!("{split:?}") };
    assert_eq!((&child.start_key[..], &child.end_key[..]), (&b"m"[..], &b""[..]));
    let child = child.id;
    // The child's log is kept from before its reader comes.
    let mut of_child = Reader::of(&channel, child, 6).await;
    put(&channel, "t").await;
    put(&channel, "b").await;
    assert_eq!(of_child.puts_until("t").await, ["t"]);
    assert_eq!(reader.puts_until("b").await, ["b"]);

    let began = Instant::now();
    let merge = MergeRequest { source_region: child, target_region: parent, header: None };
    while let Err(status) = control.merge(merge).await {
        assert!(began.elapsed() < LIMIT, "{status:?}");
        sleep(PAUSE).await;
    }
    let (rest, change) = of_child.change().await;
    assert!(rest.is_empty(), "{rest:?}");
    let Change::Prepared(prepared) = change else { panic!("{change:?}") };
    assert_eq!(prepared.target, parent);
    let prepared_index = of_child.next - 1;
    let (rest, change) = reader.change().await;
    assert!(rest.is_empty(), "{rest:?}");
    let Change::Merged(merged) = change else { panic!("{change:?}") };
    assert_eq!((merged.source, merged.prepared_index), (child, prepared_index));
    put(&channel, "u").await;
    assert_eq!(reader.puts_until("u").await, ["u"]);
    let next = reader.next;
    // The source's log is over: its reader has all that counts, and one that comes later too.
    assert!(of_child.end().await.too_old);
    let mut late = Reader::of(&channel, child, 6).await;
    let (entries, change) = late.change().await;
    assert_eq!(entries.iter().flat_map(|entry| &entry.writes).count(), 1, "{entries:?}");
    assert!(matches!(change, Change::Prepared(_)), "{change:?}");

    node.stop().await;
    assert!(reader.end().await.region_error.unwrap().not_leader.is_some());
    let (node, channel) = one(&dir).await;
    put(&channel, "v").await;
    let mut reader = Reader::of(&channel, parent, next).await;
    assert_eq!(reader.puts_until("v").await, ["v"]);
    let mut late = Reader::of(&channel, child, 6).await;
    assert!(matches!(late.change().await.1, Change::Prepared(_)), "after a restart too");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_keeps_the_instant_at_which_a_pair_expires() {
    let dir = tempfile::tempdir().unwrap();
    let (node, channel) = one(&dir).await;
    let here = context(&channel, "k").await;
    let mut reader = Reader::of(&channel, here.region_id, 0).await;
    reader.next = reader.response().await.next_index;
    let put = |expires_at_s| Some(FollowedPut { value: "1".into(), expires_at_s });
    let writes = [("a", put(4_000_000_000)), ("b", put(0)), ("c", None)];
    let writes = writes.map(|(key, put)| KeyWrite { key: key.into(), put });
    let cf = "write".to_owned();
    let request = WriteRequest { context: Some(here), cf: cf.clone(), writes: writes.into() };
    let answer = KvClient::new(channel).write(request).await.unwrap().into_inner();
    assert_eq!(answer, WriteResponse::default());
    let written = writes_of(reader.until(|entry| !entry.writes.is_empty()).await);
    let put = |expires_at_s| Kind::Put(FollowedPut { value: "1".into(), expires_at_s });
    let expected = [("a", put(4_000_000_000)), ("b", put(0)), ("c", Kind::Delete(true))];
    assert_eq!(written, expected.map(|(key, kind)| (cf.clone(), Bytes::from(key), kind)));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_is_gone_is_too_old_and_an_unknown_region_is_not_found() {
    let dir = tempfile::tempdir().unwrap();
    let (node, channel) = one(&dir).await;
    put(&channel, "a").await;
    // The log of a region begins with entry 6.
    let mut reader = Reader::of(&channel, context(&channel, "a").await.region_id, 3).await;
    let end = reader.end().await;
    assert!(end.too_old && end.region_error.is_none(), "{end:?}");
    for next in [0, 6] {
        let end = Reader::of(&channel, 77, next).await.end().await;
        assert_eq!(end.region_error.unwrap().region_not_found.unwrap().region_id, 77);
        assert!(!end.too_old);
    }
    let metrics = get(&node.ready.address, "/metrics").await.1;
    assert!(metrics.contains("\nstele_follow_streams_too_old_total 1\n"), "{metrics}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_index_covers_every_write_that_was_acknowledged_before() {
    let dir = tempfile::tempdir().unwrap();
    let (node, channel) = one(&dir).await;
    put(&channel, "a").await;
    let here = context(&channel, "a").await;
    let mut reader = Reader::from_now(&channel, here.region_id).await;
    let mut kv = KvClient::new(channel.clone());
    for key in ["b", "c", "d"] {
        put(&channel, key).await;
        let request = ReadIndexRequest { context: Some(here.clone()) };
        let answer = kv.read_index(request).await.unwrap().into_inner();
        assert_eq!(answer.region_error, None);
        let entries = reader.until(|entry| entry.writes.iter().any(|it| it.key == key)).await;
        let index = entries.last().unwrap().index;
        assert!(answer.index >= index, "{} of {index}", answer.index);
        // The reader comes to it without a further write.
        while reader.next <= answer.index {
            reader.next = reader.response().await.next_index;
        }
    }
    let other = Context { region_epoch: None, ..here };
    let answer = kv.read_index(ReadIndexRequest { context: Some(other) }).await.unwrap();
    assert!(answer.into_inner().region_error.unwrap().epoch_not_match.is_some());
    node.stop().await;
}

/// Starts three nodes, each with a replica of each region.
async fn three(dir: &tempfile::TempDir) -> Vec<Node> {
    let dirs: Vec<PathBuf> = ["a", "b", "c"].map(|name| dir.path().join(name)).into();
    let mut nodes = vec![start(config(&dirs[..1], &[])).await];
    let join = [nodes[0].ready.address.clone()];
    for dir in &dirs[1..] {
        nodes.push(start(config(std::slice::from_ref(dir), &join)).await);
    }
    until_voters(&join[0], 3).await;
    nodes
}

#[tokio::test(flavor = "multi_thread")]
async fn any_replica_is_followed_through_transfers_and_a_reader_goes_on_at_another_node() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = three(&dir).await;
    let channels: Vec<Channel> = nodes.iter().map(|node| channel(&node.ready.address)).collect();
    let region = context(&channels[0], "k").await.region_id;
    let mut readers = Vec::new();
    for channel in &channels {
        // Two began with a snapshot, and have no entries before it.
        readers.push(Reader::from_now(channel, region).await);
    }
    let mut control = ControlClient::new(channels[0].clone());
    for (at, key) in ["k1", "k2", "k3"].into_iter().enumerate() {
        let to_store = nodes[at].ready.stores[0].0;
        let began = Instant::now();
        let request = TransferRequest { region_id: region, to_store, header: None };
        while context(&channels[0], "k").await.peer.unwrap().store_id != to_store {
            // It may be under way.
            let _ = control.transfer(request).await;
            assert!(began.elapsed() < LIMIT);
            sleep(PAUSE).await;
        }
        put_at(&channels, key).await;
        for reader in &mut readers {
            assert_eq!(reader.puts_until(key).await.last().unwrap(), key);
        }
    }
    for node in &nodes {
        let metrics = get(&node.ready.address, "/metrics").await.1;
        assert!(metrics.contains("\nstele_follow_streams 1\n"), "{metrics}");
    }
    // The reader of a node that stops goes on at another one.
    let next = readers[2].next;
    nodes.pop().unwrap().stop().await;
    let end = readers[2].end().await;
    assert!(end.region_error.unwrap().not_leader.is_some());
    let began = Instant::now();
    while context(&channels[0], "k").await.peer.unwrap().store_id == 3 {
        assert!(began.elapsed() < LIMIT);
        sleep(PAUSE).await;
    }
    let mut reader = Reader::of(&channels[1], region, next).await;
    put_at(&channels, "k4").await;
    assert_eq!(reader.puts_until("k4").await, ["k4"]);
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_is_taken_back_ends_a_stream() {
    let certificates = Certificates::new();
    certificates.node("prod", "n1");
    ["root", "app"].iter().for_each(|name| certificates.client(name));
    let dir = tempfile::tempdir().unwrap();
    let stores = vec![dir.path().join("a")];
    let node = start(certificates.configured("n1", Config { stores, ..config(&[], &[]) })).await;
    let of = |name: &str| certificates.channel(name, &node.ready.address);
    let channel = of("app");
    let region = context(&channel, "k").await.region_id;
    let mut control = ControlClient::new(of("root"));
    let mut grant = async |prefixes: &[&'static str]| {
        let prefixes = prefixes.iter().map(|prefix| Bytes::from(*prefix)).collect();
        let grant = AccessGrant {
            name: "app".to_owned(),
            permissions: 3,
            prefixes,
            ..AccessGrant::default()
        };
        let began = Instant::now();
        loop {
            let request = AccessGrantRequest { grant: Some(grant.clone()), header: None };
            match control.access_grant(request).await {
                Ok(_) => return,
                Err(status) => assert!(began.elapsed() < LIMIT, "{status:?}"),
            }
            sleep(PAUSE).await;
        }
    };
    grant(&["k"]).await;
    // Until the grant is in force, all keys may be followed.
    let began = Instant::now();
    let request = |start: &'static str, end: &'static str| FollowRequest {
        context: Some(Context { region_id: region, ..Context::default() }),
        next_index: 6,
        start_key: start.into(),
        end_key: end.into(),
        old_values: false,
    };
    let refused = loop {
        match KvClient::new(channel.clone()).follow(request("a", "l")).await {
            Err(status) => break status,
            Ok(_) => assert!(began.elapsed() < LIMIT, "the grant is not in force"),
        }
        sleep(PAUSE).await;
    };
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
    put(&channel, "k1").await;
    let mut reader = Reader::of_keys(&channel, region, 6, ("k", "l")).await;
    assert_eq!(reader.puts_until("k1").await, ["k1"]);
    grant(&["x"]).await;
    let began = Instant::now();
    let ended = loop {
        match timeout(LIMIT, reader.stream.message()).await.unwrap() {
            Ok(Some(response)) => assert!(response.entries.is_empty(), "{response:?}"),
            Ok(None) => panic!("the stream ends without a reason"),
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), Code::PermissionDenied, "{ended:?}");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    node.stop().await;
}

/// Puts so many values of so many bytes; returns the number of each key.
async fn put_values(channel: &Channel, count: u32, bytes: usize) -> BTreeMap<Bytes, u32> {
    let here = context(channel, "k").await;
    let value = Bytes::from(vec![7; bytes]);
    let mut written = BTreeMap::new();
    let mut tikv = TikvClient::new(channel.clone());
    for number in 0..count {
        let key = Bytes::from(format!("k{number:03}"));
        let (context, value) = (Some(here.clone()), value.clone());
        let request = RawPutRequest { context, key: key.clone(), value, ..Default::default() };
        assert_eq!(tikv.raw_put(request).await.unwrap().into_inner(), RawPutResponse::default());
        written.insert(key, number);
    }
    written
}

/// Reads the values that [`put_values`] put, in order.
async fn read_values(reader: &mut Reader, written: &BTreeMap<Bytes, u32>) {
    let mut got = 0;
    while got < written.len() as u32 {
        for entry in reader.response().await.entries {
            for write in entry.writes.iter().filter(|write| write.key.starts_with(b"k")) {
                assert_eq!(written.get(&write.key), Some(&got), "in order");
                got += 1;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_takes_nothing_holds_one_response_and_gets_everything_later() {
    let dir = tempfile::tempdir().unwrap();
    let (node, channel) = one(&dir).await;
    let here = context(&channel, "a").await;
    let mut reader = Reader::from_now(&channel, here.region_id).await;
    let written = put_values(&channel, 400, 64 << 10).await;
    let used = |metrics: &str| -> f64 {
        let name = "stele_request_memory_bytes{use=\"requests\"} ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{metrics}")).parse().unwrap()
    };
    let metrics = get(&node.ready.address, "/metrics").await.1;
    assert!(used(&metrics) < f64::from(8 << 20), "{metrics}");
    read_values(&mut reader, &written).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn segments_stay_for_a_slow_reader_and_no_longer() {
    let dir = tempfile::tempdir().unwrap();
    let (node, channel) = one(&dir).await;
    // A segment has 128 MiB.
    let written = put_values(&channel, 150, 1 << 20).await;
    let address = node.ready.address.clone();
    let is_pinned = |metrics: &str| {
        let name = "stele_follow_pinned_bytes{store=\"1\"} ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{metrics}")).parse::<f64>().unwrap() > 1e8
    };
    until(&address, "/metrics", |_, metrics| !is_pinned(metrics)).await;
    let mut reader = Reader::of(&channel, context(&channel, "k").await.region_id, 6).await;
    until(&address, "/metrics", |_, metrics| is_pinned(metrics)).await;
    read_values(&mut reader, &written).await;
    until(&address, "/metrics", |_, metrics| !is_pinned(metrics)).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_values_come_with_the_writes_that_are_applied_after_the_reader_came() {
    let dir = tempfile::tempdir().unwrap();
    let (node, channel) = one(&dir).await;
    put(&channel, "a").await;
    let here = context(&channel, "a").await;
    let request = FollowRequest {
        context: Some(Context { region_id: here.region_id, ..Context::default() }),
        old_values: true,
        ..FollowRequest::default()
    };
    let stream = KvClient::new(channel.clone()).follow(request).await.unwrap().into_inner();
    let mut reader = Reader { stream, next: 0 };
    reader.next = reader.response().await.next_index;
    let mut tikv = TikvClient::new(channel.clone());
    let with_ttl = RawPutRequest {
        context: Some(here.clone()),
        key: "a".into(),
        value: "second".into(),
        ttl: 1,
        ..Default::default()
    };
    tikv.raw_put(with_ttl).await.unwrap();
    sleep(Duration::from_millis(2_100)).await;
    put(&channel, "a").await;
    let delete = RawDeleteRequest { context: Some(here), key: "a".into(), ..Default::default() };
    tikv.raw_delete(delete).await.unwrap();
    put(&channel, "last").await;
    let is_last = |entry: &FollowedEntry| entry.writes.iter().any(|write| write.key == "last");
    let entries = reader.until(is_last).await;
    let old = entries.into_iter().flat_map(|entry| entry.writes).map(|write| write.old);
    let old: Vec<Option<Bytes>> = old.map(|old| old.expect("it is known").value).collect();
    let some = |value: &'static str| Some(Bytes::from(value));
    // The second value had expired when the third was written.
    assert_eq!(old, [some("a"), None, some("a"), None]);
    node.stop().await;
}
