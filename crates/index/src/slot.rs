//! What a sorted source knows of a key.

use stele_types::ValueRef;

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
