use crate::cluster::tests::{founded, report};
use crate::operator::{Kind, Step, plan};
use crate::{Cluster, Millis, NodeReport, Operators, StoreReport};
use stele_types::{Peer, PeerId, RegionId, StoreId};

const NOW: Millis = Millis(10_000);

fn beat(cluster: &mut Cluster, live_bytes: u64) {
    let stores = [(1, 0), (2, live_bytes)].map(|(id, live_bytes)| StoreReport {
        id: StoreId(id),
        capacity_bytes: 1 << 30,
        free_bytes: 1 << 30,
        live_bytes,
        usable_bytes: 1000,
        ..StoreReport::default()
    });
    let node = NodeReport { address: "n1:1".into(), ..NodeReport::default() };
    cluster.record_heartbeat(&node, &stores, NOW);
    cluster.note_full_report("n1:1");
}

#[test]
fn bytes_on_the_way_to_a_store_count_as_held() {
    let (_, mut cluster) = founded();
    let changes = cluster.plan_ids(10).unwrap();
    cluster.apply(&changes).unwrap();
    beat(&mut cluster, 940);
    let mut large = report(RegionId(2), 5);
    large.size_bytes = 20;
    cluster.observe(large, NOW).unwrap();
    let mut operators = Operators::default();
    cluster.begin_round(&operators, NOW);
    assert!(!cluster.is_nearly_full(StoreId(2)));
    let info = cluster.regions().get(RegionId(2)).unwrap();
    let new = Peer { id: PeerId(0), store: StoreId(2), ..Peer::default() };
    let old = info.region.peers[0];
    let steps = vec![
        Step::AddLearner(new),
        Step::Enter { promote: vec![new], demote: vec![old] },
        Step::Leave,
        Step::Remove(old),
    ];
    let operator = plan::operator(info, Kind::Manual, steps, "ordered").unwrap();
    operators.admit(&mut cluster, operator, NOW).unwrap();
    assert_eq!(cluster.bytes_coming(&operators).get(&StoreId(2)), Some(&20));
    cluster.begin_round(&operators, NOW);
    assert!(cluster.is_nearly_full(StoreId(2)));
    // The move ends; the store keeps its state until it has room.
    operators.cancel(RegionId(2), NOW);
    for (live_bytes, is_nearly_full) in
        [(930, true), (920, true), (919, false), (949, false), (950, true)]
    {
        beat(&mut cluster, live_bytes);
        cluster.begin_round(&operators, NOW);
        assert_eq!(cluster.is_nearly_full(StoreId(2)), is_nearly_full, "{live_bytes} of 1000");
    }
}
