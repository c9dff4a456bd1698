//! Speed classes of stores (ALOR section 3.1: leaders go to the store with the best performance).

pub(crate) mod record;
pub mod state;

pub use state::{SpeedState, Window};

/// Class of a store's speed: twice the binary logarithm of its operations a second, rounded down.
/// Two neighbouring classes are a factor √2 apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpeedClass(pub u8);

impl SpeedClass {
    /// Returns the class of `per_second` operations a second; 0 counts as 1.
    pub fn of(per_second: u64) -> Self {
        let per_second = u128::from(per_second.max(1));
        let whole = per_second.ilog2();
        // The upper half of an octave begins at 2^whole × √2.
        let is_upper = per_second * per_second >= 1 << (2 * whole + 1);
        Self((2 * whole + u32::from(is_upper)) as u8)
    }

    /// Returns the lower bound of the class in operations a second.
    pub fn per_second(self) -> u64 {
        let whole = 1_u64 << (self.0 / 2).min(63);
        match self.0 % 2 {
            0 => whole,
            // √2 as a fraction; at least the next whole number, which belongs to this class.
            _ => (u128::from(whole) * 14_142_136 / 10_000_000).max(1) as u64,
        }
    }
}

#[cfg(test)]
mod tests;
