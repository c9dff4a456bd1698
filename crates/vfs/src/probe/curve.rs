//! Curve from what a probe measured to the puts a second that a store makes of it (ALOR figure 10).

use stele_types::OpCost;

/// Fraction bits of the curve's numbers.
const FRACTION: u32 = 16;

/// A polynomial of degree two between logarithms of base 2: of the synced writes a second that a
/// probe promises, and of the puts a second that a store reaches, one after the other and both of the
/// size at which it was fitted. All numbers have 16 fraction bits.
///
/// Logarithms, because devices differ by factors of a thousand and errors count relatively.
/// `lab calibrate` prints the numbers of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Curve {
    /// Constant, linear and quadratic coefficient.
    pub coefficients: [i64; 3],
    /// Lowest and highest logarithm that the fit covers.
    pub range: [i64; 2],
}

impl Curve {
    /// Fit to two rounds over twelve emulated devices, from 81 to 5,390 synced writes of 16 KiB a
    /// second, by `lab calibrate` in memory; standard deviation 4 %. It expects 75 and 3,390
    /// puts a second at these ends.
    pub const DEFAULT: Self =
        Self { coefficients: [-92_869, 88_938, -1_568], range: [415_562, 812_382] };

    /// Returns the logarithm of the puts a second for the logarithm of the writes a second.
    ///
    /// Outside of the range of the fit, the distance between the two stays that of its end: a
    /// polynomial has no meaning there.
    pub fn log2_puts(&self, log2_writes: i64) -> i64 {
        let [low, high] = self.range;
        let x = i128::from(log2_writes.clamp(low, high.max(low)));
        let [constant, linear, quadratic] = self.coefficients.map(i128::from);
        let times = |left: i128, right: i128| (left * right) >> FRACTION;
        let y = constant + times(linear, x) + times(quadratic, times(x, x));
        let distance = i64::try_from(y - x).unwrap_or_default();
        log2_writes.saturating_add(distance)
    }

    /// Returns the expected cost of a store's synced write on a device with this cost: in the same
    /// proportion of its parts, and as fast for writes of `op_bytes` as the curve says.
    pub fn expected(&self, device: OpCost, op_bytes: u64) -> OpCost {
        let Some(writes) = device.per_second(op_bytes) else { return device };
        let puts = exp2(self.log2_puts(log2(writes))).max(1);
        let scaled = |part: u64| {
            let part = u128::from(part) * u128::from(writes) / u128::from(puts);
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        OpCost {
            fixed_nanos: scaled(device.fixed_nanos),
            picos_per_byte: scaled(device.picos_per_byte),
        }
    }
}

/// Returns the logarithm of base 2 with 16 fraction bits; 0 for 0.
pub(super) fn log2(number: u64) -> i64 {
    let Some(whole) = number.checked_ilog2() else { return 0 };
    // The mantissa in [1, 2) with 63 fraction bits; each squaring yields one bit of the logarithm.
    let mut mantissa = u128::from(number) << (63 - whole);
    let mut log = i64::from(whole);
    for _ in 0..FRACTION {
        mantissa = (mantissa * mantissa) >> 63;
        let bit = mantissa >> 64;
        mantissa >>= bit;
        log = (log << 1) | i64::try_from(bit).unwrap_or_default();
    }
    log
}

/// Returns the largest number of which the logarithm is at most `log`; 1 if there is none.
pub(super) fn exp2(log: i64) -> u64 {
    let (mut low, mut high) = (1, u64::MAX);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if log2(middle) <= log {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}
