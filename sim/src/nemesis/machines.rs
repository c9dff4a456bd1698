//! Faults of networks, nodes and clocks.

use super::Undo;
use crate::faults::Fault;
use crate::plan::MS;
use crate::world::{Happening, Stop, World};
use stele_placement::SYSTEM_REGION;
use stele_types::RegionKind;

impl World {
    pub(super) fn trouble_network(&mut self, fault: Fault) {
        let prng = &mut self.nemesis.prng;
        match fault {
            Fault::Loss => self.net.lost_permille = prng.below(300),
            Fault::Duplicate => self.net.doubled_permille = prng.below(500),
            Fault::Delay => {
                let most = (1 + prng.below(300)) * MS;
                self.net.way_nanos = (self.net.way_nanos.0.min(most), most);
            }
            Fault::Corrupt => self.net.corrupt_permille = 1 + prng.below(100),
            Fault::Bandwidth => self.net.bytes_per_second = Some(2_000 + prng.below(200_000)),
            Fault::OneWay => {
                let way = (self.any_node(), self.any_node());
                self.net.cut.insert(way);
                self.counts.partitions += 1;
            }
            _ => self.partition(),
        }
        let cut = format!("{:?}", self.net.cut);
        self.trace.note(self.now, 0, 0, || format!("network: {}, cut {cut}", fault.name()));
        self.undo_later(Undo::Network, 3_000);
    }

    /// Partitions the network into two random halves, or isolates the leader of a region.
    fn partition(&mut self) {
        self.counts.partitions += 1;
        let nodes: Vec<u64> = self.nodes.keys().copied().collect();
        let (one, other): (Vec<u64>, Vec<u64>) = match self.nemesis.prng.coin() {
            true => nodes.into_iter().partition(|_| self.nemesis.prng.coin()),
            false => {
                let alone = self.leading_node().unwrap_or(1);
                nodes.into_iter().partition(|node| *node == alone)
            }
        };
        self.net.partition(&one, &other);
    }

    fn leading_node(&mut self) -> Option<u64> {
        let system = self.nemesis.prng.below(3) == 0;
        self.serving().into_iter().find_map(|number| {
            let slot = self.slots.get(&number)?;
            let readers = slot.readers()?;
            let leads = readers.all().into_iter().any(|region| {
                let kind = if system { RegionKind::System } else { RegionKind::Data };
                debug_assert!(region.id != SYSTEM_REGION || region.kind == RegionKind::System);
                let reader = readers.get(region.id);
                region.kind == kind && reader.is_some_and(|it| it.leading_term().is_some())
            });
            leads.then_some(slot.node)
        })
    }

    pub(super) fn trouble_node(&mut self, fault: Fault) {
        let id = match self.nemesis.prng.coin() {
            true => self.any_node(),
            false => self.leading_node().unwrap_or(1),
        };
        if !self.nodes.get(&id).is_some_and(|node| node.up) {
            return;
        }
        if fault == Fault::Pause {
            let millis_max = if self.nemesis.prng.below(6) == 0 { 9_000 } else { 2_500 };
            let until = self.now + self.nemesis.prng.below(millis_max) * MS;
            self.trace.span(self.now, until - self.now, id, 0, || "stands still".into());
            if let Some(node) = self.nodes.get_mut(&id) {
                node.paused_until = until;
            }
            return;
        }
        let all = self.nemesis.prng.below(6) == 0;
        let how = match (fault, self.nemesis.prng.below(4)) {
            (Fault::PowerCut, _) => Stop::Power,
            (_, 0) => Stop::Clean,
            _ => Stop::Kill,
        };
        let nodes: Vec<u64> = self.nodes.keys().copied().filter(|it| all || *it == id).collect();
        for node in nodes {
            match how {
                Stop::Power => self.counts.power_cuts += 1,
                Stop::Kill | Stop::Clean => self.counts.kills += 1,
            }
            let pause = self.nemesis.down_nanos();
            if how == Stop::Clean {
                self.leave(node, pause, false);
                continue;
            }
            self.stop_node(node, how);
            self.after(pause, Happening::Undo(Undo::Start(node)));
        }
    }

    pub(super) fn trouble_clock(&mut self, fault: Fault) {
        let id = self.any_node();
        let prng = &mut self.nemesis.prng;
        // No clock may run faster than another by more than leases tolerate.
        let drift_ppm = self.plan.raft.lease_drift_percent * 10_000 - 10_000;
        let (shift, rate) = match fault {
            Fault::WallJump => (prng.below(7_200) as i64 - 3_600, None),
            Fault::Skew => match prng.below(3) {
                0 => (0, Some(1_000_000)),
                1 => (0, Some(1_000_000 + drift_ppm)),
                _ => (0, Some(1_000_000 + prng.below(drift_ppm))),
            },
            _ => (0, Some(400_000 + prng.below(2_600_000))),
        };
        let now = self.now;
        self.trace.note(now, id, 0, || format!("clock: shifts {shift} s, rate {rate:?} ppm"));
        let Some(node) = self.nodes.get_mut(&id) else { return };
        match rate {
            Some(rate) => node.set_rate(now, rate),
            None => node.wall_shift_s = shift,
        }
    }

    /// Stops the clock of a node, mostly of one that leads: it counts less than the time that passed,
    /// by more than leases tolerate. In half of the cases its process stands still too, as when a
    /// virtual machine is suspended; otherwise clients keep using it, and it may be isolated.
    pub(super) fn stop_a_clock(&mut self) {
        let id = match self.nemesis.prng.below(4) {
            0 => self.any_node(),
            _ => self.leading_node().unwrap_or(1),
        };
        let until = self.now + (500 + self.nemesis.prng.below(4_000)) * MS;
        let is_suspended = self.nemesis.prng.coin();
        self.trace.span(self.now, until - self.now, id, 0, || "its clock stands still".into());
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.stop_clock(self.now, until);
        if is_suspended {
            node.paused_until = until;
        }
        self.clients.stay_with(id, until);
        if !is_suspended && self.nemesis.prng.coin() {
            self.isolate(id);
        }
    }

    /// Restarts the node of a store that stopped; a damaged disk is replaced first.
    pub(super) fn restart_store(&mut self, number: u64, incarnation: u64) {
        let Some(slot) = self.slots.get(&number).filter(|slot| slot.incarnation == incarnation)
        else {
            return;
        };
        let node = slot.node;
        let is_replaced = slot.is_replaced_on_failure && !slot.is_running();
        if slot.is_damaged && !slot.is_gone {
            return self.exchange_disk(number);
        }
        if is_replaced && !slot.is_gone && self.is_dispensable(number) {
            return self.exchange_disk(number);
        }
        let Some(slot) = self.slots.get(&number) else { return };
        let is_running = slot.is_running();
        if is_running || slot.is_gone || !self.nodes.get(&node).is_some_and(|n| n.up) {
            return;
        }
        self.counts.kills += 1;
        let how = if self.nemesis.prng.coin() { Stop::Kill } else { Stop::Power };
        self.stop_node(node, how);
        self.after(20 * MS, Happening::Undo(Undo::Start(node)));
    }
}
