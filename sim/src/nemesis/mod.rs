//! Nemesis: faults and operator actions, one at a time, of the kinds that the seed drew.

mod aims;
mod budget;
mod depose;
mod directories;
mod disks;
mod hardware;
mod late;
mod machines;
mod mistakes;
mod regions;
mod stores;
mod withhold;

pub use hardware::SLOWER;

use crate::faults::{Fault, FaultSet};
use crate::plan::{MS, Plan, fork};
use crate::world::{Happening, SOUND_APPEND_NANOS, World};
use std::collections::BTreeMap;
use stele_placement::DrainGoal;
use stele_replica::{Body, PeerMessage};
use stele_types::{LogIndex, Prng, RegionId, StoreId};

const CHECK_NANOS: u64 = 250 * MS;

/// Action that was scheduled for later, mostly the end of a fault.
#[derive(Clone, Copy, Debug)]
pub enum Undo {
    /// Starts a node that is down.
    Start(u64),
    /// Restarts the node of a store that stopped, unless the store runs again: store, incarnation.
    RestartStore(u64, u64),
    /// Replaces the disk of a store that opened on one with lost writes: store, incarnation.
    Mistrust(u64, u64),
    /// Replaces a damaged disk once all regions can lose it.
    Exchange(u64),
    /// Heals the network.
    Network,
    /// Cuts the power of a node for a moment.
    Cut(u64),
    /// Isolates a node for a while.
    Isolate(u64),
    /// Restarts all nodes except a leader and one that does not receive its messages.
    Forget(u64, u64),
    /// Blocks messages of a store to its followers in a region.
    Mute(u64, RegionId),
    /// Orders a merge of a region if the store still leads it.
    Merge(u64, RegionId),
    /// Orders to commit a merge: source, target.
    CommitMerge(RegionId, RegionId),
    /// Restores the speed of a store's disk.
    Speed(u64),
    /// Restores the capacity of a store's disk.
    Space(u64),
    /// Clears the faults of a store's disk.
    Room(u64),
    /// Ends the time in which a store's device is slow.
    Fast(u64),
    /// Makes fast devices slow and slow ones fast.
    Flip,
    /// A fault of directories.
    Directories,
    /// The operator says that a node's directories were moved, if they wait for that.
    SayMoved(u64),
    /// Ends the runs of copied directories.
    EndCopies,
}

/// State of the nemesis.
pub struct Nemesis {
    /// Target states of stores.
    pub goals: Vec<(StoreId, DrainGoal)>,
    drained: Vec<StoreId>,
    prng: Prng,
    faults: Vec<Fault>,
    calm_nanos: u64,
    is_active: bool,
    hostile_until: u64,
    /// Blocked messages by region, sender and receiver, with the end of the time.
    blocked: BTreeMap<(RegionId, u64, u64), u64>,
    /// Commit index that a receiver may learn, by region, sender and receiver, with the end of the
    /// time.
    withheld: BTreeMap<(RegionId, u64, u64), (LogIndex, u64)>,
    deposed_until: u64,
    /// Lost reports by node, with the end of the time.
    lost_reports: BTreeMap<u64, u64>,
    /// Node that gets rejections of lost elections, and the end of the time.
    stale_rejection: Option<(u64, u64)>,
    flips: u64,
}

impl Nemesis {
    /// Creates the nemesis of a plan.
    pub fn new(plan: &Plan) -> Self {
        let faults: FaultSet = plan.faults;
        Self {
            goals: Vec::new(),
            drained: Vec::new(),
            prng: fork(plan.seed, "nemesis"),
            faults: faults.iter().filter(|fault| !fault.is_permanent()).collect(),
            calm_nanos: plan.calm_nanos,
            is_active: false,
            hostile_until: 0,
            blocked: BTreeMap::new(),
            withheld: BTreeMap::new(),
            deposed_until: 0,
            lost_reports: BTreeMap::new(),
            stale_rejection: None,
            flips: 0,
        }
    }

    /// Draws the downtime of a node.
    pub fn down_nanos(&mut self) -> u64 {
        let millis_max = if self.prng.below(6) == 0 { 9_000 } else { 1_500 };
        (20 + self.prng.below(millis_max)) * MS
    }

    /// Blocks messages of a region from one store to another.
    pub fn block_messages(&mut self, way: (RegionId, u64, u64), until: u64) {
        self.blocked.insert(way, until);
    }

    /// Returns how often the speeds of all devices flipped.
    pub fn flips(&self) -> u64 {
        self.flips
    }

    /// Returns true if there are faults now.
    pub fn is_active(&self) -> bool {
        self.is_active
    }

    /// Returns true if such messages are blocked now.
    pub fn is_blocked(&self, way: (RegionId, u64, u64), now: u64) -> bool {
        self.is_active && self.blocked.get(&way).is_some_and(|until| now < *until)
    }

    /// Returns true if administrators give wrong orders.
    pub fn makes_mistakes(&self) -> bool {
        self.is_active && self.faults.contains(&Fault::Mistake)
    }

    /// Draws whether a forged message follows one that is sent now.
    fn forges(&mut self, now: u64) -> bool {
        now < self.hostile_until && self.prng.below(3) == 0
    }
}

impl World {
    /// Starts the faults.
    pub fn start_faults(&mut self) {
        self.nemesis.is_active = true;
        self.start_hardware();
        self.start_directories();
        self.slow_maintenance();
        self.after(0, Happening::Nemesis);
    }

    /// Draws whether a forged message follows this one. In a helix, repair replies are forged.
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
        // Half of the seeds prefer one kind.
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
            Fault::ClockStop => self.stop_a_clock(),
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
                self.leave(id, pause, true);
            }
            Fault::PlacementCut => {
                self.net.is_group_cut = true;
                self.trace.note(self.now, 0, 0, || "the placement group is unreachable".into());
                self.undo_later(Undo::Network, 6_000);
            }
            Fault::Hostile => {
                let nanos = (100 + self.nemesis.prng.below(1_500)) * MS;
                self.nemesis.hostile_until = self.now + nanos;
                self.trace
                    .note(self.now, 0, 0, || format!("forged messages for {} ms", nanos / MS));
            }
            Fault::StoreHangs | Fault::StoreFails | Fault::Unreadable => {
                self.trouble_store(fault);
            }
            _ if fault.is_of_hardware() => self.trouble_hardware(fault),
            _ => self.trouble_disk(fault),
        }
    }

    fn any_slot(&mut self) -> Option<u64> {
        let slots = self.serving_homes();
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
            Undo::RestartStore(slot, incarnation) => self.restart_store(slot, incarnation),
            Undo::Isolate(node) => self.isolate(node),
            Undo::Forget(leader, other) => self.forget_leader(leader, other),
            Undo::Mute(slot, region) => self.mute(slot, region),
            Undo::Merge(slot, region) => self.merge_now(slot, region),
            Undo::CommitMerge(source, target) => self.commit_merge(source, target),
            Undo::Cut(node) => self.cut_power(node),
            Undo::Mistrust(slot, incarnation) => self.mistrust(slot, incarnation),
            Undo::Exchange(slot) => self.exchange_damaged_disk(slot),
            Undo::Network => {
                self.trace.note(self.now, 0, 0, || "the network heals".into());
                self.net.heal();
            }
            Undo::Speed(slot) => {
                if let Some(slot) = self.slots.get_mut(&slot) {
                    slot.append_nanos = SOUND_APPEND_NANOS;
                }
            }
            Undo::Space(slot) => self.restore_capacity(slot),
            Undo::Fast(slot) => self.end_slowness(slot),
            Undo::Flip => self.flip_speeds(),
            Undo::Directories => self.trouble_directories(),
            Undo::SayMoved(node) => self.say_moved(node),
            Undo::EndCopies => self.end_copies(),
            Undo::Room(slot) => {
                if let Some(slot) = self.slots.get(&slot) {
                    slot.disk.clear_faults();
                }
            }
        }
    }

    /// Reopens a damaged disk in half of the cases, which may find the damage, and replaces it.
    /// Waits until every region can lose it: a member that was down may lack regions that were
    /// split off meanwhile.
    fn exchange_damaged_disk(&mut self, number: u64) {
        let slot = self.slots.get(&number).filter(|slot| !slot.is_gone);
        let Some(node) = slot.map(|slot| slot.node) else { return };
        if !self.is_dispensable(number) {
            return self.after(CHECK_NANOS, Happening::Undo(Undo::Exchange(number)));
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

    /// Ends all faults permanently.
    pub fn heal(&mut self) {
        self.nemesis.is_active = false;
        self.nemesis.hostile_until = 0;
        self.nemesis.withheld.clear();
        self.leaving.clear();
        self.trace.note(self.now, 0, 0, || "everything heals".into());
        self.net.heal();
        self.end_copies();
        for slot in self.slots.keys().copied().collect::<Vec<_>>() {
            self.restore_capacity(slot);
            self.end_stall(slot);
            self.end_hang(slot);
            self.end_slowness(slot);
            let Some(it) = self.slots.get_mut(&slot) else { continue };
            it.append_nanos = SOUND_APPEND_NANOS;
            it.maintenance_factor = 1;
            it.disk.clear_faults();
            it.disk.no_crash();
        }
        let now = self.now;
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.resume(id);
            if let Some(node) = self.nodes.get_mut(&id) {
                node.start_clock(now);
                node.set_rate(now, 1_000_000);
            }
            self.start_node(id);
            self.say_moved(id);
            self.restart_without_start(id);
        }
        // An operator replaces damaged disks: reads of damaged data fail until then.
        //
        // Invariant: no replacement is left for later. It would begin receptions of snapshots while the
        // invariants of a settled cluster are checked.
        self.disks_to_replace().into_iter().for_each(|slot| self.exchange_damaged_disk(slot));
        self.nemesis.goals.retain(|(_, goal)| *goal != DrainGoal::Drain);
        let drained = std::mem::take(&mut self.nemesis.drained);
        let cancels = drained.into_iter().map(|id| (id, DrainGoal::Cancel));
        self.nemesis.goals.extend(cancels);
    }
}
