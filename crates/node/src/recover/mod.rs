//! Recovery of regions of which the majority is lost permanently: which replica goes on, and the
//! execution on directories of nodes that do not run. [`plan`] is a pure function of the replicas
//! that are left; the same plan is carried out on a running cluster by its administrator.

mod offline;

pub use offline::{NotRecovered, Offline, check_cluster, check_lost, recover_all};

use std::collections::{BTreeMap, BTreeSet};
use stele_replica::Recovery;
use stele_types::{KeyRange, LogIndex, PeerRole, Region, RegionId, RegionKind, StoreId, Term};

/// A replica on a store that is not lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurvivingReplica {
    /// Store of the replica.
    pub store: StoreId,
    /// Region, as the replica has applied it.
    pub region: Region,
    /// Its Raft term.
    pub term: Term,
    /// Its last entry.
    pub last: (LogIndex, Term),
    /// Its commit index.
    pub committed: LogIndex,
}

/// What becomes of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegionOutcome {
    /// It has a majority, or had none that is lost: an ordinary repair is enough.
    HasMajority,
    /// It goes on with the log of one replica.
    GoesOn {
        /// Store of the replica of which the log is furthest ahead.
        source: StoreId,
        /// Stores of all replicas that are left.
        stores: Vec<StoreId>,
        /// Request to the source.
        recovery: Recovery,
    },
    /// Replicas on these stores are neither lost nor known, and may be further ahead.
    Unseen(Vec<StoreId>),
    /// No replica is left. Its pairs are lost.
    Lost,
}

/// A region and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Region, as it is known with the latest epoch.
    pub region: Region,
    /// Replicas that are left.
    pub replicas: Vec<SurvivingReplica>,
    /// Verdict.
    pub verdict: RegionOutcome,
}

/// Decides about each region that `replicas` or `known` name, by region, but not about merged ones.
/// `known` are the regions that the placement group has recorded.
pub fn plan(
    replicas: &[SurvivingReplica],
    known: &[Region],
    lost: &BTreeSet<StoreId>,
) -> Vec<Planned> {
    let mut newest: BTreeMap<RegionId, &Region> = BTreeMap::new();
    for region in known.iter().chain(replicas.iter().map(|replica| &replica.region)) {
        let epoch = |region: &Region| (region.epoch.version, region.epoch.conf_version);
        let newer = newest.get(&region.id).is_none_or(|it| epoch(it) < epoch(region));
        if newer {
            newest.insert(region.id, region);
        }
    }
    let of = |region: &Region| -> Vec<SurvivingReplica> {
        let is_left = |replica: &&SurvivingReplica| {
            // A peer that a later membership lacks is no replica of the region.
            let own = replica.region.peer_on(replica.store).map(|peer| peer.id);
            let is_member = own.is_some_and(|own| region.peer(own).is_some());
            replica.region.id == region.id && !lost.contains(&replica.store) && is_member
        };
        let mut left: Vec<SurvivingReplica> = replicas.iter().filter(is_left).cloned().collect();
        left.sort_by_key(|replica| replica.store);
        left
    };
    let found: Vec<_> = newest.into_values().map(|region| (region, of(region))).collect();
    let held: Vec<&Region> =
        found.iter().filter(|(_, left)| !left.is_empty()).map(|(region, _)| *region).collect();
    let merged: BTreeSet<RegionId> = found
        .iter()
        .filter(|(region, _)| is_merged(region, &held))
        .map(|(region, _)| region.id)
        .collect();
    let found = found.into_iter().filter(|(region, _)| !merged.contains(&region.id));
    let planned = found.map(|(region, replicas)| {
        let verdict = judge(region, &replicas, lost);
        Planned { region: region.clone(), replicas, verdict }
    });
    planned.collect()
}

/// Whether regions of later versions hold all keys of a region: it was merged into them, and the
/// placement group, or a replica, has not recorded that. `held` are the regions with a replica left.
///
/// Invariant: nothing waits for a region that was merged, and its keys have one owner.
fn is_merged(region: &Region, held: &[&Region]) -> bool {
    // bug node.merged_region_recovered: always
    if region.kind != RegionKind::Data {
        return false;
    }
    let later =
        |it: &&&Region| it.kind == RegionKind::Data && it.epoch.version > region.epoch.version;
    let cut = |rest: Vec<KeyRange>, by: &&Region| -> Vec<KeyRange> {
        rest.iter().flat_map(|range| range.without(&by.range)).collect()
    };
    held.iter().filter(later).fold(vec![region.range.clone()], cut).is_empty()
}

fn judge(
    region: &Region,
    replicas: &[SurvivingReplica],
    lost: &BTreeSet<StoreId>,
) -> RegionOutcome {
    if !has_lost_majority(region, lost) {
        return RegionOutcome::HasMajority;
    }
    let is_seen = |store: &StoreId| replicas.iter().any(|replica| replica.store == *store);
    let left = region.peers.iter().map(|peer| peer.store).filter(|store| !lost.contains(store));
    let unseen: Vec<StoreId> = left.filter(|store| !is_seen(store)).collect();
    // bug node.recovery_without_a_survivor: never
    if !unseen.is_empty() {
        return RegionOutcome::Unseen(unseen);
    }
    // Invariant: acknowledged entries that any replica left holds are kept.
    // Test: `the_log_of_the_latest_term_goes_on_and_of_those_the_longest`. Raft's order of logs says
    // which holds them all: by the term of the last entry, then by its index.
    // bug node.recovery_by_length: `(replica.last.1, replica.last.0)` is `(Default::default(), replica.last.0)`
    let ahead = |replica: &&SurvivingReplica| (replica.last.1, replica.last.0);
    let Some(source) = replicas.iter().max_by_key(|it| (ahead(it), std::cmp::Reverse(it.store)))
    else {
        return RegionOutcome::Lost;
    };
    let term = replicas.iter().map(|replica| replica.term).max().unwrap_or_default();
    let lost = lost.iter().copied().collect();
    let recovery = Recovery { lost, last: source.last, term, command: None };
    let stores = replicas.iter().map(|replica| replica.store).collect();
    RegionOutcome::GoesOn { source: source.store, stores, recovery }
}

/// Whether a majority of the voters, of either half of a joint configuration, is lost.
fn has_lost_majority(region: &Region, lost: &BTreeSet<StoreId>) -> bool {
    let lacks = |votes: fn(PeerRole) -> bool| {
        let voters = || region.peers.iter().filter(|peer| votes(peer.role));
        let left = voters().filter(|peer| !lost.contains(&peer.store)).count();
        2 * left <= voters().count()
    };
    lacks(|role| matches!(role, PeerRole::Voter | PeerRole::DemotingVoter))
        || lacks(PeerRole::votes_next)
}

/// Returns the keys that no region with a replica left holds.
pub fn uncovered(planned: &[Planned]) -> Vec<KeyRange> {
    let mut rest = vec![KeyRange::all()];
    let held = planned.iter().filter(|it| it.verdict != RegionOutcome::Lost);
    for region in held.map(|it| &it.region).filter(|region| region.kind == RegionKind::Data) {
        rest = rest.iter().flat_map(|range| range.without(&region.range)).collect();
    }
    rest
}

#[cfg(test)]
mod tests;
