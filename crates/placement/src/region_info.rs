//! Regions as their leaders report them.

use crate::Millis;
use crate::heat::Heat;
use stele_types::{Peer, PeerId, Region, Term};

/// A replica that its leader cannot reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DownPeer {
    /// The replica.
    pub peer: PeerId,
    /// Seconds since the leader last reached it.
    pub seconds: u64,
}

/// Client operations on a region that its reporting replica has counted since its process started.
///
/// Totals, never reset: a report that is lost or repeated loses and repeats no operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of keys and values written.
    pub written_bytes: u64,
    /// Bytes of keys and values read.
    pub read_bytes: u64,
    /// Writing operations.
    pub writes: u64,
    /// Reading operations.
    pub reads: u64,
    /// Start of the counting process: totals with different starts are of different counters.
    pub counted_since: u64,
}

/// A leader's report about its region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionReport {
    /// The region as the leader has applied it.
    pub region: Region,
    /// The leader's replica.
    pub leader: Peer,
    /// Term of the leader.
    pub term: Term,
    /// Replicas that the leader cannot reach.
    pub down: Vec<DownPeer>,
    /// Replicas that lag far behind or wait for a snapshot.
    pub pending: Vec<PeerId>,
    /// Estimated size of keys and values.
    pub size_bytes: u64,
    /// Estimated number of keys.
    pub keys: u64,
    /// Client operations, in total.
    pub traffic: Traffic,
}

/// Known state of a region. Only `region` is persisted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionInfo {
    /// Descriptor.
    pub region: Region,
    /// Leader; `None` until it reports to this placement leader.
    pub leader: Option<Peer>,
    /// Term of `leader`.
    pub term: Term,
    /// Replicas that the leader cannot reach.
    pub down: Vec<DownPeer>,
    /// Replicas that lag far behind or wait for a snapshot.
    pub pending: Vec<PeerId>,
    /// Estimated size of keys and values.
    pub size_bytes: u64,
    /// Estimated number of keys.
    pub keys: u64,
    /// The leader measured this range. Otherwise size and keys follow from those of the regions that
    /// held it before.
    pub is_measured: bool,
    /// The last report's traffic.
    pub traffic: Traffic,
    /// Traffic of the last minutes, over all reports and leaders.
    pub heat: Heat,
    /// Time of the last report; `None` before the first.
    pub reported: Option<Millis>,
}

impl RegionInfo {
    /// Creates the state of a region that is known only by its descriptor.
    pub fn new(region: Region) -> Self {
        Self { region, ..Self::default() }
    }

    /// Creates the state of a region from its leader's report alone.
    pub fn reported(report: RegionReport, now: Millis) -> Self {
        Self {
            region: report.region,
            leader: Some(report.leader),
            term: report.term,
            down: report.down,
            pending: report.pending,
            size_bytes: report.size_bytes,
            keys: report.keys,
            is_measured: report.size_bytes > 0,
            traffic: report.traffic,
            heat: Heat::default(),
            reported: Some(now),
        }
    }

    /// Whether the leader can reach `peer` and `peer` has caught up.
    pub fn is_caught_up(&self, peer: PeerId) -> bool {
        !self.pending.contains(&peer) && !self.down.iter().any(|down| down.peer == peer)
    }
}
