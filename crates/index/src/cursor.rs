//! A position in one sorted source, and the entries that sorted sources return.

use bytes::Bytes;
use stele_types::{Locator, Result, ValueRef};

/// A position in a sorted source with unique keys. A new cursor is not valid until it is
/// positioned; an error makes it invalid. Moving a cursor that is not valid does nothing.
pub trait Cursor {
    /// Returns whether the cursor is at an entry. Invariant: `found` is called only then.
    fn valid(&self) -> bool;
    /// Returns the current key; empty when not valid.
    fn key(&self) -> &[u8];
    /// Returns the first eight bytes of the current key as a big-endian number, zero padded. Of two
    /// keys with different numbers, the one with the lower number is lower.
    fn prefix(&self) -> u64 {
        prefix_of(self.key())
    }
    /// Returns the source's entry for the current key.
    fn found(&self) -> Result<Found>;
    /// Returns the current value and its expiry in Unix seconds (0 for none), without a copy;
    /// `None` for a deleted key or an invalid cursor.
    fn value(&self) -> Option<(ValueSlice<'_>, u64)>;
    /// Returns whether there is no value.
    fn is_deleted(&self) -> bool {
        self.value().is_none()
    }
    /// Moves to the next key.
    fn next(&mut self) -> Result<()>;
    /// Moves to the previous key.
    fn prev(&mut self) -> Result<()>;
    /// Moves to the first key at or above `key`.
    fn seek(&mut self, key: &[u8]) -> Result<()>;
    /// Moves to the last key below `bound`; `None` for the last key of the source.
    fn seek_before(&mut self, bound: Option<&[u8]>) -> Result<()>;
}

#[inline]
pub(crate) fn prefix_of(key: &[u8]) -> u64 {
    if let Some(first) = key.first_chunk::<8>() {
        return u64::from_be_bytes(*first);
    }
    let mut padded = [0; 8];
    padded.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
    u64::from_be_bytes(padded)
}

/// Entry of a memtable or a run for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The key has a value.
    Value {
        /// The value or its location. Inline bytes may be a slice of a whole key block: copy them
        /// before keeping them for long.
        value: ValueRef,
        /// Expiry in Unix seconds; 0 for none.
        expires_at_s: u64,
    },
    /// The key is deleted; older sources do not count.
    Deleted,
}

/// Result of a lookup that must not wait for the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The newest entry of the key, if any.
    Known(Option<Found>),
    /// A block must be read from the device.
    NeedsIo,
}

/// A value or its location, borrowed from a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueSlice<'a> {
    /// The value.
    Inline(&'a [u8]),
    /// The value lies in a value file.
    At(Locator),
}

impl<'a> From<&'a ValueRef> for ValueSlice<'a> {
    fn from(value: &'a ValueRef) -> Self {
        match value {
            ValueRef::Inline(bytes) => Self::Inline(bytes),
            ValueRef::At(locator) => Self::At(*locator),
        }
    }
}

impl ValueSlice<'_> {
    /// Returns the value's length in bytes.
    pub fn len(&self) -> u32 {
        match self {
            Self::Inline(value) => value.len() as u32,
            Self::At(locator) => locator.length,
        }
    }

    /// Returns whether the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns an owned value; inline bytes are copied.
    pub fn to_owned(&self) -> ValueRef {
        match self {
            Self::Inline(value) => ValueRef::Inline(Bytes::copy_from_slice(value)),
            Self::At(locator) => ValueRef::At(*locator),
        }
    }
}
