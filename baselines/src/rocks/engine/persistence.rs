//! What survives a crash without the Raft log.

use super::RockStore;
use crate::rocks::key_values::{Change, KeyValues, Persistence};
use crate::rocks::region::Region;
use std::collections::BTreeMap;
use stele_types::{LogIndex, RegionId, Result};

impl RockStore {
    /// Notes that everything applied by `before` survives a crash.
    pub(super) fn note_kept(&self, before: &BTreeMap<RegionId, (u64, LogIndex)>) {
        for (id, region) in &mut self.state.lock().regions {
            if let Some((_, kept)) = before.get(id).filter(|(life, _)| *life == region.life) {
                region.checkpointed = region.checkpointed.max(*kept);
            }
        }
    }

    /// Notes what RocksDB flushed of its own accord.
    pub(super) fn note_flushed(&self, pairs: &KeyValues) -> Result<()> {
        let behind = |region: &Region| region.checkpointed < region.applied;
        let due: Vec<RegionId> = {
            let state = self.state.lock();
            let due = state.regions.iter().filter(|(_, region)| behind(region));
            due.map(|(id, _)| *id).collect()
        };
        let mut kept = BTreeMap::new();
        for id in due {
            if let Some(flushed) = pairs.flushed(id)? {
                kept.insert(id, (flushed.life, flushed.index));
            }
        }
        self.note_kept(&kept);
        Ok(())
    }

    /// Makes a change of ranges, and everything before it, survive a crash.
    pub(super) fn make_and_keep(&self, pairs: &KeyValues, change: &Change) -> Result<()> {
        pairs.make(change)?;
        self.keep_applied(pairs)
    }

    /// Keeps everything applied so far.
    pub(super) fn keep_applied(&self, pairs: &KeyValues) -> Result<()> {
        let applied = self.all_applied();
        pairs.keep()?;
        self.note_kept(&applied);
        Ok(())
    }

    /// RocksDB flushes and compacts on threads of its own; what is left is to keep up with them.
    pub(super) fn keep_up(&self) -> Result<()> {
        if self.take_shipment()? {
            return Ok(());
        }
        let Some(pairs) = self.pairs.read().clone() else { return Ok(()) };
        let is_due = pairs.unkept_bytes() >= self.keep_after_bytes;
        match pairs.persistence {
            Persistence::SyncedLog => {}
            Persistence::Flushes => self.note_flushed(&pairs)?,
            Persistence::Tables if is_due && self.tables.is_sender() => self.ship(&pairs)?,
            Persistence::Log | Persistence::Tables | Persistence::FlushesAndValueLog => {
                if is_due {
                    self.keep_applied(&pairs)?;
                }
            }
        }
        Ok(())
    }
}
