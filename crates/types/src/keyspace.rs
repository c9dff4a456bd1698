//! Layout of a store's ordered keys: the first byte of an engine key is its space. A region of user
//! data owns the same key range in each column family's space.

use crate::{KeyRange, RegionId};
use bytes::Bytes;

/// Space of pairs about this store; never part of a snapshot.
pub const LOCAL: u8 = 0x00;
/// Space of the placement group's pairs.
pub const SYSTEM: u8 = 0x04;

/// A column family of user data: a key space of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ColumnFamily {
    /// The family used when a request names none.
    #[default]
    Default,
    /// Family `lock`.
    Lock,
    /// Family `write`.
    Write,
}

impl ColumnFamily {
    /// All families, in the order of their spaces.
    pub const ALL: [Self; 3] = [Self::Default, Self::Lock, Self::Write];

    /// Returns the family with this name; the empty name is the default family.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "" | "default" => Some(Self::Default),
            "lock" => Some(Self::Lock),
            "write" => Some(Self::Write),
            _ => None,
        }
    }

    /// Returns the first byte of the family's engine keys.
    pub fn space(self) -> u8 {
        match self {
            Self::Default => 0x01,
            Self::Lock => 0x02,
            Self::Write => 0x03,
        }
    }

    /// Returns the engine key of a user key.
    pub fn engine_key(self, user_key: &[u8]) -> Bytes {
        in_space(self.space(), user_key)
    }

    /// Returns the engine range of a range of user keys.
    pub fn engine_range(self, range: &KeyRange) -> KeyRange {
        range_in_space(self.space(), range)
    }
}

/// Returns the user key inside an engine key of any space. `None` for the empty key.
pub fn user_key(engine_key: &Bytes) -> Option<Bytes> {
    (!engine_key.is_empty()).then(|| engine_key.slice(1..))
}

/// Returns the engine key of `key` in a space.
pub fn in_space(space: u8, key: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(key.len() + 1);
    out.push(space);
    out.extend_from_slice(key);
    Bytes::from(out)
}

/// Returns the engine range of `range` in a space; no upper bound becomes the space's end.
pub fn range_in_space(space: u8, range: &KeyRange) -> KeyRange {
    let end = match range.end.is_empty() {
        true => Bytes::from(vec![space + 1]),
        false => in_space(space, &range.end),
    };
    KeyRange { start: in_space(space, &range.start), end }
}

/// Returns the key of a region's descriptor, on every store that has or had a replica.
pub fn region_key(region: RegionId) -> Bytes {
    local_key(b'r', region)
}

/// Returns the region of a descriptor's key.
pub fn region_of_key(engine_key: &[u8]) -> Option<RegionId> {
    let number = engine_key.strip_prefix(&[LOCAL, b'r'])?;
    Some(RegionId(u64::from_be_bytes(number.try_into().ok()?)))
}

/// Returns the keys of all regions' descriptors.
pub fn region_keys() -> KeyRange {
    KeyRange::prefix(&[LOCAL, b'r'])
}

/// Returns the key of a region's last admin record. The first operation of an admin entry writes
/// it.
pub fn admin_key(region: RegionId) -> Bytes {
    local_key(b'a', region)
}

/// Whether an engine key is the [`admin_key`] of a region.
pub fn is_admin_key(engine_key: &[u8]) -> bool {
    engine_key.starts_with(&[LOCAL, b'a']) && engine_key.len() == 10
}

/// Returns the key of the epoch at which a snapshot last brought a region to this store.
pub fn installed_key(region: RegionId) -> Bytes {
    local_key(b'e', region)
}

/// Returns the keys of the epochs at which snapshots brought regions.
pub fn installed_keys() -> KeyRange {
    KeyRange::prefix(&[LOCAL, b'e'])
}

/// Returns the key of the merges that a region committed, as known on this store.
pub fn merges_key(region: RegionId) -> Bytes {
    local_key(b'm', region)
}

/// Returns the keys of the merges that regions committed.
pub fn merges_keys() -> KeyRange {
    KeyRange::prefix(&[LOCAL, b'm'])
}

/// Returns the region of an [`installed_key`] or a [`merges_key`].
pub fn region_of_record_key(engine_key: &[u8]) -> Option<RegionId> {
    let prefixes = [[LOCAL, b'e'], [LOCAL, b'm']];
    let number = prefixes.iter().find_map(|prefix| engine_key.strip_prefix(prefix))?;
    Some(RegionId(u64::from_be_bytes(number.try_into().ok()?)))
}

/// Returns the keys of records that earlier versions wrote for orphaned ranges. Opening drops them.
pub fn former_orphaned_range_keys() -> KeyRange {
    KeyRange::prefix(&[LOCAL, b'u'])
}

/// Returns the key of the store's identity: its cluster and store number.
pub fn ident_key() -> Bytes {
    Bytes::from_static(&[LOCAL, b'i'])
}

fn local_key(kind: u8, region: RegionId) -> Bytes {
    let mut out = vec![LOCAL, kind];
    out.extend_from_slice(&region.0.to_be_bytes());
    Bytes::from(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_do_not_overlap_and_keep_the_order_of_user_keys() {
        let whole = KeyRange::all();
        let ranges = ColumnFamily::ALL.map(|cf| cf.engine_range(&whole));
        for pair in ranges.windows(2) {
            assert_eq!(pair[0].end, pair[1].start);
        }
        assert!(ranges[0].contains(&ColumnFamily::Default.engine_key(&[255; 9])));
        assert!(!ranges[0].contains(&ColumnFamily::Lock.engine_key(b"")));
        let key = ColumnFamily::Write.engine_key(b"k");
        assert_eq!(user_key(&key).unwrap(), &b"k"[..]);
    }

    #[test]
    fn a_descriptors_key_names_its_region() {
        assert_eq!(region_of_key(&region_key(RegionId(77))), Some(RegionId(77)));
        assert_eq!(region_of_key(&admin_key(RegionId(77))), None);
        assert!(is_admin_key(&admin_key(RegionId(1))));
        assert!(region_keys().contains(&region_key(RegionId(u64::MAX))));
    }
}
