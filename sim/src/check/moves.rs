//! Moves of the placement group that only balance: their number has a bound, also while speeds flip.

use crate::world::World;
use std::collections::{BTreeMap, BTreeSet};
use stele_placement::{Cluster, Kind, LeaderState, Millis, Operator, OperatorId};
use stele_types::{RegionId, StoreId, Term};

/// Time in which moves are counted.
const MINUTE_MILLIS: u64 = 60_000;
/// Limit of a region's leader moves in a minute, under one leader of the placement group, while nothing
/// else moves the leader: the schedulers move it once, and again at once if it becomes far too slow.
const LEADER_MOVES_MAX: usize = 2;
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
    /// Stores to which leaders were moved last.
    led_by: BTreeMap<RegionId, StoreId>,
    /// Moves under way; true if they are to be counted.
    under_way: BTreeMap<OperatorId, bool>,
    /// Virtual time of the last move that was admitted.
    pub last: u64,
}

impl Moves {
    /// Notes the operators of a placement leader. Returns the number of new moves, the most of a region
    /// in a minute, and what exceeds a bound.
    fn note(
        &mut self,
        state: &LeaderState,
        before: &BTreeSet<OperatorId>,
    ) -> (u64, u64, Option<String>) {
        if self.term != state.term {
            *self = Self { term: state.term, last: self.last, ..Self::default() };
        }
        let is_new = |operator: &&Operator| !before.contains(&operator.id) && is_move(operator);
        let mut admitted = 0;
        for operator in state.operators.running().filter(is_new) {
            admitted += 1;
            let (region, leader) = (operator.region, leader_of(&state.cluster, operator));
            // An election, a drain or an administrator moved the leader meanwhile.
            if self.led_by.get(&region).is_some_and(|led_by| Some(*led_by) != leader) {
                self.leaders.remove(&region);
            }
            self.under_way.insert(operator.id, !is_eviction(&state.cluster, operator));
        }
        let (mut most_moves, mut exceeded) = (0, None);
        for ended in state.operators.ended() {
            let operator = &ended.operator;
            let counts = self.under_way.remove(&operator.id).unwrap_or_default();
            if ended.given_up.is_some() || !counts {
                continue;
            }
            if let Some(store) = operator.final_leader() {
                self.led_by.insert(operator.region, store);
            }
            let (times, most) = match operator.kind {
                Kind::Leaders | Kind::Evict => (&mut self.leaders, LEADER_MOVES_MAX),
                _ => (&mut self.replicas, REPLICA_MOVES_MAX),
            };
            let times = times.entry(operator.region).or_default();
            times.retain(|at| operator.created.since(*at) < MINUTE_MILLIS);
            times.push(operator.created);
            most_moves = most_moves.max(times.len() as u64);
            if times.len() > most {
                let times: Vec<u64> = times.iter().map(|at| at.0).collect();
                exceeded =
                    Some(format!("moves a region at {times:?} ms, limit {most}: {operator}"));
            }
        }
        (admitted, most_moves, exceeded)
    }
}

/// Returns whether an operator only balances.
fn is_move(operator: &Operator) -> bool {
    matches!(operator.kind, Kind::Balance | Kind::Leaders | Kind::Evict)
}

/// Returns the store that leads the region of an operator.
fn leader_of(cluster: &Cluster, operator: &Operator) -> Option<StoreId> {
    cluster.regions().get(operator.region)?.leader.map(|leader| leader.store)
}

/// Returns whether an operator moves a leader from a store that must not lead.
fn is_eviction(cluster: &Cluster, operator: &Operator) -> bool {
    let must_not_lead = |store: StoreId| {
        cluster.store(store).is_none_or(|store| {
            let is_slow_to_answer = store.report.append_age_ms >= 100;
            store.state.is_leaving() || store.report.is_full || is_slow_to_answer
        })
    };
    operator.kind != Kind::Balance && leader_of(cluster, operator).is_some_and(must_not_lead)
}

impl World {
    /// Notes the moves of the placement leader on a node.
    pub(crate) fn note_moves(&mut self, id: u64, before: &BTreeSet<OperatorId>) {
        let Some(state) = self.nodes.get(&id).and_then(|node| node.member.leader_state()) else {
            return;
        };
        let (admitted, most, exceeded) = self.checks.moves.note(state, before);
        self.counts.moves += admitted;
        self.counts.moves_most = self.counts.moves_most.max(most);
        if admitted > 0 {
            self.checks.moves.last = self.now;
        }
        if let Some(text) = exceeded {
            self.fail(format!("the placement group of node {id} {text}"));
        }
    }
}
