//! Requests to a node with little memory: what needs more than its share is refused as a whole and in
//! terms that clients return to their callers, and all memory comes back.

use crate::common::{LIMIT, config, get, start, until};
use bytes::Bytes;
use std::time::{Duration, Instant};
use stele_proto::errorpb;
use stele_proto::kvrpcpb::{
    Context, KeyRange, RawBatchGetRequest, RawBatchPutRequest, RawBatchScanRequest, RawCasRequest,
    RawGetRequest, RawPutRequest, RawScanRequest,
};
use stele_proto::pdpb::GetRegionRequest;
use stele_proto::pdpb::pd_client::PdClient;
use stele_proto::stele::control::v1::MembersRequest;
use stele_proto::stele::control::v1::control_client::ControlClient;
use stele_proto::tikvpb::BatchCommandsRequest;
use stele_proto::tikvpb::batch_commands_request::{Request, request::Cmd};
use stele_proto::tikvpb::batch_commands_response::response::Cmd as Done;
use stele_proto::tikvpb::tikv_client::TikvClient;
use stele_server::config::Config;
use stele_server::node::Node;
use tokio::task::JoinSet;
use tonic::codec::CompressionEncoding;
use tonic::transport::Channel;

const VALUE_BYTES: usize = 1 << 20;

/// A node of 16 MiB for requests: one of them uses 9 MiB at most. It holds 20 pairs of 1 MiB.
struct Small {
    node: Node,
    channel: Channel,
    context: Option<Context>,
    _dir: tempfile::TempDir,
}

fn key(n: usize) -> Bytes {
    Bytes::from(format!("key{n:02}"))
}

impl Small {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = config(&[dir.path().join("a")], &[]);
        let node = start(Config { request_memory_bytes_max: 16 << 20, ..config }).await;
        until(&node.ready.address, "/readyz", |status, _| status == 200).await;
        let channel = Channel::from_shared(format!("http://{}", node.ready.address)).unwrap();
        let channel = channel.connect().await.unwrap();
        let context = Some(context(&channel).await);
        let small = Self { node, channel, context, _dir: dir };
        for n in 0..20 {
            let value = Bytes::from(vec![n as u8; VALUE_BYTES]);
            let put = RawPutRequest { key: key(n), value, ..small.put() };
            let answer = small.tikv().raw_put(put).await.unwrap().into_inner();
            assert!(answer.region_error.is_none() && answer.error.is_empty(), "{answer:?}");
        }
        small
    }

    fn tikv(&self) -> TikvClient<Channel> {
        TikvClient::new(self.channel.clone()).max_decoding_message_size(64 << 20)
    }

    fn put(&self) -> RawPutRequest {
        RawPutRequest { context: self.context.clone(), ..Default::default() }
    }

    fn scan(&self, limit: u32) -> RawScanRequest {
        RawScanRequest { context: self.context.clone(), limit, ..Default::default() }
    }

    fn batch_get(&self, times: usize) -> RawBatchGetRequest {
        let context = self.context.clone();
        RawBatchGetRequest { context, keys: vec![key(3); times], ..Default::default() }
    }

    /// Returns the memory of requests in bytes, from the metrics.
    async fn used(&self) -> u64 {
        let (_, text) = get(&self.node.ready.address, "/metrics").await;
        let name = "stele_request_memory_bytes{use=\"requests\"} ";
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().parse().unwrap()
    }

    /// Waits until only the request for the metrics uses memory.
    async fn wait_released(&self) {
        let started = Instant::now();
        loop {
            let used = self.used().await;
            if used < 64 << 10 {
                return;
            }
            assert!(started.elapsed() < LIMIT, "{used} bytes are in use");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn context(channel: &Channel) -> Context {
    loop {
        let request = GetRegionRequest { region_key: key(0), ..Default::default() };
        let found = PdClient::new(channel.clone()).get_region(request).await;
        if let Ok(found) = found.map(tonic::Response::into_inner)
            && let (Some(region), Some(leader)) = (found.region, found.leader)
        {
            let (region_id, region_epoch) = (region.id, region.region_epoch);
            let peer = Some(leader);
            return Context { region_id, region_epoch, peer, ..Context::default() };
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn is_too_large(error: &Option<errorpb::Error>) -> bool {
    let error = error.as_ref().unwrap();
    assert!(error.message.contains("request_memory_bytes_max"), "{error:?}");
    error.raft_entry_too_large.is_some_and(|large| large.entry_size > 9 << 20)
}

fn is_busy(error: &errorpb::Error) -> bool {
    error.server_is_busy.is_some()
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_above_their_share_are_refused_by_a_region_error_and_never_cut() {
    let small = Small::start().await;
    let found = small.tikv().raw_batch_get(small.batch_get(5)).await.unwrap().into_inner();
    assert!(found.region_error.is_none() && found.pairs.len() == 5);
    let refused = small.tikv().raw_batch_get(small.batch_get(40)).await.unwrap().into_inner();
    assert!(is_too_large(&refused.region_error) && refused.pairs.is_empty());
    let found = small.tikv().raw_scan(small.scan(2)).await.unwrap().into_inner();
    assert!(found.region_error.is_none() && found.kvs.len() == 2);
    let refused = small.tikv().raw_scan(small.scan(20)).await.unwrap().into_inner();
    assert!(is_too_large(&refused.region_error) && refused.kvs.is_empty());
    let ranges = [0, 10].map(|n| KeyRange { start_key: key(n), ..Default::default() });
    let (context, ranges) = (small.context.clone(), ranges.to_vec());
    let scan = RawBatchScanRequest { context, ranges, each_limit: 10, ..Default::default() };
    let refused = small.tikv().raw_batch_scan(scan).await.unwrap().into_inner();
    assert!(is_too_large(&refused.region_error) && refused.kvs.is_empty());
    let keys_only = RawScanRequest { key_only: true, ..small.scan(100) };
    let found = small.tikv().raw_scan(keys_only).await.unwrap().into_inner();
    assert!(found.region_error.is_none() && found.kvs.len() == 20);
    drop((refused, found));
    small.wait_released().await;
    small.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_that_fails_says_so_by_a_region_error_and_not_in_the_place_of_a_pair() {
    let small = Small::start().await;
    let scan = RawScanRequest { cf: "none".to_owned(), ..small.scan(5) };
    let failed = small.tikv().raw_scan(scan).await.unwrap().into_inner();
    assert!(failed.kvs.is_empty());
    let error = failed.region_error.unwrap();
    assert!(error.message.contains("column family"), "{error:?}");
    assert!(error.raft_entry_too_large.is_some(), "which clients return at once: {error:?}");
    small.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_without_memory_is_refused_alone() {
    let small = Small::start().await;
    let context = small.context.clone();
    let get = RawGetRequest { context, key: key(1), ..Default::default() };
    let commands = [Cmd::RawBatchGet(small.batch_get(40)), Cmd::RawGet(get)];
    let batch = BatchCommandsRequest {
        request_ids: vec![1, 2],
        requests: commands.map(|cmd| Request { cmd: Some(cmd) }).to_vec(),
        ..Default::default()
    };
    let messages = tokio_stream::iter([batch]);
    let mut answers = small.tikv().batch_commands(messages).await.unwrap().into_inner();
    let mut seen = 0;
    while seen < 2 {
        for response in answers.message().await.unwrap().unwrap().responses {
            seen += 1;
            match response.cmd.unwrap() {
                Done::RawBatchGet(refused) => assert!(is_too_large(&refused.region_error)),
                Done::RawGet(found) => assert_eq!(found.value.len(), VALUE_BYTES),
                other => panic!("{other:?}"),
            }
        }
    }
    drop(answers);
    small.wait_released().await;
    small.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gets_of_one_message_above_its_share_are_read_and_refused_each_by_itself() {
    let small = Small::start().await;
    let get =
        |n| RawGetRequest { context: small.context.clone(), key: key(n), ..Default::default() };
    for _ in 0..3 {
        let batch = BatchCommandsRequest {
            request_ids: (0..20).collect(),
            requests: (0..20).map(|n| Request { cmd: Some(Cmd::RawGet(get(n))) }).collect(),
            ..Default::default()
        };
        let messages = tokio_stream::iter([batch]);
        let mut answers = small.tikv().batch_commands(messages).await.unwrap().into_inner();
        let (mut found, mut refused) = (0, 0);
        while found + refused < 20 {
            let message = answers.message().await.unwrap().unwrap();
            for (id, response) in message.request_ids.into_iter().zip(message.responses) {
                let Some(Done::RawGet(get)) = response.cmd else { panic!("{response:?}") };
                match get.region_error {
                    Some(error) => assert!(is_busy(&error), "{error:?}"),
                    None => assert_eq!(get.value, vec![id as u8; VALUE_BYTES]),
                }
                let count = if get.value.is_empty() { &mut refused } else { &mut found };
                *count += 1;
            }
        }
        assert!(found >= 3, "{found} were read, {refused} refused");
        drop(answers);
        small.wait_released().await;
    }
    small.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_above_their_share_are_refused_also_when_they_are_compressed() {
    let small = Small::start().await;
    for (value_bytes, is_packed) in [(5 << 20, false), (12 << 20, false), (40 << 20, true)] {
        let value = Bytes::from(vec![7; value_bytes]);
        let put = RawPutRequest { key: Bytes::from("large"), value, ..small.put() };
        let mut client = small.tikv();
        if is_packed {
            client = client.send_compressed(CompressionEncoding::Gzip);
        }
        let answer = client.raw_put(put).await.unwrap().into_inner();
        assert!(is_too_large(&answer.region_error), "{value_bytes} bytes: {answer:?}");
    }
    let pair = |n| stele_proto::kvrpcpb::KvPair {
        key: key(n),
        value: vec![7; VALUE_BYTES].into(),
        ..Default::default()
    };
    let (context, pairs) = (small.context.clone(), (0..6).map(pair).collect());
    let puts = RawBatchPutRequest { context, pairs, ..Default::default() };
    let answer = small.tikv().raw_batch_put(puts).await.unwrap().into_inner();
    assert!(is_too_large(&answer.region_error), "{answer:?}");
    let read = RawGetRequest { context: small.context.clone(), key: key(5), ..Default::default() };
    let read = small.tikv().raw_get(read).await.unwrap().into_inner();
    assert_eq!(read.value, vec![5; VALUE_BYTES], "nothing of it was executed");
    drop(read);
    small.wait_released().await;
    small.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_failing_comparisons_share_the_memory_and_each_answer_is_whole() {
    let small = Small::start().await;
    let mut calls = JoinSet::new();
    for n in 0..60 {
        let mut client = small.tikv();
        let swap = RawCasRequest {
            context: small.context.clone(),
            key: key(n % 20),
            value: Bytes::from("new"),
            previous_value: Bytes::from("another value"),
            ..Default::default()
        };
        calls.spawn(async move { (n, client.raw_compare_and_swap(swap).await) });
    }
    let (mut failed, mut busy) = (0, 0);
    while let Some(done) = calls.join_next().await {
        let (n, answer) = done.unwrap();
        let answer = answer.unwrap().into_inner();
        match answer.region_error {
            Some(error) if is_busy(&error) => busy += 1,
            Some(error) => panic!("{error:?}"),
            None => {
                failed += 1;
                assert!(!answer.succeed && answer.error.is_empty(), "{}", answer.error);
                assert_eq!(answer.previous_value, vec![(n % 20) as u8; VALUE_BYTES]);
            }
        }
    }
    assert!(failed > 0, "{busy} of 60 were refused as busy");
    small.wait_released().await;
    small.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_not_read_use_up_the_memory_of_data_and_not_that_of_control() {
    let small = Small::start().await;
    // Windows so small that the answers stay at the node.
    let slow = Channel::from_shared(format!("http://{}", small.node.ready.address)).unwrap();
    let slow = slow.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
    let slow = slow.connect().await.unwrap();
    let path = tonic::codegen::http::uri::PathAndQuery::from_static("/tikvpb.Tikv/RawGet");
    let mut unread = Vec::new();
    for n in 0..20 {
        let request =
            RawGetRequest { context: small.context.clone(), key: key(n), ..Default::default() };
        let mut client = tonic::client::Grpc::new(slow.clone());
        client.ready().await.unwrap();
        let codec =
            stele_proto::SizedCodec::<RawGetRequest, stele_proto::kvrpcpb::RawGetResponse>::default(
            );
        let request = tonic::Request::new(request);
        unread.push(client.server_streaming(request, path.clone(), codec).await.unwrap());
    }
    let started = Instant::now();
    while small.used().await < 8 << 20 {
        assert!(started.elapsed() < LIMIT);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(small.used().await <= 11 << 20, "20 MiB were requested");
    let found = small.tikv().raw_batch_get(small.batch_get(4)).await.unwrap().into_inner();
    assert!(is_busy(&found.region_error.unwrap()));
    let mut control = ControlClient::new(small.channel.clone());
    let members = control.members(MembersRequest::default());
    assert_eq!(members.await.unwrap().into_inner().members.len(), 1);
    drop((unread, slow));
    small.wait_released().await;
    let found = small.tikv().raw_batch_get(small.batch_get(4)).await.unwrap().into_inner();
    assert_eq!(found.pairs.len(), 4);
    small.node.stop().await;
}
