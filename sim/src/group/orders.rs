//! Translation of placement orders into requests to region leaders.

use super::Ordered;
use crate::world::{Requester, World};
use stele_placement::{Change, Instruction, OperatorId, Order};
use stele_raftstore::{
    Admin, AdminCall, ChangeKind, Done, Header, Input, NewRegion, PeerChange, Refusal, Reply,
};
use stele_types::RegionId;

/// Returns the order of an instruction.
pub fn ordered(instruction: &Instruction) -> Ordered {
    let admin = match &instruction.order {
        Order::ChangePeers(changes) => {
            Some(Admin::ChangePeers(changes.iter().map(change).collect()))
        }
        Order::TransferLeader(to) => Some(Admin::TransferLeader(to.id)),
        Order::Split { keys, new } if !keys.is_empty() => Some(Admin::Split {
            keys: keys.clone(),
            new_ids: new
                .iter()
                .map(|new| NewRegion { region: new.region, peers: new.peers.clone() })
                .collect(),
        }),
        Order::Split { .. } => None,
        Order::PrepareMerge(target) => Some(Admin::PrepareMerge { target: target.clone() }),
        Order::CommitMerge { source, prepared } => {
            Some(Admin::CommitMerge { source: source.clone(), prepared_index: *prepared })
        }
        Order::RollbackMerge => Some(Admin::RollbackMerge),
    };
    Ordered {
        operator: instruction.operator,
        index: instruction.step,
        region: instruction.region,
        epoch: instruction.epoch,
        admin,
    }
}

fn change(change: &Change) -> PeerChange {
    let (kind, peer) = match change {
        Change::Add(peer) => (ChangeKind::Add, *peer),
        Change::Remove(peer) => (ChangeKind::Remove, *peer),
    };
    PeerChange { kind, peer }
}

impl World {
    /// Executes one order. The next report shows its effect or the refusal.
    pub(super) fn carry_out_order(&mut self, id: u64, order: Ordered) {
        let key = (order.operator.0, order.region);
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if !node.member.working.insert(key) {
            return;
        }
        let Some(slot) = self.holding(id, order.region) else {
            return self.refused(id, order.operator, order.index, "the region is not here".into());
        };
        let Some(reader) = self.slots.get(&slot).and_then(|it| it.readers()?.get(order.region))
        else {
            return;
        };
        let region = reader.region();
        if region.epoch != order.epoch {
            let text = format!("its epoch has changed to {:?}", region.epoch);
            return self.refused(id, order.operator, order.index, text);
        }
        let requester =
            Requester::Step { node: id, operator: order.operator.0, index: order.index };
        let Some(call) = order.admin else {
            self.split_in_half(slot, &region, requester);
            return self.finished(id, order.operator.0);
        };
        let version = Some(order.epoch.version);
        let header = Header { region: order.region, version, ..Header::default() };
        self.request(slot, requester, |id| Input::Admin(AdminCall { id, header, call }));
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

    pub(crate) fn step_replied(&mut self, id: u64, operator: u64, index: usize, reply: &Reply) {
        match reply {
            Reply::Done(Done::Admin { .. }) => self.finished(id, operator),
            Reply::Refused(refusal) => {
                let text = format!("{refusal:?}");
                if let Refusal::Invalid(reason) = refusal {
                    self.trace.note(self.now, id, 0, || format!("operator {operator}: {reason}"));
                }
                self.refused(id, OperatorId(operator), index, text);
            }
            Reply::Busy(busy) => {
                self.refused(id, OperatorId(operator), index, format!("{busy:?}"));
            }
            // The step may have taken effect, or may still: the next reports show it.
            Reply::Unknown(_) => self.finished(id, operator),
            other @ Reply::Done(_) => self.fail(format!("an order was answered with {other:?}")),
        }
    }

    fn refused(&mut self, id: u64, operator: OperatorId, index: usize, text: String) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.member.refusals.push((operator, index, text));
        self.finished(id, operator.0);
    }

    pub(crate) fn finished(&mut self, id: u64, operator: u64) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.member.working.retain(|(other, _): &(u64, RegionId)| *other != operator);
    }
}
