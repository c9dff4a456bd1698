//! Copies of a store's disk, opened beside the store: after a power cut, with damage, and with more
//! work and more crashes than the store itself will see. What opens must hold what the store holds;
//! what was damaged may be refused, and never shows anything else.

mod damage;
mod facts;
mod installed;
mod laws;
mod long;
mod power;
mod snapshots;

use crate::plan::{Plan, fork};
use crate::world::{DIR, NodeClock, World};
use facts::Facts;
use std::path::Path;
use std::sync::Arc;
use stele_engine::{Opened, Options, Replay, Store};
use stele_types::{Prng, Result};
use stele_vfs::SimVfs;

/// Copies of one run, and more of them at moments that matter.
const TWINS_MAX: u64 = 4;
const CUTS_MAX: u64 = 2;

/// See the module.
pub struct Twins {
    prng: Prng,
    left: u64,
    cuts_left: u64,
}

impl Twins {
    /// Those of a plan.
    pub fn new(plan: &Plan) -> Self {
        Self { prng: fork(plan.seed, "twins"), left: TWINS_MAX, cuts_left: CUTS_MAX }
    }
}

/// A copy of a disk, and how a store is opened on it.
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

    /// The same disk after the process ended.
    fn killed(&self) -> Self {
        let disk = self.disk.fork();
        Self { disk, clock: self.clock.clone(), options: self.options.clone() }
    }

    /// The same disk after the process ended, and perhaps with it the power.
    fn after(&self, prng: &mut Prng) -> Self {
        match prng.coin() {
            true => self.cut(prng),
            false => self.killed(),
        }
    }

    /// The same disk after the power went.
    fn cut(&self, prng: &mut Prng) -> Self {
        Self { disk: self.disk.restart(prng.draw()), ..self.killed() }
    }
}

/// What is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    Power,
    Damage,
    Laws,
    Snapshots,
}

impl World {
    /// Now and then a copy of a store's disk is looked at.
    pub(crate) fn look_at_twin(&mut self, number: u64, one_in: u64) {
        let twins = &mut self.checks.twins;
        if twins.left == 0 || twins.prng.below(one_in) > 0 {
            return;
        }
        let looks = [Look::Power, Look::Damage, Look::Laws, Look::Snapshots];
        let at = [0, 0, 0, 1, 1, 1, 1, 2, 2, 3][twins.prng.below(10) as usize];
        twins.left -= 1;
        self.look_at(number, looks[at]);
    }

    /// What a power cut at this moment leaves is looked at, or damage.
    pub(crate) fn cut_twin(&mut self, number: u64, one_in: u64) {
        let twins = &mut self.checks.twins;
        if twins.cuts_left > 0 && twins.prng.below(one_in) == 0 {
            twins.cuts_left -= 1;
            let is_power = twins.prng.below(3) > 0;
            self.look_at(number, if is_power { Look::Power } else { Look::Damage });
        }
    }

    fn look_at(&mut self, number: u64, look: Look) {
        if self.violation.is_some() {
            return;
        }
        let Some((engine, twin)) = self.twin(number) else { return };
        // What can't be read here is checked elsewhere.
        let Ok(live) = Facts::of(&engine) else { return };
        let mut prng = Prng::new(self.checks.twins.prng.draw());
        let found = match look {
            Look::Power => power::look(&twin, &live, &mut prng),
            Look::Damage => damage::look(&twin, &engine, &live, &mut prng),
            Look::Laws => laws::look(&twin, &mut prng),
            Look::Snapshots => self.look_at_snapshots(number, &twin, &mut prng),
        };
        if let Some(text) = found {
            self.fail(format!("a copy of store {number}'s disk: {text}"));
        }
    }

    /// A copy of the disk of a store that has nothing on its way to it, and nothing against it.
    fn twin(&self, number: u64) -> Option<(Arc<Store>, DiskCopy)> {
        let slot = self.slots.get(&number)?;
        let node = self.nodes.get(&slot.node)?;
        let running = slot.running.as_ref().filter(|it| it.core.is_some() && !it.is_writing)?;
        let troubled = slot.is_damaged || slot.is_troubled || slot.may_not_open || slot.has_lied;
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
