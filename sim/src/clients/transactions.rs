//! Redis transactions of clients on up to five keys, mostly in several regions. The coordinator of the product
//! executes them; it may stop after each of its steps. A key is a count and the id of the last writer,
//! under two names with one tag. The answers join those of the programs of one region in one history.

use super::{PATIENCE_NANOS, Target};
use crate::check::programs::{RunProgram, SeenKey, Stamp};
use crate::plan::{MS, Plan, fork};
use crate::world::{Happening, Requester, World};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stele_redis::transaction::{
    Action, Commands, Coordinator, Event, Resolver, StepAnswer, Ticket, TransactionFailure,
};
use stele_redis::{ProgramAnswer, Protocol, RedisProgram, Request, key};
use stele_replica::{Done, Modified, Refusal, Reply, Run};
use stele_storage::Program;
use stele_types::{Level, Prng, RegionId};

/// Number of keys. Those of programs of one region have lower numbers.
const KEYS: u8 = 8;
const FIRST_KEY: u8 = 100;
/// Most keys of a transaction.
const KEYS_MAX: u64 = 5;
/// Bound of what a name has after the id of its writer, exclusive.
const FILLER_BYTES_MAX: u64 = 200;
/// Stores that are asked for a region.
const STORES_ASKED: usize = 12;
/// Events of a coordinator of which one finds it paused.
const PAUSE_ONE_IN: u64 = 25;
/// Splits that clients order.
const SPLITS: u64 = 6;
/// Wait before a request is sent again for which there is no leader.
const NOT_SENT_NANOS: u64 = 20 * MS;

/// The transactions of all clients.
pub(crate) struct Transactions {
    prng: Prng,
    permille: u64,
    running: BTreeMap<u64, Running>,
    numbers: u64,
    /// Splits between its keys that clients still order.
    splits_left: u64,
    /// Coordinators stop no longer.
    is_final: bool,
    finals: BTreeSet<u8>,
}

/// Transaction, and what goes on after its answer.
struct Running {
    driver: Driver,
    /// `None` after the answer.
    operation: Option<Operation>,
    stop_permille: u64,
    /// Its coordinator does nothing before this time.
    paused_until: u64,
}

enum Driver {
    Coordinator(Box<Coordinator>),
    /// A command on names of one tag.
    Single {
        requests: Vec<Request>,
        resolver: Option<Resolver>,
    },
}

struct Operation {
    id: u64,
    called: u64,
    /// The client, with its step.
    client: (usize, u64),
    keys: Vec<u8>,
    writes: BTreeSet<u8>,
    is_final: bool,
}

/// Event of a transaction that is not a reply of a store.
#[derive(Clone, Copy, Debug)]
pub enum TransactionEvent {
    /// The regions of its names are looked up.
    Locate,
    /// It has waited.
    Waited,
    /// A request was not sent.
    NotSent,
    /// A request has no reply.
    TimedOut,
}

/// Ticket of a command on names of one region: the coordinator begins with 1.
const SINGLE: Ticket = Ticket(0);

impl Transactions {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            prng: fork(plan.seed, "transactions"),
            permille: plan.transaction_permille,
            running: BTreeMap::new(),
            numbers: 0,
            splits_left: SPLITS,
            is_final: false,
            finals: BTreeSet::new(),
        }
    }

    /// Returns whether the next operation is one.
    pub(super) fn draws(&mut self) -> bool {
        self.permille > 0 && self.prng.below(1_000) < self.permille
    }

    fn draws_split(&mut self) -> bool {
        self.splits_left > 0 && self.prng.below(4) == 0
    }

    /// Returns whether an answer is missing.
    pub(super) fn is_busy(&self) -> bool {
        self.running.values().any(|running| running.operation.is_some())
    }
}

/// Returns the user keys at which the keys of transactions may be divided.
pub(crate) fn transaction_borders() -> impl Iterator<Item = Bytes> {
    (0..KEYS).map(|number| key::border(&count_name(number).slice(1..)))
}

fn name(number: u8, part: &str) -> String {
    format!("{{t{number}}}{part}")
}

/// Returns the engine key of the header of a key's count.
fn count_name(number: u8) -> Bytes {
    key::header_key(0, name(number, "c").as_bytes())
}

fn request(words: &[&str]) -> Result<Request, String> {
    let words = words.iter().map(|word| Bytes::copy_from_slice(word.as_bytes()));
    Request::parse(0, words.collect()).map_err(|error| error.to_string())
}

/// Returns the values of an array of strings, numbers and texts.
fn values(replies: &[u8]) -> Option<Vec<Option<String>>> {
    let text = std::str::from_utf8(replies).ok()?;
    let mut lines = text.split_terminator("\r\n");
    lines.next()?.strip_prefix('*')?;
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        found.push(match line.split_at_checked(1)? {
            ("$", "-1") => None,
            ("$", _) => Some(lines.next()?.to_owned()),
            (":" | "+", rest) => Some(rest.to_owned()),
            _ => return None,
        });
    }
    Some(found)
}

impl Operation {
    /// Returns the requests: two for each key that it reads, and two more for one that it writes.
    fn requests(&self, prng: &mut Prng) -> Result<Vec<Request>, String> {
        let mut requests = Vec::new();
        for number in &self.keys {
            let (count, writer) = (name(*number, "c"), name(*number, "w"));
            requests.extend([request(&["get", &count])?, request(&["get", &writer])?]);
            if self.writes.contains(number) {
                let filler = "x".repeat(prng.below(FILLER_BYTES_MAX) as usize);
                let id = format!("{} {filler}", self.id);
                requests.push(request(&["incr", &count])?);
                requests.push(match prng.below(3) {
                    0 => request(&["getset", &writer, &id])?,
                    _ => request(&["set", &writer, &id])?,
                });
            }
        }
        Ok(requests)
    }

    /// Returns what replies say of the keys before the transaction.
    fn seen(&self, replies: &[u8]) -> Option<Vec<SeenKey>> {
        let mut values = values(replies)?.into_iter();
        let number = |text: Option<String>| match text {
            None => Some(0),
            Some(text) => text.split(' ').next()?.parse().ok(),
        };
        let mut seen = Vec::new();
        for key in &self.keys {
            let count = number(values.next()?)?;
            let writer = number(values.next()?)?;
            let (key, before) = (FIRST_KEY + key, Stamp { count, writer });
            seen.push(SeenKey { key, before, member: None });
            if self.writes.contains(&(key - FIRST_KEY)) {
                if values.next()?? != (count + 1).to_string() {
                    return None;
                }
                values.next()?;
            }
        }
        values.next().is_none().then_some(seen)
    }
}

impl World {
    pub(super) fn run_transaction(&mut self, at: usize) {
        if self.clients.transactions.draws_split() {
            self.split_names();
        }
        let prng = &mut self.clients.transactions.prng;
        let wanted = 1 + prng.below(KEYS_MAX) as usize;
        let mut keys: BTreeSet<u8> = BTreeSet::new();
        while keys.len() < wanted {
            keys.insert(prng.below(u64::from(KEYS)) as u8);
        }
        let (is_read_only, writes_all) = (prng.below(10) < 2, prng.coin());
        let writes = keys.iter().copied();
        let writes = writes.filter(|_| !is_read_only && (writes_all || prng.coin())).collect();
        let stop_permille = [0, 0, 20, 100][prng.below(4) as usize];
        self.begin_transaction(at, keys.into_iter().collect(), writes, stop_permille);
    }

    fn begin_transaction(
        &mut self,
        at: usize,
        keys: Vec<u8>,
        writes: BTreeSet<u8>,
        stop_permille: u64,
    ) {
        let (called, id) = (self.number(), self.clients.programs.next_id());
        self.client_in(at, PATIENCE_NANOS);
        let client = (at, self.clients.list[at].step);
        let is_final = self.clients.transactions.is_final;
        let operation = Operation { id, called, client, keys, writes, is_final };
        let transactions = &mut self.clients.transactions;
        let requests = match operation.requests(&mut transactions.prng) {
            Ok(requests) => requests,
            Err(error) => return self.fail(format!("a transaction is not one: {error}")),
        };
        transactions.numbers += 1;
        let number = transactions.numbers;
        let is_single = operation.keys.len() == 1 && transactions.prng.coin();
        self.counts.transactions_begun += 1;
        let (driver, actions) = match is_single {
            true => (Driver::Single { requests, resolver: None }, Vec::new()),
            false => {
                let (watched, protocol, is_exec) = (Vec::new(), Protocol::Resp2, true);
                let commands = Commands { requests, watched, protocol, is_exec };
                let mut coordinator = Coordinator::new(commands);
                let actions = coordinator.begin();
                (Driver::Coordinator(Box::new(coordinator)), actions)
            }
        };
        let (operation, paused_until) = (Some(operation), 0);
        let running = Running { driver, operation, stop_permille, paused_until };
        self.clients.transactions.running.insert(number, running);
        match is_single {
            true => self.send_single(number),
            false => self.carry_out_actions(number, actions),
        }
    }

    /// Splits a region between two keys, so that transactions have keys of several regions.
    fn split_names(&mut self) {
        let number = self.clients.transactions.prng.below(u64::from(KEYS)) as u8;
        let border = key::border(&count_name(number).slice(1..));
        let target = self.any_target(&border).filter(|it| it.region.range.start != border);
        if let Some(target) = target {
            self.clients.transactions.splits_left -= 1;
            self.split_at(target.slot, &target.region, border);
        }
    }

    /// Sends the program of a command on names of one region.
    fn send_single(&mut self, number: u64) {
        let Some(running) = self.clients.transactions.running.get(&number) else { return };
        let Driver::Single { requests, .. } = &running.driver else { return };
        let seed = self.clients.transactions.prng.draw();
        let program = RedisProgram::new(requests.clone(), Protocol::Resp2, seed);
        match program {
            Ok(program) => {
                let program = Arc::new(program.of_exec());
                self.send_step(number, SINGLE, program);
            }
            Err(error) => self.fail(format!("a transaction is not one: {error}")),
        }
    }

    fn carry_out_actions(&mut self, number: u64, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Locate { ticket, .. } => {
                    self.transaction_event(number, ticket, TransactionEvent::Locate, 0);
                }
                Action::Wait { ticket, ms } => {
                    self.transaction_event(number, ticket, TransactionEvent::Waited, ms * MS);
                }
                Action::Send { ticket, program, .. } => {
                    self.send_step(number, ticket, Arc::new(program));
                }
                Action::ReadMembers { .. } => {
                    return self.fail("a transaction on strings reads members".to_owned());
                }
                Action::Finish(result) => self.transaction_finished(number, result),
            }
        }
        self.end_transaction(number);
    }

    fn transaction_event(
        &mut self,
        number: u64,
        ticket: Ticket,
        event: TransactionEvent,
        nanos: u64,
    ) {
        self.after(nanos, Happening::Transaction { number, ticket: ticket.0, event });
    }

    /// Returns the destination for a user key, from one of several stores.
    fn any_target(&mut self, user_key: &Bytes) -> Option<Target> {
        (0..STORES_ASKED).find_map(|_| self.target_for(user_key))
    }

    /// Sends a program once, to the region that has all of its keys.
    fn send_step(&mut self, number: u64, ticket: Ticket, program: Arc<dyn Program>) {
        let user_keys: Vec<Bytes> = program.keys().iter().map(|key| key.slice(1..)).collect();
        let target = user_keys.first().and_then(|first| self.any_target(first));
        let target = target.filter(|target| self.may_use(target.slot, Level::REDIS));
        let has_all = |keys: &[Bytes], range: &stele_types::KeyRange| {
            keys.iter().all(|key| range.contains(key))
        };
        let Some(target) = target.filter(|it| has_all(&user_keys, &it.region.range)) else {
            let event = TransactionEvent::NotSent;
            return self.transaction_event(number, ticket, event, NOT_SENT_NANOS);
        };
        let requester = Requester::Transaction { number, ticket: ticket.0 };
        self.transaction_event(number, ticket, TransactionEvent::TimedOut, PATIENCE_NANOS);
        self.request(target.slot, requester, Run { header: target.header, program });
    }

    /// Takes the reply to a step; `None` if the connection was lost.
    pub(crate) fn transaction_reply(&mut self, number: u64, ticket: u64, reply: Option<Reply>) {
        if let Some(nanos) = self.pause_of(number) {
            let requester = Requester::Transaction { number, ticket };
            return self.after(nanos, Happening::Reply { slot: 0, requester, reply });
        }
        let event = match reply {
            Some(Reply::Done(Done::Modified { result: Modified::Answered { answer }, .. })) => {
                if Ticket(ticket) == SINGLE {
                    return self.single_answered(number, answer);
                }
                match StepAnswer::decode(&answer) {
                    Some(StepAnswer::Refused(text)) => {
                        return self.fail(format!("a step of a transaction is refused: {text}"));
                    }
                    Some(answer) => Event::Answered(answer),
                    None => return self.fail(format!("a step was answered with {answer:?}")),
                }
            }
            None | Some(Reply::Unknown(_)) => Event::Unknown("no reply".to_owned()),
            Some(Reply::Refused(Refusal::Invalid(reason))) => {
                return self.fail(format!("a step of a transaction is refused: {reason}"));
            }
            Some(Reply::Refused(_) | Reply::Busy(_)) => Event::NotDone("refused".to_owned()),
            Some(other) => return self.fail(format!("a step was answered with {other:?}")),
        };
        self.transaction_step(number, Ticket(ticket), event);
    }

    /// Takes an event that is not a reply.
    pub(crate) fn transaction_happens(
        &mut self,
        number: u64,
        ticket: u64,
        event: TransactionEvent,
    ) {
        if let Some(nanos) = self.pause_of(number) {
            return self.transaction_event(number, Ticket(ticket), event, nanos);
        }
        let event = match event {
            TransactionEvent::Locate => self.located(number),
            TransactionEvent::Waited => Event::Waited,
            TransactionEvent::NotSent => Event::NotDone("no leader".to_owned()),
            TransactionEvent::TimedOut => Event::Unknown("no reply in time".to_owned()),
        };
        self.transaction_step(number, Ticket(ticket), event);
    }

    /// Returns the time for which a coordinator does nothing, mostly longer than others wait for it.
    fn pause_of(&mut self, number: u64) -> Option<u64> {
        let now = self.now;
        let transactions = &mut self.clients.transactions;
        let running = transactions.running.get_mut(&number)?;
        let may_pause = !transactions.is_final && running.stop_permille > 0;
        if running.paused_until <= now && may_pause && transactions.prng.below(PAUSE_ONE_IN) == 0 {
            running.paused_until = now + (2_000 + transactions.prng.below(6_000)) * MS;
        }
        running.paused_until.checked_sub(now).filter(|nanos| *nanos > 0)
    }

    fn located(&mut self, number: u64) -> Event {
        let running = self.clients.transactions.running.get(&number);
        let names: Vec<Bytes> = match running.map(|running| &running.driver) {
            Some(Driver::Coordinator(coordinator)) => coordinator.header_keys().to_vec(),
            _ => Vec::new(),
        };
        let numbers = [(); 4].map(|()| self.clients.transactions.prng.draw());
        let region_of = |name: &Bytes, world: &mut Self| {
            world.any_target(&name.slice(1..)).map(|target| target.region.id)
        };
        let regions: Option<Vec<RegionId>> =
            names.iter().map(|name| region_of(name, self)).collect();
        Event::Located(regions.ok_or_else(|| "no region has a name".to_owned()), numbers)
    }

    fn transaction_step(&mut self, number: u64, ticket: Ticket, event: Event) {
        let transactions = &mut self.clients.transactions;
        let Some(running) = transactions.running.get_mut(&number) else { return };
        let stops = !transactions.is_final
            && running.stop_permille > 0
            && transactions.prng.below(1_000) < running.stop_permille;
        if stops {
            self.counts.coordinators_stopped += 1;
            return self.stop_transaction(number);
        }
        let actions = match &mut running.driver {
            Driver::Coordinator(coordinator) => coordinator.on(ticket, event),
            Driver::Single { resolver: Some(resolver), .. } if ticket != SINGLE => {
                let actions = resolver.on(ticket, event);
                if resolver.has_ended() {
                    running.driver.take_resolver();
                    return self.send_single(number);
                }
                actions
            }
            Driver::Single { .. } if ticket == SINGLE => return self.single_failed(number, &event),
            Driver::Single { .. } => return,
        };
        self.carry_out_actions(number, actions);
    }

    fn single_answered(&mut self, number: u64, answer: Bytes) {
        match ProgramAnswer::decode(answer) {
            Some(ProgramAnswer::Replies(replies)) => {
                self.transaction_finished(number, Ok(replies));
                self.clients.transactions.running.remove(&number);
            }
            Some(ProgramAnswer::Meets(met)) => {
                self.counts.intents_met += 1;
                let Some(running) = self.clients.transactions.running.get_mut(&number) else {
                    return;
                };
                let mut new = Resolver::new(met);
                let actions = new.begin();
                if let Driver::Single { resolver, .. } = &mut running.driver {
                    *resolver = Some(new);
                }
                self.carry_out_actions(number, actions);
            }
            other => self.fail(format!("a command was answered with {other:?}")),
        }
    }

    /// Ends a command without a reply. One that was answered meanwhile has ended already.
    fn single_failed(&mut self, number: u64, event: &Event) {
        let running = self.clients.transactions.running.get(&number);
        let is_resolving =
            running.is_some_and(|it| matches!(it.driver, Driver::Single { resolver: Some(_), .. }));
        if is_resolving {
            return;
        }
        let failure = match event {
            Event::NotDone(_) => TransactionFailure::Busy("not done".to_owned()),
            _ => TransactionFailure::Undetermined("unknown".to_owned()),
        };
        self.transaction_finished(number, Err(failure));
        self.clients.transactions.running.remove(&number);
    }

    /// Notes the answer to a client, which goes on.
    fn transaction_finished(&mut self, number: u64, result: Result<Bytes, TransactionFailure>) {
        let running = self.clients.transactions.running.get_mut(&number);
        let Some(operation) = running.and_then(|it| it.operation.take()) else { return };
        let (at, step) = operation.client;
        match result {
            Ok(replies) => match operation.seen(&replies) {
                Some(seen) => {
                    if operation.is_final {
                        self.clients.transactions.finals.extend(&operation.keys);
                    }
                    self.record_transaction(&operation, Some(seen));
                }
                None => {
                    let text = String::from_utf8_lossy(&replies).into_owned();
                    return self.fail(format!("a transaction was answered with {text}"));
                }
            },
            Err(TransactionFailure::Undetermined(_)) => self.record_transaction(&operation, None),
            // It had no effect: a history in which its write is seen has no order.
            Err(TransactionFailure::Busy(_)) => self.counts.transactions_refused += 1,
            Err(failure) => return self.fail(format!("a transaction fails: {failure}")),
        }
        if self.clients.list.get(at).is_some_and(|client| client.step == step) {
            self.pause_client(at);
        }
    }

    fn record_transaction(&mut self, operation: &Operation, seen: Option<Vec<SeenKey>>) {
        let number = self.number();
        let returned = seen.is_some().then_some(number);
        self.counts.ops += u64::from(seen.is_some());
        self.counts.transactions += u64::from(seen.is_some());
        if seen.is_none() && operation.writes.is_empty() {
            return;
        }
        self.counts.transactions_unknown += u64::from(seen.is_none());
        self.trace.mix(operation.called ^ number.rotate_left(32));
        let seen = seen.unwrap_or_default();
        let writes = operation.writes.iter().map(|key| FIRST_KEY + key).collect();
        let (id, called, slot) = (operation.id, operation.called, 0);
        let run = RunProgram { id, called, returned, slot, writes, seen };
        self.clients.programs.history.push(run);
    }

    /// Stops the coordinator of a transaction: it does no further step, and its client gets no answer.
    fn stop_transaction(&mut self, number: u64) {
        let Some(running) = self.clients.transactions.running.remove(&number) else { return };
        if let Some(operation) = running.operation {
            self.record_transaction(&operation, None);
        }
    }

    /// Forgets a transaction that has nothing under way.
    fn end_transaction(&mut self, number: u64) {
        let running = self.clients.transactions.running.get(&number);
        let has_ended = running.is_some_and(|running| match &running.driver {
            Driver::Coordinator(coordinator) => coordinator.has_ended(),
            Driver::Single { .. } => false,
        });
        if has_ended {
            self.stop_transaction(number);
        }
    }

    /// Reads every key once more. Returns true if all were read before a time.
    pub(super) fn read_transactions(&mut self, until: u64) -> bool {
        if self.clients.transactions.numbers == 0 {
            return true;
        }
        let left: Vec<u64> = self.clients.transactions.running.keys().copied().collect();
        left.into_iter().for_each(|number| self.stop_transaction(number));
        self.clients.transactions.is_final = true;
        while self.clients.transactions.finals.len() < usize::from(KEYS) {
            if self.now > until || self.violation.is_some() {
                return false;
            }
            // One by one: a slow device may need longer for all of them than a transaction has.
            let finals = &self.clients.transactions.finals;
            let unread = (0..KEYS).find(|key| !finals.contains(key));
            if !self.clients.transactions.is_busy()
                && self.clients.list[0].pending.is_none()
                && let Some(unread) = unread
            {
                self.begin_transaction(0, vec![unread], BTreeSet::new(), 0);
            }
            self.run(5 * MS);
        }
        true
    }
}

impl Driver {
    fn take_resolver(&mut self) {
        if let Self::Single { resolver, .. } = self {
            *resolver = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_say_what_keys_had_before() {
        let (keys, writes) = (vec![1, 2], BTreeSet::from([2]));
        let operation =
            Operation { id: 9, called: 1, client: (0, 0), keys, writes, is_final: false };
        assert_eq!(operation.requests(&mut Prng::new(1)).unwrap().len(), 6);
        let replies = b"*6\r\n$-1\r\n$-1\r\n$1\r\n4\r\n$4\r\n7 xx\r\n:5\r\n+OK\r\n";
        let row =
            |key, count, writer| SeenKey { key, before: Stamp { count, writer }, member: None };
        assert_eq!(operation.seen(replies), Some(vec![row(101, 0, 0), row(102, 4, 7)]));
        assert_eq!(
            operation.seen(b"*6\r\n$-1\r\n$-1\r\n$1\r\n4\r\n$4\r\n7 xx\r\n:6\r\n+OK\r\n"),
            None
        );
        assert_eq!(operation.seen(b"-ERR no\r\n"), None);
    }

    #[test]
    fn no_border_parts_the_names_of_a_key() {
        for (number, border) in transaction_borders().enumerate() {
            let [count, writer] = ["c", "w"]
                .map(|part| key::header_key(0, name(number as u8, part).as_bytes()).slice(1..));
            assert!(border <= count && border <= writer);
            assert_eq!(key::border(&border), border);
        }
    }
}
