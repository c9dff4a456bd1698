//! Moving values while keys are merged.

use stele_types::{Locator, Result};

/// A value that is going to move: its key and its place.
pub type Leaving<'a> = (&'a [u8], Locator);

/// Decides, for each surviving value in key order, whether it moves, and writes it where it goes.
pub trait ValueMover: Send {
    /// Whether the value at `at` moves, if it can be read. Asked before it is placed.
    fn moves(&self, key: &[u8], at: &Locator) -> bool;
    /// Told of values that move, all of them in key order, before the first of them is placed: they
    /// may be read together.
    fn read_ahead(&mut self, leaving: &[Leaving<'_>]) {
        let _ = leaving;
    }
    /// Reads about `bytes_max` for the values it was told of and returns the bytes; 0 once all are
    /// read. Called until then, before the first of them is placed.
    fn read_on(&mut self, bytes_max: u64) -> u64 {
        let _ = bytes_max;
        0
    }
    /// Writes the value at `at` to its new place and returns that, or `None` for a value that stays.
    fn place(&mut self, key: &[u8], at: &Locator, expires_at_s: u64) -> Result<Option<Locator>>;
    /// Called before an output run is finished: every place returned so far must be durable on
    /// return, because the run that refers to it is about to be.
    fn cut(&mut self) -> Result<()>;
    /// Bytes of values written so far, for pacing.
    fn bytes(&self) -> u64;
}
