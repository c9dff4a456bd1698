//! The placement group as the server runs it: nodes report to whoever leads region 1, that one
//! schedules, persists its decisions in region 1 and answers what its leaders are to do.
//!
//! The state and every decision are `stele-placement`'s; reports, proposals and orders are those of
//! the server's service, in virtual time instead of async calls.

mod leader;
mod orders;
mod report;

pub use leader::Lead;

use stele_placement::{NewStore, NodeReport, OperatorId, RegionReport, StoreReport};
use stele_raftstore::Admin;
use stele_types::{KeyRange, PeerId, Region, RegionEpoch, RegionId, StoreId};

/// A replica that heard of no leader for long.
#[derive(Clone, Copy, Debug)]
pub struct Stray {
    /// Where.
    pub store: StoreId,
    /// Of which region.
    pub region: RegionId,
    /// Which replica.
    pub peer: PeerId,
    /// The region as it knows it.
    pub epoch: RegionEpoch,
}

/// What a node asks whoever leads the placement group.
#[derive(Clone, Debug)]
pub enum Call {
    /// Its report.
    Report(Report),
    /// Numbers for new stores: their slots.
    Join {
        /// Of the node.
        address: String,
        /// Their slots.
        slots: Vec<u64>,
        /// What they say of themselves.
        stores: Vec<NewStore>,
    },
}

/// A node's report.
#[derive(Clone, Debug)]
pub struct Report {
    /// Who.
    pub node: NodeReport,
    /// Grows with each report of a life.
    pub sequence: u64,
    /// Its stores.
    pub stores: Vec<StoreReport>,
    /// The regions it leads.
    pub regions: Vec<RegionReport>,
    /// All of them are in it.
    pub is_full: bool,
    /// What its leaders refused: operator, step, why.
    pub refusals: Vec<(OperatorId, usize, String)>,
    /// Replicas that may be left behind.
    pub strays: Vec<Stray>,
    /// Stores, and keys that no region there owns.
    pub orphaned_ranges: Vec<(StoreId, Vec<KeyRange>)>,
}

/// An order for a leader.
#[derive(Clone, Debug)]
pub struct Ordered {
    /// For which operator.
    pub operator: OperatorId,
    /// Its step.
    pub index: usize,
    /// The region to change.
    pub region: RegionId,
    /// The epoch it must have.
    pub epoch: RegionEpoch,
    /// The change; `None`: split in the middle.
    pub admin: Option<Admin>,
}

/// What whoever leads the placement group answers.
#[derive(Clone, Debug)]
pub enum Answer {
    /// To a report.
    Told {
        /// Who answers.
        leader: u64,
        /// What leaders there do next.
        orders: Vec<Ordered>,
        /// Replicas there that are no members any more.
        gone: Vec<Stray>,
        /// Whose the unclaimed keys are, by store.
        owners: Vec<(StoreId, Vec<Region>)>,
        /// The next report shall hold every region.
        all_wanted: bool,
        /// The next report shall come soon.
        soon: bool,
    },
    /// To new stores.
    Joined {
        /// Which store became which.
        ids: Vec<(u64, StoreId)>,
    },
}

/// A node's part in the placement group.
#[derive(Default)]
pub struct Member {
    /// While its store leads region 1 and the state is loaded.
    pub led: Option<Lead>,
    /// The term whose state is being loaded.
    pub loading: Option<u64>,
    /// Who answered last.
    pub leader_hint: Option<u64>,
    /// When it reports next.
    report_at: u64,
    sequence: u64,
    all_wanted: bool,
    is_unanswered: bool,
    refusals: Vec<(OperatorId, usize, String)>,
    working: std::collections::BTreeSet<(u64, RegionId)>,
}

impl Member {
    /// What a new process knows.
    pub fn restart(&mut self) {
        let sequence = self.sequence;
        *self = Self { sequence, all_wanted: true, ..Self::default() };
    }
}
