//! Damage to every replica in different places loses nothing and is mended within a minute.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use stele_sim::helical::{MEND_NANOS, plan, run};

// Catalogue: 13.
#[test]
fn damage_to_every_replica_in_different_places_is_mended_and_loses_nothing() {
    for seed in 1..=6 {
        let plan = plan(seed);
        let (helix, outcome) = run(&plan);
        assert_eq!(outcome.violation, None, "seed {seed}: {helix:?}\n{}", outcome.tail);
        println!("seed {seed}: {helix:?}, {:?}", outcome.counts);
        assert!(helix.damaged >= 5, "seed {seed}: {helix:?}");
        assert!(helix.found >= helix.damaged / 2 && helix.mended > 0, "seed {seed}: {helix:?}");
        assert!(helix.nanos <= MEND_NANOS, "seed {seed}: {helix:?}");
        assert_eq!(outcome.counts.failures, 0, "seed {seed}: a store stopped");
    }
}
