//! Entries that a store applies beside its loop, one run at a time in the order in which they were
//! handed out: the engine holds them early or late, and the report arrives after a delay.

use super::{Happening, World};
use crate::plan::{MS, SECOND};
use stele_node::store::Item;
use stele_raftstore::{Apply, Input};
use stele_storage::StateMachine;
use stele_types::Result;

/// Shortest duration of an apply.
const APPLY_NANOS: u64 = 5_000;
/// Longest duration of an apply while there are faults.
const APPLY_NANOS_MAX: u64 = 10 * SECOND;

impl World {
    /// Queues entries that a loop handed out.
    pub(super) fn queue_apply(&mut self, number: u64, apply: Apply) {
        let Some(slot) = self.slots.get_mut(&number) else { return };
        if let Some(running) = &mut slot.running {
            running.applies.push_back(apply);
        }
        self.begin_apply(number);
    }

    /// Begins the next apply, unless one is under way. It is mostly short. While there are faults it
    /// is sometimes long enough for an election, a power cut, a split or a merge.
    fn begin_apply(&mut self, number: u64) {
        let has_faults = self.nemesis.is_active();
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let (incarnation, node) = (slot.incarnation, slot.node);
        let Some(running) = slot.running.as_mut().filter(|running| running.applying.is_none())
        else {
            return;
        };
        let Some(apply) = running.applies.pop_front() else { return };
        running.applying = Some(apply.region);
        let prng = &mut self.rngs.applies;
        let nanos = APPLY_NANOS
            + match prng.below(400) {
                0 if has_faults => prng.below(APPLY_NANOS_MAX),
                1..20 if has_faults => prng.below(300) * MS,
                20..60 => prng.below(20) * MS,
                _ if has_faults => prng.below(self.plan.apply_nanos_max),
                _ => prng.below(300_000),
            };
        let is_early = prng.coin();
        let began = self.now;
        let done = self.engine(number).filter(|_| is_early).map(|engine| applied(&*engine, &apply));
        let entries = apply.entries.len();
        self.trace.span(began, nanos, node, number, || format!("apply {entries}"));
        let happening = Happening::Applied { slot: number, incarnation, apply, began, done };
        self.after(nanos, happening);
    }

    /// Ends an apply and begins the next one.
    pub(super) fn applied(
        &mut self,
        number: u64,
        incarnation: u64,
        apply: &Apply,
        began: u64,
        done: Option<Result<()>>,
    ) {
        let Some(slot) = self.slots.get(&number).filter(|it| it.incarnation == incarnation) else {
            return;
        };
        let (Some(engine), Some(node)) = (slot.engine(), self.nodes.get(&slot.node)) else {
            return;
        };
        let result = done.unwrap_or_else(|| applied(&**engine, apply));
        let [began_nanos, ended_nanos] = [began, self.now].map(|at| node.now(at).monotonic_nanos);
        let Apply { region, incarnation, .. } = *apply;
        let index = apply.entries.last().map(|entry| entry.index).unwrap_or_default();
        match result {
            Ok(()) => {
                self.counts.applies += 1;
                let report =
                    Input::Applied { region, incarnation, index, began_nanos, ended_nanos };
                self.push(number, report);
            }
            Err(error) => self.push_item(number, |queue| {
                // A loop that has ended takes nothing.
                let _ = queue.push(Item::Stopped(error));
            }),
        }
        if let Some(running) = self.slots.get_mut(&number).and_then(|slot| slot.running.as_mut()) {
            running.applying = None;
        }
        self.begin_apply(number);
    }
}

fn applied(engine: &impl StateMachine, apply: &Apply) -> Result<()> {
    engine.apply(apply.region, &apply.entries)
}
