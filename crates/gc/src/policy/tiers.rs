//! Selection of tiers to merge, so that reads probe few of them: tiered with a size ratio on top,
//! lazily leveled below (the oldest tier is the one large level).

use super::state::TierState;
use crate::GcOptions;
use std::cmp::Reverse;

/// Size ratio of a merge in an idle store. Up to four tiers may stay otherwise, and a scan of one
/// tier is twice as fast as one of four.
const IDLE_SIZE_RATIO: f64 = 8.0;

/// Returns the index of the newest tier to merge and the number of tiers; `None` while there are
/// few enough.
pub(super) fn due(tiers: &[TierState], options: &GcOptions) -> Option<(usize, usize)> {
    let surplus = tiers.len().checked_sub(options.tiers_max).filter(|&n| n > 0)?;
    let mut best: Option<(usize, usize)> = None;
    for first in 0..tiers.len() {
        let count = window(tiers, first, options.size_ratio);
        if count > surplus && best.is_none_or(|(_, longest)| count > longest) {
            best = Some((first, count));
        }
    }
    // No tiers are of similar size: the newest are the smallest, and merging them costs least.
    Some(best.unwrap_or((0, surplus + 1)))
}

/// Returns the tiers to merge as [`due`] does, but in an idle store: with wider windows, although
/// there are few tiers. Data that arrives in portions with idle times in between is rewritten up to
/// [`IDLE_SIZE_RATIO`] times more for each time that the store grows by that factor. The budget
/// limits this, except in a store that is nearly all index.
pub(super) fn due_when_idle(tiers: &[TierState]) -> Option<(usize, usize)> {
    let windows = (0..tiers.len()).map(|first| (first, window(tiers, first, IDLE_SIZE_RATIO)));
    windows.filter(|&(_, count)| count > 1).max_by_key(|&(first, count)| (count, Reverse(first)))
}

/// Returns how many tiers from `first` on are merged together: each is at most `size_ratio` times
/// as large as all newer ones of the window.
fn window(tiers: &[TierState], first: usize, size_ratio: f64) -> usize {
    let mut bytes = 0u64;
    let mut count = 0;
    for tier in tiers.iter().skip(first) {
        if count > 0 && tier.bytes as f64 > size_ratio * bytes as f64 {
            break;
        }
        bytes += tier.bytes;
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(sizes: &[u64], tiers_max: usize) -> Option<(usize, usize)> {
        due(&tiers(sizes), &GcOptions { tiers_max, ..GcOptions::default() })
    }

    fn tiers(sizes: &[u64]) -> Vec<TierState> {
        sizes.iter().map(|&bytes| TierState { bytes, ..TierState::default() }).collect()
    }

    #[test]
    fn merges_take_tiers_of_like_size_and_spare_the_large_level() {
        assert_eq!(merged(&[1, 1, 1], 3), None);
        assert_eq!(merged(&[1, 1, 1, 100], 3), Some((0, 3)));
        assert_eq!(merged(&[1, 8, 8, 8, 1000], 4), Some((1, 3)));
        assert_eq!(merged(&[1, 1, 2, 4, 8], 4), Some((0, 5)));
        assert_eq!(merged(&[1, 10, 100, 1000], 3), Some((0, 2)));
        assert_eq!(merged(&[1, 10, 100, 1000], 1), Some((0, 4)));
    }

    #[test]
    fn a_store_at_rest_merges_all_but_what_is_small_beside_the_next() {
        let merged = |sizes: &[u64]| due_when_idle(&tiers(sizes));
        assert_eq!(merged(&[]), None);
        assert_eq!(merged(&[5]), None);
        assert_eq!(merged(&[1, 9, 90]), None);
        assert_eq!(merged(&[9, 35, 249, 563]), Some((0, 4)));
        assert_eq!(merged(&[1, 10, 10, 20]), Some((1, 3)));
        assert_eq!(merged(&[4, 4, 100, 100]), Some((0, 2)));
    }
}
