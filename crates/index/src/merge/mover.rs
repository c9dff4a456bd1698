//! Interface for moving values during a merge of keys.

use stele_types::{Locator, Result};

/// A value that will move: its key and its present location.
pub type MovingValue<'a> = (&'a [u8], Locator);

/// Decides for each value that the merge keeps, in key order, whether it moves, and writes it to
/// its new location.
pub trait ValueMover: Send {
    /// Returns whether the value at `at` moves, provided it can be read. Called before it is
    /// placed.
    fn moves(&self, key: &[u8], at: &Locator) -> bool;
    /// Announces values that move, all of them in key order, before the first is placed: they may
    /// be read together.
    fn read_ahead(&mut self, moving: &[MovingValue<'_>]) {
        let _ = moving;
    }
    /// Reads about `bytes_max` bytes of the announced values and returns the bytes; 0 once all are
    /// read. Called until then, before the first is placed.
    fn continue_read_ahead(&mut self, bytes_max: u64) -> u64 {
        let _ = bytes_max;
        0
    }
    /// Writes the value at `at` to its new location and returns that; `None` for a value that
    /// stays.
    fn place(&mut self, key: &[u8], at: &Locator, expires_at_s: u64) -> Result<Option<Locator>>;
    /// Makes every location returned so far durable. Called before an output run is finished,
    /// because that run will reference them.
    fn cut(&mut self) -> Result<()>;
    /// Returns the bytes of values written so far, for pacing.
    fn bytes(&self) -> u64;
}
