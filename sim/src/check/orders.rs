//! What the placement group decides: it goes by what it was told, never back behind it, and gives no
//! order that costs a region its votes or that its operator did not lead to.

use crate::group::{Report, Stray};
use crate::world::World;
use std::collections::BTreeSet;
use stele_placement::{
    Change, Cluster, DrainGoal, Instruction, LeaderState, Liveness, Millis, Order, RegionInfo,
    Step, StoreState,
};
use stele_types::{Peer, PeerRole, Region, RegionEpoch, RegionId, RegionPhase, StoreId};

/// The epochs that are known of a report's regions.
pub fn epochs(cluster: &Cluster, report: &Report) -> Vec<(RegionId, RegionEpoch)> {
    let ids = report.regions.iter().map(|region| region.region.id);
    let known = ids.filter_map(|id| cluster.regions().get(id));
    known.map(|info| (info.region.id, info.region.epoch)).collect()
}

/// A region of which less is known than was.
pub fn gone_back(cluster: &Cluster, before: &[(RegionId, RegionEpoch)]) -> Option<String> {
    before.iter().find_map(|(id, before)| {
        let now = cluster.regions().get(*id)?.region.epoch;
        let is_back = now.version < before.version || now.conf_version < before.conf_version;
        is_back.then(|| format!("takes region {id} back from {before:?} to {now:?}"))
    })
}

/// What is wrong with an order that changes who votes, or takes a merge back.
pub fn wrong(led: &LeaderState, instruction: &Instruction, now: Millis) -> Option<String> {
    if matches!(instruction.order, Order::RollbackMerge) {
        let target = taker(&led.cluster, instruction.region)?;
        return Some(format!("orders {instruction:?}, though {target:?} may take the region over"));
    }
    let Order::ChangePeers(changes) = &instruction.order else { return None };
    let cluster = &led.cluster;
    let info = cluster.regions().get(instruction.region)?;
    let operator = led.operators.of(instruction.region)?;
    let says = |what: String| Some(format!("orders {instruction:?}: {what}"));
    if operator.epoch.conf_version != instruction.epoch.conf_version {
        return says(format!("somebody else changed the members since {:?}", operator.epoch));
    }
    if let Some(peer) = already_so(&info.region, changes) {
        return says(format!("{peer:?} is that already"));
    }
    let before = info.region.voters_of(true);
    let after = voters_after(info, changes);
    if after == info.region.voters_of(false) && !changes.is_empty() {
        return None;
    }
    for voters in [&before, &info.region.voters_of(false), &after] {
        let answering = voters.iter().filter(|peer| answers(cluster, info, peer, now)).count();
        if answering * 2 <= voters.len() {
            return says(format!("{answering} of {voters:?} answer"));
        }
    }
    let (were, will) = (shared_nodes(cluster, &before), shared_nodes(cluster, &after));
    if will > were {
        return says(format!("{will} pairs of voters share a node, {were} did"));
    }
    None
}

/// A peer that shall become what it is: its leader refuses that as long as it is ordered.
fn already_so(region: &Region, changes: &[Change]) -> Option<Peer> {
    changes.iter().find_map(|change| match change {
        Change::Add(peer) => region.peer(peer.id).filter(|now| now.role == peer.role).copied(),
        Change::Remove(_) => None,
    })
}

/// The region beside one that is prepared to be merged into it, as far as it is known no later than the
/// preparation knew it: replicas of the source refuse to take such a merge back.
fn taker(cluster: &Cluster, source: RegionId) -> Option<&Region> {
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

/// An operator that was admitted just now though it costs a region its votes.
pub fn wrongly_admitted(led: &LeaderState, now: Millis) -> Option<String> {
    let cluster = &led.cluster;
    led.operators.running().filter(|operator| operator.created == now).find_map(|operator| {
        let info = cluster.regions().get(operator.region)?;
        let (old, mut new) = (info.region.voters_of(true), info.region.voters_of(false));
        let coming = |peer: &Peer| info.region.peer(peer.id).is_none();
        let is_there = |peer: &Peer| match coming(peer) {
            true => cluster.liveness(peer.store, now) == Liveness::Live,
            false => answers(cluster, info, peer, now),
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
        is_wrong.then(|| format!("begins {operator} though most voters of {info:?} do not answer"))
    })
}

/// A voter without which most of the others would not answer, though most do now, and who does not
/// lead.
pub fn spared_by_nobody(cluster: &Cluster, now: Millis) -> Option<(&RegionInfo, Peer)> {
    cluster.regions().iter().find_map(|info| {
        let voters = info.region.voters_of(false);
        let answering = |peer: &&Peer| answers(cluster, info, peer, now);
        let count = voters.iter().filter(answering).count();
        let is_bare = count * 2 > voters.len() && count.saturating_sub(1) * 2 < voters.len();
        let leads = |peer: &Peer| info.leader.is_some_and(|leader| leader.id == peer.id);
        let peer = voters.iter().filter(answering).find(|peer| !leads(peer));
        peer.filter(|_| is_bare && !info.region.is_joint()).map(|peer| (info, *peer))
    })
}

/// Voters by the old or the new configuration of a region.
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

/// Voters once the changes are made, and a joint configuration is left.
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

fn answers(cluster: &Cluster, info: &RegionInfo, peer: &Peer, now: Millis) -> bool {
    cluster.liveness(peer.store, now) == Liveness::Live
        && !info.down.iter().any(|down| down.peer == peer.id)
}

fn shared_nodes(cluster: &Cluster, voters: &[Peer]) -> usize {
    let node = |peer: &Peer| cluster.store(peer.store).map(|store| store.address.clone());
    voters.len() - voters.iter().map(node).collect::<BTreeSet<_>>().len()
}

/// A store was ordered to leave that the others can't stand in for.
pub fn too_few_left(
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
    /// Who is told to go must be a member nowhere at the epoch that is said to be without it.
    pub(crate) fn check_gone(&mut self, gone: &[(Stray, RegionEpoch)]) {
        for (stray, without) in gone {
            let reports = self.reports_by_region().remove(&stray.region).unwrap_or_default();
            let member = reports.iter().map(|(_, report)| &report.region).find(|region| {
                region.epoch.conf_version >= without.conf_version
                    && region.peer(stray.peer).is_some()
            });
            if let Some(region) = member {
                let text = format!("{stray:?} is told to go, and is a member of {region:?}");
                return self.fail(text);
            }
        }
    }
}
