//! Simulated cluster in one thread. Events are queued by virtual time, and all random choices
//! follow from the seed.

mod device;
mod forged_messages;
mod leave;
mod lifecycle;
mod lookups;
mod loops;
mod members;
mod network;
mod node;
mod recovery;
mod runs;
mod slot;
mod slow_writers;
mod streams;

pub use device::Device;
use leave::Leaving;
pub use lifecycle::{DIR, Stop};
pub use loops::short;
pub use members::MemberList;
pub use network::{Network, Way};
pub(crate) use node::EPOCH_S;
pub use node::{Node, NodeClock};
pub use runs::{Runs, Stated};
pub use slot::{CopiedDirectory, Core, Running, SOUND_APPEND_NANOS, Slot};
pub use streams::{PARTS_MAX, Stream};

use crate::check::Checks;
use crate::clients::{Clients, ThreadRead, TransactionEvent};
use crate::collections::Collections;
use crate::follower::Follower;
use crate::group::{Call, PlacementAnswer};
use crate::moments::{MomentEvent, Moments};
use crate::nemesis::{Nemesis, Undo};
use crate::plan::{Plan, fork};
use crate::trace::Trace;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use stele_engine::Store as Engine;
use stele_node::report::StepKey;
use stele_replica::{Lookup, Reply, Request, Ticket};
use stele_storage::Pair;
use stele_types::{LogBatch, MomentId, Prng, RegionId, Result, StoreId, Term};

/// Event, with the store or node on which it happens and its incarnation.
#[expect(missing_docs, reason = "the fields are the variants' words")]
pub enum Happening {
    /// The store loop runs one step.
    LoopStep { slot: u64, incarnation: u64 },
    /// An append that began at a time completes; `done` is its result if it already became durable.
    Appended {
        slot: u64,
        incarnation: u64,
        ticket: Ticket,
        batch: Arc<LogBatch>,
        began: u64,
        done: Option<Result<()>>,
    },
    /// A lookup ends; `found` is its result if the key was already read.
    Lookup { slot: u64, incarnation: u64, lookup: Lookup, found: Option<Result<Option<Pair>>> },
    /// A frame of another store arrives.
    Frame { slot: u64, from: u64, stated: Stated, frame: Bytes, is_forged: bool },
    /// A request gets its reply; `None` if the connection to its store was lost.
    Reply { slot: u64, requester: Requester, reply: Option<Reply> },
    /// A write has waited because garbage collection lags.
    Slowed { slot: u64, incarnation: u64, requester: Requester, request: Box<Request> },
    /// A store's maintenance runs.
    Maintain { slot: u64, incarnation: u64 },
    /// A store in log entry recovery repeats its requests.
    Recover { slot: u64, incarnation: u64 },
    /// A snapshot transfer continues or ends.
    Stream { number: u64, step: u64 },
    /// Parts of snapshots have waited for too long.
    PartsExpire { slot: u64 },
    /// A transaction of a client goes on.
    Transaction { number: u64, ticket: u64, event: TransactionEvent },
    /// A client runs its next step.
    Client { at: usize, step: u64 },
    /// A node reports to the placement group.
    Report { node: u64, incarnation: u64 },
    /// A node runs the placement group if it leads it.
    RunPlacement { node: u64, incarnation: u64 },
    /// A request of a node arrives at another node.
    Call { node: u64, from: u64, incarnation: u64, call: Box<Call> },
    /// The answer to such a request arrives.
    Answer { node: u64, incarnation: u64, answer: Box<PlacementAnswer> },
    /// The nemesis acts.
    Nemesis,
    /// A scheduled action of the nemesis, mostly the end of a fault.
    Undo(Undo),
    /// Nodes check the connectivity to stores.
    Links,
    /// The checks of a running cluster run.
    Check,
    /// The follower of the logs reads.
    Follow,
    /// The time of a node to hand its leaders over ends.
    Leave { node: u64, number: u64 },
    /// A moment goes on.
    Moment(MomentEvent),
    /// The operator raises the level.
    Finalize,
    /// A Redis command is sent, or a sweeper does a step.
    Collections,
}

/// Origin of a request to a store.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields are the variants' words")]
pub enum Requester {
    /// A client, with its step.
    Client { at: usize, step: u64 },
    /// A step of a transaction, by the numbers of both.
    Transaction { number: u64, ticket: u64 },
    /// A snapshot transfer, by number.
    Stream(u64),
    /// A placement leader that loads its state.
    Load { node: u64, term: u64 },
    /// A placement leader that proposed a change.
    Proposal { node: u64, term: u64 },
    /// A step of an operator.
    Step { node: u64, key: StepKey, index: usize },
    /// A split of a region that was too large.
    Split { node: u64, region: RegionId, version: u64 },
    /// A node that hands its leaders over.
    HandOver { node: u64, number: u64, region: RegionId },
    /// A region in a moment, for which a node was asked.
    Moment { node: u64, moment: MomentId, region: RegionId, is_seal: bool },
    /// A placement leader that confirms that it leads, for its moment.
    Confirm { node: u64, moment: MomentId },
    /// The reply is ignored.
    Ignored,
}

/// Counters of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Answered operations of clients.
    pub ops: u64,
    /// Operations with unknown outcome.
    pub ambiguous: u64,
    /// Power cuts of nodes.
    pub power_cuts: u64,
    /// Process crashes and restarts of nodes.
    pub kills: u64,
    /// Stores that stopped because of errors.
    pub failures: u64,
    /// Replaced disks.
    pub replaced: u64,
    /// Partitions and one-way cuts.
    pub partitions: u64,
    /// Damaged frames, pieces, bits and writes.
    pub corruptions: u64,
    /// Injected disk faults.
    pub disk_faults: u64,
    /// Installed snapshots.
    pub snapshots: u64,
    /// Connections on which a snapshot went on after another one broke.
    pub resumed: u64,
    /// Regions created by splits.
    pub splits: u64,
    /// Regions merged away.
    pub merges: u64,
    /// Elected leaders.
    pub leaders: u64,
    /// Changes of region descriptors seen by stores.
    pub members: u64,
    /// Maintenance slices that did work.
    pub slices: u64,
    /// Disks lost while a region could not lose them.
    pub overspent: u64,
    /// Lost entries recovered from other stores' copies.
    pub entries_recovered: u64,
    /// Requests that were not taken into a store's queue.
    pub refused: u64,
    /// Leaders that were handed over by nodes that stopped.
    pub handed_over: u64,
    /// Leaders that their predecessors asked to take over.
    pub transfers: u64,
    /// Lookups of keys for modifications.
    pub lookups: u64,
    /// Operators admitted that balance data or move leaders.
    pub moves: u64,
    /// Most of them of one region in a minute.
    pub moves_most: u64,
    /// Reports of stores with a nearly full device.
    pub nearly_full: u64,
    /// Requests that an idle store measures its device.
    pub device_measurements: u64,
    /// Copies of directories that were started beside their originals.
    pub copied_directories: u64,
    /// Moves of the directories of a node.
    pub moved_directories: u64,
    /// Earlier states of directories that were started.
    pub restored_directories: u64,
    /// Losses of a majority that the cluster was recovered from.
    pub lost_majorities: u64,
    /// Writes that waited because garbage collection lagged.
    pub slowed_writes: u64,
    /// Longest of these waits.
    pub slowed_nanos_most: u64,
    /// Moments that were requested.
    pub moments_begun: u64,
    /// Completed moments.
    pub moments: u64,
    /// Answers of deposed leaders to a moment that asks no others.
    pub moments_of_deposed: u64,
    /// Entries that the follower of the logs read.
    pub entries_followed: u64,
    /// Copies with which it began.
    pub copies_followed: u64,
    /// Requests of sessions.
    pub in_sessions: u64,
    /// Later attempts of them.
    pub repeated: u64,
    /// Answered programs.
    pub programs: u64,
    /// Programs of several keys that were sent.
    pub programs_of_several: u64,
    /// Pairs that were looked up for programs beside the loop.
    pub program_lookups: u64,
    /// Programs of unknown outcome that write.
    pub programs_unknown: u64,
    /// Redis commands that were sent.
    pub redis_commands: u64,
    /// Sweeps of Redis keys that were proposed.
    pub sweeps: u64,
    /// Transactions over regions, and commands on their names, that were begun.
    pub transactions_begun: u64,
    /// Answered ones.
    pub transactions: u64,
    /// Those that had no effect, because others changed their names.
    pub transactions_refused: u64,
    /// Those of unknown outcome that write.
    pub transactions_unknown: u64,
    /// Coordinators that stopped after a step.
    pub coordinators_stopped: u64,
    /// Commands of one region that met an intent.
    pub intents_met: u64,
    /// Nodes that learned of a higher level in use than before.
    pub levels_raised: u64,
    /// Requests of sessions and moments that were refused because of the level.
    pub above_level: u64,
    /// Searches of the linearizability check that met a limit: their histories count as linearizable.
    pub cut_searches: u64,
}

impl Counts {
    /// Adds the counters of another run.
    pub fn add(&mut self, other: &Self) {
        let Self { ops, ambiguous, power_cuts, kills, failures, replaced, .. } = other;
        let Self { partitions, corruptions, disk_faults, snapshots, resumed, .. } = other;
        let Self { merges, leaders, members, slices, overspent, entries_recovered, .. } = other;
        self.refused += other.refused;
        self.handed_over += other.handed_over;
        self.transfers += other.transfers;
        self.levels_raised += other.levels_raised;
        self.above_level += other.above_level;
        self.lookups += other.lookups;
        self.moves += other.moves;
        self.moves_most = self.moves_most.max(other.moves_most);
        self.nearly_full += other.nearly_full;
        self.device_measurements += other.device_measurements;
        self.cut_searches += other.cut_searches;
        self.moments_begun += other.moments_begun;
        self.moments += other.moments;
        self.moments_of_deposed += other.moments_of_deposed;
        self.entries_followed += other.entries_followed;
        self.copies_followed += other.copies_followed;
        self.in_sessions += other.in_sessions;
        self.repeated += other.repeated;
        self.programs += other.programs;
        self.programs_of_several += other.programs_of_several;
        self.program_lookups += other.program_lookups;
        self.programs_unknown += other.programs_unknown;
        self.redis_commands += other.redis_commands;
        self.sweeps += other.sweeps;
        self.transactions_begun += other.transactions_begun;
        self.transactions += other.transactions;
        self.transactions_refused += other.transactions_refused;
        self.transactions_unknown += other.transactions_unknown;
        self.coordinators_stopped += other.coordinators_stopped;
        self.intents_met += other.intents_met;
        self.slowed_writes += other.slowed_writes;
        self.lost_majorities += other.lost_majorities;
        self.slowed_nanos_most = self.slowed_nanos_most.max(other.slowed_nanos_most);
        self.copied_directories += other.copied_directories;
        self.moved_directories += other.moved_directories;
        self.restored_directories += other.restored_directories;
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
        self.resumed += resumed;
        self.splits += other.splits;
        self.merges += merges;
        self.leaders += leaders;
        self.members += members;
        self.slices += slices;
        self.overspent += overspent;
        self.entries_recovered += entries_recovered;
    }
}

/// Random streams of the cluster, separated by use.
pub struct Rngs {
    /// Stream of the network.
    pub net: Prng,
    /// Stream of disks and crashes.
    pub disk: Prng,
    /// Stream of loops and maintenance.
    pub pace: Prng,
    /// Stream of lookups.
    pub lookups: Prng,
}

/// State of a simulated cluster.
pub struct World {
    /// Parameters of the run.
    pub plan: Plan,
    /// Virtual nanoseconds since the start.
    pub now: u64,
    /// Nodes by number, from 1.
    pub nodes: BTreeMap<u64, Node>,
    /// Stores by their slot number.
    pub slots: BTreeMap<u64, Slot>,
    /// Slot of each store id.
    pub homes: BTreeMap<StoreId, u64>,
    /// Time of the last loss of a disk.
    pub lost_at: Option<u64>,
    /// Network between nodes.
    pub net: Network,
    /// Random streams.
    pub rngs: Rngs,
    /// Clients of the cluster.
    pub clients: Clients,
    /// Source of faults.
    pub nemesis: Nemesis,
    /// Invariants and their state.
    pub checks: Checks,
    /// Reader of all logs, in runs that have one.
    pub(crate) follower: Option<Follower>,
    /// Redis commands and sweepers, in runs that have them.
    pub(crate) collections: Option<Collections>,
    /// Faults of directories, and the runs that were heard; `None` without such faults.
    pub(crate) runs: Option<Runs>,
    /// Moments that nodes take.
    pub moments: Moments,
    /// Latest time of the cluster that a node received, in Unix seconds.
    pub(crate) latest_cluster_s: u64,
    pub(crate) leaving: BTreeMap<u64, Leaving>,
    /// Snapshot transfers by number.
    pub streams: BTreeMap<u64, Stream>,
    /// Record of all events.
    pub trace: Trace,
    /// Counters.
    pub counts: Counts,
    /// First violation.
    pub violation: Option<String>,
    /// Reads that a core must confirm, by client and step.
    pub(crate) reads_waiting: BTreeMap<(usize, u64), ThreadRead>,
    /// Regions that were ever seen; true if last seen merging.
    regions: BTreeMap<RegionId, bool>,
    /// Terms of the leaders that asked a store to take a region over.
    take_over: BTreeMap<(u64, RegionId), Term>,
    /// Time since when a node cannot reach a store.
    disconnected: BTreeMap<(u64, StoreId), u64>,
    event_queue: BTreeMap<(u64, u64), Happening>,
    numbers: u64,
}

impl World {
    /// Creates the cluster of a plan.
    pub fn new(plan: Plan, trace: Trace) -> Self {
        let seed = plan.seed;
        let rngs = Rngs {
            net: fork(seed, "net"),
            disk: fork(seed, "disk"),
            pace: fork(seed, "pace"),
            lookups: fork(seed, "lookups"),
        };
        let mut world = Self {
            now: 1_000_000_000,
            nodes: (1..=plan.nodes).map(|id| (id, Node::new(id))).collect(),
            slots: BTreeMap::new(),
            homes: BTreeMap::new(),
            lost_at: None,
            net: Network::new(plan.way_nanos),
            rngs,
            clients: Clients::new(&plan),
            nemesis: Nemesis::new(&plan),
            checks: Checks::new(&plan),
            follower: None,
            collections: None,
            latest_cluster_s: 0,
            runs: Runs::new(&plan),
            moments: Moments::new(&plan),
            leaving: BTreeMap::new(),
            streams: BTreeMap::new(),
            trace,
            counts: Counts::default(),
            violation: None,
            reads_waiting: BTreeMap::new(),
            regions: BTreeMap::new(),
            take_over: BTreeMap::new(),
            disconnected: BTreeMap::new(),
            event_queue: BTreeMap::new(),
            numbers: 0,
            plan,
        };
        for node in 1..=world.plan.nodes {
            for _ in 0..world.plan.stores_per_node {
                world.add_slot(node);
            }
        }
        world.bootstrap_cluster();
        world
    }

    /// Returns a unique number.
    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Records a violation; only the first one counts.
    pub fn fail(&mut self, what: String) {
        if self.violation.is_none() {
            self.trace.note(self.now, 0, 0, || format!("VIOLATION {what}"));
            self.violation = Some(what);
        }
    }

    /// Schedules an event in `nanos`.
    pub fn after(&mut self, nanos: u64, happening: Happening) {
        let number = self.number();
        self.event_queue.insert((self.now + nanos, number), happening);
    }

    /// Advances time by `nanos`, or until a violation.
    pub fn run(&mut self, nanos: u64) {
        let until = self.now + nanos;
        while self.violation.is_none() && self.next(until) {}
        self.now = until;
    }

    /// Advances time until a condition holds. Returns true if it held within `nanos`.
    pub fn run_until(&mut self, nanos: u64, mut holds: impl FnMut(&mut Self) -> bool) -> bool {
        const CHECK_NANOS: u64 = 20_000_000;
        let until = self.now + nanos;
        while self.now < until && self.violation.is_none() {
            if holds(self) {
                return true;
            }
            self.run(CHECK_NANOS);
        }
        holds(self)
    }

    /// Resumes a paused process, with the events that waited for it.
    pub(super) fn resume(&mut self, node: u64) {
        let now = self.now;
        let Some(it) = self.nodes.get_mut(&node).filter(|it| it.paused_until > now) else { return };
        let until = std::mem::replace(&mut it.paused_until, now);
        let put_off = self.event_queue.range((until, 0)..(until + 1, 0));
        let waits = put_off.filter(|(_, happening)| self.node_of(happening) == Some(node));
        for (at, number) in waits.map(|(key, _)| *key).collect::<Vec<_>>() {
            if let Some(happening) = self.event_queue.remove(&(at, number)) {
                self.event_queue.insert((now, number), happening);
            }
        }
    }

    /// Ends the stall of a store's disk: the append that waits for it completes now.
    pub(super) fn end_stall(&mut self, number: u64) {
        let now = self.now;
        let Some(slot) = self.slots.get_mut(&number).filter(|it| it.stalled_until > now) else {
            return;
        };
        slot.stalled_until = now;
        let appends = self.event_queue.iter().filter(|(_, happening)| {
            matches!(happening, Happening::Appended { slot, .. } if *slot == number)
        });
        for (at, event) in appends.map(|(key, _)| *key).collect::<Vec<_>>() {
            if let Some(append) = self.event_queue.remove(&(at, event)) {
                self.event_queue.insert((now, event), append);
            }
        }
    }

    /// Lets a store's disk go on, with the events that waited for it.
    pub(super) fn end_hang(&mut self, number: u64) {
        let now = self.now;
        let Some(slot) = self.slots.get(&number).filter(|slot| slot.hangs_until > now) else {
            return;
        };
        let until = slot.hangs_until;
        let put_off = self.event_queue.range((until, 0)..(until + 1, 0));
        let waits = put_off.filter(|(_, happening)| self.uses_disk_of(happening) == Some(number));
        for (at, event) in waits.map(|(key, _)| *key).collect::<Vec<_>>() {
            if let Some(happening) = self.event_queue.remove(&(at, event)) {
                self.event_queue.insert((now, event), happening);
            }
        }
        if let Some(slot) = self.slots.get_mut(&number) {
            (slot.hangs_until, slot.loop_hangs) = (now, false);
        }
    }

    /// Returns the time until which an event waits for a disk that hangs.
    fn hang_of(&self, happening: &Happening) -> Option<u64> {
        let slot = self.slots.get(&self.uses_disk_of(happening)?)?;
        let is_turn = matches!(happening, Happening::LoopStep { .. });
        (!is_turn || slot.loop_hangs).then_some(slot.hangs_until)
    }

    fn uses_disk_of(&self, happening: &Happening) -> Option<u64> {
        match happening {
            Happening::LoopStep { slot, .. }
            | Happening::Appended { slot, .. }
            | Happening::Lookup { slot, .. }
            | Happening::Maintain { slot, .. }
            | Happening::Recover { slot, .. }
            | Happening::PartsExpire { slot } => Some(*slot),
            Happening::Stream { number, .. } => self.streams.get(number).map(|stream| stream.at()),
            _ => None,
        }
    }

    fn next(&mut self, until: u64) -> bool {
        let Some(entry) = self.event_queue.first_entry().filter(|entry| entry.key().0 <= until)
        else {
            return false;
        };
        let (at, number) = *entry.key();
        let happening = entry.remove();
        self.now = self.now.max(at);
        let node = self.node_of(&happening);
        if let Some(node) = node.and_then(|node| self.nodes.get(&node)) {
            if node.paused_until > self.now {
                self.event_queue.insert((node.paused_until, number), happening);
                return true;
            }
            node.now(self.now);
        }
        if let Some(until) = self.hang_of(&happening).filter(|until| *until > self.now) {
            self.event_queue.insert((until, number), happening);
            return true;
        }
        self.trace.mix(self.now ^ number.rotate_left(40));
        self.handle(happening);
        if let Some(node) = node {
            self.check_power(node);
        }
        true
    }

    /// Returns the node on which an event happens; it waits while the node is paused.
    fn node_of(&self, happening: &Happening) -> Option<u64> {
        match happening {
            Happening::LoopStep { slot, .. }
            | Happening::Appended { slot, .. }
            | Happening::Lookup { slot, .. }
            | Happening::Frame { slot, .. }
            | Happening::Slowed { slot, .. }
            | Happening::Maintain { slot, .. }
            | Happening::Recover { slot, .. }
            | Happening::PartsExpire { slot } => self.slots.get(slot).map(|slot| slot.node),
            Happening::Report { node, .. }
            | Happening::RunPlacement { node, .. }
            | Happening::Leave { node, .. }
            | Happening::Call { node, .. }
            | Happening::Answer { node, .. } => Some(*node),
            Happening::Client { at, .. } => self.clients.node_of(*at),
            Happening::Stream { number, .. } => {
                let slot = self.streams.get(number).map(|stream| stream.at());
                slot.and_then(|slot| self.slots.get(&slot)).map(|slot| slot.node)
            }
            Happening::Moment(event) => event.node(),
            Happening::Reply { .. }
            | Happening::Transaction { .. }
            | Happening::Nemesis
            | Happening::Undo(_)
            | Happening::Links
            | Happening::Check
            | Happening::Follow
            | Happening::Finalize
            | Happening::Collections => None,
        }
    }

    fn handle(&mut self, happening: Happening) {
        match happening {
            Happening::LoopStep { slot, incarnation } => self.step_loop(slot, incarnation),
            Happening::Appended { slot, incarnation, ticket, batch, began, done } => {
                self.appended(slot, incarnation, ticket, &batch, began, done);
            }
            Happening::Lookup { slot, incarnation, lookup, found } => {
                self.looked_up(slot, incarnation, lookup, found);
            }
            Happening::Frame { slot, from, stated, frame, is_forged } => {
                if is_forged || self.is_heard(from, &stated, slot) {
                    self.receive(slot, from, frame, is_forged);
                }
            }
            Happening::Reply { slot, requester, reply } => match reply {
                Some(reply) => self.reply(slot, requester, reply),
                None => self.lost(requester),
            },
            Happening::Slowed { slot, incarnation, requester, request } => {
                self.waited(slot, incarnation, requester, *request);
            }
            Happening::Maintain { slot, incarnation } => self.maintain(slot, incarnation),
            Happening::Recover { slot, incarnation } => self.continue_recovery(slot, incarnation),
            Happening::Stream { number, step } => self.stream(number, step),
            Happening::PartsExpire { slot } => self.expire_parts(slot),
            Happening::Client { at, step } => self.client(at, step),
            Happening::Transaction { number, ticket, event } => {
                self.transaction_happens(number, ticket, event);
            }
            Happening::Report { node, incarnation } => self.report(node, incarnation),
            Happening::RunPlacement { node, incarnation } => self.run_placement(node, incarnation),
            Happening::Call { node, from, incarnation, call } => {
                self.called(node, from, incarnation, *call)
            }
            Happening::Answer { node, incarnation, answer } => {
                self.answered(node, incarnation, *answer)
            }
            Happening::Nemesis => self.trouble(),
            Happening::Undo(undo) => self.undo(undo),
            Happening::Links => self.update_links(),
            Happening::Check => self.check_running(),
            Happening::Follow => self.follow(),
            Happening::Leave { node, number } => self.left(node, number),
            Happening::Moment(event) => self.moment(event),
            Happening::Finalize => self.finalize(),
            Happening::Collections => self.act_on_collections(),
        }
    }

    fn reply(&mut self, slot: u64, requester: Requester, reply: Reply) {
        match requester {
            Requester::Client { at, step } => self.client_reply(at, step, Some(reply)),
            Requester::Transaction { number, ticket } => {
                self.transaction_reply(number, ticket, Some(reply));
            }
            Requester::Stream(number) => self.stream_reply(number, reply),
            Requester::Load { node, term } => self.group_loaded(node, slot, term, &reply),
            Requester::Proposal { node, term } => self.group_proposed(node, term, &reply),
            Requester::Step { node, key, index } => self.step_replied(node, key, index, reply),
            Requester::Split { node, region, version } => {
                self.split_replied(node, region, version, reply);
            }
            Requester::HandOver { node, number, region } => {
                self.transfer_ended((node, number), region, Some(reply));
            }
            Requester::Moment { node, moment, region, is_seal } => {
                self.moment_reply((node, moment, is_seal), region, Some(reply));
            }
            Requester::Confirm { node, moment } => {
                self.moment_confirmed(node, moment, Some(&reply));
            }
            Requester::Ignored => {}
        }
    }

    /// Ends a request of a store that stopped with its node: it gets no reply.
    fn lost(&mut self, requester: Requester) {
        match requester {
            Requester::Client { at, step } => self.client_reply(at, step, None),
            Requester::Transaction { number, ticket } => {
                self.transaction_reply(number, ticket, None);
            }
            Requester::Stream(number) => self.break_stream(number),
            Requester::Load { node, term } => self.group_lost(node, term),
            Requester::Proposal { node, term } => self.group_lost(node, term),
            Requester::Step { node, key, index } => self.step_ended(node, key, index, Ok(())),
            Requester::HandOver { node, number, region } => {
                self.transfer_ended((node, number), region, None);
            }
            Requester::Moment { node, moment, region, is_seal } => {
                self.moment_reply((node, moment, is_seal), region, None);
            }
            Requester::Confirm { node, moment } => self.moment_confirmed(node, moment, None),
            Requester::Split { .. } | Requester::Ignored => {}
        }
    }

    /// Takes the running parts of a store that stops with its node. Its requests get no reply.
    pub(crate) fn take_running(&mut self, number: u64) -> Option<Running> {
        let mut running = self.slots.get_mut(&number)?.running.take()?;
        let taken = running.store_loop.take().map(|mut it| it.end()).unwrap_or_default();
        let requests = taken.into_iter().chain(running.queue.refuse_all());
        requests.for_each(|(requester, _)| self.lost(requester));
        Some(running)
    }

    /// Returns the stores that run with consensus.
    pub fn serving(&self) -> Vec<u64> {
        let serves = |slot: &&Slot| slot.running.as_ref().is_some_and(|it| it.store_loop.is_some());
        self.slots.values().filter(serves).map(|slot| slot.number).collect()
    }

    /// Returns the stores that run with consensus, without those that run from copies.
    pub fn serving_homes(&self) -> Vec<u64> {
        let is_home = |number: &u64| self.slots.get(number).is_some_and(|slot| !slot.is_copy);
        self.serving().into_iter().filter(is_home).collect()
    }

    /// Returns the engine of a running store.
    pub fn engine(&self, slot: u64) -> Option<Arc<Engine>> {
        self.slots.get(&slot)?.engine().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::FaultSet;
    use crate::plan::{Mode, SECOND};

    #[test]
    fn an_append_to_a_stalled_disk_completes_when_the_faults_end() {
        let plan = Plan { faults: FaultSet::default(), ..Plan::draw(5, Mode::Safety) };
        let mut world = World::new(plan, Trace::default());
        assert!(world.run_until(40 * SECOND, |world| world.is_formed()));
        world.start_clients(50);
        let stalled_until = world.now + 20 * SECOND;
        world.slots.values_mut().for_each(|slot| slot.stalled_until = stalled_until);
        world.run(SECOND);
        let last_append = |world: &World| {
            let is_append = |happening: &Happening| matches!(happening, Happening::Appended { .. });
            let appends = world.event_queue.iter().filter(|(_, happening)| is_append(happening));
            appends.map(|((at, _), _)| *at).max()
        };
        assert_eq!(last_append(&world), Some(stalled_until));
        world.heal();
        assert_eq!(last_append(&world), Some(world.now));
        world.run(SECOND);
        assert!(last_append(&world).is_none_or(|at| at <= world.now + SOUND_APPEND_NANOS.1));
        assert_eq!(world.violation, None);
    }
}
