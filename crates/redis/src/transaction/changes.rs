//! What commands that were executed on the pairs of several regions change in each of them.

use super::layout::NewHeader;
use crate::commands::COPIED_MEMBERS_MAX;
use crate::header::{Header, HeaderDamage, Kind};
use crate::key::{self, KeyPart};
use crate::state::{Members, MembersNeed, MembersVersion};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use stele_storage::Pairs;
use stele_types::command::Op;
use stele_types::{CommandBuilder, Error, Prng};

/// Change of a name in a region that does not have the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// Engine key of the header.
    pub header_key: Bytes,
    /// Change number that was read; `None` for an absent name.
    pub expected: Option<u64>,
    /// Header after the commit.
    pub new: NewHeader,
    /// Engine keys and values of the members under a stamp that is new.
    pub members: Vec<(Bytes, Bytes)>,
}

/// Reasons for which the changes are not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// These collections must be read.
    Needs(BTreeSet<MembersNeed>),
    /// A collection is too large to be written again.
    TooManyMembers {
        /// Name of its type.
        kind: &'static str,
        /// Number of its members.
        count: u64,
    },
    /// A pair cannot be understood.
    Damaged(String),
}

impl From<HeaderDamage> for Blocked {
    fn from(damage: HeaderDamage) -> Self {
        Self::Damaged(damage.to_string())
    }
}

impl From<Error> for Blocked {
    fn from(error: Error) -> Self {
        Self::Damaged(error.to_string())
    }
}

/// Commands that were executed on pairs.
#[derive(Clone, Copy, Debug)]
pub struct Executed<'a> {
    /// Their operations.
    pub command: &'a CommandBuilder,
    /// Pairs on which they were executed.
    pub pairs: &'a Pairs,
    /// Collections that were read.
    pub members: &'a Members,
    /// Random number of which stamps are derived.
    pub seed: u64,
    /// Time of the execution in Unix milliseconds.
    pub now_ms: u64,
}

/// Operations on one name.
#[derive(Default)]
struct OfName {
    /// New header; an inner `None` deletes it.
    header: Option<Option<Bytes>>,
    /// Members by stamp and field; `None` deletes one.
    members: BTreeMap<(u64, Bytes), Option<Bytes>>,
}

impl Executed<'_> {
    /// Returns the changes of some of the names, in their order.
    ///
    /// Invariant: members that a live header names do not change before the commit. A collection gets all its
    /// members under a stamp that no header has.
    /// Test: `a_collection_gets_a_new_stamp_and_all_its_members`.
    pub fn changes(&self, header_keys: &[Bytes]) -> Result<Vec<KeyChange>, Blocked> {
        let mut of_names = by_name(self.command)?;
        let mut stamps = Prng::new(self.seed);
        let (mut changes, mut needs) = (Vec::with_capacity(header_keys.len()), BTreeSet::new());
        for header_key in header_keys {
            let of_name = of_names.remove(header_key).unwrap_or_default();
            match self.change(header_key, of_name, stamps.draw()) {
                Ok(change) => changes.push(change),
                Err(Blocked::Needs(more)) => needs.extend(more),
                Err(blocked) => return Err(blocked),
            }
        }
        if needs.is_empty() { Ok(changes) } else { Err(Blocked::Needs(needs)) }
    }

    fn change(
        &self,
        header_key: &Bytes,
        of_name: OfName,
        new_stamp: u64,
    ) -> Result<KeyChange, Blocked> {
        let before = self.live(header_key)?;
        let expected = before.map(|header| header.change);
        let header_key = header_key.clone();
        let unchanged = |new| {
            Ok(KeyChange { header_key: header_key.clone(), expected, new, members: Vec::new() })
        };
        let bytes = match of_name.header {
            None => return unchanged(NewHeader::Same),
            Some(None) => return unchanged(NewHeader::Absent),
            Some(Some(bytes)) => bytes,
        };
        let (mut header, value) = Header::decode(&bytes)?;
        let of_stamp = of_name.members.into_iter().filter(|((stamp, _), _)| *stamp == header.stamp);
        let written: BTreeMap<Bytes, Option<Bytes>> =
            of_stamp.map(|((_, field), value)| (field, value)).collect();
        if header.kind == Kind::String || written.is_empty() {
            return unchanged(NewHeader::Header(bytes));
        }
        let mut all = BTreeMap::new();
        if let Some(before) = before.filter(|it| it.stamp == header.stamp && it.count > 0) {
            let count = before.count.max(header.count);
            if count > COPIED_MEMBERS_MAX {
                return Err(Blocked::TooManyMembers { kind: header.kind.name(), count });
            }
            let version = MembersVersion { stamp: before.stamp, change: before.change };
            let need = MembersNeed { header_key: header_key.clone(), version };
            let Some(stored) = self.members.get(&need) else {
                return Err(Blocked::Needs([need].into()));
            };
            all.extend(stored.iter().cloned());
            header.stamp = new_stamp;
        }
        for (field, value) in written {
            match value {
                Some(value) => all.insert(field, value),
                None => all.remove(&field),
            };
        }
        let of_member = |(field, value): (Bytes, Bytes)| {
            (key::member_key(&header_key, header.stamp, &field), value)
        };
        let members = all.into_iter().map(of_member).collect();
        let new = NewHeader::Header(header.encode(&value));
        Ok(KeyChange { header_key, expected, new, members })
    }

    fn live(&self, header_key: &Bytes) -> Result<Option<Header>, HeaderDamage> {
        let pair = self.pairs.get(header_key).and_then(Option::as_ref);
        let header = pair.map(|pair| Header::decode(&pair.value)).transpose()?;
        Ok(header.map(|(header, _)| header).filter(|header| !header.has_expired(self.now_ms)))
    }

    /// Returns the change number that a name had; `None` if it was absent.
    pub fn change_of(&self, header_key: &Bytes) -> Result<Option<u64>, Blocked> {
        Ok(self.live(header_key)?.map(|header| header.change))
    }

    /// Returns the operations on some of the names.
    pub fn operations(&self, header_keys: &BTreeSet<Bytes>) -> Result<CommandBuilder, Blocked> {
        let mut own = CommandBuilder::new();
        for op in self.command.ops() {
            let (engine_key, _) = changed(&op)?;
            let (header_key, _) = named(engine_key)?;
            if header_keys.contains(&header_key) {
                match op {
                    Op::Put { key, value, expires_at_s, .. } => {
                        own.put(key, value, expires_at_s)?
                    }
                    Op::Delete { key } => own.delete(key)?,
                    Op::DeleteRange { .. } => return Err(unexpected()),
                };
            }
        }
        Ok(own)
    }
}

fn by_name(command: &CommandBuilder) -> Result<BTreeMap<Bytes, OfName>, Blocked> {
    let mut of_names: BTreeMap<Bytes, OfName> = BTreeMap::new();
    for op in command.ops() {
        let (engine_key, value) = changed(&op)?;
        let (header_key, part) = named(engine_key)?;
        let of_name = of_names.entry(header_key).or_default();
        match part {
            KeyPart::Header => of_name.header = Some(value),
            KeyPart::Member { stamp, field } => drop(of_name.members.insert((stamp, field), value)),
            KeyPart::Record { .. } => return Err(unexpected()),
        }
    }
    Ok(of_names)
}

/// Returns the key that an operation changes, and its new value.
fn changed<'a>(op: &Op<'a>) -> Result<(&'a [u8], Option<Bytes>), Blocked> {
    match *op {
        Op::Put { key, value, .. } => Ok((key, Some(Bytes::copy_from_slice(value)))),
        Op::Delete { key } => Ok((key, None)),
        Op::DeleteRange { .. } => Err(unexpected()),
    }
}

fn named(engine_key: &[u8]) -> Result<(Bytes, KeyPart), Blocked> {
    let named = key::decode(engine_key).ok_or_else(unexpected)?;
    Ok((key::header_key(named.database, &named.name), named.part))
}

fn unexpected() -> Blocked {
    Blocked::Damaged(
        "the commands have an operation on another pair than that of a name".to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Run, run};
    use crate::request::Request;
    use stele_storage::Pair;

    fn header_key(name: &str) -> Bytes {
        key::header_key(0, name.as_bytes())
    }

    fn request(text: &str) -> Request {
        let words = text.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes()));
        Request::parse(0, words.collect()).unwrap()
    }

    /// Executes commands on names that are absent, but for a hash `h` with so many fields `f0`, `f1`, …
    fn changes(texts: &[&str], count: u64, names: &[&str]) -> Result<Vec<KeyChange>, Blocked> {
        let header = Header { kind: Kind::Hash, stamp: 5, change: 6, count, expires_at_ms: 0 };
        let keys: Vec<Bytes> = names.iter().map(|name| header_key(name)).collect();
        let mut pairs: Pairs = keys.iter().map(|key| (key.clone(), None)).collect();
        let pair = |key: Bytes, value| Some(Pair { key, value, expires_at_s: 0 });
        let hash = header_key("h");
        pairs.insert(hash.clone(), pair(hash.clone(), header.encode(b"")));
        for at in 0..count + 1 {
            let member = key::member_key(&hash, 5, format!("f{at}").as_bytes());
            let is_stored = at < count;
            pairs.insert(member.clone(), pair(member, "v".into()).filter(|_| is_stored));
        }
        let version = MembersVersion { stamp: 5, change: 6 };
        let need = MembersNeed { header_key: hash, version };
        let field = |at| (Bytes::from(format!("f{at}")), Bytes::from("v"));
        let mut stored: Vec<(Bytes, Bytes)> = (0..count).map(field).collect();
        stored.sort();
        let members = Members::from([(need, stored)]);
        let requests: Vec<Request> = texts.iter().map(|text| request(text)).collect();
        let Run::Done { command, .. } = run(&requests, &pairs, &members, 1, 1_000) else {
            panic!("pairs are missing");
        };
        let (command, pairs, members) = (&command, &pairs, &members);
        Executed { command, pairs, members, seed: 9, now_ms: 1_000 }.changes(&keys)
    }

    #[test]
    fn a_collection_gets_a_new_stamp_and_all_its_members() {
        let found = changes(&["hset h f0 new f2 added", "hdel h f1"], 2, &["h"]).unwrap();
        let [KeyChange { expected: Some(6), new: NewHeader::Header(new), members, .. }] =
            &found[..]
        else {
            panic!("{found:?}")
        };
        let (header, _) = Header::decode(new).unwrap();
        assert_eq!(header.count, 2);
        assert_ne!(header.stamp, 5);
        let of = |field: &str| key::member_key(&header_key("h"), header.stamp, field.as_bytes());
        assert_eq!(members[..], [(of("f0"), "new".into()), (of("f2"), "added".into())]);
    }

    #[test]
    fn a_header_alone_changes_without_its_members() {
        let found = changes(&["hget h f0"], 1, &["h"]).unwrap();
        assert_eq!((&found[0].new, found[0].members.len()), (&NewHeader::Same, 0));
        let found = changes(&["pexpire h 5000"], 1, &["h"]).unwrap();
        let NewHeader::Header(new) = &found[0].new else { panic!("{found:?}") };
        let (header, _) = Header::decode(new).unwrap();
        assert_eq!((header.stamp, header.expires_at_ms, found[0].members.len()), (5, 6_000, 0));
        let found = changes(&["del h", "set a 1"], 1, &["h", "a", "b"]).unwrap();
        let [of_h, of_a, of_b] = &found[..] else { panic!("{found:?}") };
        assert_eq!((of_h.expected, &of_h.new), (Some(6), &NewHeader::Absent));
        assert!(of_a.expected.is_none() && matches!(of_a.new, NewHeader::Header(_)));
        assert_eq!((of_b.expected, &of_b.new), (None, &NewHeader::Same));
    }

    #[test]
    fn a_name_takes_the_members_of_another_under_a_stamp_of_its_own() {
        let found = changes(&["rename h g"], 3, &["g", "h"]).unwrap();
        let [of_g, of_h] = &found[..] else { panic!("{found:?}") };
        assert_eq!(
            (of_h.expected, &of_h.new, of_h.members.len()),
            (Some(6), &NewHeader::Absent, 0)
        );
        let NewHeader::Header(new) = &of_g.new else { panic!("{found:?}") };
        let stamp = Header::decode(new).unwrap().0.stamp;
        let prefix = key::members_prefix(&header_key("g"), stamp);
        assert_eq!(of_g.members.len(), 3);
        assert!(of_g.members.iter().all(|(key, value)| key.starts_with(&prefix) && value == "v"));
    }

    #[test]
    fn a_collection_above_the_limit_is_not_written_again() {
        let found = changes(&["hset h f0 w"], COPIED_MEMBERS_MAX, &["h"]).unwrap();
        assert_eq!(found[0].members.len() as u64, COPIED_MEMBERS_MAX);
        let more = format!("hset h f{COPIED_MEMBERS_MAX} w");
        let found = changes(&[&more], COPIED_MEMBERS_MAX, &["h"]);
        let count = COPIED_MEMBERS_MAX + 1;
        assert_eq!(found, Err(Blocked::TooManyMembers { kind: "hash", count }));
    }
}
