//! A cluster in one thread. What will happen lies in an agenda by virtual time; everything that may
//! turn out one way or another follows from the seed.

mod forged_messages;
mod lifecycle;
mod loops;
mod network;
mod node;
mod recovery;
mod slot;
mod streams;

pub use lifecycle::{DIR, Stop};
pub use loops::short;
pub use network::{Network, Way};
pub use node::{Node, NodeClock};
pub use slot::{Core, Running, SOUND_APPEND_NANOS, Slot};
pub use streams::Stream;

use crate::check::Checks;
use crate::clients::{Clients, Edge};
use crate::group::{Answer, Call};
use crate::nemesis::{Nemesis, Undo};
use crate::plan::{Plan, fork};
use crate::trace::Trace;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use stele_engine::Store as Engine;
use stele_raftstore::{Reply, RequestId, Ticket};
use stele_types::{Appended, LogBatch, Prng, RegionId, Result, StoreId};

/// What will happen: on which store or node, in which of its lives.
#[expect(missing_docs, reason = "the fields are the variants' words")]
pub enum Happening {
    /// A store's loop wakes.
    Turn { slot: u64, life: u64 },
    /// The disk is done with a batch, or does it only now.
    Appended {
        slot: u64,
        life: u64,
        ticket: Ticket,
        batch: Arc<LogBatch>,
        done: Option<Result<Appended>>,
    },
    /// Bytes from another store.
    Frame { slot: u64, from: u64, frame: Bytes, is_forged: bool },
    /// A store's maintenance wakes.
    Maintain { slot: u64, life: u64 },
    /// A store that waits for copies of entries asks again.
    Recover { slot: u64, life: u64 },
    /// A snapshot's next piece, or its end.
    Stream { number: u64, life: u64 },
    /// A client does its next step.
    Client { at: usize, step: u64 },
    /// A node reports.
    Report { node: u64, life: u64 },
    /// A node looks after the placement group, if it leads it.
    Tend { node: u64, life: u64 },
    /// A node asks another one.
    Call { node: u64, from: u64, life: u64, call: Box<Call> },
    /// It was answered.
    Answer { node: u64, life: u64, answer: Box<Answer> },
    /// Something goes wrong.
    Nemesis,
    /// Something is well again.
    Undo(Undo),
    /// Nodes notice who answers.
    Links,
    /// Checks of a running cluster.
    Check,
}

/// Who waits for a store's answer.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields are the variants' words")]
pub enum Who {
    /// A client, at that step.
    Client { at: usize, step: u64 },
    /// A snapshot that was offered.
    Stream(u64),
    /// A leader of the placement group that loads its state.
    Load { node: u64, term: u64 },
    /// A leader of the placement group that proposed.
    Proposal { node: u64, term: u64 },
    /// A step of an operator.
    Step { node: u64, operator: u64, index: usize },
    /// Nobody.
    Nobody,
}

/// What happened, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations of clients that were answered.
    pub ops: u64,
    /// Operations nobody knows the end of.
    pub ambiguous: u64,
    /// Nodes whose power went.
    pub power_cuts: u64,
    /// Nodes that were killed.
    pub kills: u64,
    /// Stores that stopped by themselves.
    pub failures: u64,
    /// Disks replaced.
    pub replaced: u64,
    /// Partitions and one-way cuts.
    pub partitions: u64,
    /// Damaged frames, pieces, bits and writes.
    pub corruptions: u64,
    /// Faults of disks.
    pub disk_faults: u64,
    /// Snapshots installed.
    pub snapshots: u64,
    /// Regions that came to be by a split.
    pub splits: u64,
    /// Regions merged away.
    pub merges: u64,
    /// Leaders elected.
    pub leaders: u64,
    /// Changes of membership seen.
    pub members: u64,
    /// Slices of maintenance that did something.
    pub slices: u64,
    /// Disks that went while a region could not spare them.
    pub overspent: u64,
    /// Lost entries that other stores' copies replaced.
    pub entries_mended: u64,
}

impl Counts {
    /// Adds another run's.
    pub fn add(&mut self, other: &Self) {
        let Self { ops, ambiguous, power_cuts, kills, failures, replaced, .. } = other;
        let Self { partitions, corruptions, disk_faults, snapshots, splits, .. } = other;
        let Self { merges, leaders, members, slices, overspent, entries_mended, .. } = other;
        self.ops += ops;
        self.ambiguous += ambiguous;
        self.power_cuts += power_cuts;
        self.kills += kills;
        self.failures += failures;
        self.replaced += replaced;
        self.partitions += partitions;
        self.corruptions += corruptions;
        self.disk_faults += disk_faults;
        self.snapshots += snapshots;
        self.splits += splits;
        self.merges += merges;
        self.leaders += leaders;
        self.members += members;
        self.slices += slices;
        self.overspent += overspent;
        self.entries_mended += entries_mended;
    }
}

/// The random choices of the world, apart by what they decide.
pub struct Rngs {
    /// Of the network.
    pub net: Prng,
    /// Of disks, and of what a crash leaves.
    pub disk: Prng,
    /// Of loops and maintenance.
    pub pace: Prng,
}

/// See the module.
pub struct World {
    /// What the seed decided.
    pub plan: Plan,
    /// Virtual nanoseconds since the beginning.
    pub now: u64,
    /// By number, from 1.
    pub nodes: BTreeMap<u64, Node>,
    /// Stores by their number here.
    pub slots: BTreeMap<u64, Slot>,
    /// Where stores of the cluster are.
    pub homes: BTreeMap<StoreId, u64>,
    /// Between nodes.
    pub net: Network,
    /// Chance.
    pub rngs: Rngs,
    /// Who works on the cluster.
    pub clients: Clients,
    /// What goes wrong.
    pub nemesis: Nemesis,
    /// What must hold.
    pub checks: Checks,
    /// Snapshots under way.
    pub streams: BTreeMap<u64, Stream>,
    /// What happened.
    pub trace: Trace,
    /// What happened, in numbers.
    pub counts: Counts,
    /// What does not hold.
    pub violation: Option<String>,
    /// Reads that a core has yet to confirm: by client and step.
    pub(crate) edges_waiting: BTreeMap<(usize, u64), Edge>,
    /// Regions that were ever seen, and whether each was last seen about to be merged away.
    regions: BTreeMap<RegionId, bool>,
    /// Since when a node does not hear of a store.
    silent: BTreeMap<(u64, StoreId), u64>,
    waiting: BTreeMap<RequestId, (u64, Who)>,
    agenda: BTreeMap<(u64, u64), Happening>,
    numbers: u64,
}

impl World {
    /// The nodes of a plan, before anything runs.
    pub fn new(plan: Plan, trace: Trace) -> Self {
        let seed = plan.seed;
        let rngs =
            Rngs { net: fork(seed, "net"), disk: fork(seed, "disk"), pace: fork(seed, "pace") };
        let mut world = Self {
            now: 1_000_000_000,
            nodes: (1..=plan.nodes).map(|id| (id, Node::new(id))).collect(),
            slots: BTreeMap::new(),
            homes: BTreeMap::new(),
            net: Network::new(plan.way_nanos),
            rngs,
            clients: Clients::new(&plan),
            nemesis: Nemesis::new(&plan),
            checks: Checks::new(&plan),
            streams: BTreeMap::new(),
            trace,
            counts: Counts::default(),
            violation: None,
            edges_waiting: BTreeMap::new(),
            regions: BTreeMap::new(),
            silent: BTreeMap::new(),
            waiting: BTreeMap::new(),
            agenda: BTreeMap::new(),
            numbers: 0,
            plan,
        };
        for node in 1..=world.plan.nodes {
            for _ in 0..world.plan.stores_per_node {
                world.add_slot(node);
            }
        }
        world.found();
        world
    }

    /// A number nothing else has.
    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Says what does not hold; the first word counts.
    pub fn fail(&mut self, what: String) {
        if self.violation.is_none() {
            self.trace.note(self.now, 0, 0, || format!("VIOLATION {what}"));
            self.violation = Some(what);
        }
    }

    /// Puts something on the agenda.
    pub fn after(&mut self, nanos: u64, happening: Happening) {
        let number = self.number();
        self.agenda.insert((self.now + nanos, number), happening);
    }

    /// Lets time pass, until something does not hold.
    pub fn run(&mut self, nanos: u64) {
        let until = self.now + nanos;
        while self.violation.is_none() && self.next(until) {}
        self.now = until;
    }

    /// Lets time pass until something holds; whether it came to hold within `nanos`.
    pub fn run_until(&mut self, nanos: u64, mut holds: impl FnMut(&mut Self) -> bool) -> bool {
        const LOOK_NANOS: u64 = 20_000_000;
        let until = self.now + nanos;
        while self.now < until && self.violation.is_none() {
            if holds(self) {
                return true;
            }
            self.run(LOOK_NANOS);
        }
        holds(self)
    }

    /// A process that stands still goes on now, and with it what waited for that.
    pub(super) fn go_on(&mut self, node: u64) {
        let now = self.now;
        let Some(it) = self.nodes.get_mut(&node).filter(|it| it.paused_until > now) else { return };
        let until = std::mem::replace(&mut it.paused_until, now);
        let put_off = self.agenda.range((until, 0)..(until + 1, 0));
        let waits = put_off.filter(|(_, happening)| self.node_of(happening) == Some(node));
        for (at, number) in waits.map(|(key, _)| *key).collect::<Vec<_>>() {
            if let Some(happening) = self.agenda.remove(&(at, number)) {
                self.agenda.insert((now, number), happening);
            }
        }
    }

    fn next(&mut self, until: u64) -> bool {
        let Some(entry) = self.agenda.first_entry().filter(|entry| entry.key().0 <= until) else {
            return false;
        };
        let (at, number) = *entry.key();
        let happening = entry.remove();
        self.now = self.now.max(at);
        let node = self.node_of(&happening);
        if let Some(node) = node.and_then(|node| self.nodes.get(&node)) {
            if node.paused_until > self.now {
                self.agenda.insert((node.paused_until, number), happening);
                return true;
            }
            node.now(self.now);
        }
        self.trace.mix(self.now ^ number.rotate_left(40));
        self.carry_out(happening);
        if let Some(node) = node {
            self.look_for_power(node);
        }
        true
    }

    /// The node on which it happens: while that stands still it does not.
    fn node_of(&self, happening: &Happening) -> Option<u64> {
        match happening {
            Happening::Turn { slot, .. }
            | Happening::Appended { slot, .. }
            | Happening::Frame { slot, .. }
            | Happening::Maintain { slot, .. }
            | Happening::Recover { slot, .. } => self.slots.get(slot).map(|slot| slot.node),
            Happening::Report { node, .. }
            | Happening::Tend { node, .. }
            | Happening::Call { node, .. }
            | Happening::Answer { node, .. } => Some(*node),
            Happening::Client { at, .. } => self.clients.node_of(*at),
            Happening::Stream { number, .. } => {
                let slot = self.streams.get(number).map(|stream| stream.at());
                slot.and_then(|slot| self.slots.get(&slot)).map(|slot| slot.node)
            }
            Happening::Nemesis | Happening::Undo(_) | Happening::Links | Happening::Check => None,
        }
    }

    fn carry_out(&mut self, happening: Happening) {
        match happening {
            Happening::Turn { slot, life } => self.turn(slot, life),
            Happening::Appended { slot, life, ticket, batch, done } => {
                self.appended(slot, life, ticket, &batch, done);
            }
            Happening::Frame { slot, from, frame, is_forged } => {
                self.receive(slot, from, frame, is_forged);
            }
            Happening::Maintain { slot, life } => self.maintain(slot, life),
            Happening::Recover { slot, life } => self.mend_on(slot, life),
            Happening::Stream { number, life } => self.stream(number, life),
            Happening::Client { at, step } => self.client(at, step),
            Happening::Report { node, life } => self.report(node, life),
            Happening::Tend { node, life } => self.tend(node, life),
            Happening::Call { node, from, life, call } => self.called(node, from, life, *call),
            Happening::Answer { node, life, answer } => self.answered(node, life, *answer),
            Happening::Nemesis => self.trouble(),
            Happening::Undo(undo) => self.undo(undo),
            Happening::Links => self.look_at_links(),
            Happening::Check => self.check_running(),
        }
    }

    /// Remembers who waits for a request to a store.
    pub fn ask(&mut self, slot: u64, who: Who) -> RequestId {
        let id = RequestId(self.number());
        self.waiting.insert(id, (slot, who));
        id
    }

    fn reply(&mut self, id: RequestId, reply: Reply) {
        let Some((slot, who)) = self.waiting.remove(&id) else {
            return self
                .fail(format!("request {id:?} was answered twice or never asked: {reply:?}"));
        };
        match who {
            Who::Client { at, step } => self.client_reply(at, step, Some(reply)),
            Who::Stream(number) => self.stream_reply(number, reply),
            Who::Load { node, term } => self.group_loaded(node, slot, term, &reply),
            Who::Proposal { node, term } => self.group_proposed(node, term, &reply),
            Who::Step { node, operator, index } => {
                self.step_replied(node, operator, index, &reply);
            }
            Who::Nobody => {}
        }
    }

    /// The store is gone: nobody is answered any more.
    fn hang_up(&mut self, slot: u64) {
        let mut lost = Vec::new();
        self.waiting.retain(|_, (at, who)| {
            let stays = *at != slot;
            lost.extend((!stays).then_some(*who));
            stays
        });
        for who in lost {
            match who {
                Who::Client { at, step } => self.client_reply(at, step, None),
                Who::Stream(number) => self.end_stream(number, false),
                Who::Load { node, term } => self.group_lost(node, term),
                Who::Proposal { node, term } => self.group_lost(node, term),
                Who::Step { node, operator, .. } => self.finished(node, operator),
                Who::Nobody => {}
            }
        }
    }

    /// Stores that run, with consensus.
    pub fn serving(&self) -> Vec<u64> {
        let serves = |slot: &&Slot| slot.running.as_ref().is_some_and(|it| it.core.is_some());
        self.slots.values().filter(serves).map(|slot| slot.number).collect()
    }

    /// The engine of a store that runs.
    pub fn engine(&self, slot: u64) -> Option<Arc<Engine>> {
        self.slots.get(&slot)?.engine().cloned()
    }
}
