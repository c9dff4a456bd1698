//! Level of the cluster. Some runs begin with the oldest one, as after an upgrade of all programs; the operator
//! raises it while the cluster works. Until then nodes refuse what is above.

use super::Answered;
use crate::plan::{MS, SECOND, fork};
use crate::world::{Happening, World};
use stele_node::placement::NotDecided;
use stele_placement::{Cluster, Levels};
use stele_types::{Error, Level};

/// Pause after which the operator repeats a call that did not raise the level.
const REPEAT_NANOS: u64 = 500 * MS;
/// Least time from the start of the clients until the operator raises the level.
const LEAST_NANOS: u64 = SECOND;

impl World {
    /// Lets the operator raise the level at a random time, in runs that begin with the oldest one.
    pub fn begin_levels(&mut self) {
        if self.plan.begins_at_oldest_level {
            let most = self.plan.nanos.saturating_sub(LEAST_NANOS).max(1);
            let after = LEAST_NANOS + fork(self.plan.seed, "finalize").below(most);
            self.after(after, Happening::Finalize);
        }
    }

    /// Raises the level if all nodes support it and report; repeats that until it is raised.
    pub(crate) fn finalize(&mut self) {
        let is_raised = |level: Levels| level.recorded == Level::NEWEST;
        let states = self.nodes.values().filter_map(|node| node.member.leader_state());
        if states.map(|state| state.cluster.levels()).any(is_raised) {
            return;
        }
        self.after(REPEAT_NANOS, Happening::Finalize);
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.lead(id, |leader, _| {
                let plan = |cluster: &Cluster, now| Ok(((), cluster.plan_finalize(now)?));
                leader.decide(plan, |_: Result<_, NotDecided<Error>>| Answered::Nothing);
            });
        }
    }

    /// Takes the levels of an answer over. The stores of the node that record less record the level.
    pub(super) fn update_level(&mut self, id: u64, levels: Levels) {
        let Some(node) = self.nodes.get_mut(&id).filter(|_| self.plan.begins_at_oldest_level)
        else {
            return;
        };
        let in_use = &mut node.member.level_in_use;
        let was_in_use = *in_use;
        *in_use = was_in_use.max(Some(levels.in_use));
        if was_in_use.is_some_and(|was| was < levels.in_use) {
            self.counts.levels_raised += 1;
        }
        for number in self.slots_of(id) {
            let Some(slot) = self.slots.get(&number).filter(|slot| slot.id.is_some()) else {
                continue;
            };
            // The product records it beside all other work of the node.
            let hangs = slot.stalled_until.max(slot.hangs_until) > self.now;
            let Some(engine) = slot.engine().filter(|_| !hangs).cloned() else { continue };
            if engine.level() >= levels.recorded {
                continue;
            }
            match engine.record_level(levels.recorded) {
                Ok(()) => self.report_in(id, 0),
                Err(error) => self.trace.note(self.now, id, number, || {
                    format!("cannot record level {}: {error}", levels.recorded)
                }),
            }
        }
    }

    /// Returns whether the node of a store may use what is of a level. One that has no answer of the placement
    /// leader yet may not.
    pub(crate) fn may_use(&mut self, slot: u64, level: Level) -> bool {
        if !self.plan.begins_at_oldest_level {
            return true;
        }
        let node = self.slots.get(&slot).and_then(|slot| self.nodes.get(&slot.node));
        let may = node.and_then(|node| node.member.level_in_use) >= Some(level);
        self.counts.above_level += u64::from(!may);
        may
    }
}
