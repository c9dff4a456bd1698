//! Moves of the placement group that only balance: their number has a bound, also while speeds flip.

use crate::world::World;
use std::collections::{BTreeMap, BTreeSet};
use stele_placement::{
    Cluster, Config, Kind, LeaderState, Millis, Operator, OperatorId, Step, Store, StoreReport,
};
use stele_types::{Peer, PeerId, RegionId, StoreId, Term};

const MINUTE_MILLIS: u64 = 60_000;
/// Limit of the moves of a region's leader in a minute to share load, under one leader of the placement
/// group and while nothing else moves the leader: the schedulers pause for a minute after a move.
const LEADER_MOVES_MAX: usize = 1;
/// Limit of its moves from devices that became far slower than another, or the number of stores if that
/// is more: each needs the class of one more store to fall by four, and classes rise at most once in a
/// minute.
const EVICTIONS_MAX: usize = 6;

/// Percentage of its usable space above which a store may count as nearly full.
const ROOM_PERCENT: u64 = 90;

/// Moves of one region that completed, by the times of their admission.
type Times = BTreeMap<RegionId, Vec<Millis>>;

#[derive(Default)]
pub(crate) struct Moves {
    term: Term,
    leaders: Times,
    evictions: Times,
    replicas: Times,
    config: Config,
    /// Replicas after the last move of each region. A repair on the same store makes another replica,
    /// which no move has placed.
    placed: BTreeMap<RegionId, BTreeSet<PeerId>>,
    led_by: BTreeMap<RegionId, StoreId>,
    /// Moves under way; true if they are to be counted.
    under_way: BTreeMap<OperatorId, bool>,
    /// Virtual time of the last move that was admitted.
    pub last: u64,
}

#[derive(Default)]
struct Noted {
    admitted: Vec<String>,
    /// Most moves of a region in a minute.
    most: u64,
    /// What exceeds a bound.
    exceeded: Option<String>,
}

impl Moves {
    /// Forgets all moves but the time of the last one.
    pub(crate) fn forget(&mut self) {
        *self = Self { last: self.last, ..Self::default() };
    }

    fn note(&mut self, state: &LeaderState, before: &BTreeSet<OperatorId>) -> Noted {
        if self.term != state.term {
            self.forget();
            self.term = state.term;
        }
        if self.config != *state.cluster.config() {
            self.config = state.cluster.config().clone();
            self.replicas.clear();
        }
        let is_new = |operator: &&Operator| !before.contains(&operator.id) && is_move(operator);
        let mut noted = Noted::default();
        for operator in state.operators.running().filter(is_new) {
            noted.admitted.push(operator.to_string());
            let (region, leader) = (operator.region, leader_of(&state.cluster, operator));
            // An election, a drain or an administrator moved the leader meanwhile.
            if self.led_by.get(&region).is_some_and(|led_by| Some(*led_by) != leader) {
                self.leaders.remove(&region);
                self.evictions.remove(&region);
            }
            let now =
                state.cluster.regions().get(region).map(|info| replicas_of(&info.region.peers));
            if self.placed.get(&region).is_some_and(|placed| Some(placed) != now.as_ref()) {
                self.replicas.remove(&region);
            }
            let is_forced = leaves_unfit_store(&state.cluster, operator);
            if is_forced && operator.kind == Kind::Balance {
                // What it moves may come back when there is room.
                self.replicas.remove(&region);
            }
            self.under_way.insert(operator.id, !is_forced);
        }
        for ended in state.operators.ended() {
            let operator = &ended.operator;
            let counts = self.under_way.remove(&operator.id).unwrap_or_default();
            if ended.given_up.is_some() || !counts {
                continue;
            }
            let info = state.cluster.regions().get(operator.region);
            let replicas = info.map_or(usize::MAX, |info| info.region.peers.len());
            if let Some(info) = info.filter(|_| operator.kind == Kind::Balance) {
                self.placed.insert(operator.region, replicas_of(&info.region.peers));
            }
            if let Some(store) = operator.final_leader() {
                self.led_by.insert(operator.region, store);
            }
            let (times, most) = match operator.kind {
                Kind::Leaders => (&mut self.leaders, LEADER_MOVES_MAX),
                Kind::Evict => {
                    (&mut self.evictions, EVICTIONS_MAX.max(state.cluster.stores().count()))
                }
                // A replica stays where a move has placed it, for a minute or until data follows speeds:
                // in a minute each of the region's replicas moves from a store with room at most once
                // for each such pause that begins in it.
                _ => {
                    (&mut self.replicas, replicas.saturating_mul(pauses_in_a_minute(&self.config)))
                }
            };
            let times = times.entry(operator.region).or_default();
            times.retain(|at| operator.created.since(*at) < MINUTE_MILLIS);
            times.push(operator.created);
            noted.most = noted.most.max(times.len() as u64);
            if times.len() > most {
                let times: Vec<u64> = times.iter().map(|at| at.0).collect();
                noted.exceeded =
                    Some(format!("moves a region at {times:?} ms, limit {most}: {operator}"));
            }
        }
        noted
    }
}

fn pauses_in_a_minute(config: &Config) -> usize {
    let pause_seconds = config.slow_data_after_seconds.clamp(1, MINUTE_MILLIS / 1000);
    (MINUTE_MILLIS / 1000).div_ceil(pause_seconds) as usize
}

/// Returns whether an operator only balances.
fn is_move(operator: &Operator) -> bool {
    matches!(operator.kind, Kind::Balance | Kind::Leaders | Kind::Evict)
}

fn replicas_of(peers: &[Peer]) -> BTreeSet<PeerId> {
    peers.iter().map(|peer| peer.id).collect()
}

fn leader_of(cluster: &Cluster, operator: &Operator) -> Option<StoreId> {
    cluster.regions().get(operator.region)?.leader.map(|leader| leader.store)
}

/// Returns whether an operator moves a leader from a store that must not lead, or data from a store
/// without room.
fn leaves_unfit_store(cluster: &Cluster, operator: &Operator) -> bool {
    let has_no_room = |store: &Store| {
        let StoreReport { is_full, live_bytes, usable_bytes, .. } = store.report;
        // A store remains nearly full until it has enough room again.
        is_full || usable_bytes > 0 && live_bytes * 100 >= usable_bytes * ROOM_PERCENT
    };
    let must_not_lead = |store: &Store| {
        let is_slow_to_answer = store.report.append_age_ms >= 100;
        store.state.is_leaving() || store.report.is_full || is_slow_to_answer
    };
    let left = operator.steps.iter().filter_map(|step| match step {
        Step::Enter { demote, .. } => Some(demote.iter().map(|peer| peer.store)),
        _ => None,
    });
    match operator.kind {
        Kind::Balance => {
            let left: Vec<StoreId> = left.flatten().collect();
            left.iter().filter_map(|store| cluster.store(*store)).any(has_no_room)
        }
        _ => leader_of(cluster, operator)
            .is_some_and(|store| cluster.store(store).is_none_or(must_not_lead)),
    }
}

impl World {
    pub(crate) fn note_moves(&mut self, id: u64, before: &BTreeSet<OperatorId>) {
        let Some(state) = self.nodes.get(&id).and_then(|node| node.member.leader_state()) else {
            return;
        };
        let Noted { admitted, most, exceeded } = self.checks.moves.note(state, before);
        self.counts.moves += admitted.len() as u64;
        self.counts.moves_most = self.counts.moves_most.max(most);
        for text in admitted {
            self.checks.moves.last = self.now;
            self.trace.note(self.now, id, 0, || format!("begins {text}"));
        }
        if let Some(text) = exceeded {
            self.fail(format!("the placement group of node {id} {text}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_placement::operator::plan;
    use stele_placement::{NodeReport, RegionReport, pairs};
    use stele_types::{ClusterId, PeerRole, Region, StoreId};

    const REGION: RegionId = RegionId(2);

    fn state() -> LeaderState {
        let store =
            |id: u64| Store { id: StoreId(id), address: id.to_string(), ..Store::default() };
        let stores = (1..=4).map(|id| pairs::store(&store(id)));
        let pairs = [pairs::cluster(ClusterId(7)), pairs::ids(1000)].into_iter().chain(stores);
        let pairs = pairs.filter_map(|change| Some((change.key, change.value?)));
        let cluster = Cluster::load(pairs, Millis(0), 0).unwrap().unwrap();
        let mut state = LeaderState::new(Term(5), cluster);
        let peer = |id| Peer { id: PeerId(id), store: StoreId(id), role: PeerRole::Voter };
        let peers = (1..=3).map(peer).collect();
        report(&mut state.cluster, Region { id: REGION, peers, ..Region::default() }, 0);
        state
    }

    fn report(cluster: &mut Cluster, region: Region, millis: u64) {
        let leader = region.peers[0];
        let report = RegionReport { region, leader, term: Term(5), ..RegionReport::default() };
        cluster.observe(report, Millis(millis)).unwrap();
    }

    /// Moves the first replica of the region to the store without one. Returns what the check finds.
    fn move_one(moves: &mut Moves, state: &mut LeaderState, millis: u64) -> Option<String> {
        for id in 1..=4 {
            let node = NodeReport { address: id.to_string(), ..NodeReport::default() };
            let store = StoreReport { id: StoreId(id), ..StoreReport::default() };
            state.cluster.record_heartbeat(&node, &[store], Millis(millis));
        }
        let ids = state.cluster.plan_ids(100).unwrap();
        state.cluster.apply(&ids).unwrap();
        let info = state.cluster.regions().get(REGION).unwrap();
        let mut region = info.region.clone();
        let to = (1..=4).map(StoreId).find(|store| region.peer_on(*store).is_none()).unwrap();
        let (first, next) = (region.peers[0], region.peers[1]);
        let steps = plan::change_members(info, &[to], &[first.id], Some(next));
        let operator = plan::operator(info, Kind::Balance, steps, "a test").unwrap();
        state.operators.admit(&mut state.cluster, operator, Millis(millis)).unwrap();
        assert_eq!(moves.note(state, &BTreeSet::new()).exceeded, None);
        let running = state.operators.of(REGION).unwrap();
        let before = BTreeSet::from([running.id]);
        region.peers = running.final_peers(&region);
        region.epoch.conf_version += 4;
        report(&mut state.cluster, region, millis);
        state.operators.advance(&state.cluster, Millis(millis));
        assert_eq!(state.operators.running().count(), 0);
        moves.note(state, &before).exceeded
    }

    #[test]
    fn a_region_of_three_replicas_moves_at_most_three_times_in_a_minute() {
        let (mut moves, mut state) = (Moves::default(), state());
        for millis in [1_000, 2_000, 3_000, 61_000, 62_000] {
            assert_eq!(move_one(&mut moves, &mut state, millis), None);
        }
        let exceeded = move_one(&mut moves, &mut state, 62_500).unwrap();
        assert!(exceeded.contains("at [3000, 61000, 62000, 62500] ms, limit 3"), "{exceeded}");
    }

    #[test]
    fn a_replica_that_a_repair_made_anew_on_its_store_may_move() {
        let (mut moves, mut state) = (Moves::default(), state());
        for millis in [1_000, 2_000, 3_000] {
            assert_eq!(move_one(&mut moves, &mut state, millis), None);
        }
        let mut region = state.cluster.regions().get(REGION).unwrap().region.clone();
        region.peers[0].id = PeerId(900);
        region.epoch.conf_version += 2;
        report(&mut state.cluster, region, 3_500);
        assert_eq!(move_one(&mut moves, &mut state, 4_000), None);
    }
}
