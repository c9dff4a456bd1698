//! A recorded client: few keys, unique values, one attempt per operation.

use super::record::Record;
use crate::client::{Outcome, Session, Swap};
use bytes::Bytes;
use std::collections::HashMap;
use std::time::Instant;
use stele_types::Prng;

/// Number of keys in a group; a scan covers all of them.
pub const GROUP_KEYS: u64 = 4;
const SCAN_LIMIT: u32 = 100;

/// A client and the operations it has recorded.
#[derive(Debug)]
pub struct Recorder {
    pub session: Session,
    pub process: usize,
    /// First part of its keys, unique per round.
    pub round: String,
    pub groups: u64,
    pub prng: Prng,
    /// Time zero of the history.
    pub zero: Instant,
    pub records: Vec<Record>,
    sequence: u64,
    /// Value of each key that this client saw last.
    last_seen: HashMap<String, String>,
}

impl Recorder {
    pub fn new(
        session: Session,
        process: usize,
        round: String,
        groups: u64,
        prng: Prng,
        zero: Instant,
    ) -> Self {
        Self {
            session,
            process,
            round,
            groups,
            prng,
            zero,
            records: Vec::new(),
            sequence: 0,
            last_seen: HashMap::new(),
        }
    }

    /// Runs one random operation; returns whether it took effect.
    pub async fn step(&mut self) -> bool {
        let group = format!("history/{}/{:02}", self.round, self.prng.below(self.groups));
        let key = format!("{group}/k{}", self.prng.below(GROUP_KEYS));
        let replica = (self.prng.below(3) == 0).then(|| self.prng.below(3) as usize);
        let mut record = Record { process: self.process, group, key, ..Record::default() };
        match self.prng.below(100) {
            0..40 => self.get(record, replica).await,
            40..68 => self.put(record).await,
            68..80 => self.swap(record).await,
            80..86 => self.delete(record).await,
            _ => {
                record.key.clear();
                record.reverse = self.prng.coin();
                self.scan(record, replica).await
            }
        }
    }

    async fn get(&mut self, mut record: Record, replica: Option<usize>) -> bool {
        record.op = "get";
        record.call_ns = self.now();
        let outcome = self.session.get(record.key.as_bytes(), replica).await;
        self.keep(record, outcome, |record, found| record.found = found.map(text))
    }

    async fn put(&mut self, mut record: Record) -> bool {
        record.op = "put";
        let value = self.unique();
        record.value = Some(value.clone());
        record.call_ns = self.now();
        let outcome = self.session.put(record.key.as_bytes(), Bytes::from(value)).await;
        self.keep(record, outcome, |_, ()| {})
    }

    async fn delete(&mut self, mut record: Record) -> bool {
        record.op = "delete";
        record.call_ns = self.now();
        let outcome = self.session.delete(record.key.as_bytes()).await;
        self.keep(record, outcome, |_, ()| {})
    }

    async fn swap(&mut self, mut record: Record) -> bool {
        record.op = "cas";
        record.expected = self.last_seen.remove(&record.key).filter(|_| self.prng.below(4) != 0);
        let value = (self.prng.below(5) != 0).then(|| self.unique());
        record.value = value.clone();
        let (expected, value) = (record.expected.clone().map(Bytes::from), value.map(Bytes::from));
        record.call_ns = self.now();
        let outcome = self.session.swap(record.key.as_bytes(), expected, value).await;
        self.keep(record, outcome, |record, Swap { succeeded, found }| {
            record.succeeded = succeeded;
            record.found = found.map(text);
        })
    }

    async fn scan(&mut self, mut record: Record, replica: Option<usize>) -> bool {
        record.op = "scan";
        record.limit = SCAN_LIMIT;
        // `0` follows `/`, so all keys of the group lie between.
        let (start, end) = (format!("{}/", record.group), format!("{}0", record.group));
        record.call_ns = self.now();
        let scan = self.session.scan(
            start.as_bytes(),
            end.as_bytes(),
            SCAN_LIMIT,
            record.reverse,
            replica,
        );
        let outcome = scan.await;
        self.keep(record, outcome, |record, pairs| {
            record.pairs = pairs.into_iter().map(|(key, value)| (text(key), text(value))).collect();
        })
    }

    /// Records the operation unless it certainly never took effect.
    fn keep<T>(
        &mut self,
        mut record: Record,
        outcome: Outcome<T>,
        answer: impl FnOnce(&mut Record, T),
    ) -> bool {
        record.return_ns = self.now();
        let happened = outcome.is_done();
        match outcome {
            Outcome::Done(found) => answer(&mut record, found),
            Outcome::Ambiguous(_) => record.ambiguous = true,
            Outcome::Refused(_) => return false,
        }
        let wrote = happened && (record.op == "put" || record.succeeded);
        let seen = if wrote { record.value.clone() } else { record.found.clone() };
        if let Some(seen) = seen {
            self.last_seen.insert(record.key.clone(), seen);
        }
        self.records.push(record);
        happened
    }

    fn unique(&mut self) -> String {
        self.sequence += 1;
        format!("{}.{}.{}", self.round, self.process, self.sequence)
    }

    fn now(&self) -> u64 {
        self.zero.elapsed().as_nanos() as u64
    }
}

fn text(bytes: Bytes) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}
