//! The queue before an engine.

use std::sync::Arc;
use stele_conformance::ModelEngine;
use stele_conformance::{self as conformance, Factory};
use stele_lab::designs::queued::Queued;
use stele_vfs::SystemClock;

struct QueuedFactory;

impl Factory for QueuedFactory {
    type Engine = Queued<ModelEngine>;
    type Disk = ModelEngine;

    fn disk(&self, _seed: u64) -> ModelEngine {
        ModelEngine::new()
    }

    fn open(&self, disk: &ModelEngine) -> stele_types::Result<Self::Engine> {
        Queued::new(disk.crash(), Arc::new(SystemClock::new()))
    }

    fn crash(&self, _disk: ModelEngine, engine: Self::Engine, _seed: u64) -> ModelEngine {
        engine.inner().crash()
    }

    fn replay_command(&self) -> String {
        "cargo test -p stele-lab --test all queued".into()
    }
}

#[test]
fn an_engine_behind_a_queue_keeps_every_law() {
    assert!(conformance::run(&QueuedFactory).unwrap() > 30);
    for seed in 0..20 {
        if let Err(failure) = conformance::random(&QueuedFactory, seed, 100) {
            panic!("{failure}");
        }
    }
}
