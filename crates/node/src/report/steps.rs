//! Steps of operators, from the placement leader's instruction to the outcome of its request.

use super::split;
use bytes::Bytes;
use stele_placement::{Change, Instruction, OperatorId, Order};
use stele_replica::{
    Admin, AdminCall, ChangeKind, Done, Header, NewRegion, PeerChange, Refusal, Reply, Unknown,
};
use stele_types::{Region, RegionId};

/// Step that is carried out once at a time: the operator, and the region that it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepKey {
    /// Operator of the step.
    pub operator: OperatorId,
    /// Region that the step changes.
    pub region: RegionId,
}

impl StepKey {
    /// Returns the key of an instruction.
    pub fn of(instruction: &Instruction) -> Self {
        Self { operator: instruction.operator, region: instruction.region }
    }
}

/// Reason why a step or a split was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// Reason, for people.
    pub reason: String,
    /// The request will never be possible in this form.
    pub is_final: bool,
}

impl Obstacle {
    /// Creates an obstacle that may pass.
    pub fn now(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_final: false }
    }
}

/// What carries a step out.
#[derive(Clone, Debug)]
pub enum Execution {
    /// A request to the region.
    Request(Admin),
    /// A split without keys or without ids; the leader chooses them.
    Split {
        /// Split keys; empty for the middle.
        keys: Vec<Bytes>,
        /// Ids of the new regions, as far as the placement leader reserved them.
        new: Vec<NewRegion>,
    },
}

/// Returns what carries out an instruction. `region` is the region as its replica here knows it.
pub fn execution(
    instruction: &Instruction,
    region: Option<&Region>,
) -> Result<Execution, Obstacle> {
    let region = region.ok_or_else(|| Obstacle::now("the region is not on this node"))?;
    if region.epoch != instruction.epoch {
        let epoch = region.epoch;
        return Err(Obstacle::now(format!("the region has changed: its epoch is {epoch:?}")));
    }
    Ok(Execution::Request(match &instruction.order {
        Order::ChangePeers(changes) => Admin::ChangePeers(changes.iter().map(change).collect()),
        Order::TransferLeader(to) => Admin::TransferLeader(to.id),
        Order::Split { keys, new } => {
            let new = new.iter().map(|it| NewRegion { region: it.region, peers: it.peers.clone() });
            let (keys, new) = (keys.clone(), new.collect::<Vec<_>>());
            if keys.is_empty() || keys.len() != new.len() {
                return Ok(Execution::Split { keys, new });
            }
            Admin::Split { keys, new_ids: new }
        }
        Order::PrepareMerge(target) => Admin::PrepareMerge { target: target.clone() },
        Order::CommitMerge { source, prepared } => {
            Admin::CommitMerge { source: source.clone(), prepared_index: *prepared }
        }
        Order::RollbackMerge(stores) => Admin::RollbackMerge(stores.clone()),
        Order::AbandonMerge(stores) => Admin::AbandonMerge(stores.clone()),
    }))
}

fn change(change: &Change) -> PeerChange {
    let (kind, peer) = match change {
        Change::Add(peer) => (ChangeKind::Add, *peer),
        Change::Remove(peer) => (ChangeKind::Remove, *peer),
    };
    PeerChange { kind, peer }
}

/// Returns the request of a change that needs this version of a region.
pub fn request(region: &Region, call: Admin) -> AdminCall {
    let version = Some(region.epoch.version);
    AdminCall { header: Header { region: region.id, version, ..Header::default() }, call }
}

/// Returns the outcome of a change: done, or of unknown outcome. Such a change may have taken
/// effect, or may still, so it is not a refusal: the next reports show it. Invariant: only an
/// invalid request is refused permanently.
pub fn outcome(reply: Reply) -> Result<Option<Unknown>, Obstacle> {
    match reply {
        Reply::Done(Done::Admin { .. }) => Ok(None),
        Reply::Unknown(reason) => Ok(Some(reason)),
        Reply::Refused(Refusal::Invalid(reason)) => Err(Obstacle { reason, is_final: true }),
        Reply::Refused(refusal) => Err(Obstacle::now(format!("{refusal:?}"))),
        Reply::Busy(busy) => Err(Obstacle::now(format!("{busy:?}"))),
        other @ Reply::Done(_) => Err(Obstacle::now(format!("unexpected answer: {other:?}"))),
    }
}

/// Returns the split of a region at `keys`, with new ids that begin at `first`.
pub fn split_request(first: u64, region: &Region, keys: Vec<Bytes>) -> Admin {
    let new_ids = split::new_regions(first, region.peers.len(), keys.len());
    Admin::Split { keys, new_ids }
}
