//! A leader that is left alone while its clients stay with it: what it still answers must be right.

use super::Undo;
use crate::plan::MS;
use crate::world::{Happening, Stop, World};
use stele_raftstore::{Admin, Role};
use stele_types::{RegionId, RegionKind, StoreId};

/// How long clients stay.
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
            // What it took alone is replaced by then, or is about to be.
            let pause = (500 + self.nemesis.prng.below(3_500)) * MS;
            self.after(pause, Happening::Undo(Undo::Cut(node)));
        }
        let others: Vec<u64> = self.nodes.keys().copied().filter(|id| *id != node).collect();
        match kind {
            // One can't hear it and asks for votes, the others restart or hear late news.
            4 | 5 => {
                let at = self.nemesis.prng.below(others.len() as u64) as usize;
                let Some(deaf) = others.get(at).copied() else { return };
                self.nemesis.deposed_until = self.now + STAY_NANOS + MS * 500;
                self.part(node, deaf);
                if kind == 5 {
                    self.nemesis.late_news = Some((deaf, self.now + STAY_NANOS + MS * 500));
                    return;
                }
                for round in 0..12 {
                    let pause = (1_100 + round * 160 + self.nemesis.prng.below(60)) * MS;
                    self.after(pause, Happening::Undo(Undo::Forget(node, deaf)));
                }
            }
            // The others' clocks run as fast as a lease allows for.
            0 => {
                let fast = 1_000_000 + self.plan.raft.lease_drift_percent * 10_000 - 10_000;
                for (id, rate) in others.iter().map(|id| (*id, fast)).chain([(node, 1_000_000)]) {
                    if let Some(it) = self.nodes.get_mut(&id) {
                        it.set_rate(self.now, rate);
                    }
                }
                self.isolate(node);
            }
            // The others forget in a restart that they heard of it.
            1 => {
                self.isolate(node);
                self.forget_leader(node, node);
            }
            // It has just handed over.
            2 => {
                self.hand_over(node);
                let pause = self.nemesis.prng.below(20) * MS;
                self.after(pause, Happening::Undo(Undo::Isolate(node)));
            }
            // Its process stands still, and others lead by when it goes on.
            _ => {
                let until = self.now + (500 + self.nemesis.prng.below(1_500)) * MS;
                self.trace.note(self.now, node, 0, || "stands still as a leader".into());
                if let Some(it) = self.nodes.get_mut(&node) {
                    it.paused_until = until;
                }
            }
        }
    }

    /// Two nodes don't hear each other in any region.
    fn part(&mut self, one: u64, other: u64) {
        self.trace.note(self.now, one, 0, || format!("is not heard by node {other}"));
        let until = self.now + STAY_NANOS + MS * 500;
        let regions: Vec<RegionId> = self.reports_by_region().into_keys().collect();
        for (a, b) in self.slots_of(one).into_iter().zip(self.slots_of(other)) {
            for region in &regions {
                self.nemesis.deafen((*region, a, b), until);
                self.nemesis.deafen((*region, b, a), until);
            }
        }
    }

    /// All others restart, and forget whom they heard of.
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
        self.trace.note(self.now, node, 0, || "is left alone".into());
        self.undo_later(Undo::Network, 2_500);
    }

    /// A node that leads a region of user data.
    fn leading_data(&mut self) -> Option<u64> {
        let reports = self.reports_by_region().into_values().flatten();
        let led = reports.filter(|(_, report)| {
            report.role == Role::Leader && report.region.kind == RegionKind::Data
        });
        let led: Vec<u64> = led.map(|(slot, _)| slot).collect();
        let at = self.nemesis.prng.below(led.len() as u64) as usize;
        led.get(at).and_then(|slot| self.slots.get(slot)).map(|slot| slot.node)
    }

    /// Every region that a node leads is ordered to another one.
    fn hand_over(&mut self, node: u64) {
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
