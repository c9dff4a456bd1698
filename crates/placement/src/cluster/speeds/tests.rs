use crate::cluster::tests::{Pairs, commit, founded, load};
use crate::speed::SpeedClass;
use crate::store::StoreState;
use crate::{Cluster, Millis, NodeReport, StoreReport, pairs};
use stele_types::{DeviceSpeed, OpCost, StoreId};

/// Both stores report this speed in operations a second; returns whether a class changed.
fn beat(cluster: &mut Cluster, per_second: [u64; 2], second: u64) -> bool {
    let stores = [1, 2].map(|id| StoreReport {
        id: StoreId(id),
        device: DeviceSpeed {
            write: OpCost {
                fixed_nanos: 1_000_000_000 / per_second[id as usize - 1],
                picos_per_byte: 0,
            },
            writes: 9,
            ..DeviceSpeed::default()
        },
        ..StoreReport::default()
    });
    let node = NodeReport { address: "n1:1".into(), ..NodeReport::default() };
    cluster.record_heartbeat(&node, &stores, Millis(second * 1000))
}

/// Commits the records that are due; returns their number.
fn save(pairs: &mut Pairs, cluster: &mut Cluster, second: u64) -> usize {
    let changes = cluster.plan_speeds(Millis(second * 1000), 1_000_000 + second);
    let count = changes.len();
    commit(pairs, cluster, changes);
    count
}

fn classes(cluster: &Cluster, store: u64) -> [u8; 2] {
    let store = StoreId(store);
    [cluster.class_of(store).0, cluster.data_class_of(store).0]
}

#[test]
fn classes_are_written_when_they_change_and_the_next_leader_knows_them_at_once() {
    let (mut pairs, mut cluster) = founded();
    assert_eq!(save(&mut pairs, &mut cluster, 0), 0, "nothing is known");
    assert!(beat(&mut cluster, [2048, 2048], 1));
    assert_eq!(save(&mut pairs, &mut cluster, 1), 2);
    let (mut changes, mut writes) = (0, 0);
    for second in 2..40 {
        changes += usize::from(beat(&mut cluster, [2048, 100 + second], second));
        writes += save(&mut pairs, &mut cluster, second);
    }
    assert_eq!((changes, writes), (1, 1));
    assert_eq!(classes(&cluster, 2), [13, 22]);

    let mut next = load(&pairs);
    assert_eq!([classes(&next, 1), classes(&next, 2)], [[22, 22], [13, 22]]);
    assert_eq!(save(&mut pairs, &mut next, 0), 0);
    // Its first report, a fast one, does not bring the leaders back.
    assert!(!beat(&mut next, [2048, 2048], 1));
    assert_eq!(classes(&next, 2), [13, 22]);
}

#[test]
fn a_tombstone_loses_its_class_and_its_record() {
    let (mut pairs, mut cluster) = founded();
    beat(&mut cluster, [4096, 256], 1);
    save(&mut pairs, &mut cluster, 1);
    let mut gone = cluster.store(StoreId(2)).unwrap().clone();
    gone.state = StoreState::Tombstone;
    commit(&mut pairs, &mut cluster, vec![pairs::store(&gone)]);
    assert!(cluster.speed(StoreId(2)).is_none());
    let due = cluster.plan_speeds(Millis(2000), 2);
    assert_eq!(due, [pairs::speed(StoreId(2), None)]);
    // A leader that loads before the record is deleted forgets the class, too.
    assert!(load(&pairs).speed(StoreId(2)).is_none());
    commit(&mut pairs, &mut cluster, due);
    assert_eq!(cluster.plan_speeds(Millis(3000), 3), []);
    assert!(!pairs.contains_key(&pairs::speed(StoreId(2), None).key));
}

#[test]
fn a_failed_store_and_a_report_without_a_speed_change_no_class() {
    let (_, mut cluster) = founded();
    beat(&mut cluster, [4096, 256], 1);
    let before = classes(&cluster, 2);
    let node = NodeReport { address: "n1:1".into(), ..NodeReport::default() };
    let write = OpCost { fixed_nanos: 1, picos_per_byte: 1 };
    let device = DeviceSpeed { write, writes: 1, ..DeviceSpeed::default() };
    for second in 2..100 {
        let reports = [
            StoreReport { id: StoreId(1), ..StoreReport::default() },
            StoreReport { id: StoreId(2), has_failed: true, device, ..StoreReport::default() },
        ];
        assert!(!cluster.record_heartbeat(&node, &reports, Millis(second * 1000)));
    }
    assert_eq!(classes(&cluster, 2), before);
    assert_eq!(cluster.class_of(StoreId(1)), SpeedClass(24));
    assert_eq!(cluster.class_of(StoreId(99)), SpeedClass(16), "the lower of two medians");
}
