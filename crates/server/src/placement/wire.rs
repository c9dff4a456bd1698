//! Conversion between the placement group's types and the control protocol's.

use bytes::Bytes;
use stele_placement::{
    Change, DownPeer, Instruction, NewRegion, Order, RegionInfo, RegionReport, ReportReply, Store,
    StoreReport, StoreState, Traffic,
};
use stele_proto::stele::control::v1 as wire;
use stele_raftstore::LeaseTimes;
use stele_types::{Peer, PeerId, Region, StoreId, Term};

/// Encodes the times of a node's leases.
pub(crate) fn wire_times(times: &LeaseTimes) -> wire::LeaseTimes {
    let LeaseTimes { tick_nanos, election_ticks_min } = *times;
    wire::LeaseTimes { tick_nanos, election_ticks_min }
}

/// Decodes the times of a node's leases.
pub(super) fn times_of(times: &wire::LeaseTimes) -> LeaseTimes {
    let wire::LeaseTimes { tick_nanos, election_ticks_min } = *times;
    LeaseTimes { tick_nanos, election_ticks_min }
}

/// Encodes the settings that nodes follow.
pub(super) fn options(reply: &ReportReply) -> Vec<wire::ClusterOption> {
    let flags = [(LEASES, reply.leases), (UNDETERMINED_FAIL, reply.undetermined_writes_fail)];
    let option = |(key, flag): (&str, bool)| wire::ClusterOption {
        key: key.to_owned(),
        value: u64::from(flag).to_string(),
    };
    flags.map(option).into()
}

/// Returns whether a response allows leases; `None` if the leader has no such setting.
pub(crate) fn leases_of(answer: &wire::HeartbeatResponse) -> Option<bool> {
    flag_of(answer, LEASES)
}

/// Returns whether puts and deletes of unknown outcome are answered with an error; `None` if the
/// leader has no such setting.
pub(crate) fn undetermined_writes_fail_of(answer: &wire::HeartbeatResponse) -> Option<bool> {
    flag_of(answer, UNDETERMINED_FAIL)
}

fn flag_of(answer: &wire::HeartbeatResponse, key: &str) -> Option<bool> {
    let option = answer.options.iter().find(|option| option.key == key)?;
    Some(option.value != "0")
}

/// Names of the settings, in the protocol and in the placement group.
const LEASES: &str = "leases";
const UNDETERMINED_FAIL: &str = "undetermined_writes_fail";

/// Decodes a leader's report; `None` if it is malformed.
pub(super) fn report_of(report: &wire::RegionReport) -> Option<RegionReport> {
    let region = Region::decode(&report.region).ok()?;
    let leader = *region.peer(PeerId(report.leader_peer))?;
    let down = report
        .down_peers
        .iter()
        .map(|down| DownPeer { peer: PeerId(down.peer_id), seconds: down.down_seconds });
    Some(RegionReport {
        leader,
        term: Term(report.term),
        down: down.collect(),
        pending: report.pending_peers.iter().copied().map(PeerId).collect(),
        size_bytes: report.approximate_bytes,
        keys: report.approximate_keys,
        traffic: Traffic {
            written_bytes: report.written_bytes,
            read_bytes: report.read_bytes,
            writes: report.writes,
            reads: report.reads,
            interval_millis: report.interval_ms,
        },
        region,
    })
}

/// Encodes the state of a region.
pub(super) fn report(info: &RegionInfo) -> wire::RegionReport {
    let down_peers = info
        .down
        .iter()
        .map(|down| wire::DownPeer { peer_id: down.peer.0, down_seconds: down.seconds });
    wire::RegionReport {
        region: info.region.encode(),
        leader_store: info.leader.map_or(0, |leader| leader.store.0),
        leader_peer: info.leader.map_or(0, |leader| leader.id.0),
        term: info.term.0,
        down_peers: down_peers.collect(),
        pending_peers: info.pending.iter().map(|peer| peer.0).collect(),
        approximate_bytes: info.size_bytes,
        approximate_keys: info.keys,
        reads: info.traffic.reads,
        writes: info.traffic.writes,
        read_bytes: info.traffic.read_bytes,
        written_bytes: info.traffic.written_bytes,
        interval_ms: info.traffic.interval_millis,
        hibernating: false,
    }
}

/// Decodes the state of a region; `None` if it is malformed. The leader may be unknown.
pub(super) fn info_of(report: &wire::RegionReport) -> Option<RegionInfo> {
    match report.leader_peer {
        0 => Some(RegionInfo::new(Region::decode(&report.region).ok()?)),
        _ => Some(RegionInfo::reported(report_of(report)?, stele_placement::Millis(0))),
    }
}

/// Decodes a store's report.
pub(super) fn store_report_of(stats: &wire::StoreStats) -> StoreReport {
    StoreReport {
        id: StoreId(stats.id),
        capacity_bytes: stats.capacity,
        free_bytes: stats.free,
        used_bytes: stats.used,
        is_full: stats.disk_full,
        has_failed: stats.failed,
        append_p99_nanos: stats.append_p99_nanos,
    }
}

pub(super) fn store_state(state: StoreState) -> wire::StoreState {
    match state {
        StoreState::Up => wire::StoreState::Up,
        StoreState::Draining => wire::StoreState::Draining,
        StoreState::Removing => wire::StoreState::Removing,
        StoreState::Tombstone => wire::StoreState::Removed,
    }
}

pub(super) fn labels(store: &Store) -> Vec<wire::Label> {
    let labels = store.labels.iter();
    labels.map(|(key, value)| wire::Label { key: key.clone(), value: value.clone() }).collect()
}

/// Encodes the next step of a leader.
pub(super) fn step(instruction: &Instruction) -> wire::OperatorStep {
    use wire::operator_step::Step;
    let step = match &instruction.order {
        Order::ChangePeers(changes) => {
            let changes = changes.iter().map(change).collect();
            Step::ChangePeers(wire::ChangePeersStep { changes })
        }
        Order::TransferLeader(to) => {
            Step::TransferLeader(wire::TransferLeaderStep { peer_ids: vec![to.id.0] })
        }
        Order::Split { keys, new } => Step::Split(wire::SplitStep {
            keys: keys.clone(),
            new_regions: new.iter().map(new_region).collect(),
        }),
        Order::PrepareMerge(target) => {
            Step::PrepareMerge(wire::PrepareMergeStep { target: target.encode() })
        }
        Order::CommitMerge { source, prepared } => {
            let source: Bytes = source.encode();
            Step::CommitMerge(wire::CommitMergeStep { source, prepared_index: prepared.0 })
        }
        Order::RollbackMerge => Step::RollbackMerge(wire::RollbackMergeStep {}),
    };
    wire::OperatorStep {
        operator_id: instruction.operator.0,
        region_id: instruction.region.0,
        conf_version: instruction.epoch.conf_version,
        version: instruction.epoch.version,
        index: u32::try_from(instruction.step).unwrap_or(u32::MAX),
        leader_peer: instruction.leader.id.0,
        step: Some(step),
    }
}

fn change(change: &Change) -> wire::PeerChange {
    let (peer, remove) = match change {
        Change::Add(peer) => (peer, false),
        Change::Remove(peer) => (peer, true),
    };
    wire::PeerChange { peer: Some(spec(peer)), remove }
}

fn spec(peer: &Peer) -> wire::PeerSpec {
    wire::PeerSpec { id: peer.id.0, store_id: peer.store.0, role: peer.role as u32 }
}

fn new_region(new: &NewRegion) -> wire::NewRegion {
    wire::NewRegion {
        region_id: new.region.0,
        peer_ids: new.peers.iter().map(|peer| peer.0).collect(),
    }
}
