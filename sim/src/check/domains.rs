//! Failure domains, computed from the stores' records without the product's code: two stores share one
//! if they are on one node, or have the same value of the widest label that has enough values for all
//! replicas, or if others connect them so. Values of stores that are lost or leave do not count.

use std::collections::BTreeSet;
use stele_placement::{Cluster, LastHeartbeat, Liveness, Millis, Operator, Store, StoreState};
use stele_types::{Peer, PeerRole, StoreId};

/// Copies that each cluster has domains for, at least: those of the placement region.
const COPIES_MIN: usize = 3;

/// Sets of stores that share a failure domain.
#[derive(Debug)]
pub struct Domains(Vec<BTreeSet<StoreId>>);

impl Domains {
    /// Returns the domains of a cluster.
    pub fn of(cluster: &Cluster, now: Millis) -> Self {
        let members = cluster.stores().filter(|store| store.state != StoreState::Tombstone);
        let (absent, present): (Vec<&Store>, Vec<&Store>) = members
            .partition(|store| store.state != StoreState::Up || is_lost(cluster, store, now));
        let labels = present.iter().flat_map(|store| &store.labels);
        let names: BTreeSet<&str> = labels.map(|(name, _)| name.as_str()).collect();
        let copies = cluster.config().replicas().max(COPIES_MIN);
        let counts = names.into_iter().map(|name| (components(&present, Some(name)).len(), name));
        let widest = counts.filter(|(count, _)| *count >= copies).min().map(|(_, name)| name);
        let mut sets = components(&present, widest);
        // Such a store is with one of its node, or else with one of its label, and connects no others.
        let mut placed = present.clone();
        for store in absent {
            let with = |other: &&&Store, by_node: bool| match by_node {
                true => other.address == store.address,
                false => has_same_value(store, other, widest),
            };
            let beside = |by_node| placed.iter().find(|other| with(other, by_node));
            let beside = beside(true).or_else(|| beside(false)).map(|other| other.id);
            match sets.iter_mut().find(|set| beside.is_some_and(|it| set.contains(&it))) {
                Some(set) => drop(set.insert(store.id)),
                None => sets.push(BTreeSet::from([store.id])),
            }
            placed.push(store);
        }
        Self(sets)
    }

    fn share(&self, a: StoreId, b: StoreId) -> bool {
        a == b || self.0.iter().any(|set| set.contains(&a) && set.contains(&b))
    }

    fn pairs(&self, voters: &[StoreId]) -> usize {
        let after = |at: usize| voters.iter().skip(at + 1);
        let shared = |(at, a): (usize, &StoreId)| after(at).filter(|b| self.share(*a, **b)).count();
        voters.iter().enumerate().map(shared).sum()
    }
}

/// Returns the sets of stores that nodes and the values of a label connect.
fn components(stores: &[&Store], label: Option<&str>) -> Vec<BTreeSet<StoreId>> {
    let mut sets: Vec<BTreeSet<StoreId>> = Vec::new();
    for store in stores {
        let connected =
            |other: &&&Store| other.address == store.address || has_same_value(store, other, label);
        let connected = stores.iter().filter(connected).map(|other| other.id);
        let mut joined: BTreeSet<StoreId> = connected.collect();
        let (touched, others): (Vec<_>, Vec<_>) =
            sets.into_iter().partition(|set| !set.is_disjoint(&joined));
        touched.into_iter().for_each(|set| joined.extend(set));
        sets = others;
        sets.push(joined);
    }
    sets
}

fn has_same_value(a: &Store, b: &Store, label: Option<&str>) -> bool {
    let value = |store: &Store| {
        let label = store.labels.iter().find(|(name, _)| Some(&name[..]) == label);
        label.map(|(_, value)| value.clone())
    };
    value(a).is_some() && value(a) == value(b)
}

/// Whether a store's replicas must be rebuilt elsewhere.
fn is_lost(cluster: &Cluster, store: &Store, now: Millis) -> bool {
    let liveness = cluster.liveness(store.id, now);
    let is_removed = store.state == StoreState::Removing && liveness != Liveness::Live;
    store.report.has_failed || liveness == Liveness::Down || is_removed
}

/// Returns what is invalid in an operator that was just admitted: more of its region's voters share a
/// failure domain afterwards.
pub fn crowding(cluster: &Cluster, operator: &Operator, now: Millis) -> Option<String> {
    let region = &cluster.regions().get(operator.region)?.region;
    let voters = |peers: &[Peer]| {
        let votes = |peer: &&Peer| matches!(peer.role, PeerRole::Voter | PeerRole::IncomingVoter);
        peers.iter().filter(votes).map(|peer| peer.store).collect::<Vec<_>>()
    };
    // A report that arrived with this decision may have brought a lost store back.
    if cluster.stores().any(|store| store.last_heartbeat == LastHeartbeat::At(now)) {
        return None;
    }
    let domains = Domains::of(cluster, now);
    let before = domains.pairs(&voters(&region.peers));
    let after = domains.pairs(&voters(&operator.final_peers(region)));
    (after > before).then(|| {
        let pairs = format!("{after} pairs of voters share a domain, {before} before");
        format!("begins {operator}: {pairs}: {domains:?}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_placement::{Bootstrap, NewStore};
    use stele_types::ClusterId;

    /// Returns a cluster of nodes with these racks; an empty name is no label. Store n is on node n.
    fn cluster(racks: &[&str]) -> Cluster {
        let address = |at: usize| format!("node{at}:1");
        let first = Bootstrap {
            cluster: ClusterId(7),
            address: "bootstrap:1".into(),
            capacities_bytes: vec![1 << 30],
        };
        let pairs = first.pairs().into_iter().filter_map(|it| Some((it.key, it.value?)));
        let mut cluster = Cluster::load(pairs, Millis(0), 0).unwrap().unwrap();
        for (at, rack) in racks.iter().enumerate() {
            let labels = (!rack.is_empty()).then(|| ("rack".to_owned(), (*rack).to_owned()));
            let labels = [("zone".to_owned(), "z".to_owned())].into_iter().chain(labels).collect();
            let new = [NewStore { labels, ..NewStore::default() }];
            let (_, changes) = cluster.plan_join(&address(at + 2), &new).unwrap();
            cluster.apply(&changes).unwrap();
        }
        cluster
    }

    #[test]
    fn stores_share_the_widest_label_that_has_enough_values() {
        let share =
            |cluster: &Cluster, a, b| Domains::of(cluster, Millis(0)).share(StoreId(a), StoreId(b));
        // Stores 2 to 5; store 1 has no label and counts by its node.
        let enough = cluster(&["a", "a", "b", "c"]);
        assert!(share(&enough, 2, 3) && share(&enough, 4, 4));
        assert!(!share(&enough, 3, 4) && !share(&enough, 1, 2));
        // All are in one zone, and with store 1 there are two racks for three replicas.
        let too_few = cluster(&["a", "a", "a", "a"]);
        assert!(!share(&too_few, 2, 3) && share(&too_few, 2, 2));
        assert_eq!(Domains::of(&enough, Millis(0)).pairs(&[2, 3, 4, 5].map(StoreId)), 1);
    }
}
