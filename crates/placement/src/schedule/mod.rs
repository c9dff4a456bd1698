//! Schedulers: pure functions from the state to operators. They propose; [`round`] admits as many
//! as the limits allow, in order of urgency. A round surveys every region, so it waits for a
//! reason.
//!
//! Invariant: a round follows within `ROUND_MILLIS` of a reason: a region with another epoch, leader,
//! down or lagging replica; a store of which the state that schedulers read changes, also with time alone,
//! such as one that becomes silent or down; a running operator; a leaving store; a committed decision. What
//! is no reason, such as traffic that fades or sizes that grow, is surveyed within
//! `UNCHANGED_ROUND_MILLIS_MAX`, and in less where there are few regions.
//! Test: `a_store_that_becomes_silent_or_down_is_a_reason_for_a_round_within_a_second`.

pub mod balance;
pub mod drain;
pub mod explain;
pub mod finish;
pub mod full_replica;
pub mod judge;
pub mod leaders;
pub mod load;
pub mod merge;
pub mod place;
pub mod region_survey;
pub mod repair;
pub mod rule_text;
pub mod surplus;
pub mod weights;

use crate::Millis;
use crate::cluster::Cluster;
use crate::config::Mode;
use crate::operator::guard::can_act;
use crate::operator::tracker::Operators;
use crate::operator::{Operator, settled};
use crate::region_info::RegionInfo;
use crate::speed::SpeedClass;
use crate::store::{Store, StoreState};
use load::Loads;
use region_survey::RegionSurvey;
use std::cmp::Reverse;
use stele_types::{Peer, PeerRole, RegionId, RegionKind, RegionPhase, StoreId};

/// Input of a scheduler.
#[derive(Clone, Copy)]
pub struct ClusterView<'a> {
    /// State of the cluster.
    pub cluster: &'a Cluster,
    /// Operators under way.
    pub operators: &'a Operators,
    /// Present time.
    pub now: Millis,
}

pub(crate) const PROPOSALS_MAX: usize = 64;

pub(crate) type Scheduler = fn(&ClusterView<'_>, &RegionSurvey) -> Vec<Operator>;

/// Every scheduler with its name, most urgent first.
pub(crate) const SCHEDULERS: [(&str, Scheduler); 10] = [
    ("finish", finish::pick),
    ("orphan-learner", finish::pick_orphan_learners),
    ("repair", repair::pick),
    ("full-replica", full_replica::pick),
    ("drain", drain::pick),
    ("surplus", surplus::pick),
    ("evict", leaders::pick_evictions),
    ("balance", balance::pick),
    ("leaders", leaders::pick),
    ("merge", merge::pick),
];

/// Returns the proposals of all schedulers for this state.
pub fn pick_all(view: &ClusterView<'_>) -> Vec<Operator> {
    let survey = RegionSurvey::of(view);
    SCHEDULERS.iter().flat_map(|(_, pick)| pick(view, &survey)).collect()
}

/// Surveys the state once, runs each scheduler and admits what may run now. New peers get their
/// numbers from the cluster's reserve. Returns the number of operators admitted.
pub fn round(cluster: &mut Cluster, operators: &mut Operators, now: Millis) -> usize {
    operators.advance(cluster, now);
    cluster.begin_round(operators, now);
    let mut survey = RegionSurvey::of(&ClusterView { cluster, operators, now });
    let mut admitted = 0;
    for (_, pick) in SCHEDULERS {
        for operator in pick(&ClusterView { cluster, operators, now }, &survey) {
            let region = operator.region;
            let before = operators.of(region).cloned();
            if operators.admit(cluster, operator, now).is_err() {
                continue;
            }
            admitted += 1;
            if let (Some(info), Some(running)) =
                (cluster.regions().get(region), operators.of(region))
            {
                survey.note_admitted(cluster, info, before.as_ref(), running, now);
            }
        }
    }
    admitted
}

impl<'a> ClusterView<'a> {
    pub(crate) fn is_live(&self, store: StoreId) -> bool {
        self.cluster.is_live(store, self.now)
    }

    pub(crate) fn is_serving(&self, store: StoreId) -> bool {
        self.cluster.is_serving(store, self.now)
    }

    pub(crate) fn is_reachable(&self, info: &RegionInfo, peer: &Peer) -> bool {
        self.cluster.is_reachable(info, peer, self.now)
    }

    /// Whether a replica must be rebuilt: its store is lost, or its leader has not reached it for
    /// `down_after_seconds`.
    pub(crate) fn is_lost(&self, info: &RegionInfo, peer: &Peer) -> bool {
        let down_after = self.cluster.config().down_after_seconds;
        self.cluster.is_lost(peer.store, self.now)
            || info.down.iter().any(|down| down.peer == peer.id && down.seconds >= down_after)
    }

    /// Iterates over regions that may get an operator: with a leader and a quorum, in one
    /// configuration, not merging, and without an operator.
    /// Invariant: a leader of which the device hangs is asked for nothing but its leadership. It
    /// cannot apply a change.
    pub(crate) fn free_regions(self) -> impl Iterator<Item = &'a RegionInfo> {
        let hangs = move |store| {
            let store = self.cluster.store(store);
            store.is_some_and(|store| store.hangs(self.cluster.config()))
        };
        self.regions_without_operator()
            .filter(move |info| !info.leader.is_some_and(|leader| hangs(leader.store)))
    }

    /// Iterates over [`ClusterView::free_regions`] and those of which the leader's device hangs.
    pub(crate) fn regions_without_operator(self) -> impl Iterator<Item = &'a RegionInfo> {
        self.cluster.regions().iter().filter(move |info| {
            !info.region.is_joint()
                && info.region.phase == RegionPhase::Normal
                && !self.operators.has_operator(info.region.id)
                && can_act(&self, info).is_ok()
        })
    }

    /// Iterates over [`ClusterView::free_regions`] in which all replicas are reachable voters that have
    /// caught up.
    pub(crate) fn healthy_regions(self) -> impl Iterator<Item = &'a RegionInfo> {
        self.free_regions().filter(move |info| {
            info.region.peers.iter().all(|peer| {
                peer.role == PeerRole::Voter
                    && self.is_reachable(info, peer)
                    && info.is_caught_up(peer.id)
            })
        })
    }

    pub(crate) fn wanted(&self, kind: RegionKind) -> usize {
        self.cluster.copies_wanted(kind, self.now)
    }

    /// Iterates over the regions of a list that still have no operator.
    pub(crate) fn without_operator(
        self,
        list: &[RegionId],
    ) -> impl Iterator<Item = &'a RegionInfo> {
        let free = list.iter().filter(move |id| !self.operators.has_operator(**id));
        free.filter_map(move |id| self.cluster.regions().get(*id))
    }

    /// Returns the class by which leaders are placed: equal for all stores in mode `even`.
    pub(crate) fn lead_class(&self, store: StoreId) -> SpeedClass {
        match self.cluster.config().mode() {
            Mode::Even => SpeedClass::default(),
            Mode::Leaders | Mode::Alor | Mode::Quorum => self.cluster.class_of(store),
        }
    }

    /// Returns the best leader outside `leaving`.
    pub fn next_leader(&self, loads: &Loads, info: &RegionInfo, leaving: &[Peer]) -> Option<Peer> {
        place::next_leader(self, loads, info, leaving)
    }
}

pub(crate) fn voters(info: &RegionInfo) -> impl Iterator<Item = &Peer> {
    info.region.peers.iter().filter(|peer| settled(peer.role) == PeerRole::Voter)
}

/// Returns a sort key: largest region first, then by number.
pub(crate) fn by_size(info: &&RegionInfo) -> (Reverse<u64>, RegionId) {
    (Reverse(info.size_bytes), info.region.id)
}

/// Longest time from a reason to the round.
const ROUND_MILLIS: u64 = 1000;
/// Longest time between two rounds without a reason.
const UNCHANGED_ROUND_MILLIS_MAX: u64 = 30_000;
/// Regions that a round may cover for each millisecond since the last one, after a change that moves
/// leaders or regions. A round takes less time than that: in a large cluster, in which something always
/// changes, rounds take a part of one core.
const REGIONS_PER_MILLI: u64 = 500;
/// Regions that a round without a reason may cover for each millisecond since the last one: ten thousand
/// idle regions are surveyed every ten seconds.
const UNCHANGED_REGIONS_PER_MILLI: u64 = 1;

/// Decides when a round is due.
#[derive(Debug, Default)]
pub struct Pace {
    /// A leader or a region has moved.
    is_urgent: bool,
    /// A replica cannot be reached or lags, or no longer.
    has_news: bool,
    last: Millis,
    /// Time of the last look at the stores, and what it showed.
    looked: Millis,
    stores: Vec<StoreCondition>,
}

/// What schedulers read of a store, apart from free bytes and times of operations.
#[derive(Debug, PartialEq, Eq)]
struct StoreCondition {
    id: StoreId,
    is_live: bool,
    is_heard: bool,
    is_serving: bool,
    is_lost: bool,
    hangs: bool,
    is_informed: bool,
    state: StoreState,
    used_percent: u64,
}

impl Pace {
    pub(crate) fn note_urgent(&mut self) {
        self.is_urgent = true;
    }

    pub(crate) fn note_news(&mut self) {
        self.has_news = true;
    }

    /// Returns whether a round is due, which then begins.
    pub fn begins(&mut self, cluster: &Cluster, operators: &Operators, now: Millis) -> bool {
        let regions = cluster.regions().len() as u64;
        let since = now.since(self.last);
        let is_due = match self.is_urgent {
            true => since >= (regions / REGIONS_PER_MILLI).min(ROUND_MILLIS),
            false if since < ROUND_MILLIS => false,
            false => {
                let unchanged = regions / UNCHANGED_REGIONS_PER_MILLI;
                since >= unchanged.clamp(ROUND_MILLIS, UNCHANGED_ROUND_MILLIS_MAX)
                    || self.has_reason(cluster, operators, now)
            }
        };
        if is_due {
            (self.is_urgent, self.has_news, self.last) = (false, false, now);
            (self.looked, self.stores) = (now, conditions(cluster, now));
        }
        is_due
    }

    /// Returns whether there is a reason for a round. Looks at the stores once in [`ROUND_MILLIS`].
    fn has_reason(&mut self, cluster: &Cluster, operators: &Operators, now: Millis) -> bool {
        if self.has_news
            || operators.running().next().is_some()
            || cluster.stores().any(|store| store.state.is_leaving())
        {
            return true;
        }
        // bug placement.silence_is_no_reason: always
        if now.since(self.looked) < ROUND_MILLIS {
            return false;
        }
        self.looked = now;
        conditions(cluster, now) != self.stores
    }
}

fn conditions(cluster: &Cluster, now: Millis) -> Vec<StoreCondition> {
    let condition = |store: &Store| StoreCondition {
        id: store.id,
        is_live: cluster.is_live(store.id, now),
        is_heard: cluster.is_heard(store.id, now),
        is_serving: cluster.is_serving(store.id, now),
        is_lost: cluster.is_lost(store.id, now),
        hangs: store.hangs(cluster.config()),
        is_informed: cluster.is_informed_by(&store.address),
        state: store.state,
        used_percent: store.report.live_bytes.saturating_mul(100)
            / store.report.usable_bytes.max(1),
    };
    cluster.stores().map(condition).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pairs;
    use crate::{NodeReport, StoreReport};
    use stele_types::{ClusterId, KeyRange, Region, RegionId};

    const REGIONS: u64 = 20_000;

    fn cluster(regions: u64) -> (Cluster, Pace) {
        let region = |id: u64| Region {
            id: RegionId(id),
            range: KeyRange::new(id.to_be_bytes().to_vec(), (id + 1).to_be_bytes().to_vec()),
            ..Region::default()
        };
        let store =
            |id: u64| Store { id: StoreId(id), address: format!("n{id}:1"), ..Store::default() };
        let stores = (1..=2).map(|id| pairs::store(&store(id)));
        let regions = (10..10 + regions).map(|id| pairs::region(&region(id)));
        let settings = [("silent_after_seconds", 3), ("down_after_seconds", 9)];
        let settings = settings.map(|(name, value)| pairs::setting(name, value));
        let pairs = std::iter::once(pairs::cluster(ClusterId(7))).chain(settings);
        let pairs = pairs.chain(stores).chain(regions);
        let pairs = pairs.filter_map(|change| Some((change.key, change.value?)));
        let mut cluster = Cluster::load(pairs, Millis(0), 0).unwrap().unwrap();
        hear(&mut cluster, 1, Millis(1));
        hear(&mut cluster, 2, Millis(1));
        let mut pace = Pace::default();
        pace.note_urgent();
        assert!(pace.begins(&cluster, &Operators::default(), Millis(1000)));
        (cluster, pace)
    }

    fn hear(cluster: &mut Cluster, id: u64, now: Millis) {
        let node = NodeReport { address: format!("n{id}:1"), ..NodeReport::default() };
        let store = StoreReport { id: StoreId(id), ..StoreReport::default() };
        cluster.record_heartbeat(&node, &[store], now);
    }

    /// Returns the first time of a round after `from`, asked every 100 ms.
    fn next(pace: &mut Pace, cluster: &mut Cluster, from: u64, is_heard: bool) -> u64 {
        let mut times = (1..2_000).map(|nth| from + nth * 100);
        let round = times.find(|at| {
            hear(cluster, 1, Millis(*at));
            if is_heard {
                hear(cluster, 2, Millis(*at));
            }
            pace.begins(cluster, &Operators::default(), Millis(*at))
        });
        round.unwrap() - from
    }

    #[test]
    fn idle_regions_are_surveyed_the_more_rarely_the_more_there_are() {
        for (regions, millis) in [(0, 1_000), (500, 1_000), (REGIONS, 20_000), (40_000, 30_000)] {
            let (mut cluster, mut pace) = cluster(regions);
            assert_eq!(next(&mut pace, &mut cluster, 1_000, true), millis, "{regions} regions");
        }
    }

    #[test]
    fn a_change_of_a_leader_is_a_reason_at_once_and_one_of_down_replicas_within_a_second() {
        let (mut cluster, mut pace) = cluster(REGIONS);
        pace.note_urgent();
        assert_eq!(next(&mut pace, &mut cluster, 1_000, true), 100);
        pace.note_news();
        assert_eq!(next(&mut pace, &mut cluster, 1_100, true), 1_000);
        assert_eq!(next(&mut pace, &mut cluster, 2_100, true), 20_000);
    }

    #[test]
    fn a_store_that_becomes_silent_or_down_is_a_reason_for_a_round_within_a_second() {
        let (mut cluster, mut pace) = cluster(REGIONS);
        let mut at = 1_000;
        for after_s in [3, 9] {
            at += next(&mut pace, &mut cluster, at, false);
            assert!((after_s * 1_000..=after_s * 1_000 + 1_100).contains(&at), "{after_s}: {at}");
        }
        assert!(cluster.is_lost(StoreId(2), Millis(at)));
        // It comes back.
        let back = next(&mut pace, &mut cluster, at, true);
        assert!(back <= 1_000, "{back}");
    }
}
