//! The conformance suite of all storage engines, run on the product's engine.

use crate::common::{DIR, clock, tiny};
use std::path::Path;
use std::sync::Arc;
use stele_conformance::{self as conformance, Factory};
use stele_engine::{Replay, Store};
use stele_simulated_disk::SimVfs;

struct SteleFactory;

impl Factory for SteleFactory {
    type Engine = Store;
    type Disk = SimVfs;

    fn disk(&self, seed: u64) -> SimVfs {
        crate::common::disk(seed)
    }

    fn open(&self, disk: &SimVfs) -> stele_engine::Result<Store> {
        let vfs = Arc::new(disk.clone());
        Store::open(vfs, clock(), Path::new(DIR), tiny(), Replay::Committed).map(|(store, _)| store)
    }

    fn crash(&self, disk: SimVfs, engine: Store, seed: u64) -> SimVfs {
        let left = disk.restart(seed);
        drop(engine);
        left
    }

    fn replay_command(&self) -> String {
        "cargo test -p stele-engine --test all conformance random".into()
    }
}

#[test]
fn the_store_keeps_every_law_of_a_storage_engine() {
    let laws = conformance::run(&SteleFactory).unwrap();
    println!("{laws} laws hold");
}

#[test]
fn random_histories_agree_with_the_model() {
    let seeds = match std::env::var("STELE_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..20).collect(),
    };
    for seed in seeds {
        if let Err(failure) = conformance::random(&SteleFactory, seed, 200) {
            panic!("{failure}");
        }
    }
}
