//! Administrative calls find the leader of the placement group from any node.

use crate::fake::{self, Fake};
use std::time::Duration;
use stele_client::{Client, Options, Verdict};
use stele_types::{Error, KeyRange, RegionId, StoreId};

#[tokio::test]
async fn the_placement_leader_is_followed_when_it_moves_and_when_it_dies() {
    let mut fake = Fake::start(3);
    fake.state().placement = 2;
    let client = Client::connect(&fake.addresses()[..1]).await.unwrap();
    let control = client.control();
    assert_eq!(control.stores(&[]).await.unwrap().len(), 3);
    fake.state().placement = 0;
    assert_eq!(control.stores(&[]).await.unwrap().len(), 3);
    fake.kill(0);
    let election = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        fake.state().placement = 1;
    };
    let (stores, ()) = tokio::join!(control.stores(&[]), election);
    assert_eq!(stores.unwrap().len(), 3);
    assert_eq!(control.members().await.unwrap().members.len(), 3);
}

#[tokio::test]
async fn a_leader_that_is_new_is_asked_again_until_the_time_is_up() {
    let fake = Fake::start(3);
    let options = Options { timeout: Duration::from_secs(2), ..Options::default() };
    let client = Client::connect_with(&fake.addresses(), options).await.unwrap();
    fake.state().unsettled = 4;
    client.control().transfer_leader(RegionId(2), StoreId(3)).await.unwrap();
    assert_eq!(fake.state().leaders[&2], 3);
    assert_eq!(fake.state().unsettled, 0);
    fake.state().unsettled = u32::MAX;
    let error = client.control().transfer_leader(RegionId(2), StoreId(1)).await.unwrap_err();
    assert!(matches!(&error, Error::Unavailable(text) if text.contains("is new")), "{error}");
}

#[tokio::test]
async fn regions_come_in_pages_and_by_key() {
    let fake = Fake::start(3);
    for (key, id) in [("c", 11), ("g", 12), ("k", 13), ("p", 14)] {
        fake.state().split(key, id);
    }
    let control = Client::connect(&fake.addresses()).await.unwrap().control();
    let rows = control.regions(&KeyRange::all(), false).await.unwrap();
    assert_eq!(rows.len(), 5);
    assert!(rows.windows(2).all(|pair| pair[0].region.range.end == pair[1].region.range.start));
    assert_eq!(rows[0].leader_store, Some(StoreId(1)));
    let middle = control.region_of("h".into()).await.unwrap();
    assert_eq!(middle.region.id, RegionId(13));
    assert_eq!(control.region(RegionId(14)).await.unwrap().region.range.start, "k");
    let missing = control.region(RegionId(999)).await.unwrap_err();
    assert!(matches!(missing, Error::Refused(_)), "{missing}");
}

#[tokio::test]
async fn changes_return_their_operator_and_refusals_their_reason() {
    let fake = Fake::start(3);
    let control = Client::connect(&fake.addresses()).await.unwrap().control();
    let operator = control.transfer_leader(RegionId(2), StoreId(3)).await.unwrap();
    assert_eq!(fake.state().leaders[&2], 3);
    let operator = control.operator(operator).await.unwrap().unwrap();
    assert_eq!(operator.what, "lead region 2 from store 3");
    let refused = control.transfer_leader(RegionId(2), StoreId(9)).await.unwrap_err();
    assert!(matches!(&refused, Error::Refused(text) if text.contains("no replica")), "{refused}");
    control.split(RegionId(2), vec!["m".into()]).await.unwrap();
    assert_eq!(fake.state().regions.len(), 2);
    control.merge(RegionId(2), RegionId(1001)).await.unwrap();
    control.move_replica(RegionId(2), StoreId(1), StoreId(4)).await.unwrap();
    assert_eq!(control.operators(true).await.unwrap().len(), 4);
    assert!(control.drain(StoreId(9)).await.is_err());
}

#[tokio::test]
async fn placement_is_explained_by_its_leader_by_region_and_by_key() {
    let fake = Fake::start(3);
    fake.state().placement = 2;
    fake.state().split("m", 11);
    let control = Client::connect(&fake.addresses()[..1]).await.unwrap().control();
    let placement = control.placement().await.unwrap();
    let classes: Vec<u32> = placement.stores.iter().map(|store| store.class).collect();
    assert_eq!((placement.mode.as_str(), classes), ("alor", vec![23, 23, 17]));
    let explained = control.explain(RegionId(2)).await.unwrap();
    assert_eq!(explained.stores.iter().filter(|verdict| verdict.rule == "leads").count(), 1);
    assert_eq!(control.explain_key("n".into()).await.unwrap().region, explained.region);
    let missing = control.explain(RegionId(999)).await.unwrap_err();
    assert!(matches!(&missing, Error::Refused(text) if text.contains("999")), "{missing}");
}

#[tokio::test]
async fn each_replica_is_asked_on_its_own_node() {
    let mut fake = Fake::start(3);
    let control = Client::connect(&fake.addresses()).await.unwrap().control();
    let region = control.region(RegionId(2)).await.unwrap().region;
    assert_eq!(control.region_detail(&region).await.unwrap().len(), 3);
    let compared = control.compare_replicas(RegionId(2), 1).await.unwrap();
    let stores: Vec<u64> = compared.replicas.iter().map(|replica| replica.store_id).collect();
    assert_eq!((stores, compared.verdict), (vec![1, 2, 3], Verdict::Identical));
    fake.kill(1);
    assert_eq!(control.region_detail(&region).await.unwrap().len(), 2);
    let unreachable = control.compare_replicas(RegionId(2), 1).await.unwrap_err();
    assert!(matches!(unreachable, Error::Unavailable(_)), "{unreachable}");
}

#[tokio::test]
async fn a_store_that_removed_what_expired_by_its_clock_is_identical_to_the_others() {
    let fake = Fake::start(3);
    fake.state().clocks_ahead.insert(2, 24 * 3600);
    let control = Client::connect(&fake.addresses()).await.unwrap().control();
    let compared = control.compare_replicas(RegionId(2), 1).await.unwrap();
    assert_eq!(compared.verdict, Verdict::Moving, "what the first round leaves out is too little");
    let compared = control.compare_replicas(RegionId(2), 2).await.unwrap();
    assert_eq!(compared.verdict, Verdict::Identical);
    fake.state().fail("", fake::Fate::Hang);
    let compared = control.compare_replicas(RegionId(2), 2).await.unwrap();
    assert_eq!(compared.verdict, Verdict::Identical, "the first round is not compared");
}
