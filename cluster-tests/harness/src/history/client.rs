//! A recorded client: few keys, unique values, one attempt per operation unless [`Keys::repeat`] is
//! set.

use super::load::REFUSED_PAUSE;
use super::operation::Operation;
use crate::client::{AnswerKind, Outcome, Session, Swap};
use bytes::Bytes;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use stele_types::Prng;

const SCAN_LIMIT: u32 = 100;
/// Time limit of all attempts of a repeated operation.
const REPEAT_LIMIT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    pub groups: u64,
    /// Number of keys in a group; a scan covers all of them.
    pub group_keys: u64,
    /// Whether a put or a delete that is answered by `stale_command` is sent again as the same
    /// operation, as client-go does. Such an operation can take effect twice.
    pub repeat: bool,
}

impl Keys {
    pub(crate) fn group(round: &str, group: u64) -> String {
        format!("history/{round}/{group:02}")
    }

    pub(crate) fn key(group: &str, number: u64) -> String {
        format!("{group}/k{number}")
    }
}

#[derive(Debug)]
pub(crate) struct Recorder {
    pub session: Session,
    pub process: usize,
    /// First part of its keys, unique per round.
    pub round: String,
    pub keys: Keys,
    pub prng: Prng,
    pub zero: Instant,
    pub records: Vec<Operation>,
    sequence: u64,
    /// Value of each key that this client saw last.
    last_seen: HashMap<String, String>,
}

impl Recorder {
    pub(crate) fn new(
        session: Session,
        process: usize,
        round: String,
        keys: Keys,
        prng: Prng,
        zero: Instant,
    ) -> Self {
        Self {
            session,
            process,
            round,
            keys,
            prng,
            zero,
            records: Vec::new(),
            sequence: 0,
            last_seen: HashMap::new(),
        }
    }

    /// Runs one random operation; returns whether it took effect.
    pub(crate) async fn step(&mut self) -> bool {
        let group = Keys::group(&self.round, self.prng.below(self.keys.groups));
        let key = Keys::key(&group, self.prng.below(self.keys.group_keys));
        let replica = (self.prng.below(3) == 0).then(|| self.prng.below(3) as usize);
        let mut record = Operation { process: self.process, group, key, ..Operation::default() };
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

    /// Reads a key once; returns whether it was read.
    pub(crate) async fn read(&mut self, group: u64, number: u64, replica: Option<usize>) -> bool {
        let group = Keys::group(&self.round, group);
        let key = Keys::key(&group, number);
        let record = Operation { process: self.process, group, key, ..Operation::default() };
        self.get(record, replica).await
    }

    async fn get(&mut self, mut record: Operation, replica: Option<usize>) -> bool {
        record.op = "get";
        record.call_ns = self.now();
        let outcome = self.session.get(record.key.as_bytes(), replica).await;
        self.keep(record, outcome, |record, found| record.found = found.map(text))
    }

    async fn put(&mut self, mut record: Operation) -> bool {
        record.op = "put";
        let value = self.unique();
        record.value = Some(value.clone());
        record.call_ns = self.now();
        let outcome = self.write(&record.key, Some(Bytes::from(value))).await;
        self.keep(record, outcome, |_, ()| {})
    }

    async fn delete(&mut self, mut record: Operation) -> bool {
        record.op = "delete";
        record.call_ns = self.now();
        let outcome = self.write(&record.key, None).await;
        self.keep(record, outcome, |_, ()| {})
    }

    /// Puts or deletes a key, again and again after `stale_command` if the keys say so.
    async fn write(&mut self, key: &str, value: Option<Bytes>) -> Outcome<()> {
        let deadline = Instant::now() + REPEAT_LIMIT;
        let mut stale = None;
        loop {
            let outcome = match value.clone() {
                Some(value) => self.session.put(key.as_bytes(), value).await,
                None => self.session.delete(key.as_bytes()).await,
            };
            match outcome {
                Outcome::Ambiguous(answer)
                    if self.keys.repeat && answer.kind == AnswerKind::StaleCommand =>
                {
                    stale = Some(answer);
                }
                // An earlier attempt may still take effect.
                Outcome::Refused(_) if stale.is_some() => {}
                known => return known,
            }
            if Instant::now() >= deadline
                && let Some(answer) = stale
            {
                return Outcome::Ambiguous(answer);
            }
            tokio::time::sleep(REFUSED_PAUSE).await;
        }
    }

    async fn swap(&mut self, mut record: Operation) -> bool {
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

    async fn scan(&mut self, mut record: Operation, replica: Option<usize>) -> bool {
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

    /// Records the operation and its answer; returns whether it took effect.
    fn keep<T>(
        &mut self,
        mut record: Operation,
        outcome: Outcome<T>,
        enter: impl FnOnce(&mut Operation, T),
    ) -> bool {
        record.return_ns = self.now();
        match outcome {
            Outcome::Done(found) => enter(&mut record, found),
            Outcome::Ambiguous(answer) | Outcome::Refused(answer) => record.set_answer(answer.kind),
        }
        let is_done = record.is_done();
        let wrote = is_done && (record.op == "put" || record.succeeded);
        let seen = if wrote { record.value.clone() } else { record.found.clone() };
        if let Some(seen) = seen {
            self.last_seen.insert(record.key.clone(), seen);
        }
        self.records.push(record);
        is_done
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
