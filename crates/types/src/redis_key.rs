//! Keys of the space `redis`.
//!
//! ```text
//! user key  := database:u8 (0xd0 + number) group part
//! group     := 0x00 esc(name)                 a name without a tag
//!            | 0x01 esc(tag) esc(name)        a name with a tag
//! part      := 0x00                           the header of the name
//!            | 0x01 stamp:u64be field         a member under the header's stamp
//!            | 0x02 transaction:u128be        the record of a transaction that began with the name
//! esc(x)    := x with 0x00 as 0x00 0xff, then 0x00 0x01
//! engine key:= 0x06 user key
//! ```
//!
//! The tag is that of Redis Cluster: the bytes between the first `{` and the first `}` after it, unless
//! they are none.
//!
//! A group is one name with its members, or all names with one tag. A group is never parted: a boundary
//! of regions strictly inside one is rounded down to its border, the prefix that all of its keys have in
//! common and no other key has.
//!
//! Invariant: no escaped text begins another one, so no border begins another border, and the keys of a
//! group are consecutive.
//! Test: `no_border_parts_a_group`.
//!
//! The names of a database are ordered by their bytes, first those without a tag, then those with one, by
//! tag and name. The header of a name precedes its members, and members of one stamp are ordered by field.
//! The records of transactions follow the members.

use crate::KeyRange;
use bytes::Bytes;

/// Space of the pairs of this layout: the first byte of their engine keys.
pub const REDIS: u8 = 0x06;

/// Number of databases.
pub const DATABASES: u8 = 16;

const DATABASE_0: u8 = 0xd0;
const PLAIN: u8 = 0x00;
const TAGGED: u8 = 0x01;
const HEADER: u8 = 0x00;
const MEMBER: u8 = 0x01;
const RECORD: u8 = 0x02;
const ESCAPE: u8 = 0x00;
const ESCAPED: u8 = 0xff;
const END: u8 = 0x01;

/// What an engine key of the space names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedKey {
    /// Number of the database.
    pub database: u8,
    /// Name that clients use.
    pub name: Bytes,
    /// Pair of the name.
    pub part: KeyPart,
}

/// Pair of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// Its header.
    Header,
    /// A member of a hash or set.
    Member {
        /// Stamp of the header to which it belongs.
        stamp: u64,
        /// Field of a hash or member of a set.
        field: Bytes,
    },
    /// The record of a transaction over several regions of which the name is the first.
    Record {
        /// Number of the transaction.
        transaction: u128,
    },
}

/// Returns the engine key of a name's header. `database` is below [`DATABASES`].
pub fn header_key(database: u8, name: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(name.len() + 8);
    out.extend_from_slice(&[REDIS, DATABASE_0 + database % DATABASES]);
    match tag(name) {
        None => out.push(PLAIN),
        Some(tag) => {
            out.push(TAGGED);
            escape(&mut out, tag);
        }
    }
    escape(&mut out, name);
    out.push(HEADER);
    Bytes::from(out)
}

/// Returns the engine key of a member, from the engine key of its header.
pub fn member_key(header_key: &[u8], stamp: u64, field: &[u8]) -> Bytes {
    let mut out = members_prefix(header_key, stamp);
    out.extend_from_slice(field);
    Bytes::from(out)
}

/// Returns the engine key of a transaction's record, from the engine key of its first name's header.
pub fn record_key(header_key: &[u8], transaction: u128) -> Bytes {
    let mut out = Vec::with_capacity(header_key.len() + 16);
    out.extend_from_slice(header_key.split_last().map_or(&[], |(_, name)| name));
    out.push(RECORD);
    out.extend_from_slice(&transaction.to_be_bytes());
    Bytes::from(out)
}

/// Returns the bytes with which the engine keys of all members under a stamp begin, and no others.
pub fn members_prefix(header_key: &[u8], stamp: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(header_key.len() + 8);
    out.extend_from_slice(header_key.split_last().map_or(&[], |(_, name)| name));
    out.push(MEMBER);
    out.extend_from_slice(&stamp.to_be_bytes());
    out
}

/// Returns the engine keys of all pairs of a name, from the engine key of its header.
pub fn pairs_of_name(header_key: &[u8]) -> KeyRange {
    KeyRange::prefix(header_key.split_last().map_or(&[], |(_, name)| name))
}

/// Returns the user keys of a database.
pub fn database_range(database: u8) -> KeyRange {
    KeyRange::prefix(&[DATABASE_0 + database % DATABASES])
}

/// Returns the user keys of all databases.
pub fn databases_range() -> KeyRange {
    KeyRange::new(vec![DATABASE_0], vec![DATABASE_0 + DATABASES])
}

/// Returns the user keys among which are those of all names of a database that begin with `prefix`: one or
/// two ranges, ascending. They have other names too.
///
/// A name without a tag is ordered by its bytes. One with a tag is ordered by the tag, which the prefix
/// states as a whole, in part, or not at all.
///
/// Invariant: no name that begins with the prefix lies outside. Test: `a_prefix_has_all_its_names_in_its_ranges`.
pub fn prefix_ranges(database: u8, prefix: &[u8]) -> Vec<KeyRange> {
    let within = |kind: u8, tag: Option<&[u8]>, begun: &[u8]| {
        let mut key = vec![DATABASE_0 + database % DATABASES, kind];
        if let Some(tag) = tag {
            escape(&mut key, tag);
        }
        escape_part(&mut key, begun);
        KeyRange::prefix(&key)
    };
    let plain = within(PLAIN, None, prefix);
    let open = prefix.iter().position(|&byte| byte == b'{');
    let after = open.and_then(|open| prefix.get(open + 1..));
    // bug types.tagged_names_left_out: return vec![plain];
    match after {
        None => vec![plain, within(TAGGED, None, &[])],
        Some(begun) if !begun.contains(&b'}') => vec![plain, within(TAGGED, None, begun)],
        Some(_) => match tag(prefix) {
            Some(tag) => vec![within(TAGGED, Some(tag), prefix)],
            None => vec![plain],
        },
    }
}

/// Decodes an engine key. `None` for one of another space, and for one that this layout does not make.
pub fn decode(engine_key: &[u8]) -> Option<NamedKey> {
    let (kind, database, rest) = open(engine_key.strip_prefix(&[REDIS])?)?;
    let (first, rest) = unescape(rest)?;
    let (name, rest) = match kind {
        PLAIN => (first.clone(), rest),
        _ => unescape(rest)?,
    };
    let expected = (kind == TAGGED).then_some(&first[..]);
    if tag(&name) != expected {
        return None;
    }
    let part = match rest.split_first()? {
        (&HEADER, []) => KeyPart::Header,
        (&MEMBER, rest) => {
            let (stamp, field) = rest.split_first_chunk::<8>()?;
            KeyPart::Member {
                stamp: u64::from_be_bytes(*stamp),
                field: Bytes::copy_from_slice(field),
            }
        }
        (&RECORD, rest) => {
            KeyPart::Record { transaction: u128::from_be_bytes(rest.try_into().ok()?) }
        }
        _ => return None,
    };
    Some(NamedKey { database, name: Bytes::from(name), part })
}

/// Engine key, divided without a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DividedKey<'a> {
    /// Bytes with which the engine keys of all pairs of the name begin, and no others.
    pub name: &'a [u8],
    /// Stamp of a member; `None` for a header.
    pub stamp: Option<u64>,
}

/// Divides an engine key of the space. `None` for a record, and for a key that is not of this layout. Does not check that
/// the tag is that of the name.
pub fn divide(engine_key: &[u8]) -> Option<DividedKey<'_>> {
    let (kind, _, rest) = open(engine_key.strip_prefix(&[REDIS])?)?;
    let mut rest = after_text(rest)?;
    if kind == TAGGED {
        rest = after_text(rest)?;
    }
    let name = engine_key.get(..engine_key.len() - rest.len())?;
    match rest.split_first()? {
        (&HEADER, []) => Some(DividedKey { name, stamp: None }),
        (&MEMBER, rest) => {
            let (stamp, _) = rest.split_first_chunk::<8>()?;
            Some(DividedKey { name, stamp: Some(u64::from_be_bytes(*stamp)) })
        }
        _ => None,
    }
}

/// Returns the engine key of the header of a name, from [`DividedKey::name`].
pub fn header_of(name: &[u8]) -> Bytes {
    Bytes::from([name, &[HEADER]].concat())
}

/// Returns the part of a range of user keys without the groups that it has in part only.
pub fn whole_groups(range: &KeyRange) -> KeyRange {
    let start = match group(&range.start) {
        Some(border) => KeyRange::prefix(border).end,
        None => range.start.clone(),
    };
    KeyRange { start, end: border(&range.end) }
}

/// Returns the border of the group in which a user key lies, without the space. `None` for a key outside
/// all groups, and for a border itself.
pub fn group(user_key: &[u8]) -> Option<&[u8]> {
    let (_, _, rest) = open(user_key)?;
    let (_, rest) = unescape(rest)?;
    let (border, inside) = user_key.split_at_checked(user_key.len() - rest.len())?;
    (!inside.is_empty()).then_some(border)
}

/// Rounds a boundary of regions, a user key without the space, down to the border of the group that it
/// would part. Other boundaries stay.
pub fn border(split_key: &Bytes) -> Bytes {
    match group(split_key) {
        Some(border) => split_key.slice_ref(border),
        None => split_key.clone(),
    }
}

/// A group, as clients know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedGroup {
    /// Number of the database.
    pub database: u8,
    /// The name, or the tag without its braces.
    pub text: Bytes,
    /// Whether the group is that of a tag.
    pub is_tag: bool,
}

/// Returns the group of a border, without the space. `None` for what is not a border of a group.
pub fn named_group(border: &[u8]) -> Option<NamedGroup> {
    let (kind, database, rest) = open(border)?;
    let (text, rest) = unescape(rest)?;
    let text = Bytes::from(text);
    rest.is_empty().then_some(NamedGroup { database, text, is_tag: kind == TAGGED })
}

/// Returns the tag of a name as Redis Cluster finds it.
pub fn tag(name: &[u8]) -> Option<&[u8]> {
    let open = name.iter().position(|&byte| byte == b'{')?;
    let after = name.get(open + 1..)?;
    let close = after.iter().position(|&byte| byte == b'}')?;
    after.get(..close).filter(|tag| !tag.is_empty())
}

/// Returns the kind of a group, the number of the database, and the bytes after both.
fn open(user_key: &[u8]) -> Option<(u8, u8, &[u8])> {
    let (&[database, kind], rest) = user_key.split_first_chunk::<2>()?;
    let number = database.checked_sub(DATABASE_0).filter(|&number| number < DATABASES)?;
    (kind == PLAIN || kind == TAGGED).then_some((kind, number, rest))
}

/// Returns the bytes after the end of the text at the front.
fn after_text(mut rest: &[u8]) -> Option<&[u8]> {
    loop {
        let at = rest.iter().position(|&byte| byte == ESCAPE)?;
        let (&kind, tail) = rest.get(at + 1..)?.split_first()?;
        rest = tail;
        match kind {
            ESCAPED => {}
            END => return Some(rest),
            _ => return None,
        }
    }
}

fn escape(out: &mut Vec<u8>, text: &[u8]) {
    escape_part(out, text);
    out.extend_from_slice(&[ESCAPE, END]);
}

/// Appends the beginning of an escaped text.
fn escape_part(out: &mut Vec<u8>, text: &[u8]) {
    for &byte in text {
        out.push(byte);
        if byte == ESCAPE {
            out.push(ESCAPED);
        }
    }
}

/// Returns the text at the front, and the bytes after its end.
fn unescape(mut rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut text = Vec::new();
    loop {
        let (&byte, tail) = rest.split_first()?;
        rest = tail;
        if byte != ESCAPE {
            text.push(byte);
            continue;
        }
        let (&kind, tail) = rest.split_first()?;
        rest = tail;
        match kind {
            ESCAPED => text.push(ESCAPE),
            END => return Some((text, rest)),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::range_in_space;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// Names of which many begin others.
    fn name() -> impl Strategy<Value = Vec<u8>> {
        vec(prop::sample::select(&b"\0\x01\xffa{}"[..]), 0..6)
    }

    /// Engine keys of the layout, and cuts of them, and other bytes.
    fn any_key() -> impl Strategy<Value = Bytes> {
        let made = (name(), name(), 0..4u64, 0..16u8, any::<bool>(), 0..40usize);
        let made = made.prop_map(|(name, field, stamp, database, is_member, length)| {
            let header = header_key(database, &name);
            let key = if is_member { member_key(&header, stamp, &field) } else { header };
            key.slice(1..key.len().min(length).max(1))
        });
        prop_oneof![made, vec(any::<u8>(), 0..12).prop_map(Bytes::from)]
    }

    fn user_keys(database: u8, name: &[u8]) -> Vec<Bytes> {
        let header = header_key(database, name);
        let mut keys = vec![header.slice(1..)];
        for (stamp, field) in [(0, &b""[..]), (7, b"f"), (u64::MAX, &[0, 0xff])] {
            keys.push(member_key(&header, stamp, field).slice(1..));
        }
        keys.extend([0, u128::MAX].map(|number| record_key(&header, number).slice(1..)));
        keys
    }

    proptest! {
        #[test]
        fn no_border_parts_a_group(split in any_key(), names in vec(name(), 1..20)) {
            let split = border(&split);
            for name in names {
                let mut keys = user_keys(3, &name);
                if let Some(tag) = tag(&name) {
                    keys.extend(user_keys(3, &[b"{", tag, b"}x"].concat()));
                }
                let below = keys.iter().filter(|key| **key < split).count();
                prop_assert!(below == 0 || below == keys.len(), "{name:?} at {split:?}");
            }
        }

        #[test]
        fn rounding_never_rises_and_a_border_stays(split in any_key()) {
            let rounded = border(&split);
            prop_assert!(rounded <= split && split.starts_with(&rounded));
            prop_assert_eq!(border(&rounded), rounded.clone());
            prop_assert_eq!(group(&rounded), None);
        }

        #[test]
        fn a_key_names_all_of_it(database in 0..16u8, name in name(), field in name()) {
            let header = header_key(database, &name);
            let named = |part| Some(NamedKey { database, name: name.clone().into(), part });
            prop_assert_eq!(decode(&header), named(KeyPart::Header));
            let member = member_key(&header, 1 << 40, &field);
            let part = KeyPart::Member { stamp: 1 << 40, field: field.into() };
            prop_assert_eq!(decode(&member), named(part));
            for cut in 0..header.len() {
                prop_assert_eq!(decode(&header[..cut]), None);
            }
            prop_assert!(member.starts_with(&members_prefix(&header, 1 << 40)));
            let record = record_key(&header, 1 << 100);
            prop_assert_eq!(decode(&record), named(KeyPart::Record { transaction: 1 << 100 }));
            for cut in header.len()..record.len() {
                prop_assert_eq!(decode(&record[..cut]), None);
            }
            prop_assert!(header < member && member < record);
            let name = &header[..header.len() - 1];
            prop_assert_eq!(divide(&header), Some(DividedKey { name, stamp: None }));
            prop_assert_eq!(divide(&member), Some(DividedKey { name, stamp: Some(1 << 40) }));
            prop_assert_eq!(header_of(name), header);
        }

        #[test]
        fn what_can_be_decoded_is_divided_in_the_same_way(key in any_key()) {
            let key = [&[REDIS], &key[..]].concat();
            let divided = divide(&key);
            if let Some(named) = decode(&key) {
                let stamp = match named.part {
                    KeyPart::Header => Some(None),
                    KeyPart::Member { stamp, .. } => Some(Some(stamp)),
                    KeyPart::Record { .. } => None,
                };
                prop_assert_eq!(divided.map(|it| it.stamp), stamp);
            }
            prop_assert!(divided.is_none_or(|it| key.starts_with(it.name)));
        }

        #[test]
        fn only_the_ends_of_a_range_part_groups(one in any_key(), two in any_key(), name in name()) {
            let range = KeyRange::new(one.clone().min(two.clone()), one.max(two));
            let whole = whole_groups(&range);
            let key = header_key(3, &name).slice(1..);
            let keys = KeyRange::prefix(&border(&key));
            let has_all = keys.within(&range) == keys;
            prop_assert_eq!(whole.contains(&key), has_all, "{:?} {:?}", range, whole);
        }

        #[test]
        fn groups_keep_the_order_of_names(one in name(), two in name()) {
            let place = |name: &[u8]| (tag(name).map(<[u8]>::to_vec), name.to_vec());
            let keys = (header_key(0, &one), header_key(0, &two));
            prop_assert_eq!(keys.0.cmp(&keys.1), place(&one).cmp(&place(&two)));
            let last = record_key(&keys.0, u128::MAX);
            prop_assert_eq!(last < keys.1, place(&one) < place(&two));
        }

        #[test]
        fn a_prefix_has_all_its_names_in_its_ranges(prefix in name(), rest in name()) {
            let ranges = prefix_ranges(3, &prefix);
            let engine: Vec<KeyRange> = ranges.iter().map(|range| range_in_space(REDIS, range)).collect();
            for (before, after) in ranges.iter().zip(ranges.iter().skip(1)) {
                prop_assert!(before.end <= after.start);
            }
            for range in &ranges {
                prop_assert_eq!(range.within(&database_range(3)), range.clone());
            }
            let header = header_key(3, &[&prefix[..], &rest].concat());
            let containing = engine.iter().filter(|range| range.contains(&header)).count();
            prop_assert_eq!(containing, 1, "{:?} {:?}", header, ranges);
            // Other names lie outside, unless the order of tags hides the prefix.
            let other = header_key(3, &rest);
            let is_found = engine.iter().any(|range| range.contains(&other));
            prop_assert!(!is_found || rest.starts_with(&prefix) || tag(&rest).is_some());
        }

        #[test]
        fn the_pairs_of_a_name_are_its_own(one in name(), two in name()) {
            let pairs = pairs_of_name(&header_key(0, &one));
            for key in user_keys(0, &two) {
                let key = range_in_space(REDIS, &KeyRange::of_key(key)).start;
                prop_assert_eq!(pairs.contains(&key), one == two);
            }
        }
    }

    #[test]
    fn the_databases_have_ranges_of_their_own() {
        for database in 0..DATABASES {
            let key = header_key(database, b"a{b}").slice(1..);
            assert!(databases_range().contains(&key));
            for other in 0..DATABASES {
                assert_eq!(database_range(other).contains(&key), other == database);
            }
        }
    }

    #[test]
    fn a_tag_is_found_as_in_redis_cluster() {
        let rows: [(&[u8], Option<&[u8]>); 8] = [
            (b"user", None),
            (b"{user}:1", Some(b"user")),
            (b"a{user}b", Some(b"user")),
            (b"{}{user}", None),
            (b"{a}{b}", Some(b"a")),
            (b"{{a}}", Some(b"{a")),
            (b"}a{b}", Some(b"b")),
            (b"{a", None),
        ];
        for (name, expected) in rows {
            assert_eq!(tag(name), expected);
        }
    }

    #[test]
    fn a_border_states_the_name_or_the_tag_of_its_group() {
        let names: [(&[u8], &[u8], bool); 3] =
            [(b"user", b"user", false), (b"a{x\0y}b", b"x\0y", true), (b"{}c", b"{}c", false)];
        for (name, text, is_tag) in names {
            let key = member_key(&header_key(3, name), 7, b"field").slice(1..);
            let text = Bytes::copy_from_slice(text);
            let expected = Some(NamedGroup { database: 3, text, is_tag });
            assert_eq!(named_group(group(&key).unwrap()), expected);
            assert_eq!(named_group(&key), None);
        }
        assert_eq!(named_group(b"k"), None);
    }

    #[test]
    fn keys_of_other_layouts_have_no_group() {
        for key in [&b""[..], b"k", &[0xd0], &[0xe0, 0, b'a', 0, 1, 0], &[0xd0, 2, b'a', 0, 1, 0]] {
            assert_eq!(group(key), None);
            assert_eq!(border(&Bytes::copy_from_slice(key)), key);
        }
        assert_eq!(decode(&[5, 0xd0, 0, b'a', 0, 1, 0]), None);
        assert_eq!(decode(&[REDIS, 0xd0, 1, b'b', 0, 1, b'a', 0, 1, 0]), None);
    }
}
