//! Checks that a view stays readable while garbage collection goes on, as an export or a snapshot for a
//! slow store holds it (fault 53). Some seeds hold such views.

use crate::plan::{MS, Plan, fork};
use crate::world::World;
use std::collections::BTreeMap;
use stele_engine::Store as Engine;
use stele_index::{Direction, View};
use stele_types::{KeyRange, Prng, Result, ValueRef, keyspace};

/// Remainders of the seeds that hold views.
const SEEDS: [u64; 2] = [11, 19];
const ONE_IN: u64 = 20;
/// Of so many slices of maintenance, one takes a view.
const SLICES: u64 = 4;
const HELD_MILLIS_MAX: u64 = 20_000;

pub(super) struct HeldViews {
    prng: Prng,
    is_chosen: bool,
    /// By store, with the time in nanoseconds at which it is read.
    held: BTreeMap<u64, (View, u64)>,
}

impl HeldViews {
    pub(super) fn new(plan: &Plan) -> Self {
        let is_chosen = SEEDS.contains(&(plan.seed % ONE_IN));
        Self { prng: fork(plan.seed, "held views"), is_chosen, held: BTreeMap::new() }
    }

    pub(super) fn started(&mut self, slot: u64) {
        self.held.remove(&slot);
    }
}

impl World {
    /// Takes a view of a store after a slice of its maintenance, or reads the one that is due.
    pub(crate) fn check_held_view(&mut self, number: u64) {
        let views = &mut self.checks.held_views;
        let (is_held, is_due) = match views.held.get(&number) {
            Some((_, until)) => (true, *until <= self.now),
            None => (false, false),
        };
        if !views.is_chosen || is_held && !is_due {
            return;
        }
        if !is_held && views.prng.below(SLICES) > 0 {
            return;
        }
        let until = self.now + views.prng.below(HELD_MILLIS_MAX) * MS;
        let Some(engine) = self.engine(number) else { return };
        let Some((view, _)) = self.checks.held_views.held.remove(&number) else {
            let view = engine.index().view();
            self.checks.held_views.held.insert(number, (view, until));
            return;
        };
        self.read_view(number, &engine, &view);
    }

    /// Reads all views that are held and drops them. No more are taken.
    pub(super) fn check_held_views(&mut self) {
        self.checks.held_views.is_chosen = false;
        for (number, (view, _)) in std::mem::take(&mut self.checks.held_views.held) {
            if let Some(engine) = self.engine(number) {
                self.read_view(number, &engine, &view);
            }
        }
    }

    fn read_view(&mut self, number: u64, engine: &Engine, view: &View) {
        if let Err(error) = read(engine, view) {
            self.check_read_error(number, &error);
        }
    }
}

fn read(engine: &Engine, view: &View) -> Result<()> {
    let range = KeyRange::new(vec![keyspace::LOCAL + 1], Vec::new());
    let mut iter = view.iter(range, Direction::Forward)?;
    while let Some((_, value, _)) = iter.next()? {
        if let ValueRef::At(at) = value
            && at.length > 0
        {
            engine.log().check(&at)?;
        }
    }
    Ok(())
}
