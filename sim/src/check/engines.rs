//! Checks that the index agrees with the log: every reference leads to its value, and every
//! checksum matches.

use crate::world::{Slot, World};
use stele_engine::{Opened, VerifyEvent};

impl World {
    /// Checks a store that opened. A power cut leaves a valid index: it may be rebuilt only if the
    /// disk was damaged.
    pub(crate) fn check_rebuilt(&mut self, number: u64, opened: &Opened) {
        let Some(slot) = self.slots.get(&number) else { return };
        let is_damaged = slot.is_damaged || slot.may_not_open || slot.has_lied;
        if let Some(reason) = opened.rebuilt.as_ref().filter(|_| !is_damaged) {
            self.fail(format!("store {number} rebuilds its index: {reason}"));
        }
    }

    pub(super) fn check_engine(&mut self, number: u64) {
        let excused = self.slots.get(&number).is_none_or(Slot::may_fail_reads);
        let Some(engine) = self.engine(number).filter(|_| !excused) else { return };
        let mut damages = Vec::new();
        let found = engine.verify(&mut |event| {
            if let VerifyEvent::Damage { path, detail } = event {
                damages.push(format!("{}: {detail}", path.display()));
            }
        });
        match found {
            Ok(_) if damages.is_empty() => {}
            Ok(_) => self.fail(format!("store {number} is damaged: {}", damages.join("; "))),
            Err(error) => self.fail(format!("store {number} cannot be verified: {error}")),
        }
    }
}
