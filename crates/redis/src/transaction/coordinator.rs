//! Coordinator of a transaction over several regions, without I/O: its owner carries actions out and passes
//! their outcomes.

use super::attempt::{Attempt, Verdict, Writes};
use super::layout::MetIntent;
use super::resolver::Resolver;
use super::steps::{Step, StepAnswer, StepProgram, Way};
use super::{Action, Event, Ticket, Tickets};
use crate::program::Watched;
use crate::reply::{Protocol, Reply, put_array_header};
use crate::request::Request;
use crate::state::Needs;
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, BTreeSet};
use stele_types::{Prng, RegionId};

/// Attempts of a transaction.
const ATTEMPTS: u32 = 12;
/// Times that an attempt reads: headers, then members, and what others have changed.
const READS_MAX: u32 = 16;
/// Times that a record is asked after a commit of which the outcome is unknown.
const ASKS: u32 = 20;
/// Times that an abort is sent.
const ABORTS: u32 = 3;
/// Wait between two reads of a record in milliseconds.
const ASK_WAIT_MS: u64 = 50;
/// Bound of the first wait between two attempts in milliseconds. It doubles six times at most.
const WAIT_MS: u64 = 4;

/// Commands that take effect together.
#[derive(Clone, Debug)]
pub struct Commands {
    /// The requests, in order.
    pub requests: Vec<Request>,
    /// Names that must be as they were; otherwise the reply is the missing array.
    pub watched: Vec<Watched>,
    /// Version of the protocol of the replies.
    pub protocol: Protocol,
    /// One array holds all replies.
    pub is_exec: bool,
}

impl Commands {
    /// Returns the engine keys of the headers of all names, ascending and each once.
    pub fn header_keys(&self) -> BTreeSet<Bytes> {
        let watched = self.watched.iter().map(|watched| watched.header_key.clone());
        self.requests.iter().flat_map(Request::header_keys).chain(watched).collect()
    }

    pub(super) fn encode(&self, replies: &[Reply]) -> Bytes {
        let mut out = BytesMut::new();
        if self.is_exec {
            put_array_header(&mut out, replies.len());
        }
        replies.iter().for_each(|reply| reply.encode(self.protocol, &mut out));
        out.freeze()
    }
}

/// Reason for which a transaction has no replies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransactionFailure {
    /// It may have taken effect or not.
    #[error("the outcome of its commit is unknown: {0}")]
    Undetermined(String),
    /// It had no effect. It may succeed later.
    #[error("{0}")]
    Busy(String),
    /// It had no effect: a collection is too large to be written again.
    #[error("a {kind} of {count} members cannot be changed together with names of other regions")]
    TooManyMembers {
        /// Name of its type.
        kind: &'static str,
        /// Number of its members.
        count: u64,
    },
    /// It had no effect, and never has one in this form.
    #[error("{0}")]
    Invalid(String),
}

/// What was sent and has no outcome yet.
#[derive(Debug)]
enum Sent {
    Locate,
    Create,
    Read,
    Members,
    Intend(Vec<Bytes>),
    Commit,
    /// Reads the record after a commit of which the outcome is unknown.
    AskOutcome,
    Abort,
    Wait(After),
}

#[derive(Clone, Copy, Debug)]
enum After {
    Again,
    AskOutcome,
}

/// What follows when all that was sent has its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The next attempt begins.
    Locate,
    /// The commands are executed on what was read.
    Read,
    /// The transaction commits.
    Intend,
    /// The next attempt begins, after intents that were met.
    Clean,
    /// Only resolvers go on.
    End,
}

/// Coordinator of a transaction.
#[derive(Debug)]
pub struct Coordinator {
    commands: Commands,
    names: Vec<Bytes>,
    tickets: Tickets,
    open: BTreeMap<Ticket, Sent>,
    phase: Phase,
    attempts: u32,
    reads: u32,
    asks: u32,
    attempt: Option<Attempt>,
    writes: Option<Writes>,
    /// Names at which intents were written, or may have been.
    intended: Vec<Bytes>,
    /// Intents of other transactions that must be resolved first.
    met: Vec<MetIntent>,
    /// First reason for which the attempt cannot go on.
    problem: Option<TransactionFailure>,
    /// Resolvers by the range of their tickets. The phase waits for those in `awaited`.
    resolvers: BTreeMap<u64, Resolver>,
    awaited: BTreeSet<u64>,
    ranges: u64,
    waits: Prng,
}

impl Coordinator {
    /// Creates the coordinator.
    pub fn new(commands: Commands) -> Self {
        Self {
            names: commands.header_keys().into_iter().collect(),
            commands,
            tickets: Tickets::default(),
            open: BTreeMap::new(),
            phase: Phase::Locate,
            attempts: 0,
            reads: 0,
            asks: 0,
            attempt: None,
            writes: None,
            intended: Vec::new(),
            met: Vec::new(),
            problem: None,
            resolvers: BTreeMap::new(),
            awaited: BTreeSet::new(),
            ranges: 0,
            waits: Prng::new(0),
        }
    }

    /// Returns the engine keys of the headers of all names, ascending.
    pub fn header_keys(&self) -> &[Bytes] {
        &self.names
    }

    /// Returns the first actions.
    pub fn begin(&mut self) -> Vec<Action> {
        self.attempts += 1;
        let header_keys = self.names.clone();
        vec![Action::Locate { ticket: self.open(Sent::Locate), header_keys }]
    }

    /// Whether nothing is under way.
    pub fn has_ended(&self) -> bool {
        self.open.is_empty() && self.resolvers.is_empty()
    }

    /// Takes the outcome of an action, and returns the next ones.
    pub fn on(&mut self, ticket: Ticket, event: Event) -> Vec<Action> {
        let mut actions = match self.open.remove(&ticket) {
            Some(sent) => self.take(sent, event),
            None => self.take_resolved(ticket, event),
        };
        // Each step of a phase may end with its first action.
        if actions.is_empty() && self.open.is_empty() && self.awaited.is_empty() {
            actions = self.advance();
        }
        actions
    }

    fn open(&mut self, sent: Sent) -> Ticket {
        let ticket = self.tickets.next();
        self.open.insert(ticket, sent);
        ticket
    }

    fn take_resolved(&mut self, ticket: Ticket, event: Event) -> Vec<Action> {
        let range = ticket.range();
        let Some(resolver) = self.resolvers.get_mut(&range) else { return Vec::new() };
        let actions = resolver.on(ticket, event);
        if resolver.has_ended() {
            if self.awaited.remove(&range) && !resolver.is_done() {
                let text = "another transaction on its names does not end";
                self.fail(TransactionFailure::Busy(text.to_owned()));
            }
            self.resolvers.remove(&range);
        }
        actions
    }

    /// Adds a resolver, and returns its first actions.
    fn resolve(&mut self, is_awaited: bool, make: impl FnOnce(u64) -> Resolver) -> Vec<Action> {
        self.ranges += 1;
        let mut resolver = make(self.ranges);
        let actions = resolver.begin();
        if !actions.is_empty() {
            self.resolvers.insert(self.ranges, resolver);
            if is_awaited {
                self.awaited.insert(self.ranges);
            }
        }
        actions
    }

    fn fail(&mut self, failure: TransactionFailure) {
        self.problem.get_or_insert(failure);
    }

    /// Notes that another command was faster.
    fn fail_busy(&mut self, what: &str) {
        self.fail(TransactionFailure::Busy(format!("{what}; commands on the same names compete")));
    }

    fn fail_unanswered(&mut self, event: &Event) {
        let reason = match event {
            Event::NotDone(reason) | Event::Unknown(reason) => reason,
            _ => "an answer that does not belong to the step",
        };
        self.fail(TransactionFailure::Busy(format!("a region did not do its step: {reason}")));
    }

    fn take(&mut self, sent: Sent, event: Event) -> Vec<Action> {
        match (sent, event) {
            (Sent::Locate, Event::Located(Ok(regions), numbers)) => {
                return self.start(&regions, numbers);
            }
            (Sent::Locate, Event::Located(Err(reason), _)) => {
                self.fail(TransactionFailure::Busy(reason));
                self.phase = Phase::Clean;
            }
            (Sent::Wait(After::Again), _) => return self.begin(),
            (Sent::Wait(After::AskOutcome), _) => return self.ask_outcome(),
            (Sent::Create | Sent::Intend(_), Event::Answered(StepAnswer::Done)) => {}
            (Sent::Read, Event::Answered(StepAnswer::Read(pairs, now_ms))) => {
                if let Some(attempt) = &mut self.attempt {
                    attempt.add_pairs(pairs, now_ms);
                }
            }
            (Sent::Read, Event::Answered(StepAnswer::Meets(met))) => self.met.extend(met),
            (Sent::Members, Event::Members(members)) => {
                if let Some(attempt) = &mut self.attempt {
                    attempt.add_members(members);
                }
            }
            (Sent::Intend(names), Event::Answered(StepAnswer::Meets(met))) => {
                self.intended.retain(|name| !names.contains(name));
                self.met.extend(met);
                self.fail_busy("a name is locked");
            }
            (Sent::Intend(names), Event::Answered(StepAnswer::Changed)) => {
                self.intended.retain(|name| !names.contains(name));
                self.fail_busy("a name has changed");
            }
            (Sent::Commit, event) => return self.take_commit(event),
            (Sent::AskOutcome, event) => return self.take_outcome(event),
            (Sent::Abort, Event::Answered(_)) => return self.clean(),
            (Sent::Abort, _) if self.asks < ABORTS => return self.send_abort(),
            // The record is aborted when it is old.
            (Sent::Abort, _) => {}
            (_, Event::Answered(StepAnswer::Refused(text))) => {
                self.fail(TransactionFailure::Invalid(text));
            }
            (_, event) => self.fail_unanswered(&event),
        }
        Vec::new()
    }

    /// Begins an attempt: creates the record, and reads all headers.
    fn start(&mut self, regions: &[RegionId], numbers: [u64; 4]) -> Vec<Action> {
        (self.reads, self.asks) = (0, 0);
        let [high, low, seed, waits] = numbers;
        self.waits = Prng::new(waits);
        let Some(attempt) = Attempt::new(&self.names, regions, [high, low, seed]) else {
            let failure = TransactionFailure::Invalid("commands without names".to_owned());
            return self.finish(Err(failure));
        };
        let (record_key, header_keys) = (attempt.record_key.clone(), self.names.clone());
        let create = Step::Create { record_key: record_key.clone(), header_keys };
        let groups: Vec<BTreeSet<Bytes>> = attempt.groups.values().cloned().collect();
        self.attempt = Some(attempt);
        self.phase = Phase::Read;
        let mut actions = self.send(Sent::Create, record_key, create);
        for group in groups {
            actions.extend(self.read(group, Vec::new()));
        }
        actions
    }

    fn read(&mut self, header_keys: BTreeSet<Bytes>, member_keys: Vec<Bytes>) -> Vec<Action> {
        let header_keys: Vec<Bytes> = header_keys.into_iter().collect();
        let Some(key) = header_keys.first().cloned() else { return Vec::new() };
        self.send(Sent::Read, key, Step::Read { header_keys, member_keys })
    }

    fn send(&mut self, sent: Sent, key: Bytes, step: Step) -> Vec<Action> {
        match StepProgram::new(step) {
            Ok(program) => vec![Action::Send { ticket: self.open(sent), key, program }],
            Err(error) => {
                self.fail(TransactionFailure::Invalid(error.to_string()));
                Vec::new()
            }
        }
    }

    /// Continues when all that the phase has sent has its outcome.
    fn advance(&mut self) -> Vec<Action> {
        match self.phase {
            Phase::End | Phase::Locate => Vec::new(),
            Phase::Clean => self.next_attempt(),
            Phase::Read | Phase::Intend if self.problem.is_some() => self.abort(),
            Phase::Read if !self.met.is_empty() => self.resolve_met(),
            Phase::Read => self.execute(),
            Phase::Intend => self.commit(),
        }
    }

    /// Resolves the intents that were met. They are read again when the commands miss the headers.
    fn resolve_met(&mut self) -> Vec<Action> {
        let met = std::mem::take(&mut self.met);
        self.resolve(true, |range| Resolver::numbered(range, met))
    }

    /// Executes the commands, or reads what they need.
    fn execute(&mut self) -> Vec<Action> {
        self.reads += 1;
        if self.reads > READS_MAX {
            self.fail(TransactionFailure::Busy("its names change while they are read".to_owned()));
            return self.abort();
        }
        let Some(attempt) = &self.attempt else { return Vec::new() };
        let unread = attempt.unread();
        if !unread.is_empty() {
            return unread.into_iter().flat_map(|group| self.read(group, Vec::new())).collect();
        }
        match attempt.execute(&self.commands) {
            Verdict::Reads(needs) => self.read_needs(needs),
            Verdict::WatchedChanged => {
                let replies = Reply::NullArray.encoded(self.commands.protocol);
                self.end_unchanged(Ok(replies))
            }
            Verdict::Fails(failure) => self.end_unchanged(Err(failure)),
            Verdict::Writes(writes) => self.intend(writes),
        }
    }

    fn read_needs(&mut self, needs: Needs) -> Vec<Action> {
        let Some(attempt) = &self.attempt else { return Vec::new() };
        let mut by_region: BTreeMap<_, Vec<Bytes>> = BTreeMap::new();
        for key in needs.keys {
            by_region.entry(attempt.region_of(&key)).or_default().push(key);
        }
        let mut members: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for need in needs.members {
            members.entry(attempt.region_of(&need.header_key)).or_default().push(need);
        }
        let groups = attempt.groups.clone();
        let mut actions = Vec::new();
        for (region, member_keys) in by_region {
            let header_keys = region.and_then(|region| groups.get(&region)).cloned();
            actions.extend(self.read(header_keys.unwrap_or_default(), member_keys));
        }
        for needs in members.into_values() {
            let Some(key) = needs.first().map(|need| need.header_key.clone()) else { continue };
            let ticket = self.open(Sent::Members);
            actions.push(Action::ReadMembers { ticket, key, needs });
        }
        if actions.is_empty() {
            let text = "the commands need pairs of other names".to_owned();
            return self.end_unchanged(Err(TransactionFailure::Invalid(text)));
        }
        actions
    }

    /// Sends the intents of each region, once.
    fn intend(&mut self, mut writes: Writes) -> Vec<Action> {
        let Some(attempt) = &self.attempt else { return Vec::new() };
        let (transaction, record_key) = (attempt.transaction, attempt.record_key.clone());
        self.phase = Phase::Intend;
        let mut actions = Vec::new();
        for changes in std::mem::take(&mut writes.intents).into_values() {
            let names: Vec<Bytes> = changes.iter().map(|it| it.header_key.clone()).collect();
            let Some(key) = names.first().cloned() else { continue };
            self.intended.extend(names.iter().cloned());
            let step = Step::Intend { transaction, record_key: record_key.clone(), changes };
            actions.extend(self.send(Sent::Intend(names), key, step));
        }
        self.writes = Some(writes);
        if actions.is_empty() { self.advance() } else { actions }
    }

    /// Commits. Each intent is written.
    ///
    /// Invariant: the commit is sent after all intents are acknowledged.
    /// Test: `transactions_over_regions_are_atomic_although_answers_are_lost`.
    fn commit(&mut self) -> Vec<Action> {
        let (Some(attempt), Some(writes)) = (&self.attempt, &mut self.writes) else {
            return Vec::new();
        };
        let record_key = attempt.record_key.clone();
        let operations = std::mem::take(&mut writes.operations);
        let expected = std::mem::take(&mut writes.expected);
        let step = Step::Commit { record_key: record_key.clone(), expected, operations };
        let actions = self.send(Sent::Commit, record_key, step);
        if actions.is_empty() { self.abort() } else { actions }
    }

    fn take_commit(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Answered(StepAnswer::Done) => return self.committed(),
            Event::Answered(StepAnswer::Meets(met)) => {
                self.met.extend(met);
                self.fail_busy("a name is locked");
                return self.clean();
            }
            Event::Answered(StepAnswer::Changed | StepAnswer::Absent) => {
                self.fail_busy("it was aborted");
                return self.clean();
            }
            Event::Answered(StepAnswer::Refused(text)) => {
                self.fail(TransactionFailure::Invalid(text));
            }
            Event::NotDone(_) => self.fail_unanswered(&event),
            _ => {
                self.fail_unanswered(&event);
                return self.ask_outcome();
            }
        }
        self.abort()
    }

    /// Aborts unless it has committed.
    fn ask_outcome(&mut self) -> Vec<Action> {
        let Some(attempt) = &self.attempt else { return Vec::new() };
        self.asks += 1;
        let record_key = attempt.record_key.clone();
        let step = Step::Ask { record_key: record_key.clone(), aborts: true };
        self.send(Sent::AskOutcome, record_key, step)
    }

    /// Invariant: an absent record does not say whether the transaction has committed: another process may
    /// have resolved its intents and deleted the record.
    /// Test: `a_record_that_is_absent_after_an_unknown_commit_leaves_the_outcome_unknown`.
    fn take_outcome(&mut self, event: Event) -> Vec<Action> {
        let answer = match event {
            Event::Answered(StepAnswer::Committed(_)) => return self.committed(),
            Event::Answered(answer) => answer,
            _ if self.asks < ASKS => {
                let ticket = self.open(Sent::Wait(After::AskOutcome));
                return vec![Action::Wait { ticket, ms: ASK_WAIT_MS }];
            }
            _ => return self.undetermined(),
        };
        let is_aborted = matches!(answer, StepAnswer::Aborted(_));
        // bug redis.absent_is_failed: let is_aborted = true;
        match is_aborted {
            true => self.clean(),
            false => self.undetermined(),
        }
    }

    fn undetermined(&mut self) -> Vec<Action> {
        let reason = self.problem.take().map_or_else(String::new, |it| it.to_string());
        let mut actions = self.finish(Err(TransactionFailure::Undetermined(reason)));
        let Some(attempt) = self.attempt.take() else { return actions };
        let of_name = |header_key| MetIntent {
            header_key,
            transaction: attempt.transaction,
            record_key: attempt.record_key.clone(),
        };
        let met = std::mem::take(&mut self.intended).into_iter().map(of_name).collect();
        actions.extend(self.resolve(false, |range| Resolver::numbered(range, met)));
        actions
    }

    /// Answers, and resolves the intents meanwhile.
    fn committed(&mut self) -> Vec<Action> {
        let replies = self.writes.take().map_or_else(Bytes::new, |writes| writes.replies);
        let mut actions = self.finish(Ok(replies));
        let Some(attempt) = self.attempt.take() else { return actions };
        let (transaction, record_key) = (attempt.transaction, attempt.record_key);
        let names = std::mem::take(&mut self.intended);
        actions.extend(self.resolve(false, |range| {
            Resolver::decided(range, transaction, record_key, names, Way::New)
        }));
        actions
    }

    /// Answers without a change. The record is deleted meanwhile.
    fn end_unchanged(&mut self, result: Result<Bytes, TransactionFailure>) -> Vec<Action> {
        let mut actions = self.finish(result);
        actions.extend(self.send_abort());
        actions
    }

    fn finish(&mut self, result: Result<Bytes, TransactionFailure>) -> Vec<Action> {
        self.phase = Phase::End;
        vec![Action::Finish(result)]
    }

    fn send_abort(&mut self) -> Vec<Action> {
        self.asks += 1;
        let Some(attempt) = &self.attempt else { return Vec::new() };
        let record_key = attempt.record_key.clone();
        let step = Step::Ask { record_key: record_key.clone(), aborts: true };
        self.send(Sent::Abort, record_key, step)
    }

    /// Deletes the record. The commit was not sent, or had no effect.
    fn abort(&mut self) -> Vec<Action> {
        if self.phase != Phase::End {
            self.phase = Phase::Clean;
        }
        self.send_abort()
    }

    /// Resolves the intents of an aborted attempt.
    fn clean(&mut self) -> Vec<Action> {
        if self.phase != Phase::End {
            self.phase = Phase::Clean;
        }
        self.writes = None;
        let names = std::mem::take(&mut self.intended);
        let Some(attempt) = self.attempt.take() else { return Vec::new() };
        let (transaction, record_key) = (attempt.transaction, attempt.record_key);
        let is_awaited = self.phase == Phase::Clean;
        self.resolve(is_awaited, |range| {
            Resolver::decided(range, transaction, record_key, names, Way::Old)
        })
    }

    /// Begins the next attempt, after the intents that were met and a random wait.
    fn next_attempt(&mut self) -> Vec<Action> {
        if !self.met.is_empty() {
            return self.resolve_met();
        }
        let failure = self.problem.take();
        self.attempt = None;
        self.intended.clear();
        match failure {
            Some(failure @ TransactionFailure::Busy(_)) if self.attempts >= ATTEMPTS => {
                self.finish(Err(failure))
            }
            None | Some(TransactionFailure::Busy(_)) => {
                self.phase = Phase::Locate;
                let ms = 1 + self.waits.below(WAIT_MS << self.attempts.min(6));
                let ticket = self.open(Sent::Wait(After::Again));
                vec![Action::Wait { ticket, ms }]
            }
            Some(failure) => self.finish(Err(failure)),
        }
    }
}
