//! Stores: their joins, heartbeats and removals, and the time of the cluster that follows from
//! their clocks. Stores that are declared lost while no placement group runs come with the recovery
//! of its region.
//!
//! Invariant: no clock of a single node, also not the placement leader's, decides which pairs have expired.
//! Test: `the_clusters_time_is_that_of_the_middle_clock_and_unknown_without_a_majority`.

use super::Cluster;
use super::domains::Domain;
use crate::Millis;
use crate::pairs::{self, PairChange};
use crate::region_info::RegionInfo;
use crate::store::{self, Liveness, NodeReport, Store, StoreReport, StoreState};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use stele_types::address::is_address;
use stele_types::{Error, KeyRange, Peer, PeerRole, Result, StoreId};

/// A store that asks to join.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewStore {
    /// Random token of the directory; empty for none.
    pub token: Bytes,
    /// Size of the device.
    pub capacity_bytes: u64,
    /// Label names and values.
    pub labels: Vec<(String, String)>,
}

impl NewStore {
    pub(crate) fn into_store(self, id: StoreId, address: &str) -> Store {
        let Self { token, capacity_bytes, labels } = self;
        let address = address.to_owned();
        Store { id, address, token, capacity_bytes, labels, ..Store::default() }
    }

    fn check(&self) -> Result<()> {
        if self.token.len() > store::TOKEN_BYTES_MAX {
            return Err(Error::invalid("a store's token is too long"));
        }
        check_labels(&self.labels)
    }
}

/// Ordered state of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainGoal {
    /// Empty, but still a member.
    Drain,
    /// Empty, then permanently removed.
    Remove,
    /// In service again.
    Cancel,
    /// Lost permanently: removed at once, with its replicas.
    Lost,
}

/// Limit for the stores of one node, and of one request to join.
const STORES_PER_NODE_MAX: usize = 256;

impl Cluster {
    /// Iterates over all stores, including tombstones.
    pub fn stores(&self) -> impl Iterator<Item = &Store> {
        self.stores.values()
    }

    /// Returns the store with this number.
    pub fn store(&self, id: StoreId) -> Option<&Store> {
        self.stores.get(&id)
    }

    /// Returns `host:port` of a store's node for clients; empty if it is that for nodes.
    pub fn client_address(&self, id: StoreId) -> &str {
        self.client_addresses.get(&id).map_or("", String::as_str)
    }

    /// Returns the state of a store by its heartbeats; an unknown store is down.
    pub fn liveness(&self, id: StoreId, now: Millis) -> Liveness {
        match self.stores.get(&id) {
            Some(store) => store.liveness(&self.config, now),
            None => Liveness::Down,
        }
    }

    fn has_failed(&self, id: StoreId) -> bool {
        self.stores.get(&id).is_some_and(|store| store.report.has_failed)
    }

    pub(crate) fn is_live(&self, id: StoreId, now: Millis) -> bool {
        self.liveness(id, now) == Liveness::Live
            && !self.has_failed(id)
            && self.stores.get(&id).is_some_and(|store| store.state != StoreState::Tombstone)
    }

    /// Whether the store can carry out a step: its node reports it, and it has not failed. Its device
    /// may hang.
    pub(crate) fn is_heard(&self, id: StoreId, now: Millis) -> bool {
        self.stores.get(&id).is_some_and(|store| {
            let is_member = store.state != StoreState::Tombstone && !store.report.has_failed;
            is_member && store.is_heard(&self.config, now)
        })
    }

    /// Whether the store's replicas must be rebuilt elsewhere: it is removed, failed or down, or it
    /// is being removed and sends no heartbeats.
    pub(crate) fn is_lost(&self, id: StoreId, now: Millis) -> bool {
        match self.stores.get(&id).map(|store| store.state) {
            None | Some(StoreState::Tombstone) => true,
            _ if self.has_failed(id) => true,
            Some(StoreState::Removing) => self.liveness(id, now) != Liveness::Live,
            Some(_) => self.liveness(id, now) == Liveness::Down,
        }
    }

    /// Whether new replicas and leaders may be placed on the store.
    pub(crate) fn is_serving(&self, id: StoreId, now: Millis) -> bool {
        let takes_more = |store: &Store| {
            // bug placement.stopping_leads: `store.node.is_stopping` is `false`
            store.state == StoreState::Up && !store.report.is_full && !store.node.is_stopping
        };
        self.is_live(id, now) && self.stores.get(&id).is_some_and(takes_more)
    }

    /// Returns the smallest size above which a node splits regions; `u64::MAX` if no node has
    /// reported it.
    pub(crate) fn region_bytes_max(&self) -> u64 {
        let reported = self.stores.values().map(|store| store.node.region_bytes_max);
        let smallest = reported.filter(|bytes| *bytes > 0).min();
        // bug placement.merge_what_is_split: `smallest.unwrap_or(u64::MAX)` is `u64::MAX`
        smallest.unwrap_or(u64::MAX)
    }

    fn domains(&self, mut counts: impl FnMut(&Store) -> bool) -> usize {
        let stores = self.stores.values();
        let domains: BTreeSet<Domain> = stores
            .filter(|store| store.state == StoreState::Up && counts(store))
            .map(|store| self.domain(store.id))
            .collect();
        domains.len()
    }

    /// Returns the number of failure domains that can take replicas now.
    pub fn domains_serving(&self, now: Millis) -> usize {
        self.domains(|store| self.is_live(store.id, now))
    }

    /// Returns the number of failure domains with members that are not down.
    pub(crate) fn domains_known(&self, now: Millis) -> usize {
        self.domains(|store| store.liveness(&self.config, now) != Liveness::Down)
    }

    /// Plans the join of a node's new stores. Their numbers follow the greatest one ever used.
    /// Fails with `Invalid`.
    pub fn plan_join(
        &self,
        address: &str,
        stores: &[NewStore],
    ) -> Result<(Vec<StoreId>, Vec<PairChange>)> {
        check_text("the address", address)?;
        let here = self
            .stores
            .values()
            .filter(|store| store.address == address && store.state != StoreState::Tombstone);
        if stores.is_empty() || here.count() + stores.len() > STORES_PER_NODE_MAX {
            let text = format!("a node has 1 to {STORES_PER_NODE_MAX} stores");
            return Err(Error::invalid(text));
        }
        let mut id = self.stores.keys().next_back().copied().unwrap_or_default();
        let mut ids = Vec::new();
        let mut changes = Vec::new();
        for new in stores {
            new.check()?;
            // A repeated request: the reply to the first one was lost.
            if let Some(known) = self.joined_with(&new.token) {
                ids.push(known);
                continue;
            }
            id = id.next();
            ids.push(id);
            changes.push(pairs::store(&new.clone().into_store(id, address)));
        }
        Ok((ids, self.with_version(changes)))
    }

    fn joined_with(&self, token: &[u8]) -> Option<StoreId> {
        let stores = self.stores.values().filter(|store| store.state != StoreState::Tombstone);
        let mut with_token = stores.filter(|store| !token.is_empty() && store.token == token);
        with_token.next().map(|store| store.id)
    }

    /// Adds the record of the next members' version to changes of stores' records.
    pub(super) fn with_version(&self, mut changes: Vec<PairChange>) -> Vec<PairChange> {
        if !changes.is_empty() {
            changes.push(pairs::members(self.members_version + 1));
        }
        changes
    }

    /// Plans the changes of a node's heartbeat that must be persisted: changed addresses, capacity
    /// or label, or a new run of a store. Skips removed stores, because their node has others, and
    /// earlier runs of stores, and stores of other nodes. Fails with `Invalid` if one of the stores was never
    /// a member, if all were removed or are of other nodes, or if the labels are malformed.
    pub fn plan_heartbeat(
        &self,
        node: &NodeReport,
        reports: &[StoreReport],
    ) -> Result<Vec<PairChange>> {
        check_text("the address", &node.address)?;
        check_address("the address for clients", &node.client_address)?;
        check_address("the address for administrators", &node.admin_address)?;
        check_labels(node.labels.as_deref().unwrap_or_default())?;
        self.check_members(reports)?;
        self.check_copies(node, reports)?;
        self.check_owners(node, reports)?;
        let (mut changes, mut runs) = (Vec::new(), Vec::new());
        for report in reports {
            let store = self.stores.get(&report.id);
            let store = store.filter(|store| store.state != StoreState::Tombstone);
            let store = store.filter(|_| !self.is_unheard(node, report));
            // A failed store shows no capacity, and may have moved to another node.
            let Some(store) = store.filter(|_| !report.has_failed) else { continue };
            runs.extend(self.plan_run(report.id, &node.run_of(report)));
            changes.extend(self.plan_owner(report.id, node.name.as_deref()));
            // A store of which the device has not answered yet shows none either.
            let capacity_bytes = match report.capacity_bytes {
                0 => store.capacity_bytes,
                bytes => bytes,
            };
            // A node of an earlier version reports no labels: those of the join stay.
            let reported = node.labels.as_ref();
            // bug placement.labels_of_the_join_stay: let reported = None;
            let labels = reported.unwrap_or(&store.labels);
            let is_known = store.address == node.address
                && store.capacity_bytes == capacity_bytes
                && store.labels == *labels;
            if !is_known {
                let (address, labels) = (node.address.clone(), labels.clone());
                let new = Store { address, capacity_bytes, labels, ..store.clone() };
                changes.push(pairs::store(&new));
            }
            // Invariant: clients find a store at the address that its node states for them, also after a
            // change of the placement leader.
            // Tests: `the_address_for_clients_outlasts_the_placement_leader_and_ends_with_the_setting`.
            // bug placement.client_address_forgotten: never
            if self.client_address(report.id) != node.client_address {
                changes.push(pairs::client_address(report.id, &node.client_address));
            }
        }
        let mut changes = self.with_version(changes);
        changes.extend(runs);
        Ok(changes)
    }

    /// Records a node's heartbeat of the time `now`. Skips stores that are not members, those with a
    /// later heartbeat, because this one waited for a decision meanwhile, and earlier runs of stores.
    ///
    /// Invariant: a store that serves on one node does not count as failed because another, which had
    /// its disk before, reports it as missing.
    ///
    /// Returns whether the class of a store's speed changed.
    pub fn record_heartbeat(
        &mut self,
        node: &NodeReport,
        reports: &[StoreReport],
        now: Millis,
    ) -> bool {
        let mut is_class_changed = false;
        for report in reports {
            let is_unheard = self.is_unheard(node, report);
            let Some(store) = self.stores.get_mut(&report.id) else { continue };
            if store.state == StoreState::Tombstone || is_unheard {
                continue;
            }
            let is_elsewhere = store.address != node.address
                && !store.report.has_failed
                && store.liveness(&self.config, now) == Liveness::Live;
            // bug placement.failed_by_another_node: never
            if report.has_failed && is_elsewhere {
                continue;
            }
            if !store.note_heartbeat(now) {
                continue;
            }
            store.report = *report;
            store.node = node.clone();
            is_class_changed |= !report.has_failed && self.note_speed(report, now);
        }
        is_class_changed
    }

    /// Counts stores that have just joined as live before their first heartbeat.
    pub fn record_join(&mut self, ids: &[StoreId], now: Millis) {
        for id in ids {
            if let Some(store) = self.stores.get_mut(id) {
                store.note_heartbeat(now);
            }
        }
    }

    fn check_members(&self, reports: &[StoreReport]) -> Result<()> {
        let is_unknown = |report: &&StoreReport| !self.stores.contains_key(&report.id);
        if let Some(StoreReport { id, .. }) = reports.iter().find(is_unknown) {
            let text = format!("store {id} is not a member of cluster {}", self.id);
            return Err(Error::invalid(text));
        }
        let is_removed = |report: &StoreReport| {
            self.store(report.id).is_some_and(|store| store.state == StoreState::Tombstone)
        };
        let refuses = reports.iter().all(is_removed);
        // bug placement.tombstone_refuses_node: let refuses = reports.iter().any(is_removed);
        match reports.iter().find(|report| refuses && is_removed(report)) {
            None => Ok(()),
            Some(StoreReport { id, .. }) => Err(Error::invalid(format!(
                "store {id} was removed from the cluster; start it with an empty directory"
            ))),
        }
    }

    /// Plans the drain or removal of a store, cancels it, or declares the store lost. Fails with
    /// `Invalid` if the remaining stores could not take over, or if a store that is said to be lost
    /// may still run.
    pub fn plan_state(&self, id: StoreId, goal: DrainGoal, now: Millis) -> Result<Vec<PairChange>> {
        let Some(store) = self.stores.get(&id) else {
            return Err(Error::invalid(format!("there is no store {id}")));
        };
        if store.state == StoreState::Tombstone {
            return Err(Error::invalid(format!("store {id} is already removed")));
        }
        let state = match goal {
            DrainGoal::Drain => StoreState::Draining,
            DrainGoal::Remove => StoreState::Removing,
            DrainGoal::Cancel => StoreState::Up,
            DrainGoal::Lost => StoreState::Tombstone,
        };
        let may_run = goal == DrainGoal::Lost && !store.is_silent(&self.config, now);
        // bug placement.live_store_declared_lost: never
        if may_run {
            return Err(Error::invalid(format!(
                "store {id} reports, or may still report to the new placement leader; stop its node \
                 and wait {} s",
                self.config.silent_after_seconds
            )));
        }
        // bug placement.drain_unchecked: never
        if state.is_leaving() {
            self.check_domains_left(store, now)?;
            self.check_quorums(id, now)?;
        }
        match state == store.state {
            true => Ok(Vec::new()),
            false => Ok(self.with_version(vec![pairs::store(&Store { state, ..store.clone() })])),
        }
    }

    /// Fails if the remaining failure domains are too few for the copies that the cluster keeps.
    fn check_domains_left(&self, leaving: &Store, now: Millis) -> Result<()> {
        let left = self.domains(|store| store.id != leaving.id && self.is_live(store.id, now));
        let before = self.domains(|_| true).max(left);
        let needed = self.config.replicas().min(before).max(1);
        if left >= needed {
            return Ok(());
        }
        let (remaining, remedy) = match self.domain_label() {
            None => (format!("{left} nodes"), "add a node".to_owned()),
            Some(label) => (
                format!("nodes with {left} values of the label `{label}`"),
                format!("add a node with another value, change the label `{label}`"),
            ),
        };
        Err(Error::invalid(format!(
            "store {} cannot leave: {remaining} would remain for {needed} copies; {remedy}, or lower \
             the setting `replicas`, first",
            leaving.id
        )))
    }

    /// Fails if a region on the store cannot move: it needs a leader and a majority of reachable
    /// voters.
    fn check_quorums(&self, id: StoreId, now: Millis) -> Result<()> {
        for info in self.regions.iter().filter(|info| info.region.peer_on(id).is_some()) {
            let region = info.region.id;
            let has_leader = info.leader.is_some_and(|leader| self.is_live(leader.store, now));
            let voters = info.region.peers.iter().filter(|peer| peer.role != PeerRole::Learner);
            let live = voters.clone().filter(|peer| self.is_reachable(info, peer, now)).count();
            let all = voters.count();
            if !has_leader || live < all / 2 + 1 {
                return Err(Error::invalid(format!(
                    "store {id} cannot leave: {live} of {all} voters of region {region} are \
                     reachable{}; bring back its other replicas first",
                    if has_leader { "" } else { " and it has no known leader" },
                )));
            }
        }
        Ok(())
    }

    pub(crate) fn is_reachable(&self, info: &RegionInfo, peer: &Peer, now: Millis) -> bool {
        let known = self.is_live(peer.store, now);
        known && !info.down.iter().any(|down| down.peer == peer.id)
    }

    /// Plans the tombstones of removed stores that are empty. A replica may be unknown while keys
    /// are missing or a region has no live leader that reports its members. Then nothing is
    /// planned.
    pub fn plan_tombstones(&self, now: Millis) -> Vec<PairChange> {
        let removing = || self.stores.values().filter(|s| s.state == StoreState::Removing);
        let is_led =
            |info: &RegionInfo| info.leader.is_some_and(|leader| self.is_live(leader.store, now));
        if removing().next().is_none()
            || !self.regions.cover(&KeyRange::all())
            || !self.regions.iter().all(is_led)
        {
            return Vec::new();
        }
        let empty = removing()
            .filter(|store| !self.regions.iter().any(|i| i.region.peer_on(store.id).is_some()))
            .map(|store| Store { state: StoreState::Tombstone, ..store.clone() })
            .map(|store| pairs::store(&store))
            .collect();
        self.with_version(empty)
    }
}

fn check_text(what: &str, text: &str) -> Result<()> {
    match text.len() {
        0 => Err(Error::invalid(format!("{what} is missing"))),
        length if length > store::TEXT_BYTES_MAX => {
            Err(Error::invalid(format!("{what} is longer than {} bytes", store::TEXT_BYTES_MAX)))
        }
        _ => Ok(()),
    }
}

fn check_address(what: &str, text: &str) -> Result<()> {
    match text.is_empty() || text.len() <= store::TEXT_BYTES_MAX && is_address(text) {
        true => Ok(()),
        false => Err(Error::invalid(format!("{what} is not host:port"))),
    }
}

fn check_labels(labels: &[(String, String)]) -> Result<()> {
    if labels.len() > store::LABELS_MAX {
        return Err(Error::invalid(format!("more than {} labels", store::LABELS_MAX)));
    }
    for (at, (name, value)) in labels.iter().enumerate() {
        check_text("a label's name", name)?;
        if labels.iter().take(at).any(|(known, _)| known == name) {
            return Err(Error::invalid(format!("the label `{name}` is there twice")));
        }
        if value.len() > store::TEXT_BYTES_MAX {
            return Err(Error::invalid(format!("the label `{name}` is too long")));
        }
    }
    Ok(())
}

impl Cluster {
    /// Plans the tombstones of stores that are lost permanently. Nothing that a running placement group
    /// would check is checked: the caller states that these stores never run again. The next version of
    /// the list of members is above `version`, the greatest one that a node may know.
    ///
    /// Invariant: a lost store of which the log that is left has no record gets a tombstone, too: its
    /// number is not given to another store.
    pub fn plan_lost(&self, lost: &BTreeSet<StoreId>, version: u64) -> Vec<PairChange> {
        let tombstone = |id: &StoreId| {
            let store = self.stores.get(id).cloned();
            let store = store.unwrap_or_else(|| Store { id: *id, ..Store::default() });
            let is_new = store.state != StoreState::Tombstone;
            is_new.then(|| pairs::store(&Store { state: StoreState::Tombstone, ..store }))
        };
        let mut changes: Vec<PairChange> = lost.iter().filter_map(tombstone).collect();
        if !changes.is_empty() {
            changes.push(pairs::members(self.members_version.max(version) + 1));
        }
        changes
    }
}

impl Cluster {
    /// Returns the cluster's time in Unix seconds: the median of the clocks that its nodes last
    /// reported, the lower of two. 0 until more than half of the nodes have reported to this
    /// leader. So clocks that are ahead move it only if they are half of the nodes' or more.
    pub fn unix_s(&self) -> u64 {
        let mut clocks: BTreeMap<&str, u64> = BTreeMap::new();
        for store in self.stores.values().filter(|store| store.state != StoreState::Tombstone) {
            let clock = clocks.entry(&store.address).or_default();
            *clock = store.node.unix_s.max(*clock);
        }
        let mut times: Vec<u64> = clocks.into_values().collect();
        times.sort_unstable();
        let at = times.len().saturating_sub(1) / 2;
        // bug placement.time_of_the_latest_clock: let at = times.len().saturating_sub(1);
        times.get(at).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Millis;
    use crate::cluster::Cluster;
    use crate::cluster::stores::NewStore;
    use crate::cluster::tests::{commit, founded};
    use crate::store::{NodeReport, StoreReport};
    use stele_types::{ClusterId, StoreId};

    fn cluster(stores: &[(u64, StoreState)], version: u64) -> Cluster {
        let record = |(id, state): &(u64, StoreState)| {
            let address = format!("host-{id}:1");
            pairs::store(&Store { id: StoreId(*id), state: *state, address, ..Store::default() })
        };
        let mut pairs: Vec<PairChange> = stores.iter().map(record).collect();
        pairs.extend([pairs::cluster(ClusterId(7)), pairs::members(version)]);
        let pairs = pairs.into_iter().filter_map(|change| Some((change.key, change.value?)));
        Cluster::load(pairs, Millis(0), 0).unwrap().unwrap()
    }

    fn states(cluster: &Cluster) -> Vec<(u64, StoreState)> {
        cluster.stores().map(|store| (store.id.0, store.state)).collect()
    }

    #[test]
    fn lost_stores_become_tombstones_also_those_that_the_log_does_not_name() {
        use StoreState::{Removing, Tombstone, Up};
        let mut cluster = cluster(&[(1, Up), (2, Removing), (3, Up)], 5);
        let lost = BTreeSet::from([2, 3, 9].map(StoreId));
        let changes = cluster.plan_lost(&lost, 0);
        cluster.apply(&changes).unwrap();
        let expected = [(1, Up), (2, Tombstone), (3, Tombstone), (9, Tombstone)];
        assert_eq!(states(&cluster), expected);
        assert_eq!(cluster.store(StoreId(3)).unwrap().address, "host-3:1");
        assert_eq!(cluster.members_version(), 6);
        assert_eq!(cluster.plan_lost(&lost, 99), [], "they are tombstones already");
        // The number of a store that joined after the log that is left is not given again.
        let (ids, _) = cluster.plan_join("new:1", &[crate::NewStore::default()]).unwrap();
        assert_eq!(ids, [StoreId(10)]);
    }

    #[test]
    fn the_list_of_members_gets_a_version_above_all_that_nodes_know() {
        let mut cluster = cluster(&[(1, StoreState::Up), (2, StoreState::Up)], 5);
        let changes = cluster.plan_lost(&BTreeSet::from([StoreId(2)]), 12);
        cluster.apply(&changes).unwrap();
        assert_eq!(cluster.members_version(), 13);
    }

    const DAY_S: u64 = 24 * 60 * 60;

    fn hear(cluster: &mut Cluster, address: &str, stores: &[StoreId], unix_s: u64) {
        let node = NodeReport { address: address.into(), unix_s, ..NodeReport::default() };
        let report = |id: &StoreId| StoreReport { id: *id, ..StoreReport::default() };
        let reports: Vec<_> = stores.iter().map(report).collect();
        cluster.record_heartbeat(&node, &reports, Millis(5));
    }

    #[test]
    fn the_clusters_time_is_that_of_the_middle_clock_and_unknown_without_a_majority() {
        let (mut pairs, mut cluster) = founded();
        let own = [StoreId(1), StoreId(2)];
        assert_eq!(cluster.unix_s(), 0);
        hear(&mut cluster, "n1:1", &own, 1_000);
        assert_eq!(cluster.unix_s(), 1_000, "one node");
        let mut join = |cluster: &mut Cluster, address: &str| {
            let (ids, changes) = cluster.plan_join(address, &[NewStore::default()]).unwrap();
            commit(&mut pairs, cluster, changes);
            ids
        };
        let second = join(&mut cluster, "n2:1");
        assert_eq!(cluster.unix_s(), 0, "one of two");
        hear(&mut cluster, "n2:1", &second, DAY_S);
        assert_eq!(cluster.unix_s(), 1_000, "the lower of two");
        let third = join(&mut cluster, "n3:1");
        assert_eq!(cluster.unix_s(), 1_000, "two of three");
        hear(&mut cluster, "n3:1", &third, 1_010);
        assert_eq!(cluster.unix_s(), 1_010);
        // Another clock is ahead.
        hear(&mut cluster, "n2:1", &second, 1_020);
        hear(&mut cluster, "n1:1", &own, DAY_S);
        assert_eq!(cluster.unix_s(), 1_020);
        // A node of an earlier version reports no clock.
        hear(&mut cluster, "n2:1", &second, 0);
        assert_eq!(cluster.unix_s(), 1_010);
    }
}
