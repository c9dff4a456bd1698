//! Devices that become slow for long, speeds that flip, small devices, and changes of the mode of
//! placement; and maintenance that is slow.

use super::Undo;
use crate::faults::Fault;
use crate::hardware::{FLIP_SECONDS, MODES};
use crate::plan::{MS, SECOND, fork, pick};
use crate::world::{Happening, World};

/// Factor of a device that became slow.
pub const SLOWER: u64 = 10;
const SLOW_MILLIS_MIN: u64 = 10_000;

impl World {
    /// Starts what lasts while there are faults: small devices, and speeds that flip.
    pub(super) fn start_hardware(&mut self) {
        if self.plan.faults.has(Fault::SmallDevice) {
            for slot in self.slots.keys().copied().collect::<Vec<_>>() {
                self.restore_capacity(slot);
            }
        }
        if self.plan.faults.has(Fault::SpeedFlip) {
            self.after(FLIP_SECONDS * SECOND, Happening::Undo(Undo::Flip));
        }
    }

    /// Makes the maintenance of one store slow while there are faults.
    pub(super) fn slow_maintenance(&mut self) {
        if !self.plan.faults.has(Fault::SlowMaintenance) {
            return;
        }
        let prng = &mut fork(self.plan.seed, "slow store");
        let numbers: Vec<u64> = self.slots.keys().copied().collect();
        let (number, factor) = (pick(prng, &numbers), pick(prng, &[10, 30, 100]));
        if let Some(slot) = self.slots.get_mut(&number) {
            slot.maintenance_factor = factor;
        }
    }

    pub(super) fn trouble_hardware(&mut self, fault: Fault) {
        match fault {
            Fault::SlowDevice => self.slow_a_device(),
            Fault::ModeChange => {
                let mode = self.nemesis.prng.below(MODES);
                self.trace.note(self.now, 0, 0, || format!("placement mode {mode}"));
                self.change_setting("placement_mode", mode);
            }
            // A permanent fault needs no further act.
            _ => {}
        }
    }

    /// Makes a device slow, in half of the cases that of a leader: for ten seconds or more, or until
    /// the faults end.
    fn slow_a_device(&mut self) {
        let leading = match self.nemesis.prng.coin() {
            true => self.leading_slot_of_data(),
            false => None,
        };
        let Some(number) = leading.or_else(|| self.any_slot()) else { return };
        let node = self.node_with(number);
        self.trace.note(self.now, node, number, || "its device becomes slow".into());
        if let Some(slot) = self.slots.get_mut(&number) {
            slot.device.slow_down(SLOWER);
        }
        let millis = SLOW_MILLIS_MIN + self.nemesis.prng.below(3 * SLOW_MILLIS_MIN);
        self.after(millis * MS, Happening::Undo(Undo::Fast(number)));
    }

    pub(super) fn end_slowness(&mut self, number: u64) {
        if let Some(slot) = self.slots.get_mut(&number) {
            slot.device.slow_down(1);
        }
    }

    pub(super) fn flip_speeds(&mut self) {
        if !self.nemesis.is_active {
            return;
        }
        self.nemesis.flips += 1;
        self.trace.note(self.now, 0, 0, || "the speeds of all devices flip".into());
        self.set_profiles(self.nemesis.flips);
        self.after(FLIP_SECONDS * SECOND, Happening::Undo(Undo::Flip));
    }
}
