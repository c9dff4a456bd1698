//! A store that hangs while its node runs.

#[path = "../../tests/all/common/mod.rs"]
mod common;

use common::{config, get, start, stores};
use std::time::{Duration, Instant};
use stele_proto::stele::control::v1::StoreInfo;
use stele_types::StoreId;

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_hangs_does_not_keep_its_node_from_reporting_and_answering_for_the_other() {
    const HANGS: Duration = Duration::from_secs(8);
    let root = tempfile::tempdir().unwrap();
    let dirs = ["a", "b"].map(|name| root.path().join(name));
    let node = start(config(&dirs, &[])).await;
    let address = node.ready.address.clone();
    let age_ms = |stores: &[StoreInfo], id: u64| {
        let of = |store: &&StoreInfo| store.stats.is_some_and(|stats| stats.id == id);
        stores.iter().find(of).map_or(-1, |store| store.heartbeat_age_ms)
    };
    stores(&address, |all| [1, 2].iter().all(|id| age_ms(all, *id) >= 0)).await;
    // The second store leads nothing: the placement group goes on.
    let hanging = node.stores.get(StoreId(2)).unwrap();
    tokio::spawn(async move { hanging.with_core(|_| std::thread::sleep(HANGS)).await });
    let began = Instant::now();
    while began.elapsed() < HANGS / 2 {
        let all = stores(&address, |all| !all.is_empty()).await;
        for id in [1, 2] {
            let age_ms = age_ms(&all, id);
            assert!((0..3_000).contains(&age_ms), "store {id} was last heard {age_ms} ms ago");
        }
        let asked = Instant::now();
        for path in ["/status", "/metrics", "/readyz"] {
            assert_eq!(get(&address, path).await.0, 200);
        }
        assert!(asked.elapsed() < HANGS / 4, "{:?}", asked.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    node.stop().await;
}
