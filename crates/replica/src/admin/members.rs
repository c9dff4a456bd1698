//! Membership of a region, as pure functions from one descriptor to the next. They follow Raft's
//! own rules, so that the descriptor and Raft's configuration never differ.

use super::PARTS_MAX;
use crate::input::{ChangeKind, PeerChange};
use raft::eraftpb::ConfState;
use std::collections::BTreeSet;
use stele_types::{Peer, PeerRole, Region, RegionPhase, StoreId};

const PEERS_MAX: usize = 32;

/// Returns the region after one change (at once) or after several (joint, until [`leave_joint`]).
/// Each change adds one to `conf_version`.
///
/// Refused: a change while joint or merging; a region without a voter; two peers on a store; a
/// voter that was not a learner; several changes without a voter among them, because the roles
/// could not represent their joint configuration; the removal of a voter among several changes: it
/// must become a learner first.
pub(crate) fn change_peers(region: &Region, changes: &[PeerChange]) -> Result<Region, String> {
    check_normal_phase(region)?;
    // bug replica.change_while_joint: never
    if region.is_joint() {
        return Err(
            "membership is between two configurations: leave the joint one first".to_owned()
        );
    }
    if changes.is_empty() || changes.len() > PARTS_MAX {
        return Err(format!("{} membership changes: give 1 to {PARTS_MAX}", changes.len()));
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

/// Returns the region after its joint configuration. Adds one to `conf_version`.
pub(crate) fn leave_joint(region: &Region) -> Result<Region, String> {
    if !region.is_joint() {
        return Err("the region is not in a joint configuration".to_owned());
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

/// Returns the region without its peers on lost stores. All others become voters, because each may
/// hold entries that the others lack. Adds one to `conf_version` for each change.
///
/// Refused: the loss of no majority, which an ordinary change of members repairs without the loss of
/// entries; the loss of all peers.
pub(crate) fn recover(region: &Region, lost: &[StoreId]) -> Result<Region, String> {
    let is_kept = |peer: &&Peer| !lost.contains(&peer.store);
    let has_majority = |votes: fn(PeerRole) -> bool| {
        let voters = || region.peers.iter().filter(|peer| votes(peer.role));
        2 * voters().filter(is_kept).count() > voters().count()
    };
    let votes_now = |role| matches!(role, PeerRole::Voter | PeerRole::DemotingVoter);
    let is_needless = has_majority(votes_now) && has_majority(PeerRole::votes_next);
    // bug replica.recover_beside_a_majority: never
    if is_needless {
        return Err("a majority of its voters is not lost: bring their nodes back".to_owned());
    }
    let mut out = region.clone();
    out.peers.retain(|peer| is_kept(&peer));
    if out.peers.is_empty() {
        return Err("all its peers are lost".to_owned());
    }
    let mut changes = region.peers.len() - out.peers.len();
    for peer in out.peers.iter_mut().filter(|peer| peer.role != PeerRole::Voter) {
        peer.role = PeerRole::Voter;
        changes += 1;
    }
    check_members(&out)?;
    out.epoch.conf_version += changes.max(1) as u64;
    Ok(out)
}

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

/// Fails unless these functions could have made the descriptor: Raft panics on others.
pub(crate) fn check_members(region: &Region) -> Result<(), String> {
    let peers = &region.peers;
    let stores: BTreeSet<_> = peers.iter().map(|peer| peer.store).collect();
    let ids: BTreeSet<_> = peers.iter().map(|peer| peer.id).collect();
    if stores.len() != peers.len() || ids.len() != peers.len() {
        return Err("two peers on one store, or with one id".to_owned());
    }
    if peers.iter().any(|peer| peer.id.0 == 0 || peer.store.0 == 0) {
        return Err("a peer or store is 0".to_owned());
    }
    if peers.len() > PEERS_MAX {
        return Err(format!("{} peers: at most {PEERS_MAX} are allowed", peers.len()));
    }
    let votes_now = |peer: &Peer| matches!(peer.role, PeerRole::Voter | PeerRole::DemotingVoter);
    let votes = peers.iter().any(|peer| peer.role.votes_next()) && peers.iter().any(votes_now);
    // bug replica.no_voter_left: never
    if !votes {
        return Err("no voter would remain".to_owned());
    }
    Ok(())
}

pub(super) fn check_normal_phase(region: &Region) -> Result<(), String> {
    match region.phase {
        RegionPhase::Normal => Ok(()),
        RegionPhase::Merging { target, .. } => {
            Err(format!("the region is merging into region {target}"))
        }
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
        (role, _) => return Err(format!("peer {} is already a {role:?}", peer.id)),
    };
    Ok(())
}

fn remove(region: &mut Region, old: Peer, joint: bool) -> Result<(), String> {
    let Some(at) = region.peers.iter().position(|peer| peer.id == old.id) else {
        return Err(format!("peer {} is not a member", old.id));
    };
    if region.peers.get(at).is_some_and(|peer| joint && peer.role != PeerRole::Learner) {
        return Err(format!("peer {} is a voter: make it a learner first, then remove it", old.id));
    }
    region.peers.remove(at);
    Ok(())
}

#[cfg(test)]
mod tests;
