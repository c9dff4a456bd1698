//! A snapshot between two whole nodes over a network that breaks.

use crate::common::proxy::Proxy;
use crate::common::{config, get, start, until};
use std::time::{Duration, Instant};
use stele_proto::kvrpcpb::{Context, RawPutRequest};
use stele_proto::pdpb::GetRegionRequest;
use stele_proto::pdpb::pd_client::PdClient;
use stele_proto::tikvpb::tikv_client::TikvClient;
use stele_server::config::Config;
use stele_types::StoreId;
use tonic::transport::Endpoint;

const VALUES: u64 = 64;
const VALUE_BYTES: u64 = 1 << 20;
/// Bytes of the snapshot after which the network breaks.
const BREAK_BYTES: u64 = 24 << 20;

async fn put_values(address: &str) {
    let url = format!("http://{address}");
    let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
    let started = Instant::now();
    let context = loop {
        let request = GetRegionRequest { region_key: "k".into(), ..Default::default() };
        let found = PdClient::new(channel.clone()).get_region(request).await;
        if let Ok(found) = found.map(tonic::Response::into_inner)
            && let (Some(region), Some(leader)) = (found.region, found.leader)
        {
            let (region_id, region_epoch) = (region.id, region.region_epoch);
            let peer = Some(leader);
            break Context { region_id, region_epoch, peer, ..Context::default() };
        }
        assert!(started.elapsed() < crate::common::LIMIT);
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let mut tikv = TikvClient::new(channel);
    for number in 0..VALUES {
        let key = format!("k{number:03}").into();
        let value = vec![number as u8; VALUE_BYTES as usize].into();
        let context = Some(context.clone());
        let request = RawPutRequest { context, key, value, ..RawPutRequest::default() };
        let answer = tikv.raw_put(request).await.unwrap().into_inner();
        assert_eq!((answer.region_error, answer.error.as_str()), (None, ""));
    }
}

/// Returns the bytes of snapshots that a node has received.
fn received(metrics: &str) -> u64 {
    let name = "stele_transport_bytes_total{lane=\"bulk\",direction=\"received\"} ";
    let value = metrics.lines().find_map(|line| line.strip_prefix(name));
    value.unwrap_or_else(|| panic!("{metrics}")).parse().unwrap()
}

// Catalogue: 36.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_breaks_off_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let first = start(config(&[dir.path().join("a")], &[])).await;
    put_values(&first.ready.address).await;
    let join = [first.ready.address.clone()];
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let proxy = Proxy::start(address.clone()).await;
    let (listen, advertise) = (address.clone(), proxy.address.clone());
    let behind = Config { listen, advertise, ..config(&[dir.path().join("b")], &join) };
    let second = start(behind).await;
    let store = second.ready.stores[0];
    until(&address, "/metrics", |_, metrics| received(metrics) >= BREAK_BYTES).await;
    proxy.set_broken(true);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let at_break = received(&get(&address, "/metrics").await.1);
    assert!(at_break < VALUES * VALUE_BYTES, "the network broke too late: {at_break} bytes");
    proxy.set_broken(false);
    let both = format!("stele_regions{{store=\"{store}\",role=\"replica\"}} 2");
    let metrics = until(&address, "/metrics", |_, metrics| metrics.contains(&both)).await;
    let bytes = received(&metrics);
    let all = VALUES * VALUE_BYTES;
    assert!(bytes >= all, "{bytes}");
    // A snapshot that began again would have sent what came before the break once more.
    assert!(bytes < all + BREAK_BYTES / 2, "{bytes} bytes for {all}; {at_break} at the break");
    assert_ne!(store, StoreId(1));
    second.stop().await;
    first.stop().await;
}
