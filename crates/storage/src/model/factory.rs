//! The model as a subject of its own suite.

use super::ModelEngine;
use crate::conformance::Factory;
use stele_types::Result;

/// Factory of model engines; a device is the state that the last crash left.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModelFactory;

impl Factory for ModelFactory {
    type Engine = ModelEngine;
    type Disk = ModelEngine;

    fn disk(&self, _seed: u64) -> ModelEngine {
        ModelEngine::new()
    }

    fn open(&self, disk: &ModelEngine) -> Result<ModelEngine> {
        Ok(disk.crash())
    }

    fn crash(&self, _disk: ModelEngine, engine: ModelEngine, _seed: u64) -> ModelEngine {
        engine.crash()
    }

    fn replay_command(&self) -> String {
        "cargo test -p stele-storage --test all conformance model_passes_random_histories".into()
    }
}
