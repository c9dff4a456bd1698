//! What a sorted source knows of a key.

use bytes::Bytes;
use stele_types::{Locator, ValueRef};

/// What a memtable or a run holds for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The key has a value.
    Value {
        /// The value, or where it lies. Inline bytes may be a slice of a whole key block: whoever
        /// keeps them for long copies them.
        value: ValueRef,
        /// Unix seconds at which the pair ceases to exist; 0 for never.
        expires_at_s: u64,
    },
    /// The key was deleted: older sources are not asked.
    Deleted,
}

/// What a look-up that must not wait for the device found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// What is known of the key.
    Known(Option<Found>),
    /// A block that is not in memory must be read.
    NeedsIo,
}

/// A value, or where it lies, as lent by whoever stands on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueSlice<'a> {
    /// The value.
    Inline(&'a [u8]),
    /// The value lies in a value file.
    At(Locator),
}

impl ValueSlice<'_> {
    /// The value's length in bytes.
    pub fn len(&self) -> u32 {
        match self {
            Self::Inline(value) => value.len() as u32,
            Self::At(locator) => locator.length,
        }
    }

    /// Whether the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same to keep; inline bytes are copied.
    pub fn to_owned(&self) -> ValueRef {
        match self {
            Self::Inline(value) => ValueRef::Inline(Bytes::copy_from_slice(value)),
            Self::At(locator) => ValueRef::At(*locator),
        }
    }
}
