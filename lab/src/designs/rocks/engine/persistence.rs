//! Persistence of key-values without the Raft log.

use super::RockStore;
use crate::designs::rocks::key_values::{Change, KeyValues, Persistence};
use crate::designs::rocks::region::Region;
use std::collections::BTreeMap;
use stele_types::{LogIndex, RegionId, Result};

impl RockStore {
    /// Records the indexes in `before` as checkpointed, unless the region has a new incarnation.
    pub(super) fn note_persisted(&self, before: &BTreeMap<RegionId, (u64, LogIndex)>) {
        for (id, region) in &mut self.state.lock().regions {
            if let Some((_, persisted)) =
                before.get(id).filter(|(incarnation, _)| *incarnation == region.incarnation)
            {
                region.checkpointed = region.checkpointed.max(*persisted);
            }
        }
    }

    pub(super) fn note_flushed(&self, pairs: &KeyValues) -> Result<()> {
        let is_unpersisted = |region: &Region| region.checkpointed < region.applied;
        let due: Vec<RegionId> = {
            let state = self.state.lock();
            let due = state.regions.iter().filter(|(_, region)| is_unpersisted(region));
            due.map(|(id, _)| *id).collect()
        };
        let mut persisted = BTreeMap::new();
        for id in due {
            if let Some(flushed) = pairs.flushed(id)? {
                persisted.insert(id, (flushed.incarnation, flushed.index));
            }
        }
        self.note_persisted(&persisted);
        Ok(())
    }

    pub(super) fn apply_and_persist(&self, pairs: &KeyValues, change: &Change) -> Result<()> {
        pairs.make(change)?;
        self.persist_applied(pairs)
    }

    pub(super) fn persist_applied(&self, pairs: &KeyValues) -> Result<()> {
        let applied = self.all_applied();
        pairs.persist()?;
        self.note_persisted(&applied);
        Ok(())
    }

    /// Persists key-values when due; RocksDB flushes and compacts in its own threads.
    pub(super) fn persist_due(&self) -> Result<()> {
        if self.install_shipment()? {
            return Ok(());
        }
        let Some(pairs) = self.pairs.read().clone() else { return Ok(()) };
        let is_due = pairs.unpersisted_bytes() >= self.persist_after_bytes;
        match pairs.persistence {
            Persistence::SyncedLog => {}
            Persistence::Flushes => self.note_flushed(&pairs)?,
            Persistence::Tables if is_due && self.tables.is_sender() => self.ship(&pairs)?,
            Persistence::Log | Persistence::Tables | Persistence::FlushesAndValueLog => {
                if is_due {
                    self.persist_applied(&pairs)?;
                }
            }
        }
        Ok(())
    }
}
