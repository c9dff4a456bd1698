//! Identity of a store (its cluster and store id), and bootstrap of a cluster.

use super::RaftStore;
use super::journal::write_now;
use stele_storage::{EngineView, StorageEngine};
use stele_types::{Region, Result, StoreIdent, keyspace};

impl<E: StorageEngine> RaftStore<E> {
    /// Bootstraps the first store of a cluster: writes its identity and its regions in one batch.
    /// The regions start when the store opens.
    pub fn bootstrap(engine: &E, ident: &StoreIdent, regions: &[Region]) -> Result<()> {
        let descriptors = regions.iter().map(|it| (keyspace::region_key(it.id), it.encode()));
        let own = (keyspace::ident_key(), ident.encode());
        let pairs: Vec<_> = std::iter::once(own).chain(descriptors).collect();
        write_now(engine, &pairs, Vec::new())
    }

    /// Reads the store's identity; `None` before it is written.
    pub fn ident(engine: &E) -> Result<Option<StoreIdent>> {
        let pair = engine.view()?.get(&keyspace::ident_key())?;
        pair.map(|pair| StoreIdent::decode(&pair.value)).transpose()
    }

    /// Writes the identity of a store that joins a cluster.
    pub fn write_ident(engine: &E, ident: &StoreIdent) -> Result<()> {
        write_now(engine, &[(keyspace::ident_key(), ident.encode())], Vec::new())
    }
}
