//! Regions in memory, and requests to them that take time, fail, or lose their answers.

use bytes::Bytes;
use std::collections::BTreeMap;
use stele_redis::key;
use stele_redis::transaction::{
    Action, Commands, Coordinator, Event, MetIntent, Resolver, StepAnswer, StepProgram, Ticket,
    TransactionFailure,
};
use stele_redis::{Members, MembersNeed, Protocol, Request};
use stele_redis_region::MemoryRegion;
use stele_types::{Prng, RegionId};

/// Outcome of a transaction.
pub(super) type Ended = Result<Bytes, TransactionFailure>;

/// Number of regions. A name lies in the region of its last digit.
pub(super) const REGIONS: u64 = 3;

/// How requests fail, in permille.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    /// The request is lost; the sender gets an unknown outcome.
    pub(super) lost: u64,
    /// The answer is lost.
    pub(super) unanswered: u64,
    /// The sender gets an unknown outcome, and the request is executed later.
    pub(super) late: u64,
    /// The request is refused.
    pub(super) refused: u64,
    /// The coordinator stops after a step.
    pub(super) stops: u64,
}

enum Happening {
    Execute { program: StepProgram, key: Bytes, reply: Option<(usize, Ticket)> },
    Members { needs: Vec<MembersNeed>, key: Bytes, of: usize, ticket: Ticket },
    Deliver { of: usize, ticket: Ticket, event: Event },
}

/// Regions with coordinators.
pub(super) struct Cluster {
    pub(super) regions: BTreeMap<RegionId, MemoryRegion>,
    pub(super) now_ms: u64,
    pub(super) prng: Prng,
    pub(super) faults: Faults,
    coordinators: Vec<Option<Coordinator>>,
    /// Outcomes by coordinator.
    pub(super) ended: BTreeMap<usize, Ended>,
    waiting: BTreeMap<(u64, u64), Happening>,
    number: u64,
    /// Steps that were sent, as texts.
    pub(super) sent: Vec<String>,
}

impl Cluster {
    pub(super) fn new(seed: u64, faults: Faults) -> Self {
        let region = |id| {
            let mut region = MemoryRegion::new(seed ^ id, Protocol::Resp2);
            region.is_guarded = true;
            (RegionId(id), region)
        };
        Self {
            regions: (0..REGIONS).map(region).collect(),
            now_ms: super::NOW_MS,
            prng: Prng::new(seed),
            faults,
            coordinators: Vec::new(),
            ended: BTreeMap::new(),
            waiting: BTreeMap::new(),
            number: 0,
            sent: Vec::new(),
        }
    }

    pub(super) fn region_of(engine_key: &Bytes) -> RegionId {
        let name = key::decode(engine_key).unwrap().name;
        RegionId(u64::from(name.last().copied().unwrap_or(0)) % REGIONS)
    }

    pub(super) fn region(&mut self, engine_key: &Bytes) -> &mut MemoryRegion {
        self.regions.get_mut(&Self::region_of(engine_key)).unwrap()
    }

    /// Executes a request in the region of its first name.
    pub(super) fn at_once(&mut self, text: &str) -> String {
        let request = request(text);
        let key = request.header_keys().next().unwrap();
        let now_ms = self.now_ms;
        super::super::shown(&self.region(&key).execute_all(&[request], false, now_ms))
    }

    /// Begins a transaction; returns its number.
    pub(super) fn begin(&mut self, texts: &[&str]) -> usize {
        let requests = texts.iter().map(|text| request(text)).collect();
        let (watched, protocol) = (Vec::new(), Protocol::Resp2);
        self.begin_commands(Commands { requests, watched, protocol, is_exec: true })
    }

    pub(super) fn begin_commands(&mut self, commands: Commands) -> usize {
        let mut coordinator = Coordinator::new(commands);
        let actions = coordinator.begin();
        let of = self.coordinators.len();
        self.coordinators.push(Some(coordinator));
        self.carry_out(of, actions);
        of
    }

    /// Executes a transaction without others; returns its replies or its failure.
    pub(super) fn execute(&mut self, texts: &[&str]) -> String {
        let of = self.begin(texts);
        self.run(u64::MAX);
        match self.ended.remove(&of) {
            Some(Ok(replies)) => super::super::shown(&replies),
            Some(Err(failure)) => format!("{failure:?}"),
            None => "none".to_owned(),
        }
    }

    /// Stops a coordinator: it does no further step.
    pub(super) fn stop(&mut self, of: usize) {
        self.coordinators[of] = None;
    }

    /// Runs until nothing happens, or until a time.
    pub(super) fn run(&mut self, until_ms: u64) {
        while let Some((&(due, number), _)) = self.waiting.first_key_value() {
            if due > until_ms {
                break;
            }
            self.now_ms = self.now_ms.max(due);
            let happening = self.waiting.remove(&(due, number)).unwrap();
            self.happen(happening);
        }
    }

    fn after(&mut self, ms: u64, happening: Happening) {
        self.number += 1;
        self.waiting.insert((self.now_ms + ms, self.number), happening);
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Execute { program, key, reply } => {
                let now_ms = self.now_ms;
                let answer = self.region(&key).execute_program(&program, now_ms);
                let event = Event::Answered(StepAnswer::decode(&answer).unwrap());
                if let Some((of, ticket)) = reply {
                    let ms = self.prng.below(4);
                    self.after(ms, Happening::Deliver { of, ticket, event });
                }
            }
            Happening::Members { needs, key, of, ticket } => {
                let region = self.region(&key);
                let found = needs.into_iter().map(|need| {
                    let members = region.members(&need);
                    (need, members)
                });
                let event = Event::Members(found.collect::<Members>());
                self.after(1, Happening::Deliver { of, ticket, event });
            }
            Happening::Deliver { of, ticket, event } => {
                if self.prng.below(1_000) < self.faults.stops {
                    self.stop(of);
                }
                let Some(coordinator) = &mut self.coordinators[of] else { return };
                let actions = coordinator.on(ticket, event);
                self.carry_out(of, actions);
            }
        }
    }

    fn carry_out(&mut self, of: usize, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Finish(result) => {
                    assert!(self.ended.insert(of, result).is_none(), "finished twice");
                }
                Action::Locate { ticket, header_keys } => {
                    let regions = header_keys.iter().map(Self::region_of).collect();
                    let numbers = [(); 4].map(|()| self.prng.draw());
                    let event = Event::Located(Ok(regions), numbers);
                    self.after(0, Happening::Deliver { of, ticket, event });
                }
                Action::Wait { ticket, ms } => {
                    self.after(ms, Happening::Deliver { of, ticket, event: Event::Waited });
                }
                Action::ReadMembers { ticket, key, needs } => {
                    self.after(1, Happening::Members { needs, key, of, ticket });
                }
                Action::Send { ticket, key, program } => self.send(of, ticket, key, program),
            }
        }
    }

    fn send(&mut self, of: usize, ticket: Ticket, key: Bytes, program: StepProgram) {
        let text = format!("{:?}", program.step());
        self.sent.push(text.split(' ').next().unwrap_or_default().to_owned());
        let Faults { lost, unanswered, late, refused, .. } = self.faults;
        let mut draw = self.prng.below(1_000);
        let mut is = |permille: u64| {
            let is = draw < permille;
            draw = draw.wrapping_sub(permille);
            is
        };
        let unknown = || Event::Unknown("no answer".to_owned());
        let ms = 1 + self.prng.below(5);
        if is(lost) {
            self.after(ms, Happening::Deliver { of, ticket, event: unknown() });
        } else if is(unanswered) {
            self.after(ms, Happening::Execute { program, key, reply: None });
            self.after(ms + 2, Happening::Deliver { of, ticket, event: unknown() });
        } else if is(late) {
            let later = self.prng.below(200);
            self.after(ms, Happening::Deliver { of, ticket, event: unknown() });
            self.after(ms + later, Happening::Execute { program, key, reply: None });
        } else if is(refused) {
            let event = Event::NotDone("refused".to_owned());
            self.after(ms, Happening::Deliver { of, ticket, event });
        } else {
            self.after(ms, Happening::Execute { program, key, reply: Some((of, ticket)) });
        }
    }
}

pub(super) fn request(text: &str) -> Request {
    Request::parse(0, super::super::words(text)).unwrap()
}

impl Cluster {
    /// Loses the answers to all requests under way: their senders get an unknown outcome much later.
    pub(super) fn lose_answers(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        for ((due, number), happening) in waiting {
            if let Happening::Execute { program, key, reply: Some((of, ticket)) } = happening {
                let event = Event::Unknown("no answer".to_owned());
                self.after(1_000, Happening::Deliver { of, ticket, event });
                self.waiting
                    .insert((due, number), Happening::Execute { program, key, reply: None });
            } else {
                self.waiting.insert((due, number), happening);
            }
        }
    }

    /// Resolves all intents, as processes that meet them do.
    pub(super) fn resolve_all(&mut self) {
        let met: Vec<MetIntent> = self
            .regions
            .values()
            .flat_map(|region| {
                region.keys().filter_map(|key| MetIntent::of(key, region.value(key)?))
            })
            .collect();
        let mut resolver = Resolver::new(met);
        let mut actions = resolver.begin();
        while let Some(action) = actions.pop() {
            let Action::Send { ticket, key, program } = action else { panic!("{action:?}") };
            let now_ms = self.now_ms;
            let answer = self.region(&key).execute_program(&program, now_ms);
            let event = Event::Answered(StepAnswer::decode(&answer).unwrap());
            actions.extend(resolver.on(ticket, event));
        }
    }
}
