//! Lifecycle of nodes and stores: bootstrap, start, stop, failure, and replacement of disks.

use super::slot::{Running, Slot};
use super::{Device, Happening, NodeClock, Requester, World};
use crate::faults::Fault;
use crate::hardware;
use crate::nemesis::Undo;
use crate::plan::{CLUSTER, MS, SECOND, fork};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use stele_engine::{Options, RecoveringStore, Replay, Store as Engine};
use stele_node::snapshot::Parts;
use stele_node::start::{self, Directory};
use stele_placement::Bootstrap;
use stele_replica::{Ended, Maintenance, Queue, SlowWriters, StoreLoop};
use stele_replica::{Input, RaftStore};
use stele_simulated_disk::{SimOptions, SimVfs};
use stele_storage::StateMachine;
use stele_types::{Error, Result, StoreId};

/// Directory of every store on its disk.
pub const DIR: &str = "/store";
/// Time without messages after which a store is reported unreachable.
const UNREACHABLE_NANOS: u64 = 3 * SECOND;
const LINKS_NANOS: u64 = 500 * MS;
/// Delay from the failure of a store to the restart of its node.
const RESTART_NANOS: u64 = 700 * MS;

/// Way in which a node stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Power cut: unsynced data may be lost.
    Power,
    /// Process crash: all written data is kept.
    Kill,
    /// Shutdown that closes the stores.
    Clean,
}

impl World {
    pub(super) fn add_slot(&mut self, node: u64) -> u64 {
        let number = self.slots.len() as u64 + 1;
        let mut prng = fork(self.plan.seed, &format!("disk of {number}"));
        let disk = SimVfs::new(SimOptions {
            seed: prng.draw(),
            block_bytes: self.plan.block_bytes,
            capacity_bytes: Some(self.capacity_bytes(number)),
            ..SimOptions::default()
        });
        let profile = hardware::profile(&self.plan, number, self.nemesis.flips());
        self.slots.insert(number, Slot::new(number, node, disk, Device::new(profile)));
        number
    }

    pub(crate) fn bootstrap_plan(&self) -> Bootstrap {
        let capacities_bytes =
            (1..=self.plan.stores_per_node).map(|number| self.capacity_bytes(number)).collect();
        let address = self.nodes.get(&1).map(super::Node::address).unwrap_or_default();
        Bootstrap { cluster: CLUSTER, address, capacities_bytes }
    }

    /// Bootstraps the cluster on node 1, and starts all nodes; the others will join.
    pub(super) fn bootstrap_cluster(&mut self) {
        let (plan, tick) = (self.bootstrap_plan(), self.plan.recorded_tick());
        let engines = (1..=self.plan.stores_per_node).map(|number| self.engine_of(number));
        let engines = engines.map(|engine| engine.map(Arc::new)).collect::<Result<Vec<_>>>();
        let close = |engines: Vec<Arc<Engine>>| {
            start::bootstrap(&engines, &plan, tick)?;
            engines.iter().try_for_each(|engine| engine.checkpoint().and_then(|()| engine.close()))
        };
        if let Err(error) = engines.and_then(close) {
            self.fail(format!("the cluster was not bootstrapped: {error}"));
        }
        for node in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.start_node(node);
        }
        self.after(LINKS_NANOS, Happening::Links);
    }

    pub(super) fn parts_of(&self, number: u64) -> Option<(SimVfs, Arc<NodeClock>, Options)> {
        let slot = self.slots.get(&number)?;
        let node = self.nodes.get(&slot.node)?;
        node.now(self.now);
        let mut options = self.engine_options(number)?.clone();
        let is_new = slot.disk.file_bytes(Path::new(DIR).join("STORE")).is_none();
        options.store = is_new.then_some(slot.token);
        slot.disk.set_cached(self.plan.has_page_cache);
        Some((slot.disk.clone(), node.clock.clone(), options))
    }

    pub(crate) fn engine_options(&self, number: u64) -> Option<&Options> {
        let node = self.nodes.get(&self.slots.get(&number)?.node)?;
        Some(if node.is_upgraded { &self.plan.other_engine } else { &self.plan.engine })
    }

    pub(crate) fn engine_of(&mut self, number: u64) -> Result<Engine> {
        let Some((disk, clock, options)) = self.parts_of(number) else {
            return Err(Error::invalid("the store does not exist"));
        };
        let (engine, opened) =
            Engine::open(Arc::new(disk), clock, Path::new(DIR), options, Replay::Committed)?;
        if let Some(slot) = self.slots.get_mut(&number) {
            slot.replayed_bytes = opened.recovery.bytes_scanned;
        }
        self.check_rebuilt(number, &opened);
        Ok(engine)
    }

    /// Starts a node that is down, with all its stores.
    pub fn start_node(&mut self, id: u64) {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| !node.up) else { return };
        node.up = true;
        node.incarnation += 1;
        node.paused_until = 0;
        node.member.restart();
        let incarnation = node.incarnation;
        self.trace.note(self.now, id, 0, || "starts".into());
        for number in self.slots_of(id) {
            self.start_slot(number);
        }
        self.load_members(id);
        self.after(1_000, Happening::Report { node: id, incarnation });
        self.after(2_000, Happening::RunPlacement { node: id, incarnation });
    }

    /// Returns the stores of a node, without replaced ones.
    pub fn slots_of(&self, node: u64) -> Vec<u64> {
        let here = |slot: &&Slot| slot.node == node && !slot.is_gone;
        self.slots.values().filter(here).map(|slot| slot.number).collect()
    }

    fn start_slot(&mut self, number: u64) {
        let Some(slot) = self.slots.get_mut(&number) else { return };
        slot.incarnation += 1;
        slot.failed = None;
        slot.device.restart();
        self.open_slot(number);
    }

    /// Opens a store, or starts its log entry recovery.
    pub(super) fn open_slot(&mut self, number: u64) {
        let parts = self.parts_of(number);
        let recover = || match parts {
            Some((disk, _, options)) => {
                RecoveringStore::begin(Arc::new(disk), Path::new(DIR), &options)
            }
            None => Ok(None),
        };
        let found = start::adopt(|| self.engine_of(number), recover, RecoveringStore::ident);
        // The directory is locked by what is open.
        let found = found.and_then(|directory| self.count_start(number).map(|()| directory));
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let (incarnation, has_lied) = (slot.incarnation, slot.has_lied);
        let engine = match found {
            Ok(Directory::Open(engine, _)) => {
                slot.may_not_open = false;
                engine
            }
            Ok(Directory::Recovering(ident, recovery)) => {
                return self.begin_recovery(number, ident, recovery);
            }
            Err(error) => return self.not_opened(number, &error),
        };
        slot.running = Some(Running {
            engine,
            store_loop: None,
            readers: None,
            queue: Queue::new(self.plan.queue_bytes_max),
            is_writing: false,
            wake_at: None,
            parts: Parts::new(super::streams::PARTS_MAX),
            maintenance: Maintenance::default(),
            writers: SlowWriters::default(),
            wants_checkpoint: AtomicBool::new(false),
            stuck_since: None,
        });
        self.after(MS, Happening::Maintain { slot: number, incarnation });
        if let Err(error) = self.start_core(number) {
            return self.not_opened(number, &error);
        }
        if let Some(slot) = self.slots.get_mut(&number).filter(|_| has_lied) {
            slot.is_mistrusted = true;
            self.after(0, Happening::Undo(Undo::Mistrust(number, incarnation)));
        }
    }

    /// Replaces the disk of a store that opened after lost writes. Its data is correct, but a lost
    /// write at the end of the log looks like one that never happened, and nothing on the disk
    /// shows it. The store is replaced before it votes.
    pub(crate) fn mistrust(&mut self, number: u64, incarnation: u64) {
        if self.slots.get(&number).is_some_and(|slot| slot.incarnation == incarnation) {
            self.check_running_once();
            self.exchange_disk(number);
        }
    }

    pub(crate) fn start_core(&mut self, number: u64) -> Result<()> {
        let global = self.now;
        let Some(slot) = self.slots.get_mut(&number) else { return Ok(()) };
        let Some(node) = self.nodes.get(&slot.node) else { return Ok(()) };
        let (incarnation, is_copy) = (slot.incarnation, slot.is_copy);
        let Some(running) = slot.running.as_mut() else { return Ok(()) };
        let Some(ident) = RaftStore::ident(&*running.engine)? else { return Ok(()) };
        let mut options = self.plan.raft.clone();
        options.store = ident.store;
        options.process_incarnation = global + incarnation;
        options.seed = self.plan.seed ^ (number << 32) ^ incarnation;
        let core = RaftStore::open(running.engine.clone(), options, node.now(global))?;
        running.readers = Some(core.readers());
        running.store_loop = Some(StoreLoop::new(core));
        slot.id = Some(ident.store);
        if !is_copy {
            self.homes.insert(ident.store, number);
        }
        self.checks.started(number);
        self.note_regions(number);
        self.note_states(number);
        self.check_durable_state(number);
        self.wake(number, global + 1);
        Ok(())
    }

    /// Handles a store that does not open. That is valid only if its disk was damaged; then the
    /// disk is replaced.
    fn not_opened(&mut self, number: u64, error: &Error) {
        let Some(slot) = self.slots.get_mut(&number) else { return };
        slot.running = None;
        slot.failed = Some(error.to_string());
        let node = slot.node;
        if slot.disk.crashed() {
            return;
        }
        if slot.is_copy || self.runs.is_some() && matches!(error, Error::WrongStore { .. }) {
            // It waits for the operator.
            return self.trace.note(self.now, node, number, || format!("does not start: {error}"));
        }
        if matches!(error, Error::NoSpace(_)) {
            // Another user filled the device, and no space is reserved: the store opens when there
            // is space.
            let incarnation = slot.incarnation;
            return self
                .after(RESTART_NANOS, Happening::Undo(Undo::RestartStore(number, incarnation)));
        }
        let is_damaged = slot.is_damaged || slot.is_unreadable || slot.may_not_open;
        let paths = slot.disk.paths();
        self.trace.note(self.now, node, number, || format!("does not open: {error}"));
        match is_damaged {
            true => {
                self.spend(number);
                self.replace_disk(number);
            }
            false => {
                let paths: Vec<String> = paths.iter().map(|it| it.display().to_string()).collect();
                self.fail(format!(
                    "store {number} does not open: {error}; there are {}",
                    paths.join(" ")
                ));
            }
        }
    }

    /// Handles the end of a store's loop by an error. Its process answers the requests that it had,
    /// unless the machine lost power.
    pub(super) fn loop_ended(&mut self, number: u64, ended: Ended<Requester>) {
        let Ended { error, mut replies } = ended;
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let has_power = !slot.disk.crashed();
        if let Some(running) = slot.running.as_mut() {
            running.store_loop = None;
            replies.extend(running.queue.refuse_all());
        }
        self.check_deposed(number);
        for (requester, reply) in replies {
            let reply = has_power.then_some(reply);
            self.after(0, Happening::Reply { slot: number, requester, reply });
        }
        self.store_failed(number, &error);
    }

    /// Handles a store that stopped. That is valid only if its disk failed. Request threads may still
    /// use its readers and its engine.
    pub(super) fn store_failed(&mut self, number: u64, error: &Error) {
        let text = error.to_string();
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let node = slot.node;
        if slot.disk.crashed() {
            return;
        }
        if slot.is_copy {
            return self.end_copies();
        }
        let (excused, incarnation) = (slot.is_damaged || slot.is_troubled, slot.incarnation);
        let pause = RESTART_NANOS.max(slot.fails_until.saturating_sub(self.now));
        slot.failed = Some(text.clone());
        slot.recovery = None;
        self.counts.failures += 1;
        self.trace.note(self.now, node, number, || format!("stops: {text}"));
        self.end_streams_of(number);
        if !excused {
            return self.fail(format!("store {number} stops: {text}"));
        }
        self.after(pause, Happening::Undo(Undo::RestartStore(number, incarnation)));
        // A node stops with the last of its stores.
        let runs = |slot: &u64| self.slots.get(slot).is_some_and(Slot::is_running);
        if !self.slots_of(node).iter().any(runs) {
            self.stop_node(node, Stop::Kill);
            self.after(RESTART_NANOS, Happening::Undo(Undo::Start(node)));
        }
    }

    /// Stops a node, with the effect on its disks.
    pub fn stop_node(&mut self, id: u64, how: Stop) {
        self.end_copies_with(id);
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.up) else { return };
        node.up = false;
        node.incarnation += 1;
        node.paused_until = 0;
        node.member.restart();
        self.disconnected.retain(|(here, _), _| *here != id);
        self.trace.note(self.now, id, 0, || format!("stops: {how:?}"));
        for number in self.slots_of(id) {
            let seed = self.rngs.disk.draw();
            self.end_streams_of(number);
            let Some(slot) = self.slots.get_mut(&number) else { continue };
            slot.incarnation += 1;
            slot.recovery = None;
            let running = self.take_running(number);
            if how == Stop::Clean
                && let Some(mut running) = running
            {
                drop(running.parts.close());
                // A disk error during shutdown is found at the next start.
                let _ = running.engine.close();
            }
            let Some(slot) = self.slots.get_mut(&number) else { continue };
            slot.disk = match how {
                Stop::Power => slot.disk.restart(seed),
                Stop::Kill | Stop::Clean => slot.disk.fork(),
            };
            slot.is_troubled = false;
            (slot.fails_until, slot.is_replaced_on_failure) = (0, false);
        }
    }

    /// Stops a node after a planned crash point was reached.
    pub(super) fn check_power(&mut self, id: u64) {
        let gone = |slot: &Slot| slot.node == id && !slot.is_gone && slot.disk.crashed();
        if !self.slots.values().any(gone) {
            return;
        }
        if self.nodes.get(&id).is_some_and(|node| node.up) {
            self.counts.power_cuts += 1;
            self.stop_node(id, Stop::Power);
            let pause = self.nemesis.down_nanos();
            self.after(pause, Happening::Undo(Undo::Start(id)));
        }
    }

    /// Stops a node and replaces the disk of a store.
    pub fn exchange_disk(&mut self, number: u64) {
        let Some(node) = self.slots.get(&number).map(|slot| slot.node) else { return };
        self.spend(number);
        self.stop_node(node, Stop::Power);
        self.replace_disk(number);
        let pause = self.nemesis.down_nanos();
        self.after(pause, Happening::Undo(Undo::Start(node)));
    }

    /// Replaces the disk of a store with an empty one; the new store joins with a new id.
    pub(crate) fn replace_disk(&mut self, number: u64) {
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let (node, id) = (slot.node, slot.id);
        slot.is_gone = true;
        slot.recovery = None;
        slot.incarnation += 1;
        self.counts.replaced += 1;
        self.trace.note(self.now, node, number, || "its disk is replaced".into());
        self.end_streams_of(number);
        self.take_running(number);
        if let Some(id) = id {
            self.homes.remove(&id);
            self.nemesis.goals.push((id, stele_placement::DrainGoal::Remove));
        }
        let new = self.add_slot(node);
        if self.nodes.get(&node).is_some_and(|node| node.up) {
            self.start_slot(new);
        }
    }

    /// Updates which stores respond. A running node responds for all its stores, including stopped
    /// ones; in plans in which single stores fail, it says which have stopped.
    pub(super) fn update_links(&mut self) {
        self.after(LINKS_NANOS, Happening::Links);
        let runs = |node: &super::Node| node.up && node.paused_until <= self.now;
        let nodes: Vec<u64> =
            self.nodes.values().filter(|node| runs(node)).map(|node| node.id).collect();
        let tells = self.plan.faults.has(Fault::StoreFails);
        let serves = |slot: &Slot| !(slot.is_gone || tells && slot.failed.is_some());
        let is_known = |slot: &&Slot| !slot.is_copy;
        let stores: Vec<(StoreId, u64, bool)> = self
            .slots
            .values()
            .filter(is_known)
            .filter_map(|slot| Some((slot.id?, slot.node, serves(slot))))
            .collect();
        for here in &nodes {
            for (store, there, is_there) in stores.iter().filter(|(_, node, _)| node != here) {
                let ways = [(*here, *there), (*there, *here)];
                let open = ways.iter().all(|way| self.net.is_open(*way));
                let answers = *is_there && open && nodes.contains(there);
                self.note_link((*here, *store), answers);
            }
        }
    }

    fn note_link(&mut self, link: (u64, StoreId), answers: bool) {
        const REPORTED: u64 = u64::MAX;
        let now = self.now;
        match (answers, self.disconnected.get(&link).copied()) {
            (true, None) | (false, Some(REPORTED)) => {}
            (true, Some(since)) => {
                self.disconnected.remove(&link);
                if since == REPORTED {
                    self.push_to_stores(link.0, || Input::StoreReachable(link.1));
                }
            }
            (false, None) => {
                self.disconnected.insert(link, now);
            }
            (false, Some(since)) if now - since >= UNREACHABLE_NANOS => {
                self.disconnected.insert(link, REPORTED);
                self.push_to_stores(link.0, || Input::StoreUnreachable(link.1));
            }
            (false, Some(_)) => {}
        }
    }

    fn push_to_stores(&mut self, node: u64, input: impl Fn() -> Input<Engine>) {
        self.slots_of(node).into_iter().for_each(|slot| self.push(slot, input()));
    }
}
