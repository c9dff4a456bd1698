//! The index agrees with the log: every reference leads to its value, every checksum holds.

use crate::world::World;
use stele_engine::VerifyEvent;

impl World {
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
