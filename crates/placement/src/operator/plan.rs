//! Plans the steps of a change.
//!
//! Invariant: while a replica is replaced, at least as many voters as before hold the data. The new
//! replica catches up as a learner, one joint change swaps the votes, then the old one is removed.

use super::{Kind, Operator, OperatorId, Step};
use crate::Millis;
use crate::region_info::RegionInfo;
use stele_types::{Peer, PeerId, PeerRole, StoreId};

/// Timeout of steps that move no data.
const STEP_MILLIS: u64 = 60_000;
/// Slowest copy for which the timeout allows.
const COPY_BYTES_PER_SECOND_MIN: u64 = 1 << 20;
/// Time added for each copy, which may wait for others.
const COPY_MILLIS: u64 = 600_000;
/// Timeout of a leadership transfer, which succeeds at once or not at all.
const TRANSFER_MILLIS: u64 = 15_000;

/// Returns an operator with these steps; `None` if there are none.
pub fn operator(
    info: &RegionInfo,
    kind: Kind,
    steps: Vec<Step>,
    reason: impl Into<String>,
) -> Option<Operator> {
    if steps.is_empty() {
        return None;
    }
    Some(Operator {
        id: OperatorId(0),
        region: info.region.id,
        epoch: info.region.epoch,
        kind,
        reason: reason.into(),
        timeout_millis: timeout_millis(info, &steps),
        steps,
        done: 0,
        refusal: None,
        created: Millis(0),
    })
}

fn timeout_millis(info: &RegionInfo, steps: &[Step]) -> u64 {
    let copies = steps.iter().filter(|step| matches!(step, Step::AddLearner(_))).count() as u64;
    let copy_millis = COPY_MILLIS + info.size_bytes / COPY_BYTES_PER_SECOND_MIN * 1000;
    match steps {
        [Step::Transfer(_)] => TRANSFER_MILLIS,
        _ => STEP_MILLIS + copies * copy_millis,
    }
}

/// Returns the steps that add voters on `add` and remove the members `leave`. A learner on a store
/// of `add` is promoted. `next_leader`: the leader if the present one is among those removed.
pub fn change_members(
    info: &RegionInfo,
    add: &[StoreId],
    leave: &[PeerId],
    next_leader: Option<Peer>,
) -> Vec<Step> {
    let region = &info.region;
    let promote: Vec<Peer> = add
        .iter()
        .map(|&store| {
            let new = Peer { id: PeerId(0), store, role: PeerRole::Learner };
            region.peer_on(store).copied().unwrap_or(new)
        })
        .map(|peer| Peer { role: PeerRole::Voter, ..peer })
        .collect();
    let leaving: Vec<Peer> = leave.iter().filter_map(|id| region.peer(*id)).copied().collect();
    let demote: Vec<Peer> = leaving
        .iter()
        .filter(|peer| peer.role != PeerRole::Learner)
        .map(|peer| Peer { role: PeerRole::Learner, ..*peer })
        .collect();
    let mut steps: Vec<Step> = promote
        .iter()
        .map(|peer| Step::AddLearner(Peer { role: PeerRole::Learner, ..*peer }))
        .collect();
    let leader_leaves = info.leader.is_some_and(|leader| leave.contains(&leader.id));
    if leader_leaves && let Some(next) = next_leader {
        steps.push(Step::Transfer(next));
    }
    if !promote.is_empty() || !demote.is_empty() {
        steps.push(Step::Enter { promote, demote });
        steps.push(Step::Leave);
    }
    steps
        .extend(leaving.iter().map(|peer| Step::Remove(Peer { role: PeerRole::Learner, ..*peer })));
    steps
}
