//! Conversion between the placement group's types and the control protocol's.

use bytes::Bytes;
use stele_node::report::{Report, ReportAnswer, StalePeer};
use stele_placement::{
    Change, DownPeer, FollowedFrom, Instruction, NewRegion, NodeReport, OperatorId, Order, Refused,
    RegionInfo, RegionReport, Store, StoreReport, StoreState, Traffic,
};
use stele_proto::stele::control::v1 as wire;
use stele_replica::LeaseTimes;
use stele_types::{
    DeviceSpeed, Level, Lineage, LogIndex, OpCost, Peer, PeerId, PeerRole, Region, RegionEpoch,
    RegionId, StoreId, Term,
};

pub(crate) fn wire_times(times: &LeaseTimes) -> wire::LeaseTimes {
    let LeaseTimes { tick_nanos, election_ticks_min } = *times;
    wire::LeaseTimes { tick_nanos, election_ticks_min }
}

pub(crate) fn times_of(times: &wire::LeaseTimes) -> LeaseTimes {
    let wire::LeaseTimes { tick_nanos, election_ticks_min } = *times;
    LeaseTimes { tick_nanos, election_ticks_min }
}

/// Milliseconds until a node that leads a region with an operator must report again.
const SOON_MILLIS: u32 = 100;
const LEASES: &str = "leases";
const UNDETERMINED_FAIL: &str = "undetermined_writes_fail";

pub(crate) fn request(report: Report) -> wire::HeartbeatRequest {
    let starts = report.node.lineages.iter().map(starts_of).collect();
    wire::HeartbeatRequest {
        address: report.node.address,
        client_address: report.node.client_address,
        admin_address: report.node.admin_address,
        version: report.node.version,
        level: report.node.level.get(),
        started_at: report.node.started_at,
        boot_nonce: report.node.boot_nonce,
        region_bytes_max: report.node.region_bytes_max,
        labels: report.node.labels.map(|labels| wire::NodeLabels { labels: labels_of(&labels) }),
        unix_s: report.node.unix_s,
        stopping: report.node.is_stopping,
        access_version: report.node.access_version,
        followed: followed(&report.node.followed),
        sequence: report.sequence,
        stores: report.stores.iter().map(store_stats).collect(),
        starts,
        regions: report.regions.into_iter().map(region_report).collect(),
        all_regions: report.is_full,
        outcomes: report.refusals.into_iter().map(outcome).collect(),
        stray_peers: report.stale_peers.iter().map(stray_peer).collect(),
        ..wire::HeartbeatRequest::default()
    }
}

/// Decodes a report, without the regions that do not decode.
pub(super) fn report_of(request: &wire::HeartbeatRequest) -> Report {
    let regions: Vec<_> = request.regions.iter().filter_map(region_report_of).collect();
    let refused = request.outcomes.iter().filter(|outcome| !outcome.done);
    Report {
        node: NodeReport {
            address: request.address.clone(),
            client_address: request.client_address.clone(),
            admin_address: request.admin_address.clone(),
            version: request.version.clone(),
            level: Level::new(request.level),
            started_at: request.started_at,
            boot_nonce: request.boot_nonce,
            lineages: request.starts.iter().filter_map(lineage_of).collect(),
            region_bytes_max: request.region_bytes_max,
            labels: request.labels.as_ref().map(pairs_of),
            unix_s: request.unix_s,
            is_stopping: request.stopping,
            access_version: request.access_version,
            followed: followed_of(&request.followed),
            name: None,
        },
        sequence: request.sequence,
        stores: request.stores.iter().map(store_report_of).collect(),
        is_full: request.all_regions && regions.len() == request.regions.len(),
        regions,
        refusals: refused.map(refused_of).collect(),
        stale_peers: request.stray_peers.iter().map(stale_peer_of).collect(),
    }
}

/// Encodes the answer to a report, without the cluster and its members.
pub(super) fn response(answer: &ReportAnswer) -> wire::HeartbeatResponse {
    let settings = [(LEASES, answer.leases), (UNDETERMINED_FAIL, answer.undetermined_writes_fail)];
    let option = |(key, flag): (&str, Option<bool>)| {
        let value = u64::from(flag?).to_string();
        Some(wire::ClusterOption { key: key.to_owned(), value })
    };
    wire::HeartbeatResponse {
        steps: answer.steps.iter().map(step).collect(),
        all_regions_wanted: answer.all_wanted,
        options_version: answer.term.0,
        options: settings.into_iter().filter_map(option).collect(),
        interval_ms: if answer.is_busy { SOON_MILLIS } else { 0 },
        gone_peers: answer.removed.iter().map(stray_peer).collect(),
        unix_s: answer.unix_s,
        measured_stores: answer.measured.iter().map(|store| store.0).collect(),
        slowdowns: answer.slowdowns.iter().map(slowdown).collect(),
        followed: answer
            .followed
            .as_ref()
            .map(|it| wire::FollowedRegions { regions: followed(it) }),
        ..wire::HeartbeatResponse::default()
    }
}

/// Decodes the answer to the report with this number, and refuses the steps that do not decode.
pub(crate) fn answer_of(
    response: &wire::HeartbeatResponse,
    sequence: u64,
) -> (ReportAnswer, Vec<Refused>) {
    let flag = |key: &str| {
        let option = response.options.iter().find(|option| option.key == key)?;
        Some(option.value != "0")
    };
    let (mut steps, mut refusals) = (Vec::new(), Vec::new());
    for step in &response.steps {
        match instruction_of(step) {
            Ok(instruction) => steps.push(instruction),
            Err(reason) => refusals.push(Refused {
                operator: OperatorId(step.operator_id),
                step: step.index as usize,
                reason,
                is_final: false,
            }),
        }
    }
    let answer = ReportAnswer {
        term: Term(response.options_version),
        sequence,
        steps,
        is_busy: response.interval_ms != 0,
        all_wanted: response.all_regions_wanted,
        leases: flag(LEASES),
        undetermined_writes_fail: flag(UNDETERMINED_FAIL),
        removed: response.gone_peers.iter().map(stale_peer_of).collect(),
        unix_s: response.unix_s,
        measured: response.measured_stores.iter().copied().map(StoreId).collect(),
        slowdowns: response.slowdowns.iter().map(slowdown_of).collect(),
        followed: response.followed.as_ref().map(|it| followed_of(&it.regions)),
    };
    (answer, refusals)
}

fn slowdown((store, nanos_per_kib): (&StoreId, &u64)) -> wire::StoreSlowdown {
    wire::StoreSlowdown { store_id: store.0, nanos_per_kib: *nanos_per_kib }
}

fn slowdown_of(stated: &wire::StoreSlowdown) -> (StoreId, u64) {
    (StoreId(stated.store_id), stated.nanos_per_kib)
}

fn followed(needed: &FollowedFrom) -> Vec<wire::FollowedRegion> {
    let region = |(region, next): (&RegionId, &LogIndex)| wire::FollowedRegion {
        region_id: region.0,
        next_index: next.0,
    };
    needed.iter().map(region).collect()
}

fn followed_of(stated: &[wire::FollowedRegion]) -> FollowedFrom {
    stated.iter().map(|it| (RegionId(it.region_id), LogIndex(it.next_index))).collect()
}

fn stray_peer(peer: &StalePeer) -> wire::StrayPeer {
    wire::StrayPeer {
        store_id: peer.store.0,
        region_id: peer.region.0,
        peer_id: peer.peer.0,
        conf_version: peer.epoch.conf_version,
        version: peer.epoch.version,
    }
}

fn stale_peer_of(peer: &wire::StrayPeer) -> StalePeer {
    StalePeer {
        store: StoreId(peer.store_id),
        region: RegionId(peer.region_id),
        peer: PeerId(peer.peer_id),
        epoch: RegionEpoch { conf_version: peer.conf_version, version: peer.version },
    }
}

fn outcome(refused: Refused) -> wire::OperatorOutcome {
    wire::OperatorOutcome {
        operator_id: refused.operator.0,
        index: u32::try_from(refused.step).unwrap_or(u32::MAX),
        refusal: refused.reason,
        is_final: refused.is_final,
        ..wire::OperatorOutcome::default()
    }
}

fn refused_of(outcome: &wire::OperatorOutcome) -> Refused {
    Refused {
        operator: OperatorId(outcome.operator_id),
        step: outcome.index as usize,
        reason: outcome.refusal.clone(),
        is_final: outcome.is_final,
    }
}

fn region_report(report: RegionReport) -> wire::RegionReport {
    self::report(&RegionInfo::reported(report, stele_placement::Millis(0)))
}

/// Decodes a leader's report; `None` if it is malformed.
fn region_report_of(report: &wire::RegionReport) -> Option<RegionReport> {
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
            counted_since: report.counted_since,
        },
        region,
    })
}

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
        counted_since: info.traffic.counted_since,
        hibernating: false,
    }
}

/// Decodes the state of a region; `None` if it is malformed. The leader may be unknown.
pub(super) fn info_of(report: &wire::RegionReport) -> Option<RegionInfo> {
    match report.leader_peer {
        0 => Some(RegionInfo::new(Region::decode(&report.region).ok()?)),
        _ => Some(RegionInfo::reported(region_report_of(report)?, stele_placement::Millis(0))),
    }
}

fn lineage_of(stated: &wire::StoreStarts) -> Option<(StoreId, Lineage)> {
    let lineage = Lineage::from_bytes(&stated.starts).filter(Lineage::is_known)?;
    Some((StoreId(stated.store_id), lineage))
}

fn starts_of((store, lineage): &(StoreId, Lineage)) -> wire::StoreStarts {
    wire::StoreStarts { store_id: store.0, starts: lineage.to_bytes().into() }
}

fn store_stats(report: &StoreReport) -> wire::StoreStats {
    wire::StoreStats {
        id: report.id.0,
        capacity: report.capacity_bytes,
        free: report.free_bytes,
        used: report.used_bytes,
        disk_full: report.is_full,
        failed: report.has_failed,
        append_p99_nanos: report.append_p99_nanos,
        append_age_ms: report.append_age_ms,
        live: report.live_bytes,
        usable: report.usable_bytes,
        device: Some(device(&report.device)),
        snapshots_receiving: u32::try_from(report.receiving).unwrap_or(u32::MAX),
        boot_count: report.boot_count,
        slowdown_nanos_per_kib: report.slowdown_nanos_per_kib,
        level: report.level.get(),
        ..wire::StoreStats::default()
    }
}

pub(super) fn device(speed: &DeviceSpeed) -> wire::DeviceSpeed {
    let cost = |cost: OpCost| wire::OpCost {
        fixed_nanos: cost.fixed_nanos,
        picos_per_byte: cost.picos_per_byte,
    };
    let (write, read) = (Some(cost(speed.write)), Some(cost(speed.read)));
    wire::DeviceSpeed { write, read, writes: speed.writes, reads: speed.reads }
}

fn device_of(speed: &wire::DeviceSpeed) -> DeviceSpeed {
    let cost = |cost: &Option<wire::OpCost>| {
        let cost = cost.unwrap_or_default();
        OpCost { fixed_nanos: cost.fixed_nanos, picos_per_byte: cost.picos_per_byte }
    };
    let (write, read) = (cost(&speed.write), cost(&speed.read));
    DeviceSpeed { write, read, writes: speed.writes, reads: speed.reads }
}

fn store_report_of(stats: &wire::StoreStats) -> StoreReport {
    StoreReport {
        id: StoreId(stats.id),
        capacity_bytes: stats.capacity,
        free_bytes: stats.free,
        used_bytes: stats.used,
        is_full: stats.disk_full,
        has_failed: stats.failed,
        append_p99_nanos: stats.append_p99_nanos,
        append_age_ms: stats.append_age_ms,
        live_bytes: stats.live,
        usable_bytes: stats.usable,
        device: stats.device.as_ref().map(device_of).unwrap_or_default(),
        receiving: u64::from(stats.snapshots_receiving),
        boot_count: stats.boot_count,
        slowdown_nanos_per_kib: stats.slowdown_nanos_per_kib,
        level: Level::new(stats.level),
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
    labels_of(&store.labels)
}

pub(crate) fn labels_of(labels: &[(String, String)]) -> Vec<wire::Label> {
    let label =
        |(key, value): &(String, String)| wire::Label { key: key.clone(), value: value.clone() };
    labels.iter().map(label).collect()
}

fn pairs_of(labels: &wire::NodeLabels) -> Vec<(String, String)> {
    labels.labels.iter().map(|label| (label.key.clone(), label.value.clone())).collect()
}

fn step(instruction: &Instruction) -> wire::OperatorStep {
    use wire::operator_step::Step;
    let rollback = |stores: &[StoreId], refuse| {
        let target_stores = stores.iter().map(|store| store.0).collect();
        Step::RollbackMerge(wire::RollbackMergeStep { refuse, target_stores })
    };
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
        Order::RollbackMerge(stores) => rollback(stores, false),
        Order::AbandonMerge(stores) => rollback(stores, true),
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

/// Decodes a step; fails with the reason for its refusal.
fn instruction_of(step: &wire::OperatorStep) -> Result<Instruction, String> {
    use wire::operator_step::Step;
    let peer = |id: u64| Peer { id: PeerId(id), ..Peer::default() };
    let region = |bytes: &[u8]| Region::decode(bytes).map_err(|error| error.to_string());
    let order = match step.step.as_ref().ok_or("the step is of a newer version")? {
        Step::ChangePeers(change) => {
            Order::ChangePeers(change.changes.iter().map(change_of).collect::<Result<_, _>>()?)
        }
        Step::TransferLeader(transfer) => {
            let to = transfer.peer_ids.first().ok_or("no peer to transfer to")?;
            Order::TransferLeader(peer(*to))
        }
        Step::Split(split) => {
            let new = split.new_regions.iter().map(|new| NewRegion {
                region: RegionId(new.region_id),
                peers: new.peer_ids.iter().copied().map(PeerId).collect(),
            });
            Order::Split { keys: split.keys.clone(), new: new.collect() }
        }
        Step::PrepareMerge(merge) => Order::PrepareMerge(region(&merge.target)?),
        Step::CommitMerge(merge) => Order::CommitMerge {
            source: region(&merge.source)?,
            prepared: LogIndex(merge.prepared_index),
        },
        Step::RollbackMerge(merge) => {
            let stores = merge.target_stores.iter().copied().map(StoreId).collect();
            if merge.refuse { Order::AbandonMerge(stores) } else { Order::RollbackMerge(stores) }
        }
    };
    Ok(Instruction {
        operator: OperatorId(step.operator_id),
        step: step.index as usize,
        region: RegionId(step.region_id),
        epoch: RegionEpoch { conf_version: step.conf_version, version: step.version },
        leader: peer(step.leader_peer),
        order,
    })
}

fn change_of(change: &wire::PeerChange) -> Result<Change, String> {
    let peer = change.peer.as_ref().ok_or("a change names no peer")?;
    let role = PeerRole::from_number(u64::from(peer.role)).ok_or("unknown role")?;
    let peer = Peer { id: PeerId(peer.id), store: StoreId(peer.store_id), role };
    Ok(if change.remove { Change::Remove(peer) } else { Change::Add(peer) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_readers_need_survives_the_round_trip_and_may_be_unknown() {
        let needed =
            || FollowedFrom::from([(RegionId(2), LogIndex(6)), (RegionId(9), LogIndex(70))]);
        let node = NodeReport { followed: needed(), ..NodeReport::default() };
        let report = Report { node, ..Report::default() };
        assert_eq!(report_of(&request(report)).node.followed, needed());
        for followed in [None, Some(FollowedFrom::new()), Some(needed())] {
            let answer = ReportAnswer { followed, ..ReportAnswer::default() };
            assert_eq!(answer_of(&response(&answer), 0).0.followed, answer.followed);
        }
    }

    #[test]
    fn an_order_to_roll_back_survives_the_round_trip_with_the_stores_that_may_prove_it() {
        let stores = || vec![StoreId(4), StoreId(1 << 40)];
        let orders = [Order::RollbackMerge(stores()), Order::AbandonMerge(stores())];
        for order in orders {
            let instruction = Instruction {
                operator: OperatorId(3),
                step: 1,
                region: RegionId(9),
                epoch: RegionEpoch { conf_version: 5, version: 8 },
                leader: Peer { id: PeerId(7), ..Peer::default() },
                order,
            };
            let read = instruction_of(&step(&instruction)).unwrap();
            assert_eq!((read.region, read.order), (instruction.region, instruction.order));
        }
    }
}
