//! Engines of the simulated stores.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use stele_conformance::ModelEngine;
use stele_engine::{Replay, Store};
use stele_simulated_disk::{SimOptions, SimVfs};
use stele_storage::StorageEngine;
use stele_types::{ManualClock, StoreId};
use stele_vfs::Vfs;

pub(crate) trait Backend {
    type Engine: StorageEngine + 'static;

    fn create(&mut self, store: u64) -> Arc<Self::Engine>;

    /// Removes the manifest, if the engine has one.
    fn lose_manifest(&mut self, _store: u64) {}

    /// Sets whether the device of an engine counts as nearly full.
    fn set_full(&self, _engine: &Self::Engine, _is_full: bool) {}

    /// Opens the engine again with the state that a power loss leaves.
    fn crash(&mut self, store: u64, engine: Arc<Self::Engine>, seed: u64) -> Arc<Self::Engine>;
}

/// Model engine: an append is durable at once, everything else is in memory. Each get counts as a read
/// of the device.
#[derive(Default)]
pub(crate) struct ModelBackend;

fn cold(engine: ModelEngine) -> Arc<ModelEngine> {
    engine.set_cold(true);
    Arc::new(engine)
}

impl Backend for ModelBackend {
    type Engine = ModelEngine;

    fn create(&mut self, _store: u64) -> Arc<ModelEngine> {
        cold(ModelEngine::new())
    }

    fn set_full(&self, engine: &ModelEngine, is_full: bool) {
        engine.set_full(is_full);
    }

    fn crash(&mut self, _store: u64, engine: Arc<ModelEngine>, _seed: u64) -> Arc<ModelEngine> {
        cold(engine.crash())
    }
}

/// The product's engine on a simulated disk, with limits so small that little work causes segment
/// rolls, flushes, merges and garbage collection.
#[derive(Default)]
pub(crate) struct SteleBackend {
    disks: BTreeMap<u64, SimVfs>,
}

impl SteleBackend {
    fn open(&self, store: u64) -> Arc<Store> {
        let options = stele_engine::Options {
            store: Some(StoreId(store)),
            segment_bytes_max: 64 << 10,
            recycle_segments_max: 1,
            direct_io: false,
            entry_cache_bytes_max: 8 << 10,
            value_cache_bytes_max: 0,
            memtable_bytes_max: 8 << 10,
            block_cache_bytes_max: 64 << 10,
            run_bytes_max: 4 << 10,
            checkpoint_log_bytes_max: 256 << 10,
            reserved_bytes: 0,
            background: false,
            ..stele_engine::Options::default()
        };
        let vfs = Arc::new(self.disks[&store].clone());
        let clock = Arc::new(ManualClock::at(1_000_000));
        let opened = Store::open(vfs, clock, Path::new("/store"), options, Replay::Committed);
        Arc::new(opened.unwrap().0)
    }
}

impl Backend for SteleBackend {
    type Engine = Store;

    fn create(&mut self, store: u64) -> Arc<Store> {
        let disk = SimVfs::new(SimOptions { seed: store, ..SimOptions::default() });
        self.disks.insert(store, disk);
        self.open(store)
    }

    fn lose_manifest(&mut self, store: u64) {
        let disk = &self.disks[&store];
        let is_manifest = |path: &std::path::PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("manifest-"))
        };
        let manifests: Vec<_> = disk.paths().into_iter().filter(is_manifest).collect();
        assert!(!manifests.is_empty(), "{:?}", disk.paths());
        manifests.iter().for_each(|path| disk.unlink(path).unwrap());
        disk.sync_dir(Path::new("/store/index")).unwrap();
    }

    fn crash(&mut self, store: u64, engine: Arc<Store>, seed: u64) -> Arc<Store> {
        let left = self.disks[&store].restart(seed);
        drop(engine);
        self.disks.insert(store, left);
        self.open(store)
    }
}
