//! Old values: what keys had before each write, also within one apply, beside garbage collection, and within a
//! bound.

use crate::common::{DIR, Random, clock, disk, tiny};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use stele_engine::{KeyRange, LogStore, OldValue, OldValuesReader, Replay, StateMachine, Store};
use stele_types::{
    CommandBuilder, EntryRecord, HardState, LogBatch, LogIndex, Mark, Record, RegionId, Term,
};

const REGION: RegionId = RegionId(7);
const START: u64 = 5;

struct Log {
    store: Store,
    last: u64,
    applied: u64,
}

impl Log {
    fn new() -> Self {
        let store =
            Store::open(Arc::new(disk(1)), clock(), Path::new(DIR), tiny(), Replay::Committed);
        let store = store.unwrap().0;
        let start = Record::Mark(REGION, Mark::Start(LogIndex(START), Term(1)));
        store.append(&LogBatch { records: vec![start] }).unwrap();
        Self { store, last: START, applied: START }
    }

    fn append(&mut self, command: CommandBuilder) {
        self.last += 1;
        let entry = EntryRecord {
            region: REGION,
            term: Term(1),
            index: LogIndex(self.last),
            is_command: true,
            payload: command.build().bytes().clone(),
        };
        let state = HardState { term: Term(1), vote: 1, commit: entry.index };
        let records = vec![Record::Entry(entry), Record::HardState(REGION, state)];
        self.store.append(&LogBatch { records }).unwrap();
    }

    /// Applies all that is appended, in one call.
    fn apply(&mut self) {
        let (from, to) = (LogIndex(self.applied + 1), LogIndex(self.last + 1));
        let entries = self.store.entries(REGION, from, to, usize::MAX).unwrap();
        self.store.apply(REGION, &entries).unwrap();
        self.applied = self.last;
    }

    fn put(&mut self, key: &str, value: &[u8]) {
        let mut command = CommandBuilder::new();
        command.put(key.as_bytes(), value, 0).unwrap();
        self.append(command);
    }

    fn reader(&self, start: &'static str, end: &'static str) -> OldValuesReader {
        self.store.old_values(REGION, vec![KeyRange::new(start, end)])
    }
}

fn present(value: &[u8]) -> OldValue {
    OldValue::Present { value: Bytes::copy_from_slice(value), expires_at_s: 0 }
}

fn values(taken: Vec<(Bytes, OldValue)>) -> Vec<OldValue> {
    taken.into_iter().map(|(_, value)| value).collect()
}

#[test]
fn old_values_are_those_before_each_write_also_within_one_apply() {
    let mut log = Log::new();
    log.put("b", &[1; 300]);
    log.put("c", b"short");
    log.apply();
    let reader = log.reader("a", "m");
    let mut command = CommandBuilder::new();
    command.put(b"b", &[2; 300], 0).unwrap().put(b"b", &[3; 300], 0).unwrap();
    command.delete(b"c").unwrap().put(b"z", b"of others", 0).unwrap();
    log.append(command);
    let mut command = CommandBuilder::new();
    command.delete(b"b").unwrap().delete(b"c").unwrap();
    log.append(command);
    let mut command = CommandBuilder::new();
    command.put(b"d", b"4", 0).unwrap().delete_range(b"a", b"e").unwrap();
    command.put(b"d", b"5", 0).unwrap().put(b"e", b"6", 0).unwrap();
    log.append(command);
    log.apply();
    let first = [present(&[1; 300]), present(&[2; 300]), present(b"short")];
    let taken = reader.take(LogIndex(START + 3), 1 << 20);
    assert_eq!(taken[0].0, "b");
    assert_eq!(values(taken), first);
    let second = values(reader.take(LogIndex(START + 4), 1 << 20));
    assert_eq!(second, [present(&[3; 300]), OldValue::Absent]);
    let third = values(reader.take(LogIndex(START + 5), 1 << 20));
    assert_eq!(third, [OldValue::Absent, OldValue::Absent, OldValue::Absent]);
    assert!(reader.take(LogIndex(START + 5), 1 << 20).is_empty(), "it was taken");
    drop(reader);
    let late = log.reader("a", "m");
    assert!(late.take(LogIndex(START + 3), 1 << 20).is_empty(), "it was applied before");
}

#[test]
fn values_beyond_the_bound_of_a_call_are_unknown() {
    let mut log = Log::new();
    (0..3).for_each(|at| log.put(&format!("k{at}"), &[at; 100]));
    log.apply();
    let reader = log.reader("", "");
    let mut command = CommandBuilder::new();
    for at in 0..3 {
        command.delete(format!("k{at}").as_bytes()).unwrap();
    }
    log.append(command);
    log.apply();
    let found = values(reader.take(LogIndex(START + 4), 200));
    assert_eq!(found, [present(&[0; 100]), present(&[1; 100]), OldValue::Unknown]);
}

#[test]
fn what_waits_for_a_reader_of_old_values_is_bounded() {
    let mut log = Log::new();
    let reader = log.reader("", "");
    let key = |at: u32| format!("{at:0900}");
    for at in 0..6_000 {
        log.put(&key(at), b"");
        if at % 100 == 99 {
            log.apply();
        }
    }
    let is_known = |at: u64| !reader.take(LogIndex(START + at), 1 << 20).is_empty();
    assert!(!is_known(1), "the oldest are unknown");
    assert!(is_known(6_000 - 3_000) && is_known(6_000));
}

#[test]
fn old_values_of_random_writes_beside_garbage_collection_are_those_of_a_model() {
    let seed: u64 = 61;
    println!("seed {seed}");
    let mut random = Random(seed);
    let mut log = Log::new();
    let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let reader = log.reader("", "");
    let (mut wanted, mut known) = (Vec::new(), 0);
    for step in 0..4_000_u32 {
        let key = format!("k{:03}", random.below(200));
        let old = match random.below(4) {
            0 => {
                let mut command = CommandBuilder::new();
                command.delete(key.as_bytes()).unwrap();
                log.append(command);
                model.remove(&key)
            }
            _ => {
                let value = vec![step as u8; random.below(400) as usize];
                log.put(&key, &value);
                model.insert(key, value)
            }
        };
        wanted.push((log.last, old.map_or(OldValue::Absent, |value| present(&value))));
        if random.below(8) == 0 {
            log.apply();
            for (index, wanted) in wanted.drain(..) {
                let found = values(reader.take(LogIndex(index), 1 << 20));
                // A value may move or go before it is asked for.
                if found != [OldValue::Unknown] {
                    assert_eq!(found, [wanted], "entry {index}");
                    known += 1;
                }
            }
        }
        if random.below(50) == 0 {
            log.store.maintain(64 << 10).unwrap();
        }
    }
    assert!(known > 3_500, "{known}");
}
