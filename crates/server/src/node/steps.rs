//! Execution of the placement group's steps for regions led here.

use super::ids::IdSource;
use super::split::{self, NotSplit};
use crate::store::StoreHandle;
use crate::stores::Stores;
use std::sync::Arc;
use stele_proto::stele::control::v1 as wire;
use stele_proto::stele::control::v1::operator_step::Step;
use stele_raftstore::{
    Admin, AdminCall, ChangeKind, Done, Header, NewRegion, PeerChange, Refusal, Reply, RequestId,
};
use stele_types::{LogIndex, Peer, PeerId, PeerRole, Region, RegionId, StoreId};

/// Executes one step. Its effect shows in the next report; an obstacle is returned.
pub(super) async fn execute(
    stores: &Stores,
    ids: &IdSource,
    step: wire::OperatorStep,
) -> Option<wire::OperatorOutcome> {
    let region = RegionId(step.region_id);
    let refusal = match stores.holding(region) {
        Some(store) => run(&store, ids, region, &step).await.err()?,
        None => Obstacle::from("the region is not on this node"),
    };
    let Obstacle { reason, is_final } = refusal;
    tracing::info!("operator {}: region {region}: {reason}", step.operator_id);
    Some(wire::OperatorOutcome {
        operator_id: step.operator_id,
        region_id: step.region_id,
        index: step.index,
        done: false,
        refusal: reason,
        is_final,
    })
}

/// Reason why a step was not executed.
struct Obstacle {
    reason: String,
    /// The step will never be possible as ordered.
    is_final: bool,
}

impl From<String> for Obstacle {
    fn from(reason: String) -> Self {
        Self { reason, is_final: false }
    }
}

impl From<&str> for Obstacle {
    fn from(reason: &str) -> Self {
        Self::from(reason.to_owned())
    }
}

impl From<NotSplit> for Obstacle {
    fn from(not: NotSplit) -> Self {
        Self { reason: not.reason, is_final: not.is_final }
    }
}

async fn run(
    store: &Arc<StoreHandle>,
    ids: &IdSource,
    id: RegionId,
    step: &wire::OperatorStep,
) -> Result<(), Obstacle> {
    let region = store.readers().get(id).map(|reader| reader.region());
    let region = region.ok_or("the region is not on this node")?;
    let epoch = region.epoch;
    if (epoch.conf_version, epoch.version) != (step.conf_version, step.version) {
        return Err(format!("the region has changed: its epoch is {epoch:?}").into());
    }
    let call = match step.step.as_ref().ok_or("the step is of a newer version")? {
        Step::ChangePeers(change) => Admin::ChangePeers(changes(change)?),
        Step::TransferLeader(transfer) => {
            let to = transfer.peer_ids.first().ok_or("no peer to transfer to")?;
            Admin::TransferLeader(PeerId(*to))
        }
        Step::Split(split) => return Ok(split_at(store, ids, &region, split).await?),
        Step::PrepareMerge(merge) => Admin::PrepareMerge { target: descriptor(&merge.target)? },
        Step::CommitMerge(merge) => Admin::CommitMerge {
            source: descriptor(&merge.source)?,
            prepared_index: LogIndex(merge.prepared_index),
        },
        Step::RollbackMerge(_) => Admin::RollbackMerge,
    };
    let header = Header { region: id, version: Some(epoch.version), ..Header::default() };
    match store.admin(AdminCall { id: RequestId::default(), header, call }).await {
        Reply::Done(Done::Admin { .. }) => Ok(()),
        Reply::Refused(Refusal::Invalid(reason)) => Err(Obstacle { reason, is_final: true }),
        Reply::Refused(refusal) => Err(format!("{refusal:?}").into()),
        Reply::Busy(busy) => Err(format!("{busy:?}").into()),
        // The step may have taken effect, or may still: the next reports show it.
        Reply::Unknown(reason) => {
            tracing::info!("region {id}: the outcome of a step is unknown: {reason:?}");
            Ok(())
        }
        other => Err(format!("unexpected answer: {other:?}").into()),
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
) -> Result<(), NotSplit> {
    let mut keys = step.keys.clone();
    if keys.is_empty() {
        keys.push(split::middle_key(store, region).await?);
    }
    let given: Vec<NewRegion> = step
        .new_regions
        .iter()
        .map(|new| NewRegion {
            region: RegionId(new.region_id),
            peers: new.peer_ids.iter().copied().map(PeerId).collect(),
        })
        .collect();
    match given.len() == keys.len() {
        true => split::split_into(store, region, keys, given).await,
        false => split::split(store, ids, region, keys).await,
    }
}
