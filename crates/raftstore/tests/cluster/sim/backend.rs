//! The engines a simulated store may run on.

use std::sync::Arc;
use stele_storage::{ModelEngine, StorageEngine};

/// Makes engines, and crashes them.
pub trait Backend {
    type Engine: StorageEngine + 'static;

    /// An empty one for a store.
    fn create(&mut self, store: u64) -> Arc<Self::Engine>;

    /// What a power cut leaves of it, opened again.
    fn crash(&mut self, store: u64, engine: Arc<Self::Engine>, seed: u64) -> Arc<Self::Engine>;
}

/// The model: an append is durable at once, everything else is in memory.
#[derive(Default)]
pub struct ModelBackend;

impl Backend for ModelBackend {
    type Engine = ModelEngine;

    fn create(&mut self, _store: u64) -> Arc<ModelEngine> {
        Arc::new(ModelEngine::new())
    }

    fn crash(&mut self, _store: u64, engine: Arc<ModelEngine>, _seed: u64) -> Arc<ModelEngine> {
        Arc::new(engine.crash())
    }
}
