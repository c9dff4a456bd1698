//! Whole nodes in this process with damaged logs, each in different places.

use crate::common::{LIMIT, config, get, start, until};
use bytes::Bytes;
use std::path::Path;
use std::slice;
use std::time::{Duration, Instant};
use stele_proto::kvrpcpb::{Context, RawGetRequest, RawPutRequest};
use stele_proto::pdpb::GetRegionRequest;
use stele_proto::pdpb::pd_client::PdClient;
use stele_proto::tikvpb::tikv_client::TikvClient;
use stele_server::config::Config;
use tonic::transport::Channel;

const PAUSE: Duration = Duration::from_millis(50);
/// Values written; the last are not damaged, because damage at the end of the log counts as a torn
/// write.
const VALUES: usize = 60;
const LAST: usize = 9;

fn key(number: usize) -> Bytes {
    Bytes::from(format!("key {number:04}"))
}

fn value(number: usize) -> Bytes {
    Bytes::from(format!("value {number:04} {}", "x".repeat(200)))
}

async fn leader(addresses: &[String]) -> Option<(Channel, Context)> {
    let connect = |address: String| async move {
        Channel::from_shared(format!("http://{address}")).ok()?.connect().await.ok()
    };
    for address in addresses {
        let Some(channel) = connect(address.clone()).await else { continue };
        let request = GetRegionRequest { region_key: key(0), ..Default::default() };
        let Ok(found) = PdClient::new(channel).get_region(request).await else { continue };
        let found = found.into_inner();
        let (Some(region), Some(leader)) = (found.region, found.leader) else { continue };
        let at = addresses.get(leader.store_id as usize - 1)?;
        let channel = connect(at.clone()).await?;
        let (region_id, region_epoch) = (region.id, region.region_epoch);
        let peer = Some(leader);
        return Some((channel, Context { region_id, region_epoch, peer, ..Context::default() }));
    }
    None
}

async fn put(addresses: &[String], number: usize) {
    let started = Instant::now();
    while started.elapsed() < LIMIT {
        if let Some((channel, context)) = leader(addresses).await {
            let (key, value, context) = (key(number), value(number), Some(context));
            let request = RawPutRequest { context, key, value, ..Default::default() };
            let done = TikvClient::new(channel).raw_put(request).await.map(|it| it.into_inner());
            if done.is_ok_and(|done| done.region_error.is_none() && done.error.is_empty()) {
                return;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    panic!("value {number} is not written");
}

async fn read(addresses: &[String], number: usize) -> Bytes {
    let started = Instant::now();
    while started.elapsed() < LIMIT {
        if let Some((channel, context)) = leader(addresses).await {
            let request =
                RawGetRequest { context: Some(context), key: key(number), ..Default::default() };
            let done = TikvClient::new(channel).raw_get(request).await.map(|it| it.into_inner());
            if let Ok(done) = done
                && done.region_error.is_none()
                && done.error.is_empty()
            {
                assert!(!done.not_found, "value {number} is lost");
                return done.value;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    panic!("value {number} is not read");
}

/// Damages values in the segments of a directory; returns their number.
fn damage(dir: &Path, is_damaged: impl Fn(usize) -> bool) -> usize {
    let mut damaged = 0;
    for entry in std::fs::read_dir(dir.join("log")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|kind| kind != "seg") {
            continue;
        }
        let mut bytes = std::fs::read(&path).unwrap();
        for number in (0..VALUES - LAST).filter(|number| is_damaged(*number)) {
            let value = value(number);
            let found = bytes.windows(value.len()).position(|window| window == &value[..]);
            if let Some(at) = found {
                bytes[at + 40] ^= 1;
                damaged += 1;
            }
        }
        std::fs::write(&path, bytes).unwrap();
    }
    damaged
}

// Catalogue: 11.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_whose_logs_are_all_damaged_repair_each_other_and_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let dirs: Vec<_> = (1..=3).map(|number| dir.path().join(format!("{number}"))).collect();
    let mut nodes = vec![start(config(&dirs[..1], &[])).await];
    let join = [nodes[0].ready.address.clone()];
    for dir in &dirs[1..] {
        nodes.push(start(config(slice::from_ref(dir), &join)).await);
    }
    let addresses: Vec<String> = nodes.iter().map(|node| node.ready.address.clone()).collect();
    for (store, address) in (1..).zip(&addresses) {
        let line = format!("stele_regions{{store=\"{store}\",role=\"replica\"}} 2");
        until(address, "/metrics", |_, body| body.lines().any(|it| it == line)).await;
    }
    for number in 0..VALUES {
        put(&addresses, number).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    for node in nodes.drain(..) {
        node.stop().await;
    }
    for (store, dir) in dirs.iter().enumerate() {
        assert!(damage(dir, |number| number % 3 != store) > VALUES / 2, "store {}", store + 1);
    }
    let mut again = Vec::new();
    for (dir, address) in dirs.iter().zip(&addresses) {
        let config = Config { listen: address.clone(), ..config(slice::from_ref(dir), &[]) };
        again.push(start(config).await);
        // One node alone waits and keeps running; so do two that each lack what the other lacks.
        if again.len() < 3 {
            let (status, body) = get(address, "/status").await;
            let body: serde_json::Value = serde_json::from_str(&body).unwrap();
            let waiting = &body["waiting_stores"][0];
            assert!(status == 200 && waiting["lost_entries_at_first"].as_u64().unwrap() > 20);
            assert_eq!(body["stores"].as_array().unwrap().len(), 0);
            assert_eq!(get(address, "/healthz").await.0, 200);
            let (status, body) = get(address, "/readyz").await;
            assert!(status == 503 && body.contains("lost entries"), "{body}");
        }
    }
    for address in &addresses {
        until(address, "/readyz", |status, body| status == 200 && body.starts_with("2 of 2")).await;
    }
    for number in 0..VALUES {
        assert_eq!(read(&addresses, number).await, value(number));
    }
    for node in again {
        node.stop().await;
    }
}
