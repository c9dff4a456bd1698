//! `WriteIf`: a write of one key under conditions on the digest of its value.
//!
//! The leader decides it by a program, on the value after its whole log. The loop of a store computes the
//! digest of a short value itself. A long value is read and its digest computed on another thread before; the
//! program then compares the bytes, and if they differ, the value is read again.
//!
//! Invariant: a condition holds for the value that the write replaces, and not only for one that was read
//! before.
//! Tests: `of_two_writers_with_the_same_condition_one_wins`, `a_long_value_that_changed_meanwhile_is_read_again`.

use super::Memory;
use super::checks::Target;
use super::errors::{Failure, charge, server_is_busy};
use super::gets;
use super::modifications::{new_pair, on_unknown};
use super::reads::{on_device, view};
use super::writes::not_done;
use crate::memory::value_memory;
use bytes::Bytes;
use ring::digest::{SHA256, digest};
use std::sync::Arc;
use stele_proto::stele::kv::v1::{Values, WriteIfRequest, WriteIfResponse};
use stele_replica::{Done, Modified, NewPair, Reply, Run, StageNanos};
use stele_storage::{Outcome, Pair, Pairs, Program, ProgramStep};
use stele_types::CommandBuilder;

/// Bytes of a value of which the loop of a store computes the digest, at most: it takes less than 0.2 ms.
const HASHED_IN_LOOP_BYTES_MAX: usize = 64 << 10;
/// Digests of a condition at most.
const DIGESTS_MAX: usize = 64;
/// Tries while a long value changes.
const TRIES: usize = 3;

/// First 16 bytes of the SHA-256 of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ValueDigest(pub [u8; Self::BYTES]);

impl ValueDigest {
    /// Bytes of a digest.
    pub(crate) const BYTES: usize = 16;

    /// Computes the digest of a value.
    pub(crate) fn of(value: &[u8]) -> Self {
        let hash = digest(&SHA256, value);
        let first = hash.as_ref().first_chunk().copied();
        // The hash has 32 bytes.
        Self(first.unwrap_or_default())
    }
}

/// Conditions on the value of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Conditions {
    if_match: Option<OfValue>,
    if_none_match: Option<OfValue>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum OfValue {
    Any,
    OneOf(Vec<ValueDigest>),
}

impl OfValue {
    fn of(values: &Values) -> Result<Self, Failure> {
        if values.all {
            return Ok(Self::Any);
        }
        if values.digests.len() > DIGESTS_MAX {
            return Err(Failure::Invalid(format!(
                "a condition of more than {DIGESTS_MAX} digests"
            )));
        }
        let digest = |bytes: &Bytes| {
            let bytes = <[u8; ValueDigest::BYTES]>::try_from(&bytes[..]);
            let odd = |_| Failure::Invalid("a digest has 16 bytes".to_owned());
            bytes.map(ValueDigest).map_err(odd)
        };
        Ok(Self::OneOf(values.digests.iter().map(digest).collect::<Result<_, Failure>>()?))
    }

    fn contains(&self, found: Option<ValueDigest>) -> bool {
        match self {
            Self::Any => found.is_some(),
            Self::OneOf(digests) => found.is_some_and(|found| digests.contains(&found)),
        }
    }
}

impl Conditions {
    fn of(request: &WriteIfRequest) -> Result<Self, Failure> {
        let of = |values: &Option<Values>| values.as_ref().map(OfValue::of).transpose();
        Ok(Self { if_match: of(&request.if_match)?, if_none_match: of(&request.if_none_match)? })
    }

    fn hold(&self, found: Option<ValueDigest>) -> bool {
        // bug server.condition_unchecked: return true;
        self.if_match.as_ref().is_none_or(|values| values.contains(found))
            && !self.if_none_match.as_ref().is_some_and(|values| values.contains(found))
    }
}

/// Writes a key if the conditions of the request hold.
pub(super) async fn write_if(
    target: &Target,
    request: &WriteIfRequest,
    memory: &Memory,
) -> Result<(WriteIfResponse, StageNanos), Failure> {
    let key = target.written_key(&request.cf, &request.key)?;
    let conditions = Conditions::of(request)?;
    let new = match &request.put {
        Some(put) => new_pair(target, &put.value, put.ttl)?,
        None => NewPair::Delete,
    };
    charge(memory, (key.len() + new.value_bytes()) as u64, target.header.region)?;
    for _ in 0..TRIES {
        let value_bytes = gets::value_bytes(target, key.clone(), memory).await?;
        charge(memory, value_memory(value_bytes), target.header.region)?;
        let known = match value_bytes > HASHED_IN_LOOP_BYTES_MAX as u64 {
            true => known(target, &key, memory).await?,
            false => None,
        };
        let (conditions, new) = (conditions.clone(), new.clone());
        let program = WriteIf { keys: [key.clone()], conditions, new, known };
        let (answer, stages) = decided(target, program, memory).await?;
        match Answer::decode(&answer) {
            Some(Answer::Decided { done, found }) => {
                let digest = found.map(|digest| Bytes::copy_from_slice(&digest.0));
                return Ok((WriteIfResponse { done, digest, ..Default::default() }, stages));
            }
            Some(Answer::Unread) => {}
            None => return Err(Failure::Final("the answer of a program is damaged".to_owned())),
        }
    }
    Err(server_is_busy("the long value of the key changed while it was read"))
}

/// Reads a value; returns it with its digest.
async fn known(
    target: &Target,
    key: &Bytes,
    memory: &Memory,
) -> Result<Option<(Bytes, ValueDigest)>, Failure> {
    let view = view(target).await?;
    let Some(pair) = gets::live_pair(target, view, key.clone(), memory).await? else {
        return Ok(None);
    };
    let value = pair.value;
    let hashed = move || {
        let digest = ValueDigest::of(&value);
        Ok(Ok(Some((value, digest))))
    };
    on_device(target, memory, hashed).await
}

async fn decided(
    target: &Target,
    program: WriteIf,
    memory: &Memory,
) -> Result<(Bytes, StageNanos), Failure> {
    let clock = target.store.clock();
    let arrived_nanos = clock.monotonic_nanos();
    let run = Run { header: target.header, program: Arc::new(program) };
    match target.store.submit(run, Some(memory.clone())).await {
        Reply::Done(Done::Modified { result: Modified::Answered { answer }, timings }) => {
            Ok((answer, timings.stages(arrived_nanos, clock.monotonic_nanos())))
        }
        other => Err(not_done(target, other, on_unknown(target))),
    }
}

/// Program that writes one key.
#[derive(Debug)]
struct WriteIf {
    keys: [Bytes; 1],
    conditions: Conditions,
    new: NewPair,
    /// Value that was read before, with its digest.
    known: Option<(Bytes, ValueDigest)>,
}

impl WriteIf {
    /// Returns the digest of a value; `None` if it is too long to compute it here.
    fn digest_of(&self, pair: &Pair) -> Option<ValueDigest> {
        match &self.known {
            // bug server.condition_of_read_value: `*value == pair.value` is `true`
            Some((value, digest)) if *value == pair.value => Some(*digest),
            _ if pair.value.len() > HASHED_IN_LOOP_BYTES_MAX => None,
            _ => Some(ValueDigest::of(&pair.value)),
        }
    }
}

impl Program for WriteIf {
    fn keys(&self) -> &[Bytes] {
        &self.keys
    }

    fn bytes(&self) -> usize {
        let keys: usize = self.keys.iter().map(Bytes::len).sum();
        keys + self.new.value_bytes()
    }

    fn decide(&self, pairs: &Pairs, _: u64) -> ProgramStep {
        let [key] = &self.keys;
        let found = match pairs.get(key) {
            None => return ProgramStep::Read(vec![key.clone()]),
            Some(None) => None,
            Some(Some(pair)) => match self.digest_of(pair) {
                Some(digest) => Some(digest),
                None => return done(CommandBuilder::new(), Answer::Unread),
            },
        };
        let unmet = Answer::Decided { done: false, found };
        match self.conditions.hold(found).then(|| self.new.command(key)) {
            Some(Ok(command)) => done(command, Answer::Decided { done: true, found }),
            // Its limits were checked before.
            Some(Err(_)) | None => done(CommandBuilder::new(), unmet),
        }
    }
}

fn done(command: CommandBuilder, answer: Answer) -> ProgramStep {
    ProgramStep::Done(Outcome { command, answer: answer.encode() })
}

/// Answer of the program, which stays within the process.
///
/// ```text
/// answer := 0 digest?    the conditions were not met
///         | 1 digest?    they were
///         | 2            the value must be read before
/// digest := 16 bytes; none without a value
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Decided { done: bool, found: Option<ValueDigest> },
    Unread,
}

impl Answer {
    fn encode(self) -> Bytes {
        let mut out = Vec::with_capacity(1 + ValueDigest::BYTES);
        match self {
            Self::Decided { done, found } => {
                out.push(u8::from(done));
                found.iter().for_each(|digest| out.extend_from_slice(&digest.0));
            }
            Self::Unread => out.push(2),
        }
        out.into()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let found = match rest {
            [] => None,
            digest => Some(ValueDigest(digest.try_into().ok()?)),
        };
        match kind {
            0 | 1 => Some(Self::Decided { done: *kind == 1, found }),
            2 if found.is_none() => Some(Self::Unread),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digests(values: &[&[u8]]) -> Option<OfValue> {
        Some(OfValue::OneOf(values.iter().map(|value| ValueDigest::of(value)).collect()))
    }

    fn decide(program: &WriteIf, value: Option<&[u8]>) -> (bool, Answer) {
        let [key] = &program.keys;
        let pair = value.map(|value| Pair {
            key: key.clone(),
            value: Bytes::copy_from_slice(value),
            expires_at_s: 0,
        });
        let pairs = Pairs::from([(key.clone(), pair)]);
        match program.decide(&pairs, 0) {
            ProgramStep::Done(outcome) => {
                (!outcome.command.is_empty(), Answer::decode(&outcome.answer).unwrap())
            }
            ProgramStep::Read(keys) => panic!("{keys:?}"),
        }
    }

    fn program(if_match: Option<OfValue>, if_none_match: Option<OfValue>) -> WriteIf {
        WriteIf {
            keys: [Bytes::from_static(b"k")],
            conditions: Conditions { if_match, if_none_match },
            new: NewPair::Put { value: Bytes::from_static(b"new"), expires_at_s: 0 },
            known: None,
        }
    }

    #[test]
    fn conditions_hold_for_the_values_that_they_name() {
        let any = || Some(OfValue::Any);
        for (if_match, if_none_match, absent, a, b) in [
            (None, None, true, true, true),
            (any(), None, false, true, true),
            (None, any(), true, false, false),
            (digests(&[b"a"]), None, false, true, false),
            (None, digests(&[b"a"]), true, false, true),
            (digests(&[b"a", b"b"]), digests(&[b"b"]), false, true, false),
            (digests(&[]), None, false, false, false),
            (None, digests(&[]), true, true, true),
        ] {
            let program = program(if_match, if_none_match);
            let results = [None, Some(&b"a"[..]), Some(&b"b"[..])].map(|value| {
                let found = value.map(ValueDigest::of);
                let (is_written, answer) = decide(&program, value);
                assert_eq!(answer, Answer::Decided { done: is_written, found });
                is_written
            });
            assert_eq!(results, [absent, a, b], "{program:?}");
        }
    }

    #[test]
    fn a_long_value_that_changed_meanwhile_is_read_again() {
        let long = vec![7; HASHED_IN_LOOP_BYTES_MAX + 1];
        let mut program = program(digests(&[&long]), None);
        assert_eq!(decide(&program, Some(&long)), (false, Answer::Unread));
        let known = Bytes::from(long.clone());
        program.known = Some((known.clone(), ValueDigest::of(&known)));
        assert!(decide(&program, Some(&long)).0);
        let mut other = long;
        other[9] = 8;
        assert_eq!(decide(&program, Some(&other)), (false, Answer::Unread));
        let found = Some(ValueDigest::of(b"short"));
        let unmet = Answer::Decided { done: false, found };
        assert_eq!(decide(&program, Some(b"short")), (false, unmet));
    }

    #[test]
    fn an_answer_survives_its_bytes_and_others_are_damage() {
        let found = Some(ValueDigest::of(b"v"));
        for answer in [
            Answer::Decided { done: true, found },
            Answer::Decided { done: false, found: None },
            Answer::Unread,
        ] {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
        for bytes in [&[][..], &[3], &[1, 2, 3], &[2; 17]] {
            assert_eq!(Answer::decode(bytes), None);
        }
    }

    #[test]
    fn a_condition_is_bounded_and_its_digests_have_their_length() {
        let values = |digests| Values { all: false, digests };
        let digest = Bytes::from_static(&[1; 16]);
        assert!(OfValue::of(&values(vec![digest.clone(); DIGESTS_MAX])).is_ok());
        assert!(OfValue::of(&values(vec![digest; DIGESTS_MAX + 1])).is_err());
        assert!(OfValue::of(&values(vec![Bytes::from_static(&[1; 15])])).is_err());
    }
}
