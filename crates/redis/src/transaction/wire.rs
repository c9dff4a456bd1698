//! Steps as bytes, from the coordinator to the leader of a region.
//!
//! ```text
//! step   := 1 record_key key*                                          create
//!         | 2 count key{count} key*                                    read: headers, then members
//!         | 3 transaction:u128be record_key change*                    intend
//!         | 4 record_key count expected{count} operation*              commit
//!         | 5 record_key aborts:u8                                     ask
//!         | 6 transaction:u128be way:u8 key*                           resolve
//!         | 7 record_key                                               forget
//!         | 8 (key stamp:u64be change:u64be)*                          members
//! change    := key expected new count (key value){count}
//! expected  := 0 | 1 change:u64be
//! new       := 0 | 1 header | 2
//! operation := key (0 | expires_at_s+1:varint value)
//! ```
//!
//! Keys, headers and values have their lengths before them. Numbers without a type are varints.

use super::changes::KeyChange;
use super::layout::{NewHeader, TransactionId, take_keys};
use super::steps::{Step, Way};
use crate::state::{MembersNeed, MembersVersion};
use bytes::{BufMut, Bytes};
use stele_types::command::Op;
use stele_types::{CommandBuilder, varint};

/// Request of a coordinator to a region.
#[derive(Clone, Debug)]
pub enum StepRequest {
    /// Executes a step as a program.
    Step(Step),
    /// Reads whole collections at a view.
    Members(Vec<MembersNeed>),
}

impl StepRequest {
    /// Encodes the request.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        match self {
            Self::Step(step) => step.put(&mut out),
            Self::Members(needs) => {
                out.push(8);
                for need in needs {
                    varint::put_bytes(&mut out, &need.header_key);
                    out.put_u64(need.version.stamp);
                    out.put_u64(need.version.change);
                }
            }
        }
        Bytes::from(out)
    }

    /// Decodes a request. `None` if its bytes are not one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&kind, mut rest) = bytes.split_first()?;
        let rest = &mut rest;
        let step = match kind {
            1 => Step::Create { record_key: take_key(rest)?, header_keys: take_keys(rest)? },
            2 => {
                let count = varint::take(rest)?;
                let header_keys = (0..count).map(|_| take_key(rest)).collect::<Option<_>>()?;
                Step::Read { header_keys, member_keys: take_keys(rest)? }
            }
            3 => {
                let (transaction, record_key) = (take_transaction(rest)?, take_key(rest)?);
                let mut changes = Vec::new();
                while !rest.is_empty() {
                    changes.push(take_change(rest)?);
                }
                Step::Intend { transaction, record_key, changes }
            }
            4 => {
                let (record_key, count) = (take_key(rest)?, varint::take(rest)?);
                let expected = (0..count).map(|_| Some((take_key(rest)?, take_expected(rest)?)));
                let expected = expected.collect::<Option<_>>()?;
                Step::Commit { record_key, expected, operations: take_operations(rest)? }
            }
            5 => Step::Ask { record_key: take_key(rest)?, aborts: take_byte(rest)? == 1 },
            6 => {
                let transaction = take_transaction(rest)?;
                let way = match take_byte(rest)? {
                    0 => Way::Old,
                    1 => Way::New,
                    _ => return None,
                };
                Step::Resolve { transaction, header_keys: take_keys(rest)?, way }
            }
            7 => Step::Forget { record_key: take_key(rest)? },
            8 => return take_needs(rest).map(Self::Members),
            _ => return None,
        };
        rest.is_empty().then_some(Self::Step(step))
    }
}

impl Step {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Create { record_key, header_keys } => {
                out.push(1);
                varint::put_bytes(out, record_key);
                put_keys(out, header_keys);
            }
            Self::Read { header_keys, member_keys } => {
                out.push(2);
                varint::put(out, header_keys.len() as u64);
                put_keys(out, header_keys);
                put_keys(out, member_keys);
            }
            Self::Intend { transaction, record_key, changes } => {
                out.push(3);
                out.put_u128(transaction.0);
                varint::put_bytes(out, record_key);
                changes.iter().for_each(|change| put_change(out, change));
            }
            Self::Commit { record_key, expected, operations } => {
                out.push(4);
                varint::put_bytes(out, record_key);
                varint::put(out, expected.len() as u64);
                for (key, expected) in expected {
                    varint::put_bytes(out, key);
                    put_expected(out, *expected);
                }
                operations.ops().for_each(|op| put_operation(out, &op));
            }
            Self::Ask { record_key, aborts } => {
                out.push(5);
                varint::put_bytes(out, record_key);
                out.push(u8::from(*aborts));
            }
            Self::Resolve { transaction, header_keys, way } => {
                out.push(6);
                out.put_u128(transaction.0);
                out.push(u8::from(*way == Way::New));
                put_keys(out, header_keys);
            }
            Self::Forget { record_key } => {
                out.push(7);
                varint::put_bytes(out, record_key);
            }
        }
    }
}

fn put_keys(out: &mut Vec<u8>, keys: &[Bytes]) {
    keys.iter().for_each(|key| varint::put_bytes(out, key));
}

fn put_expected(out: &mut Vec<u8>, expected: Option<u64>) {
    match expected {
        None => out.push(0),
        Some(change) => {
            out.push(1);
            out.put_u64(change);
        }
    }
}

fn put_change(out: &mut Vec<u8>, change: &KeyChange) {
    varint::put_bytes(out, &change.header_key);
    put_expected(out, change.expected);
    match &change.new {
        NewHeader::Absent => out.push(0),
        NewHeader::Header(header) => {
            out.push(1);
            varint::put_bytes(out, header);
        }
        NewHeader::Same => out.push(2),
    }
    varint::put(out, change.members.len() as u64);
    for (key, value) in &change.members {
        varint::put_bytes(out, key);
        varint::put_bytes(out, value);
    }
}

/// A coordinator makes no deletes of ranges.
fn put_operation(out: &mut Vec<u8>, op: &Op<'_>) {
    match op {
        Op::Put { key, value, expires_at_s, .. } => {
            varint::put_bytes(out, key);
            varint::put(out, expires_at_s.saturating_add(1));
            varint::put_bytes(out, value);
        }
        Op::Delete { key } => {
            varint::put_bytes(out, key);
            varint::put(out, 0);
        }
        Op::DeleteRange { .. } => {}
    }
}

fn take_key(rest: &mut &[u8]) -> Option<Bytes> {
    varint::take_bytes(rest).map(Bytes::copy_from_slice)
}

fn take_byte(rest: &mut &[u8]) -> Option<u8> {
    let (&byte, after) = rest.split_first()?;
    *rest = after;
    Some(byte)
}

fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    let (number, after) = rest.split_first_chunk::<8>()?;
    *rest = after;
    Some(u64::from_be_bytes(*number))
}

fn take_transaction(rest: &mut &[u8]) -> Option<TransactionId> {
    let (number, after) = rest.split_first_chunk::<16>()?;
    *rest = after;
    Some(TransactionId(u128::from_be_bytes(*number)))
}

fn take_expected(rest: &mut &[u8]) -> Option<Option<u64>> {
    match take_byte(rest)? {
        0 => Some(None),
        1 => take_u64(rest).map(Some),
        _ => None,
    }
}

fn take_change(rest: &mut &[u8]) -> Option<KeyChange> {
    let (header_key, expected) = (take_key(rest)?, take_expected(rest)?);
    let new = match take_byte(rest)? {
        0 => NewHeader::Absent,
        1 => NewHeader::Header(take_key(rest)?),
        2 => NewHeader::Same,
        _ => return None,
    };
    let count = varint::take(rest)?;
    let members = (0..count).map(|_| Some((take_key(rest)?, take_key(rest)?)));
    Some(KeyChange { header_key, expected, new, members: members.collect::<Option<_>>()? })
}

fn take_operations(rest: &mut &[u8]) -> Option<CommandBuilder> {
    let mut operations = CommandBuilder::new();
    while !rest.is_empty() {
        let key = varint::take_bytes(rest)?;
        match varint::take(rest)?.checked_sub(1) {
            Some(expires_at_s) => {
                operations.put(key, varint::take_bytes(rest)?, expires_at_s).ok()?;
            }
            None => {
                operations.delete(key).ok()?;
            }
        }
    }
    Some(operations)
}

fn take_needs(rest: &mut &[u8]) -> Option<Vec<MembersNeed>> {
    let mut needs = Vec::new();
    while !rest.is_empty() {
        let header_key = take_key(rest)?;
        let (stamp, change) = (take_u64(rest)?, take_u64(rest)?);
        needs.push(MembersNeed { header_key, version: MembersVersion { stamp, change } });
    }
    Some(needs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn requests() -> Vec<StepRequest> {
        let transaction = TransactionId(u128::MAX - 7);
        let record_key = key("record");
        let change = |expected, new| KeyChange {
            header_key: key("name"),
            expected,
            new,
            members: vec![(key("member"), key("value")), (key("other"), key(""))],
        };
        let mut operations = CommandBuilder::new();
        operations.put(b"a", b"value", 0).unwrap().put(b"b", b"", 9).unwrap().delete(b"c").unwrap();
        let changes = vec![
            change(None, NewHeader::Absent),
            change(Some(7), NewHeader::Same),
            change(Some(u64::MAX), NewHeader::Header(key("header"))),
        ];
        let steps = vec![
            Step::Create { record_key: record_key.clone(), header_keys: vec![key("a"), key("b")] },
            Step::Read { header_keys: vec![key("a")], member_keys: vec![key("b"), key("c")] },
            Step::Intend { transaction, record_key: record_key.clone(), changes },
            Step::Commit {
                record_key: record_key.clone(),
                expected: vec![(key("a"), None), (key("b"), Some(3))],
                operations,
            },
            Step::Ask { record_key: record_key.clone(), aborts: true },
            Step::Ask { record_key: record_key.clone(), aborts: false },
            Step::Resolve { transaction, header_keys: vec![key("a")], way: Way::Old },
            Step::Resolve { transaction, header_keys: vec![key("a")], way: Way::New },
            Step::Forget { record_key },
        ];
        let version = MembersVersion { stamp: 1, change: u64::MAX };
        let need = MembersNeed { header_key: key("name"), version };
        let members = StepRequest::Members(vec![need.clone(), need]);
        steps.into_iter().map(StepRequest::Step).chain([members]).collect()
    }

    #[test]
    fn a_request_survives_the_round_trip_and_no_cut_is_the_same() {
        for request in requests() {
            let whole = request.encode();
            let shown = format!("{request:?}");
            assert_eq!(format!("{:?}", StepRequest::decode(&whole).unwrap()), shown);
            for cut in 0..whole.len() {
                let decoded = StepRequest::decode(&whole[..cut]);
                assert_ne!(decoded.map(|it| format!("{it:?}")), Some(shown.clone()));
            }
        }
        for other in [&b""[..], &[0], &[9], &[6; 18], &[3, 1]] {
            assert!(StepRequest::decode(other).is_none());
        }
    }
}
