//! Layout of a store's ordered keys: the first byte of an engine key is its space. A region of user
//! data owns the same key range in each column family's space.

use crate::RegionId;
use crate::session::RecordKey;
use bytes::Bytes;

/// Space of pairs about this store; never part of a snapshot.
pub const LOCAL: u8 = 0x00;
/// Space of the placement group's pairs.
pub const SYSTEM: u8 = 0x04;

/// Space of the records of sessions' requests; see [`RecordKey`].
pub const RECORDS: u8 = 0x05;

const REDIS: u8 = 0x06;

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
    /// Family `redis`: the pairs of Redis keys. Only Redis commands and restores write it.
    Redis,
}

impl ColumnFamily {
    /// All families, in the order of their spaces.
    pub const ALL: [Self; 4] = [Self::Default, Self::Lock, Self::Write, Self::Redis];
    /// The families of RawKV, in the order of their spaces.
    pub const RAW: [Self; 3] = [Self::Default, Self::Lock, Self::Write];

    /// Returns the family with this name; the empty name is the default family.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "" | "default" => Some(Self::Default),
            "lock" => Some(Self::Lock),
            "write" => Some(Self::Write),
            "redis" => Some(Self::Redis),
            _ => None,
        }
    }

    /// Returns the first byte of the family's engine keys.
    pub fn space(self) -> u8 {
        match self {
            Self::Default => 0x01,
            Self::Lock => 0x02,
            Self::Write => 0x03,
            Self::Redis => REDIS,
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

/// Returns the user key inside an engine key of any space. `None` for the empty key, and in the space
/// of records for what is not the key of one.
pub fn user_key(engine_key: &Bytes) -> Option<Bytes> {
    match engine_key.first()? {
        &RECORDS => RecordKey::decode(engine_key).map(|record| record.user_key),
        _ => Some(engine_key.slice(1..)),
    }
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

/// Returns the key of the tick of the store's cluster, beside its identity.
pub fn tick_key() -> Bytes {
    Bytes::from_static(&[LOCAL, b'i', b't'])
}

fn local_key(kind: u8, region: RegionId) -> Bytes {
    let mut out = vec![LOCAL, kind];
    out.extend_from_slice(&region.0.to_be_bytes());
    Bytes::from(out)
}

/// Keys from `start` (inclusive) to `end` (exclusive); an empty `end` means no upper bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// First key in the range.
    pub start: Bytes,
    /// First key after the range; empty for no upper bound.
    pub end: Bytes,
}

impl KeyRange {
    /// Creates a range from its two ends.
    pub fn new(start: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        Self { start: start.into(), end: end.into() }
    }

    /// Returns the range of all keys.
    pub fn all() -> Self {
        Self::default()
    }

    /// Returns the range of one key.
    pub fn of_key(key: impl Into<Bytes>) -> Self {
        let start = key.into();
        Self { end: key_after(&start), start }
    }

    /// Returns the range of keys that begin with `prefix`.
    pub fn prefix(prefix: &[u8]) -> Self {
        let mut end = prefix.to_vec();
        while let Some(last) = end.pop() {
            if last < u8::MAX {
                end.push(last + 1);
                break;
            }
        }
        Self::new(prefix.to_vec(), end)
    }

    /// Whether the range contains `key`.
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= &self.start[..] && self.is_below_end(key)
    }

    /// Whether `key` is below the upper bound.
    pub fn is_below_end(&self, key: &[u8]) -> bool {
        self.end.is_empty() || key < &self.end[..]
    }

    /// Whether the range can contain no key.
    pub fn is_empty(&self) -> bool {
        !self.end.is_empty() && self.start >= self.end
    }

    /// Whether both ranges may contain the same key.
    pub fn overlaps(&self, other: &Self) -> bool {
        !self.is_empty()
            && !other.is_empty()
            && self.is_below_end(&other.start)
            && other.is_below_end(&self.start)
    }

    /// Returns the part inside `bounds`, which may be empty.
    pub fn within(&self, bounds: &Self) -> Self {
        let start = (&self.start).max(&bounds.start).clone();
        let end = match (self.end.is_empty(), bounds.end.is_empty()) {
            (true, _) => &bounds.end,
            (_, true) => &self.end,
            _ => (&self.end).min(&bounds.end),
        };
        Self { start, end: end.clone() }
    }

    /// Returns the intersection; `None` if it is empty.
    pub fn common(&self, other: &Self) -> Option<Self> {
        self.overlaps(other).then(|| self.within(other))
    }

    /// Returns the keys that are not in `other`: none, one or two ranges, ascending.
    pub fn without(&self, other: &Self) -> Vec<Self> {
        let Some(common) = self.common(other) else { return vec![self.clone()] };
        let before = Self { start: self.start.clone(), end: common.start.clone() };
        let after = Self { start: common.end.clone(), end: self.end.clone() };
        let is_there = [self.start < common.start, !common.end.is_empty() && !after.is_empty()];
        let parts = [before, after].into_iter().zip(is_there);
        parts.filter_map(|(part, is_there)| is_there.then_some(part)).collect()
    }
}

/// Returns the first key after `key`.
pub fn key_after(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_do_not_overlap_and_keep_the_order_of_user_keys() {
        let whole = KeyRange::all();
        let ranges = ColumnFamily::ALL.map(|cf| cf.engine_range(&whole));
        for pair in ranges.windows(2) {
            assert!(pair[0].end <= pair[1].start);
        }
        let others = [LOCAL, SYSTEM, RECORDS].map(|space| range_in_space(space, &whole));
        assert!(others.iter().all(|other| ranges.iter().all(|range| !range.overlaps(other))));
        assert!(ranges[0].contains(&ColumnFamily::Default.engine_key(&[255; 9])));
        assert!(!ranges[0].contains(&ColumnFamily::Lock.engine_key(b"")));
        let key = ColumnFamily::Write.engine_key(b"k");
        assert_eq!(user_key(&key).unwrap(), &b"k"[..]);
        assert_eq!((user_key(&Bytes::new()), user_key(&Bytes::from(vec![RECORDS]))), (None, None));
    }

    #[test]
    fn a_descriptors_key_names_its_region() {
        assert_eq!(region_of_key(&region_key(RegionId(77))), Some(RegionId(77)));
        assert_eq!(region_of_key(&admin_key(RegionId(77))), None);
        assert!(is_admin_key(&admin_key(RegionId(1))));
        assert!(region_keys().contains(&region_key(RegionId(u64::MAX))));
    }

    #[test]
    fn prefixes_of_high_bytes_have_the_right_upper_bound() {
        assert_eq!(KeyRange::prefix(b"ab"), KeyRange::new(&b"ab"[..], &b"ac"[..]));
        assert_eq!(KeyRange::prefix(&[7, 255, 255]).end, Bytes::from(vec![8]));
        assert!(KeyRange::prefix(&[255, 255]).contains(&[255, 255, 255, 1]));
        assert!(KeyRange::prefix(b"").contains(b""));
    }

    #[test]
    fn what_two_ranges_share_and_what_only_one_has_is_all_of_it() {
        let ends = ["", "a", "b", "c", "d"];
        let ranges = || {
            let all = ends.iter().flat_map(|start| ends.map(|end| KeyRange::new(*start, end)));
            all.filter(|range| !range.is_empty())
        };
        for (one, other) in ranges().flat_map(|one| ranges().map(move |other| (one.clone(), other)))
        {
            let (common, rest) = (one.common(&other), one.without(&other));
            assert!(rest.iter().chain(&common).all(|part| !part.is_empty()), "{one:?} {other:?}");
            for key in [&b""[..], b"A", b"a", b"aa", b"b", b"c", b"cc", b"d", b"e"] {
                let shared = one.contains(key) && other.contains(key);
                assert_eq!(common.as_ref().is_some_and(|it| it.contains(key)), shared);
                let parts = rest.iter().filter(|part| part.contains(key)).count();
                assert_eq!(parts, usize::from(one.contains(key) && !shared), "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn an_empty_end_is_no_bound_of_the_part_within() {
        let range = |a: &'static str, b: &'static str| KeyRange::new(a, b);
        assert_eq!(range("", "").within(&range("b", "d")), range("b", "d"));
        assert_eq!(range("c", "").within(&range("b", "d")), range("c", "d"));
        assert_eq!(range("a", "c").within(&range("b", "")), range("b", "c"));
        assert!(range("a", "b").within(&range("c", "d")).is_empty());
    }

    #[test]
    fn overlap_needs_a_common_key() {
        let range = |a: &'static str, b: &'static str| KeyRange::new(a, b);
        assert!(range("a", "c").overlaps(&range("b", "")));
        assert!(!range("a", "b").overlaps(&range("b", "c")));
        assert!(!range("b", "b").overlaps(&KeyRange::all()));
    }
}
