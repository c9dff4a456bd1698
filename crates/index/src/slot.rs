//! Entries as sorted sources return them.

use bytes::Bytes;
use stele_types::{Locator, ValueRef};

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
