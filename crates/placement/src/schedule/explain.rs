//! Explanations for people: why a region is where it is, and how the stores compare.

use super::judge::{Rule, Verdict, judge, judge_move, judge_quorum};
use super::load::{Load, Loads};
use super::{ClusterView, pick_all, place};
use crate::config::Mode;
use crate::heat::Rates;
use crate::operator::Operator;
use crate::region_info::RegionInfo;
use crate::speed::SpeedClass;
use stele_types::{PeerRole, RegionId, StoreId};

/// Explanation of a region's placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The region.
    pub region: RegionId,
    /// Rule by which leaders and data are placed.
    pub mode: Mode,
    /// Estimated size of keys and values.
    pub size_bytes: u64,
    /// Traffic in each second.
    pub rates: Rates,
    /// Replicas, in the order of the region's descriptor.
    pub members: Vec<Member>,
    /// Stores without a replica, by number.
    pub candidates: Vec<Verdict>,
    /// Operator under way.
    pub operator: Option<String>,
    /// Reason why the operator waits.
    pub wait: Option<String>,
}

/// A replica of an explained region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Role of the replica.
    pub role: PeerRole,
    /// Why it leads, or why it does not.
    pub leader: Verdict,
    /// Where the replica moves to, and why; `None` if it stays.
    pub moves: Option<Verdict>,
}

/// Overview of the stores and of the moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overview {
    /// Rule by which leaders and data are placed.
    pub mode: Mode,
    /// Label that separates failure domains; `None` for the node.
    pub domain_label: Option<String>,
    /// Stores that are not removed, by number.
    pub stores: Vec<StoreOverview>,
    /// Operators under way.
    pub running: Vec<String>,
    /// Operators that the next round proposes, as far as limits allow.
    pub planned: Vec<String>,
}

/// One store in an overview.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreOverview {
    /// The store, with its loads, as if all operators under way were done.
    pub load: Load,
    /// Class by which leaders are placed, in every mode.
    pub class: SpeedClass,
    /// Synced writes a second that the store reported last; `None` if unknown.
    pub writes_per_second: Option<u64>,
    /// Whether that was measured; otherwise it is the estimate of the store's probe.
    pub is_measured: bool,
    /// Share of all data that the store should hold, in thousandths.
    pub wanted_permille: u64,
    /// Share of all data that the store holds, in thousandths.
    pub held_permille: u64,
    /// Share of the space in use and under way, in thousandths of what the store may hold; `None` if
    /// its sizes are unknown.
    pub fill_permille: Option<u64>,
}

/// Explains a region; `None` if it is unknown.
pub fn explain(view: &ClusterView<'_>, region: RegionId) -> Option<Explanation> {
    let info = view.cluster.regions().get(region)?;
    let loads = Loads::of(view);
    let others = loads.iter().filter(|load| info.region.peer_on(load.store).is_none());
    let candidates = others.map(|load| judge(view, &loads, info, load.store)).collect();
    let members = info.region.peers.iter().map(|peer| Member {
        role: peer.role,
        leader: judge(view, &loads, info, peer.store),
        moves: best_move(view, &loads, info, peer.store),
    });
    Some(Explanation {
        region,
        mode: view.cluster.config().mode(),
        size_bytes: info.size_bytes,
        rates: info.heat.at(view.now),
        members: members.collect(),
        candidates,
        operator: view.operators.of(region).map(Operator::to_string),
        wait: view.operators.wait_reason(view.cluster, region, view.now),
    })
}

fn best_move(
    view: &ClusterView<'_>,
    loads: &Loads,
    info: &RegionInfo,
    from: StoreId,
) -> Option<Verdict> {
    let judged = loads.iter().filter_map(|load| {
        let by_weight = judge_move(view, loads, info, from, load.store);
        let rule = match view.cluster.config().mode() {
            Mode::Quorum if !by_weight.is_move() => {
                judge_quorum(view, loads, info, from, load.store)
            }
            _ => by_weight,
        };
        let key = (load.data_level().with(place::weight(info)).key(), load.store);
        rule.is_move().then_some((key, rule))
    });
    let best: Option<((u128, StoreId), Rule)> = judged.min_by_key(|(key, _)| *key);
    best.map(|((_, store), rule)| Verdict { store, rule })
}

/// Compares the stores, and lists what moves and what will.
pub fn overview(view: &ClusterView<'_>) -> Overview {
    let loads = Loads::of(view);
    let mean = loads.data_mean();
    let stores = loads.iter().map(|load| {
        let report = view.cluster.store(load.store).map(|store| store.report);
        let device = report.map(|report| report.device).unwrap_or_default();
        let op_bytes = view.cluster.config().speed_op_bytes;
        StoreOverview {
            class: view.cluster.class_of(load.store),
            writes_per_second: device.write.per_second(op_bytes),
            is_measured: device.writes > 0,
            wanted_permille: permille(load.weight, mean.weight),
            held_permille: match load.weight {
                0 => 0,
                _ => permille(load.bytes, mean.held),
            },
            fill_permille: match load.room.limit {
                u64::MAX => None,
                // A store that has failed reports no sizes.
                _ if report.is_none_or(|report| report.has_failed) => None,
                limit => Some(permille(load.room.held.saturating_add(load.room.coming), limit)),
            },
            load: load.clone(),
        }
    });
    Overview {
        mode: view.cluster.config().mode(),
        domain_label: view.cluster.domain_label().map(str::to_owned),
        stores: stores.collect(),
        running: view.operators.running().map(Operator::to_string).collect(),
        planned: pick_all(view).iter().map(Operator::to_string).collect(),
    }
}

fn permille(part: u64, whole: u64) -> u64 {
    let product = u128::from(part) * 1000;
    product.checked_div(u128::from(whole)).map_or(0, |part| u64::try_from(part).unwrap_or(u64::MAX))
}
