//! What goes wrong, and what operators do meanwhile: one thing now and then, out of the kinds that
//! the seed drew.

mod aims;
mod budget;
mod depose;
mod disks;
mod late;
mod machines;
mod mistakes;
mod regions;
mod withhold;

use crate::faults::{Fault, FaultSet};
use crate::plan::{MS, Plan, fork};
use crate::world::{Happening, SOUND_APPEND_NANOS, World};
use std::collections::BTreeMap;
use stele_placement::DrainGoal;
use stele_raftstore::{Body, PeerMessage};
use stele_types::{LogIndex, Prng, RegionId, StoreId};

/// Between two looks of an operator who waits.
const LOOK_NANOS: u64 = 250 * MS;

/// What is well again after a while.
#[derive(Clone, Copy, Debug)]
pub enum Undo {
    /// A node that was down starts.
    Start(u64),
    /// The node of a store that stopped is started anew, unless the store lives again.
    Revive(u64, u64),
    /// A store that opened on a disk that lied gets another one.
    Mistrust(u64, u64),
    /// A damaged disk is replaced, if all regions can do without it by now.
    Exchange(u64),
    /// The network.
    Network,
    /// The power of a node goes for a moment.
    Cut(u64),
    /// A node is cut off from all others for a while.
    Isolate(u64),
    /// All nodes restart save for two: one that leads and one that can't hear it.
    Forget(u64, u64),
    /// A store's followers in a region don't hear it any more.
    Mute(u64, RegionId),
    /// A region is to be merged, if its leader is still the same.
    Merge(u64, RegionId),
    /// A source is to be taken over by a target.
    TakeOver(RegionId, RegionId),
    /// A store's disk is as fast as ever.
    Speed(u64),
    /// A store's disk has room again.
    Space(u64),
    /// A store's disk takes more again.
    Room(u64),
}

/// See the module.
pub struct Nemesis {
    /// What stores are to become.
    pub goals: Vec<(StoreId, DrainGoal)>,
    /// Stores that were ordered to be empty.
    drained: Vec<StoreId>,
    prng: Prng,
    faults: Vec<Fault>,
    calm_nanos: u64,
    is_active: bool,
    /// Members say what no member would say, until then.
    hostile_until: u64,
    /// What one store says to another one in a region is lost until then.
    deaf: BTreeMap<(RegionId, u64, u64), u64>,
    /// What one store tells another one that is committed in a region goes no further, until then.
    withheld: BTreeMap<(RegionId, u64, u64), (LogIndex, u64)>,
    /// A leader is being left alone until then.
    deposed_until: u64,
    /// What a node reports is lost until then.
    unreported: BTreeMap<u64, u64>,
    /// News of elections that were lost come before a node's own questions, until then.
    late_news: Option<(u64, u64)>,
}

impl Nemesis {
    /// That of a plan.
    pub fn new(plan: &Plan) -> Self {
        let faults: FaultSet = plan.faults;
        Self {
            goals: Vec::new(),
            drained: Vec::new(),
            prng: fork(plan.seed, "nemesis"),
            faults: faults.iter().collect(),
            calm_nanos: plan.calm_nanos,
            is_active: false,
            hostile_until: 0,
            deaf: BTreeMap::new(),
            withheld: BTreeMap::new(),
            deposed_until: 0,
            unreported: BTreeMap::new(),
            late_news: None,
        }
    }

    /// How long a node stays down.
    pub fn down_nanos(&mut self) -> u64 {
        let millis_max = if self.prng.below(6) == 0 { 9_000 } else { 1_500 };
        (20 + self.prng.below(millis_max)) * MS
    }

    /// What a store says to another one in a region is lost for a while.
    pub fn deafen(&mut self, way: (RegionId, u64, u64), until: u64) {
        self.deaf.insert(way, until);
    }

    /// Whether it is lost now.
    pub fn is_deaf(&self, way: (RegionId, u64, u64), now: u64) -> bool {
        self.is_active && self.deaf.get(&way).is_some_and(|until| now < *until)
    }

    /// Whether persons give orders that nobody in his right mind gives.
    pub fn makes_mistakes(&self) -> bool {
        self.is_active && self.faults.contains(&Fault::Mistake)
    }

    /// Whether a forged message follows one that is sent now.
    fn forges(&mut self, now: u64) -> bool {
        now < self.hostile_until && self.prng.below(3) == 0
    }
}

impl World {
    /// Things begin to go wrong.
    pub fn let_things_go_wrong(&mut self) {
        self.nemesis.is_active = true;
        self.after(0, Happening::Nemesis);
    }

    /// Whether a forged message follows this one. Where replicas mend each other some lie about it.
    pub(crate) fn forges(&mut self, message: &PeerMessage) -> bool {
        match message.body {
            Body::ValueRepairReply(_) | Body::EntryRecoveryReply(_) if self.plan.is_helix => {
                self.nemesis.prng.coin()
            }
            _ => self.nemesis.forges(self.now),
        }
    }

    pub(crate) fn trouble(&mut self) {
        if !self.nemesis.is_active || self.nemesis.faults.is_empty() {
            return;
        }
        let calm = self.nemesis.calm_nanos;
        let pause = calm / 2 + self.nemesis.prng.below(calm);
        self.after(pause, Happening::Nemesis);
        let kinds = self.nemesis.faults.len() as u64;
        // Half of the seeds have a favourite.
        let at = match self.plan.focus {
            focus if focus.is_multiple_of(2) && self.nemesis.prng.coin() => focus / 2 % kinds,
            _ => self.nemesis.prng.below(kinds),
        };
        let fault = self.nemesis.faults[at as usize];
        match fault {
            Fault::Loss
            | Fault::Duplicate
            | Fault::Delay
            | Fault::OneWay
            | Fault::Partition
            | Fault::Corrupt
            | Fault::Bandwidth => self.trouble_network(fault),
            Fault::PowerCut | Fault::Kill | Fault::Pause => self.trouble_node(fault),
            Fault::WallJump | Fault::Skew | Fault::SkewBeyond => self.trouble_clock(fault),
            Fault::Transfer | Fault::Members | Fault::Split | Fault::Merge => {
                self.change_region(fault);
            }
            Fault::Drain => self.drain(),
            Fault::Mistake => self.mistake(),
            Fault::Depose => self.depose(),
            Fault::Upgrade => {
                let (id, pause) = (self.any_node(), self.nemesis.down_nanos());
                self.counts.kills += 1;
                self.upgrade(id, pause);
            }
            Fault::PlacementCut => {
                self.net.is_group_cut = true;
                self.trace.note(self.now, 0, 0, || "nobody reaches the placement group".into());
                self.undo_later(Undo::Network, 6_000);
            }
            Fault::Hostile => {
                let nanos = (100 + self.nemesis.prng.below(1_500)) * MS;
                self.nemesis.hostile_until = self.now + nanos;
                self.trace.note(self.now, 0, 0, || format!("forgeries for {} ms", nanos / MS));
            }
            _ => self.trouble_disk(fault),
        }
    }

    fn any_slot(&mut self) -> Option<u64> {
        let slots = self.serving();
        let at = self.nemesis.prng.below(slots.len() as u64) as usize;
        slots.get(at).copied()
    }

    fn any_node(&mut self) -> u64 {
        1 + self.nemesis.prng.below(self.plan.nodes)
    }

    fn undo_later(&mut self, undo: Undo, millis_max: u64) {
        let pause = (50 + self.nemesis.prng.below(millis_max)) * MS;
        self.after(pause, Happening::Undo(undo));
    }

    pub(crate) fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::Start(node) => self.start_node(node),
            Undo::Revive(slot, life) => self.revive(slot, life),
            Undo::Isolate(node) => self.isolate(node),
            Undo::Forget(leader, other) => self.forget_leader(leader, other),
            Undo::Mute(slot, region) => self.mute(slot, region),
            Undo::Merge(slot, region) => self.merge_now(slot, region),
            Undo::TakeOver(source, target) => self.take_over(source, target),
            Undo::Cut(node) => self.cut_power(node),
            Undo::Mistrust(slot, life) => self.mistrust(slot, life),
            Undo::Exchange(slot) => self.look_and_exchange(slot),
            Undo::Network => {
                self.trace.note(self.now, 0, 0, || "the network heals".into());
                self.net.heal();
            }
            Undo::Speed(slot) => {
                if let Some(slot) = self.slots.get_mut(&slot) {
                    slot.append_nanos = SOUND_APPEND_NANOS;
                }
            }
            Undo::Space(slot) => self.make_room(slot),
            Undo::Room(slot) => {
                if let Some(slot) = self.slots.get(&slot) {
                    slot.disk.clear_faults();
                }
            }
        }
    }

    /// A damaged disk is opened once more, which may find out, and then replaced: not before every region
    /// can do without it, for a member that was away may have no copy yet of what was split meanwhile.
    fn look_and_exchange(&mut self, number: u64) {
        let slot = self.slots.get(&number).filter(|slot| !slot.is_gone);
        let Some(node) = slot.map(|slot| slot.node) else { return };
        if !self.is_spared(number) {
            return self.after(LOOK_NANOS, Happening::Undo(Undo::Exchange(number)));
        }
        if self.nemesis.prng.coin() {
            self.stop_node(node, crate::world::Stop::Power);
            self.start_node(node);
        }
        if self.slots.get(&number).is_some_and(|slot| !slot.is_gone) {
            self.check_running_once();
            self.exchange_disk(number);
        }
    }

    /// All faults end, for good.
    pub fn heal(&mut self) {
        self.nemesis.is_active = false;
        self.nemesis.hostile_until = 0;
        self.nemesis.withheld.clear();
        self.trace.note(self.now, 0, 0, || "everything heals".into());
        self.net.heal();
        for slot in self.slots.keys().copied().collect::<Vec<_>>() {
            self.make_room(slot);
            let Some(it) = self.slots.get_mut(&slot) else { continue };
            it.append_nanos = SOUND_APPEND_NANOS;
            it.stalled_until = 0;
            it.disk.clear_faults();
            it.disk.no_crash();
        }
        let now = self.now;
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.go_on(id);
            if let Some(node) = self.nodes.get_mut(&id) {
                node.set_rate(now, 1_000_000);
            }
            self.start_node(id);
        }
        // An operator replaces what is damaged: reads of it fail for as long as it stays.
        self.damaged_disks().into_iter().for_each(|slot| self.look_and_exchange(slot));
        self.nemesis.goals.retain(|(_, goal)| *goal != DrainGoal::Drain);
        let drained = std::mem::take(&mut self.nemesis.drained);
        let cancels = drained.into_iter().map(|id| (id, DrainGoal::Cancel));
        self.nemesis.goals.extend(cancels);
    }
}
