use super::fake::{Nodes, halves, heartbeat, region, report};
use bytes::Bytes;
use stele_placement::RegionInfo;
use stele_proto::stele::control::v1 as wire;
use stele_types::{KeyRange, RegionId};

async fn two_regions() -> Nodes {
    let nodes = Nodes::new();
    nodes.node(1).tick().await;
    let [left, right] = halves(2, 50);
    let reports = vec![report(&left), report(&right)];
    nodes.node(1).heartbeat(heartbeat(1, 1, 1, reports)).await.unwrap();
    nodes
}

fn ids(regions: &[RegionInfo]) -> Vec<u64> {
    regions.iter().map(|info| info.region.id.0).collect()
}

#[tokio::test]
async fn keys_numbers_and_neighbours_are_looked_up() {
    let nodes = two_regions().await;
    let service = nodes.node(1);
    let id = |info: Option<RegionInfo>| info.map(|info| info.region.id.0);
    assert_eq!(id(service.region_by_key(b"").await.unwrap()), Some(2));
    assert_eq!(id(service.region_by_key(b"m").await.unwrap()), Some(50));
    assert_eq!(id(service.previous_region(b"z").await.unwrap()), Some(2));
    assert_eq!(id(service.previous_region(b"a").await.unwrap()), None);
    assert_eq!(id(service.region_by_id(RegionId(50)).await.unwrap()), Some(50));
    assert_eq!(id(service.region_by_id(RegionId(1)).await.unwrap()), None, "no user data");
    assert_eq!(id(service.region_by_id(RegionId(9)).await.unwrap()), None);
}

#[tokio::test]
async fn scans_clamp_to_their_range_and_limit_and_batches_list_each_region_once() {
    let nodes = two_regions().await;
    let service = nodes.node(1);
    let range = |a: &'static str, b: &'static str| KeyRange::new(a, b);
    let scan = async |range, limit| ids(&service.scan_regions(&range, limit).await.unwrap());
    assert_eq!(scan(range("", ""), 0).await, [2, 50]);
    assert_eq!(scan(range("", ""), 1).await, [2]);
    assert_eq!(scan(range("b", "m"), 0).await, [2]);
    assert_eq!(scan(range("x", ""), 0).await, [50]);
    let batch = async |ranges: &[KeyRange], limit, all| {
        let found = service.batch_scan_regions(ranges, limit, all).await.unwrap();
        found.map(|regions| ids(&regions))
    };
    let both = [range("a", "b"), range("c", "n"), range("o", "")];
    assert_eq!(batch(&both, 0, true).await, Some(vec![2, 50]));
    assert_eq!(batch(&both, 1, true).await, Some(vec![2]));
    assert_eq!(batch(&both, 2, false).await, Some(vec![2, 50]));
    assert!(service.batch_scan_regions(&[range("b", "a")], 0, false).await.is_err());
}

#[tokio::test]
async fn a_gap_is_reported_only_if_every_key_is_wanted() {
    let nodes = Nodes::new();
    nodes.node(1).tick().await;
    let [_, right] = halves(2, 50);
    nodes.node(1).heartbeat(heartbeat(1, 1, 1, vec![report(&right)])).await.unwrap();
    let service = nodes.node(1);
    let all = [KeyRange::all()];
    assert!(service.batch_scan_regions(&all, 0, true).await.unwrap().is_none());
    assert_eq!(ids(&service.batch_scan_regions(&all, 0, false).await.unwrap().unwrap()), [50]);
    assert!(service.region_by_key(b"a").await.unwrap().is_none());
}

#[tokio::test]
async fn lists_of_regions_come_in_pages() {
    let nodes = two_regions().await;
    let request = wire::ListRegionsRequest { limit: 1, ..Default::default() };
    let page = nodes.node(1).list_regions(request.clone()).await.unwrap();
    assert_eq!(page.regions.len(), 1);
    assert_eq!(page.next_key, Some(Bytes::from_static(b"m")));
    let next = wire::ListRegionsRequest { start_key: page.next_key.unwrap(), ..request };
    let page = nodes.node(1).list_regions(next).await.unwrap();
    assert_eq!((page.regions.len(), page.next_key), (1, None));
    let system = wire::ListRegionsRequest { system: true, ..Default::default() };
    assert_eq!(nodes.node(1).list_regions(system).await.unwrap().regions.len(), 3);
    let filter = wire::RegionFilter::MissingPeer as i32;
    let missing = wire::ListRegionsRequest { filter, ..Default::default() };
    assert_eq!(nodes.node(1).list_regions(missing).await.unwrap().regions.len(), 2);
}

/// Returns a report of region 2 with this membership, by its leader of this term.
fn at(conf_version: u64, term: u64) -> Vec<wire::RegionReport> {
    vec![wire::RegionReport { term, ..report(&region(2, conf_version, &[])) }]
}

#[tokio::test]
async fn a_new_placement_leader_answers_no_earlier_epoch_and_no_earlier_leader_of_a_region() {
    let nodes = Nodes::new();
    nodes.node(1).tick().await;
    let beat = async |node: usize, sequence, regions| {
        nodes.node(node).heartbeat(heartbeat(1, 1, sequence, regions)).await.unwrap()
    };
    beat(1, 1, at(1, 5)).await;
    // Each way of asking is the first to learn of a change.
    let mut sequence = 1;
    for (way, conf_version) in (2..7).enumerate() {
        sequence += 1;
        let term = 5 + conf_version;
        beat(1, sequence, at(conf_version, term)).await;
        let service = nodes.node(1);
        let found = match way {
            0 => service.region_by_key(b"k").await.unwrap(),
            1 => service.region_by_id(RegionId(2)).await.unwrap(),
            2 => service.scan_regions(&KeyRange::all(), 0).await.unwrap().pop(),
            3 => {
                let request = wire::ListRegionsRequest { region_id: 2, ..Default::default() };
                let listed = service.list_regions(request).await.unwrap().regions;
                super::super::wire::info_of(listed[0].report.as_ref().unwrap())
            }
            _ => service
                .batch_scan_regions(&[KeyRange::all()], 0, true)
                .await
                .unwrap()
                .unwrap()
                .pop(),
        };
        let found = found.unwrap();
        assert_eq!((found.region.epoch.conf_version, found.term.0), (conf_version, term), "{way}");
        nodes.elect(Some(1));
        // The leader before reports late.
        sequence += 1;
        beat(1, sequence, at(conf_version - 1, term - 1)).await;
        sequence += 1;
        beat(1, sequence, at(conf_version, term - 1)).await;
        let next = nodes.node(1).region_by_key(b"k").await.unwrap().unwrap();
        assert_eq!(next.region.epoch.conf_version, conf_version, "{way}");
        assert_eq!(next.leader, None, "{way}: a leader of term {} deposes none", term - 1);
        sequence += 1;
        beat(1, sequence, at(conf_version, term)).await;
        assert!(nodes.node(1).region_by_key(b"k").await.unwrap().unwrap().leader.is_some());
    }
}

#[tokio::test]
async fn answers_that_wait_for_the_same_change_are_one_proposal() {
    let nodes = Nodes::new();
    nodes.node(1).tick().await;
    nodes.node(1).heartbeat(heartbeat(1, 1, 1, at(2, 6))).await.unwrap();
    let before = nodes.world.lock().proposals;
    let ask = || async { nodes.node(1).region_by_key(b"k").await.unwrap().unwrap() };
    let found = tokio::join!(ask(), ask(), ask(), ask());
    assert!([&found.1, &found.2, &found.3].iter().all(|other| other.region == found.0.region));
    assert_eq!(nodes.world.lock().proposals, before + 1);
    ask().await;
    assert_eq!(nodes.world.lock().proposals, before + 1, "what is persisted costs nothing");
}

#[tokio::test]
async fn a_former_leader_that_has_not_noticed_answers_nothing() {
    let nodes = two_regions().await;
    nodes.node(1).region_by_key(b"k").await.unwrap().unwrap();
    let term = nodes.world.lock().term;
    nodes.elect(Some(2));
    nodes.world.lock().former = Some((super::fake::address(1), term));
    let refused = nodes.node(1).region_by_key(b"k").await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    assert!(refused.message().contains("not leader"), "{refused}");
    assert!(nodes.node(2).region_by_key(b"k").await.unwrap().is_some());
}
