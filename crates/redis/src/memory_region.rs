//! Region in memory, for tests and for the comparison with a real server: it executes requests through a
//! [`Program`] as a leader does, and applies the operations of its command.

use crate::header::Header;
use crate::key;
use crate::program::{ProgramAnswer, RedisProgram};
use crate::reply::{Protocol, Reply};
use crate::request::Request;
use crate::state::Members;
use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use stele_storage::{Pair, Pairs, Program, ProgramStep};
use stele_types::command::Op;
use stele_types::{CommandBuilder, Prng};

/// Pairs of one region.
#[derive(Debug)]
pub struct MemoryRegion {
    pairs: BTreeMap<Bytes, Pair>,
    seeds: Prng,
    /// Version of the protocol of all replies.
    pub protocol: Protocol,
    /// Reads of pairs from the device so far: steps of programs, not keys.
    pub reads: usize,
}

impl MemoryRegion {
    /// Creates an empty region; the numbers of its programs come from `seed`.
    pub fn new(seed: u64, protocol: Protocol) -> Self {
        Self { pairs: BTreeMap::new(), seeds: Prng::new(seed), protocol, reads: 0 }
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
                        let found = self.members(&need.header_key, need.version.stamp);
                        members.insert(need, found);
                    }
                }
                None => return Bytes::new(),
            }
        }
    }

    /// Decides a program as a leader does, reading the pairs that it names.
    fn decide(&mut self, program: &RedisProgram, now_ms: u64) -> (CommandBuilder, Bytes) {
        let mut read = Pairs::new();
        loop {
            match program.decide(&read, now_ms) {
                ProgramStep::Done(outcome) => return (outcome.command, outcome.answer),
                ProgramStep::Read(keys) => {
                    self.reads += 1;
                    for key in keys {
                        let pair = self.pairs.get(&key).cloned();
                        let is_live = |pair: &Pair| {
                            matches!(pair.expires_at_s, 0) || pair.expires_at_s > now_ms / 1000
                        };
                        read.insert(key, pair.filter(is_live));
                    }
                }
            }
        }
    }

    fn members(&self, header_key: &Bytes, stamp: u64) -> Vec<(Bytes, Bytes)> {
        let prefix = key::members_prefix(header_key, stamp);
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

/// Returns a request as a client sends it: an array of bulk strings.
pub fn encode_request(words: &[Bytes]) -> Bytes {
    let mut out = BytesMut::new();
    let words = words.iter().cloned().map(Reply::Bulk).collect();
    Reply::Array(words).encode(Protocol::Resp2, &mut out);
    out.freeze()
}
