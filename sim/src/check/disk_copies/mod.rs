//! Checks on copies of a store's disk, opened beside the store: after a power cut, with damage, and
//! with more operations and crashes than the store itself will see. A copy that opens must hold
//! what the store holds. A damaged copy may refuse to open, but never shows wrong data.

mod damage;
mod full_device;
mod installation;
mod long_batch;
mod observed_state;
mod power;
mod rare_operations;
mod snapshots;

use crate::plan::{Plan, fork};
use crate::world::{DIR, NodeClock, World};
use observed_state::ObservedState;
use std::path::Path;
use std::sync::Arc;
use stele_engine::{Opened, Options, Replay, Store};
use stele_simulated_disk::SimVfs;
use stele_types::{Prng, Result};

/// Copies checked in a run at random times, and at critical moments.
const COPIES_MAX: u64 = 4;
const CUTS_MAX: u64 = 2;

pub(super) struct DiskCopies {
    prng: Prng,
    left: u64,
    cuts_left: u64,
}

impl DiskCopies {
    pub(super) fn new(plan: &Plan) -> Self {
        Self { prng: fork(plan.seed, "twins"), left: COPIES_MAX, cuts_left: CUTS_MAX }
    }
}

struct DiskCopy {
    disk: SimVfs,
    clock: Arc<NodeClock>,
    options: Options,
}

impl DiskCopy {
    fn open(&self) -> Result<(Store, Opened)> {
        let vfs = Arc::new(self.disk.clone());
        let (clock, options) = (self.clock.clone(), self.options.clone());
        Store::open(vfs, clock, Path::new(DIR), options, Replay::Committed)
    }

    fn open_store(&self) -> Result<Store> {
        self.open().map(|(store, _)| store)
    }

    fn killed(&self) -> Self {
        let disk = self.disk.fork();
        Self { disk, clock: self.clock.clone(), options: self.options.clone() }
    }

    /// Returns a copy after a process crash, and in half of the cases a power cut.
    fn after(&self, prng: &mut Prng) -> Self {
        match prng.coin() {
            true => self.cut(prng),
            false => self.killed(),
        }
    }

    fn cut(&self, prng: &mut Prng) -> Self {
        Self { disk: self.disk.restart(prng.draw()), ..self.killed() }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CopyCheck {
    Power,
    Damage,
    RareOperations,
    Snapshots,
}

impl World {
    /// Checks a copy of a store's disk, with probability 1 / `one_in`.
    pub(crate) fn check_disk_copy(&mut self, number: u64, one_in: u64) {
        let disk_copies = &mut self.checks.disk_copies;
        if disk_copies.left == 0 || disk_copies.prng.below(one_in) > 0 {
            return;
        }
        let checks =
            [CopyCheck::Power, CopyCheck::Damage, CopyCheck::RareOperations, CopyCheck::Snapshots];
        let at = [0, 0, 0, 1, 1, 1, 1, 2, 2, 3][disk_copies.prng.below(10) as usize];
        disk_copies.left -= 1;
        self.run_copy_check(number, checks[at]);
    }

    /// Checks a copy with a power cut or damage at this moment, with probability 1 / `one_in`.
    pub(crate) fn check_copy_now(&mut self, number: u64, one_in: u64) {
        let disk_copies = &mut self.checks.disk_copies;
        if disk_copies.cuts_left > 0 && disk_copies.prng.below(one_in) == 0 {
            disk_copies.cuts_left -= 1;
            let is_power = disk_copies.prng.below(3) > 0;
            self.run_copy_check(
                number,
                if is_power { CopyCheck::Power } else { CopyCheck::Damage },
            );
        }
    }

    fn run_copy_check(&mut self, number: u64, check: CopyCheck) {
        if self.violation.is_some() {
            return;
        }
        let Some((engine, copy)) = self.copy_disk(number) else { return };
        // Read errors of the live store are checked elsewhere.
        let Ok(live) = ObservedState::of(&engine) else { return };
        let mut prng = Prng::new(self.checks.disk_copies.prng.draw());
        let found = match check {
            CopyCheck::Power => power::check(&copy, &live, &mut prng)
                .or_else(|| full_device::check(&copy, &live, &mut prng)),
            CopyCheck::Damage => damage::check(&copy, &engine, &live, &mut prng),
            CopyCheck::RareOperations => rare_operations::check(&copy, &mut prng),
            CopyCheck::Snapshots => self.check_snapshot_offers(number, &copy, &mut prng),
        };
        if let Some(text) = found {
            self.fail(format!("a copy of store {number}'s disk: {text}"));
        }
    }

    /// Copies the disk of a store without pending writes and without faults.
    fn copy_disk(&self, number: u64) -> Option<(Arc<Store>, DiskCopy)> {
        let slot = self.slots.get(&number)?;
        let node = self.nodes.get(&slot.node)?;
        let running =
            slot.running.as_ref().filter(|it| it.store_loop.is_some() && !it.is_writing)?;
        let troubled = slot.may_fail_reads() || slot.may_not_open || slot.has_lied;
        if troubled || slot.is_gone || slot.disk.crashed() || running.engine.index().poisoned() {
            return None;
        }
        let mut options = match node.is_upgraded {
            true => self.plan.other_engine.clone(),
            false => self.plan.engine.clone(),
        };
        options.store = None;
        let disk = slot.disk.fork();
        disk.set_capacity(Some(self.plan.capacity_bytes));
        Some((running.engine.clone(), DiskCopy { disk, clock: node.clock.clone(), options }))
    }
}
