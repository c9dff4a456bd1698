//! Checks of placement without faults: moves end, leaders leave a device that becomes slow, and a store
//! that was slow counts as fast again, also without writes.

use crate::nemesis::SLOWER;
use crate::plan::{MS, SECOND};
use crate::world::World;
use std::collections::BTreeSet;
use stele_placement::schedule::explain::explain;
use stele_placement::{
    ClusterView, LeaderState, Millis, SpeedClass, SpeedState, Store, StoreState,
};
use stele_replica::RegionReport;
use stele_types::{PeerRole, RegionId, RegionKind, StoreId};

/// Time without a move after which moves have ended. It is longer than the minute after which a region
/// may move again, and than the time after which a store counts as fast again.
const QUIET_NANOS: u64 = 70 * SECOND;
/// Limit for moves to end: of stores that were slow, a class rises after a minute, then data follows.
const END_NANOS: u64 = 400 * SECOND;
/// Time in which stores measure their devices before one becomes slow: a class that fell while there
/// were faults rises after a minute of writes.
const MEASURE_NANOS: u64 = 75 * SECOND;
/// Bound of a client's pause meanwhile. A store measures its device with eight writes in ten seconds.
const PAUSE_NANOS_MAX: u64 = 200 * MS;
/// Time for which the device is slow before its leaders must be gone, and limit after it.
const SLOW_NANOS: u64 = 10 * SECOND;
const LEAVE_NANOS: u64 = 5 * SECOND;
/// Limit for a store that receives snapshots meanwhile, or did while its device was slow already. It counts as up to
/// four classes faster, so that its leaders are not evicted: they move when a minute has passed since the last
/// move of their region.
const LEAVE_RECEIVING_NANOS: u64 = 65 * SECOND;
/// Limit after which a store without clients counts as fast again. The moves that follow a slow device end
/// within their own limit; until then each of their writes postpones a measurement. Without writes the store
/// measures its device once a minute, and a class rises after a minute.
const IDLE_NANOS: u64 = END_NANOS + 200 * SECOND;
/// Classes by which measured writes of another size may differ from the device.
const MEASURED_CLASSES: u8 = 2;
/// Classes by which an idle store may stay below what it measures: a measurement on demand raises a class
/// only by two or more.
const HELD_CLASSES: u8 = 1;
/// Factor by which a store must be faster to be a better leader beyond doubt. The placement group acts
/// at once from four, by classes of measured speeds, each rounded down by up to √2.
const FASTER_TIMES: u64 = 6;
/// Classes between a store and a faster one from which the placement group acts at once: a factor 4.
const FASTER_CLASSES: u8 = 4;
/// Bytes of the operations of which speeds are compared.
const OP_BYTES: u64 = 16 << 10;
/// Number of the first mode of placement that follows speeds, and of those.
const FIRST_LED_MODE: u64 = 1;
const LED_MODES: u64 = 3;

impl World {
    /// Checks the placement of a cluster without faults, in a run with lasting speeds of devices.
    pub(crate) fn check_placement(&mut self) {
        let may_act = |world: &Self| world.violation.is_none() && world.counts.overspent == 0;
        if !self.plan.faults.has_of_hardware() || !may_act(self) {
            return;
        }
        self.change_setting("placement_mode", FIRST_LED_MODE + self.plan.seed % LED_MODES);
        let has_ended = |world: &mut Self| world.now - world.checks.moves.last >= QUIET_NANOS;
        if !self.run_until(END_NANOS, has_ended) {
            let (seconds, state) = (END_NANOS / SECOND, self.describe());
            return self.fail(format!("moves do not end within {seconds} s:{state}"));
        }
        self.clients.set_pause_max(PAUSE_NANOS_MAX);
        self.start_clients(u64::from(u32::MAX));
        self.run(MEASURE_NANOS);
        let slow = self.leading_slot_of_most();
        if let Some(number) = slow {
            self.check_slow_device(number);
        }
        self.clients.stop();
        self.run_until(60 * SECOND, |world| !world.clients.is_busy());
        if let Some(number) = slow.filter(|_| self.violation.is_none()) {
            self.check_idle_device(number);
        }
    }

    /// Checks that a store that was slow, and to which no client writes since, counts as fast as its
    /// device is.
    fn check_idle_device(&mut self, number: u64) {
        let is_fast = |world: &mut Self| world.idle_below(number).is_none();
        if self.run_until(IDLE_NANOS, is_fast) {
            return;
        }
        if let Some((speed, wanted)) = self.idle_below(number) {
            let text = self.describe();
            self.fail(format!(
                "store {number} is idle with a fast device, and stays slow: class {} of {wanted}, \
                 {speed:?}:{text}",
                speed.class.0
            ));
        }
    }

    /// Returns the speed of a store and the class that its device has at least, if the store counts as
    /// slower.
    fn idle_below(&self, number: u64) -> Option<(SpeedState, u8)> {
        let slot = self.slots.get(&number).filter(|slot| slot.is_running())?;
        let slower = slot.device.write_nanos(OP_BYTES).max(slot.device.probed_nanos(OP_BYTES));
        let SpeedClass(device) = SpeedClass::of(SECOND / slower.max(1));
        let wanted = device.saturating_sub(MEASURED_CLASSES + HELD_CLASSES);
        let state = self.nodes.values().find_map(|node| node.member.leader_state())?;
        let speed = state.cluster.speed(slot.id?).copied()?;
        (speed.class.0 < wanted).then_some((speed, wanted))
    }

    /// Makes a device slow, and checks that its store soon leads no region that has a better leader.
    fn check_slow_device(&mut self, number: u64) {
        self.trace.note(self.now, 0, number, || "its device becomes slow for the check".into());
        if let Some(slot) = self.slots.get_mut(&number) {
            slot.device.slow_down(SLOWER);
        }
        self.run(SLOW_NANOS);
        let was_receiving = self.is_receiving(number);
        let has_left = |world: &mut Self| world.led_too_slowly(number).is_empty();
        let left = self.run_until(LEAVE_NANOS, has_left)
            || (was_receiving || self.is_receiving(number))
                && self.run_until(LEAVE_RECEIVING_NANOS, has_left);
        let regions = self.led_too_slowly(number);
        let reasons = self.explained(&regions);
        if let Some(slot) = self.slots.get_mut(&number) {
            slot.device.slow_down(1);
        }
        if !left {
            let state = self.describe();
            self.fail(format!(
                "store {number} with a slow device leads regions for which there are faster \
                 leaders:{reasons}{state}"
            ));
        }
    }

    fn is_receiving(&self, number: u64) -> bool {
        let mut states = self.nodes.values().filter_map(|node| {
            let now = Millis(node.local(self.now) / MS);
            node.member.leader_state().map(|state| (state, now))
        });
        let store = self.slots.get(&number).and_then(|slot| slot.id);
        states.next().zip(store).is_some_and(|((state, now), store)| {
            let speed = state.cluster.speed(store);
            speed.is_some_and(|speed| speed.counts_as_receiving(false, now))
        })
    }

    /// Returns why regions are led where they are, as the placement group explains it.
    fn explained(&self, regions: &[RegionId]) -> String {
        let leaders = self.nodes.values().filter_map(|node| {
            let now = Millis(node.local(self.now) / MS);
            node.member.leader_state().map(|state| (state, now))
        });
        let mut text = String::new();
        for (LeaderState { cluster, operators, .. }, now) in leaders {
            let view = ClusterView { cluster, operators, now };
            for found in regions.iter().filter_map(|region| explain(&view, *region)) {
                text += &format!("\n  region {}: {:?}", found.region, found.operator);
                for member in found.members {
                    text += &format!("\n    {}", member.leader);
                }
            }
            for store in cluster.stores() {
                let (id, device) = (store.id, store.report.device);
                text += &format!("\n  store {id}: {:?}, {device:?}", cluster.speed(id));
            }
        }
        text
    }

    /// Returns the store that leads the most regions of user data, of those that measure their
    /// devices.
    fn leading_slot_of_most(&mut self) -> Option<u64> {
        let reports: Vec<_> = self.reports_by_region().into_values().flatten().collect();
        let state = self.nodes.values().find_map(|node| node.member.leader_state())?;
        let leads = |(slot, it): &&(u64, RegionReport)| {
            it.is_leading && it.region.kind == RegionKind::Data && self.measures(state, *slot)
        };
        let leading: Vec<u64> = reports.iter().filter(leads).map(|(slot, _)| *slot).collect();
        let count = |slot: &u64| leading.iter().filter(|it| *it == slot).count();
        leading.iter().max_by_key(|slot| (count(slot), **slot)).copied()
    }

    /// Returns whether the store of a slot has reported enough writes of the last seconds. The speed of a
    /// device without writes is not known.
    fn measures(&self, state: &LeaderState, slot: u64) -> bool {
        let store = self.slots.get(&slot).and_then(|slot| slot.id);
        let store = store.and_then(|store| state.cluster.store(store));
        store.is_some_and(|store| store.report.device.writes > 0)
    }

    /// Returns the regions of user data that a store leads although one of their voters has caught up
    /// on a store that takes leaders and is known to be faster. Of a store without writes it returns
    /// none.
    fn led_too_slowly(&mut self, number: u64) -> Vec<RegionId> {
        let reports = self.reports_by_region();
        let slow_nanos = self.op_nanos(number);
        let faster: BTreeSet<u64> = self.serving().into_iter().collect();
        let faster: BTreeSet<u64> = faster
            .into_iter()
            .filter(|it| self.op_nanos(*it) * FASTER_TIMES <= slow_nanos)
            .collect();
        let SpeedClass(slow_class) = SpeedClass::of(SECOND / slow_nanos.max(1));
        let class_min = SpeedClass(slow_class + FASTER_CLASSES);
        let Some(state) = self.nodes.values().find_map(|node| node.member.leader_state()) else {
            return Vec::new();
        };
        if !self.measures(state, number) {
            return Vec::new();
        }
        let led = reports.values().filter_map(|reports| {
            let (_, led) = reports.iter().find(|(slot, it)| *slot == number && it.is_leading)?;
            let is_better = |(slot, it): &&(u64, RegionReport)| {
                let store = self.slots.get(slot).and_then(|slot| slot.id);
                faster.contains(slot)
                    && it.last >= led.committed
                    && it.peer.role == PeerRole::Voter
                    && !led.pending_peers.iter().any(|peer| peer.id == it.peer.id)
                    && store.is_some_and(|store| takes_leaders(state, store, class_min))
            };
            let is_data = led.region.kind == RegionKind::Data;
            (is_data && reports.iter().any(|it| is_better(&it))).then_some(led.region.id)
        });
        led.collect()
    }

    fn op_nanos(&self, number: u64) -> u64 {
        self.slots.get(&number).map_or(0, |slot| slot.device.write_nanos(OP_BYTES))
    }
}

/// Returns whether a store takes leaders and is known to be of at least that class. Its class may be
/// lower than its speed for a minute after a fault.
fn takes_leaders(state: &LeaderState, store: StoreId, class_min: SpeedClass) -> bool {
    let takes = |it: &Store| it.state == StoreState::Up && !it.report.is_full;
    state.cluster.store(store).is_some_and(takes) && state.cluster.class_of(store) >= class_min
}
