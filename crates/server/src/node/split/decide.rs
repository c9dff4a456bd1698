//! Decision whether a region is split, as a pure function of its measurements, and the pause after
//! a refused split.

use std::collections::HashMap;
use std::time::Duration;
use stele_storage::RangeSize;
use stele_types::RegionId;

/// Divisor of the split size that gives the smallest part: a smaller part would be a region for
/// almost nothing, and the other part would still be too large.
const PART_DIVISOR: u64 = 4;
/// Factor by which the parts together may differ from the whole; beyond it the estimates are wrong.
const ESTIMATE_FACTOR_MAX: u64 = 2;
/// Pause after a refused split; doubles each time.
const PAUSE: Duration = Duration::from_secs(20);
const PAUSE_MAX: Duration = Duration::from_secs(1280);

/// Returns whether a region of that size must be split. A single key cannot be split.
pub(super) fn is_too_large(size: &RangeSize, bytes_max: u64) -> bool {
    size.keys >= 2 && size.bytes > bytes_max
}

/// Checks that each part justifies a region.
pub(super) fn check_parts(
    whole: &RangeSize,
    [left, right]: [&RangeSize; 2],
    bytes_max: u64,
) -> Result<(), String> {
    let parts = format!("{} bytes and {} bytes", left.bytes, right.bytes);
    let sum = left.bytes.saturating_add(right.bytes);
    let is_off = |a: u64, b: u64| a > b.saturating_mul(ESTIMATE_FACTOR_MAX);
    if is_off(sum, whole.bytes) || is_off(whole.bytes, sum) {
        return Err(format!("{parts} do not add up to {} bytes", whole.bytes));
    }
    if left.bytes.min(right.bytes) < bytes_max / PART_DIVISOR {
        return Err(format!("no key halves the region: the parts would hold {parts}"));
    }
    Ok(())
}

/// Version and size of a region when its split was refused.
#[derive(Clone, Copy, Debug)]
struct Refused {
    version: u64,
    bytes: u64,
    until: Duration,
    times: u32,
}

/// Refused splits. Times are relative to one arbitrary moment.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    of: HashMap<RegionId, Refused>,
}

impl Refusals {
    /// Returns whether a region with this range (`version`) and size may be split now. Another
    /// range, or twice the bytes, allows it at once.
    pub fn may_split(&self, id: RegionId, version: u64, bytes: u64, now: Duration) -> bool {
        self.of.get(&id).is_none_or(|refused| {
            refused.version != version || bytes / 2 >= refused.bytes.max(1) || now >= refused.until
        })
    }

    /// Records a refused split.
    pub fn record(&mut self, id: RegionId, version: u64, bytes: u64, now: Duration) {
        let before = self.of.get(&id).filter(|refused| refused.version == version);
        let times = before.map_or(0, |refused| refused.times + 1);
        let pause = PAUSE.saturating_mul(1 << times.min(16)).min(PAUSE_MAX);
        self.of.insert(id, Refused { version, bytes, until: now + pause, times });
    }

    /// Drops all regions but these.
    pub fn retain(&mut self, is_led: impl Fn(RegionId) -> bool) {
        self.of.retain(|id, _| is_led(*id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(bytes: u64, keys: u64) -> RangeSize {
        RangeSize { bytes, keys }
    }

    #[test]
    fn a_region_of_one_key_is_never_too_large() {
        assert!(!is_too_large(&size(1 << 40, 1), 1 << 20));
        assert!(is_too_large(&size((1 << 20) + 1, 2), 1 << 20));
        assert!(!is_too_large(&size(1 << 20, 2), 1 << 20));
    }

    #[test]
    fn both_parts_must_be_worth_a_region_and_add_up() {
        let check = |whole, left, right| {
            check_parts(&size(whole, 9), [&size(left, 4), &size(right, 5)], 1000)
        };
        assert!(check(1001, 400, 601).is_ok());
        assert!(check(1001, 250, 751).is_ok());
        assert!(check(1001, 249, 752).unwrap_err().contains("no key halves"));
        assert!(check(1001, 900, 0).is_err());
        assert!(check(8000, 1000, 1000).unwrap_err().contains("do not add up"));
        assert!(check(1001, 4000, 4000).is_err());
    }

    #[test]
    fn a_split_that_came_to_nothing_waits_longer_each_time() {
        let (id, seconds) = (RegionId(2), Duration::from_secs);
        let mut refusals = Refusals::default();
        let mut tried = Vec::new();
        for now in 0..400 {
            if refusals.may_split(id, 7, 1000, seconds(now)) {
                tried.push(now);
                refusals.record(id, 7, 1000, seconds(now));
            }
        }
        assert_eq!(tried, [0, 20, 60, 140, 300]);
        assert!(!refusals.may_split(id, 7, 1999, seconds(400)));
        assert!(refusals.may_split(id, 8, 1000, seconds(400)), "the range changed");
        assert!(refusals.may_split(id, 7, 2000, seconds(400)), "it has grown");
        refusals.retain(|_| false);
        assert!(refusals.may_split(id, 7, 1000, seconds(400)));
    }

    /// Splits as the sizes say, until no region is split.
    fn regions_of(values: &[u64], bytes_max: u64) -> Vec<Vec<u64>> {
        let sum = |values: &[u64]| size(values.iter().sum(), values.len() as u64);
        let mut open = vec![values.to_vec()];
        let mut done = Vec::new();
        while let Some(region) = open.pop() {
            let whole = sum(&region);
            let mut before = 0;
            let middle = region.iter().position(|value| {
                before += value;
                before * 2 >= whole.bytes
            });
            let (left, right) = region.split_at(middle.unwrap_or(0).max(1).min(region.len()));
            let parts = [&sum(left), &sum(right)];
            match is_too_large(&whole, bytes_max) && check_parts(&whole, parts, bytes_max).is_ok() {
                true => open.extend([left.to_vec(), right.to_vec()]),
                false => done.push(region),
            }
        }
        done
    }

    #[test]
    fn few_large_values_are_split_to_the_size_and_no_further() {
        let regions = regions_of(&[64 << 20; 40], 1 << 30);
        assert_eq!(regions.len(), 4, "2.5 GiB at 1 GiB");
        assert_eq!(regions_of(&[64 << 20; 3], 1 << 20).len(), 3, "one value each");
        assert_eq!(
            regions_of(&[64 << 20, 10], 1 << 20).len(),
            1,
            "10 bytes do not justify a region"
        );
        for region in regions_of(&[1000; 1000], 100_000) {
            assert!((25..=100).contains(&region.len()), "{}", region.len());
        }
    }
}
