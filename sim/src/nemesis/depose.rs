//! Leaders that are isolated while clients keep using them: every answer must still be
//! linearizable.

use super::Undo;
use crate::plan::MS;
use crate::world::{Happening, Stop, World};
use stele_replica::{Admin, Role};
use stele_types::{RegionId, RegionKind, StoreId};

const STAY_NANOS: u64 = 2_500 * MS;

impl World {
    pub(super) fn depose(&mut self) {
        let Some(node) = self.leading_data() else { return };
        if self.plan.nodes < 3 || self.now < self.nemesis.deposed_until {
            return;
        }
        self.clients.stay_with(node, self.now + STAY_NANOS);
        let kind = self.nemesis.prng.below(6);
        if kind < 4 && self.nemesis.prng.coin() {
            // By then its own entries are being replaced, or already are.
            let pause = (500 + self.nemesis.prng.below(3_500)) * MS;
            self.after(pause, Happening::Undo(Undo::Cut(node)));
        }
        let others: Vec<u64> = self.nodes.keys().copied().filter(|id| *id != node).collect();
        match kind {
            // One node does not receive its messages and starts elections; the others restart, or
            // get rejections of lost elections.
            4 | 5 => {
                let at = self.nemesis.prng.below(others.len() as u64) as usize;
                let Some(deaf) = others.get(at).copied() else { return };
                self.nemesis.deposed_until = self.now + STAY_NANOS + MS * 500;
                self.part(node, deaf);
                if kind == 5 {
                    self.nemesis.stale_rejection = Some((deaf, self.now + STAY_NANOS + MS * 500));
                    return;
                }
                for round in 0..12 {
                    let pause = (1_100 + round * 160 + self.nemesis.prng.below(60)) * MS;
                    self.after(pause, Happening::Undo(Undo::Forget(node, deaf)));
                }
            }
            // The others' clocks run as fast as the lease tolerates.
            0 => {
                let fast = 1_000_000 + self.plan.raft.lease_drift_percent * 10_000 - 10_000;
                for (id, rate) in others.iter().map(|id| (*id, fast)).chain([(node, 1_000_000)]) {
                    if let Some(it) = self.nodes.get_mut(&id) {
                        it.set_rate(self.now, rate);
                    }
                }
                self.isolate(node);
            }
            // The others restart and forget its heartbeats.
            1 => {
                self.isolate(node);
                self.forget_leader(node, node);
            }
            // It has just transferred its leadership.
            2 => {
                self.transfer_leaderships(node);
                let pause = self.nemesis.prng.below(20) * MS;
                self.after(pause, Happening::Undo(Undo::Isolate(node)));
            }
            // Its process is paused; others lead when it resumes.
            _ => {
                let until = self.now + (500 + self.nemesis.prng.below(1_500)) * MS;
                self.trace.note(self.now, node, 0, || "is paused as a leader".into());
                if let Some(it) = self.nodes.get_mut(&node) {
                    it.paused_until = until;
                }
            }
        }
    }

    fn part(&mut self, one: u64, other: u64) {
        self.trace
            .note(self.now, one, 0, || format!("messages to and from node {other} are blocked"));
        let until = self.now + STAY_NANOS + MS * 500;
        let regions: Vec<RegionId> = self.reports_by_region().into_keys().collect();
        for (a, b) in self.slots_of(one).into_iter().zip(self.slots_of(other)) {
            for region in &regions {
                self.nemesis.block_messages((*region, a, b), until);
                self.nemesis.block_messages((*region, b, a), until);
            }
        }
    }

    /// Restarts all other nodes, so that they forget the leader.
    pub(super) fn forget_leader(&mut self, node: u64, deaf: u64) {
        let others = self.nodes.keys().copied().filter(|id| *id != node && *id != deaf);
        for id in others.collect::<Vec<u64>>() {
            self.counts.kills += 1;
            self.stop_node(id, Stop::Kill);
            let pause = (2 + self.nemesis.prng.below(20)) * MS;
            self.after(pause, Happening::Undo(Undo::Start(id)));
        }
    }

    pub(super) fn cut_power(&mut self, node: u64) {
        self.counts.power_cuts += 1;
        self.stop_node(node, Stop::Power);
        self.after(20 * MS, Happening::Undo(Undo::Start(node)));
    }

    pub(super) fn isolate(&mut self, node: u64) {
        let others: Vec<u64> = self.nodes.keys().copied().filter(|id| *id != node).collect();
        self.counts.partitions += 1;
        self.net.partition(&[node], &others);
        self.trace.note(self.now, node, 0, || "is isolated".into());
        self.undo_later(Undo::Network, 2_500);
    }

    fn leading_data(&mut self) -> Option<u64> {
        let slot = self.leading_slot_of_data()?;
        self.slots.get(&slot).map(|slot| slot.node)
    }

    pub(super) fn leading_slot_of_data(&mut self) -> Option<u64> {
        let reports = self.reports_by_region().into_values().flatten();
        let leading = reports.filter(|(_, report)| {
            report.role == Role::Leader && report.region.kind == RegionKind::Data
        });
        let leading: Vec<u64> = leading.map(|(slot, _)| slot).collect();
        let at = self.nemesis.prng.below(leading.len() as u64) as usize;
        leading.get(at).copied()
    }

    fn transfer_leaderships(&mut self, node: u64) {
        let reports = self.reports_by_region();
        for (slot, report) in reports.into_values().flatten() {
            let here = self.slots.get(&slot).filter(|it| it.node == node);
            let Some(own) = here.and_then(|it| it.id) else { continue };
            let elsewhere = |store: StoreId| store != own;
            let to = report.region.peers.iter().find(|peer| elsewhere(peer.store));
            if let Some(to) = to.filter(|_| report.role == Role::Leader) {
                self.order(slot, report.region.id, Admin::TransferLeader(to.id));
            }
        }
    }
}
