//! Keys of the space `redis`.
//!
//! ```text
//! user key  := database:u8 (0xd0 + number) group part
//! group     := 0x00 esc(name)                 a name without a tag
//!            | 0x01 esc(tag) esc(name)        a name with a tag
//! part      := 0x00                           the header of the name
//!            | 0x01 stamp:u64be field         a member under the header's stamp
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

/// Returns the bytes with which the engine keys of all members under a stamp begin, and no others.
pub fn members_prefix(header_key: &[u8], stamp: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(header_key.len() + 8);
    out.extend_from_slice(header_key.split_last().map_or(&[], |(_, name)| name));
    out.push(MEMBER);
    out.extend_from_slice(&stamp.to_be_bytes());
    out
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
        _ => return None,
    };
    Some(NamedKey { database, name: Bytes::from(name), part })
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

fn escape(out: &mut Vec<u8>, text: &[u8]) {
    for &byte in text {
        out.push(byte);
        if byte == ESCAPE {
            out.push(ESCAPED);
        }
    }
    out.extend_from_slice(&[ESCAPE, END]);
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
            prop_assert!(header < member);
        }

        #[test]
        fn groups_keep_the_order_of_names(one in name(), two in name()) {
            let place = |name: &[u8]| (tag(name).map(<[u8]>::to_vec), name.to_vec());
            let keys = (header_key(0, &one), header_key(0, &two));
            prop_assert_eq!(keys.0.cmp(&keys.1), place(&one).cmp(&place(&two)));
            let last = member_key(&keys.0, u64::MAX, &[0xff; 9]);
            prop_assert_eq!(last < keys.1, place(&one) < place(&two));
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
    fn keys_of_other_layouts_have_no_group() {
        for key in [&b""[..], b"k", &[0xd0], &[0xe0, 0, b'a', 0, 1, 0], &[0xd0, 2, b'a', 0, 1, 0]] {
            assert_eq!(group(key), None);
            assert_eq!(border(&Bytes::copy_from_slice(key)), key);
        }
        assert_eq!(decode(&[5, 0xd0, 0, b'a', 0, 1, 0]), None);
        assert_eq!(decode(&[REDIS, 0xd0, 1, b'b', 0, 1, b'a', 0, 1, 0]), None);
    }
}
