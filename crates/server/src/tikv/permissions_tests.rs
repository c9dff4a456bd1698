//! Every call of keys, for callers with and without the right.

use super::errors::Failure;
use super::{TikvService, denial};
use crate::access::{LiveRules, Principal, Rights, Rules};
use crate::memory::{Accounted, Class, ConnectionMemory, NodeMemory, RequestMemory};
use crate::observe::{Metrics, SlowLog};
use crate::port::PortOptions;
use crate::redis::ScanCursors;
use crate::stores::Stores;
use axum::body::{Body, HttpBody};
use axum::http::Request;
use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_placement::{Grant, GrantLimits, Grants, Permissions};
use stele_proto::Method;
use stele_proto::kvrpcpb::*;
use stele_proto::stele::kv::v1::{
    CopyRequest, ExistRequest, FollowRequest, GetPairRequest, KeyWrite, ModifyInSessionRequest,
    ModifyRequest, NumberedPut, PutInSessionRequest, ReadIndexRequest, WriteIfRequest,
    WriteRequest,
};
use stele_proto::tikvpb::BatchCommandsRequest;
use stele_proto::tikvpb::batch_commands_request::Request as Command;
use stele_proto::tikvpb::batch_commands_request::request::Cmd;
use stele_tls::{ClientName, ClusterName, Identity, NodeName};
use stele_types::ClusterId;
use tower::Service;

const READ: Permissions = Permissions::READ;
const WRITE: Permissions = Permissions::WRITE;
const BOTH: Permissions = Permissions::READ_WRITE;
const SCAN: &str = "/tikvpb.Tikv/RawScan";
const BATCH: &str = "/tikvpb.Tikv/BatchCommands";
const READ_INDEX: &str = "/stele.kv.v1.Kv/ReadIndex";
const MODIFY_IN_SESSION: &str = "/stele.kv.v1.Kv/ModifyInSession";
const PUT_IN_SESSION: &str = "/stele.kv.v1.Kv/PutInSession";

fn service() -> TikvService {
    let (_, stop) = tokio::sync::watch::channel(false);
    let metrics = Arc::new(Metrics::new(SlowLog::new(0)));
    let cursors = Arc::new(ScanCursors::new(1));
    TikvService::new(Arc::new(Stores::new(1)), ClusterId(1), metrics, cursors, stop)
}

fn rules(permissions: Permissions) -> Arc<LiveRules> {
    let name = "app".to_owned();
    let prefixes = vec![Bytes::from_static(b"a/")];
    let grant = Grant { name: name.clone(), permissions, prefixes, ..Grant::default() };
    let grants = Arc::new(Grants { version: 1, by_name: BTreeMap::from([(name, grant)]) });
    let cluster = ClusterName::new("prod").unwrap();
    Arc::new(LiveRules::new(Rules { cluster, administrators: BTreeSet::new(), grants }))
}

fn rights(rules: &Arc<LiveRules>) -> Rights {
    let name = ClientName::new("app").unwrap();
    Rights::new(Principal::Known(Identity::Client(name)), rules.clone())
}

/// Returns all that the answer to a call holds, as text.
async fn answer(rights: &Rights, path: &str, message: &[u8]) -> String {
    answer_within(&NodeMemory::new(64 << 20), rights, path, message).await
}

async fn answer_within(
    node: &Arc<NodeMemory>,
    rights: &Rights,
    path: &str,
    message: &[u8],
) -> String {
    let memory = ConnectionMemory::new(node, 1 << 16);
    let (routes, limits) = (service().routes(), PortOptions::default().body);
    let mut layer = Accounted::new(routes, memory, limits, rights.clone());
    let mut body = BytesMut::new();
    body.put_u8(0);
    body.put_u32(message.len() as u32);
    body.put_slice(message);
    let request = Request::post(path).header("content-type", "application/grpc");
    let request = request.body(Body::from(body.freeze())).unwrap();
    let response = layer.call(request).await.unwrap();
    let mut text = format!("{:?}", response.headers());
    let mut body = response.into_body();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.ok().unwrap();
        match frame.into_data() {
            Ok(data) => text += &String::from_utf8_lossy(&data),
            Err(frame) => text += &format!("{:?}", frame.into_trailers().ok()),
        }
    }
    text.replace("%20", " ")
}

/// Returns whether the call was executed, and not refused.
async fn is_executed(rights: &Rights, path: &str, message: &[u8]) -> bool {
    let text = answer(rights, path, message).await;
    // A call that is executed without a context, or before its level is known, fails after the check.
    let executed = text.contains("has no context") || text.contains("requests of sessions wait");
    let refused = text.contains("lacks the right");
    assert!(executed != refused, "{path}: {text}");
    executed
}

fn range(start: &Bytes, end: &Bytes) -> KeyRange {
    KeyRange { start_key: start.clone(), end_key: end.clone() }
}

fn numbered(keys: &[Bytes]) -> Vec<NumberedPut> {
    let put = |key: &Bytes| NumberedPut { key: key.clone(), ..NumberedPut::default() };
    keys.iter().map(put).collect()
}

fn pair(key: &Bytes) -> KvPair {
    KvPair { key: key.clone(), ..KvPair::default() }
}

fn deleted(key: &Bytes) -> KeyWrite {
    KeyWrite { key: key.clone(), put: None }
}

/// All calls of a message each, with the rights that they need: of the key, or from it to the other one.
fn calls(key: &Bytes, end: &Bytes) -> Vec<(&'static str, Vec<u8>, Permissions)> {
    let key = key.clone();
    let change = Some(ModifyRequest { key: key.clone(), ..Default::default() });
    let keys = vec![Bytes::from_static(b"a/0"), key.clone()];
    let (pairs, writes) = (keys.iter().map(pair).collect(), keys.iter().map(deleted).collect());
    macro_rules! call {
        ($rights:expr, $name:expr, $request:ident { $($field:ident: $value:expr),* }) => {
            ($name, $request { $($field: $value,)* ..$request::default() }.encode_to_vec(), $rights)
        };
    }
    vec![
        call!(READ, "/tikvpb.Tikv/RawGet", RawGetRequest { key: key.clone() }),
        call!(READ, "/tikvpb.Tikv/RawBatchGet", RawBatchGetRequest { keys: keys.clone() }),
        call!(WRITE, "/tikvpb.Tikv/RawPut", RawPutRequest { key: key.clone() }),
        call!(WRITE, "/tikvpb.Tikv/RawBatchPut", RawBatchPutRequest { pairs: pairs }),
        call!(WRITE, "/tikvpb.Tikv/RawDelete", RawDeleteRequest { key: key.clone() }),
        call!(WRITE, "/tikvpb.Tikv/RawBatchDelete", RawBatchDeleteRequest { keys: keys.clone() }),
        call!(
            READ,
            SCAN,
            RawScanRequest { start_key: key.clone(), end_key: end.clone(), limit: 1 }
        ),
        call!(
            READ,
            "/tikvpb.Tikv/RawScan",
            RawScanRequest {
                start_key: end.clone(),
                end_key: key.clone(),
                reverse: true,
                limit: 1
            }
        ),
        call!(
            READ,
            "/tikvpb.Tikv/RawBatchScan",
            RawBatchScanRequest { ranges: vec![range(&key, &Bytes::new()), range(end, end)] }
        ),
        call!(
            WRITE,
            "/tikvpb.Tikv/RawDeleteRange",
            RawDeleteRangeRequest { start_key: key.clone(), end_key: end.clone() }
        ),
        call!(READ, "/tikvpb.Tikv/RawGetKeyTTL", RawGetKeyTtlRequest { key: key.clone() }),
        call!(BOTH, "/tikvpb.Tikv/RawCompareAndSwap", RawCasRequest { key: key.clone() }),
        call!(
            READ,
            "/tikvpb.Tikv/RawChecksum",
            RawChecksumRequest { ranges: vec![range(&key, end)] }
        ),
        call!(BOTH, "/stele.kv.v1.Kv/Modify", ModifyRequest { key: key.clone() }),
        call!(BOTH, MODIFY_IN_SESSION, ModifyInSessionRequest { modification: change }),
        call!(WRITE, PUT_IN_SESSION, PutInSessionRequest { puts: numbered(&keys) }),
        call!(READ, "/stele.kv.v1.Kv/Exist", ExistRequest { keys: keys.clone() }),
        call!(
            READ,
            "/stele.kv.v1.Kv/Follow",
            FollowRequest { start_key: key.clone(), end_key: end.clone() }
        ),
        call!(
            READ,
            "/stele.kv.v1.Kv/Copy",
            CopyRequest { start_key: key.clone(), end_key: end.clone() }
        ),
        call!(WRITE, "/stele.kv.v1.Kv/Write", WriteRequest { writes: writes }),
        call!(READ, READ_INDEX, ReadIndexRequest {}),
        call!(READ, "/stele.kv.v1.Kv/GetPair", GetPairRequest { key: key.clone() }),
        call!(BOTH, "/stele.kv.v1.Kv/WriteIf", WriteIfRequest { key: key.clone() }),
    ]
}

/// The same as commands of a batch, as far as there are such commands.
fn commands(key: &Bytes, end: &Bytes) -> Vec<(Cmd, Permissions)> {
    macro_rules! commands {
        ($($name:ident($request:ident) = $path:literal;)*) => {
            calls(key, end).into_iter().filter_map(|(path, message, rights)| match path {
                $($path => Some((Cmd::$name($request::decode(&message[..]).unwrap()), rights)),)*
                _ => None,
            }).collect()
        };
    }
    commands! {
        RawGet(RawGetRequest) = "/tikvpb.Tikv/RawGet";
        RawBatchGet(RawBatchGetRequest) = "/tikvpb.Tikv/RawBatchGet";
        RawPut(RawPutRequest) = "/tikvpb.Tikv/RawPut";
        RawBatchPut(RawBatchPutRequest) = "/tikvpb.Tikv/RawBatchPut";
        RawDelete(RawDeleteRequest) = "/tikvpb.Tikv/RawDelete";
        RawBatchDelete(RawBatchDeleteRequest) = "/tikvpb.Tikv/RawBatchDelete";
        RawScan(RawScanRequest) = "/tikvpb.Tikv/RawScan";
        RawBatchScan(RawBatchScanRequest) = "/tikvpb.Tikv/RawBatchScan";
        RawDeleteRange(RawDeleteRangeRequest) = "/tikvpb.Tikv/RawDeleteRange";
    }
}

fn batch(cmd: Cmd) -> Vec<u8> {
    let requests = vec![Command { cmd: Some(cmd) }];
    BatchCommandsRequest { requests, request_ids: vec![7], ..Default::default() }.encode_to_vec()
}

#[tokio::test]
async fn no_call_of_keys_is_executed_for_a_caller_without_the_right() {
    let data = ["/tikvpb.Tikv/", "/stele.kv.v1.Kv/"];
    let key = |text: &'static str| Bytes::from_static(text.as_bytes());
    let listed: Vec<&str> = calls(&key(""), &key("")).iter().map(|(path, ..)| *path).collect();
    for path in Method::all().iter().map(Method::path) {
        let is_data = data.iter().any(|service| path.starts_with(service));
        assert!(!is_data || path == BATCH || listed.contains(&path), "{path} is not tried");
    }
    for granted in [READ, WRITE, BOTH] {
        let rights = rights(&rules(granted));
        // Within the prefix, after it, before it, and from it to another one.
        for (from, to, is_within) in
            [("a/1", "a0", true), ("b", "c", false), ("a", "a/5", false), ("a/1", "a00", false)]
        {
            let is_key_within = from.starts_with("a/");
            for (path, message, wanted) in calls(&key(from), &key(to)) {
                let of_ranges = ["Scan", "Range", "Checksum", "Follow", "Copy"];
                let is_range = of_ranges.iter().any(|it| path.contains(it));
                let is_within = if is_range { is_within } else { is_key_within };
                let names_no_key = path == READ_INDEX;
                let expected = names_no_key || is_within && granted.contain(wanted);
                let executed = is_executed(&rights, path, &message).await;
                assert_eq!(executed, expected, "{path} of {from} to {to} with {granted}");
            }
            for (command, wanted) in commands(&key(from), &key(to)) {
                let text = format!("{command:?} with {granted}");
                let is_range = ["Scan", "DeleteRange"].iter().any(|it| text.contains(it));
                let is_within = if is_range { is_within } else { is_key_within };
                let executed = is_executed(&rights, BATCH, &batch(command)).await;
                assert_eq!(executed, is_within && granted.contain(wanted), "{text}");
            }
        }
    }
}

#[tokio::test]
async fn a_scan_without_an_end_is_within_no_prefix() {
    let rights = rights(&rules(READ));
    for (path, message, _) in calls(&Bytes::from_static(b"a/1"), &Bytes::new()) {
        if path.ends_with("RawScan") || path.ends_with("RawChecksum") {
            assert!(!is_executed(&rights, path, &message).await, "{path}");
        }
    }
    let ranges = vec![range(&Bytes::from_static(b"a/1"), &Bytes::new())];
    let scan = RawBatchScanRequest { ranges, ..Default::default() }.encode_to_vec();
    assert!(!is_executed(&rights, "/tikvpb.Tikv/RawBatchScan", &scan).await);
}

#[tokio::test]
async fn a_client_without_a_grant_reaches_no_service() {
    let rules = rules(READ);
    let name = ClientName::new("other").unwrap();
    let other = Rights::new(Principal::Known(Identity::Client(name)), rules);
    for path in Method::all().iter().map(Method::path) {
        let text = answer(&other, path, &[]).await;
        let is_health = path.starts_with("/grpc.health");
        assert!(is_health || text.contains("client other may not call"), "{path}: {text}");
    }
}

#[tokio::test]
async fn an_identity_at_ten_times_its_limit_leaves_a_quiet_one_alone() {
    let live = rules(BOTH);
    live.change(|rules| {
        let limits = GrantLimits { operations_per_second: 10, ..GrantLimits::default() };
        let mut grants = Grants::clone(&rules.grants);
        let app = grants.by_name.get("app").unwrap().clone();
        let greedy = Grant { name: "greedy".to_owned(), limits, ..app };
        grants.by_name.insert(greedy.name.clone(), greedy);
        rules.grants = Arc::new(grants);
    });
    let name = ClientName::new("greedy").unwrap();
    let greedy = Rights::new(Principal::Known(Identity::Client(name)), live.clone());
    let get = RawGetRequest { key: Bytes::from_static(b"a/1"), ..Default::default() };
    let (get, started) = (get.encode_to_vec(), Instant::now());
    let calls = (0..100).map(|number| {
        let (greedy, get) = (greedy.clone(), get.clone());
        let cmd = Cmd::RawGet(RawGetRequest::decode(&get[..]).unwrap());
        tokio::spawn(async move {
            match number % 2 {
                0 => answer(&greedy, "/tikvpb.Tikv/RawGet", &get).await,
                _ => answer(&greedy, BATCH, &batch(cmd)).await,
            }
        })
    });
    let calls: Vec<_> = calls.collect();
    let quiet = rights(&live);
    for _ in 0..20 {
        assert!(is_executed(&quiet, "/tikvpb.Tikv/RawGet", &get).await);
    }
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    let (mut executed, mut busy) = (0, 0);
    for call in calls {
        let text = call.await.unwrap();
        executed += u64::from(text.contains("has no context"));
        busy += u64::from(text.contains("exceeds the limits of its grant"));
    }
    assert_eq!(executed + busy, 100);
    assert!((10..=25).contains(&executed), "{executed} at once and within a second");
}

#[tokio::test]
async fn calls_of_keys_that_nodes_forward_use_the_memory_of_data() {
    let live = rules(BOTH);
    let cluster = ClusterName::new("prod").unwrap();
    let node = Identity::Node { cluster, node: NodeName::new("n1").unwrap() };
    let node = Rights::new(Principal::Known(node), live);
    let memory = NodeMemory::new(64 << 20);
    // Requests of other connections use what data may: less is left than a call needs.
    let mut held = Vec::new();
    for bytes in [1 << 20, 1 << 10] {
        loop {
            let connection = ConnectionMemory::new(&memory, 1 << 16);
            let request = RequestMemory::new(&connection, Class::Data);
            if request.charge(bytes).is_err() {
                break;
            }
            held.push(request);
        }
    }
    let system = ConnectionMemory::new(&memory, 1 << 16);
    RequestMemory::new(&system, Class::System).charge(1 << 20).unwrap();
    for path in ["/stele.redis.v1.Redis/Run", "/stele.redis.v1.Redis/Step"] {
        let text = answer_within(&memory, &node, path, &[]).await;
        assert!(text.contains("other requests use the memory"), "{path}: {text}");
    }
    drop(held);
    let text = answer_within(&memory, &node, "/stele.redis.v1.Redis/Run", &[]).await;
    assert!(!text.contains("other requests use the memory"), "{text}");
}

#[test]
fn a_missing_right_is_the_text_of_the_answer_but_for_range_deletes() {
    let reason = || Failure::Final("no right".to_owned());
    macro_rules! by_text {
        ($($request:ident)*) => {
            $(let answer = denial::<$request>(reason());
            assert_eq!((&answer.error[..], answer.region_error), ("no right", None));)*
        };
    }
    by_text! {
        RawGetRequest RawGetKeyTtlRequest RawPutRequest RawBatchPutRequest RawDeleteRequest
        RawBatchDeleteRequest RawCasRequest RawChecksumRequest
    }
    macro_rules! by_error {
        ($($request:ident)*) => {
            $(let error = denial::<$request>(reason()).region_error.unwrap();
            assert!(error.raft_entry_too_large.is_some() && error.message == "no right");)*
        };
    }
    by_error! { RawBatchGetRequest RawScanRequest RawBatchScanRequest RawDeleteRangeRequest }
    assert!(denial::<RawDeleteRangeRequest>(reason()).error.is_empty());
    let invalid = denial::<RawGetRequest>(Failure::Invalid("x".to_owned()));
    assert!(invalid.error.is_empty() && invalid.region_error.is_some());
}
