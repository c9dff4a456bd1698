use super::fake::{Nodes, halves, heartbeat, report};
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
