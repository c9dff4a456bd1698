//! Operations of the last seconds, in buckets of one second.

use super::fit::{Pooled, Sums, fit};
use stele_types::{DeviceSpeed, OpCost};

const NANOS_OF_SECOND: u64 = 1_000_000_000;
const WINDOW_SECONDS: u64 = 10;
/// Newest seconds of which all operations count: the one that runs, and the one before.
const RECENT_SECONDS: u64 = 2;
const OPERATIONS_MIN: u64 = DeviceSpeed::OPERATIONS_MIN;
/// Slots of a histogram: four for each power of two, up to 18 minutes.
const SLOTS: usize = 160;

/// Part of the sums of earlier operations that is left after a second: their half-life is 44 seconds.
const KEPT_AFTER_SECOND: f64 = 1.0 - 1.0 / 64.0;

/// Operations that ended within the last seconds, and decayed sums of all seconds before this one.
#[derive(Debug)]
pub(super) struct Window {
    buckets: [Bucket; WINDOW_SECONDS as usize],
    decayed: Pooled,
    /// Newest second with an operation; it is not in `decayed` yet.
    second: u64,
}

#[derive(Debug)]
struct Bucket {
    second: u64,
    sums: Sums,
    /// Bytes and nanoseconds of the slowest one.
    slowest: (u64, u64),
    histogram: [u32; SLOTS],
}

impl Default for Bucket {
    fn default() -> Self {
        Self { second: 0, sums: Sums::default(), slowest: (0, 0), histogram: [0; SLOTS] }
    }
}

impl Default for Window {
    fn default() -> Self {
        let buckets = std::array::from_fn(|_| Bucket::default());
        Self { buckets, decayed: Pooled::default(), second: 0 }
    }
}

impl Window {
    pub(super) fn note(&mut self, end_nanos: u64, bytes: u64, nanos: u64) {
        let second = end_nanos / NANOS_OF_SECOND;
        self.begin(second);
        let Some(bucket) = self.buckets.get_mut((second % WINDOW_SECONDS) as usize) else { return };
        if bucket.second > second {
            return;
        }
        if bucket.second < second {
            *bucket = Bucket { second, ..Bucket::default() };
        }
        let operation = Sums::of(bytes, nanos);
        bucket.sums.add(&operation);
        if nanos >= bucket.slowest.1 {
            bucket.slowest = (bytes, nanos);
        }
        if let Some(slot) = bucket.histogram.get_mut(slot_of(nanos)) {
            *slot = slot.saturating_add(1);
        }
    }

    /// Adds the newest second to the decayed sums if this one comes after it.
    fn begin(&mut self, second: u64) {
        let Some(elapsed) = second.checked_sub(self.second).filter(|elapsed| *elapsed > 0) else {
            return;
        };
        let bucket = self.buckets.get((self.second % WINDOW_SECONDS) as usize);
        if let Some(ended) = bucket.filter(|bucket| bucket.second == self.second) {
            self.decayed.add(&Pooled::of(&ended.sums));
        }
        self.decayed = self.decayed.times(KEPT_AFTER_SECOND.powf(elapsed as f64));
        self.second = second;
    }

    /// Returns the cost of an operation and the number of operations it was measured with; the prior
    /// and 0 if they are too few.
    pub(super) fn cost(&self, now_nanos: u64, prior: OpCost) -> (OpCost, u64) {
        let (counted, count) = self.newest(now_nanos);
        if count < OPERATIONS_MIN {
            return (prior, 0);
        }
        // Invariant: what a byte costs beside an operation is learned over minutes. The few writes of two
        // seconds differ more by chance than by their sizes.
        let known = fit(&self.decayed, prior);
        // bug vfs.cost_of_bytes_from_two_seconds: let known = prior;
        (fit(&counted, known), count)
    }

    /// Returns the newest operations without the slowest one, and their number with it. One slow
    /// operation is an exception; a slow device has more of them.
    ///
    /// Invariant: what a device did before hides nothing of what it does now. All operations of the
    /// newest seconds count, and earlier ones only as far as those are too few.
    fn newest(&self, now_nanos: u64) -> (Pooled, u64) {
        let recent = |age| age < RECENT_SECONDS;
        let slowest = self.last(now_nanos).filter(|(age, _)| recent(*age));
        let slowest = slowest.max_by_key(|(_, bucket)| bucket.slowest.1).map(|(age, _)| age);
        // bug vfs.one_slow_write_is_a_slow_device: let slowest = None;
        let (mut pooled, mut count) = (Pooled::default(), 0);
        for (age, bucket) in self.last(now_nanos) {
            let mut sums = bucket.sums;
            if slowest == Some(age) {
                sums.remove(&Sums::of(bucket.slowest.0, bucket.slowest.1));
            }
            let counts_in_full = recent(age);
            // bug vfs.past_speed_counts_in_full: let counts_in_full = true;
            let lacking = OPERATIONS_MIN.saturating_sub(count);
            let counted = if counts_in_full { bucket.sums.count } else { lacking };
            pooled.add(&Pooled::of(&sums).share(counted));
            count += bucket.sums.count.min(counted);
        }
        (pooled, count)
    }

    /// Returns the seconds of the window that have operations with their ages, newest first.
    fn last(&self, now_nanos: u64) -> impl Iterator<Item = (u64, &Bucket)> {
        let second = now_nanos / NANOS_OF_SECOND;
        (0..WINDOW_SECONDS).filter_map(move |age| {
            let at = second.checked_sub(age)?;
            let bucket = self.buckets.get((at % WINDOW_SECONDS) as usize)?;
            (bucket.second == at && bucket.sums.count > 0).then_some((age, bucket))
        })
    }

    /// Returns the 99th percentile of the durations in the window, rounded up by at most a
    /// quarter; 0 without operations.
    pub(super) fn p99_nanos(&self, now_nanos: u64) -> u64 {
        let count: u64 = self.last(now_nanos).map(|(_, bucket)| bucket.sums.count).sum();
        let mut above = count - (count * 99).div_ceil(100);
        for slot in (0..SLOTS).rev() {
            let of = |(_, bucket): (u64, &Bucket)| bucket.histogram.get(slot).copied();
            let in_slot: u64 = self.last(now_nanos).filter_map(of).map(u64::from).sum();
            if in_slot > above {
                let slowest = self.last(now_nanos).map(|(_, bucket)| bucket.slowest.1).max();
                return end_of(slot).min(slowest.unwrap_or_default());
            }
            above -= in_slot;
        }
        0
    }
}

fn slot_of(nanos: u64) -> usize {
    let nanos = nanos.max(4);
    let power = nanos.ilog2();
    let quarter = (nanos >> (power - 2)) & 3;
    (power as usize * 4 + quarter as usize).min(SLOTS - 1)
}

fn end_of(slot: usize) -> u64 {
    let (power, quarter) = (slot / 4, slot as u64 % 4);
    (((5 + quarter) << power) >> 2).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const PRIOR: OpCost = OpCost { fixed_nanos: 77, picos_per_byte: 0 };

    /// Adds `count` operations of 4 KiB that end within a second.
    fn add(window: &mut Window, second: u64, count: u64, nanos: u64) {
        (0..count).for_each(|n| window.note(second * NANOS_OF_SECOND + n * 1000, 4096, nanos));
    }

    fn fixed(window: &Window, second: u64) -> (u64, u64) {
        let (cost, count) = window.cost(second * NANOS_OF_SECOND, PRIOR);
        (cost.fixed_nanos, count)
    }

    #[test]
    fn too_few_operations_leave_the_prior_and_old_ones_count_no_longer() {
        let mut window = Window::default();
        assert_eq!(fixed(&window, 5), (77, 0));
        add(&mut window, 5, 7, MS);
        assert_eq!(fixed(&window, 5), (77, 0));
        add(&mut window, 6, 1, MS);
        assert_eq!(fixed(&window, 6), (MS, 8));
        assert_eq!(fixed(&window, 14), (MS, 8), "filled up from earlier seconds");
        assert_eq!(fixed(&window, 15), (77, 0), "the first seven have left the window");
    }

    #[test]
    fn a_device_that_becomes_slow_shows_within_two_seconds_and_so_does_its_recovery() {
        let mut window = Window::default();
        (0..10).for_each(|second| add(&mut window, second, 1000, MS));
        assert_eq!(fixed(&window, 9), (MS, 2000));
        (10..12).for_each(|second| add(&mut window, second, 100, 10 * MS));
        assert_eq!(fixed(&window, 11), (10 * MS, 200));
        // So slow that few operations end.
        add(&mut window, 13, 3, 300 * MS);
        assert!(fixed(&window, 14).0 > 80 * MS, "{:?}", fixed(&window, 14));
        (15..17).for_each(|second| add(&mut window, second, 1000, MS));
        assert_eq!(fixed(&window, 16), (MS, 2000));
    }

    #[test]
    fn one_slow_operation_is_an_exception_and_two_are_not() {
        let mut window = Window::default();
        add(&mut window, 3, 9, MS);
        add(&mut window, 3, 1, 500 * MS);
        assert_eq!(fixed(&window, 3), (MS, 10));
        add(&mut window, 4, 1, 500 * MS);
        assert!(fixed(&window, 4).0 > 50 * MS);
    }

    /// Writes of a device that moves 10 MB a second in slices of 100 ms, as a throttled volume does:
    /// large batches, and times that differ by up to a slice.
    #[test]
    fn large_writes_of_a_throttled_device_show_what_a_small_one_takes() {
        let prior = OpCost { fixed_nanos: 3_000_000, picos_per_byte: 300 };
        for seed in 0..20 {
            let mut prng = stele_types::Prng::new(seed);
            let (mut window, mut now_nanos) = (Window::default(), 0);
            let mut seen = Vec::new();
            while now_nanos < 60 * NANOS_OF_SECOND {
                let bytes = 100_000 + prng.below(400_000);
                let nanos = bytes * 100 + prng.below(30 * MS);
                now_nanos += nanos;
                window.note(now_nanos, bytes, nanos);
                seen.push((now_nanos, window.cost(now_nanos, prior).0.nanos(16 << 10)));
            }
            let late: Vec<_> = seen.iter().filter(|(at, _)| *at > 20 * NANOS_OF_SECOND).collect();
            for (at, nanos) in late {
                assert!((5 * MS..26 * MS).contains(nanos), "seed {seed}: {nanos} ns at {at} ns");
            }
        }
    }

    /// A device that becomes eight times slower under group commit: its batches grow with the time that
    /// each write takes.
    #[test]
    fn batches_that_grow_on_a_device_that_became_slow_show_no_cost_of_bytes() {
        let prior = OpCost { fixed_nanos: 2_000, picos_per_byte: 300 };
        for seed in 0..20 {
            let mut prng = stele_types::Prng::new(seed);
            let (mut window, mut now_nanos) = (Window::default(), 0);
            while now_nanos < 40 * NANOS_OF_SECOND {
                // First as its probe found it. Once slow, all clients wait for each write: equal batches.
                let (bytes_min, bytes_range, fixed) = match now_nanos / (NANOS_OF_SECOND / 2) {
                    0..3 => (20, 200, MS / 50),
                    3..61 => (900, 9_000, 3 * MS),
                    _ => (35_000, 10_000, 24 * MS),
                };
                let nanos = fixed + prng.below(fixed / 4);
                now_nanos += nanos;
                window.note(now_nanos, bytes_min + prng.below(bytes_range), nanos);
                let nanos = window.cost(now_nanos, prior).0.nanos(16 << 10);
                if now_nanos > 33 * NANOS_OF_SECOND {
                    assert!((20 * MS..30 * MS).contains(&nanos), "seed {seed}: {nanos} ns");
                }
            }
        }
    }

    #[test]
    fn the_99th_percentile_is_of_the_window() {
        let mut window = Window::default();
        assert_eq!(window.p99_nanos(0), 0);
        add(&mut window, 1, 1, 7 * MS);
        assert_eq!(window.p99_nanos(NANOS_OF_SECOND), 7 * MS);
        add(&mut window, 1, 98, MS);
        add(&mut window, 2, 1, 9 * MS);
        let p99 = window.p99_nanos(2 * NANOS_OF_SECOND);
        assert!((7 * MS..9 * MS).contains(&p99), "{p99}");
        assert_eq!(window.p99_nanos(11 * NANOS_OF_SECOND), 9 * MS, "the others have left");
        assert_eq!(window.p99_nanos(12 * NANOS_OF_SECOND), 0);
    }

    #[test]
    fn a_slot_ends_less_than_a_quarter_above_its_start() {
        for nanos in [4, 5, 100, 1023, 1024, 1025, 123_456_789, 1 << 39] {
            let end = end_of(slot_of(nanos));
            assert!((nanos..nanos + nanos / 4 + 1).contains(&end), "{nanos}: {end}");
        }
        assert_eq!((slot_of(0), slot_of(u64::MAX)), (8, SLOTS - 1));
    }
}
