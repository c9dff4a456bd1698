//! Checks the placement group's decisions. It never reverts a region to an older epoch than
//! reported. No order costs a region its quorum, and no order differs from its operator's step.

use super::domains::crowding;
use super::targets::unfit_target;
use crate::world::World;
use std::collections::{BTreeMap, BTreeSet};
use stele_node::report::StalePeer;
use stele_placement::{
    Change, Cluster, DrainGoal, Instruction, Kind, LastHeartbeat, LeaderState, Liveness, Millis,
    OperatorId, Order, RegionInfo, SETTINGS, Step, Store, StoreState,
};
use stele_types::{Peer, PeerRole, Region, RegionEpoch, RegionId, RegionPhase, StoreId};

/// Limit of the records of the cluster itself, besides its settings.
const RECORDS_MAX: usize = 8;
/// Limit of the records of a store: itself, its last heartbeat, the starts of its last run, its class of
/// speed.
const RECORDS_OF_A_STORE_MAX: usize = 4;
/// Limit of the records of a region: its descriptor, the term of its leader, a cancelled merge.
const RECORDS_OF_A_REGION_MAX: usize = 3;

/// Returns a region with a known epoch that went back, and replaces the known epochs by the present
/// ones.
pub fn regressed(cluster: &Cluster, known: &mut BTreeMap<RegionId, RegionEpoch>) -> Option<String> {
    let regressed = known.iter().find_map(|(id, before)| {
        let now = cluster.regions().get(*id)?.region.epoch;
        let is_back = now.version < before.version || now.conf_version < before.conf_version;
        is_back.then(|| format!("reverts region {id} from {before:?} to {now:?}"))
    });
    *known = cluster.regions().iter().map(|info| (info.region.id, info.region.epoch)).collect();
    regressed
}

/// Returns how the decisions in a leader's state differ from those that its store holds.
pub fn other_decisions(state: &Cluster, held: &Cluster) -> Option<String> {
    let decisions = |cluster: &Cluster| {
        let stores = cluster.stores().map(|it| (it.id, it.state, it.address.clone()));
        let stores = stores.collect::<Vec<_>>();
        format!("{} {stores:?} {:?}", cluster.members_version(), cluster.config())
    };
    let (state, held) = (decisions(state), decisions(held));
    (state != held).then(|| format!("decides on {state}, but its store holds {held}"))
}

/// Returns how a placement state exceeds its bound: a few records for each store and each region.
pub fn too_many_records(cluster: &Cluster, records: usize) -> Option<String> {
    let (stores, regions) = (cluster.stores().count(), cluster.regions().iter().count());
    let of_parts = RECORDS_OF_A_STORE_MAX * stores + RECORDS_OF_A_REGION_MAX * regions;
    let most = RECORDS_MAX + SETTINGS.len() + of_parts;
    let counts = format!("{stores} stores and {regions} regions");
    (records > most).then(|| format!("persists {records} records of {counts}, limit {most}"))
}

/// Returns what is invalid in an order that changes voters or takes a merge back.
pub fn invalid_order(
    leader_state: &LeaderState,
    instruction: &Instruction,
    now: Millis,
) -> Option<String> {
    if matches!(instruction.order, Order::RollbackMerge(_)) {
        let target = merge_target(&leader_state.cluster, instruction.region)?;
        return Some(format!("orders {instruction:?}, although {target:?} may commit the merge"));
    }
    if let Some(text) = invalid_end_of_a_merge(leader_state, instruction) {
        return Some(text);
    }
    let Order::ChangePeers(changes) = &instruction.order else { return None };
    let cluster = &leader_state.cluster;
    let info = cluster.regions().get(instruction.region)?;
    let operator = leader_state.operators.of(instruction.region)?;
    let invalid = |what: String| Some(format!("orders {instruction:?}: {what}"));
    if operator.epoch.conf_version != instruction.epoch.conf_version {
        return invalid(format!(
            "members changed outside this operator since {:?}",
            operator.epoch
        ));
    }
    if let Some(peer) = unchanged_peer(&info.region, changes) {
        return invalid(format!("{peer:?} already has that role"));
    }
    let before = info.region.voters_of(true);
    let after = voters_after(info, changes);
    if after == info.region.voters_of(false) && !changes.is_empty() {
        return None;
    }
    for voters in [&before, &info.region.voters_of(false), &after] {
        let answering = voters.iter().filter(|peer| is_available(cluster, info, peer, now)).count();
        if answering * 2 <= voters.len() {
            return invalid(format!("only {answering} of {voters:?} respond"));
        }
    }
    let (were, will) = (shared_nodes(cluster, &before), shared_nodes(cluster, &after));
    // The end of a joint change is an order without changes. An administrator may have begun it, and
    // it can only end with the voters that were ordered then.
    if will > were && !changes.is_empty() {
        return invalid(format!("{will} pairs of voters share a node, {were} before"));
    }
    None
}

/// Returns what is invalid in an order that ends a merge: a merge is abandoned only if an
/// administrator cancelled it or moves a replica of its source, and a cancelled one is not committed.
fn invalid_end_of_a_merge(state: &LeaderState, instruction: &Instruction) -> Option<String> {
    let is_cancelled = |source| state.cluster.has_cancelled_merge(source);
    match &instruction.order {
        Order::AbandonMerge(_) => {
            let running = state.operators.of(instruction.region);
            let is_manual = running.is_some_and(|running| running.kind == Kind::Manual);
            (!is_manual && !is_cancelled(instruction.region))
                .then(|| format!("orders {instruction:?}, although no administrator cancelled it"))
        }
        Order::CommitMerge { source, .. } if is_cancelled(source.id) => {
            Some(format!("orders {instruction:?}, although an administrator cancelled it"))
        }
        _ => None,
    }
}

/// Returns a peer that an order would give the role it has: its leader refuses such an order.
fn unchanged_peer(region: &Region, changes: &[Change]) -> Option<Peer> {
    changes.iter().find_map(|change| match change {
        Change::Add(peer) => region.peer(peer.id).filter(|now| now.role == peer.role).copied(),
        Change::Remove(_) => None,
    })
}

/// Returns the neighbour that a merging region targets, unless the neighbour is known in a later
/// epoch than the preparation names. Replicas of the source refuse to take such a merge back.
fn merge_target(cluster: &Cluster, source: RegionId) -> Option<&Region> {
    let source = &cluster.regions().get(source)?.region;
    let RegionPhase::Merging { target, target_epoch, .. } = source.phase else { return None };
    let target = &cluster.regions().get(target)?.region;
    let (known, named) = (target.epoch, target_epoch);
    let is_past = known.version > named.version || known.conf_version > named.conf_version;
    let touches = |one: &Region, other: &Region| {
        !one.range.end.is_empty() && one.range.end == other.range.start
    };
    let beside = touches(source, target) || touches(target, source);
    (beside && !is_past).then_some(target)
}

/// What a placement leader knew before a step. In one step it may admit an operator and then take reports
/// and decisions that waited: they do not make the operator wrong.
#[derive(Default)]
pub struct Before {
    /// Operators that ran.
    pub running: BTreeSet<OperatorId>,
    reported: BTreeMap<RegionId, Option<Millis>>,
    stores: BTreeMap<StoreId, (StoreState, LastHeartbeat)>,
}

impl Before {
    /// Returns what a leader knows now; nothing without a state.
    pub fn of(leader_state: Option<&LeaderState>) -> Self {
        let Some(LeaderState { cluster, operators, .. }) = leader_state else {
            return Self::default();
        };
        let regions = cluster.regions().iter();
        let stores = cluster.stores();
        Self {
            running: operators.running().map(|operator| operator.id).collect(),
            reported: regions.map(|info| (info.region.id, info.reported)).collect(),
            stores: stores.map(|it| (it.id, (it.state, it.last_heartbeat))).collect(),
        }
    }

    /// Whether the region was reported since.
    pub fn is_reported_since(&self, info: &RegionInfo) -> bool {
        self.reported.get(&info.region.id) != Some(&info.reported)
    }

    /// Whether the store was reported, or a decision about it was made, since.
    pub fn is_changed_since(&self, store: &Store) -> bool {
        self.stores.get(&store.id) != Some(&(store.state, store.last_heartbeat))
    }
}

/// Returns what is invalid in an operator that was just admitted, so that it is not one of `before`:
/// it costs the region its quorum, puts more of its voters into one failure domain, or gives a replica
/// or a leader to a store that cannot take it.
pub fn invalid_admission(
    leader_state: &LeaderState,
    before: &Before,
    now: Millis,
) -> Option<String> {
    let cluster = &leader_state.cluster;
    leader_state
        .operators
        .running()
        .filter(|operator| !before.running.contains(&operator.id))
        .find_map(|operator| {
            let info = cluster.regions().get(operator.region)?;
            if before.is_reported_since(info) {
                return None;
            }
            let (old, mut new) = (info.region.voters_of(true), info.region.voters_of(false));
            let coming = |peer: &Peer| info.region.peer(peer.id).is_none();
            let is_there = |peer: &Peer| match coming(peer) {
                true => cluster.liveness(peer.store, now) == Liveness::Live,
                false => is_available(cluster, info, peer, now),
            };
            let few = |voters: &[Peer]| {
                voters.iter().filter(|peer| is_there(peer)).count() * 2 <= voters.len()
            };
            let changes = operator.steps.iter().any(|step| matches!(step, Step::Enter { .. }));
            let is_stuck = few(&old) || few(&new);
            for step in &operator.steps {
                if let Step::Enter { promote, demote } = step {
                    new.retain(|peer| !demote.iter().any(|gone| gone.id == peer.id));
                    new.extend(promote.iter().copied());
                }
            }
            let is_wrong = is_stuck || changes && few(&new);
            let wrong = is_wrong.then(|| {
                format!(
                    "begins {operator}, although most voters of {info:?} do not respond at {now:?}"
                )
            });
            wrong
                .or_else(|| crowding(cluster, operator, now))
                .or_else(|| unfit_target(cluster, operator, before, now))
        })
}

/// Returns a responding voter, not the leader, without which its region would lose its quorum.
pub fn required_voter(cluster: &Cluster, now: Millis) -> Option<(&RegionInfo, Peer)> {
    cluster.regions().iter().find_map(|info| {
        let voters = info.region.voters_of(false);
        let answering = |peer: &&Peer| is_available(cluster, info, peer, now);
        let count = voters.iter().filter(answering).count();
        let is_bare = count * 2 > voters.len() && count.saturating_sub(1) * 2 < voters.len();
        let leads = |peer: &Peer| info.leader.is_some_and(|leader| leader.id == peer.id);
        let peer = voters.iter().filter(answering).find(|peer| !leads(peer));
        peer.filter(|_| is_bare && !info.region.is_joint()).map(|peer| (info, *peer))
    })
}

/// Voters of the old or the new configuration of a region.
trait Voters {
    fn voters_of(&self, is_old: bool) -> Vec<Peer>;
}

impl Voters for stele_types::Region {
    fn voters_of(&self, is_old: bool) -> Vec<Peer> {
        let other = match is_old {
            true => PeerRole::DemotingVoter,
            false => PeerRole::IncomingVoter,
        };
        let votes = |peer: &&Peer| [PeerRole::Voter, other].contains(&peer.role);
        self.peers.iter().filter(votes).copied().collect()
    }
}

fn voters_after(info: &RegionInfo, changes: &[Change]) -> Vec<Peer> {
    let mut voters = info.region.voters_of(false);
    for change in changes {
        let (Change::Add(peer) | Change::Remove(peer)) = change;
        let votes = matches!(change, Change::Add(_)) && peer.role == PeerRole::Voter;
        match voters.iter().position(|voter| voter.id == peer.id) {
            Some(at) if !votes => drop(voters.remove(at)),
            None if votes => voters.push(*peer),
            _ => {}
        }
    }
    voters
}

fn is_available(cluster: &Cluster, info: &RegionInfo, peer: &Peer, now: Millis) -> bool {
    cluster.liveness(peer.store, now) == Liveness::Live
        && !info.down.iter().any(|down| down.peer == peer.id)
}

/// Counts voters beyond one a node. A removed store never comes back, so a voter on it fails with no other
/// one: the store that its node got instead is as good a place as any.
fn shared_nodes(cluster: &Cluster, voters: &[Peer]) -> usize {
    let stores = voters.iter().filter_map(|peer| cluster.store(peer.store));
    let members = stores.filter(|store| store.state != StoreState::Tombstone);
    let nodes: Vec<&str> = members.map(|store| store.address.as_str()).collect();
    nodes.len() - nodes.iter().collect::<BTreeSet<_>>().len()
}

/// Returns what is invalid in an order that removes a store: the other stores cannot hold all
/// copies.
pub fn invalid_removal(
    cluster: &Cluster,
    leaving: StoreId,
    goal: DrainGoal,
    now: Millis,
) -> Option<String> {
    if goal == DrainGoal::Cancel {
        return None;
    }
    let nodes = |all: bool| {
        let stays = |id| id != leaving && cluster.liveness(id, now) == Liveness::Live;
        let counts = |id| all || stays(id);
        let up = cluster.stores().filter(|it| it.state == StoreState::Up && counts(it.id));
        up.map(|store| store.address.as_str()).collect::<BTreeSet<_>>().len()
    };
    let (left, before) = (nodes(false), nodes(true));
    let needed = cluster.config().replicas().min(before).max(1);
    (left < needed).then(|| {
        format!("store {leaving} may leave, though {left} nodes remain for {needed} copies")
    })
}

impl World {
    /// Checks that no removed peer is a member in the epoch that is said to exclude it, or later.
    pub(crate) fn check_removed(&mut self, removed: &[StalePeer]) {
        for peer in removed {
            let reports = self.reports_by_region().remove(&peer.region).unwrap_or_default();
            let member = reports.iter().map(|(_, report)| &report.region).find(|region| {
                region.epoch.conf_version >= peer.epoch.conf_version
                    && region.peer(peer.peer).is_some()
            });
            if let Some(region) = member {
                let text =
                    format!("{peer:?} is ordered to be destroyed, but is a member of {region:?}");
                return self.fail(text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_placement::{Bootstrap, NewStore};
    use stele_types::{ClusterId, PeerId};

    #[test]
    fn a_voter_on_a_removed_store_shares_its_node_with_no_other_voter() {
        let address = "node:1".to_owned();
        let first = Bootstrap { cluster: ClusterId(7), address, capacities_bytes: vec![1 << 30] };
        let pairs = first.pairs().into_iter().filter_map(|it| Some((it.key, it.value?)));
        let mut cluster = Cluster::load(pairs, Millis(0), 0).unwrap().unwrap();
        let (_, changes) = cluster.plan_join("node:1", &[NewStore::default()]).unwrap();
        cluster.apply(&changes).unwrap();
        let voter = |id| Peer { id: PeerId(id), store: StoreId(id), role: PeerRole::Voter };
        let voters = [1, 2].map(voter);
        assert_eq!(shared_nodes(&cluster, &voters), 1);
        let changes = cluster.plan_lost(&[StoreId(1)].into(), 1);
        cluster.apply(&changes).unwrap();
        assert_eq!(shared_nodes(&cluster, &voters), 0);
    }
}
