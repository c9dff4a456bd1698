//! A whole node with certificates: what each identity reaches over a connection of its own.

use crate::common::tls::Certificates;
use crate::common::{LIMIT, config, start};
use bytes::Bytes;
use http_body::{Body, Frame};
use prost::Message;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context as Cx, Poll};
use std::time::{Duration, Instant};
use stele_proto::kvrpcpb::{Context, RawGetRequest, RawPutRequest, RawPutResponse};
use stele_proto::pdpb::GetRegionRequest;
use stele_proto::pdpb::pd_client::PdClient;
use stele_proto::stele::control::v1::control_client::ControlClient;
use stele_proto::stele::control::v1::{
    AccessGrant, AccessGrantRequest, AdmitRequest, Boot, GetConfigRequest, LocalChecksumRequest,
    Member, MemberStore, MembersRequest, RequestHeader, SetConfigRequest,
};
use stele_proto::tikvpb::BatchCommandsRequest;
use stele_proto::tikvpb::batch_commands_request::{Request as Command, request::Cmd};
use stele_proto::tikvpb::tikv_client::TikvClient;
use stele_server::config::Config;
use stele_server::node::Node;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::Code;
use tonic::codegen::Service;
use tonic::codegen::http::Request;
use tonic::transport::Channel;

/// Node n1 of the cluster `prod`, with certificates of nodes and clients.
struct Secured {
    node: Node,
    certificates: Certificates,
    _dir: tempfile::TempDir,
}

impl Secured {
    async fn start(of: Config) -> Self {
        let certificates = Certificates::new();
        for (cluster, name) in [("prod", "n1"), ("prod", "n2"), ("test", "other")] {
            certificates.node(cluster, name);
        }
        for name in ["root", "app", "greedy"] {
            certificates.client(name);
        }
        let dir = tempfile::tempdir().unwrap();
        let stores = config(&[dir.path().join("a")], &[]).stores;
        let node = start(certificates.configured("n1", Config { stores, ..of })).await;
        Self { node, certificates, _dir: dir }
    }

    fn of(&self, name: &str) -> Channel {
        self.certificates.channel(name, &self.node.ready.address)
    }

    fn control(&self, name: &str) -> ControlClient<Channel> {
        ControlClient::new(self.of(name))
    }

    async fn context(&self) -> Option<Context> {
        let (mut pd, began) = (PdClient::new(self.of("app")), Instant::now());
        loop {
            let request = GetRegionRequest { region_key: Bytes::from("k"), ..Default::default() };
            let found = pd.get_region(request).await.map(tonic::Response::into_inner);
            if let Ok(found) = found
                && let (Some(region), Some(leader)) = (found.region, found.leader)
            {
                let (region_id, region_epoch) = (region.id, region.region_epoch);
                let peer = Some(leader);
                return Some(Context { region_id, region_epoch, peer, ..Context::default() });
            }
            assert!(began.elapsed() < LIMIT);
            sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_certificate_of_a_node_uses_no_keys_and_changes_nothing_in_the_name_of_a_client() {
    let secured = Secured::start(config(&[], &[])).await;
    let context = secured.context().await;
    let put = RawPutRequest {
        context: context.clone(),
        key: Bytes::from("k"),
        value: Bytes::from("v"),
        ..Default::default()
    };
    let get = RawGetRequest { context, key: Bytes::from("k"), ..Default::default() };
    let answer = TikvClient::new(secured.of("app")).raw_put(put.clone()).await.unwrap();
    assert_eq!(answer.into_inner().error, "");
    let mut node = TikvClient::new(secured.of("n2"));
    for refused in [
        node.raw_get(get.clone()).await.map(|_| ()).unwrap_err(),
        node.raw_put(put).await.map(|_| ()).unwrap_err(),
    ] {
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert!(refused.message().contains("uses no keys by its own certificate"), "{refused:?}");
    }
    // It finds regions for its clients, and reads no values in another way.
    let region = GetRegionRequest { region_key: Bytes::from("k"), ..Default::default() };
    PdClient::new(secured.of("n2")).get_region(region).await.unwrap();
    let checksum = LocalChecksumRequest { region_id: 2, ..Default::default() };
    let refused = secured.control("n2").local_checksum(checksum).await.unwrap_err();
    assert!(refused.message().contains("reads no values by itself"), "{refused:?}");
    // A key of a node names an administrator.
    let set = SetConfigRequest {
        key: "replicas".to_owned(),
        value: "5".to_owned(),
        header: Some(RequestHeader { forwarded: true, ..Default::default() }),
    };
    for name in ["n1", "n2"] {
        let mut forged = tonic::Request::new(set.clone());
        let root = "client \"root\"".parse().unwrap();
        forged.metadata_mut().insert("stele-first-caller", root);
        let refused = secured.control(name).set_config(forged).await.unwrap_err();
        let code = if name == "n1" { Code::Unavailable } else { Code::PermissionDenied };
        assert_eq!(refused.code(), code, "{name}: {refused:?}");
    }
    let keys = vec!["replicas".to_owned()];
    let asked = GetConfigRequest { keys, header: None };
    let found = secured.control("root").get_config(asked).await.unwrap().into_inner();
    assert_eq!(found.items[0].source, "default");
    secured.control("root").set_config(set).await.unwrap();
    secured.node.stop().await;
}

/// Waits for a connection that a node makes after it learned the address.
async fn is_asked(listener: &TcpListener) -> bool {
    timeout(Duration::from_secs(2), listener.accept()).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_nodes_of_the_cluster_name_addresses_to_a_node() {
    let secured = Secured::start(config(&[], &[])).await;
    secured.context().await;
    let mut root = secured.control("root");
    let admit = AdmitRequest { node: "n2".to_owned(), valid_s: 60, ..Default::default() };
    root.admit(admit).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let of = config(&[dir.path().join("b")], std::slice::from_ref(&secured.node.ready.address));
    let second = start(secured.certificates.configured("n2", of)).await;
    let cluster = root.members(MembersRequest::default()).await.unwrap();
    let cluster_id = cluster.into_inner().cluster_id;
    for (nth, name, code, is_learned) in [
        (0, "app", Some(Code::PermissionDenied), false),
        (1, "other", Some(Code::PermissionDenied), false),
        (2, "root", None, false),
        (3, "n2", None, true),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        // A later run of its store, as if that had moved.
        let boot = Boot { count: 90 + nth, nonce: 9 + nth, starts: vec![nth as u8 + 1; 16].into() };
        let store = MemberStore { id: 2, boot: Some(boot), ..Default::default() };
        let address = listener.local_addr().unwrap().to_string();
        let member = Member { address, stores: vec![store], ..Default::default() };
        let header = Some(RequestHeader { cluster_id, forwarded: false });
        let stated = MembersRequest { header, known: vec![member] };
        let answer = secured.control(name).members(stated).await;
        assert_eq!(answer.err().map(|status| status.code()), code, "{name}");
        assert_eq!(is_asked(&listener).await, is_learned, "{name}");
    }
    second.stop().await;
    secured.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_exceeds_a_limit_is_refused_after_the_longest_wait() {
    let secured = Secured::start(config(&[], &[])).await;
    let context = secured.context().await;
    let grant = AccessGrant {
        name: "greedy".to_owned(),
        permissions: 1,
        operations_per_second: 10,
        ..Default::default()
    };
    let (mut control, began) = (secured.control("root"), Instant::now());
    while let Err(status) =
        control.access_grant(AccessGrantRequest { grant: Some(grant.clone()), header: None }).await
    {
        assert!(began.elapsed() < LIMIT, "{status:?}");
        sleep(Duration::from_millis(20)).await;
    }
    let get = RawGetRequest { context, key: Bytes::from("k"), ..Default::default() };
    let mut other = TikvClient::new(secured.of("app"));
    while other.raw_get(get.clone()).await.is_ok() {
        assert!(began.elapsed() < LIMIT, "the grant is not in force");
        sleep(Duration::from_millis(20)).await;
    }
    // A call each, and then a message of many commands.
    let (client, began) = (TikvClient::new(secured.of("greedy")), Instant::now());
    let mut calls = JoinSet::new();
    for _ in 0..40 {
        let (mut client, get) = (client.clone(), get.clone());
        calls.spawn(async move { client.raw_get(get).await.unwrap().into_inner().region_error });
    }
    let (mut served, mut refused) = (0, 0);
    while let Some(ended) = calls.join_next().await {
        match ended.unwrap() {
            None => served += 1,
            Some(error) => {
                assert!(error.server_is_busy.is_some(), "{error:?}");
                assert!(began.elapsed() >= Duration::from_millis(950), "{:?}", began.elapsed());
                refused += 1;
            }
        }
    }
    assert!((10..=14).contains(&served), "{served} served, {refused} refused");
    let many = |count| BatchCommandsRequest {
        request_ids: (0..count).collect(),
        requests: (0..count).map(|_| Command { cmd: Some(Cmd::RawGet(get.clone())) }).collect(),
        ..Default::default()
    };
    // The first takes the next two seconds.
    let [first, second] = [many(30), many(20)];
    let _first = client.clone().batch_commands(tokio_stream::iter([first])).await.unwrap();
    sleep(Duration::from_millis(200)).await;
    let began = Instant::now();
    let answers = client.clone().batch_commands(tokio_stream::iter([second])).await.unwrap();
    let answer = answers.into_inner().message().await.unwrap().unwrap();
    assert_eq!(answer.request_ids.len(), 20, "refusals are one message");
    assert!(began.elapsed() >= Duration::from_millis(950), "{:?}", began.elapsed());
    secured.node.stop().await;
}

/// Body that arrives in pieces.
struct Pieces(mpsc::Receiver<Bytes>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Cx<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

/// Returns the bytes of an answer.
async fn collected(mut body: tonic::body::Body) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        if let Ok(data) = frame.unwrap().into_data() {
            bytes.extend_from_slice(&data);
        }
    }
    bytes
}

async fn call(channel: &mut Channel, request: Request<tonic::body::Body>) -> Vec<u8> {
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
    collected(channel.call(request).await.unwrap().into_body()).await
}

/// Puts over `lasts`, in equal pieces; returns the answer and the time after which it came.
async fn slow_put(
    mut channel: Channel,
    put: RawPutRequest,
    lasts: Duration,
) -> (RawPutResponse, Duration) {
    const PIECES: usize = 200;
    let mut message = vec![0];
    message.extend_from_slice(&(put.encoded_len() as u32).to_be_bytes());
    put.encode(&mut message).unwrap();
    let (sender, pieces) = mpsc::channel(1);
    tokio::spawn(async move {
        for piece in message.chunks(message.len().div_ceil(PIECES)) {
            // The node has refused it.
            if sender.send(Bytes::copy_from_slice(piece)).await.is_err() {
                return;
            }
            sleep(lasts / PIECES as u32).await;
        }
    });
    let request = Request::post("/tikvpb.Tikv/RawPut")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(tonic::body::Body::new(Pieces(pieces)))
        .unwrap();
    let began = Instant::now();
    let answer = call(&mut channel, request).await;
    (RawPutResponse::decode(&answer[5..]).unwrap(), began.elapsed())
}

/// Returns the bytes of requests, from the metrics.
async fn used(channel: &mut Channel) -> u64 {
    let request = Request::get("/metrics").body(tonic::body::Body::empty()).unwrap();
    let page = String::from_utf8(call(channel, request).await).unwrap();
    let name = "stele_request_memory_bytes{use=\"requests\"} ";
    page.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap()
}

/// The node has 11 MiB for data, of which one identity uses 10.
#[tokio::test(flavor = "multi_thread")]
async fn an_identity_that_uses_its_memory_waits_and_is_refused_and_another_ones_puts_go_on() {
    const CONNECTIONS: usize = 30;
    let of = Config { request_memory_bytes_max: 16 << 20, ..config(&[], &[]) };
    let secured = Secured::start(of).await;
    let context = secured.context().await;
    let put = |key: String, value_bytes: usize| RawPutRequest {
        context: context.clone(),
        key: Bytes::from(key),
        value: Bytes::from(vec![7; value_bytes]),
        ..Default::default()
    };
    let mut calls = JoinSet::new();
    for nth in 0..CONNECTIONS {
        let (channel, put) = (secured.of("greedy"), put(format!("g{nth}"), 512 << 10));
        // Longer than a request waits for memory.
        calls.spawn(slow_put(channel, put, Duration::from_secs(13)));
    }
    let mut page = secured.of("app");
    let began = Instant::now();
    while used(&mut page).await < 9 << 20 {
        assert!(began.elapsed() < LIMIT, "the memory is not used");
        sleep(Duration::from_millis(20)).await;
    }
    let mut quiet = TikvClient::new(secured.of("app"));
    let (mut puts, mut slowest) = (0, Duration::ZERO);
    while began.elapsed() < Duration::from_secs(8) {
        let started = Instant::now();
        // More than is left if the other one had all.
        let answer = quiet.raw_put(put(format!("q{puts}"), 700 << 10)).await.unwrap().into_inner();
        assert!(answer.region_error.is_none() && answer.error.is_empty(), "{puts}: {answer:?}");
        puts += 1;
        slowest = slowest.max(started.elapsed());
        sleep(Duration::from_millis(50)).await;
    }
    // Half of the time that a request waits for memory.
    assert!(puts > 20 && slowest < Duration::from_secs(5), "{puts} puts, {slowest:?}");
    let (mut done, mut busy) = (0, 0);
    while let Some(ended) = calls.join_next().await {
        let (answer, after) = ended.unwrap();
        match answer.region_error {
            Some(error) => {
                assert!(error.server_is_busy.is_some(), "{error:?}");
                assert!(after > Duration::from_secs(9), "it waits first: {after:?}");
                busy += 1;
            }
            None => done += 1,
        }
    }
    assert!(done >= 15 && busy >= 8, "{done} puts, {busy} refused");
    while used(&mut page).await > 64 << 10 {
        assert!(began.elapsed() < LIMIT, "memory is not released");
        sleep(Duration::from_millis(20)).await;
    }
    secured.node.stop().await;
}
