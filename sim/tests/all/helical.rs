//! Damage to every replica in different places loses nothing and is repaired: within two passes of the
//! scrub, or a minute, as the run itself checks.

use crate::common::seeds;
use stele_sim::helical::{plan, run};

// Catalogue: 11, 13.
#[test]
fn damage_to_every_replica_in_different_places_is_repaired_and_loses_nothing() {
    let (mut found, mut repaired) = (0, 0);
    for seed in seeds() {
        let (helix, outcome) = run(&plan(seed));
        let replay =
            format!("STELE_SEED={seed} cargo test -p stele-sim --test all helical: {helix:?}");
        println!("{replay}");
        assert_eq!(outcome.violation, None, "{replay}\n{}", outcome.tail);
        assert!(helix.runs > 0 && helix.reopened > 0, "{replay}");
        // Clients may overwrite a key before its damage is found.
        (found, repaired) = (found + helix.found, repaired + helix.repaired);
        assert_eq!(outcome.counts.failures, 0, "a store stopped: {replay}");
    }
    assert!(found >= repaired && repaired > 0, "{repaired} of {found} values repaired");
}
