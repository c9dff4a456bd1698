//! Moves of the placement group that only balance: their number has a bound, also while speeds flip.

use crate::world::World;
use std::collections::{BTreeMap, BTreeSet};
use stele_placement::{Cluster, Kind, LeaderState, Millis, Operator, OperatorId};
use stele_types::{RegionId, StoreId, Term};

/// Time in which moves are counted.
const MINUTE_MILLIS: u64 = 60_000;
/// Limit of a region's leader moves in a minute, under one leader of the placement group, from stores
/// that may lead: the schedulers move it once.
const LEADER_MOVES_MAX: usize = 8;
/// Limit of a region's replica moves in a minute. Each move brings the loads closer to the weights, so
/// that more than this shows moves back and forth.
const REPLICA_MOVES_MAX: usize = 6;

/// Moves of one region that completed, by the times of their admission.
type Times = BTreeMap<RegionId, Vec<Millis>>;

/// Moves of the last minute, under one leader of the placement group.
#[derive(Default)]
pub struct Moves {
    term: Term,
    leaders: Times,
    replicas: Times,
    /// Moves under way; true if they are to be counted.
    under_way: BTreeMap<OperatorId, bool>,
    /// Virtual time of the last move that was admitted.
    pub last: u64,
}

impl Moves {
    /// Notes the operators of a placement leader. Returns what exceeds a bound.
    fn note(
        &mut self,
        state: &LeaderState,
        before: &BTreeSet<OperatorId>,
    ) -> (u64, Option<String>) {
        if self.term != state.term {
            *self = Self { term: state.term, last: self.last, ..Self::default() };
        }
        let is_new = |operator: &&Operator| !before.contains(&operator.id) && is_move(operator);
        let mut admitted = 0;
        for operator in state.operators.running().filter(is_new) {
            admitted += 1;
            self.under_way.insert(operator.id, !is_eviction(&state.cluster, operator));
        }
        let mut exceeded = None;
        for ended in state.operators.ended() {
            let operator = &ended.operator;
            let counts = self.under_way.remove(&operator.id).unwrap_or_default();
            if ended.given_up.is_some() || !counts {
                continue;
            }
            let (times, most) = match operator.kind {
                Kind::Leaders => (&mut self.leaders, LEADER_MOVES_MAX),
                _ => (&mut self.replicas, REPLICA_MOVES_MAX),
            };
            let times = times.entry(operator.region).or_default();
            times.retain(|at| operator.created.since(*at) < MINUTE_MILLIS);
            times.push(operator.created);
            if times.len() > most {
                let times: Vec<u64> = times.iter().map(|at| at.0).collect();
                exceeded =
                    Some(format!("moves a region at {times:?} ms, limit {most}: {operator}"));
            }
        }
        (admitted, exceeded)
    }
}

/// Returns whether an operator only balances.
fn is_move(operator: &Operator) -> bool {
    matches!(operator.kind, Kind::Balance | Kind::Leaders)
}

/// Returns whether an operator moves a leader from a store that must not lead.
fn is_eviction(cluster: &Cluster, operator: &Operator) -> bool {
    let leader = cluster.regions().get(operator.region).and_then(|info| info.leader);
    let must_not_lead = |store: StoreId| {
        cluster.store(store).is_none_or(|store| {
            let is_slow_to_answer = store.report.append_age_ms >= 100;
            store.state.is_leaving() || store.report.is_full || is_slow_to_answer
        })
    };
    operator.kind == Kind::Leaders && leader.is_some_and(|leader| must_not_lead(leader.store))
}

impl World {
    /// Notes the moves of the placement leader on a node.
    pub(crate) fn note_moves(&mut self, id: u64, before: &BTreeSet<OperatorId>) {
        let Some(state) = self.nodes.get(&id).and_then(|node| node.member.leader_state()) else {
            return;
        };
        let (admitted, exceeded) = self.checks.moves.note(state, before);
        self.counts.moves += admitted;
        if admitted > 0 {
            self.checks.moves.last = self.now;
        }
        if let Some(text) = exceeded {
            self.fail(format!("the placement group of node {id} {text}"));
        }
    }
}
