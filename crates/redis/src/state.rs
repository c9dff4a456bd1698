//! What commands see and change: the pairs that were read, with the effects of earlier commands over them.
//!
//! A command that needs a pair that was not read stops. The caller reads what all commands of the run need,
//! and repeats the run: it is a pure function of the pairs, the time and one number that was drawn before.
//!
//! A command changes a draft. It becomes visible to later commands when the command succeeds; a command that
//! fails changes nothing.

use crate::header::{Header, Kind};
use crate::key;
use crate::reply::Reply;
use crate::transaction::MetIntent;
use bytes::Bytes;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use stele_storage::Pairs;
use stele_types::{CommandBuilder, Prng};

/// Reasons for which a command has no reply of its own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Stop {
    /// It fails with this error, and changes nothing.
    Error(Cow<'static, str>),
    /// It needs pairs that were not read; the state has noted them.
    Needs,
}

pub(crate) type Answer = Result<Reply, Stop>;

impl Stop {
    pub(crate) const SYNTAX: Self = Self::Error(Cow::Borrowed("ERR syntax error"));
    pub(crate) const WRONG_TYPE: Self = Self::Error(Cow::Borrowed(
        "WRONGTYPE Operation against a key holding the wrong kind of value",
    ));
    pub(crate) const NOT_AN_INTEGER: Self =
        Self::Error(Cow::Borrowed("ERR value is not an integer or out of range"));

    pub(crate) fn error(text: impl Into<Cow<'static, str>>) -> Self {
        Self::Error(text.into())
    }
}

/// Name with a live value: its header, and the value of a string.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub header: Header,
    pub value: Bytes,
}

/// All members under a stamp, read at a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MembersVersion {
    /// Stamp of the header.
    pub stamp: u64,
    /// Change number of the header: the same one says that no member has changed.
    pub change: u64,
}

/// Need for all members of a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MembersNeed {
    /// Engine key of the name's header.
    pub header_key: Bytes,
    /// The members that are needed.
    pub version: MembersVersion,
}

/// Members that were read at views: for each need the fields with their values, ascending.
pub type Members = BTreeMap<MembersNeed, Vec<(Bytes, Bytes)>>;

/// Pairs that a run needs and that were not read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Engine keys.
    pub keys: BTreeSet<Bytes>,
    /// Whole collections.
    pub members: BTreeSet<MembersNeed>,
    /// Intents in place of headers, which must be resolved.
    pub intents: BTreeSet<MetIntent>,
}

impl Needs {
    /// Whether nothing is needed.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.members.is_empty() && self.intents.is_empty()
    }
}

/// Effects by engine key: a value with its expiry in Unix seconds, or a delete.
type Effects = BTreeMap<Bytes, Option<(Bytes, u64)>>;

/// State of a run.
#[derive(Debug)]
pub(crate) struct State<'a> {
    stored: &'a Pairs,
    members: &'a Members,
    now_ms: u64,
    seeds: Prng,
    numbers: Prng,
    kept: Effects,
    draft: Effects,
    needs: Needs,
}

impl<'a> State<'a> {
    /// Creates the state. `seed` was drawn before the run: stamps and change numbers are derived from it.
    pub(crate) fn new(stored: &'a Pairs, members: &'a Members, seed: u64, now_ms: u64) -> Self {
        Self {
            stored,
            members,
            now_ms,
            seeds: Prng::new(seed),
            numbers: Prng::new(seed),
            kept: Effects::new(),
            draft: Effects::new(),
            needs: Needs::default(),
        }
    }

    /// Executes a command on a draft, which is kept if it succeeds.
    pub(crate) fn execute(&mut self, command: impl FnOnce(&mut Self) -> Answer) -> Answer {
        // The numbers of a command do not depend on how far the commands before it came.
        self.numbers = Prng::new(self.seeds.draw());
        let answer = command(self);
        let draft = std::mem::take(&mut self.draft);
        if answer.is_ok() {
            self.kept.extend(draft);
        }
        answer
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    pub(crate) fn take_needs(&mut self) -> Needs {
        std::mem::take(&mut self.needs)
    }

    /// Returns the operations of all commands that succeeded.
    pub(crate) fn operations(&self) -> Result<CommandBuilder, Stop> {
        let mut command = CommandBuilder::new();
        for (key, effect) in &self.kept {
            let added = match effect {
                Some((value, expires_at_s)) => command.put(key, value, *expires_at_s),
                None if self.is_known_absent(key) => continue,
                None => command.delete(key),
            };
            added.map_err(|error| Stop::error(format!("ERR {error}")))?;
        }
        Ok(command)
    }

    fn is_known_absent(&self, key: &Bytes) -> bool {
        self.stored.get(key).is_some_and(Option::is_none)
    }

    /// Notes which of these keys were not read, so that one read gets all of them.
    pub(crate) fn want<'k>(
        &mut self,
        keys: impl IntoIterator<Item = &'k Bytes>,
    ) -> Result<(), Stop> {
        let mut has_all = true;
        for key in keys {
            has_all &= self.read(key).is_ok();
        }
        if has_all { Ok(()) } else { Err(Stop::Needs) }
    }

    fn read(&mut self, key: &Bytes) -> Result<Option<Bytes>, Stop> {
        if let Some(effect) = self.draft.get(key).or_else(|| self.kept.get(key)) {
            return Ok(effect.as_ref().map(|(value, _)| value.clone()));
        }
        match self.stored.get(key) {
            Some(pair) => Ok(pair.as_ref().map(|pair| pair.value.clone())),
            None => {
                self.needs.keys.insert(key.clone());
                Err(Stop::Needs)
            }
        }
    }

    /// Returns what a name has; `None` if it is absent or has expired.
    pub(crate) fn entry(&mut self, header_key: &Bytes) -> Result<Option<Entry>, Stop> {
        let Some(bytes) = self.read(header_key)? else { return Ok(None) };
        let (header, value) = self.decode(header_key, &bytes)?;
        Ok((!header.has_expired(self.now_ms)).then_some(Entry { header, value }))
    }

    /// Like [`State::entry`]; fails if the name has another type.
    pub(crate) fn typed(&mut self, header_key: &Bytes, kind: Kind) -> Result<Option<Entry>, Stop> {
        match self.entry(header_key)? {
            Some(entry) if entry.header.kind != kind => Err(Stop::WRONG_TYPE),
            entry => Ok(entry),
        }
    }

    /// Returns a value that has no members yet.
    pub(crate) fn new_entry(&mut self, kind: Kind, value: Bytes) -> Entry {
        let stamp = self.numbers.draw();
        Entry { header: Header { kind, stamp, change: 0, count: 0, expires_at_ms: 0 }, value }
    }

    /// Fails if the pair of a name was read and is an intent. Commands that do not read a name before they
    /// change it call this.
    pub(crate) fn check_no_intent(&mut self, header_key: &Bytes) -> Result<(), Stop> {
        let stored = self.stored;
        let Some(Some(pair)) = stored.get(header_key) else { return Ok(()) };
        let Some(intent) = MetIntent::of(header_key, &pair.value) else { return Ok(()) };
        self.needs.intents.insert(intent);
        Err(Stop::Needs)
    }

    /// Sets a name, with a new change number. One that has expired already is deleted instead.
    pub(crate) fn put(&mut self, header_key: &Bytes, mut entry: Entry) {
        if entry.header.has_expired(self.now_ms) {
            return self.delete(header_key);
        }
        entry.header.change = self.numbers.draw();
        let pair = (entry.header.encode(&entry.value), entry.header.expires_at_s());
        self.draft.insert(header_key.clone(), Some(pair));
    }

    /// Deletes a name, and so its members.
    pub(crate) fn delete(&mut self, header_key: &Bytes) {
        self.draft.insert(header_key.clone(), None);
    }

    /// Notes which of these members were not read.
    pub(crate) fn want_members(
        &mut self,
        header_key: &Bytes,
        stamp: u64,
        fields: &[Bytes],
    ) -> Result<(), Stop> {
        if self.stored_version(header_key, stamp)?.is_none() {
            return Ok(());
        }
        let keys: Vec<Bytes> =
            fields.iter().map(|field| key::member_key(header_key, stamp, field)).collect();
        self.want(&keys)
    }

    /// Returns the value of a member.
    pub(crate) fn member(
        &mut self,
        header_key: &Bytes,
        stamp: u64,
        field: &[u8],
    ) -> Result<Option<Bytes>, Stop> {
        let key = key::member_key(header_key, stamp, field);
        let is_written = self.draft.contains_key(&key) || self.kept.contains_key(&key);
        match is_written || self.stored_version(header_key, stamp)?.is_some() {
            true => self.read(&key),
            false => Ok(None),
        }
    }

    /// Sets a member, or deletes it. The caller puts the header too.
    pub(crate) fn set_member(
        &mut self,
        header_key: &Bytes,
        stamp: u64,
        field: &[u8],
        value: Option<&Bytes>,
    ) {
        let key = key::member_key(header_key, stamp, field);
        self.draft.insert(key, value.map(|value| (value.clone(), 0)));
    }

    /// Returns all members under a stamp, ascending.
    pub(crate) fn all_members(
        &mut self,
        header_key: &Bytes,
        stamp: u64,
    ) -> Result<Vec<(Bytes, Bytes)>, Stop> {
        let mut found = BTreeMap::new();
        if let Some(version) = self.stored_version(header_key, stamp)? {
            let need = MembersNeed { header_key: header_key.clone(), version };
            let Some(members) = self.members.get(&need) else {
                self.needs.members.insert(need);
                return Err(Stop::Needs);
            };
            found.extend(members.iter().cloned());
        }
        let prefix = key::members_prefix(header_key, stamp);
        for effects in [&self.kept, &self.draft] {
            let from = effects.range(Bytes::copy_from_slice(&prefix)..);
            for (key, effect) in from.take_while(|(key, _)| key.starts_with(&prefix)) {
                let field = key.slice(prefix.len()..);
                match effect {
                    Some((value, _)) => found.insert(field, value.clone()),
                    None => found.remove(&field),
                };
            }
        }
        Ok(found.into_iter().collect())
    }

    /// Returns the version of the stored members under a stamp; `None` if none are stored: the stamp is new
    /// in this run.
    fn stored_version(
        &mut self,
        header_key: &Bytes,
        stamp: u64,
    ) -> Result<Option<MembersVersion>, Stop> {
        let stored = self.stored;
        let Some(Some(pair)) = stored.get(header_key) else { return Ok(None) };
        let (header, _) = self.decode(header_key, &pair.value)?;
        let version = MembersVersion { stamp, change: header.change };
        Ok((header.stamp == stamp && header.count > 0).then_some(version))
    }

    /// Decodes the pair of a header. An intent in its place is noted, so that it is resolved.
    ///
    /// Invariant: no command takes an intent for a header, or for an absent name.
    /// Test: `a_command_that_meets_an_intent_changes_nothing_and_names_it`.
    fn decode(&mut self, header_key: &Bytes, bytes: &Bytes) -> Result<(Header, Bytes), Stop> {
        let damage = match Header::decode(bytes) {
            Ok(decoded) => return Ok(decoded),
            Err(damage) => damage,
        };
        match MetIntent::of(header_key, bytes) {
            Some(intent) => {
                self.needs.intents.insert(intent);
                Err(Stop::Needs)
            }
            None => Err(Stop::error(format!("ERR {damage}"))),
        }
    }
}
