//! Cost of an operation by its size, from sums over operations.

use stele_types::OpCost;

/// Sums over operations of their bytes and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub count: u64,
    pub bytes: u128,
    pub nanos: u128,
    pub bytes_squared: u128,
    pub bytes_nanos: u128,
    pub nanos_squared: u128,
}

impl Sums {
    pub(super) fn of(bytes: u64, nanos: u64) -> Self {
        let (bytes, nanos) = (u128::from(bytes), u128::from(nanos));
        Self {
            count: 1,
            bytes,
            nanos,
            bytes_squared: bytes * bytes,
            bytes_nanos: bytes * nanos,
            nanos_squared: nanos * nanos,
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.nanos += other.nanos;
        self.bytes_squared += other.bytes_squared;
        self.bytes_nanos += other.bytes_nanos;
        self.nanos_squared = self.nanos_squared.saturating_add(other.nanos_squared);
    }

    pub(super) fn remove(&mut self, other: &Self) {
        self.count = self.count.saturating_sub(other.count);
        self.bytes = self.bytes.saturating_sub(other.bytes);
        self.nanos = self.nanos.saturating_sub(other.nanos);
        self.bytes_squared = self.bytes_squared.saturating_sub(other.bytes_squared);
        self.bytes_nanos = self.bytes_nanos.saturating_sub(other.bytes_nanos);
        self.nanos_squared = self.nanos_squared.saturating_sub(other.nanos_squared);
    }
}

/// Operations of one second or more, as a fit needs them: what varies within each second counts, and
/// what changed from one second to another does not.
///
/// Invariant: a change of the device is no cost of bytes. A device that becomes slow also gets larger
/// batches; a line through operations before and after would call it fast for small ones. In the
/// second of the change itself the times vary most, so that it counts least.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Pooled {
    count: f64,
    bytes: f64,
    nanos: f64,
    /// Degrees of freedom: operations, without the first one of each second.
    free: f64,
    /// Sums of the squares and products of the differences from the means of each second, divided by
    /// the variance of its times.
    bytes_squared: f64,
    bytes_nanos: f64,
    nanos_squared: f64,
}

impl Pooled {
    /// Returns the operations of one second. Without sizes that differ they say nothing of bytes.
    pub(super) fn of(sums: &Sums) -> Self {
        if sums.count == 0 {
            return Self::default();
        }
        let (count, bytes, nanos) = (sums.count as f64, sums.bytes as f64, sums.nanos as f64);
        let means = Self { count, bytes, nanos, ..Self::default() };
        let bytes_squared = sums.bytes_squared as f64 - bytes * bytes / count;
        let nanos_squared = sums.nanos_squared as f64 - nanos * nanos / count;
        let is_spread = count * bytes_squared * SPREAD > bytes * bytes;
        if !is_spread || count < OPERATIONS_OF_SECOND_MIN {
            return means;
        }
        let noise_min = nanos * nanos / count * NOISE_MIN * NOISE_MIN;
        let weight = count / nanos_squared.max(noise_min);
        // bug vfs.change_is_a_cost_of_bytes: let weight = 1.0;
        Self {
            free: count - 1.0,
            bytes_squared: bytes_squared * weight,
            bytes_nanos: (sums.bytes_nanos as f64 - bytes * nanos / count) * weight,
            nanos_squared: nanos_squared * weight,
            ..means
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.nanos += other.nanos;
        self.free += other.free;
        self.bytes_squared += other.bytes_squared;
        self.bytes_nanos += other.bytes_nanos;
        self.nanos_squared += other.nanos_squared;
    }

    /// Returns at most `count` operations that are the average of these.
    pub(super) fn share(&self, count: u64) -> Self {
        match self.count > count as f64 {
            true => self.times(count as f64 / self.count),
            false => *self,
        }
    }

    pub(super) fn times(&self, part: f64) -> Self {
        Self {
            count: self.count * part,
            bytes: self.bytes * part,
            nanos: self.nanos * part,
            free: self.free * part,
            bytes_squared: self.bytes_squared * part,
            bytes_nanos: self.bytes_nanos * part,
            nanos_squared: self.nanos_squared * part,
        }
    }
}

/// Fits t = a + b · x by least squares, with a ≥ 0 and b ≥ 0. Where the operations do not show what a
/// byte costs, the device is as much slower or faster than `prior` for each byte as on average. The
/// prior again if there is no operation.
pub(super) fn fit(pooled: &Pooled, prior: OpCost) -> OpCost {
    if pooled.count <= 0.0 {
        return prior;
    }
    let known = prior.picos_per_byte as f64 / PICOS;
    let expected = pooled.count * prior.fixed_nanos as f64 + known * pooled.bytes;
    let prior_slope = known * pooled.nanos / expected.max(1.0);
    // bug vfs.byte_of_the_probe_stays: let prior_slope = known;
    let slope = shown_slope(pooled, prior_slope).unwrap_or(prior_slope);
    through_mean(pooled, slope)
}

/// Returns the nanoseconds that a byte costs if the operations show that they are not `known`.
///
/// Invariant: noise does not count as a cost of bytes. Small writes of different times would otherwise
/// make a device look tens of times slower for large ones.
fn shown_slope(pooled: &Pooled, known: f64) -> Option<f64> {
    if pooled.bytes_squared <= 0.0 {
        return None;
    }
    let slope = pooled.bytes_nanos / pooled.bytes_squared;
    let noise = (pooled.nanos_squared - slope * pooled.bytes_nanos).max(0.0);
    let deviations = if pooled.free < FEW { DEVIATIONS_OF_FEW } else { DEVIATIONS };
    let difference = (slope - known).powi(2) * pooled.bytes_squared * pooled.free;
    let is_shown = difference > noise * deviations.powi(2);
    // bug vfs.noise_is_a_cost_of_bytes: `is_shown` is `true`
    is_shown.then_some(slope)
}

/// Picoseconds in a nanosecond.
const PICOS: f64 = 1000.0;
/// Sizes show the cost of a byte if their standard deviation is above a quarter of their mean.
const SPREAD: f64 = 16.0;
/// Operations that a second needs: two or three that take equally long by chance would count most.
const OPERATIONS_OF_SECOND_MIN: f64 = 4.0;
/// Least standard deviation of a second's times that counts, as a part of their mean, for the same reason.
const NOISE_MIN: f64 = 0.125;
/// Standard deviations by which a cost of bytes must differ from the known one. Each report is a test
/// of its own, so that three would be exceeded by chance every few minutes.
const DEVIATIONS: f64 = 6.0;
/// The same for few operations, of which the deviation itself is uncertain.
const DEVIATIONS_OF_FEW: f64 = 12.0;
const FEW: f64 = 16.0;

/// Returns the line of this slope through the means. Invariant: neither part is negative, and the line
/// keeps the mean time: an operation without bytes takes no less than no time, and a byte too.
fn through_mean(pooled: &Pooled, nanos_per_byte: f64) -> OpCost {
    let steepest = if pooled.bytes > 0.0 { pooled.nanos / pooled.bytes } else { 0.0 };
    let slope = nanos_per_byte.clamp(0.0, steepest);
    let fixed = (pooled.nanos - slope * pooled.bytes) / pooled.count;
    // Numbers out of range become the nearest ones.
    OpCost { fixed_nanos: fixed.round() as u64, picos_per_byte: (slope * PICOS).round() as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRIOR: OpCost = OpCost { fixed_nanos: 7, picos_per_byte: 2_000 };

    fn of(operations: &[(u64, u64)]) -> OpCost {
        let mut sums = Sums::default();
        operations.iter().for_each(|&(bytes, nanos)| sums.add(&Sums::of(bytes, nanos)));
        fit(&Pooled::of(&sums), PRIOR)
    }

    fn cost(fixed_nanos: u64, picos_per_byte: u64) -> OpCost {
        OpCost { fixed_nanos, picos_per_byte }
    }

    #[test]
    fn a_cost_is_fitted_to_operations_of_different_sizes_and_never_negative() {
        type Row = (&'static str, &'static [(u64, u64)], OpCost);
        let table: &[Row] = &[
            ("none", &[], PRIOR),
            (
                "on a line",
                &[(4_096, 54_096), (8_192, 58_192), (16_384, 66_384), (65_536, 115_536)],
                cost(50_000, 1_000),
            ),
            ("too few", &[(1_000, 9_000), (9_000, 17_000)], cost(9, 2_598)),
            ("one size: as the prior, five times slower", &[(1_000, 10_035); 2], cost(35, 10_000)),
            ("one size: as the prior, four times faster", &[(1_000, 500); 8], cost(2, 498)),
            ("no bytes", &[(0, 500), (0, 700)], cost(600, 0)),
            (
                "longer is faster: no cost of a byte",
                &[(1_000, 900), (9_000, 100), (2_000, 800), (8_000, 200)],
                cost(500, 0),
            ),
            (
                "a steep line through no time",
                &[(1_000, 100), (9_000, 9_900), (2_000, 1_300), (8_000, 8_700)],
                cost(0, 1_000),
            ),
            ("at its limits", &[(u64::MAX, u64::MAX), (1, 1)], cost(0, 1_000)),
        ];
        for (name, operations, wanted) in table {
            assert_eq!(of(operations), *wanted, "{name}");
        }
    }

    #[test]
    fn small_writes_of_different_times_say_nothing_about_the_cost_of_bytes() {
        let mut prng = stele_types::Prng::new(7);
        let mut seconds = |bytes_max: u64, picos_per_byte: u64| {
            let mut one = || {
                let bytes = 64 + prng.below(bytes_max);
                (bytes, 100_000 + bytes * picos_per_byte / 1000 + prng.below(400_000))
            };
            let operations: Vec<_> = (0..200).map(|_| one()).collect();
            let mut sums = Sums::default();
            operations.iter().for_each(|&(bytes, nanos)| sums.add(&Sums::of(bytes, nanos)));
            fit(&Pooled::of(&sums), cost(300_000, 2_000)).nanos(16 << 10)
        };
        for _ in 0..50 {
            let nanos = seconds(400, 2_000);
            assert!((250_000..500_000).contains(&nanos), "{nanos} ns for 16 KiB");
            // Large writes show it.
            let nanos = seconds(64 << 10, 100_000);
            assert!((1_800_000..2_100_000).contains(&nanos), "{nanos} ns for 16 KiB");
        }
    }

    #[test]
    fn a_device_that_changed_since_its_probe_is_as_fast_for_large_writes_as_for_small_ones() {
        let prior = cost(100_000, 2_000);
        for times in [10, 1] {
            let small = Sums::of(100, (100_000 + 200) * times);
            let mut sums = Sums::default();
            (0..20).for_each(|_| sums.add(&small));
            let large = fit(&Pooled::of(&sums), prior).nanos(16 << 10);
            let wanted = prior.nanos(16 << 10) * times;
            assert!(large.abs_diff(wanted) <= wanted / 100, "{large} ns, not {wanted}");
            let slow = cost(prior.fixed_nanos * 30, prior.picos_per_byte * 30);
            assert!(fit(&Pooled::of(&sums), slow).nanos(16 << 10).abs_diff(wanted) <= wanted / 100);
        }
    }

    #[test]
    fn a_share_has_the_average_of_the_whole() {
        let mut sums = Sums::default();
        (0..1_000).for_each(|n| sums.add(&Sums::of(4_096 + n % 2 * 8_192, 100 + n % 2 * 200)));
        let pooled = Pooled::of(&sums);
        let share = pooled.share(8);
        assert_eq!((share.count, share.bytes, share.nanos), (8.0, 65_536.0, 1_600.0));
        assert_eq!(fit(&share, PRIOR), fit(&pooled, PRIOR));
        assert_eq!(pooled.share(1_000), pooled);
    }
}
