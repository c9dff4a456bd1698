//! Damage to the logs of all stores at once loses nothing and is repaired within a minute.

use crate::common::seeds;
use stele_sim::damaged_payloads::{plan, run};
use stele_sim::helical::REPAIR_NANOS;

// Catalogue: 11.
#[test]
fn damaged_logs_of_all_stores_recover_from_each_other_before_any_of_them_votes() {
    let (mut repaired, mut newest_everywhere) = (0, 0);
    for seed in seeds() {
        let (result, outcome) = run(&plan(seed));
        let replay = format!(
            "STELE_SEED={seed} cargo test -p stele-sim --test all damaged_payloads: {result:?}"
        );
        println!("{replay}");
        assert_eq!(outcome.violation, None, "{replay}\n{}", outcome.tail);
        assert!(result.nanos <= REPAIR_NANOS, "{replay}");
        repaired += result.repaired;
        newest_everywhere += u64::from(result.stores == 3 && result.waited > 0);
    }
    let alone = seeds().count() == 1;
    assert!(alone || repaired > 0 && newest_everywhere > 0, "{repaired} entries repaired");
}

#[test]
fn the_same_damaged_payloads_are_repaired_in_the_same_way() {
    let (one, other) = (run(&plan(3)), run(&plan(3)));
    assert_eq!((one.0, one.1.hash), (other.0, other.1.hash));
}
