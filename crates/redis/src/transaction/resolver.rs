//! Resolution of intents, by a coordinator or by any process that has met them.

use super::layout::{MetIntent, TransactionId};
use super::steps::{Step, StepAnswer, StepProgram, Way};
use super::{Action, Event, Ticket, Tickets};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Longest wait before a record is read again.
const WAIT_MS_MAX: u64 = 100;
/// Tries of a step: with the waits between them about twice as long as a transaction may be pending.
const TRIES: u32 = 110;

/// Resolves intents of one or several transactions. All of its steps may be repeated.
#[derive(Debug)]
pub struct Resolver {
    tickets: Tickets,
    jobs: Vec<Job>,
    open: BTreeMap<Ticket, (usize, Sent)>,
}

/// Intents of one transaction.
#[derive(Debug)]
struct Job {
    transaction: TransactionId,
    record_key: Bytes,
    /// Headers that still have the intent.
    header_keys: BTreeSet<Bytes>,
    /// What the record says; `None` before it was read.
    decided: Option<Decided>,
    tries: u32,
    is_done: bool,
}

#[derive(Clone, Copy, Debug)]
struct Decided {
    way: Way,
    /// The record lists all names of the transaction, so that it can be deleted at the end.
    forgets: bool,
}

#[derive(Clone, Debug)]
enum Sent {
    Ask,
    Resolve(Vec<Bytes>),
    Forget,
    Wait,
}

impl Resolver {
    /// Creates the resolver of intents that a command has met. It reads the records, and waits for those that
    /// are pending.
    pub fn new(met: Vec<MetIntent>) -> Self {
        Self::numbered(0, met)
    }

    /// Creates it with tickets of a range of their own.
    pub(super) fn numbered(range: u64, met: Vec<MetIntent>) -> Self {
        let mut jobs: BTreeMap<TransactionId, Job> = BTreeMap::new();
        for MetIntent { header_key, transaction, record_key } in met {
            let job = jobs.entry(transaction).or_insert_with(|| Job::new(transaction, record_key));
            job.header_keys.insert(header_key);
        }
        Self::of(range, jobs.into_values().collect())
    }

    /// Creates the resolver of a transaction of which the coordinator knows the outcome.
    pub(super) fn decided(
        range: u64,
        transaction: TransactionId,
        record_key: Bytes,
        header_keys: impl IntoIterator<Item = Bytes>,
        way: Way,
    ) -> Self {
        let decided = Decided { way, forgets: way == Way::New };
        let header_keys = header_keys.into_iter().collect();
        let job = Job { header_keys, decided: Some(decided), ..Job::new(transaction, record_key) };
        Self::of(range, vec![job])
    }

    fn of(range: u64, jobs: Vec<Job>) -> Self {
        Self { tickets: Tickets::of_range(range), jobs, open: BTreeMap::new() }
    }

    /// Returns the first actions.
    pub fn begin(&mut self) -> Vec<Action> {
        (0..self.jobs.len()).flat_map(|at| self.go_on(at)).collect()
    }

    /// Whether nothing is under way.
    pub fn has_ended(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether all intents were resolved.
    pub fn is_done(&self) -> bool {
        self.jobs.iter().all(|job| job.is_done)
    }

    /// Takes the outcome of an action, and returns the next ones.
    pub fn on(&mut self, ticket: Ticket, event: Event) -> Vec<Action> {
        let Some((at, sent)) = self.open.remove(&ticket) else { return Vec::new() };
        let Some(job) = self.jobs.get_mut(at) else { return Vec::new() };
        match (sent, event) {
            (Sent::Wait, _) => self.go_on(at),
            (Sent::Ask, Event::Answered(answer)) => match job.take_record(answer) {
                true => self.go_on(at),
                false => self.wait(at),
            },
            (Sent::Resolve(keys), Event::Answered(StepAnswer::Done)) => {
                job.header_keys.retain(|key| !keys.contains(key));
                match self.is_open(at) {
                    true => Vec::new(),
                    false => self.go_on(at),
                }
            }
            (Sent::Forget, Event::Answered(StepAnswer::Done)) => {
                job.is_done = true;
                Vec::new()
            }
            // All others of the job end too, before the next try.
            _ if self.is_open(at) => Vec::new(),
            _ => self.wait(at),
        }
    }

    fn is_open(&self, at: usize) -> bool {
        self.open.values().any(|(of, _)| *of == at)
    }

    fn wait(&mut self, at: usize) -> Vec<Action> {
        let Some(job) = self.jobs.get_mut(at).filter(|job| job.tries < TRIES) else {
            return Vec::new();
        };
        job.tries += 1;
        let ms = (1 << job.tries.min(10)).min(WAIT_MS_MAX);
        let ticket = self.open(at, Sent::Wait);
        vec![Action::Wait { ticket, ms }]
    }

    fn open(&mut self, at: usize, sent: Sent) -> Ticket {
        let ticket = self.tickets.next();
        self.open.insert(ticket, (at, sent));
        ticket
    }

    /// Returns the next steps of a transaction.
    ///
    /// Invariant: a committed record is deleted after the last intent was resolved: without it they would be
    /// resolved to the old headers.
    /// Test: `a_record_is_kept_until_its_last_intent_is_resolved`.
    fn go_on(&mut self, at: usize) -> Vec<Action> {
        let Some(job) = self.jobs.get_mut(at) else { return Vec::new() };
        let record_key = job.record_key.clone();
        let Some(Decided { way, forgets }) = job.decided else {
            let step = Step::Ask { record_key: record_key.clone(), aborts: false };
            return self.send(at, Sent::Ask, record_key, step);
        };
        let keys: Vec<Bytes> = job.header_keys.iter().cloned().collect();
        // bug redis.record_forgotten_early: let keys = if forgets { Vec::new() } else { keys };
        if !keys.is_empty() {
            let transaction = job.transaction;
            let each = keys.into_iter().flat_map(|key| {
                let header_keys = vec![key.clone()];
                let step = Step::Resolve { transaction, header_keys: header_keys.clone(), way };
                self.send(at, Sent::Resolve(header_keys), key, step)
            });
            return each.collect();
        }
        if forgets {
            let step = Step::Forget { record_key: record_key.clone() };
            return self.send(at, Sent::Forget, record_key, step);
        }
        job.is_done = true;
        Vec::new()
    }

    fn send(&mut self, at: usize, sent: Sent, key: Bytes, step: Step) -> Vec<Action> {
        // No step of a resolver has more names than a program may have.
        let Ok(program) = StepProgram::new(step) else { return Vec::new() };
        let ticket = self.open(at, sent);
        vec![Action::Send { ticket, key, program }]
    }
}

impl Job {
    fn new(transaction: TransactionId, record_key: Bytes) -> Self {
        let header_keys = BTreeSet::new();
        Self { transaction, record_key, header_keys, decided: None, tries: 0, is_done: false }
    }

    /// Takes what the record says. Returns false if nothing is decided.
    ///
    /// Invariant: an intent without a record is resolved to the old header.
    /// Test: `an_intent_without_a_record_has_no_effect`.
    fn take_record(&mut self, answer: StepAnswer) -> bool {
        let (way, forgets, more) = match answer {
            StepAnswer::Committed(all) => (Way::New, true, all),
            StepAnswer::Aborted(all) => (Way::Old, false, all),
            // bug redis.absent_is_committed: `Way::Old` is `Way::New`
            StepAnswer::Absent => (Way::Old, false, Vec::new()),
            _ => return false,
        };
        self.header_keys.extend(more);
        self.decided = Some(Decided { way, forgets });
        true
    }
}
