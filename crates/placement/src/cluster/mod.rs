//! The state of the placement group.

pub mod disconnected;
pub mod drain;
pub mod ids;
pub mod regions;
pub mod stores;

use crate::Millis;
use crate::config::Config;
use crate::pairs::{self, PairChange, Record};
use crate::region_info::{RegionInfo, RegionReport};
use crate::store::{Heard, Store, StoreState};
use bytes::Bytes;
use drain::DrainStart;
use ids::Ids;
use regions::{Regions, StaleReport};
use std::collections::{BTreeMap, BTreeSet};
use stele_types::{
    ClusterId, Error, PeerId, Region, RegionEpoch, RegionId, RegionKind, Result, StoreId, mutant,
};

/// Everything that is known about a cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    id: ClusterId,
    config: Config,
    ids: Ids,
    stores: BTreeMap<StoreId, Store>,
    members_version: u64,
    regions: Regions,
    /// Since when each leaving store leaves. Not persisted.
    drains: BTreeMap<StoreId, DrainStart>,
    /// Greatest store number that a region names: it was given out even if its record is lost.
    store_floor: StoreId,
    /// Addresses of nodes that reported all regions they lead since this state was loaded.
    informed_by: BTreeSet<String>,
    loaded: Millis,
    /// The same moment in unix seconds.
    loaded_s: u64,
    /// Since when stores are not heard of, in unix seconds; persisted.
    silences: BTreeMap<StoreId, u64>,
}

/// A leader that took over less than this ago may not have heard of every store.
const SETTLE_MILLIS: u64 = 5_000;

impl Cluster {
    /// The state that `pairs` are; `None` if they hold no cluster yet. Fails with `Invalid` on
    /// damaged records. Numbers that an earlier leader was free to give out are not given out
    /// again. The silence of stores is counted on from `unix_seconds`.
    pub fn load(
        pairs: impl IntoIterator<Item = (Bytes, Bytes)>,
        now: Millis,
        unix_seconds: u64,
    ) -> Result<Option<Self>> {
        let mut cluster = Self {
            id: ClusterId(0),
            config: Config::default(),
            ids: Ids::default(),
            stores: BTreeMap::new(),
            members_version: 0,
            regions: Regions::default(),
            drains: BTreeMap::new(),
            store_floor: StoreId(0),
            informed_by: BTreeSet::new(),
            loaded: now,
            loaded_s: unix_seconds,
            silences: BTreeMap::new(),
        };
        let mut any = false;
        for (key, value) in pairs {
            any = true;
            if let Some(record) = pairs::decode(&key, Some(&value))? {
                cluster.fold(record);
            }
        }
        if !any {
            return Ok(None);
        }
        if cluster.id == ClusterId(0) {
            return Err(Error::invalid("the placement state names no cluster"));
        }
        cluster.ids.start_after_load();
        cluster.note_ids_of_regions();
        cluster.count_silences_on();
        Ok(Some(cluster))
    }

    /// Folds committed changes in. Fails with `Invalid` on changes that no plan made.
    pub fn apply(&mut self, changes: &[PairChange]) -> Result<()> {
        for change in changes {
            if let Some(record) = pairs::decode(&change.key, change.value.as_deref())? {
                self.fold(record);
            }
        }
        Ok(())
    }

    fn fold(&mut self, record: Record) {
        match record {
            Record::Cluster(id) => self.id = id,
            Record::Ids { watermark } => self.ids.raise_watermark(watermark),
            Record::Members { version } => self.members_version = version,
            Record::Setting { name, value } => self.config.fold(&name, value),
            Record::Region(_, Some(region)) => self.regions.restore(region),
            Record::Region(id, None) => self.regions.forget(id),
            Record::Store(store) => self.fold_store(store),
            Record::Silence(id, Some(since_s)) => {
                self.silences.insert(id, since_s);
            }
            Record::Silence(id, None) => {
                self.silences.remove(&id);
            }
        }
    }

    fn fold_store(&mut self, store: Store) {
        let known = self.stores.remove(&store.id);
        let heard = Heard::NotSince { loaded: self.loaded, silent_s: 0 };
        let volatile = known.unwrap_or(Store { heard, ..Store::default() });
        if !store.state.is_leaving() {
            self.drains.remove(&store.id);
        }
        let Store { heard, report, node, .. } = volatile;
        self.stores.insert(store.id, Store { heard, report, node, ..store });
    }

    /// Which cluster.
    pub fn id(&self) -> ClusterId {
        self.id
    }

    /// Its settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Grows with every change of a store's record.
    pub fn members_version(&self) -> u64 {
        self.members_version
    }

    /// Its regions.
    pub fn regions(&self) -> &Regions {
        &self.regions
    }

    /// A new value for a setting. Fails with `Invalid`.
    pub fn plan_setting(&self, name: &str, value: u64) -> Result<Vec<PairChange>> {
        let setting = Config::check(name, value)?;
        Ok(vec![pairs::setting(setting.name, value)])
    }

    /// Takes a leader's report in, if it is news; the descriptor is then due to be written by
    /// [`Cluster::take_region_changes`].
    pub fn observe(&mut self, report: RegionReport, now: Millis) -> Result<(), StaleReport> {
        let numbers = report.region.peers.iter().flat_map(|peer| [peer.id.0, peer.store.0]);
        if numbers.chain([report.region.id.0]).any(|number| number > ids::ID_MAX) {
            return Err(StaleReport::Malformed("its numbers were never given out"));
        }
        self.note_ids(&report.region);
        self.regions.put(RegionInfo::reported(report, now))
    }

    /// The epoch of the region that a replica was left behind by: it is no member there any more.
    /// `None` if it may still be one, as far as it knew (`epoch`).
    pub fn left_behind(
        &self,
        region: RegionId,
        peer: PeerId,
        epoch: RegionEpoch,
    ) -> Option<RegionEpoch> {
        let info = self.regions.get(region)?;
        // What was not reported yet may be older than what the replica knows.
        let later = info.region.epoch.conf_version > epoch.conf_version
            && info.region.epoch.version >= epoch.version;
        let is_later = later || mutant::active("placement.destroy_newer_replica");
        (info.reported.is_some() && info.region.peer(peer).is_none() && is_later)
            .then_some(info.region.epoch)
    }

    /// Descriptors that changed since they were last taken, as pairs of up to about `bytes_max`.
    pub fn take_region_changes(&mut self, bytes_max: usize) -> Vec<PairChange> {
        self.regions.take_unsaved(bytes_max)
    }

    /// Notes that a node has reported every region it leads.
    pub fn note_full_report(&mut self, address: &str) {
        self.informed_by.insert(address.to_owned());
    }

    /// Whether that node has reported every region it leads since this state was loaded.
    pub fn is_informed_by(&self, address: &str) -> bool {
        self.informed_by.contains(address)
    }

    /// Whether all nodes that are alive have reported, so that counts of leaders and bytes mean
    /// something.
    pub fn is_informed(&self, now: Millis) -> bool {
        let mut live = self.stores.values().filter(|store| self.is_live(store.id, now)).peekable();
        live.peek().is_some() && live.all(|store| self.informed_by.contains(&store.address))
    }

    /// Whether every member's node has reported since this state was loaded, or has had its time to:
    /// until then much of what is refused is possible, and not known to be yet.
    pub fn is_settled(&self, now: Millis) -> bool {
        let mut members = self.stores.values().filter(|store| store.state != StoreState::Tombstone);
        now.since(self.loaded) >= SETTLE_MILLIS
            || members.all(|store| self.informed_by.contains(&store.address))
    }

    fn note_ids(&mut self, region: &Region) {
        self.ids.note(region.id.0);
        for peer in &region.peers {
            self.ids.note(peer.id.0);
            self.store_floor = self.store_floor.max(peer.store);
        }
    }

    fn note_ids_of_regions(&mut self) {
        let known: Vec<Region> = self.regions.iter().map(|info| info.region.clone()).collect();
        known.iter().for_each(|region| self.note_ids(region));
    }

    /// How many voters a region should have, were there nodes enough. The placement region has
    /// five on five nodes or more: it must survive what its cluster survives.
    pub fn copies_wanted(&self, kind: RegionKind, now: Millis) -> usize {
        match kind {
            RegionKind::Data => self.config.replicas(),
            RegionKind::System if self.nodes_known(now) >= 5 => 5,
            RegionKind::System => 3,
        }
    }
}

#[cfg(test)]
mod tests;
