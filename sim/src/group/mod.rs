//! Placement group, as the server runs it. Nodes report to the leader of region 1, which schedules,
//! persists its decisions in region 1, and replies with orders for region leaders.
//!
//! The state and every decision come from `stele-placement`. Reports, proposals and orders are
//! those of the server's service, in virtual time instead of async calls.

mod leader;
mod orders;
mod report;

pub use leader::GroupLeader;

use stele_placement::{NewStore, NodeReport, OperatorId, RegionReport, StoreReport};
use stele_raftstore::Admin;
use stele_types::{KeyRange, PeerId, Region, RegionEpoch, RegionId, StoreId};

/// Replica without a leader for a long time.
#[derive(Clone, Copy, Debug)]
pub struct StalePeer {
    /// Store of the replica.
    pub store: StoreId,
    /// Region of the replica.
    pub region: RegionId,
    /// Peer id of the replica.
    pub peer: PeerId,
    /// Epoch of the region known to the replica.
    pub epoch: RegionEpoch,
}

/// Request of a node to the leader of the placement group.
#[derive(Clone, Debug)]
pub enum Call {
    /// Report of a node.
    Report(Report),
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

/// Report of a node.
#[derive(Clone, Debug)]
pub struct Report {
    /// Node that reports.
    pub node: NodeReport,
    /// Number of the report; it increases also across restarts.
    pub sequence: u64,
    /// Stores of the node.
    pub stores: Vec<StoreReport>,
    /// Regions led on the node.
    pub regions: Vec<RegionReport>,
    /// True if `regions` is complete.
    pub is_full: bool,
    /// Refused steps: operator, index of the step, reason.
    pub refusals: Vec<(OperatorId, usize, String)>,
    /// Replicas that may have been removed.
    pub stale_peers: Vec<StalePeer>,
    /// Orphaned ranges by store.
    pub orphaned_ranges: Vec<(StoreId, Vec<KeyRange>)>,
}

/// Order for a region leader.
#[derive(Clone, Debug)]
pub struct Ordered {
    /// Operator of the order.
    pub operator: OperatorId,
    /// Index of the operator's step.
    pub index: usize,
    /// Region to change.
    pub region: RegionId,
    /// Epoch that the region must have.
    pub epoch: RegionEpoch,
    /// Change; `None` to split the region in the middle.
    pub admin: Option<Admin>,
}

/// Answer of the placement leader.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Answer to a report.
    ReportReply {
        /// Node that answers.
        leader: u64,
        /// Orders for region leaders on the node.
        orders: Vec<Ordered>,
        /// Replicas to destroy.
        removed: Vec<StalePeer>,
        /// Owners of orphaned ranges, by store.
        owners: Vec<(StoreId, Vec<Region>)>,
        /// The next report must hold every region.
        all_wanted: bool,
        /// The next report must come soon.
        soon: bool,
        /// Term of the placement leader.
        term: u64,
        /// The stores of the node may serve reads under leases.
        leases: bool,
    },
    /// Answer to a join request.
    Joined {
        /// Allocated store id of each slot.
        ids: Vec<(u64, StoreId)>,
    },
}

/// A node's state in the placement group.
#[derive(Default)]
pub struct Member {
    /// Leader state, while its store leads region 1 and the state is loaded.
    pub leader: Option<GroupLeader>,
    /// Term of the state that is being loaded.
    pub loading: Option<u64>,
    /// Node that answered last.
    pub leader_hint: Option<u64>,
    /// Term of the placement leader that last stated the cluster's settings.
    settings_term: u64,
    /// Time of the next report.
    report_at: u64,
    sequence: u64,
    all_wanted: bool,
    is_unanswered: bool,
    refusals: Vec<(OperatorId, usize, String)>,
    working: std::collections::BTreeSet<(u64, RegionId)>,
}

impl Member {
    /// Resets the state for a new process; the report number stays.
    pub fn restart(&mut self) {
        let sequence = self.sequence;
        *self = Self { sequence, all_wanted: true, ..Self::default() };
    }
}
