//! A position in one sorted source.

use crate::slot::{Found, ValueSlice};
use stele_types::Result;

/// A position in a sorted source whose keys are unique. A fresh cursor is not valid until it is
/// placed; after an error it is not valid either. Moving a cursor that is not valid does nothing.
pub trait Cursor {
    /// Whether the cursor stands on an entry. Only then may `key` and `found` be asked.
    fn valid(&self) -> bool;
    /// The key stood on; empty when not valid.
    fn key(&self) -> &[u8];
    /// The first eight bytes of the key stood on as a number, big-endian, zeros beyond its end. Of
    /// two keys with unlike numbers the one with the lower number is the lower one.
    fn prefix(&self) -> u64 {
        prefix_of(self.key())
    }
    /// What the source holds for the key stood on.
    fn found(&self) -> Result<Found>;
    /// The value of the key stood on and the Unix second of its end (0 for none), without a copy;
    /// `None` when the key was deleted, or the cursor is not valid.
    fn value(&self) -> Option<(ValueSlice<'_>, u64)>;
    /// Whether there is no value.
    fn is_deleted(&self) -> bool {
        self.value().is_none()
    }
    /// Moves to the following key.
    fn next(&mut self) -> Result<()>;
    /// Moves to the preceding key.
    fn prev(&mut self) -> Result<()>;
    /// Moves to the first key at or above `key`.
    fn seek(&mut self, key: &[u8]) -> Result<()>;
    /// Moves to the last key below `bound`; `None`: to the very last key.
    fn seek_before(&mut self, bound: Option<&[u8]>) -> Result<()>;
}

/// See [`Cursor::prefix`].
#[inline]
pub(crate) fn prefix_of(key: &[u8]) -> u64 {
    if let Some(first) = key.first_chunk::<8>() {
        return u64::from_be_bytes(*first);
    }
    let mut padded = [0; 8];
    padded.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
    u64::from_be_bytes(padded)
}
