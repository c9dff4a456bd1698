//! Moves leaders off stores that should not lead: leaving ones, full ones, which refuse every write,
//! and those of which the device hangs.

use super::View;
use super::load::Loads;
use crate::config::Config;
use crate::operator::{Kind, Operator, Step, plan};
use crate::region_info::RegionInfo;
use crate::store::Store;
use stele_types::{Peer, StoreId};

/// Returns operators that transfer leadership.
pub fn pick(view: &View<'_>) -> Vec<Operator> {
    let config = view.cluster.config();
    let unfit: Vec<StoreId> =
        view.cluster.stores().filter(|s| is_unfit(s, config)).map(|s| s.id).collect();
    if unfit.is_empty() {
        return Vec::new();
    }
    let mut loads = Loads::of(view);
    let leads_unfit = |info: &&RegionInfo| info.leader.is_some_and(|l| unfit.contains(&l.store));
    let max = usize::try_from(view.cluster.config().leader_moves_max()).unwrap_or(usize::MAX);
    let mut out = Vec::new();
    for info in view.regions_without_operator().filter(leads_unfit).take(max) {
        let unfit_peers: Vec<Peer> =
            info.region.peers.iter().filter(|p| unfit.contains(&p.store)).copied().collect();
        let next = view.next_leader(&loads, info, &unfit_peers);
        if let (Some(leader), Some(next)) = (info.leader, next) {
            loads.move_leader(leader.store, next.store);
            let reason = format!("store {} should not lead", leader.store);
            out.extend(plan::operator(info, Kind::Leaders, vec![Step::Transfer(next)], reason));
        }
    }
    out
}

fn is_unfit(store: &Store, config: &Config) -> bool {
    store.state.is_leaving() || store.report.is_full || store.hangs(config)
}
