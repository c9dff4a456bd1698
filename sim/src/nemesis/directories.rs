//! Directories of stores that are copied, moved to another machine, or set back to an earlier state.
//!
//! What a cluster tolerates: a copy runs beside its original while every node reaches that, or knows a
//! later run of the store than the copied one. A copy that starts while every node that knows better is
//! down, or cut off, cannot be told from its original.

use super::Undo;
use crate::faults::Fault;
use crate::hardware;
use crate::plan::{MS, SECOND};
use crate::world::{CopiedDirectory, Device, Happening, Node, Slot, Stop, World};
use stele_types::{Lineage, PeerRole, Region, StoreId};

/// Longest pause between two faults of directories.
const PAUSE_NANOS: u64 = 3 * SECOND;
const COPY_NANOS: u64 = 4 * SECOND;

impl World {
    /// Starts the faults of directories, which have a random stream of their own.
    pub(super) fn start_directories(&mut self) {
        if self.runs.is_some() {
            let pause = self.draw_directories(PAUSE_NANOS);
            self.after(pause, Happening::Undo(Undo::Directories));
        }
    }

    fn draw_directories(&mut self, bound: u64) -> u64 {
        self.runs.as_mut().map_or(0, |runs| runs.prng.below(bound))
    }

    pub(super) fn trouble_directories(&mut self) {
        let faults: Vec<Fault> =
            self.plan.faults.iter().filter(|fault| fault.is_of_directories()).collect();
        if !self.nemesis.is_active || faults.is_empty() {
            return;
        }
        let at = self.draw_directories(faults.len() as u64) as usize;
        match faults[at] {
            Fault::MoveDirectory => self.move_directories(),
            Fault::CopyDirectory => self.copy_directory(),
            _ => self.restore_directory(),
        }
        self.start_directories();
    }

    /// Moves the directories of a node to another machine, which has another address. In a quarter of the
    /// cases the operator says so only when they do not start.
    fn move_directories(&mut self) {
        let node = 1 + self.draw_directories(self.plan.nodes);
        let how = [Stop::Power, Stop::Kill, Stop::Clean][self.draw_directories(3) as usize];
        let is_said = self.draw_directories(4) > 0;
        if !self.all_addresses_known() {
            return;
        }
        self.end_copies();
        self.stop_node(node, how);
        for number in self.slots_of(node) {
            let Some(slot) = self.slots.get_mut(&number) else { continue };
            slot.disk = slot.disk.copy();
            slot.may_have_moved = is_said;
        }
        if let Some(node) = self.nodes.get_mut(&node) {
            node.moves += 1;
        }
        self.counts.moved_directories += 1;
        self.trace.note(self.now, node, 0, || "its directories are moved".into());
        let pause = (20 + self.draw_directories(1_500)) * MS;
        self.after(pause, Happening::Undo(Undo::Start(node)));
        self.after(pause + SECOND, Happening::Undo(Undo::SayMoved(node)));
    }

    /// Starts the stores of a node that wait until the operator says that their directories were moved.
    pub(super) fn say_moved(&mut self, node: u64) {
        let waits = |slot: &Slot| slot.run.0 != slot.incarnation && slot.failed.is_some();
        let slots = self.slots_of(node);
        let is_home = |slot: &Slot| !slot.is_copy;
        let waiting = slots.iter().filter_map(|number| self.slots.get(number));
        if !waiting.filter(|slot| is_home(slot)).any(waits) {
            return;
        }
        self.stop_node(node, Stop::Kill);
        for number in slots {
            if let Some(slot) = self.slots.get_mut(&number).filter(|slot| !slot.is_copy) {
                slot.may_have_moved = true;
            }
        }
        self.start_node(node);
    }

    /// Restarts a node of which a store could not record its start, on a full device: others do not hear
    /// it at another address, and tell the operator to start it when there is space.
    pub(super) fn restart_without_start(&mut self, node: u64) {
        let is_unrecorded = |slot: &Slot| slot.is_running() && slot.run.1.boot.count == 0;
        let slots = self.slots_of(node);
        let mut here = slots.iter().filter_map(|number| self.slots.get(number));
        if self.runs.is_none() || !here.any(|slot| !slot.is_copy && is_unrecorded(slot)) {
            return;
        }
        self.stop_node(node, Stop::Kill);
        self.start_node(node);
    }

    /// Starts a copy of a running store's directory on another machine, mostly with the word of the
    /// operator that it was moved. The other stores of the copied node are not there.
    fn copy_directory(&mut self) {
        let stores = self.serving_homes();
        let at = self.draw_directories(stores.len() as u64) as usize;
        let is_said = self.draw_directories(4) > 0;
        let Some(number) = stores.get(at).copied() else { return };
        let may = self.copy().is_none() && self.is_whole() && self.needs_others(number);
        if !may || !self.all_know(number, |_, _| true) {
            return;
        }
        let Some(original) = self.slots.get(&number) else { return };
        let (directory, Some(id)) = (CopiedDirectory::of(original), original.id) else { return };
        let Some(runs) = self.runs.as_mut() else { return };
        runs.copies += 1;
        let node = self.plan.nodes + runs.copies;
        self.nodes.insert(node, Node::new(node));
        let slot = self.add_copy(node, id, directory, is_said);
        if let Some(slot) = self.slots.get_mut(&slot) {
            slot.original = Some(number);
        }
        self.counts.copied_directories += 1;
        self.trace.note(self.now, node, number, || "its directory is copied".into());
        self.start_node(node);
        self.after(COPY_NANOS, Happening::Undo(Undo::EndCopies));
    }

    /// Replaces the disk of a store, and starts an earlier state of its directory beside the new one.
    fn restore_directory(&mut self) {
        let found = self.runs.as_mut().and_then(|runs| runs.snapshot.take());
        let Some((number, directory, run)) = found else { return self.keep_state() };
        let is_later = |now: &Lineage| now.holds(run.lineage.id());
        let slot = self.slots.get(&number).filter(|slot| slot.is_running() && !slot.is_gone);
        let Some((node, Some(id))) = slot.map(|slot| (slot.node, slot.id)) else { return };
        let is_earlier = slot.is_some_and(|slot| is_later(&slot.run.1.lineage));
        let knows = |world: &Self, node| {
            let known = world.known_run(node, id);
            known.is_some_and(|known| is_later(&known.run.lineage))
        };
        let may = is_earlier && self.copy().is_none() && self.all_know(number, knows);
        if !may || !self.may_lose(number) {
            return;
        }
        self.spend(number);
        self.stop_node(node, Stop::Power);
        self.replace_disk(number);
        self.add_copy(node, id, directory, true);
        self.counts.restored_directories += 1;
        self.trace.note(self.now, node, number, || "an earlier state is restored".into());
        let pause = self.draw_directories(1_500) * MS;
        self.after(pause, Happening::Undo(Undo::Start(node)));
        self.after(pause + COPY_NANOS, Happening::Undo(Undo::EndCopies));
    }

    fn keep_state(&mut self) {
        let stores = self.serving_homes();
        let at = self.draw_directories(stores.len() as u64) as usize;
        let Some(number) = stores.get(at).copied().filter(|it| self.needs_others(*it)) else {
            return;
        };
        let slot = self.slots.get(&number);
        let Some(slot) = slot.filter(|slot| slot.run.1.boot.count > 0) else { return };
        let state = (slot.number, CopiedDirectory::of(slot), slot.run.1.clone());
        if let Some(runs) = self.runs.as_mut() {
            runs.snapshot = Some(state);
        }
    }

    /// Returns true if no region of a store has the store as its only voter. A copy of such a region asks
    /// no other node.
    fn needs_others(&mut self, number: u64) -> bool {
        let core = self.slots.get_mut(&number).and_then(|slot| slot.core());
        let regions = core.map(|core| core.regions()).unwrap_or_default();
        let voters = |region: &Region| {
            region.peers.iter().filter(|peer| peer.role == PeerRole::Voter).count()
        };
        regions.iter().all(|report| voters(&report.region) >= 2)
    }

    fn add_copy(&mut self, node: u64, id: StoreId, copied: CopiedDirectory, is_said: bool) -> u64 {
        let number = self.slots.len() as u64 + 1;
        let profile = hardware::profile(&self.plan, number, self.nemesis.flips());
        let mut slot = Slot::new(number, node, copied.disk, Device::new(profile));
        (slot.id, slot.is_copy, slot.may_have_moved) = (Some(id), true, is_said);
        (slot.members, slot.is_unreadable) = (copied.members, copied.may_fail_reads);
        self.slots.insert(number, slot);
        number
    }

    fn copy(&self) -> Option<&Slot> {
        self.slots.values().find(|slot| slot.is_copy && !slot.is_gone)
    }

    /// Returns true if all nodes run and reach each other.
    fn is_whole(&self) -> bool {
        let runs = |node: &Node| node.up && node.paused_until <= self.now;
        self.plan.nodes >= 3 && self.net.cut.is_empty() && self.nodes.values().all(runs)
    }

    /// Returns true if every other node knows the last run of a store, or one for which `knows` holds.
    fn all_know(&self, number: u64, knows: impl Fn(&Self, u64) -> bool) -> bool {
        let Some(slot) = self.slots.get(&number) else { return false };
        let Some(id) = slot.id else { return false };
        (1..=self.plan.nodes).filter(|node| *node != slot.node).all(|node| {
            let known = self.known_run(node, id);
            let is_last = known.is_some_and(|it| it.run.lineage.id() == slot.run.1.lineage.id());
            is_last && knows(self, node)
        })
    }

    /// Ends copies of stores that do not run any longer, or that some node may not reach: the operator
    /// said that there is no other directory.
    pub(crate) fn end_copies_without_original(&mut self) {
        let Some(original) = self.copy().map(|copy| copy.original) else { return };
        let Some(original) = original else { return };
        let runs = self.slots.get(&original).is_some_and(|slot| {
            let node = self.nodes.get(&slot.node);
            let lives = node.is_some_and(|node| node.up && node.paused_until <= self.now);
            slot.is_running() && !slot.is_gone && lives
        });
        if !runs || !self.net.cut.is_empty() {
            self.end_copies();
        }
    }

    pub(crate) fn end_copies(&mut self) {
        while let Some(copy) = self.copy() {
            let (number, node) = (copy.number, copy.node);
            self.trace.note(self.now, node, number, || "the copy ends".into());
            self.end_streams_of(number);
            self.take_running(number);
            let Some(slot) = self.slots.get_mut(&number) else { return };
            (slot.is_gone, slot.failed, slot.recovery) = (true, None, None);
            slot.incarnation += 1;
            if node > self.plan.nodes {
                self.stop_node(node, Stop::Kill);
                self.nodes.remove(&node);
            }
        }
    }

    /// Ends a copy of which the original's node stops, or that stops itself: a copy is not started while
    /// its original is down.
    pub(crate) fn end_copies_with(&mut self, node: u64) {
        let Some(copy) = self.copy() else { return };
        let original = copy.original.and_then(|number| self.slots.get(&number));
        let is_concerned = original.is_some_and(|slot| slot.node == node);
        if is_concerned || copy.node == node && node > self.plan.nodes {
            self.end_copies();
        }
    }

    /// Returns true if every node knows the addresses of all others. Two nodes that move at the same time
    /// find each other only by the lists of the nodes that `join` names, which are not simulated.
    fn all_addresses_known(&self) -> bool {
        let knows = |node: u64, slot: &Slot| {
            let (Some(id), Some(there)) = (slot.id, self.nodes.get(&slot.node)) else {
                return true;
            };
            match self.table(node).and_then(|table| table.get(id)) {
                Some(member) => member.is_removed || member.known.address == there.address(),
                None => false,
            }
        };
        let homes = || self.slots.values().filter(|slot| !slot.is_copy && !slot.is_gone);
        (1..=self.plan.nodes)
            .all(|node| homes().filter(|slot| slot.node != node).all(|slot| knows(node, slot)))
    }
}
