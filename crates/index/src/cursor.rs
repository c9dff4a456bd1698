//! A position in one sorted source.

use crate::slot::Found;
use stele_types::Result;

/// A position in a sorted source whose keys are unique. A fresh cursor is not valid until it is
/// placed; after an error it is not valid either. Moving a cursor that is not valid does nothing.
pub trait Cursor {
    /// Whether the cursor stands on an entry. Only then may `key` and `found` be asked.
    fn valid(&self) -> bool;
    /// The key stood on; empty when not valid.
    fn key(&self) -> &[u8];
    /// What the source holds for the key stood on.
    fn found(&self) -> Result<Found>;
    /// Moves to the following key.
    fn next(&mut self) -> Result<()>;
    /// Moves to the preceding key.
    fn prev(&mut self) -> Result<()>;
    /// Moves to the first key at or above `key`.
    fn seek(&mut self, key: &[u8]) -> Result<()>;
    /// Moves to the last key below `bound`; `None`: to the very last key.
    fn seek_before(&mut self, bound: Option<&[u8]>) -> Result<()>;
}
