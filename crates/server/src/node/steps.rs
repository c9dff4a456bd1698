//! Carrying out what the placement group wants of regions led here.

use super::ids::IdSource;
use super::split_check;
use crate::store::StoreHandle;
use crate::stores::Stores;
use std::sync::Arc;
use stele_proto::stele::control::v1 as wire;
use stele_proto::stele::control::v1::operator_step::Step;
use stele_raftstore::{
    Admin, AdminCall, ChangeKind, Header, NewRegion, PeerChange, Reply, RequestId,
};
use stele_types::{LogIndex, Peer, PeerId, PeerRole, Region, RegionId, StoreId};

/// Does one step. Its effect shows in the next report; what stands in its way comes back.
pub(super) async fn carry_out(
    stores: &Stores,
    ids: &IdSource,
    step: wire::OperatorStep,
) -> Option<wire::OperatorOutcome> {
    let region = RegionId(step.region_id);
    let refusal = match stores.holding(region) {
        Some(store) => run(&store, ids, region, &step).await.err()?,
        None => "the region is not here".to_owned(),
    };
    tracing::info!("operator {}: region {region}: {refusal}", step.operator_id);
    Some(wire::OperatorOutcome {
        operator_id: step.operator_id,
        region_id: step.region_id,
        index: step.index,
        done: false,
        refusal,
    })
}

async fn run(
    store: &Arc<StoreHandle>,
    ids: &IdSource,
    id: RegionId,
    step: &wire::OperatorStep,
) -> Result<(), String> {
    let region = store.readers().get(id).map(|reader| reader.region());
    let region = region.ok_or("the region is not here")?;
    let epoch = region.epoch;
    if (epoch.conf_version, epoch.version) != (step.conf_version, step.version) {
        return Err(format!("the region has changed: its epoch is {epoch:?}"));
    }
    let call = match step.step.as_ref().ok_or("a step of a newer version")? {
        Step::ChangePeers(change) => Admin::ChangePeers(changes(change)?),
        Step::TransferLeader(transfer) => {
            let to = transfer.peer_ids.first().ok_or("no peer to transfer to")?;
            Admin::TransferLeader(PeerId(*to))
        }
        Step::Split(split) => return split_at(store, ids, &region, split).await,
        Step::PrepareMerge(merge) => Admin::PrepareMerge { target: descriptor(&merge.target)? },
        Step::CommitMerge(merge) => Admin::CommitMerge {
            source: descriptor(&merge.source)?,
            prepared_index: LogIndex(merge.prepared_index),
        },
        Step::RollbackMerge(_) => Admin::RollbackMerge,
    };
    let header = Header { region: id, version: Some(epoch.version), ..Header::default() };
    match store.admin(AdminCall { id: RequestId::default(), header, call }).await {
        Reply::AdminDone { .. } => Ok(()),
        Reply::Refused(refusal) => Err(format!("{refusal:?}")),
        other => Err(format!("unexpected answer: {other:?}")),
    }
}

fn descriptor(bytes: &[u8]) -> Result<Region, String> {
    Region::decode(bytes).map_err(|error| error.to_string())
}

fn changes(step: &wire::ChangePeersStep) -> Result<Vec<PeerChange>, String> {
    step.changes
        .iter()
        .map(|change| {
            let peer = change.peer.as_ref().ok_or("a change names no peer")?;
            let role = PeerRole::from_number(u64::from(peer.role)).ok_or("unknown role")?;
            let peer = Peer { id: PeerId(peer.id), store: StoreId(peer.store_id), role };
            let kind = if change.remove { ChangeKind::Remove } else { ChangeKind::Add };
            Ok(PeerChange { kind, peer })
        })
        .collect()
}

async fn split_at(
    store: &Arc<StoreHandle>,
    ids: &IdSource,
    region: &Arc<Region>,
    step: &wire::SplitStep,
) -> Result<(), String> {
    let mut keys = step.keys.clone();
    if keys.is_empty() {
        let half = split_check::half(store, region).await;
        keys.push(half.ok_or("no key halves the region: it holds too little")?);
    }
    let given: Vec<NewRegion> = step
        .new_regions
        .iter()
        .map(|new| NewRegion {
            region: RegionId(new.region_id),
            peers: new.peer_ids.iter().copied().map(PeerId).collect(),
        })
        .collect();
    let reply = match given.len() == keys.len() {
        true => Some(split_check::split_into(store, region, keys, given).await),
        false => split_check::split(store, ids, region, keys).await,
    };
    match reply {
        Some(Reply::AdminDone { .. }) => Ok(()),
        other => Err(format!("not split: {other:?}")),
    }
}
