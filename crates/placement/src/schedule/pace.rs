//! Time between two rounds of the schedulers. A round surveys every region, so it waits for a reason.
//!
//! Invariant: a round follows within `ROUND_MILLIS` of a reason: a region with another epoch, leader,
//! down or lagging replica; a store of which the state that schedulers read changes, also with time alone,
//! such as one that becomes silent or down; a running operator; a leaving store; a committed decision. What
//! is no reason, such as traffic that fades or sizes that grow, is surveyed within
//! `UNCHANGED_ROUND_MILLIS_MAX`, and in less where there are few regions.
//! Test: `a_store_that_becomes_silent_or_down_is_a_reason_for_a_round_within_a_second`.

use crate::Millis;
use crate::cluster::Cluster;
use crate::operator::tracker::Operators;
use crate::store::{Store, StoreState};
use stele_types::StoreId;

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
    /// Time of the last round.
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
    /// Part of the usable space that is in use.
    used_percent: u64,
}

impl Pace {
    /// Notes that a leader or a region has moved, or that a decision was committed.
    pub fn note_urgent(&mut self) {
        self.is_urgent = true;
    }

    /// Notes that other replicas of a region are down or lag.
    pub fn note_news(&mut self) {
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

    /// Returns a cluster of two stores and many regions, and a pace after its first round.
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
