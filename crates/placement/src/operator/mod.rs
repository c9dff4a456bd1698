//! Operators: planned changes of one region, step by step.

pub mod guard;
pub mod plan;
pub mod recent_moves;
pub mod status;
pub mod tracker;

use crate::Millis;
use bytes::Bytes;
use std::fmt;
use stele_types::{LogIndex, Peer, PeerId, PeerRole, Region, RegionEpoch, RegionId, StoreId};

/// Number of an operator. Each placement leader starts again from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperatorId(pub u64);

impl fmt::Display for OperatorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Purpose of an operator, in order of urgency, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Leaves a joint configuration, or ends a merge, that has no operator.
    Finish,
    /// Ordered by an administrator.
    Manual,
    /// Replaces lost replicas, adds missing ones, separates those on one node.
    Repair,
    /// Promotes or removes a learner that has no operator (PD orphan peer).
    OrphanLearner,
    /// Empties a store.
    Drain,
    /// Removes replicas beyond the wanted number.
    Surplus,
    /// Moves a leader off a store that should not lead, or to a faster one.
    Evict,
    /// Moves a replica to a store with less load.
    Balance,
    /// Moves a leader to a store that has less to do.
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
            Self::OrphanLearner => "orphan learner",
            Self::Drain => "drain",
            Self::Surplus => "surplus",
            Self::Evict => "evict",
            Self::Balance => "balance",
            Self::Leaders => "leaders",
            Self::Merge => "merge",
        })
    }
}

/// Change of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds the peer with its role, or changes its role to that.
    Add(Peer),
    /// Removes the peer, a learner.
    Remove(Peer),
}

/// Numbers for a region that a split creates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRegion {
    /// Number of the region.
    pub region: RegionId,
    /// Numbers of its peers, one for each peer of the split region, in the same order.
    pub peers: Vec<PeerId>,
}

/// Step of an operator. A peer with number 0 gets its number when the operator is admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Adds a learner; done when it has caught up.
    AddLearner(Peer),
    /// Promotes learners and demotes voters at once, by a joint configuration.
    Enter {
        /// Learners that become voters.
        promote: Vec<Peer>,
        /// Voters that become learners.
        demote: Vec<Peer>,
    },
    /// Leaves the joint configuration. A leader that is demoted transfers leadership first.
    Leave,
    /// Removes a learner.
    Remove(Peer),
    /// Transfers leadership to this peer.
    Transfer(Peer),
    /// Splits the region.
    Split {
        /// Split keys; empty: the leader chooses the middle.
        keys: Vec<Bytes>,
        /// New regions, one for each key; numbered when the operator is admitted.
        new: Vec<NewRegion>,
    },
    /// Stops writes to the region, to merge it into this neighbour.
    PrepareMerge(Region),
    /// Makes this neighbour take over the region's keys.
    CommitMerge(RegionId),
    /// Resumes writes to the region, of which the target has refused the merge.
    RollbackMerge,
    /// Resumes writes to the region; a target that has not decided refuses the merge.
    AbandonMerge,
}

/// Planned change of one region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    /// Number; 0 until the operator is admitted.
    pub id: OperatorId,
    /// Region to change.
    pub region: RegionId,
    /// Epoch of the region when the current step began. Another epoch means a change outside this
    /// operator.
    pub epoch: RegionEpoch,
    /// Purpose.
    pub kind: Kind,
    /// Reason, for people.
    pub reason: String,
    /// Steps, in order.
    pub steps: Vec<Step>,
    /// Number of steps that are done.
    pub done: usize,
    /// Last refusal of the current step by a leader.
    pub refusal: Option<String>,
    /// Time of admission.
    pub created: Millis,
    /// Time after admission at which the operator is cancelled.
    pub timeout_millis: u64,
}

/// Proposal for the leader of a region. A repeated order is harmless: it takes effect only at the
/// epoch that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Change members; empty: leave the joint configuration.
    ChangePeers(Vec<Change>),
    /// Transfer leadership to this peer.
    TransferLeader(Peer),
    /// Split the region.
    Split {
        /// Split keys; empty: in the middle.
        keys: Vec<Bytes>,
        /// Numbers of the new regions, one for each key; one if there are no keys.
        new: Vec<NewRegion>,
    },
    /// Stop writes and prepare to merge into this region.
    PrepareMerge(Region),
    /// Take over the keys of a prepared region.
    CommitMerge {
        /// The prepared region.
        source: Region,
        /// Index of the entry that prepared it.
        prepared: LogIndex,
    },
    /// Resume writes, on proof that the target refused the merge. Names the target's stores, as last
    /// reported.
    RollbackMerge(Vec<StoreId>),
    /// Resume writes; a target that has not decided refuses the merge. Names the target's stores too.
    AbandonMerge(Vec<StoreId>),
}

impl Operator {
    /// Returns the current step; `None` when all are done.
    pub fn step(&self) -> Option<&Step> {
        self.steps.get(self.done)
    }

    /// Returns how many numbers the new peers and regions need; the region has `peers` members.
    pub fn ids_wanted(&self, peers: usize) -> u64 {
        let of_step = |step: &Step| match step {
            Step::AddLearner(peer) if peer.id == PeerId(0) => 1,
            Step::Split { keys, .. } => keys.len().max(1) * (peers + 1),
            _ => 0,
        };
        self.steps.iter().map(of_step).sum::<usize>() as u64
    }

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

    /// Continues with members that changed outside the operator, at epoch `now`. Returns whether it can:
    /// a plan that changes members cannot, nor can a merge.
    ///
    /// A replaced operator may still change members, by a step that its leader has begun. Invariant:
    /// that does not end the split or the transfer that replaced it.
    pub(crate) fn adopt_members(&mut self, now: RegionEpoch) -> bool {
        let is_free = |step: &Step| matches!(step, Step::Split { .. } | Step::Transfer(_));
        // bug placement.split_ends_with_members: always
        if !self.steps.iter().all(is_free) {
            return false;
        }
        self.epoch.conf_version = now.conf_version;
        for step in &mut self.steps {
            // Without numbers the leader reserves as many as the members need.
            if let Step::Split { new, .. } = step {
                new.clear();
            }
        }
        true
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

    /// Returns the members after the last step.
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

    /// Returns the store that leads after the last step, if a step determines it.
    pub fn final_leader(&self) -> Option<StoreId> {
        self.steps.iter().rev().find_map(|step| match step {
            Step::Transfer(to) => Some(to.store),
            _ => None,
        })
    }

    /// Iterates over stores that still receive a replica.
    pub fn receivers(&self) -> impl Iterator<Item = StoreId> {
        self.steps.iter().skip(self.done).filter_map(|step| match step {
            Step::AddLearner(peer) => Some(peer.store),
            _ => None,
        })
    }

    /// Whether a step merges the region into another one.
    pub fn merges(&self) -> bool {
        let merges = |step: &Step| matches!(step, Step::PrepareMerge(_) | Step::CommitMerge(_));
        self.steps.iter().any(merges)
    }

    /// Returns the other region that the operator changes, if any: the target of a merge.
    pub(crate) fn other_region(&self) -> Option<RegionId> {
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

/// Returns the role after the joint configuration is left.
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
            Self::AbandonMerge => f.write_str("abandon merge"),
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
