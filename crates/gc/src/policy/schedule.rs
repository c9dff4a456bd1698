//! Schedule of the sorts of everything: time is divided into intervals, and each store sorts once in
//! each. The intervals of stores with different phases begin at different times, also if all stores
//! were started, or all were given the setting, at the same moment.

use crate::options::GcOptions;

/// Returns the seconds since the start of the interval in which the store last sorted: the next sort is
/// due when they are at least an interval. A store that was just opened counts as sorted.
pub(crate) fn sorted_ago_s(
    now_s: u64,
    sorted_at_s: u64,
    opened_at_s: u64,
    options: &GcOptions,
) -> u64 {
    let interval_s = options.sort_interval_s;
    // bug gc.replicas_sort_together: always
    if interval_s == 0 {
        return now_s.saturating_sub(sorted_at_s);
    }
    let phase_s = (options.sort_phase * interval_s as f64) as u64;
    let moved = |at_s: u64| at_s.saturating_add(interval_s).saturating_sub(phase_s);
    let last_s = moved(sorted_at_s.max(opened_at_s));
    moved(now_s).saturating_sub(last_s - last_s % interval_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_S: u64 = 86_400;

    fn options(phase: f64) -> GcOptions {
        GcOptions { sort_interval_s: DAY_S, sort_phase: phase, ..GcOptions::default() }
    }

    /// Returns the seconds at which a store that is observed every minute sorts.
    fn sorts(phase: f64, opened_at_s: u64, days: u64) -> Vec<u64> {
        let (mut sorted_at_s, mut all) = (0, Vec::new());
        for now_s in (opened_at_s..opened_at_s + days * DAY_S).step_by(60) {
            if sorted_ago_s(now_s, sorted_at_s, opened_at_s, &options(phase)) >= DAY_S {
                sorted_at_s = now_s;
                all.push(now_s);
            }
        }
        all
    }

    #[test]
    fn each_store_sorts_once_an_interval_and_replicas_at_different_times() {
        const START_S: u64 = 1_700_000_000;
        let replicas = [0.1, 0.4, 0.8].map(|phase| sorts(phase, START_S, 30));
        for sorts in &replicas {
            assert!((29..=30).contains(&sorts.len()), "{}", sorts.len());
            assert!(sorts.windows(2).all(|pair| pair[1] - pair[0] == DAY_S));
            assert!(sorts[0] > START_S, "not all at once when they start");
        }
        let [a, b, c] = replicas.map(|sorts| sorts[1] % DAY_S);
        for (one, other) in [(a, b), (b, c), (a, c)] {
            assert!(one.abs_diff(other) > DAY_S / 5, "{one} and {other}");
        }
    }

    #[test]
    fn a_sort_that_is_late_does_not_move_the_next_one() {
        let at_s = 1_700_000_000;
        let due_s = sorts(0.5, at_s, 2)[0];
        let late_s = due_s + 5 * 3600;
        let next_s = due_s + DAY_S;
        assert!(sorted_ago_s(next_s - 60, late_s, at_s, &options(0.5)) < DAY_S);
        assert!(sorted_ago_s(next_s, late_s, at_s, &options(0.5)) >= DAY_S);
        let never = GcOptions::default();
        assert_eq!(sorted_ago_s(at_s, at_s - 7, at_s, &never), 7, "without a schedule");
    }
}
