//! Placement group in virtual time. The drivers are those of the server: `stele_node::placement` and
//! `stele_node::report`. This module adds the network, the disks and the checks.

mod leader;
mod levels;
mod orders;
mod report;

pub use leader::Answered;

use crate::world::MemberList;
use std::collections::{BTreeMap, BTreeSet};
use stele_node::follow::FollowedRegions;
use stele_node::placement::PlacementLeader;
use stele_node::report::split::Splitter;
use stele_node::report::{Report, ReportAnswer, Reporter, StepKey};
use stele_placement::{FollowedFrom, LeaderState, Levels, NewStore};
use stele_replica::RegionReport;
use stele_types::{Level, RegionEpoch, RegionId, StoreId};

/// Leaderless time after which a peer is reported as stale.
const STALE_AFTER_S: u64 = 3;

/// Request of a node to the leader of the placement group.
#[derive(Clone, Debug)]
pub enum Call {
    /// Report of a node.
    Report {
        /// The report.
        report: Box<Report>,
        /// Version of the list of members that the node has.
        members_version: u64,
    },
    /// Request for ids of new stores.
    Join {
        /// Address of the node.
        address: String,
        /// Slots of the stores.
        slots: Vec<u64>,
        /// Descriptions of the stores, in the order of `slots`.
        stores: Vec<NewStore>,
    },
}

/// Answer of the placement leader.
#[derive(Clone, Debug)]
pub enum PlacementAnswer {
    /// Answer to a report.
    Report {
        /// Address of the node that answers.
        leader: String,
        /// The answer.
        answer: ReportAnswer,
        /// List of members, unless the node has it.
        members: Option<MemberList>,
        /// Levels of the cluster.
        levels: Levels,
    },
    /// Refusal of a node that does not lead.
    NotLeader {
        /// Address of the node that leads, as far as this one knows.
        leader: String,
    },
    /// Answer to a join request.
    Joined {
        /// Allocated store id of each slot.
        ids: Vec<(u64, StoreId)>,
        /// List of members.
        members: MemberList,
        /// Levels of the cluster.
        levels: Levels,
    },
}

/// A node's state in the placement group.
pub struct Member {
    placement: Option<PlacementLeader<Answered>>,
    /// Epochs of the regions that the loaded state last held.
    epochs: BTreeMap<RegionId, RegionEpoch>,
    reporter: Reporter,
    /// Steps that run, to check that none runs twice.
    running: BTreeSet<StepKey>,
    splitter: Splitter,
    leader_hint: Option<String>,
    /// Level that the node may write and send; `None` before the first answer to a report.
    level_in_use: Option<Level>,
    report_at: u64,
    /// Reports in a row that no node answered.
    unanswered: u64,
    /// Regions that are followed at the node.
    pub followed: FollowedRegions,
    /// What each store, of an incarnation, was last made to keep for readers of logs.
    kept: BTreeMap<(u64, u64), FollowedFrom>,
}

impl Default for Member {
    fn default() -> Self {
        Self::after(0)
    }
}

impl Member {
    fn after(sequence: u64) -> Self {
        Self {
            placement: None,
            epochs: BTreeMap::new(),
            reporter: Reporter::new(sequence, STALE_AFTER_S),
            running: BTreeSet::new(),
            splitter: Splitter::default(),
            leader_hint: None,
            level_in_use: None,
            report_at: 0,
            unanswered: 0,
            followed: FollowedRegions::default(),
            kept: BTreeMap::new(),
        }
    }

    /// Resets the state for a new process; the report number stays.
    pub fn restart(&mut self) {
        *self = Self::after(self.reporter.sequence());
    }

    /// Returns the reports of a store's regions, as the node collected them.
    pub fn collected(&self, store: StoreId) -> impl Iterator<Item = &RegionReport> {
        self.reporter.regions_of(store)
    }

    /// Returns the placement leader's state, while the node leads and the state is loaded.
    pub fn leader_state(&self) -> Option<&LeaderState> {
        let leader = self.placement.as_ref()?;
        leader.state(leader.term()?)
    }
}
