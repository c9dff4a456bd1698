//! Who belongs to a region, as pure functions from one descriptor to the next. They follow what Raft
//! does with the same change, so that the descriptor and Raft's configuration never differ.

use super::record::PARTS_MAX;
use crate::input::{ChangeKind, PeerChange};
use raft::eraftpb::ConfState;
use std::collections::BTreeSet;
use stele_types::mutant;
use stele_types::{Peer, PeerRole, Region, RegionPhase};

/// More replicas than anyone needs.
const PEERS_MAX: usize = 32;

/// The region after one change (at once), or after several (joint, until [`leave_joint`]). Each
/// change adds one to `conf_version`.
///
/// Refused: a second change while joint or merging; a region without a voter; two peers on a store;
/// a voter that was no learner; several changes of which none concerns a voter, since the joint
/// configuration they make could not be told from the roles; the removal of a voter among several
/// changes: it becomes a learner first, and goes after.
pub(crate) fn change_peers(region: &Region, changes: &[PeerChange]) -> Result<Region, String> {
    check_quiet(region)?;
    if region.is_joint() && !mutant::active("raftstore.change_while_joint") {
        return Err("membership is between two configurations: leave that first".to_owned());
    }
    if changes.is_empty() || changes.len() > PARTS_MAX {
        return Err(format!("{} changes of members", changes.len()));
    }
    let named: BTreeSet<_> = changes.iter().map(|change| change.peer.id).collect();
    if named.len() != changes.len() {
        return Err("a peer is named twice".to_owned());
    }
    let several = changes.len() > 1;
    let mut out = region.clone();
    for change in changes {
        match change.kind {
            ChangeKind::Add => add(&mut out, change.peer, several)?,
            ChangeKind::Remove => remove(&mut out, change.peer, several)?,
        }
    }
    if several && !out.is_joint() {
        return Err("several changes of learners alone: make one at a time".to_owned());
    }
    check_members(&out)?;
    out.epoch.conf_version += changes.len() as u64;
    Ok(out)
}

/// The region after its joint configuration. Adds one to `conf_version`.
pub(crate) fn leave_joint(region: &Region) -> Result<Region, String> {
    if !region.is_joint() {
        return Err("membership is not between two configurations".to_owned());
    }
    let mut out = region.clone();
    for peer in &mut out.peers {
        peer.role = match peer.role {
            PeerRole::Voter | PeerRole::IncomingVoter => PeerRole::Voter,
            PeerRole::Learner | PeerRole::DemotingVoter => PeerRole::Learner,
        };
    }
    out.epoch.conf_version += 1;
    Ok(out)
}

/// The same members as Raft counts them.
pub(crate) fn conf_state(region: &Region) -> ConfState {
    let ids = |roles: &[PeerRole]| {
        let peers = region.peers.iter().filter(|peer| roles.contains(&peer.role));
        peers.map(|peer| peer.id.0).collect::<Vec<_>>()
    };
    let mut out = ConfState::default();
    out.set_voters(ids(&[PeerRole::Voter, PeerRole::IncomingVoter]));
    out.set_learners(ids(&[PeerRole::Learner]));
    if region.is_joint() {
        out.set_voters_outgoing(ids(&[PeerRole::Voter, PeerRole::DemotingVoter]));
        out.set_learners_next(ids(&[PeerRole::DemotingVoter]));
    }
    out
}

/// Fails unless the descriptor is one that these functions make: Raft stops at any other.
pub(crate) fn check_members(region: &Region) -> Result<(), String> {
    let peers = &region.peers;
    let stores: BTreeSet<_> = peers.iter().map(|peer| peer.store).collect();
    let ids: BTreeSet<_> = peers.iter().map(|peer| peer.id).collect();
    if stores.len() != peers.len() || ids.len() != peers.len() {
        return Err("two peers on one store, or of one name".to_owned());
    }
    if peers.iter().any(|peer| peer.id.0 == 0 || peer.store.0 == 0) {
        return Err("a peer or store is 0".to_owned());
    }
    if peers.len() > PEERS_MAX {
        return Err(format!("{} peers; the most is {PEERS_MAX}", peers.len()));
    }
    let votes_now = |peer: &Peer| matches!(peer.role, PeerRole::Voter | PeerRole::DemotingVoter);
    let votes = peers.iter().any(|peer| peer.role.votes_next()) && peers.iter().any(votes_now);
    if !votes && !mutant::active("raftstore.no_voter_left") {
        return Err("no voter is left".to_owned());
    }
    Ok(())
}

/// Fails while the region is being merged or is gone.
pub(super) fn check_quiet(region: &Region) -> Result<(), String> {
    match region.phase {
        RegionPhase::Normal => Ok(()),
        RegionPhase::Merging { target, .. } => Err(format!("merging into region {target}")),
        RegionPhase::Tombstone => Err("the region is gone".to_owned()),
    }
}

fn add(region: &mut Region, new: Peer, joint: bool) -> Result<(), String> {
    let found = region.peers.iter_mut().find(|peer| peer.id == new.id);
    let Some(peer) = found else {
        if new.role != PeerRole::Learner {
            return Err(format!("peer {} has no log yet: add it as a learner first", new.id));
        }
        region.peers.push(new);
        return Ok(());
    };
    if peer.store != new.store {
        return Err(format!("peer {} is on store {}", peer.id, peer.store));
    }
    peer.role = match (peer.role, new.role) {
        (PeerRole::Learner, PeerRole::Voter) if joint => PeerRole::IncomingVoter,
        (PeerRole::Learner, PeerRole::Voter) => PeerRole::Voter,
        (PeerRole::Voter, PeerRole::Learner) if joint => PeerRole::DemotingVoter,
        (PeerRole::Voter, PeerRole::Learner) => PeerRole::Learner,
        (role, _) => return Err(format!("peer {} is a {role:?} already", peer.id)),
    };
    Ok(())
}

fn remove(region: &mut Region, old: Peer, joint: bool) -> Result<(), String> {
    let Some(at) = region.peers.iter().position(|peer| peer.id == old.id) else {
        return Err(format!("peer {} is no member", old.id));
    };
    if region.peers.get(at).is_some_and(|peer| joint && peer.role != PeerRole::Learner) {
        return Err(format!("peer {} votes: make it a learner, and remove it after", old.id));
    }
    region.peers.remove(at);
    Ok(())
}

#[cfg(test)]
mod tests;
