//! Checks the stores to which an operator moves data or leadership, from their records and reports.

use super::orders::Before;
use stele_placement::{Cluster, Kind, Liveness, Millis, Operator, Step, Store, StoreState};
use stele_types::{PeerId, StoreId};

/// Percentage of a store's usable space above which it gets no replica to balance loads.
const FULL_PERCENT: u64 = 95;

/// Returns what is invalid in an operator that was just admitted: it gives a replica or a leader to a
/// store that cannot take it.
pub(super) fn unfit_target(
    cluster: &Cluster,
    operator: &Operator,
    before: &Before,
    now: Millis,
) -> Option<String> {
    let is_new = |store: &Store| before.is_changed_since(store);
    let serves = |id: StoreId| {
        let takes = |store: &Store| {
            let is_well = !store.report.is_full && !store.report.has_failed;
            is_new(store) || store.state == StoreState::Up && is_well
        };
        cluster.store(id).is_some_and(takes) && cluster.liveness(id, now) == Liveness::Live
    };
    if let Some(store) = operator.receivers().find(|store| !serves(*store)) {
        return Some(format!("begins {operator}, but store {store} takes no replicas"));
    }
    let transfers = operator.steps.iter().filter_map(|step| match step {
        Step::Transfer(to) if operator.kind != Kind::Manual => Some(to.store),
        _ => None,
    });
    if let Some(store) = transfers.into_iter().find(|store| !serves(*store)) {
        return Some(format!("begins {operator}, but store {store} takes no leaders"));
    }
    if let Some(text) = lagging(cluster, operator, before) {
        return Some(text);
    }
    let size_bytes = cluster.regions().get(operator.region)?.size_bytes;
    let is_overfilled = |id: &StoreId| {
        let store = cluster.store(*id).filter(|store| !is_new(store));
        let Some(report) = store.map(|store| store.report) else { return false };
        let filled = (report.live_bytes + size_bytes) * 100;
        report.usable_bytes > 0 && filled >= report.usable_bytes * FULL_PERCENT
    };
    let store = operator.receivers().find(is_overfilled);
    store.filter(|_| operator.kind == Kind::Balance).map(|store| {
        format!("begins {operator}, which fills store {store} to more than {FULL_PERCENT} %")
    })
}

/// Returns what is invalid in a move that rests on a replica that lags: only the one that leaves may.
fn lagging(cluster: &Cluster, operator: &Operator, before: &Before) -> Option<String> {
    let info = cluster.regions().get(operator.region)?;
    let leaves = |peer: &PeerId| {
        let demotes = |step: &Step| match step {
            Step::Enter { demote, .. } => demote.iter().any(|gone| gone.id == *peer),
            _ => false,
        };
        operator.steps.iter().any(demotes)
    };
    let moves_lead_to = |peer: &PeerId| {
        operator.steps.iter().any(|step| matches!(step, Step::Transfer(to) if to.id == *peer))
    };
    if before.is_reported_since(info) {
        return None;
    }
    let is_wrong = |peer: &&PeerId| match operator.kind {
        Kind::Balance => !leaves(peer),
        Kind::Leaders | Kind::Evict => moves_lead_to(peer),
        _ => false,
    };
    let peer = info.pending.iter().find(is_wrong)?;
    Some(format!("begins {operator}, although replica {peer} lags"))
}
