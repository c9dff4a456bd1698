//! Lookups for modifications, beside a store's loop: the key is read early or late, and the result
//! arrives after a delay.

use super::{Happening, World};
use crate::plan::MS;
use stele_engine::Store as Engine;
use stele_replica::{Input, Lookup};
use stele_storage::{EngineView, Pair, StateMachine};
use stele_types::{ColumnFamily, Result};

const READ_NANOS: u64 = 20_000;
/// Bytes of a read.
const VALUE_BYTES: u64 = 4 << 10;

impl World {
    /// Starts a lookup: mostly as long as a read of the device, sometimes long enough for an election
    /// or a split.
    pub(super) fn begin_lookup(&mut self, number: u64, lookup: Lookup) {
        let Some(slot) = self.slots.get(&number) else { return };
        let incarnation = slot.incarnation;
        let prng = &mut self.rngs.lookups;
        let nanos = READ_NANOS
            + slot.device.read_nanos(VALUE_BYTES)
            + match prng.below(20) {
                0 => prng.below(6_000) * MS,
                1..4 => prng.below(50) * MS,
                _ => prng.below(300_000),
            };
        let is_early = prng.coin();
        let found = slot.engine().filter(|_| is_early).map(|engine| look_up(engine, &lookup));
        self.after(nanos, Happening::Lookup { slot: number, incarnation, lookup, found });
    }

    /// Ends a lookup; a stalled disk delays it.
    pub(super) fn looked_up(
        &mut self,
        number: u64,
        incarnation: u64,
        lookup: Lookup,
        found: Option<Result<Option<Pair>>>,
    ) {
        let Some(slot) = self.slots.get(&number).filter(|it| it.incarnation == incarnation) else {
            return;
        };
        let stall_nanos = slot.stalled_until.saturating_sub(self.now);
        if stall_nanos > 0 && found.is_none() {
            let happening = Happening::Lookup { slot: number, incarnation, lookup, found };
            return self.after(stall_nanos, happening);
        }
        let Some(engine) = slot.engine() else { return };
        let result = found.unwrap_or_else(|| look_up(engine, &lookup));
        if let Some(times) = slot.device.times() {
            let began = self.now - slot.device.read_nanos(VALUE_BYTES).min(self.now);
            times.note_read(began, self.now, VALUE_BYTES);
        }
        self.counts.lookups += 1;
        let is_of_program = lookup.key.first() == Some(&ColumnFamily::Redis.space());
        self.counts.program_lookups += u64::from(is_of_program);
        self.push(number, Input::Found { lookup, result });
    }
}

fn look_up(engine: &Engine, lookup: &Lookup) -> Result<Option<Pair>> {
    engine.view()?.get(&lookup.key)
}
