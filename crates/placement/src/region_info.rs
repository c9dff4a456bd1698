//! A region as its leader reports it.

use crate::Millis;
use stele_types::{Peer, PeerId, Region, Term};

/// A replica that its leader can't reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DownPeer {
    /// Which.
    pub peer: PeerId,
    /// For how long.
    pub seconds: u64,
}

/// What clients did to a region since its last report.
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
    /// The time in which that happened.
    pub interval_millis: u64,
}

/// A leader's report about its region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionReport {
    /// The region as the leader has applied it.
    pub region: Region,
    /// The leader's replica.
    pub leader: Peer,
    /// The term it leads in.
    pub term: Term,
    /// Replicas it can't reach.
    pub down: Vec<DownPeer>,
    /// Replicas that are far behind, or wait for a snapshot.
    pub pending: Vec<PeerId>,
    /// Keys and values, estimated.
    pub size_bytes: u64,
    /// Keys, estimated.
    pub keys: u64,
    /// What clients did since the last report.
    pub traffic: Traffic,
}

/// What is known about a region. Only `region` is persisted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionInfo {
    /// Its descriptor.
    pub region: Region,
    /// Who leads it, as far as this leader of the placement group was told.
    pub leader: Option<Peer>,
    /// The term of that.
    pub term: Term,
    /// Replicas the leader can't reach.
    pub down: Vec<DownPeer>,
    /// Replicas that are far behind.
    pub pending: Vec<PeerId>,
    /// Keys and values, estimated.
    pub size_bytes: u64,
    /// Keys, estimated.
    pub keys: u64,
    /// The last report's traffic.
    pub traffic: Traffic,
    /// When it was reported last.
    pub reported: Option<Millis>,
}

impl RegionInfo {
    /// What a descriptor alone says.
    pub fn new(region: Region) -> Self {
        Self { region, ..Self::default() }
    }

    /// What a report says.
    pub fn reported(report: RegionReport, now: Millis) -> Self {
        Self {
            region: report.region,
            leader: Some(report.leader),
            term: report.term,
            down: report.down,
            pending: report.pending,
            size_bytes: report.size_bytes,
            keys: report.keys,
            traffic: report.traffic,
            reported: Some(now),
        }
    }

    /// Whether the leader can reach that replica and it has caught up.
    pub fn is_caught_up(&self, peer: PeerId) -> bool {
        !self.pending.contains(&peer) && !self.down.iter().any(|down| down.peer == peer)
    }
}
