//! Which cluster and store a directory belongs to, and how a cluster begins.

use super::RaftStore;
use super::journal::write_now;
use stele_storage::{EngineView, StorageEngine};
use stele_types::{Region, Result, StoreIdent, keyspace};

impl<E: StorageEngine> RaftStore<E> {
    /// Makes the first store of a cluster: its identity and its regions, in one batch. The regions
    /// begin when the store opens.
    pub fn bootstrap(engine: &E, ident: &StoreIdent, regions: &[Region]) -> Result<()> {
        let descriptors = regions.iter().map(|it| (keyspace::region_key(it.id), it.encode()));
        let own = (keyspace::ident_key(), ident.encode());
        let pairs: Vec<_> = std::iter::once(own).chain(descriptors).collect();
        write_now(engine, &pairs, Vec::new())
    }

    /// What the store says it is; `None` before it was told.
    pub fn ident(engine: &E) -> Result<Option<StoreIdent>> {
        let pair = engine.view()?.get(&keyspace::ident_key())?;
        pair.map(|pair| StoreIdent::decode(&pair.value)).transpose()
    }

    /// Tells a store that joins a cluster what it is.
    pub fn write_ident(engine: &E, ident: &StoreIdent) -> Result<()> {
        write_now(engine, &[(keyspace::ident_key(), ident.encode())], Vec::new())
    }
}
