//! An operator: what shall happen to one region, step by step, and why.

pub mod guard;
pub mod plan;
pub mod status;
pub mod tracker;

use crate::Millis;
use bytes::Bytes;
use std::fmt;
use stele_types::{LogIndex, Peer, PeerId, PeerRole, Region, RegionEpoch, RegionId, StoreId};

/// An operator's number; starts anew with each leader of the placement group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperatorId(pub u64);

impl fmt::Display for OperatorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What an operator is for. The order is that of urgency: most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Leaves a joint configuration, or ends a merge, that nobody looks after.
    Finish,
    /// Ordered by a person.
    Manual,
    /// Replaces lost replicas, adds missing ones, separates those that fail together.
    Repair,
    /// Promotes or removes a learner that nobody looks after.
    OrphanLearner,
    /// Empties a store.
    Drain,
    /// Removes replicas beyond the wanted number.
    Surplus,
    /// Moves a replica to a store with less load.
    Balance,
    /// Moves a leader to a store with fewer.
    Leaders,
    /// Merges small neighbours.
    Merge,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Finish => "finish",
            Self::Manual => "manual",
            Self::Repair => "repair",
            Self::OrphanLearner => "leftover",
            Self::Drain => "drain",
            Self::Surplus => "surplus",
            Self::Balance => "balance",
            Self::Leaders => "leaders",
            Self::Merge => "merge",
        })
    }
}

/// A change of membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The peer becomes a member with that role, or its role becomes that one.
    Add(Peer),
    /// The peer, a learner, is a member no more.
    Remove(Peer),
}

/// Numbers for a region that a split makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRegion {
    /// The region's.
    pub region: RegionId,
    /// Its peers', one for each peer of the region that is split, in the same order.
    pub peers: Vec<PeerId>,
}

/// One step of an operator. A peer with number 0 gets its number when the operator is admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A new learner, until it has caught up.
    AddLearner(Peer),
    /// Learners become voters and voters learners, all at once, by a joint configuration.
    Enter {
        /// Learners that become voters.
        promote: Vec<Peer>,
        /// Voters that become learners.
        demote: Vec<Peer>,
    },
    /// The joint configuration ends. A leader that is no voter any more hands over first.
    Leave,
    /// A learner goes.
    Remove(Peer),
    /// The leader hands over.
    Transfer(Peer),
    /// The region is split.
    Split {
        /// At these keys; none: where its leader finds its middle.
        keys: Vec<Bytes>,
        /// What arises, one for each key; numbered when the operator is admitted.
        new: Vec<NewRegion>,
    },
    /// The region stops taking writes, to be merged into that neighbour.
    PrepareMerge(Region),
    /// The neighbour takes the region's keys.
    CommitMerge(RegionId),
    /// The region takes writes again.
    RollbackMerge,
}

/// What shall happen to a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    /// Its number; 0 until it is admitted.
    pub id: OperatorId,
    /// Which region.
    pub region: RegionId,
    /// The region's epoch when the current step began: anything else means that somebody else
    /// changed the region.
    pub epoch: RegionEpoch,
    /// What it is for.
    pub kind: Kind,
    /// Why.
    pub reason: String,
    /// What is done, in order.
    pub steps: Vec<Step>,
    /// How many of them are done.
    pub done: usize,
    /// What a leader last said against the step under way.
    pub refusal: Option<String>,
    /// When it was admitted.
    pub created: Millis,
    /// It is given up this long after its admission.
    pub timeout_millis: u64,
}

/// What the leader of a region is told to propose. Repeating it does no harm: the epoch it is for
/// holds once only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Change members; nothing: leave the joint configuration.
    ChangePeers(Vec<Change>),
    /// Hand over.
    TransferLeader(Peer),
    /// Split.
    Split {
        /// At these keys; none: in the middle.
        keys: Vec<Bytes>,
        /// The numbers of what arises, one for each key, or one.
        new: Vec<NewRegion>,
    },
    /// Stop writes and prepare to be merged.
    PrepareMerge(Region),
    /// Take the keys of a prepared region.
    CommitMerge {
        /// Whose.
        source: Region,
        /// The entry that prepared it.
        prepared: LogIndex,
    },
    /// Take writes again.
    RollbackMerge,
}

impl Operator {
    /// The step under way; `None` when all are done.
    pub fn step(&self) -> Option<&Step> {
        self.steps.get(self.done)
    }

    /// How many numbers for new peers and regions it needs; its region has `peers` members.
    pub fn ids_wanted(&self, peers: usize) -> u64 {
        let of_step = |step: &Step| match step {
            Step::AddLearner(peer) if peer.id == PeerId(0) => 1,
            Step::Split { keys, .. } => keys.len().max(1) * (peers + 1),
            _ => 0,
        };
        self.steps.iter().map(of_step).sum::<usize>() as u64
    }

    /// Gives its new peers and regions their numbers.
    pub(crate) fn number(&mut self, peers: usize, mut ids: impl Iterator<Item = u64>) {
        for step in &mut self.steps {
            if let Step::Split { keys, new } = step {
                *new = (0..keys.len().max(1))
                    .filter_map(|_| {
                        let region = RegionId(ids.next()?);
                        Some(NewRegion {
                            region,
                            peers: ids.by_ref().take(peers).map(PeerId).collect(),
                        })
                    })
                    .collect();
            }
        }
        self.number_peers(ids);
    }

    fn number_peers(&mut self, mut ids: impl Iterator<Item = u64>) {
        let mut named: Vec<(StoreId, PeerId)> = Vec::new();
        for step in &mut self.steps {
            let peers: &mut [Peer] = match step {
                Step::AddLearner(peer) | Step::Remove(peer) | Step::Transfer(peer) => {
                    std::slice::from_mut(peer)
                }
                Step::Enter { promote, .. } => promote,
                _ => continue,
            };
            for peer in peers.iter_mut().filter(|peer| peer.id == PeerId(0)) {
                let known = named.iter().find(|(store, _)| *store == peer.store);
                let id = known.map(|(_, id)| *id).or_else(|| ids.next().map(PeerId));
                peer.id = id.unwrap_or_default();
                named.push((peer.store, peer.id));
            }
        }
    }

    /// The members when every step is done.
    pub fn final_peers(&self, region: &Region) -> Vec<Peer> {
        let mut peers = region.peers.clone();
        for step in self.steps.iter().skip(self.done) {
            match step {
                Step::AddLearner(peer) if !peers.iter().any(|p| p.store == peer.store) => {
                    peers.push(Peer { role: PeerRole::Learner, ..*peer });
                }
                Step::Enter { promote, demote } => {
                    set_roles(&mut peers, promote, PeerRole::Voter);
                    set_roles(&mut peers, demote, PeerRole::Learner);
                }
                Step::Leave => peers.iter_mut().for_each(|peer| peer.role = settled(peer.role)),
                Step::Remove(gone) => peers.retain(|peer| peer.store != gone.store),
                _ => {}
            }
        }
        peers
    }

    /// The store that leads when every step is done, if one of them decides that.
    pub fn final_leader(&self) -> Option<StoreId> {
        self.steps.iter().rev().find_map(|step| match step {
            Step::Transfer(to) => Some(to.store),
            _ => None,
        })
    }

    /// Stores that still have to receive a replica.
    pub fn receivers(&self) -> impl Iterator<Item = StoreId> {
        self.steps.iter().skip(self.done).filter_map(|step| match step {
            Step::AddLearner(peer) => Some(peer.store),
            _ => None,
        })
    }

    /// Regions beside its own that it changes.
    pub fn other_region(&self) -> Option<RegionId> {
        self.steps.iter().find_map(|step| match step {
            Step::PrepareMerge(target) => Some(target.id),
            Step::CommitMerge(target) => Some(*target),
            _ => None,
        })
    }
}

fn set_roles(peers: &mut [Peer], which: &[Peer], role: PeerRole) {
    for peer in peers.iter_mut().filter(|p| which.iter().any(|w| w.store == p.store)) {
        peer.role = role;
    }
}

/// The role after the joint configuration is left.
pub(crate) fn settled(role: PeerRole) -> PeerRole {
    match role {
        PeerRole::Voter | PeerRole::IncomingVoter => PeerRole::Voter,
        PeerRole::Learner | PeerRole::DemotingVoter => PeerRole::Learner,
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddLearner(peer) => write!(f, "learner on {}", peer.store),
            Self::Enter { promote, demote } => {
                f.write_str("voters")?;
                promote.iter().try_for_each(|peer| write!(f, " +{}", peer.store))?;
                demote.iter().try_for_each(|peer| write!(f, " -{}", peer.store))
            }
            Self::Leave => f.write_str("leave joint"),
            Self::Remove(peer) => write!(f, "remove {}", peer.store),
            Self::Transfer(to) => write!(f, "leader to {}", to.store),
            Self::Split { keys, .. } => match keys.len() {
                0 => f.write_str("split in the middle"),
                count => write!(f, "split at {count} keys"),
            },
            Self::PrepareMerge(target) => write!(f, "prepare merge into {}", target.id),
            Self::CommitMerge(target) => write!(f, "commit merge into {target}"),
            Self::RollbackMerge => f.write_str("roll merge back"),
        }
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "region {} {}: ", self.region, self.kind)?;
        for (at, step) in self.steps.iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            write!(f, "{separator}{step}")?;
        }
        write!(f, " ({})", self.reason)
    }
}
