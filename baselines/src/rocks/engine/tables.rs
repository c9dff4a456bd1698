//! Tables in place of writes: who sends, who follows, and how a follower becomes a store like others.

use super::RockStore;
use crate::rocks::key_values::{KeyValues, Persistence};
use crate::rocks::mirror::{self, Own};
use crate::rocks::pairs::Applied;
use crate::rocks::region::Region;
use crate::rocks::shipments::{Shipment, Shipments, number};
use crate::rocks::tuning::Settings;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_types::{CommittedEntry, LogIndex, RegionId, Result};

/// The log of a store's own facts, which consensus core writes through the engine.
const JOURNAL: RegionId = RegionId(0);

/// A store's place in its group.
#[derive(Debug)]
pub(super) struct Tables {
    shipments: Arc<Shipments>,
    me: u64,
    dir: PathBuf,
    settings: Settings,
    /// Held while a shipment is taken: nobody opens the database meanwhile. Locked before `role`.
    taking: Mutex<()>,
    role: Mutex<Role>,
}

#[derive(Clone, Debug)]
enum Role {
    /// Nobody applied anything yet.
    Open,
    /// The database is closed.
    Follows(Following),
    /// Applies as `original` does, until it is opened again.
    Applies,
}

#[derive(Clone, Debug)]
struct Following {
    own: Own,
    /// Whose tables it has.
    sender: Option<u64>,
}

impl Tables {
    pub fn new(dir: &Path, settings: &Settings) -> Self {
        let role =
            if settings.persistence == Persistence::Tables { Role::Open } else { Role::Applies };
        Self {
            shipments: settings.shipments.clone(),
            me: number(),
            dir: dir.to_path_buf(),
            settings: settings.clone(),
            taking: Mutex::new(()),
            role: Mutex::new(role),
        }
    }

    pub fn is_sender(&self) -> bool {
        self.shipments.is_sender(self.me)
    }

    fn open(&self) -> Result<KeyValues> {
        KeyValues::open(&self.dir, &self.settings.pair_options(), self.settings.persistence)
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        self.shipments.leave(self.me);
    }
}

/// Whether a store with these regions may have the shipment as its key-values: it holds them and
/// nothing else, something that a crash would lose, and nothing that is not applied here.
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
    /// The key-values. A follower has them from here on.
    pub(super) fn pairs(&self) -> Result<Arc<KeyValues>> {
        let open = self.pairs.read().clone();
        open.map_or_else(|| self.catch_up(), Ok)
    }

    /// Whether the store has no open key-values, but tables of another one and its log.
    pub fn is_following(&self) -> bool {
        matches!(*self.tables.role.lock(), Role::Follows(_))
    }

    /// Whether it is enough to remember that these entries are applied: they are in the Raft log, and
    /// another store ships their effects.
    pub(super) fn follows(&self, id: RegionId, entries: &[CommittedEntry]) -> Result<bool> {
        let tables = &self.tables;
        if tables.settings.persistence != Persistence::Tables || id == JOURNAL {
            return Ok(false);
        }
        let upto = Self::check_next(self.state.lock().region(id)?, id, entries)?;
        let is_first = tables.shipments.is_first(tables.me, id, upto);
        let mut role = tables.role.lock();
        if matches!(*role, Role::Open) {
            match is_first {
                true => *role = Role::Applies,
                false => self.begin_to_follow(&mut role)?,
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

    /// Closes the key-values, everything in them kept. Not while somebody looks at them, nor when they
    /// have pairs of a region that left.
    fn begin_to_follow(&self, role: &mut Role) -> Result<()> {
        let mut open = self.pairs.write();
        let Some(pairs) = open.as_ref() else { return Ok(()) };
        let is_used = Arc::strong_count(pairs) > 1 || Arc::strong_count(&pairs.db) > 1;
        if is_used || self.state.lock().regions.values().any(|region| region.destroyed) {
            return Ok(());
        }
        let own = Own::of(&pairs.db, &pairs.path)?;
        self.keep_applied(pairs)?;
        *open = None;
        *role = Role::Follows(Following { own, sender: None });
        Ok(())
    }

    /// Opens the tables and applies what they lack.
    fn catch_up(&self) -> Result<Arc<KeyValues>> {
        let _taking = self.tables.taking.lock();
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

    /// Ships the tables. What they hold survives a crash here too.
    pub(super) fn ship(&self, pairs: &KeyValues) -> Result<()> {
        let tables = &self.tables;
        let dir = tables.dir.join(format!("{}{}", mirror::SHIPMENT, number()));
        let mut shipment = Shipment { sender: tables.me, dir, applied: BTreeMap::new() };
        let kept = pairs.ship(&shipment.dir, &tables.settings.pair_options())?;
        self.note_kept(&kept.iter().map(|(id, it)| (*id, (it.life, it.index))).collect());
        let others = kept.iter().filter(|(id, _)| **id != JOURNAL);
        shipment.applied = others.map(|(id, it)| (*id, it.index)).collect();
        tables.shipments.publish(shipment);
        Ok(())
    }

    /// A follower takes the newest shipment that fits; false on any other store. Rule: its tables are
    /// on the device under their name before the log they stand for may be truncated.
    pub(super) fn take_shipment(&self) -> Result<bool> {
        let tables = &self.tables;
        let _taking = tables.taking.lock();
        let Role::Follows(Following { mut own, sender }) = tables.role.lock().clone() else {
            return Ok(false);
        };
        let mut regions = self.state.lock().regions.clone();
        regions.remove(&JOURNAL);
        let Some(shipment) = tables.shipments.newest(|it| fits(it, &regions)) else {
            return Ok(true);
        };
        let mut kept = BTreeMap::new();
        for (id, region) in &regions {
            let Some(&index) = shipment.applied.get(id) else { continue };
            own.applied.insert(*id, Applied { life: region.life, index, start: region.truncated });
            kept.insert(*id, (region.life, index));
        }
        mirror::make_next(&tables.dir, &shipment.dir, &own, sender == Some(shipment.sender))?;
        mirror::switch(&tables.dir)?;
        *tables.role.lock() = Role::Follows(Following { own, sender: Some(shipment.sender) });
        self.note_kept(&kept);
        Ok(true)
    }

    /// How far each region is applied.
    pub(super) fn all_applied(&self) -> BTreeMap<RegionId, (u64, LogIndex)> {
        let state = self.state.lock();
        let regions = state.regions.iter();
        regions.map(|(id, region)| (*id, (region.life, region.applied))).collect()
    }
}
