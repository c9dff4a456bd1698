//! Clients. Each runs one operation at a time, through a store that may lead the region, and
//! records the outcome.

mod fill;
mod modifications;
mod outcomes;
mod programs;
mod sessions;
mod thread_reads;
mod transactions;
mod values;

pub use fill::fill_key;
pub use thread_reads::ThreadRead;
pub use transactions::TransactionEvent;
pub(crate) use transactions::transaction_borders;
pub use values::{
    Value, appended, base_of, end_of, has_known_bytes, incremented, is_countable, key_of, part_of,
    value_of,
};

use crate::check::linear::{Act, Op};
use crate::faults::Fault;
use crate::plan::{MS, Plan, fork};
use crate::world::{Happening, Requester, World};
use bytes::Bytes;
use fill::Fill;
use programs::{CountingProgram, Programs};
use sessions::{Attempts, Sessions};
use std::collections::BTreeSet;
use std::sync::Arc;
use stele_replica::{Header, NewPair, Read, Reader, Write};
use stele_types::{
    ColumnFamily, CommandBuilder, Prng, Region, RegionId, RegionKind, RegionPhase, key_after,
};
use transactions::Transactions;

/// Number of keys of a group.
pub const KEYS: u8 = 4;
/// Timeout of an operation.
pub const PATIENCE_NANOS: u64 = 3_000 * MS;

/// All clients and their histories.
pub struct Clients {
    /// Histories by group.
    pub histories: Vec<Vec<Op>>,
    list: Vec<Client>,
    prng: Prng,
    modifications: Prng,
    values: Value,
    begun: u64,
    ops_max: u64,
    pause_nanos_max: u64,
    pause_factor: u64,
    value_bytes_max: u64,
    is_stopped: bool,
    /// Node that half of the operations go to, and the end of that time.
    stays: (u64, u64),
    /// Node that no operation goes to.
    avoids: Option<u64>,
    /// Small keys that were put permanently.
    pub filled: BTreeSet<u32>,
    fill_permille: u64,
    modify_permille: u64,
    sessions: Sessions,
    pub(crate) programs: Programs,
    transactions: Transactions,
    finals: Vec<usize>,
}

#[derive(Default)]
struct Client {
    step: u64,
    pending: Option<Pending>,
}

struct Pending {
    group: usize,
    region: RegionId,
    called: u64,
    called_nanos: u64,
    slot: u64,
    incarnation: u64,
    act: Act,
    is_final: bool,
    thread_read: Option<ThreadRead>,
    fill: Option<Fill>,
    session: Option<Attempts>,
    program: Option<Arc<CountingProgram>>,
    /// The region was merging when the read was sent.
    is_merging: bool,
}

struct Target {
    slot: u64,
    incarnation: u64,
    reader: Arc<Reader>,
    region: Arc<Region>,
    header: Header,
}

impl Clients {
    /// Creates the clients of a plan.
    pub fn new(plan: &Plan) -> Self {
        Self {
            histories: vec![Vec::new(); plan.groups as usize],
            list: (0..plan.clients).map(|_| Client::default()).collect(),
            prng: fork(plan.seed, "clients"),
            modifications: fork(plan.seed, "modifications"),
            values: 0,
            begun: 0,
            ops_max: plan.ops_max,
            pause_nanos_max: plan.client_pause_nanos_max(),
            pause_factor: 1,
            value_bytes_max: plan.value_bytes_max,
            is_stopped: true,
            stays: (0, 0),
            avoids: None,
            filled: BTreeSet::new(),
            fill_permille: plan.fill_permille,
            modify_permille: plan.modify_permille,
            sessions: Sessions::new(plan),
            programs: Programs::new(plan),
            transactions: Transactions::new(plan),
            finals: Vec::new(),
        }
    }

    /// Returns the node on which a client's next step runs.
    pub fn node_of(&self, at: usize) -> Option<u64> {
        self.list
            .get(at)?
            .pending
            .as_ref()?
            .thread_read
            .as_ref()
            .map(|thread_read| thread_read.node)
    }

    /// Returns true if an operation is pending.
    pub fn is_busy(&self) -> bool {
        self.transactions.is_busy() || self.list.iter().any(|client| client.pending.is_some())
    }

    /// Returns the number of started operations.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Sends half of the operations to a node until a time, regardless of the leader.
    pub fn stay_with(&mut self, node: u64, until: u64) {
        self.stays = (node, until);
    }

    /// Sends no operation to a node from now on.
    pub fn avoid(&mut self, node: Option<u64>) {
        self.avoids = node;
    }

    /// Multiplies the pauses of clients.
    pub fn slow_down(&mut self, times: u64) {
        self.pause_factor = times;
    }

    /// Changes the bound of a pause between two operations.
    pub fn set_pause_max(&mut self, nanos: u64) {
        self.pause_nanos_max = nanos;
    }

    /// Stops new operations.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }
}

impl World {
    /// Starts up to `ops_more` operations.
    pub fn start_clients(&mut self, ops_more: u64) {
        self.clients.is_stopped = false;
        self.clients.ops_max = self.clients.begun + ops_more;
        for at in 0..self.clients.list.len() {
            if self.clients.list[at].pending.is_none() {
                self.pause_client(at);
            }
        }
    }

    fn pause_client(&mut self, at: usize) {
        let pause_nanos_max = self.clients.pause_nanos_max * self.clients.pause_factor;
        let pause = self.clients.prng.below(pause_nanos_max);
        self.client_in(at, pause);
    }

    /// Schedules the client's next step in `nanos`, in place of the one scheduled before.
    fn client_in(&mut self, at: usize, nanos: u64) {
        let client = &mut self.clients.list[at];
        client.step += 1;
        let step = client.step;
        self.after(nanos, Happening::Client { at, step });
    }

    pub(crate) fn client(&mut self, at: usize, step: u64) {
        if self.clients.list.get(at).is_none_or(|client| client.step != step) {
            return;
        }
        match self.clients.list[at].pending.take() {
            None => self.begin(at),
            Some(pending) if pending.thread_read.is_some() => self.step_thread_read(at, pending),
            Some(pending) => {
                let Some(pending) = self.repeat_in_session(at, pending) else { return };
                // The attempt timed out.
                let Some((pending, _)) = self.attempt_ended(at, pending, None) else { return };
                self.record_outcome(&pending, None);
                self.pause_client(at);
            }
        }
    }

    fn begin(&mut self, at: usize) {
        let clients = &mut self.clients;
        if clients.is_stopped || clients.begun >= clients.ops_max {
            return;
        }
        clients.begun += 1;
        if clients.prng.below(1_000) < clients.fill_permille {
            return self.fill(at);
        }
        if clients.transactions.draws() {
            return self.run_transaction(at);
        }
        if clients.programs.draws() {
            return self.run_program(at);
        }
        let group = clients.prng.below(clients.histories.len() as u64) as usize;
        let key = clients.prng.below(u64::from(KEYS)) as u8;
        let Some(target) = self.target(group, key) else { return self.pause_client(at) };
        if self.clients.modifications.below(1_000) < self.clients.modify_permille {
            return self.modify(at, group, key, &target);
        }
        match self.clients.prng.below(20) {
            0..7 if self.draws_session(&target) => {
                self.clients.values += 1;
                let value = self.clients.values;
                let expires_at_s = end_of(value);
                let bytes = value_of(value, self.clients.value_bytes_max);
                let new = NewPair::Put { value: bytes, expires_at_s };
                self.set_in_session(at, (group, key), &target, (value, new));
            }
            0..7 => self.put(at, group, vec![key], &target),
            7..9 => {
                let keys = keys_in(group, &target.region);
                self.put(at, group, keys, &target);
            }
            9 if self.draws_session(&target) => {
                self.set_in_session(at, (group, key), &target, (0, NewPair::Delete));
            }
            9 => self.delete(at, group, key, &target),
            10 => self.delete_range(at, group, &target),
            11..14 => self.cas(at, group, key, &target),
            14..17 => self.read(at, group, vec![key], target, false),
            _ => {
                let keys = keys_in(group, &target.region);
                self.read(at, group, keys, target, false);
            }
        }
    }

    fn target(&mut self, group: usize, key: u8) -> Option<Target> {
        self.target_for(&key_of(group, key))
    }

    /// Returns the destination for a user key: mostly the store reported to lead.
    fn target_for(&mut self, user_key: &Bytes) -> Option<Target> {
        let serving = self.reachable();
        let any = self.clients.prng.below(serving.len().max(1) as u64) as usize;
        let stays = self.stayed_with(&serving).filter(|_| self.clients.prng.coin());
        let first = stays.or(serving.get(any).copied())?;
        self.target_of(first, stays.is_some(), user_key)
    }

    fn target_of(&mut self, first: u64, stays: bool, user_key: &Bytes) -> Option<Target> {
        let serving = self.reachable();
        let reader = self.find(first, user_key)?;
        let leader = reader.leader().and_then(|peer| self.homes.get(&peer.store).copied());
        let leader = leader.filter(|slot| serving.contains(slot));
        let slot = match self.clients.prng.below(8) {
            _ if stays => first,
            0 => first,
            _ => leader.unwrap_or(first),
        };
        let reader = self.find(slot, user_key)?;
        let region = reader.region();
        let node = self.nodes.get(&self.slots.get(&slot)?.node)?;
        let header = Header {
            region: region.id,
            version: Some(region.epoch.version),
            deadline_nanos: node.local(self.now) + PATIENCE_NANOS,
            ..Header::default()
        };
        Some(Target {
            slot,
            incarnation: self.slots.get(&slot)?.incarnation,
            reader,
            region,
            header,
        })
    }

    /// Returns the stores that request threads can use: those that serve, and in plans in which single
    /// stores fail those with an ended loop, of which the readers stay.
    fn reachable(&self) -> Vec<u64> {
        let keeps_ended = self.plan.faults.has(Fault::StoreFails);
        let mut reachable = self.serving();
        if keeps_ended {
            let ended = self.slots.values().filter(|slot| slot.has_ended_loop());
            reachable.extend(ended.map(|slot| slot.number));
        }
        let node_of = |slot: &u64| self.slots.get(slot).map(|it| it.node);
        reachable
            .retain(|slot| self.clients.avoids.is_none() || node_of(slot) != self.clients.avoids);
        reachable
    }

    fn stayed_with(&mut self, serving: &[u64]) -> Option<u64> {
        let (node, until) = self.clients.stays;
        let there = |slot: &&u64| self.slots.get(*slot).is_some_and(|it| it.node == node);
        serving.iter().find(there).copied().filter(|_| self.now < until)
    }

    /// Returns the region on a store that holds a user key, with the latest version.
    pub(crate) fn find(&self, slot: u64, user_key: &Bytes) -> Option<Arc<Reader>> {
        let readers = self.slots.get(&slot)?.readers()?;
        let holds = |region: &Arc<Region>| {
            region.kind == RegionKind::Data && region.range.contains(user_key)
        };
        let regions = readers.all().into_iter().filter(holds);
        readers.get(regions.max_by_key(|region| region.epoch.version)?.id)
    }

    fn begin_operation(&mut self, at: usize, group: usize, target: &Target, act: Act) -> Requester {
        let (called, called_nanos) = (self.number(), self.now);
        let Target { slot, incarnation, .. } = *target;
        let (thread_read, fill) = (None, None);
        let is_merging = matches!(target.region.phase, RegionPhase::Merging { .. });
        let is_final = false;
        let pending = Pending {
            group,
            region: target.region.id,
            called,
            called_nanos,
            slot,
            incarnation,
            act,
            is_final,
            thread_read,
            fill,
            session: None,
            program: None,
            is_merging,
        };
        self.clients.list[at].pending = Some(pending);
        self.client_in(at, PATIENCE_NANOS);
        Requester::Client { at, step: self.clients.list[at].step }
    }

    fn put(&mut self, at: usize, group: usize, keys: Vec<u8>, target: &Target) {
        let mut command = CommandBuilder::new();
        let mut written = Vec::new();
        for key in keys {
            self.clients.values += 1;
            let value = self.clients.values;
            let name = ColumnFamily::Default.engine_key(&key_of(group, key));
            let bytes = value_of(value, self.clients.value_bytes_max);
            if let Err(error) = command.put(&name, &bytes, end_of(value)) {
                return self.fail(format!("a put does not fit a command: {error}"));
            }
            written.push((key, value));
        }
        self.client_write(at, group, target, Act::Write(written), command, false);
    }

    fn delete(&mut self, at: usize, group: usize, key: u8, target: &Target) {
        let mut command = CommandBuilder::new();
        let name = ColumnFamily::Default.engine_key(&key_of(group, key));
        if let Err(error) = command.delete(&name) {
            return self.fail(format!("a delete does not fit a command: {error}"));
        }
        self.client_write(at, group, target, Act::Write(vec![(key, 0)]), command, true);
    }

    /// Deletes all keys of a group that a region holds, as one range.
    fn delete_range(&mut self, at: usize, group: usize, target: &Target) {
        let keys = keys_in(group, &target.region);
        let (Some(first), Some(last)) = (keys.first(), keys.last()) else {
            return self.pause_client(at);
        };
        let mut command = CommandBuilder::new();
        let start = ColumnFamily::Default.engine_key(&key_of(group, *first));
        let end = key_after(&ColumnFamily::Default.engine_key(&key_of(group, *last)));
        if let Err(error) = command.delete_range(&start, &end) {
            return self.fail(format!("a range does not fit a command: {error}"));
        }
        let act = Act::Write(keys.into_iter().map(|key| (key, 0)).collect());
        self.client_write(at, group, target, act, command, true);
    }

    fn client_write(
        &mut self,
        at: usize,
        group: usize,
        target: &Target,
        act: Act,
        command: CommandBuilder,
        only_deletes: bool,
    ) {
        let requester = self.begin_operation(at, group, target, act);
        let (command, header) = (command.build().bytes().clone(), target.header);
        let write = Write { header, command, only_deletes };
        self.request(target.slot, requester, write);
    }

    fn read(&mut self, at: usize, group: usize, keys: Vec<u8>, target: Target, is_final: bool) {
        let act = Act::Read(keys.into_iter().map(|key| (key, 0)).collect());
        let requester = self.begin_operation(at, group, &target, act);
        let node = self.slots.get(&target.slot).map_or(0, |slot| slot.node);
        let local = self.nodes.get(&node).map_or(0, |node| node.local(self.now));
        let by_lease = !is_final && self.clients.prng.coin();
        let mut thread_read = ThreadRead::new(node, target.reader, target.header);
        let is_waiting = by_lease && self.plan.pauses_before_lease;
        let is_leased = by_lease && !is_waiting && thread_read.take_lease(local);
        if let Some(pending) = &mut self.clients.list[at].pending {
            pending.is_final = is_final;
            if is_waiting || is_leased {
                pending.thread_read = Some(thread_read);
                return self.pause_thread(at);
            }
        }
        self.read_by_core(target.slot, requester, thread_read, !is_final);
    }

    fn read_by_core(
        &mut self,
        slot: u64,
        requester: Requester,
        thread_read: ThreadRead,
        may_follow: bool,
    ) {
        let replica = may_follow && self.clients.prng.coin();
        let header = thread_read.header();
        if let Requester::Client { at, step } = requester {
            self.reads_waiting.insert((at, step), thread_read);
        }
        self.request(slot, requester, Read { header, replica });
    }

    /// Reads every group, and the keys of programs, once more. Returns true if all were read within `nanos`.
    pub fn read_everything(&mut self, nanos: u64) -> bool {
        self.clients.stop();
        self.clients.finals.clear();
        let until = self.now + nanos;
        for group in 0..self.clients.histories.len() {
            for key in 0..KEYS {
                while !self.clients.finals.contains(&(group * usize::from(KEYS) + usize::from(key)))
                {
                    if self.now > until || self.violation.is_some() {
                        return false;
                    }
                    if self.clients.list[0].pending.is_none()
                        && let Some(target) = self.target(group, key)
                    {
                        let keys = keys_in(group, &target.region);
                        self.read(0, group, keys, target, true);
                    }
                    self.run(5 * MS);
                }
            }
        }
        self.read_programs(until) && self.read_transactions(until)
    }
}

fn keys_in(group: usize, region: &Region) -> Vec<u8> {
    (0..KEYS).filter(|key| region.range.contains(&key_of(group, *key))).collect()
}
