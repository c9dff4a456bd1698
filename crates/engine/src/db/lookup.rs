//! Lookup of one pair.

use crate::store::Shared;
use bytes::Bytes;
use stele_index::Found;
use stele_types::{Result, ValueRef};

/// Pair of a key, and its value's location at the moment of the lookup.
#[derive(Clone, Debug)]
pub(super) struct Located {
    pub value: Bytes,
    pub expires_at_s: u64,
    pub at: ValueRef,
}

/// Finds a pair without pinning its file: garbage collection may move or drop the value between the
/// lookup and the read. Then the key has a new location, and the lookup is repeated. Reads no value
/// of a pair with an expiry that is not `is_live`, and none at the location of `known`.
pub(super) fn lookup(
    shared: &Shared,
    key: &[u8],
    is_live: impl Fn(u64) -> bool,
    known: Option<&Located>,
) -> Result<Option<Located>> {
    let mut failed: Option<ValueRef> = None;
    loop {
        let (at, expires_at_s) = match shared.index.get(key)? {
            Some(Found::Value { value, expires_at_s }) if is_live(expires_at_s) => {
                (value, expires_at_s)
            }
            _ => return Ok(None),
        };
        let known = known.filter(|known| known.at == at);
        let read = match (known, &at) {
            (Some(known), _) => Ok(known.value.clone()),
            (None, ValueRef::Inline(bytes)) => Ok(bytes.clone()),
            (None, ValueRef::At(locator)) => shared.value(locator),
        };
        match read {
            Ok(value) => return Ok(Some(Located { value, expires_at_s, at })),
            Err(error) if failed.as_ref() == Some(&at) => {
                if let ValueRef::At(locator) = &at {
                    shared.lost_values.note(key, locator, &error);
                }
                return Err(error);
            }
            Err(_) => failed = Some(at),
        }
    }
}

/// Does the same as [`lookup`] with an empty value; reads no value.
pub(super) fn lookup_key(
    shared: &Shared,
    key: &[u8],
    is_live: impl Fn(u64) -> bool,
) -> Result<Option<Located>> {
    Ok(match shared.index.get(key)? {
        Some(Found::Value { value: at, expires_at_s }) if is_live(expires_at_s) => {
            Some(Located { value: Bytes::new(), expires_at_s, at })
        }
        _ => None,
    })
}
