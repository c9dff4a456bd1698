//! Shipped tables in place of writes: senders, followers, and the change from follower to an
//! ordinary store.

use super::RockStore;
use crate::designs::rocks::key_values::{KeyValues, Persistence};
use crate::designs::rocks::mirror::{self, Own};
use crate::designs::rocks::pairs::Applied;
use crate::designs::rocks::region::Region;
use crate::designs::rocks::shipments::{Shipment, Shipments, number};
use crate::designs::rocks::tuning::Settings;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_types::{CommittedEntry, LogIndex, RegionId, Result};

const JOURNAL: RegionId = RegionId(0);

#[derive(Debug)]
pub(super) struct Tables {
    shipments: Arc<Shipments>,
    id: u64,
    dir: PathBuf,
    settings: Settings,
    /// Held while a shipment is installed: the database must not be opened meanwhile. Lock order:
    /// before `role`.
    switching: Mutex<()>,
    role: Mutex<Role>,
}

#[derive(Clone, Debug)]
enum Role {
    /// No entry was applied yet.
    Open,
    /// The database is closed.
    Follows(Following),
    /// Applies like `original`, until it is reopened.
    Applies,
}

#[derive(Clone, Debug)]
struct Following {
    own: Own,
    sender: Option<u64>,
}

impl Tables {
    pub(super) fn new(dir: &Path, settings: &Settings) -> Self {
        let role =
            if settings.persistence == Persistence::Tables { Role::Open } else { Role::Applies };
        Self {
            shipments: settings.shipments.clone(),
            id: number(),
            dir: dir.to_path_buf(),
            settings: settings.clone(),
            switching: Mutex::new(()),
            role: Mutex::new(role),
        }
    }

    pub(super) fn is_sender(&self) -> bool {
        self.shipments.is_sender(self.id)
    }

    fn open(&self) -> Result<KeyValues> {
        KeyValues::open(&self.dir, &self.settings.pair_options(), self.settings.persistence)
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        self.shipments.leave(self.id);
    }
}

/// Returns true if the shipment can replace the key-values of a store with these regions: it holds
/// exactly them, at least one entry beyond the checkpoint, and no entry that is not applied here.
fn fits(shipment: &Shipment, regions: &BTreeMap<RegionId, Region>) -> bool {
    let inside = |id, region: &Region| {
        let index = shipment.applied.get(id);
        index.is_some_and(|it| (region.checkpointed..=region.applied).contains(it))
    };
    let is_new =
        |id, region: &Region| shipment.applied.get(id).is_some_and(|it| *it > region.checkpointed);
    shipment.applied.keys().eq(regions.keys())
        && regions.iter().all(|(id, region)| inside(id, region))
        && regions.iter().any(|(id, region)| is_new(id, region))
}

impl RockStore {
    /// Returns the key-values; opens them on a follower.
    pub(super) fn pairs(&self) -> Result<Arc<KeyValues>> {
        let open = self.pairs.read().clone();
        open.map_or_else(|| self.catch_up(), Ok)
    }

    /// Returns true if the store has no open key-values, but another store's tables and its own
    /// log.
    pub fn is_following(&self) -> bool {
        matches!(*self.tables.role.lock(), Role::Follows(_))
    }

    /// Records entries as applied without writing them, on a follower: they are in the Raft log,
    /// and another store ships their effects. Returns false if they must be applied here.
    pub(super) fn follows(&self, id: RegionId, entries: &[CommittedEntry]) -> Result<bool> {
        let tables = &self.tables;
        if tables.settings.persistence != Persistence::Tables || id == JOURNAL {
            return Ok(false);
        }
        let upto = Self::check_next(self.state.lock().region(id)?, id, entries)?;
        let is_first = tables.shipments.record_applied(tables.id, id, upto);
        let mut role = tables.role.lock();
        if matches!(*role, Role::Open) {
            match is_first {
                true => *role = Role::Applies,
                false => self.start_following(&mut role)?,
            }
        }
        if is_first || !matches!(*role, Role::Follows(_)) {
            return Ok(false);
        }
        if let Some(region) = self.state.lock().regions.get_mut(&id) {
            region.applied = upto;
        }
        Ok(true)
    }

    /// Persists and closes the key-values. Does nothing while they are in use, or if they have
    /// pairs of a destroyed region.
    fn start_following(&self, role: &mut Role) -> Result<()> {
        let mut open = self.pairs.write();
        let Some(pairs) = open.as_ref() else { return Ok(()) };
        let is_used = Arc::strong_count(pairs) > 1 || Arc::strong_count(&pairs.db) > 1;
        if is_used || self.state.lock().regions.values().any(|region| region.destroyed) {
            return Ok(());
        }
        let own = Own::of(&pairs.db, &pairs.path)?;
        self.persist_applied(pairs)?;
        *open = None;
        *role = Role::Follows(Following { own, sender: None });
        Ok(())
    }

    fn catch_up(&self) -> Result<Arc<KeyValues>> {
        let _switching = self.tables.switching.lock();
        let mut role = self.tables.role.lock();
        if let Some(pairs) = self.pairs.read().clone() {
            return Ok(pairs);
        }
        let pairs = Arc::new(self.tables.open()?);
        let regions = self.state.lock().regions.clone();
        let lacks = regions.iter().map(|(id, it)| (*id, (it.checkpointed, it.applied)));
        self.in_log_order(&lacks.collect(), |id, entry| match regions.get(&id) {
            Some(region) => {
                self.make(&pairs, (id, region), entry.index, std::slice::from_ref(entry))
            }
            None => Ok(()),
        })?;
        *self.pairs.write() = Some(pairs.clone());
        *role = Role::Applies;
        Ok(pairs)
    }

    /// Ships the tables. Their content survives a crash of this store too.
    pub(super) fn ship(&self, pairs: &KeyValues) -> Result<()> {
        let tables = &self.tables;
        let dir = tables.dir.join(format!("{}{}", mirror::SHIPMENT, number()));
        let mut shipment = Shipment { sender: tables.id, dir, applied: BTreeMap::new() };
        let persisted = pairs.ship(&shipment.dir, &tables.settings.pair_options())?;
        self.note_persisted(
            &persisted.iter().map(|(id, it)| (*id, (it.incarnation, it.index))).collect(),
        );
        let others = persisted.iter().filter(|(id, _)| **id != JOURNAL);
        shipment.applied = others.map(|(id, it)| (*id, it.index)).collect();
        tables.shipments.publish(shipment);
        Ok(())
    }

    /// Installs the newest shipment that fits on a follower; returns false on other stores.
    /// Invariant: the tables are durable under their names before the log that they replace may be
    /// truncated.
    pub(super) fn install_shipment(&self) -> Result<bool> {
        let tables = &self.tables;
        let _switching = tables.switching.lock();
        let Role::Follows(Following { mut own, sender }) = tables.role.lock().clone() else {
            return Ok(false);
        };
        let mut regions = self.state.lock().regions.clone();
        regions.remove(&JOURNAL);
        let Some(shipment) = tables.shipments.newest(|it| fits(it, &regions)) else {
            return Ok(true);
        };
        let mut persisted = BTreeMap::new();
        for (id, region) in &regions {
            let Some(&index) = shipment.applied.get(id) else { continue };
            own.applied.insert(
                *id,
                Applied { incarnation: region.incarnation, index, start: region.truncated },
            );
            persisted.insert(*id, (region.incarnation, index));
        }
        mirror::make_next(&tables.dir, &shipment.dir, &own, sender == Some(shipment.sender))?;
        mirror::switch(&tables.dir)?;
        *tables.role.lock() = Role::Follows(Following { own, sender: Some(shipment.sender) });
        self.note_persisted(&persisted);
        Ok(true)
    }

    pub(super) fn all_applied(&self) -> BTreeMap<RegionId, (u64, LogIndex)> {
        let state = self.state.lock();
        let regions = state.regions.iter();
        regions.map(|(id, region)| (*id, (region.incarnation, region.applied))).collect()
    }
}
