//! Runs of stores, and which of them the nodes hear, in plans with faults of directories. The rule is
//! that of the server (`stele_node::succession`), by the table of each node, and each start is counted in
//! the directory. This module adds the network and the checks.

use super::{CopiedDirectory, DIR, Node, Slot, World};
use crate::plan::{Plan, fork};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use stele_engine::DirStart;
use stele_node::members::{RunStanding, Table};
use stele_node::report::Report;
use stele_node::succession::{Evidence, Probe, Refusal, Verdict};
use stele_types::{Error, Prng, Result, StartId, StoreId, StoreRun};
use stele_vfs::Vfs;

/// State of the faults of directories, and the runs that were heard.
pub struct Runs {
    /// Random stream of the faults of directories and of the starts.
    pub prng: Prng,
    /// Slot and incarnation of the runs of each store that a node heard.
    heard: BTreeMap<StoreId, BTreeSet<(u64, u64)>>,
    /// Earlier state of a disk, with its run.
    pub(crate) snapshot: Option<(u64, CopiedDirectory, StoreRun)>,
    pub(crate) copies: u64,
}

/// What a node states for one of its stores with a message; nothing without faults of directories.
#[derive(Clone, Debug, Default)]
pub struct Stated {
    run: StoreRun,
    address: String,
}

impl Runs {
    /// Creates the state of a plan; `None` if it has no faults of directories.
    pub fn new(plan: &Plan) -> Option<Self> {
        plan.faults.has_of_directories().then(|| Self {
            prng: fork(plan.seed, "directories"),
            heard: BTreeMap::new(),
            snapshot: None,
            copies: 0,
        })
    }
}

impl World {
    /// Counts the start of a store's directory, once for each start of its node.
    pub(super) fn count_start(&mut self, number: u64) -> Result<()> {
        let is_sole = self.plan.nodes == 1;
        let (Some(runs), Some(slot)) = (self.runs.as_mut(), self.slots.get_mut(&number)) else {
            return Ok(());
        };
        if slot.run.0 == slot.incarnation {
            return Ok(());
        }
        let nonce = self.nodes.get(&slot.node).map_or(1, Node::boot_nonce);
        let id = u128::from(runs.prng.draw()) << 64 | u128::from(runs.prng.draw() | 1);
        let may_have_moved = slot.may_have_moved || is_sole;
        // The list of members has a copy of the last run.
        let kept = slot.id.zip(slot.members.as_ref());
        let kept = kept.and_then(|(id, known)| known.stores.get(&id));
        let known = kept.map(|member| member.known.run.clone()).unwrap_or_default();
        let start = DirStart { id: StartId(id), nonce, known, may_have_moved };
        let disk: Arc<dyn Vfs> = Arc::new(slot.disk.clone());
        let started = start.count(&disk, Path::new(DIR));
        slot.has_moved = match &started {
            Ok(started) => started.has_moved,
            Err(error) => matches!(error, Error::WrongStore { .. }),
        };
        let started = started?;
        slot.run = (slot.incarnation, started.run);
        // On a full device the place is not recorded: the operator says it again.
        slot.may_have_moved &= slot.run.1.boot.count == 0;
        if started.has_moved && !may_have_moved {
            self.fail(format!(
                "store {number} starts at another place, and the operator did not say that it moved"
            ));
        }
        Ok(())
    }

    /// Returns whether two nodes run and reach each other now.
    fn are_connected(&self, here: u64, there: u64) -> bool {
        let runs = |node: &u64| {
            self.nodes.get(node).is_some_and(|node| node.up && node.paused_until <= self.now)
        };
        let is_open = self.net.is_open((here, there)) && self.net.is_open((there, here));
        [here, there].iter().all(runs) && is_open
    }

    fn probe(&self, node: u64, store: StoreId, address: &str) -> Probe {
        let there = self.node_at(address).filter(|there| self.are_connected(node, *there));
        let number = there.and_then(|there| self.slot_on(there, store));
        let is_running = |number: &u64| self.slots.get(number).is_some_and(Slot::is_running);
        match number.filter(is_running) {
            Some(number) => Probe::Answered(self.run_of(number).lineage),
            None => Probe::Silent,
        }
    }

    fn is_connected(&self, node: u64, store: StoreId, run: &StoreRun) -> bool {
        let is_it = |slot: &Slot| {
            slot.id == Some(store)
                && slot.is_running()
                && self.run_of(slot.number).lineage.id() == run.lineage.id()
                && self.are_connected(node, slot.node)
        };
        self.slots.values().any(is_it)
    }

    /// Judges the run of a store that a node at `address` states to `node`, and records it there if it
    /// is accepted.
    pub(super) fn judge_run(
        &mut self,
        node: u64,
        store: StoreId,
        run: &StoreRun,
        address: &str,
        is_hearsay: bool,
    ) -> Verdict {
        let is_same = |table: &Table| {
            table.known_run(store).is_some()
                && table.standing(store, run, address) != RunStanding::Displaced
        };
        if self.table(node).is_some_and(is_same) {
            return Verdict::Same;
        }
        let mut evidence = Evidence { is_hearsay, ..Evidence::default() };
        loop {
            let known = self.known_run(node, store).cloned().unwrap_or_default();
            evidence.is_connected = self.is_connected(node, store, &known.run);
            let admit = |table: &mut Table| Some(table.admit(store, run, address, &evidence));
            match self.change_table(node, admit).unwrap_or(Verdict::Undecided) {
                Verdict::Undecided if evidence.probe == Probe::NotMade => {
                    evidence.probe = self.probe(node, store, &known.address);
                }
                Verdict::Unverified if evidence.stated == Probe::NotMade => {
                    evidence.stated = self.probe(node, store, address);
                }
                verdict => return verdict,
            }
        }
    }

    pub(super) fn stated(&self, number: u64) -> Stated {
        let slot = self.slots.get(&number).filter(|_| self.runs.is_some());
        let node = slot.and_then(|slot| self.nodes.get(&slot.node));
        let stated = |(slot, node): (&Slot, &Node)| Stated {
            run: slot.run.1.clone(),
            address: node.address(),
        };
        slot.zip(node).map(stated).unwrap_or_default()
    }

    /// Returns whether a message between two stores passes: the receiving node hears the run of the
    /// sender, and the sending node that of the receiver.
    pub(super) fn is_heard(&mut self, from: u64, stated: &Stated, to: u64) -> bool {
        if self.is_of_removed(from, to) {
            return false;
        }
        if self.runs.is_none() {
            self.learn_sender(from, to);
            return true;
        }
        self.end_copies_without_original();
        let end = |number: u64| {
            let slot = self.slots.get(&number)?;
            Some((slot.node, slot.id?, slot.is_copy && slot.is_gone))
        };
        let (Some(sender), Some(receiver)) = (end(from), end(to)) else { return false };
        let ((node, store, has_ended), (there, other, _)) = (sender, receiver);
        if node == there {
            return true;
        }
        // The operator has ended the copy, or nothing is there that judges.
        if has_ended || !self.slots.get(&to).is_some_and(Slot::is_running) {
            return false;
        }
        let run = &stated.run;
        let verdict = self.judge_run(there, store, run, &stated.address, false);
        if verdict == Verdict::Refused(Refusal::Conflict) {
            self.fail(format!("node {there} stops {run} of store {store}, and no other runs"));
        }
        let is_accepted = |verdict| matches!(verdict, Verdict::Same | Verdict::Successor);
        if !is_accepted(verdict) {
            self.trace.note(self.now, there, from, || format!("{run} is not heard"));
            return false;
        }
        // A message of an ended run may still arrive.
        if self.stated(from).run != *run || !self.slots.get(&from).is_some_and(Slot::is_running) {
            return true;
        }
        let answer = self.stated(to);
        let verdict = self.judge_run(node, other, &answer.run, &answer.address, false);
        if !is_accepted(verdict) {
            let text = format!("{} of store {other} is sent nothing", answer.run);
            self.trace.note(self.now, node, to, || text);
            return false;
        }
        self.note_heard(store, from);
        true
    }

    /// Returns whether the node of the receiver knows the sender as removed.
    fn is_of_removed(&self, from: u64, to: u64) -> bool {
        let sender = self.slots.get(&from).and_then(|slot| slot.id);
        let table = self.slots.get(&to).and_then(|slot| self.table(slot.node));
        sender.zip(table).is_some_and(|(store, table)| table.is_removed(store))
    }

    /// Checks that of the runs of a store that live only one is heard, and none of a directory that lacks
    /// what the store acknowledged.
    fn note_heard(&mut self, store: StoreId, number: u64) {
        let Some(slot) = self.slots.get(&number) else { return };
        let (is_copy, run) = (slot.is_copy, (number, slot.incarnation));
        let lives = |(number, incarnation): &(u64, u64)| {
            let slot = self.slots.get(number);
            slot.is_some_and(|it| it.incarnation == *incarnation && it.is_running())
        };
        let Some(runs) = &self.runs else { return };
        let others = runs.heard.get(&store).into_iter().flatten();
        let other = others.copied().find(|other| *other != run && lives(other));
        if let Some((other, _)) = other {
            return self.fail(format!(
                "the runs of store {store} in slots {other} and {number} are heard"
            ));
        }
        if is_copy {
            return self.fail(format!("a copy of store {store} in slot {number} is heard"));
        }
        if let Some(runs) = self.runs.as_mut() {
            runs.heard.entry(store).or_default().insert(run);
        }
    }

    /// Drops the stores of a report that the placement leader's node does not hear; false if none is left.
    pub(crate) fn drop_unheard(&mut self, id: u64, from: u64, report: &mut Report) -> bool {
        if self.runs.is_none() || id == from {
            return true;
        }
        self.end_copies_without_original();
        let address = report.node.address.clone();
        let serving = report.stores.iter().filter(|store| !store.has_failed);
        let stated: Vec<_> = serving.map(|it| (it.id, report.node.run_of(it))).collect();
        let mut refused = BTreeSet::new();
        for (store, run) in stated {
            let verdict = self.judge_run(id, store, &run, &address, false);
            if !matches!(verdict, Verdict::Same | Verdict::Successor) {
                refused.insert(store);
            }
        }
        report.stores.retain(|store| !refused.contains(&store.id));
        report.regions.retain(|region| !refused.contains(&region.leader.store));
        refused.is_empty() || report.stores.iter().any(|store| !store.has_failed)
    }
}
