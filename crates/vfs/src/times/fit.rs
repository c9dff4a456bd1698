//! Cost of an operation by its size, from sums over operations.

use stele_types::{OpCost, mutant};

/// Sums over operations: of their number n, bytes x and nanoseconds t, as a least-squares fit needs
/// them.
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
    /// Returns the sums of one operation.
    pub fn of(bytes: u64, nanos: u64) -> Self {
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

    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.nanos += other.nanos;
        self.bytes_squared += other.bytes_squared;
        self.bytes_nanos += other.bytes_nanos;
        self.nanos_squared = self.nanos_squared.saturating_add(other.nanos_squared);
    }

    /// Takes out an operation that is in the sums.
    pub fn remove(&mut self, other: &Self) {
        self.count = self.count.saturating_sub(other.count);
        self.bytes = self.bytes.saturating_sub(other.bytes);
        self.nanos = self.nanos.saturating_sub(other.nanos);
        self.bytes_squared = self.bytes_squared.saturating_sub(other.bytes_squared);
        self.bytes_nanos = self.bytes_nanos.saturating_sub(other.bytes_nanos);
        self.nanos_squared = self.nanos_squared.saturating_sub(other.nanos_squared);
    }

    /// Takes a part of `1 / lost_part` out of the sums, `times` times.
    pub fn decay(&mut self, lost_part: u64, times: u64) {
        for _ in 0..times {
            if self.count == 0 {
                *self = Self::default();
                break;
            }
            // Rounded down, so that the sums end.
            *self = self.share(self.count - self.count.div_ceil(lost_part));
        }
    }

    /// Returns the sums of at most `count` operations that are the average of these.
    pub fn share(&self, count: u64) -> Self {
        if count >= self.count {
            return *self;
        }
        let part = |sum: u128| sum.saturating_mul(u128::from(count)) / u128::from(self.count);
        Self {
            count,
            bytes: part(self.bytes),
            nanos: part(self.nanos),
            bytes_squared: part(self.bytes_squared),
            bytes_nanos: part(self.bytes_nanos),
            nanos_squared: part(self.nanos_squared),
        }
    }
}

/// Fits t = a + b · x by least squares, with a ≥ 0 and b ≥ 0. Where the operations do not show what a
/// byte costs, the device is as much slower or faster than `prior` for each byte as on average. The
/// prior again if there is no operation.
pub(super) fn fit(sums: &Sums, prior: OpCost) -> OpCost {
    let count = i128::from(sums.count);
    let signed = |sum: u128| i128::try_from(sum).unwrap_or(i128::MAX);
    let (bytes, nanos) = (signed(sums.bytes), signed(sums.nanos));
    if count == 0 {
        return prior;
    }
    // n · Σx² − (Σx)² is n² times the variance of the sizes, and so on.
    let spread = count.saturating_mul(signed(sums.bytes_squared)) - bytes.saturating_mul(bytes);
    let is_spread = spread.saturating_mul(SPREAD) > bytes.saturating_mul(bytes);
    let known = i128::from(prior.picos_per_byte);
    let expected = count.saturating_mul(i128::from(prior.fixed_nanos)).saturating_mul(PICOS);
    let expected = expected.saturating_add(known.saturating_mul(bytes)).max(1);
    let prior_slope = match mutant::active("vfs.byte_of_the_probe_stays") {
        true => known,
        false => known.saturating_mul(nanos.saturating_mul(PICOS)) / expected,
    };
    if !is_spread {
        return through_mean(count, bytes, nanos, prior_slope);
    }
    let together = count.saturating_mul(signed(sums.bytes_nanos)) - bytes.saturating_mul(nanos);
    let slope = together.saturating_mul(PICOS) / spread.max(1);
    let times = count.saturating_mul(signed(sums.nanos_squared)) - nanos.saturating_mul(nanos);
    let noise = times.saturating_sub(slope.saturating_mul(together) / PICOS).max(0);
    let slope = match is_shown(slope - prior_slope, count, spread, noise) {
        true => slope,
        false => prior_slope,
    };
    through_mean(count, bytes, nanos, slope)
}

/// Returns whether operations show that a byte costs so many picoseconds more than was known.
/// `noise`: n² times the variance of the times that their sizes do not explain.
///
/// Invariant: noise does not count as a cost of bytes. Small writes of different times would otherwise
/// make a device look tens of times slower for large ones.
fn is_shown(picos: i128, count: i128, spread: i128, noise: i128) -> bool {
    let explained = picos.saturating_mul(picos).saturating_mul(spread).saturating_mul(count - 1);
    let deviations = if count < FEW { DEVIATIONS_OF_FEW } else { DEVIATIONS };
    let bound = noise.saturating_mul(PICOS * PICOS).saturating_mul(deviations * deviations);
    explained > bound || mutant::active("vfs.noise_is_a_cost_of_bytes")
}

/// Picoseconds in a nanosecond.
const PICOS: i128 = 1000;
/// Sizes show the cost of a byte if their standard deviation is above a quarter of their mean.
const SPREAD: i128 = 16;
/// Standard deviations by which a cost of bytes must differ from the known one. Each report is a test
/// of its own, so that three would be exceeded by chance every few minutes.
const DEVIATIONS: i128 = 6;
/// The same for few operations, of which the deviation itself is uncertain.
const DEVIATIONS_OF_FEW: i128 = 12;
const FEW: i128 = 16;

/// Returns the line of this slope through the means. Invariant: neither part is negative, and the line
/// keeps the mean time: an operation without bytes takes no less than no time, and a byte too.
fn through_mean(count: i128, bytes: i128, nanos: i128, picos_per_byte: i128) -> OpCost {
    let picos = nanos.saturating_mul(PICOS);
    let steepest = if bytes > 0 { picos / bytes } else { 0 };
    let slope = picos_per_byte.clamp(0, steepest);
    let fixed = (picos - slope.saturating_mul(bytes)) / count / PICOS;
    let unsigned = |number: i128| u64::try_from(number.max(0)).unwrap_or(u64::MAX);
    OpCost { fixed_nanos: unsigned(fixed), picos_per_byte: unsigned(slope) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRIOR: OpCost = OpCost { fixed_nanos: 7, picos_per_byte: 2_000 };

    fn of(operations: &[(u64, u64)]) -> OpCost {
        let mut sums = Sums::default();
        operations.iter().for_each(|&(bytes, nanos)| sums.add(&Sums::of(bytes, nanos)));
        fit(&sums, PRIOR)
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
                &[(4_096, 54_096), (8_192, 58_192), (65_536, 115_536)],
                cost(50_000, 1_000),
            ),
            ("one size: as the prior, five times slower", &[(1_000, 10_035); 2], cost(35, 10_000)),
            ("one size: as the prior, four times faster", &[(1_000, 500); 8], cost(2, 498)),
            ("no bytes", &[(0, 500), (0, 700)], cost(600, 0)),
            ("longer is faster: no cost of a byte", &[(1_000, 900), (9_000, 100)], cost(500, 0)),
            ("a steep line through no time", &[(1_000, 100), (9_000, 9_900)], cost(0, 1_000)),
            ("at its limits", &[(u64::MAX, u64::MAX), (1, 1)], cost(9_223_372_036_854_775, 999)),
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
            fit(&sums, cost(300_000, 2_000)).nanos(16 << 10)
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
            let large = fit(&sums, prior).nanos(16 << 10);
            let wanted = prior.nanos(16 << 10) * times;
            assert!(large.abs_diff(wanted) <= wanted / 100, "{large} ns, not {wanted}");
            let slow = cost(prior.fixed_nanos * 30, prior.picos_per_byte * 30);
            assert!(fit(&sums, slow).nanos(16 << 10).abs_diff(wanted) <= wanted / 100);
        }
    }

    #[test]
    fn a_share_has_the_average_of_the_whole() {
        let mut sums = Sums::default();
        (0..1_000).for_each(|n| sums.add(&Sums::of(4_096 + n % 2 * 8_192, 100 + n % 2 * 200)));
        let share = sums.share(8);
        assert_eq!((share.count, share.bytes, share.nanos), (8, 8 * 8_192, 8 * 200));
        assert_eq!(fit(&share, PRIOR), fit(&sums, PRIOR));
        assert_eq!(sums.share(1_000), sums);
    }
}
