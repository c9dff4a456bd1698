//! The index agrees with the log: every reference leads to its value, every checksum holds.

use crate::world::World;
use stele_engine::{Opened, VerifyEvent};

impl World {
    /// A store opened. What a power cut leaves of an index is an index: it is made again from what else
    /// is there only where the disk was damaged.
    pub(crate) fn check_rebuilt(&mut self, number: u64, opened: &Opened) {
        let Some(slot) = self.slots.get(&number) else { return };
        let is_damaged = slot.is_damaged || slot.may_not_open || slot.has_lied;
        if let Some(why) = opened.rebuilt.as_ref().filter(|_| !is_damaged) {
            self.fail(format!("store {number} makes its index again: {why}"));
        }
    }

    pub(super) fn check_engine(&mut self, number: u64) {
        let excused = self.slots.get(&number).is_none_or(|it| it.is_damaged || it.is_troubled);
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
            Err(error) => self.fail(format!("store {number} can't be verified: {error}")),
        }
    }
}
