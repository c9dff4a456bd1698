//! Whole nodes in this process, observed over HTTP.

use crate::common::{LIMIT, config, get, get_with, start, until};
use crate::exposition;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use stele_proto::kvrpcpb::{Context, RawDeleteRequest, RawDeleteResponse, RawPutRequest};
use stele_proto::pdpb::GetRegionRequest;
use stele_proto::pdpb::pd_client::PdClient;
use stele_proto::stele::control::v1::control_client::ControlClient;
use stele_proto::stele::control::v1::{
    GetConfigRequest, ListRegionsRequest, ListStoresRequest, RecoverReplicaRequest,
    RegionDetailRequest, ReplicaDetail, SetConfigRequest, SetStoreStateRequest, StoreAction,
};
use stele_proto::tikvpb::tikv_client::TikvClient;
use stele_server::config::Config;
use stele_server::node::Node;
use stele_types::{PeerRole, Region};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

fn has_stores(body: &str, count: usize) -> bool {
    let value: serde_json::Value = serde_json::from_str(body).unwrap();
    value["stores"].as_array().unwrap().len() == count
}

fn dirs(at: &Path, names: &[&str]) -> Vec<PathBuf> {
    names.iter().map(|name| at.join(name)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_status_and_health_are_served_on_the_port() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(config(&dirs(dir.path(), &["a"]), &[])).await;
    let address = node.ready.address.clone();
    until(&address, "/readyz", |status, body| status == 200 && body.starts_with("2 of 2")).await;
    for path in ["/healthz", "/health"] {
        assert_eq!(get(&address, path).await, (200, "ok\n".to_owned()), "{path}");
    }
    let wanted = [
        "stele_transport_bytes_total{lane=\"data\",direction=\"sent\"} ",
        "stele_transport_frames_total{lane=\"urgent\",direction=\"received\"} ",
        "stele_transport_events_total{event=\"reconnects\"} ",
        "stele_transport_closed_total{reason=\"other_cluster\"} ",
        "stele_transport_queued_bytes ",
        "stele_connections_open ",
        "stele_connections_total{outcome=\"refused\"} ",
        "stele_append_p99_seconds{store=\"1\"} ",
        "stele_device_operation_seconds{store=\"1\",of=\"write\"} ",
        "stele_device_byte_seconds{store=\"1\",of=\"write\"} ",
        "stele_device_operations_per_second{store=\"1\",of=\"write\",source=",
        "stele_linearizable_reads_total{store=\"1\",by=\"window\"} ",
        "stele_regions{store=\"1\",role=\"leader\"} 2",
    ];
    // An append follows soon if there was none yet.
    let has_appended = |status: u16, body: &str| {
        let p99 = body
            .lines()
            .find_map(|line| line.strip_prefix("stele_append_p99_seconds{store=\"1\"} "));
        status == 200 && p99.is_some_and(|p99| p99.parse::<f64>().unwrap() > 0.0)
    };
    let metrics = until(&address, "/metrics", has_appended).await;
    for line in wanted {
        assert_eq!(metrics.matches(&format!("\n{line}")).count(), 1, "{line}: {metrics}");
    }
    // Without `Accept` the text format, in which a counter has the name of its sample.
    let (head, text) = get_with(&address, "/metrics", "").await;
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    let kinds = exposition::parse(&text, false).unwrap();
    assert_eq!(kinds["stele_linearizable_reads_total"], "counter");
    assert!(exposition::parse(&text, true).is_err(), "the parser tells the formats apart");
    let open = "accept: text/plain;q=0.3\r\naccept: application/openmetrics-text;version=1.0.0\r\n";
    let (head, text) = get_with(&address, "/metrics", open).await;
    assert!(head.contains("application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
    let open = exposition::parse(&text, true).unwrap();
    assert_eq!(open["stele_linearizable_reads"], "counter");
    assert!(exposition::parse(&text, false).is_err(), "the parser tells the formats apart");
    // Both show the same families.
    let with_suffix = |(name, kind): (&String, &String)| match &**kind {
        "counter" => format!("{name}_total"),
        _ => name.clone(),
    };
    let open: BTreeSet<String> = open.iter().map(with_suffix).collect();
    assert_eq!(open, BTreeSet::from_iter(kinds.into_keys()));
    let (status, body) = get(&address, "/status").await;
    assert!(status == 200 && has_stores(&body, 1), "{body}");
    node.stop().await;
}

// Catalogue: 19.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_node_stays_in_service_and_every_page_says_that_it_is_full() {
    let dir = tempfile::tempdir().unwrap();
    // More than any device has.
    let reserved_bytes = 1 << 60;
    let config = Config { reserved_bytes, ..config(&dirs(dir.path(), &["a"]), &[]) };
    let node = start(config).await;
    let address = node.ready.address.clone();
    for page in ["/healthz", "/readyz"] {
        let says = |status: u16, body: &str| status == 200 && body.contains("store 1 is full: ");
        until(&address, page, says).await;
    }
    for line in ["stele_store_full{store=\"1\"} 1\n", "stele_store_short_of_space{store=\"1\"} 1\n"]
    {
        until(&address, "/metrics", |_, body| body.contains(line)).await;
    }
    let status: serde_json::Value =
        serde_json::from_str(&get(&address, "/status").await.1).unwrap();
    assert_eq!(status["stores"][0]["space"]["full"], true, "{status}");
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await;
    let channel = channel.unwrap();
    let context = Some(context_of_values(&channel, Instant::now()).await);
    let mut tikv = TikvClient::new(channel);
    let (key, value) = ("k".into(), vec![7; 1_000].into());
    let put = RawPutRequest { context: context.clone(), key, value, ..RawPutRequest::default() };
    let refused = tikv.raw_put(put).await.unwrap().into_inner().region_error.unwrap();
    // No other peer can lead, so that no client needs to try again.
    let full = "disk full at store 1 or at its followers: puts are refused until pairs are deleted";
    assert!(refused.message.starts_with(full) && refused.disk_full.is_none(), "{refused:?}");
    assert_eq!(refused.raft_entry_too_large.unwrap().entry_size, 0);
    let delete = RawDeleteRequest { context, key: "k".into(), ..RawDeleteRequest::default() };
    let deleted = tikv.raw_delete(delete).await.unwrap().into_inner();
    assert_eq!(deleted, RawDeleteResponse::default());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_page_names_the_others_and_unknown_paths_are_not_found() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(config(&dirs(dir.path(), &["a"]), &[])).await;
    let address = node.ready.address.clone();
    let (status, page) = get(&address, "/").await;
    assert_eq!(status, 200);
    for link in page.split("href=\"").skip(1) {
        let path = link.split('"').next().unwrap();
        assert_ne!(get(&address, path).await.0, 404, "{path}");
    }
    assert_eq!(page.matches("href=").count(), 6, "{page}");
    for path in ["/favicon.ico", "/healthz/", "/tikvpb.Tikv/KvGet", "/pdpb"] {
        let (status, text) = get(&address, path).await;
        assert_eq!(status, 404, "{path}: {text}");
        assert!(text.contains("/ lists those that do"), "{text}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_panics_is_named_by_healthz_and_a_required_one_ends_the_node() {
    let dir = tempfile::tempdir().unwrap();
    let mut node = start(config(&dirs(dir.path(), &["a"]), &[])).await;
    let address = node.ready.address.clone();
    until(&address, "/readyz", |status, _| status == 200).await;
    let metrics = get(&address, "/metrics").await.1;
    for task in ["heartbeats", "placement-ticks", "port"] {
        assert!(
            metrics.contains(&format!("stele_tasks_running{{task=\"{task}\"}} 1\n")),
            "{metrics}"
        );
    }
    node.tasks().spawn_finite("report", async { panic!("no paper") });
    let body = until(&address, "/healthz", |_, body| body != "ok\n").await;
    assert!(
        body.starts_with("ok\nreport failed ") && body.contains("panicked: no paper"),
        "{body}"
    );
    assert_eq!(get(&address, "/healthz").await.0, 200);
    node.tasks().spawn_lasting("ledger", async { panic!("no ink") });
    let body = until(&address, "/healthz", |status, _| status == 503).await;
    assert!(body.contains("ledger failed ") && body.contains("no ink"), "{body}");
    let metrics = get(&address, "/metrics").await.1;
    for line in ["report\"} 1\n", "ledger\"} 1\n", "port\"} 0\n"] {
        let line = format!("stele_task_failures_total{{task=\"{line}");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
    let ended = tokio::time::timeout(LIMIT, node.wait()).await.expect("the node goes on");
    let text = ended.unwrap_err().to_string();
    assert!(text.starts_with("the task `ledger` panicked: no ink"), "{text}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_regions_have_no_leader_is_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let first = start(config(&dirs(dir.path(), &["a"]), &[])).await;
    let join = [first.ready.address.clone()];
    let second = start(config(&dirs(dir.path(), &["b"]), &join)).await;
    let address = second.ready.address.clone();
    until(&address, "/readyz", |status, body| status == 200 && body.starts_with("2 of 2")).await;
    // Both nodes vote before the first stops.
    let voters = |_: u16, body: &str| {
        body.lines().any(|line| line == "stele_regions{store=\"2\",role=\"replica\"} 2")
    };
    until(&address, "/metrics", voters).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    first.stop().await;
    let body = until(&address, "/readyz", |status, _| status == 503).await;
    assert!(body.contains(" of 2 regions have a known leader"), "{body}");
    assert_eq!(get(&address, "/healthz").await.0, 200, "it still runs");
    second.stop().await;
}

async fn leaders_and_voters(node: &Node) -> (u64, usize) {
    let url = format!("http://{}", node.ready.address);
    let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
    let request = ListRegionsRequest { system: true, ..ListRegionsRequest::default() };
    let mut control = ControlClient::new(channel);
    let Ok(listed) = control.list_regions(request).await else { return (0, 0) };
    let reports = listed.into_inner().regions.into_iter().filter_map(|region| region.report);
    let (mut leaders, mut voters) = (0, 0);
    for report in reports {
        let peers = Region::decode(&report.region).unwrap().peers;
        voters += peers.iter().filter(|peer| peer.role == PeerRole::Voter).count();
        leaders += u64::from(report.leader_store == node.ready.stores[0].0);
    }
    (leaders, voters)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_leaves_is_unready_and_hands_its_leaders_over_before_it_stops() {
    let dir = tempfile::tempdir().unwrap();
    let first = start(config(&dirs(dir.path(), &["a"]), &[])).await;
    let join = [first.ready.address.clone()];
    let second = start(config(&dirs(dir.path(), &["b"]), &join)).await;
    let third = start(config(&dirs(dir.path(), &["c"]), &join)).await;
    let address = first.ready.address.clone();
    let started = Instant::now();
    loop {
        let (leaders, voters) = leaders_and_voters(&first).await;
        if leaders > 0 && voters == 6 {
            break;
        }
        assert!(started.elapsed() < LIMIT, "{leaders} leaders, {voters} voters");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let began = Instant::now();
    first.leave().await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let (status, body) = get(&address, "/readyz").await;
    assert_eq!((status, body.as_str()), (503, "the node is stopping\n"));
    let metrics = get(&address, "/metrics").await.1;
    assert!(metrics.contains("stele_regions{store=\"1\",role=\"leader\"} 0"), "{metrics}");
    // Other nodes lead and take the writes while the port of this one is open.
    put_at_leader(&[&second, &third]).await;
    let (status, _) = get(&address, "/healthz").await;
    assert_eq!(status, 200, "the port is open until the node stops");
    first.stop().await;
    assert!(tokio::net::TcpStream::connect(&address).await.is_err());
    put_at_leader(&[&second, &third]).await;
    third.stop().await;
    second.stop().await;
}

async fn put_at_leader(nodes: &[&Node]) {
    let url = format!("http://{}", nodes[0].ready.address);
    let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
    let started = Instant::now();
    loop {
        let request = GetRegionRequest { region_key: "k".into(), ..Default::default() };
        let found = PdClient::new(channel.clone()).get_region(request).await;
        let leader = found.ok().and_then(|found| found.into_inner().leader);
        let leads = |node: &&&Node| leader.is_some_and(|it| it.store_id == node.ready.stores[0].0);
        if let Some(node) = nodes.iter().find(leads) {
            return put_values(&node.ready.address, 3).await;
        }
        assert!(started.elapsed() < LIMIT, "{leader:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_alone_keeps_its_leaders_and_stops_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(config(&dirs(dir.path(), &["a"]), &[])).await;
    let address = node.ready.address.clone();
    until(&address, "/readyz", |status, body| status == 200 && body.starts_with("2 of 2")).await;
    let began = Instant::now();
    node.leave().await;
    put_values(&address, 3).await;
    node.stop().await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_takes_over_some_settings_and_names_those_that_need_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let given = config(&dirs(dir.path(), &["a"]), &[]);
    let node = start(given.clone()).await;
    let url = format!("http://{}", node.ready.address);
    let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
    let value = async |key: &str| {
        let keys = vec![key.to_owned()];
        let request = GetConfigRequest { header: None, keys };
        let found = ControlClient::new(channel.clone()).get_config(request).await.unwrap();
        found.into_inner().items[0].value.clone()
    };
    let wanted = Config {
        slow_log_ms: 7,
        connections_max: 77,
        space_amp_target: 3.0,
        gc_policy: "nezha".to_owned(),
        tick_ms: 30,
        ..given
    };
    node.reload(Ok(wanted.clone()));
    assert_eq!(value("slow_log_ms").await, "7");
    assert_eq!(value("connections_max").await, "77");
    assert_eq!(value("gc_policy").await, "nezha");
    assert_eq!(value("tick_ms").await, "20", "it needs a restart");
    node.reload(Err(stele_types::Error::invalid("no such setting")));
    assert_eq!(value("slow_log_ms").await, "7");
    // Out of bounds for garbage collection: nothing is taken over.
    node.reload(Ok(Config { space_amp_target: 0.1, slow_log_ms: 9, ..wanted }));
    assert_eq!(value("slow_log_ms").await, "7");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_joins_has_the_labels_of_its_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let first = start(config(&dirs(dir.path(), &["a"]), &[])).await;
    let join = [first.ready.address.clone()];
    let mut labelled = config(&dirs(dir.path(), &["b"]), &join);
    labelled.set("label", "rack=b,zone=eu/west").unwrap();
    let second = start(labelled).await;
    let url = format!("http://{}", first.ready.address);
    let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
    let mut control = ControlClient::new(channel);
    let listed = control.list_stores(ListStoresRequest::default()).await.unwrap().into_inner();
    let joined = listed.stores.iter().find(|store| store.labels.len() == 2);
    let labels = joined.unwrap_or_else(|| panic!("{listed:?}")).labels.iter();
    let labels: Vec<_> = labels.map(|label| (&label.key[..], &label.value[..])).collect();
    assert_eq!(labels, [("rack", "b"), ("zone", "eu/west")]);
    second.stop().await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_added_to_a_node_that_has_one_joins_through_the_node_itself() {
    let dir = tempfile::tempdir().unwrap();
    let one = dirs(dir.path(), &["a"]);
    let two = dirs(dir.path(), &["a", "b"]);
    let node = start(config(&one, &[])).await;
    until(&node.ready.address, "/readyz", |status, _| status == 200).await;
    node.stop().await;
    let node = start(config(&two, &[])).await;
    until(&node.ready.address, "/status", |_, body| has_stores(body, 2)).await;
    let second = node.ready.address.clone();
    let has_appended = |_: u16, body: &str| body.contains("stele_append_p99_seconds{store=\"2\"}");
    until(&second, "/metrics", has_appended).await;
    node.stop().await;
    let node = start(config(&two, &[])).await;
    assert_eq!(node.ready.stores.len(), 2, "it is a member from now on");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_of_a_running_cluster_end_and_begin_with_the_setting() {
    let dir = tempfile::tempdir().unwrap();
    let awake = Config { hibernate_after_ms: 0, ..config(&dirs(dir.path(), &["a"]), &[]) };
    let node = start(awake).await;
    let address = node.ready.address.clone();
    until(&address, "/readyz", |status, _| status == 200).await;
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    let mut client = ControlClient::new(channel.clone());
    // Heartbeats renew a lease several times in a second.
    let mut has_lease_for_a_second = async |wanted: bool| {
        let (started, mut since) = (Instant::now(), Instant::now());
        while since.elapsed() < Duration::from_secs(1) {
            let request = RegionDetailRequest { region_id: 2, ..RegionDetailRequest::default() };
            let found = client.region_detail(request).await.unwrap().into_inner();
            if (found.replicas[0].lease_nanos > 0) != wanted {
                since = Instant::now();
            }
            assert!(started.elapsed() < LIMIT, "a lease: {wanted}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    has_lease_for_a_second(true).await;
    let mut admin = ControlClient::new(channel);
    for (value, wanted) in [("off", false), ("on", true)] {
        let (key, value) = ("leases".to_owned(), value.to_owned());
        let request = SetConfigRequest { header: None, key, value };
        admin.set_config(request).await.unwrap();
        has_lease_for_a_second(wanted).await;
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_receive_the_time_by_which_expired_pairs_are_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let first = start(config(&dirs(dir.path(), &["a"]), &[])).await;
    let join = [first.ready.address.clone()];
    let second = start(config(&dirs(dir.path(), &["b"]), &join)).await;
    let time_of = |body: &str| -> f64 {
        let line = body.lines().find_map(|line| line.strip_prefix("stele_cluster_time_seconds{"));
        line.and_then(|line| line.split_once("} ")).map_or(0.0, |(_, time)| time.parse().unwrap())
    };
    let now_s = || stele_types::Clock::unix_seconds(&stele_vfs::SystemClock::new()) as f64;
    for node in [&first, &second] {
        let body = until(&node.ready.address, "/metrics", |_, body| time_of(body) > 0.0).await;
        let behind_s = now_s() - time_of(&body);
        assert!((-2.0..60.0).contains(&behind_s), "{behind_s}");
    }
    first.stop().await;
    second.stop().await;
}

/// Returns where the values go, once the placement group knows a leader.
async fn context_of_values(channel: &Channel, started: Instant) -> Context {
    loop {
        let request = GetRegionRequest { region_key: "k".into(), ..Default::default() };
        let found = PdClient::new(channel.clone()).get_region(request).await;
        if let Ok(found) = found.map(tonic::Response::into_inner)
            && let (Some(region), Some(leader)) = (found.region, found.leader)
        {
            let (region_id, region_epoch, peer) = (region.id, region.region_epoch, Some(leader));
            return Context { region_id, region_epoch, peer, ..Context::default() };
        }
        assert!(started.elapsed() < LIMIT);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Writes one value after the other; returns once the region took all of them. As clients do, it asks again
/// for the leader after an error of the region: what the placement group knows is a heartbeat old.
async fn put_values(address: &str, count: usize) {
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await;
    let channel = channel.unwrap();
    let started = Instant::now();
    let mut context = context_of_values(&channel, started).await;
    let mut tikv = TikvClient::new(channel.clone());
    let mut i = 0;
    while i < count {
        let (key, value) = (format!("k{i}").into(), vec![7; 1_000].into());
        let of_region = Some(context.clone());
        let request = RawPutRequest { context: of_region, key, value, ..RawPutRequest::default() };
        let answer = tikv.raw_put(request).await.unwrap().into_inner();
        assert_eq!(answer.error, "");
        match answer.region_error {
            None => i += 1,
            Some(error) => {
                assert!(started.elapsed() < LIMIT, "{error:?}");
                tokio::time::sleep(Duration::from_millis(20)).await;
                context = context_of_values(&channel, started).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stages_of_writes_sum_to_their_latency() {
    const PUTS: usize = 400;
    let dir = tempfile::tempdir().unwrap();
    let node = start(config(&dirs(dir.path(), &["a"]), &[])).await;
    let address = node.ready.address.clone();
    until(&address, "/readyz", |status, body| status == 200 && body.starts_with("2 of 2")).await;
    put_values(&address, PUTS).await;
    let (_, body) = get(&address, "/metrics").await;
    let value = |name: &str| -> f64 {
        let line = body.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name}: {body}")).trim().parse().unwrap()
    };
    let stage = |name: &str| value(&format!("stele_write_stage_seconds_sum{{stage=\"{name}\"}}"));
    let stages = ["queue", "append", "replicate", "apply"].map(stage);
    let latency = value("stele_request_seconds_sum{kind=\"put\"}");
    assert_eq!(value("stele_request_seconds_count{kind=\"put\"}"), PUTS as f64);
    let sum: f64 = stages.iter().sum();
    assert!((sum / latency - 1.0).abs() < 0.05, "stages {stages:?}, latency {latency}");
    // There is one replica: its own disk is the quorum.
    let [queue, append, replicate, apply] = stages;
    assert!(queue > 0.0 && append > 0.0 && apply > 0.0 && replicate < append, "{stages:?}");
    node.stop().await;
}

type Admin = ControlClient<Channel>;

async fn admin(address: &str) -> Admin {
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await;
    ControlClient::new(channel.unwrap())
}

async fn replicas(admin: &mut Admin, region_id: u64) -> Vec<ReplicaDetail> {
    let request = RegionDetailRequest { region_id, ..RegionDetailRequest::default() };
    admin.region_detail(request).await.unwrap().into_inner().replicas
}

async fn voters(nodes: &[Node], region: u64) -> Vec<u64> {
    let mut newest = Region::default();
    for node in nodes {
        for replica in replicas(&mut admin(&node.ready.address).await, region).await {
            let region = Region::decode(&replica.region).unwrap();
            if region.epoch.conf_version > newest.epoch.conf_version {
                newest = region;
            }
        }
    }
    let voters = newest.peers.iter().filter(|peer| peer.role == stele_types::PeerRole::Voter);
    voters.map(|peer| peer.store.0).collect()
}

/// Makes the replica of region 2 on a store the region's without another store.
async fn recover(admin: &mut Admin, kept: u64, lost: u64) -> Result<Vec<u8>, tonic::Status> {
    let replica = replicas(admin, 2).await.remove(0);
    let request = RecoverReplicaRequest {
        header: None,
        region_id: 2,
        store_id: kept,
        lost_stores: vec![lost],
        last_index: replica.last_index,
        last_term: replica.last_term,
        term: replica.term,
    };
    Ok(admin.recover_replica(request).await?.into_inner().region.to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_goes_on_alone_only_after_the_placement_group_removed_the_lost_stores() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = vec![start(config(&dirs(dir.path(), &["a"]), &[])).await];
    let first = nodes[0].ready.address.clone();
    for (key, value) in [("replicas", "2"), ("silent_after_seconds", "2")] {
        let (key, value) = (key.to_owned(), value.to_owned());
        let request = SetConfigRequest { header: None, key, value };
        // The placement group may still elect its leader.
        let started = Instant::now();
        while admin(&first).await.set_config(request.clone()).await.is_err() {
            assert!(started.elapsed() < LIMIT);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    for name in ["b", "c"] {
        nodes.push(start(config(&dirs(dir.path(), &[name]), std::slice::from_ref(&first))).await);
    }
    // The placement group survives the loss of one node, the region of two replicas does not.
    let started = Instant::now();
    while voters(&nodes, 1).await.len() != 3 || voters(&nodes, 2).await.len() != 2 {
        assert!(started.elapsed() < LIMIT);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let members = voters(&nodes, 2).await;
    let (lost, kept) = (members[0], members[1]);
    let at = nodes.iter().position(|node| node.ready.stores[0].0 == lost).unwrap();
    let action = StoreAction::Lost as i32;
    let declare = SetStoreStateRequest { header: None, store_id: lost, action };
    let kept_node = nodes.iter().find(|node| node.ready.stores[0].0 == kept).unwrap();
    let address = kept_node.ready.address.clone();
    let mut admin = admin(&address).await;
    let running = admin.set_store_state(declare).await.unwrap_err();
    assert_eq!(running.code(), Code::FailedPrecondition, "{running}");
    nodes.remove(at).stop().await;
    let early = recover(&mut admin, kept, lost).await.unwrap_err();
    assert_eq!(early.code(), Code::Unavailable, "{early}");
    assert!(early.message().contains("was declared lost"), "{early}");
    let started = Instant::now();
    while admin.set_store_state(declare).await.is_err() {
        assert!(started.elapsed() < LIMIT);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let region = loop {
        match recover(&mut admin, kept, lost).await {
            Ok(region) => break region,
            Err(status) => assert!(started.elapsed() < LIMIT, "{status}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let stores: Vec<u64> =
        Region::decode(&region).unwrap().peers.iter().map(|peer| peer.store.0).collect();
    // The store that is left may have got a replica already.
    assert!(stores.contains(&kept) && !stores.contains(&lost), "{stores:?}");
    let is_led = |status: u16, body: &str| status == 200 && body.starts_with("2 of 2");
    until(&address, "/readyz", is_led).await;
    put_values(&address, 20).await;
    for node in nodes {
        node.stop().await;
    }
}
