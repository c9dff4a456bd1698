//! What a region adds to the loads of the stores once its operator is done.

use super::load::{IDLE_REGION_OPS, LeaderCost};
use super::place;
use crate::Millis;
use crate::cluster::Cluster;
use crate::operator::Operator;
use crate::region_info::RegionInfo;
use std::borrow::Cow;
use stele_types::{Peer, StoreId};

/// Loads of one region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Planned<'a> {
    /// Replicas; each adds `weight` to its store.
    pub peers: Cow<'a, [Peer]>,
    /// Bytes and the constant of a replica.
    pub weight: u64,
    /// Store of the leader, if it is known.
    pub leader: Option<StoreId>,
    /// Leaders that the region adds to that store: 0 or 1.
    pub leaders: u64,
    /// Work that the region adds to that store.
    pub cost: LeaderCost,
}

impl<'a> Planned<'a> {
    /// Returns the loads of a region after its operator, or the present ones without an operator.
    ///
    /// Invariant: a region that is merged into another one adds its bytes and its traffic to the
    /// stores of that one, but neither a replica nor a leader. Otherwise the stores of the target
    /// would seem to hold more than they will, and regions would move away and return.
    pub(super) fn of(
        cluster: &Cluster,
        info: &'a RegionInfo,
        operator: Option<&Operator>,
        now: Millis,
    ) -> Self {
        let peers = match operator {
            Some(operator) => Cow::Owned(operator.final_peers(&info.region)),
            None => Cow::Borrowed(&info.region.peers[..]),
        };
        let cost = LeaderCost::of(info, now);
        let target = operator.and_then(Operator::other_region);
        let target = target.and_then(|target| cluster.regions().get(target));
        // bug placement.merge_keeps_its_source: `target` is `None`
        match target {
            Some(target) => Self {
                peers,
                weight: info.size_bytes,
                leader: target.leader.map(|leader| leader.store),
                leaders: 0,
                cost: LeaderCost { ops: cost.ops.saturating_sub(IDLE_REGION_OPS), ..cost },
            },
            None => {
                let planned = operator.and_then(Operator::final_leader);
                let leader = planned.or(info.leader.map(|leader| leader.store));
                Self { peers, weight: place::weight(info), leader, leaders: 1, cost }
            }
        }
    }
}
