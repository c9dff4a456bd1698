//! Admission by free space: garbage collection needs space to free any.

use super::{Replay, Store};
use stele_types::lock::{Mutex, rank};
use stele_types::{Command, Error, LogBatch, Op, Record, Result, mutant};

/// Known free space.
#[derive(Debug, Default)]
pub(crate) struct Space {
    /// Bytes that may be written before the device's free space is read again.
    room_bytes: Mutex<u64, { rank::ROOM }>,
}

impl Store {
    /// Fails with `NoSpace` if `bytes` more would use the reserve of garbage collection.
    pub(super) fn admit_bytes(&self, bytes: u64) -> Result<()> {
        if self.take_room(bytes)? || mutant::active("engine.admit_always") {
            return Ok(());
        }
        Err(Error::NoSpace(self.shared.dir.clone()))
    }

    /// Fails with `NoSpace` for a batch that would use the reserve of a store without replicas. A
    /// batch of deletes alone passes, because deletes free space. With consensus, committed entries
    /// must be appended while the device has space; there [`Store::admit_bytes`] refuses puts when
    /// proposed.
    pub(super) fn check_space(&self, batch: &LogBatch) -> Result<()> {
        let is_refused = !self.take_room(batch_bytes(batch))?
            && (self.shared.replay == Replay::All || mutant::active("engine.append_refused"))
            && !only_frees(batch);
        if is_refused { Err(Error::NoSpace(self.shared.dir.clone())) } else { Ok(()) }
    }

    /// Takes `bytes` from the space above the reserve; returns false if that is too little.
    fn take_room(&self, bytes: u64) -> Result<bool> {
        let reserved = self.shared.options.reserved_bytes;
        if reserved == 0 {
            return Ok(true);
        }
        let mut room_bytes = self.shared.space.room_bytes.lock();
        if *room_bytes < bytes {
            let free = self.shared.vfs.free_bytes(&self.shared.dir)?;
            self.gc.set_short_of_space(free < reserved.saturating_mul(2));
            let room = free.saturating_sub(reserved);
            if room < bytes {
                *room_bytes = 0;
                return Ok(false);
            }
            // Read again soon: sidecars, runs and garbage collection take space too.
            *room_bytes = room.min(reserved / 2).max(bytes);
        }
        *room_bytes -= bytes;
        Ok(true)
    }
}

fn batch_bytes(batch: &LogBatch) -> u64 {
    batch
        .records
        .iter()
        .map(|r| if let Record::Entry(e) = r { e.payload.len() as u64 } else { 0 })
        .sum()
}

fn only_frees(batch: &LogBatch) -> bool {
    batch.records.iter().all(|record| match record {
        Record::Entry(entry) if entry.is_command => Command::parse(entry.payload.clone())
            .is_ok_and(|command| command.ops().all(|op| !matches!(op, Op::Put { .. }))),
        _ => true,
    })
}
