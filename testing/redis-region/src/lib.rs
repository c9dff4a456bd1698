//! Region in memory, for tests and for the comparison with a real server: it executes requests through a
//! [`Program`] as a leader does, and applies the operations of its command.

use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use stele_redis::{
    Header, Members, MembersNeed, ProgramAnswer, Protocol, RedisProgram, Reply, Request, key,
};
use stele_storage::{CachedGet, EngineView, Order, Pair, Pairs, Program, ProgramStep, ScanOptions};
use stele_types::command::Op;
use stele_types::{CommandBuilder, Prng, Result};

/// Pairs of one region.
#[derive(Debug)]
pub struct MemoryRegion {
    pairs: BTreeMap<Bytes, Pair>,
    seeds: Prng,
    /// Version of the protocol of all replies.
    pub protocol: Protocol,
    /// Programs that may replace pairs unread get those of all their keys first.
    pub is_guarded: bool,
    /// Reads of pairs from the device so far: steps of programs, not keys.
    pub reads: usize,
}

impl MemoryRegion {
    /// Creates an empty region; the numbers of its programs come from `seed`.
    pub fn new(seed: u64, protocol: Protocol) -> Self {
        let (pairs, seeds) = (BTreeMap::new(), Prng::new(seed));
        Self { pairs, seeds, protocol, is_guarded: false, reads: 0 }
    }

    /// Executes one request in a database: the name of a command, and its arguments.
    pub fn execute(&mut self, database: u8, words: &[Bytes], now_ms: u64) -> Bytes {
        match Request::parse(database, words.to_vec()) {
            Ok(request) => self.execute_all(&[request], false, now_ms),
            Err(error) => error.reply().encoded(self.protocol),
        }
    }

    /// Executes requests as one program, of EXEC if `is_exec`. Whole collections that it needs are read and
    /// the program is proposed again.
    pub fn execute_all(&mut self, requests: &[Request], is_exec: bool, now_ms: u64) -> Bytes {
        let mut members = Members::new();
        loop {
            let program = RedisProgram::new(requests.to_vec(), self.protocol, self.seeds.draw());
            let program = match program {
                Ok(program) if is_exec => program.of_exec().with_members(members.clone()),
                Ok(program) => program.with_members(members.clone()),
                Err(error) => return Reply::error(format!("ERR {error}")).encoded(self.protocol),
            };
            let (command, answer) = self.decide(&program, now_ms);
            match ProgramAnswer::decode(answer) {
                Some(ProgramAnswer::Replies(replies)) => {
                    self.apply(&command);
                    return replies;
                }
                Some(ProgramAnswer::NeedsMembers(needs)) => {
                    for need in needs {
                        let found = self.members(&need);
                        members.insert(need, found);
                    }
                }
                Some(ProgramAnswer::Meets(_)) => {
                    let text = "TRYAGAIN another transaction changes names of the commands";
                    return Reply::error(text).encoded(self.protocol);
                }
                None => return Bytes::new(),
            }
        }
    }

    /// Executes a program. Returns its answer.
    pub fn execute_program(&mut self, program: &dyn Program, now_ms: u64) -> Bytes {
        let (command, answer) = self.decide(program, now_ms);
        self.apply(&command);
        answer
    }

    /// Decides a program as a leader does, reading the pairs that it names.
    fn decide(&mut self, program: &dyn Program, now_ms: u64) -> (CommandBuilder, Bytes) {
        let mut read = Pairs::new();
        if self.is_guarded && program.may_replace_unread() {
            let found = |key: &Bytes| (key.clone(), self.pairs.get(key).cloned());
            read.extend(program.keys().iter().map(found));
        }
        loop {
            match program.decide(&read, now_ms) {
                ProgramStep::Done(outcome) => return (outcome.command, outcome.answer),
                ProgramStep::Read(keys) => {
                    self.reads += 1;
                    for key in keys {
                        let mut pair = self.pairs.get(&key).cloned();
                        if let Some(pair) = pair.as_mut().filter(|_| !program.reads_value(&key)) {
                            pair.value = Bytes::new();
                        }
                        let is_live = |pair: &Pair| {
                            matches!(pair.expires_at_s, 0) || pair.expires_at_s > now_ms / 1000
                        };
                        read.insert(key, pair.filter(is_live));
                    }
                }
            }
        }
    }

    /// Returns all members of a collection: the fields with their values, ascending.
    pub fn members(&self, need: &MembersNeed) -> Vec<(Bytes, Bytes)> {
        let prefix = key::members_prefix(&need.header_key, need.version.stamp);
        let from = self.pairs.range(Bytes::copy_from_slice(&prefix)..);
        let members = from.take_while(|(key, _)| key.starts_with(&prefix));
        members.map(|(key, pair)| (key.slice(prefix.len()..), pair.value.clone())).collect()
    }

    fn apply(&mut self, command: &CommandBuilder) {
        for op in command.ops() {
            match op {
                Op::Put { key, value, expires_at_s, .. } => {
                    let (key, value) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
                    self.pairs.insert(key.clone(), Pair { key, value, expires_at_s });
                }
                Op::Delete { key } => {
                    self.pairs.remove(key);
                }
                Op::DeleteRange { start, end } => self
                    .pairs
                    .retain(|key, _| &key[..] < start || (!end.is_empty() && &key[..] >= end)),
            }
        }
    }

    /// Returns a view of the pairs.
    pub fn view(&self) -> MemoryView {
        MemoryView(self.pairs.clone())
    }

    /// Returns the value of a pair.
    pub fn value(&self, engine_key: &Bytes) -> Option<&Bytes> {
        self.pairs.get(engine_key).map(|pair| &pair.value)
    }

    /// Returns all engine keys, ascending.
    pub fn keys(&self) -> impl Iterator<Item = &Bytes> {
        self.pairs.keys()
    }

    /// Returns the header of a name, live or not, and the number of all its members, of any stamp.
    pub fn stored(&self, database: u8, name: &[u8]) -> (Option<Header>, usize) {
        let header_key = key::header_key(database, name);
        let header = self.pairs.get(&header_key);
        let header = header.and_then(|pair| Header::decode(&pair.value).ok()).map(|found| found.0);
        let is_member = |engine_key: &&Bytes| {
            let named = key::decode(engine_key);
            named.is_some_and(|named| named.name == name && named.part != key::KeyPart::Header)
        };
        (header, self.pairs.keys().filter(is_member).count())
    }
}

/// View of a region in memory.
#[derive(Debug)]
pub struct MemoryView(BTreeMap<Bytes, Pair>);

impl EngineView for MemoryView {
    fn get(&self, key: &[u8]) -> Result<Option<Pair>> {
        Ok(self.0.get(key).cloned())
    }

    fn get_cached(&self, key: &[u8]) -> Result<CachedGet> {
        self.get(key).map(CachedGet::Ready)
    }

    fn scan(&self, options: &ScanOptions) -> Result<Vec<Pair>> {
        let inside = self.0.values().filter(|pair| options.range.contains(&pair.key)).cloned();
        let value = |pair: &Pair| if options.keys_only { Bytes::new() } else { pair.value.clone() };
        let mut found: Vec<Pair> =
            inside.map(|pair| Pair { value: value(&pair), ..pair }).collect();
        if options.order == Order::Reverse {
            found.reverse();
        }
        let mut bytes = 0;
        let mut fits = |pair: &Pair| {
            let is_first = bytes == 0;
            bytes += pair.key.len() + pair.value.len();
            is_first || bytes <= options.bytes_max
        };
        Ok(found.into_iter().take(options.limit).take_while(|pair| fits(pair)).collect())
    }
}

/// Returns a request as a client sends it: an array of bulk strings.
pub fn encode_request(words: &[Bytes]) -> Bytes {
    let mut out = BytesMut::new();
    let words = words.iter().cloned().map(Reply::Bulk).collect();
    Reply::Array(words).encode(Protocol::Resp2, &mut out);
    out.freeze()
}
