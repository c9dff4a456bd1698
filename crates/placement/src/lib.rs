//! State and decisions of the placement group.
//!
//! [`Cluster`] is the state: a fold over the pairs of the placement region, plus facts that stores
//! report and that need not be persisted. [`schedule`] holds pure functions from that state to
//! [`Operator`]s; [`Operators`] executes them step by step. No clock and no I/O: times come in,
//! changes to persist go out.
//!
//! A *decision* (a store joins, ids are allocated, a setting changes) is planned on `&Cluster` as
//! [`PairChange`]s. Invariant: [`Cluster::apply`] folds it in only after it is committed, so no
//! decision that could still be lost is visible. A *fact* (a region as its leader reports it) is
//! recorded at once and persisted later: if it is lost, the leader reports it again.

pub mod access;
pub mod cluster;
pub mod config;
pub mod events;
pub mod followed;
pub mod heat;
pub mod leader;
pub mod levels;
pub mod operator;
pub mod pairs;
pub mod region_info;
pub mod schedule;
pub mod speed;
pub mod store;

pub use access::{Grant, GrantLimits, Grants, Permissions};
pub use cluster::domains::Domain;
pub use cluster::drain::{Blocker, DrainProgress};
pub use cluster::owners::{JoinPermit, JoinRefusal, JoiningNode, TokenHash, other_node};
pub use cluster::regions::{Regions, StaleReport};
pub use cluster::stores::{DrainGoal, NewStore};
pub use cluster::{Bootstrap, Cluster};
pub use config::{Config, Mode, SETTINGS, Setting};
pub use followed::FollowedFrom;
pub use heat::{Heat, Rates};
pub use leader::{LeaderState, Refused, Report, ReportReply};
pub use levels::Levels;
pub use operator::guard::guard;
pub use operator::tracker::{Finished, Instruction, NotAdmitted, Operators};
pub use operator::{Change, Kind, NewRegion, Operator, OperatorId, Order, Step};
pub use pairs::PairChange;
pub use region_info::{DownPeer, RegionInfo, RegionReport, Traffic};
pub use schedule::{ClusterView, pick_all};
pub use speed::{SpeedClass, SpeedState};
pub use store::{LastHeartbeat, Liveness, NodeReport, Store, StoreReport, StoreState};

/// A moment on the caller's monotonic clock, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// Returns the milliseconds since `earlier`; 0 if it is not earlier.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the whole seconds since `earlier`; 0 if it is not earlier.
    pub(crate) fn seconds_since(self, earlier: Self) -> u64 {
        self.since(earlier) / 1000
    }
}

/// The region that holds the placement group's pairs. Its leader is the placement leader.
pub const SYSTEM_REGION: stele_types::RegionId = stele_types::RegionId(1);
/// The region that holds every user key when a cluster is bootstrapped.
pub(crate) const FIRST_DATA_REGION: stele_types::RegionId = stele_types::RegionId(2);
