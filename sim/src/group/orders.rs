//! Steps of operators for regions led on a node.

use crate::world::{Requester, World};
use stele_node::report::split::middle_key;
use stele_node::report::steps::{self, Execution};
use stele_node::report::{Obstacle, StepKey};
use stele_placement::Instruction;
use stele_replica::{Admin, Done, Reply};
use stele_types::RegionId;

impl World {
    /// Executes one step. The next report shows its effect or the refusal.
    pub(super) fn carry_out_step(&mut self, id: u64, step: &Instruction) {
        let key = StepKey::of(step);
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if !node.member.running.insert(key) {
            self.fail(format!("node {id} starts {key:?}, which already runs"));
        }
        let text = || crate::world::short(&format!("carries out {step:?}"));
        self.trace.note(self.now, id, 0, text);
        if let Err(obstacle) = self.request_step(id, step, key) {
            self.step_ended(id, key, step.step, Err(obstacle));
        }
    }

    fn request_step(&mut self, id: u64, step: &Instruction, key: StepKey) -> Result<(), Obstacle> {
        let slot = self.holding(id, step.region);
        let reader = slot.and_then(|slot| self.slots.get(&slot)?.readers()?.get(step.region));
        let region = reader.map(|reader| reader.region());
        let execution = steps::execution(step, region.as_deref())?;
        let (Some(slot), Some(region)) = (slot, region) else { return Ok(()) };
        let call = match execution {
            Execution::Request(call) => call,
            Execution::Split { mut keys, new } => {
                if let Some(engine) = self.engine(slot).filter(|_| keys.is_empty()) {
                    keys.push(middle_key(&*engine, &region)?);
                }
                match keys.len() == new.len() {
                    true => Admin::Split { keys, new_ids: new },
                    false => self.split_call(&region, keys)?,
                }
            }
        };
        if let Admin::ChangePeers(changes) = &call {
            self.spend_change(&region, changes);
        }
        let requester = Requester::Step { node: id, key, index: step.step };
        self.request(slot, requester, steps::request(&region, call));
        Ok(())
    }

    /// Returns a store of a node with a replica of the region, preferably the leader.
    fn holding(&self, id: u64, region: RegionId) -> Option<u64> {
        let mut holders = self.slots_of(id);
        let reader = |slot: &u64| self.slots.get(slot)?.readers()?.get(region);
        holders.retain(|slot| reader(slot).is_some());
        let leads = |slot: &&u64| {
            let leader = reader(slot).and_then(|reader| reader.leader());
            leader.is_some_and(|leader| self.homes.get(&leader.store) == Some(slot))
        };
        holders.iter().find(leads).or(holders.first()).copied()
    }

    pub(crate) fn step_replied(&mut self, id: u64, key: StepKey, index: usize, reply: Reply) {
        if matches!(&reply, Reply::Done(done) if !matches!(done, Done::Admin { .. })) {
            return self.fail(format!("an order was answered with {reply:?}"));
        }
        let outcome = steps::outcome(reply).map(|_| ());
        if let Err(Obstacle { reason, is_final: true }) = &outcome {
            let operator = key.operator;
            self.trace.note(self.now, id, 0, || format!("operator {operator}: {reason}"));
        }
        self.step_ended(id, key, index, outcome);
    }

    pub(crate) fn step_ended(
        &mut self,
        id: u64,
        key: StepKey,
        index: usize,
        outcome: Result<(), Obstacle>,
    ) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.member.running.remove(&key);
            node.member.reporter.ended(key, index, outcome);
        }
    }
}
