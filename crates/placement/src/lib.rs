//! The placement group's state and what it decides.
//!
//! [`Cluster`] is the state: a fold over the pairs of the placement region, plus facts that stores
//! report and nobody needs to keep. [`schedule`] holds pure functions from that state to
//! [`Operator`]s; [`Operators`] leads each of them, step by step, to its end. No clock and no I/O:
//! times come in, changes to persist go out.
//!
//! A *decision* (a store joins, ids are given out, a setting changes) is planned on `&Cluster` as
//! [`PairChange`]s and folded in with [`Cluster::apply`] only once they are committed, so nobody
//! sees a decision that could still be lost. A *fact* (a region as its leader reports it) is taken
//! in at once and written behind: if it is lost, the leader reports it again.

pub mod bootstrap;
pub mod cluster;
pub mod config;
pub mod leader;
pub mod operator;
pub mod pairs;
pub mod region_info;
pub mod schedule;
pub mod store;

pub use bootstrap::Bootstrap;
pub use cluster::Cluster;
pub use cluster::drain::{Blocker, DrainProgress};
pub use cluster::regions::{Regions, StaleReport};
pub use cluster::stores::{DrainGoal, NewStore};
pub use config::{Config, SETTINGS, Setting};
pub use leader::{LeaderState, Refused, Report, ReportReply};
pub use operator::guard::guard;
pub use operator::tracker::{Finished, Instruction, NotAdmitted, Operators};
pub use operator::{Change, Kind, NewRegion, Operator, OperatorId, Order, Step};
pub use pairs::PairChange;
pub use region_info::{DownPeer, RegionInfo, RegionReport, Traffic};
pub use schedule::{View, pick_all};
pub use store::{Heard, Liveness, NodeReport, Store, StoreReport, StoreState};

/// A moment on the caller's monotonic clock, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// Milliseconds from `earlier` to here; 0 if it is not earlier.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Whole seconds from `earlier` to here.
    pub fn seconds_since(self, earlier: Self) -> u64 {
        self.since(earlier) / 1000
    }
}

/// The region that holds the placement group's own pairs; whoever leads it decides.
pub const SYSTEM_REGION: stele_types::RegionId = stele_types::RegionId(1);
/// The region that holds every user key when a cluster is founded.
pub const FIRST_DATA_REGION: stele_types::RegionId = stele_types::RegionId(2);
