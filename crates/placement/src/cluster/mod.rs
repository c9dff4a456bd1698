//! The state of the placement group, from the bootstrap of a cluster on: its first node's stores
//! and its first two regions.

pub mod boots;
pub mod domains;
pub mod drain;
pub mod fill;
pub mod ids;
pub mod owners;
pub mod regions;
pub mod speeds;
pub mod stores;
#[cfg(test)]
mod tests;

use crate::access::Grants;
use crate::config::Config;
use crate::levels::Levels;
use crate::pairs::{self, PairChange, PlacementRecord};
use crate::region_info::{RegionInfo, RegionReport};
use crate::store::{LastHeartbeat, Store, StoreState};
use crate::{FIRST_DATA_REGION, Millis, SYSTEM_REGION};
use bytes::Bytes;
use domains::Domains;
use drain::DrainStart;
use ids::Ids;
use owners::JoinPermit;
use regions::{Regions, StaleReport};
use speeds::Speeds;
use std::collections::{BTreeMap, BTreeSet};
use stele_types::{
    ClusterId, Error, KeyRange, Peer, PeerId, PeerRole, Region, RegionEpoch, RegionId, RegionKind,
    Result, StoreId, StoreRun,
};

/// Known state of a cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    id: ClusterId,
    config: Config,
    ids: Ids,
    stores: BTreeMap<StoreId, Store>,
    members_version: u64,
    regions: Regions,
    /// Starts of drains. Not persisted.
    drains: BTreeMap<StoreId, DrainStart>,
    /// Addresses of nodes that have sent a full report since this state was loaded.
    informed_by: BTreeSet<String>,
    loaded: Millis,
    /// Time of `loaded`, in Unix seconds.
    loaded_s: u64,
    /// Last run of each store that stated one; persisted.
    runs: BTreeMap<StoreId, StoreRun>,
    /// Addresses for clients of the stores' nodes, where they differ from those for nodes; persisted.
    client_addresses: BTreeMap<StoreId, String>,
    /// Name of the node of each store that is bound to one; persisted.
    owners: BTreeMap<StoreId, String>,
    /// Unix seconds at which each permission to join ends; persisted.
    permits: BTreeMap<JoinPermit, u64>,
    /// Persisted seconds without heartbeats of disconnected stores.
    disconnected_s: BTreeMap<StoreId, u64>,
    /// Stores of which an earlier version persisted the time of the last heartbeat.
    former_silences: BTreeSet<StoreId>,
    /// Classes of the stores' speeds; persisted when they change.
    speeds: Speeds,
    domains: Domains,
    /// Stores that are nearly full. Not persisted.
    nearly_full: BTreeSet<StoreId>,
    /// Regions of which a merge was cancelled; persisted. Since when they are not prepared to merge,
    /// as far as this leader knows.
    cancelled_merges: BTreeMap<RegionId, Option<Millis>>,
    grants: Grants,
    pub(crate) levels: Levels,
}

/// Time after a change of leaders in which some stores may not have reported yet.
const SETTLE_MILLIS: u64 = 5_000;

impl Cluster {
    /// Loads the state from `pairs`; `None` if they are empty. Fails with `Invalid` on damaged
    /// records. Numbers that an earlier leader may have allocated are not allocated again. How long a
    /// store has had its class of speed is counted up to `unix_seconds`.
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
            informed_by: BTreeSet::new(),
            loaded: now,
            loaded_s: unix_seconds,
            runs: BTreeMap::new(),
            client_addresses: BTreeMap::new(),
            owners: BTreeMap::new(),
            permits: BTreeMap::new(),
            disconnected_s: BTreeMap::new(),
            former_silences: BTreeSet::new(),
            speeds: Speeds::default(),
            domains: Domains::default(),
            nearly_full: BTreeSet::new(),
            cancelled_merges: BTreeMap::new(),
            grants: Grants::default(),
            levels: Levels::default(),
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
            return Err(Error::invalid("the placement state has no cluster id"));
        }
        cluster.ids.start_after_load();
        cluster.restore_disconnections();
        cluster.restore_speeds();
        // bug placement.cancelled_merge_forgotten: cluster.cancelled_merges.clear();
        cluster.note_domains();
        Ok(Some(cluster))
    }

    /// Folds in committed changes. Fails with `Invalid` on a change that no plan produced.
    pub fn apply(&mut self, changes: &[PairChange]) -> Result<()> {
        for change in changes {
            if let Some(record) = pairs::decode(&change.key, change.value.as_deref())? {
                let moves_domains =
                    matches!(record, PlacementRecord::Store(_) | PlacementRecord::Setting { .. });
                self.fold(record);
                if moves_domains {
                    self.note_domains();
                }
            }
        }
        Ok(())
    }

    fn fold(&mut self, record: PlacementRecord) {
        match record {
            PlacementRecord::Cluster(id) => self.id = id,
            PlacementRecord::Ids { watermark } => self.ids.raise_watermark(watermark),
            PlacementRecord::Members { version } => self.members_version = version,
            PlacementRecord::Levels(levels) => self.fold_levels(levels),
            PlacementRecord::Setting { name, value } => self.config.fold(&name, value),
            PlacementRecord::CancelledMerge(id, is_cancelled) => {
                self.fold_cancelled_merge(id, is_cancelled);
            }
            PlacementRecord::Region(_, Some(region)) => self.regions.restore(region),
            PlacementRecord::Region(id, None) => self.regions.forget(id),
            PlacementRecord::Term(id, Some(term)) => self.regions.restore_term(id, term),
            // Deleted with the descriptor.
            PlacementRecord::Term(_, None) => {}
            PlacementRecord::Store(store) => self.fold_store(*store),
            PlacementRecord::Boot(id, boot) => {
                self.runs.entry(id).or_default().boot = boot;
            }
            PlacementRecord::Starts(id, lineage) => {
                self.runs.entry(id).or_default().lineage = lineage;
            }
            PlacementRecord::ClientAddress(id, Some(address)) => {
                self.client_addresses.insert(id, address);
            }
            PlacementRecord::ClientAddress(id, None) => {
                self.client_addresses.remove(&id);
            }
            PlacementRecord::Disconnected(id, Some(seconds)) => {
                self.disconnected_s.insert(id, seconds);
            }
            PlacementRecord::Disconnected(id, None) => {
                self.disconnected_s.remove(&id);
            }
            PlacementRecord::FormerSilence(id, true) => {
                self.former_silences.insert(id);
            }
            PlacementRecord::FormerSilence(id, false) => {
                self.former_silences.remove(&id);
            }
            PlacementRecord::Owner(id, name) => {
                self.owners.insert(id, name);
            }
            PlacementRecord::Permit(permit, Some(until)) => {
                self.permits.insert(permit, until);
            }
            PlacementRecord::Permit(permit, None) => {
                self.permits.remove(&permit);
            }
            PlacementRecord::Speed(id, record) => self.speeds.fold(id, record),
            PlacementRecord::Access { version } => self.grants.version = version,
            PlacementRecord::Grant(name, grant) => self.grants.fold(name, grant.map(|it| *it)),
        }
    }

    /// Invariant: no level is lowered, whatever is replayed: stores have recorded it.
    /// Test: `levels_are_never_lowered`.
    fn fold_levels(&mut self, Levels { recorded, in_use }: Levels) {
        // bug placement.level_lowered: self.levels = Levels { recorded, in_use };
        self.levels.recorded = self.levels.recorded.max(recorded);
        self.levels.in_use = self.levels.in_use.max(in_use);
    }

    fn fold_store(&mut self, store: Store) {
        let known = self.stores.remove(&store.id);
        let last_heartbeat = LastHeartbeat::NotSince { loaded: self.loaded, disconnected_s: 0 };
        let volatile = known.unwrap_or(Store { last_heartbeat, ..Store::default() });
        if !store.state.is_leaving() {
            self.drains.remove(&store.id);
        }
        if store.state == StoreState::Tombstone {
            self.speeds.forget(store.id);
            self.nearly_full.remove(&store.id);
        }
        let Store { last_heartbeat, report, node, .. } = volatile;
        self.stores.insert(store.id, Store { last_heartbeat, report, node, ..store });
    }

    /// Returns the cluster's id.
    pub fn id(&self) -> ClusterId {
        self.id
    }

    /// Returns the cluster settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns a number that grows with every change of a store's record.
    pub fn members_version(&self) -> u64 {
        self.members_version
    }

    /// Returns the grants.
    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    /// Returns the regions.
    pub fn regions(&self) -> &Regions {
        &self.regions
    }

    /// Plans a new value for a setting. Fails with `Invalid`.
    pub fn plan_setting(&self, name: &str, value: u64) -> Result<Vec<PairChange>> {
        let setting = Config::check(name, value)?;
        Ok(vec![pairs::setting(setting.name, value)])
    }

    /// Records a leader's report if it is newer than the known state. A changed descriptor is then
    /// due to be persisted by [`Cluster::take_region_changes`].
    ///
    /// Invariant: numbers from outside never raise the watermark of the allocator. A report with
    /// numbers that were never allocated changes nothing.
    pub fn observe(&mut self, report: RegionReport, now: Millis) -> Result<(), StaleReport> {
        self.check_ids(&report.region)?;
        self.note_ids(&report.region);
        self.regions.put(RegionInfo::reported(report, now))
    }

    /// Returns the region's epoch if `peer` was removed from the region. `None` if it may still be
    /// a member, given that it knows the region at `epoch`.
    pub fn left_behind(
        &self,
        region: RegionId,
        peer: PeerId,
        epoch: RegionEpoch,
    ) -> Option<RegionEpoch> {
        let info = self.regions.get(region)?;
        // A region that has not been reported yet may be older than what the replica knows.
        let is_later = info.region.epoch.conf_version > epoch.conf_version
            && info.region.epoch.version >= epoch.version;
        // bug placement.destroy_newer_replica: let is_later = true;
        (info.reported.is_some() && info.region.peer(peer).is_none() && is_later)
            .then_some(info.region.epoch)
    }

    /// Takes the descriptors that changed since the last call, as pairs of about `bytes_max` at
    /// most.
    pub fn take_region_changes(&mut self, bytes_max: usize) -> Vec<PairChange> {
        self.regions.take_unsaved(bytes_max)
    }

    /// Makes the regions of changes that were taken, and not committed, due again.
    pub fn put_back(&mut self, changes: &[PairChange]) {
        // bug placement.refused_regions_forgotten: return;
        for change in changes {
            // A plan's own records decode.
            if let Ok(Some(record)) = pairs::decode(&change.key, change.value.as_deref()) {
                self.regions.put_back(&record);
            }
        }
    }

    /// Plans to persist what is known of these regions and is not persisted, about `bytes_max` at most.
    pub fn plan_regions(&self, ids: &[RegionId], bytes_max: usize) -> Vec<PairChange> {
        self.regions.plan_saves(ids, bytes_max)
    }

    /// Records that a node has reported every region it leads.
    pub fn note_full_report(&mut self, address: &str) {
        self.informed_by.insert(address.to_owned());
    }

    /// Whether the node has reported every region it leads since this state was loaded.
    pub(crate) fn is_informed_by(&self, address: &str) -> bool {
        self.informed_by.contains(address)
    }

    /// Whether all live nodes have reported, so that counts of leaders and bytes are meaningful.
    pub(crate) fn is_informed(&self, now: Millis) -> bool {
        let mut live = self.stores.values().filter(|store| self.is_live(store.id, now)).peekable();
        live.peek().is_some() && live.all(|store| self.informed_by.contains(&store.address))
    }

    /// Whether every member's node has reported since this state was loaded, or has had the time
    /// to. Until then an operation may be refused only because the reports that allow it are
    /// missing.
    pub fn is_settled(&self, now: Millis) -> bool {
        let mut members = self.stores.values().filter(|store| store.state != StoreState::Tombstone);
        now.since(self.loaded) >= SETTLE_MILLIS
            || members.all(|store| self.informed_by.contains(&store.address))
    }

    /// Returns how many voters a region should have, given enough failure domains. The placement
    /// region has five in five domains or more, so that it tolerates the failures that its cluster tolerates.
    pub fn copies_wanted(&self, kind: RegionKind, now: Millis) -> usize {
        match kind {
            RegionKind::Data => self.config.replicas(),
            RegionKind::System if self.domains_known(now) >= 5 => 5,
            RegionKind::System => 3,
        }
    }
}

/// Input of the founding node, which decides it alone.
#[derive(Clone, Debug)]
pub struct Bootstrap {
    /// Random identity of the cluster, not 0.
    pub cluster: ClusterId,
    /// `host:port` of the node.
    pub address: String,
    /// Capacities of the node's devices, in order; at least one. They become stores 1, 2, ….
    pub capacities_bytes: Vec<u64>,
}

impl Bootstrap {
    /// Returns the numbers of the stores.
    pub fn stores(&self) -> impl Iterator<Item = StoreId> {
        (1..=self.capacities_bytes.len() as u64).map(StoreId)
    }

    /// Returns the first two regions, each with one replica on store 1: the placement group's and
    /// one for all user keys. Their replicas are created before the pairs that describe them are
    /// written. A node that stops between the two writes the same pairs after its restart.
    pub fn regions() -> [Region; 2] {
        let region = |id: RegionId, kind| Region {
            id,
            kind,
            range: KeyRange::all(),
            epoch: RegionEpoch { conf_version: 1, version: 1 },
            peers: vec![Peer { id: PeerId(id.0), store: StoreId(1), role: PeerRole::Voter }],
            ..Region::default()
        };
        [region(SYSTEM_REGION, RegionKind::System), region(FIRST_DATA_REGION, RegionKind::Data)]
    }

    /// Returns the pairs to put into the placement region when it is empty.
    pub fn pairs(&self) -> Vec<PairChange> {
        let mut out = vec![pairs::cluster(self.cluster), pairs::ids(FIRST_DATA_REGION.0)];
        out.extend(Self::regions().iter().map(pairs::region));
        out.push(pairs::members(1));
        for (id, capacity_bytes) in self.stores().zip(&self.capacities_bytes) {
            let (address, capacity_bytes) = (self.address.clone(), *capacity_bytes);
            out.push(pairs::store(&Store { id, address, capacity_bytes, ..Store::default() }));
        }
        out
    }
}
