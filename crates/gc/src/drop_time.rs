//! Time by which merges drop expired pairs. A pair that is dropped early is lost; one that is
//! dropped late only takes space. So no single clock decides.

use std::collections::VecDeque;

/// Seconds by which the drop time lags.
pub(crate) const MARGIN_S: u64 = 60 * 60;
/// Least seconds between two noted times.
const SPACING_S: u64 = 10 * 60;
const SEEN_MAX: usize = (MARGIN_S / SPACING_S) as usize + 2;

/// Clocks that must agree that a pair has expired before it is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeSource {
    /// The machine's clock, for a store without replicas.
    Own,
    /// The machine's clock and the cluster's time, see [`crate::Gc::note_cluster_time`].
    Cluster,
}

/// Times that the machine's clock showed, ascending, in Unix seconds. They survive restarts. A time
/// counts when the clock has shown a time [`MARGIN_S`] later and was never set back before it in
/// between: a clock that is found to be ahead and is corrected within that time destroys nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SeenTimes(VecDeque<u64>);

impl SeenTimes {
    /// Returns `None` for more times than are ever noted.
    pub(crate) fn new(times: VecDeque<u64>) -> Option<Self> {
        (times.len() <= SEEN_MAX).then_some(Self(times))
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = u64> {
        self.0.iter().copied()
    }

    /// Notes the time that the clock shows. Drops later ones: the clock was ahead when it showed
    /// them.
    pub(crate) fn note(&mut self, now_s: u64) {
        self.0.retain(|seen| *seen <= now_s);
        if self.0.back().is_none_or(|last| now_s - last >= SPACING_S) {
            self.0.push_back(now_s);
        }
        // Of the times that count, the latest suffices.
        while self.0.get(1).is_some_and(|second| second.saturating_add(MARGIN_S) <= now_s) {
            self.0.pop_front();
        }
    }

    /// Returns the latest time that the clock showed at least [`MARGIN_S`] before `now_s`; 0 if
    /// there is none.
    fn confirmed_s(&self, now_s: u64) -> u64 {
        let is_old = |seen: &&u64| seen.saturating_add(MARGIN_S) <= now_s;
        self.0.iter().take_while(is_old).last().copied().unwrap_or(0)
    }
}

/// Returns the time up to which expired pairs are dropped; 0 if none are.
///
/// Invariant: no pair is dropped before it expired an hour ago. The time is never later than the clock, than
/// a time that the clock showed [`MARGIN_S`] ago and has not gone back from, and, with
/// [`TimeSource::Cluster`], than the cluster's time without [`MARGIN_S`].
/// Tests: `a_clock_that_is_ahead_drops_no_pair`,
/// `a_replica_drops_no_pair_before_it_knows_the_clusters_time`.
pub(crate) fn drop_s(source: TimeSource, now_s: u64, seen: &SeenTimes, cluster_s: u64) -> u64 {
    // bug gc.expired_by_own_clock: return now_s;
    let confirmed_s = seen.confirmed_s(now_s);
    // bug gc.drops_without_cluster_time: if cluster_s == 0 { return confirmed_s; }
    match source {
        TimeSource::Own => confirmed_s,
        TimeSource::Cluster => confirmed_s.min(cluster_s.saturating_sub(MARGIN_S)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_S: u64 = 24 * 60 * 60;
    const T: u64 = 1_700_000_000;

    fn run(seen: &mut SeenTimes, from_s: u64, to_s: u64) {
        for now_s in (from_s..=to_s).step_by(60) {
            seen.note(now_s);
            assert!(seen.0.len() <= SEEN_MAX);
            assert!(seen.iter().is_sorted());
        }
    }

    fn own(seen: &SeenTimes, now_s: u64) -> u64 {
        drop_s(TimeSource::Own, now_s, seen, 0)
    }

    #[test]
    fn a_clock_counts_after_it_has_shown_its_time_for_an_hour() {
        let mut seen = SeenTimes::default();
        run(&mut seen, T, T + MARGIN_S - 60);
        assert_eq!(own(&seen, T + MARGIN_S - 1), 0, "nothing is known of an earlier time");
        run(&mut seen, T + MARGIN_S, T + DAY_S);
        let lag_s = T + DAY_S - own(&seen, T + DAY_S);
        assert!((MARGIN_S..=MARGIN_S + SPACING_S).contains(&lag_s), "{lag_s}");
    }

    #[test]
    fn a_clock_that_is_ahead_after_a_start_changes_nothing_for_an_hour_and_then_is_forgotten() {
        let mut seen = SeenTimes::default();
        run(&mut seen, T, T + DAY_S);
        let mut seen = SeenTimes::new(seen.iter().collect()).unwrap();
        let wrong_s = T + 3 * DAY_S;
        run(&mut seen, wrong_s, wrong_s + MARGIN_S - 60);
        assert!(own(&seen, wrong_s + MARGIN_S - 1) <= T + DAY_S);
        seen.note(T + DAY_S + MARGIN_S);
        assert!(own(&seen, T + DAY_S + MARGIN_S) <= T + DAY_S + MARGIN_S);
        assert!(own(&seen, wrong_s) <= T + DAY_S + MARGIN_S, "the wrong times are gone");
    }

    #[test]
    fn without_the_clusters_time_nothing_is_dropped_and_with_it_the_earlier_clock_counts() {
        let mut seen = SeenTimes::default();
        run(&mut seen, T, T + DAY_S);
        let now_s = T + DAY_S;
        let drop_s = |cluster_s| drop_s(TimeSource::Cluster, now_s, &seen, cluster_s);
        assert_eq!(drop_s(0), 0);
        assert_eq!(drop_s(T), T - MARGIN_S);
        assert_eq!(drop_s(T + 9 * DAY_S), own(&seen, now_s), "a cluster that is ahead");
    }
}
