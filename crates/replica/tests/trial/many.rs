//! Tests of many regions on one store.

use super::*;

pub(super) fn many(count: u64) -> Vec<Region> {
    let bound = |i: u64| Bytes::from(format!("{i:05}"));
    let end = |i: u64| if i == count { Bytes::new() } else { bound(i) };
    let start = |i: u64| if i == 1 { Bytes::new() } else { bound(i - 1) };
    let region = |i: u64| Region {
        id: RegionId(i + 100),
        range: KeyRange::new(start(i), end(i)),
        epoch: RegionEpoch { conf_version: 1, version: 1 },
        peers: (1..=3).map(|store| peer(i * 10 + store, store)).collect(),
        ..Region::default()
    };
    (1..=count).map(region).collect()
}

#[test]
fn a_thousand_resting_regions_cost_nothing() {
    let mut trial = Trial::with(1, |options| options.hibernate_after_ticks = 20);
    trial.stores.clear();
    let regions = many(1_000);
    for store in 1..=3 {
        trial.add_store(store, &regions);
    }
    trial.ticks(120);
    for store in 1..=3 {
        assert!(trial.is_hibernating(store), "store {store}");
    }
    let mut said = Vec::new();
    for _ in 0..200 {
        trial.advance(TICK);
        let now = trial.clock();
        let cores = trial.stores.values_mut().map(|store| &mut store.core);
        said.extend(cores.flat_map(|core| core.poll(now).unwrap().messages));
    }
    // One probe a second, for one region after the other.
    for store in 1..=3 {
        let own = said.iter().filter(|message| message.from_store == StoreId(store));
        let regions: BTreeSet<RegionId> = own.clone().map(|message| message.region).collect();
        assert!((9..=11).contains(&own.count()), "store {store}: {said:?}");
        assert!(regions.len() >= 9, "store {store}: {regions:?}");
    }
    assert!(said.iter().all(|message| message.body == Body::ValueRepairRequest(Vec::new())));
    said.into_iter().for_each(|message| trial.in_flight.push_back(message));
    trial.settle();
    (1..=3).for_each(|store| assert!(trial.is_hibernating(store), "store {store} was woken"));
    // One write wakes one region and no other.
    let region = RegionId(101);
    let leader = trial.leader(region).unwrap();
    let id = trial.request();
    let header = trial.header(region);
    let write = Write { header, command: put("", "1"), only_deletes: false };
    trial.store(leader).core.step(Input::request(id, write));
    trial.settle();
    assert!(trial.is_written(id));
    let awake = trial.store(leader).core.regions().iter().filter(|it| !it.hibernating).count();
    assert_eq!(awake, 1);
}
