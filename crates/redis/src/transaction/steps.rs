//! Steps of a transaction over several regions: each is a program of one region.

use super::changes::KeyChange;
use super::layout::{Intent, MetIntent, NewHeader, Record, RecordState, TransactionId, take_keys};
use super::{ABANDONED_MS, PENDING_MS_MAX};
use crate::header::{Header, HeaderDamage};
use crate::key;
use bytes::{BufMut, Bytes};
use std::collections::BTreeSet;
use stele_storage::{Outcome, PROGRAM_KEYS_MAX, Pair, Pairs, Program, ProgramStep};
use stele_types::{CommandBuilder, Error, KeyRange, Result, varint};

/// Way in which an intent is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// To the old header: the transaction was aborted.
    Old,
    /// To the new header: the transaction has committed.
    New,
}

/// Step in one region.
#[derive(Clone, Debug)]
pub enum Step {
    /// Creates the record. Sent once.
    Create {
        /// Engine key of the record.
        record_key: Bytes,
        /// Engine keys of the headers of all names.
        header_keys: Vec<Bytes>,
    },
    /// Reads headers and members.
    Read {
        /// Engine keys of headers.
        header_keys: Vec<Bytes>,
        /// Engine keys of members of these names.
        member_keys: Vec<Bytes>,
    },
    /// Writes intents. Sent once.
    Intend {
        /// The transaction.
        transaction: TransactionId,
        /// Engine key of its record.
        record_key: Bytes,
        /// The changes.
        changes: Vec<KeyChange>,
    },
    /// Changes the names in the region of the record, and makes the record a committed one; deletes it if
    /// a name has changed since it was read. Sent once.
    Commit {
        /// Engine key of the record.
        record_key: Bytes,
        /// Change numbers that were read, by the engine key of the header.
        expected: Vec<(Bytes, Option<u64>)>,
        /// Operations on these names.
        operations: CommandBuilder,
    },
    /// Reads the record, and deletes it if it is pending and old.
    Ask {
        /// Engine key of the record.
        record_key: Bytes,
        /// Deletes a pending record of any age.
        aborts: bool,
    },
    /// Resolves intents of a transaction.
    Resolve {
        /// The transaction.
        transaction: TransactionId,
        /// Engine keys of headers.
        header_keys: Vec<Bytes>,
        /// The way.
        way: Way,
    },
    /// Deletes a committed record. No intent of it is left.
    Forget {
        /// Engine key of the record.
        record_key: Bytes,
    },
}

/// Answer to a step.
///
/// ```text
/// answer := 0 | 1 | 2 | 3 intent* | 4 | 5 header_key* | 6 header_key*
///         | 7 now_ms:varint (key expires_at_s+1:varint value | key 0)*      0: no live pair
///         | 8 text
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepAnswer {
    /// It is done.
    Done,
    /// Nothing was done: a name has changed since it was read.
    Changed,
    /// Nothing was done: the record is absent.
    Absent,
    /// Nothing was done: names have intents of other transactions.
    Meets(Vec<MetIntent>),
    /// The record is pending.
    Pending,
    /// The record is committed; engine keys of the headers of all names.
    Committed(Vec<Bytes>),
    /// The record was pending, and is deleted; engine keys of the headers of all names.
    Aborted(Vec<Bytes>),
    /// The pairs that were read, at a time of the leader in Unix milliseconds.
    Read(Pairs, u64),
    /// Nothing was done: a pair is damaged, or a limit is exceeded.
    Refused(String),
}

/// A step as a program of the store.
#[derive(Clone, Debug)]
pub struct StepProgram {
    step: Step,
    keys: Vec<Bytes>,
}

impl StepProgram {
    /// Creates the program. Fails with [`Error::Invalid`] if it has more than [`PROGRAM_KEYS_MAX`] names.
    pub fn new(step: Step) -> Result<Self> {
        let keys: BTreeSet<Bytes> = match &step {
            Step::Create { record_key, .. }
            | Step::Ask { record_key, .. }
            | Step::Forget { record_key } => [record_key.clone()].into(),
            Step::Read { header_keys, .. } | Step::Resolve { header_keys, .. } => {
                header_keys.iter().cloned().collect()
            }
            Step::Intend { changes, .. } => {
                changes.iter().map(|change| change.header_key.clone()).collect()
            }
            Step::Commit { record_key, expected, .. } => {
                let names = expected.iter().map(|(header_key, _)| header_key.clone());
                names.chain([record_key.clone()]).collect()
            }
        };
        if keys.len() > PROGRAM_KEYS_MAX {
            let text = format!("a transaction on more than {PROGRAM_KEYS_MAX} names of one region");
            return Err(Error::invalid(text));
        }
        Ok(Self { step, keys: keys.into_iter().collect() })
    }

    /// Returns the step.
    pub fn step(&self) -> &Step {
        &self.step
    }

    fn wanted(&self) -> impl Iterator<Item = &Bytes> {
        let members = match &self.step {
            Step::Read { member_keys, .. } => &member_keys[..],
            _ => &[],
        };
        self.keys.iter().chain(members)
    }

    fn carry_out(&self, pairs: &Pairs, now_ms: u64, command: &mut CommandBuilder) -> Decided {
        match &self.step {
            Step::Create { record_key, header_keys } => {
                create(record_key, header_keys, pairs, now_ms, command)
            }
            Step::Read { header_keys, .. } => {
                let met = met(header_keys.iter(), pairs);
                if !met.is_empty() {
                    return Ok(StepAnswer::Meets(met));
                }
                Ok(StepAnswer::Read(pairs.clone(), now_ms))
            }
            Step::Intend { transaction, record_key, changes } => {
                intend(*transaction, record_key, changes, pairs, now_ms, command)
            }
            Step::Commit { record_key, expected, operations } => {
                commit(record_key, expected, operations, pairs, now_ms, command)
            }
            Step::Ask { record_key, aborts } => ask(record_key, *aborts, pairs, now_ms, command),
            Step::Resolve { transaction, header_keys, way } => {
                for header_key in header_keys {
                    resolve(*transaction, header_key, *way, pairs, command)?;
                }
                Ok(StepAnswer::Done)
            }
            Step::Forget { record_key } => {
                if record(record_key, pairs)?.is_some_and(|it| it.state == RecordState::Committed) {
                    command.delete(record_key)?;
                }
                Ok(StepAnswer::Done)
            }
        }
    }
}

impl Program for StepProgram {
    fn keys(&self) -> &[Bytes] {
        &self.keys
    }

    fn bytes(&self) -> usize {
        let of_step = match &self.step {
            Step::Create { header_keys, .. } => header_keys.iter().map(Bytes::len).sum(),
            Step::Read { member_keys, .. } => member_keys.iter().map(Bytes::len).sum(),
            Step::Intend { changes, .. } => changes.iter().map(KeyChange::bytes).sum(),
            Step::Commit { operations, .. } => operations.encoded_bytes(),
            Step::Ask { .. } | Step::Resolve { .. } | Step::Forget { .. } => 0,
        };
        of_step + self.keys.iter().map(Bytes::len).sum::<usize>()
    }

    fn puts_intents(&self) -> bool {
        matches!(self.step, Step::Intend { .. })
    }

    fn decide(&self, pairs: &Pairs, now_ms: u64) -> ProgramStep {
        let missing: BTreeSet<&Bytes> =
            self.wanted().filter(|key| !pairs.contains_key(*key)).collect();
        if !missing.is_empty() {
            return ProgramStep::Read(missing.into_iter().cloned().collect());
        }
        let mut command = CommandBuilder::new();
        let answer = self.carry_out(pairs, now_ms, &mut command);
        let answer = answer.unwrap_or_else(|refused| {
            command = CommandBuilder::new();
            StepAnswer::Refused(refused.0)
        });
        ProgramStep::Done(Outcome { command, answer: answer.encode() })
    }
}

/// Reason for which nothing is done.
struct Refused(String);

type Decided = std::result::Result<StepAnswer, Refused>;

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

impl From<HeaderDamage> for Refused {
    fn from(damage: HeaderDamage) -> Self {
        Self(damage.to_string())
    }
}

fn pair_of<'a>(key: &Bytes, pairs: &'a Pairs) -> Option<&'a Pair> {
    pairs.get(key).and_then(Option::as_ref)
}

fn record(key: &Bytes, pairs: &Pairs) -> std::result::Result<Option<Record>, Refused> {
    let Some(pair) = pair_of(key, pairs) else { return Ok(None) };
    let damaged =
        || Refused("the record of a transaction is damaged, or of a later build".to_owned());
    Record::decode(&pair.value).map(Some).ok_or_else(damaged)
}

/// Returns the intents in place of headers.
fn met<'a>(header_keys: impl Iterator<Item = &'a Bytes>, pairs: &Pairs) -> Vec<MetIntent> {
    header_keys.filter_map(|key| MetIntent::of_pair(key, pair_of(key, pairs))).collect()
}

/// Returns the live pair of a header, with its change number.
fn live<'a>(
    header_key: &Bytes,
    pairs: &'a Pairs,
    now_ms: u64,
) -> std::result::Result<Option<(&'a Pair, u64)>, HeaderDamage> {
    let Some(pair) = pair_of(header_key, pairs) else { return Ok(None) };
    let (header, _) = Header::decode(&pair.value)?;
    Ok((!header.has_expired(now_ms)).then_some((pair, header.change)))
}

fn put_header(
    header_key: &Bytes,
    bytes: Option<&Bytes>,
    command: &mut CommandBuilder,
) -> std::result::Result<(), Refused> {
    match bytes {
        Some(bytes) => {
            let (header, _) = Header::decode(bytes)?;
            command.put(header_key, bytes, header.expires_at_s())?;
        }
        None => {
            command.delete(header_key)?;
        }
    }
    Ok(())
}

fn create(
    record_key: &Bytes,
    header_keys: &[Bytes],
    pairs: &Pairs,
    now_ms: u64,
    command: &mut CommandBuilder,
) -> Decided {
    if pair_of(record_key, pairs).is_some() {
        return Ok(StepAnswer::Changed);
    }
    let (state, header_keys) = (RecordState::Pending, header_keys.to_vec());
    let record = Record { state, started_ms: now_ms, header_keys };
    command.put(record_key, &record.encode(), 0)?;
    Ok(StepAnswer::Done)
}

/// Invariant: a name gets an intent only if it is as the transaction read it, and has no other intent.
/// Tests: `a_name_that_has_changed_gets_no_intent`, `an_intent_is_not_replaced_by_another_one`.
fn intend(
    transaction: TransactionId,
    record_key: &Bytes,
    changes: &[KeyChange],
    pairs: &Pairs,
    now_ms: u64,
    command: &mut CommandBuilder,
) -> Decided {
    let met = met(changes.iter().map(|change| &change.header_key), pairs);
    if !met.is_empty() {
        return Ok(StepAnswer::Meets(met));
    }
    for change in changes {
        let before = live(&change.header_key, pairs, now_ms)?;
        // bug redis.intent_unchecked: never
        if before.map(|(_, number)| number) != change.expected {
            return Ok(StepAnswer::Changed);
        }
        let old = before.map(|(pair, _)| pair.value.clone());
        let (record_key, new) = (record_key.clone(), change.new.clone());
        let intent = Intent { transaction, record_key, old, new };
        // The engine must not drop it: an expiry takes effect again with the header.
        command.put(&change.header_key, &intent.encode(), 0)?;
        for (key, value) in &change.members {
            command.put(key, value, 0)?;
        }
    }
    Ok(StepAnswer::Done)
}

/// Invariant: a transaction commits only while its record is there and pending, and on the values that its
/// names have in this entry.
/// Tests: `an_aborted_transaction_never_commits`, `a_commit_needs_the_names_beside_its_record_unchanged`.
///
/// Invariant: a transaction that is too old does not commit. Later leaders of other regions rely on it: they
/// protect intents that they do not know for a time only.
/// Test: `a_transaction_that_is_too_old_does_not_commit`.
fn commit(
    record_key: &Bytes,
    expected: &[(Bytes, Option<u64>)],
    operations: &CommandBuilder,
    pairs: &Pairs,
    now_ms: u64,
    command: &mut CommandBuilder,
) -> Decided {
    let record = record(record_key, pairs)?.filter(|it| it.state == RecordState::Pending);
    // bug redis.commit_unchecked: let record = Some(record.unwrap_or(Record { state: RecordState::Pending, started_ms: now_ms, header_keys: Vec::new() }));
    let Some(record) = record else { return Ok(StepAnswer::Absent) };
    // bug redis.old_transaction_commits: never
    if is_old(&record, now_ms) {
        command.delete(record_key)?;
        return Ok(StepAnswer::Absent);
    }
    let met = met(expected.iter().map(|(header_key, _)| header_key), pairs);
    if !met.is_empty() {
        command.delete(record_key)?;
        return Ok(StepAnswer::Meets(met));
    }
    for (header_key, expected) in expected {
        // bug redis.home_unchecked: never
        if live(header_key, pairs, now_ms)?.map(|(_, number)| number) != *expected {
            command.delete(record_key)?;
            return Ok(StepAnswer::Changed);
        }
    }
    let record = Record { state: RecordState::Committed, ..record };
    command.extend(operations)?;
    command.put(record_key, &record.encode(), 0)?;
    Ok(StepAnswer::Done)
}

/// Whether any process may abort a pending transaction. The clock of an earlier leader may have been ahead.
fn is_old(record: &Record, now_ms: u64) -> bool {
    record.started_ms.abs_diff(now_ms) >= PENDING_MS_MAX
}

/// Returns whether the sweeper deletes the pair of a record: it is pending, and its coordinator gave up long ago. It
/// was created after the abort, or its coordinator ended before it wrote an intent.
///
/// Invariant: only a pending record is deleted. That is an abort, which any process may do at any time: a commit needs the
/// record, and refuses one of this age. Intents that are left resolve to the old headers, because the record is
/// absent. Without a committed record they would do so too, and half of a transaction would be lost.
/// Tests: `the_sweeper_deletes_the_record_of_an_abandoned_transaction_and_no_committed_one`,
/// `a_transaction_of_which_the_record_was_swept_never_commits`.
pub(crate) fn is_abandoned(record: &Bytes, now_ms: u64) -> bool {
    let Some(record) = Record::decode(record) else { return false };
    let is_pending = record.state == RecordState::Pending;
    // bug redis.sweeper_takes_committed_records: let is_pending = true;
    // A record of which the creating leader's clock was ahead waits until the time is past that.
    let is_past = now_ms.saturating_sub(record.started_ms) >= ABANDONED_MS;
    // bug redis.sweeper_takes_young_records: let is_past = true;
    is_pending && is_past
}

fn ask(
    record_key: &Bytes,
    aborts: bool,
    pairs: &Pairs,
    now_ms: u64,
    command: &mut CommandBuilder,
) -> Decided {
    let Some(record) = record(record_key, pairs)? else { return Ok(StepAnswer::Absent) };
    match record.state {
        RecordState::Committed => Ok(StepAnswer::Committed(record.header_keys)),
        RecordState::Pending if aborts || is_old(&record, now_ms) => {
            command.delete(record_key)?;
            Ok(StepAnswer::Aborted(record.header_keys))
        }
        RecordState::Pending => Ok(StepAnswer::Pending),
    }
}

/// Members that the name has no longer are deleted with the intent.
fn resolve(
    transaction: TransactionId,
    header_key: &Bytes,
    way: Way,
    pairs: &Pairs,
    command: &mut CommandBuilder,
) -> std::result::Result<(), Refused> {
    let Some(pair) = pair_of(header_key, pairs) else { return Ok(()) };
    let Some(met) = MetIntent::of_pair(header_key, Some(pair)) else { return Ok(()) };
    if met.transaction != transaction {
        return Ok(());
    }
    let damaged = || Refused(format!("an intent of transaction {transaction} is damaged"));
    let intent = Intent::decode(&pair.value).ok_or_else(damaged)?;
    let is_committed = way == Way::New;
    put_header(header_key, intent.resolved(is_committed), command)?;
    if let Some(stamp) = intent.dropped_stamp(is_committed) {
        let members = KeyRange::prefix(&key::members_prefix(header_key, stamp));
        command.delete_range(&members.start, &members.end)?;
    }
    Ok(())
}

impl KeyChange {
    fn bytes(&self) -> usize {
        let of_members: usize =
            self.members.iter().map(|(key, value)| key.len() + value.len()).sum();
        let of_header = match &self.new {
            NewHeader::Header(bytes) => bytes.len(),
            NewHeader::Absent | NewHeader::Same => 0,
        };
        of_header + of_members
    }
}

impl StepAnswer {
    /// Encodes the answer.
    pub fn encode(&self) -> Bytes {
        let keys = |out: &mut Vec<u8>, keys: &[Bytes]| {
            keys.iter().for_each(|key| varint::put_bytes(out, key));
        };
        let mut out = Vec::new();
        match self {
            Self::Done => out.push(0),
            Self::Changed => out.push(1),
            Self::Absent => out.push(2),
            Self::Meets(met) => {
                out.push(3);
                met.iter().for_each(|met| met.put(&mut out));
            }
            Self::Pending => out.push(4),
            Self::Committed(header_keys) => {
                out.push(5);
                keys(&mut out, header_keys);
            }
            Self::Aborted(header_keys) => {
                out.push(6);
                keys(&mut out, header_keys);
            }
            Self::Read(pairs, now_ms) => {
                out.push(7);
                varint::put(&mut out, *now_ms);
                pairs.iter().for_each(|(key, pair)| put_pair(&mut out, key, pair.as_ref()));
            }
            Self::Refused(text) => {
                out.push(8);
                out.put_slice(text.as_bytes());
            }
        }
        Bytes::from(out)
    }

    /// Decodes an answer. `None` if its bytes are not one.
    pub fn decode(answer: &[u8]) -> Option<Self> {
        let (&kind, mut rest) = answer.split_first()?;
        let decoded = match kind {
            0 => Self::Done,
            1 => Self::Changed,
            2 => Self::Absent,
            3 => Self::Meets(MetIntent::decode_all(std::mem::take(&mut rest))?),
            4 => Self::Pending,
            5 => Self::Committed(take_keys(&mut rest)?),
            6 => Self::Aborted(take_keys(&mut rest)?),
            7 => {
                let now_ms = varint::take(&mut rest)?;
                let mut pairs = Pairs::new();
                while !rest.is_empty() {
                    let (key, pair) = take_pair(&mut rest)?;
                    pairs.insert(key, pair);
                }
                Self::Read(pairs, now_ms)
            }
            8 => {
                let text = String::from_utf8(rest.to_vec()).ok()?;
                rest = &[];
                Self::Refused(text)
            }
            _ => return None,
        };
        rest.is_empty().then_some(decoded)
    }
}

fn put_pair(out: &mut Vec<u8>, key: &Bytes, pair: Option<&Pair>) {
    varint::put_bytes(out, key);
    match pair {
        None => varint::put(out, 0),
        Some(pair) => {
            varint::put(out, pair.expires_at_s.saturating_add(1));
            varint::put_bytes(out, &pair.value);
        }
    }
}

fn take_pair(rest: &mut &[u8]) -> Option<(Bytes, Option<Pair>)> {
    let key = Bytes::copy_from_slice(varint::take_bytes(rest)?);
    let Some(expires_at_s) = varint::take(rest)?.checked_sub(1) else { return Some((key, None)) };
    let value = Bytes::copy_from_slice(varint::take_bytes(rest)?);
    Some((key.clone(), Some(Pair { key, value, expires_at_s })))
}
