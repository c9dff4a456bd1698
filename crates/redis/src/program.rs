//! Runs of requests of one region, decided together by the leader.
//!
//! A run executes its requests in order; later ones see the effects of earlier ones. If pairs are missing,
//! all requests of the run are tried once, so that one read gets what all of them need. Then the run begins
//! again. A run that needs whole collections is answered with these needs, and changes nothing: the caller
//! reads them at a view and proposes the run again with what it read. Its change numbers prove that nothing
//! has changed since.

use crate::commands::Call;
use crate::header::{Header, HeaderDamage};
use crate::reply::{Protocol, Reply, put_array_header};
use crate::request::Request;
use crate::state::{Members, MembersNeed, MembersVersion, Needs, State, Stop};
use crate::table::READ_ONLY;
use crate::transaction::MetIntent;
use bytes::{BufMut, Bytes, BytesMut};
use std::collections::BTreeSet;
use stele_storage::{Outcome, PROGRAM_KEYS_MAX, Pair, Pairs, Program, ProgramStep};
use stele_types::{CommandBuilder, Error, Result, varint};

/// What a run of requests came to.
#[derive(Debug)]
pub enum Run {
    /// It needs pairs that were not read. It changes nothing.
    Needs(Needs),
    /// It is done.
    Done {
        /// Operations, which take effect together.
        command: CommandBuilder,
        /// Replies in the order of the requests.
        replies: Vec<Reply>,
    },
}

/// Executes requests in order on the pairs that were read, at a time in Unix milliseconds. `seed` was drawn
/// before: the same arguments give the same result.
pub fn run(requests: &[Request], pairs: &Pairs, members: &Members, seed: u64, now_ms: u64) -> Run {
    let mut state = State::new(pairs, members, seed, now_ms);
    let mut replies = Vec::with_capacity(requests.len());
    for request in requests {
        replies.push(match state.execute(|state| execute(request, state)) {
            Ok(reply) => reply,
            Err(Stop::Error(text)) => Reply::Error(text),
            // The replies are not used: something is needed.
            Err(Stop::Needs) => Reply::Null,
        });
    }
    let needs = state.take_needs();
    if !needs.is_empty() {
        return Run::Needs(needs);
    }
    match state.operations() {
        Ok(command) => Run::Done { command, replies },
        Err(stop) => {
            let text = match stop {
                Stop::Error(text) => text,
                Stop::Needs => "ERR the requests need pairs that were not read".into(),
            };
            let replies = vec![Reply::Error(text); requests.len()];
            Run::Done { command: CommandBuilder::new(), replies }
        }
    }
}

fn execute(request: &Request, state: &mut State<'_>) -> std::result::Result<Reply, Stop> {
    match request.spec().execute {
        Some(execute) => execute(&mut Call::new(request, state)),
        None => Err(Stop::error(format!(
            "ERR '{}' is not a command of a program: the connection answers it",
            request.spec().name
        ))),
    }
}

/// Name that WATCH named, as it was then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Engine key of its header.
    pub header_key: Bytes,
    /// Change number; `None` if the name was absent or had expired.
    pub change: Option<u64>,
}

impl Watched {
    /// Returns the name as its pair is at a time in Unix milliseconds. Fails for a damaged header.
    pub fn now(
        header_key: Bytes,
        pair: Option<&Pair>,
        now_ms: u64,
    ) -> std::result::Result<Self, HeaderDamage> {
        let header = pair.map(|pair| Header::decode(&pair.value)).transpose()?;
        let live = header.map(|(header, _)| header).filter(|header| !header.has_expired(now_ms));
        Ok(Self { header_key, change: live.map(|header| header.change) })
    }

    /// Invariant: a value that has changed and changed back counts as changed: each change draws a number.
    fn is_unchanged(&self, pairs: &Pairs, now_ms: u64) -> bool {
        let pair = pairs.get(&self.header_key).and_then(Option::as_ref);
        Self::now(self.header_key.clone(), pair, now_ms).as_ref() == Ok(self)
    }
}

/// Run of requests as a program of the store.
#[derive(Debug)]
pub struct RedisProgram {
    requests: Vec<Request>,
    members: Members,
    protocol: Protocol,
    seed: u64,
    is_exec: bool,
    watched: Vec<Watched>,
    keys: Vec<Bytes>,
    bytes: usize,
}

impl RedisProgram {
    /// Creates the program of a part of a pipeline. `seed` is a random number drawn for it. Fails with
    /// [`Error::Invalid`] if the requests touch more than [`PROGRAM_KEYS_MAX`] names.
    pub fn new(requests: Vec<Request>, protocol: Protocol, seed: u64) -> Result<Self> {
        let keys: Vec<Bytes> = requests.iter().flat_map(|request| request.header_keys()).collect();
        let bytes = requests.iter().map(Request::bytes).sum();
        let members = Members::new();
        let watched = Vec::new();
        Self { requests, members, protocol, seed, is_exec: false, watched, keys, bytes }.checked()
    }

    /// Orders the keys and checks their number.
    fn checked(mut self) -> Result<Self> {
        self.keys.sort();
        self.keys.dedup();
        if self.keys.len() > PROGRAM_KEYS_MAX {
            return Err(Error::invalid(format!(
                "requests that touch {} names; the limit is {PROGRAM_KEYS_MAX}: split them",
                self.keys.len()
            )));
        }
        Ok(self)
    }

    /// Makes it the program of EXEC: one array holds all replies.
    #[must_use]
    pub fn of_exec(mut self) -> Self {
        self.is_exec = true;
        self
    }

    /// Makes it answer the missing array, and change nothing, unless all watched names are as they were.
    /// Fails with [`Error::Invalid`] as [`RedisProgram::new`] does.
    pub fn watching(mut self, watched: Vec<Watched>) -> Result<Self> {
        self.keys.extend(watched.iter().map(|watched| watched.header_key.clone()));
        self.watched = watched;
        self.checked()
    }

    /// Adds collections that were read at a view for an earlier attempt.
    #[must_use]
    pub fn with_members(mut self, members: Members) -> Self {
        let pair_bytes = |(field, value): &(Bytes, Bytes)| field.len() + value.len();
        self.bytes += members.values().flatten().map(pair_bytes).sum::<usize>();
        self.members = members;
        self
    }

    /// Returns the keys of watched names that were not read.
    fn unread_watched(&self, pairs: &Pairs) -> Vec<Bytes> {
        let keys = self.watched.iter().map(|watched| &watched.header_key);
        let unread: BTreeSet<&Bytes> = keys.filter(|key| !pairs.contains_key(*key)).collect();
        unread.into_iter().cloned().collect()
    }

    /// Returns the intents in place of the headers of watched names.
    fn watched_intents(&self, pairs: &Pairs) -> Vec<MetIntent> {
        let keys = self.watched.iter().map(|watched| &watched.header_key);
        let met: BTreeSet<MetIntent> = keys
            .filter_map(|key| MetIntent::of_pair(key, pairs.get(key).and_then(Option::as_ref)))
            .collect();
        met.into_iter().collect()
    }

    fn encode(&self, replies: &[Reply]) -> Bytes {
        let mut out = BytesMut::new();
        if self.is_exec {
            put_array_header(&mut out, replies.len());
        }
        for reply in replies {
            reply.encode(self.protocol, &mut out);
        }
        out.freeze()
    }
}

impl Program for RedisProgram {
    fn keys(&self) -> &[Bytes] {
        &self.keys
    }

    fn bytes(&self) -> usize {
        self.bytes + self.keys.iter().map(Bytes::len).sum::<usize>()
    }

    fn may_replace_unread(&self) -> bool {
        self.requests.iter().any(|request| !request.spec().has(READ_ONLY))
    }

    fn decide(&self, pairs: &Pairs, now_ms: u64) -> ProgramStep {
        let unread = self.unread_watched(pairs);
        if !unread.is_empty() {
            return ProgramStep::Read(unread);
        }
        let met = self.watched_intents(pairs);
        if !met.is_empty() {
            return answered(&ProgramAnswer::Meets(met));
        }
        if !self.watched.iter().all(|watched| watched.is_unchanged(pairs, now_ms)) {
            let answer = Reply::NullArray.encoded(self.protocol);
            return ProgramStep::Done(Outcome { command: CommandBuilder::new(), answer });
        }
        match run(&self.requests, pairs, &self.members, self.seed, now_ms) {
            Run::Needs(needs) if !needs.keys.is_empty() => {
                ProgramStep::Read(needs.keys.into_iter().collect())
            }
            Run::Needs(needs) if !needs.intents.is_empty() => {
                answered(&ProgramAnswer::Meets(needs.intents.into_iter().collect()))
            }
            Run::Needs(needs) => {
                answered(&ProgramAnswer::NeedsMembers(needs.members.into_iter().collect()))
            }
            Run::Done { command, replies } => {
                ProgramStep::Done(Outcome { command, answer: self.encode(&replies) })
            }
        }
    }
}

fn answered(answer: &ProgramAnswer) -> ProgramStep {
    ProgramStep::Done(Outcome { command: CommandBuilder::new(), answer: answer.encode() })
}

/// Answer of a program.
///
/// ```text
/// answer := replies                                          (never begins with 0x00 or 0x01)
///         | 0x00 (key_len:varint header_key stamp:u64be change:u64be)*
///         | 0x01 (key_len:varint header_key transaction:u128be key_len:varint record_key)*
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramAnswer {
    /// Encoded replies.
    Replies(Bytes),
    /// It changed nothing: it needs these collections.
    NeedsMembers(Vec<MembersNeed>),
    /// It changed nothing: names have intents, which must be resolved.
    Meets(Vec<MetIntent>),
}

const NEEDS: u8 = 0x00;
const MEETS: u8 = 0x01;

impl ProgramAnswer {
    fn encode(&self) -> Bytes {
        match self {
            Self::Replies(replies) => replies.clone(),
            Self::NeedsMembers(needs) => {
                let mut out = vec![NEEDS];
                for need in needs {
                    varint::put_bytes(&mut out, &need.header_key);
                    out.put_u64(need.version.stamp);
                    out.put_u64(need.version.change);
                }
                Bytes::from(out)
            }
            Self::Meets(met) => [&[MEETS][..], &MetIntent::encode_all(met)].concat().into(),
        }
    }

    /// Decodes an answer. `None` if its bytes are not one.
    pub fn decode(answer: Bytes) -> Option<Self> {
        if let Some(met) = answer.strip_prefix(&[MEETS]) {
            return MetIntent::decode_all(met).map(Self::Meets);
        }
        let Some(mut rest) = answer.strip_prefix(&[NEEDS]) else {
            return Some(Self::Replies(answer));
        };
        let mut needs = Vec::new();
        while !rest.is_empty() {
            let header_key = Bytes::copy_from_slice(varint::take_bytes(&mut rest)?);
            let (stamp, after) = rest.split_first_chunk::<8>()?;
            let (change, after) = after.split_first_chunk::<8>()?;
            rest = after;
            let (stamp, change) = (u64::from_be_bytes(*stamp), u64::from_be_bytes(*change));
            needs.push(MembersNeed { header_key, version: MembersVersion { stamp, change } });
        }
        Some(Self::NeedsMembers(needs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_replies_or_needs_and_a_cut_one_is_refused() {
        let need = |name: &[u8], stamp| MembersNeed {
            header_key: Bytes::copy_from_slice(name),
            version: MembersVersion { stamp, change: u64::MAX - stamp },
        };
        let answers = [
            ProgramAnswer::Replies(Bytes::from_static(b"+OK\r\n")),
            ProgramAnswer::Replies(Bytes::new()),
            ProgramAnswer::NeedsMembers(vec![need(b"a", 1), need(b"", 2)]),
        ];
        for answer in answers {
            assert_eq!(ProgramAnswer::decode(answer.encode()), Some(answer));
        }
        let one = ProgramAnswer::NeedsMembers(vec![need(b"a", 1)]).encode();
        for cut in 2..one.len() {
            assert_eq!(ProgramAnswer::decode(one.slice(..cut)), None);
        }
    }

    #[test]
    fn a_program_names_each_header_once_and_refuses_too_many() {
        let request = |words: &[&str]| {
            let words = words.iter().map(|word| Bytes::copy_from_slice(word.as_bytes()));
            Request::parse(0, words.collect()).unwrap()
        };
        let requests = vec![request(&["get", "b"]), request(&["mset", "a", "1", "b", "2"])];
        let program = RedisProgram::new(requests, Protocol::Resp2, 1).unwrap();
        let header = |name: &[u8]| crate::key::header_key(0, name);
        assert_eq!(program.keys(), [header(b"a"), header(b"b")]);
        assert_eq!(program.bytes(), 4 + 8 + 2 * header(b"a").len());
        let names: Vec<String> = (0..=PROGRAM_KEYS_MAX).map(|i| i.to_string()).collect();
        let mut words = vec!["del"];
        words.extend(names.iter().map(String::as_str));
        let error = RedisProgram::new(vec![request(&words)], Protocol::Resp2, 1).unwrap_err();
        assert!(error.to_string().contains("1025 names"), "{error}");
    }
}
