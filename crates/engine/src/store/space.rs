//! Admission by free space: garbage collection needs space to free any.

use super::{Replay, Store};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use stele_storage::Space;
use stele_types::lock::{Mutex, rank};
use stele_types::{Clock, Command, Error, LogBatch, Op, Record, Result, mutant};

/// Time for which a reading of the device's free space is fresh.
const FRESH_NANOS: u64 = 250_000_000;
/// Room below which the store counts as full although no put was refused.
const LEAST_ROOM_BYTES: u64 = 4 << 10;

/// Known free space.
#[derive(Debug)]
pub(crate) struct SpaceState {
    clock: Arc<dyn Clock>,
    room: Mutex<Room, { rank::ROOM }>,
    /// Garbage collection waits for the logs of regions to be truncated.
    pub truncation_requested: AtomicBool,
}

/// The last reading of the device.
#[derive(Debug, Default)]
struct Room {
    /// Bytes that may be written before the device's free space is read again.
    granted_bytes: u64,
    /// Bytes above the reserve at the last reading, less what was granted and taken since.
    left_bytes: u64,
    free_bytes: u64,
    read_at_nanos: Option<u64>,
    is_short: bool,
    /// The smallest put that was refused and would be refused again; 0 for none.
    refused_bytes: u64,
}

impl SpaceState {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, room: Mutex::default(), truncation_requested: AtomicBool::new(false) }
    }
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

    /// Returns whether `bytes` more leave the reserve untouched. Takes nothing.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        if self.shared.options.reserved_bytes == 0 {
            return true;
        }
        let mut room = self.shared.space.room.lock();
        // Without a reading the device decides.
        room.left_bytes >= bytes || self.read_room(&mut room).is_err() || room.left_bytes >= bytes
    }

    /// Returns the space of the device; reads it again when the last reading is old.
    pub(super) fn read_space(&self) -> Space {
        let mut room = self.shared.space.room.lock();
        let now_nanos = self.shared.space.clock.monotonic_nanos();
        let is_fresh = |at: u64| now_nanos.saturating_sub(at) < FRESH_NANOS;
        if !room.read_at_nanos.is_some_and(is_fresh) {
            // The last reading stays.
            let _ = self.read_room(&mut room);
        }
        let reserve_bytes = self.shared.options.reserved_bytes;
        Space {
            free_bytes: room.free_bytes,
            reserve_bytes,
            is_reserve_allocated: false,
            is_short: room.is_short,
            is_full: reserve_bytes > 0
                && room.left_bytes < room.refused_bytes.max(LEAST_ROOM_BYTES),
        }
    }

    /// Takes `bytes` from the space above the reserve; returns false if that is too little.
    fn take_room(&self, bytes: u64) -> Result<bool> {
        let reserved = self.shared.options.reserved_bytes;
        if reserved == 0 {
            return Ok(true);
        }
        let mut room = self.shared.space.room.lock();
        if room.granted_bytes < bytes {
            self.read_room(&mut room)?;
            if room.left_bytes < bytes {
                room.granted_bytes = 0;
                room.refused_bytes = match room.refused_bytes {
                    0 => bytes,
                    refused => refused.min(bytes),
                };
                return Ok(false);
            }
            // Read again soon: sidecars, runs and garbage collection take space too.
            room.granted_bytes = room.left_bytes.min(reserved / 2).max(bytes);
        }
        room.granted_bytes -= bytes;
        room.left_bytes = room.left_bytes.saturating_sub(bytes);
        Ok(true)
    }

    /// Reads the free space of the device.
    fn read_room(&self, room: &mut Room) -> Result<()> {
        let reserved = self.shared.options.reserved_bytes;
        let free = self.shared.vfs.free_bytes(&self.shared.dir)?;
        room.free_bytes = free;
        room.left_bytes = free.saturating_sub(reserved);
        room.read_at_nanos = Some(self.shared.space.clock.monotonic_nanos());
        // Invariant: a store stops to be short with more room than it becomes short with.
        let short_bytes = if room.is_short { reserved + reserved / 2 } else { reserved };
        room.is_short = room.left_bytes < short_bytes;
        if room.left_bytes >= room.refused_bytes {
            room.refused_bytes = 0;
        }
        self.gc.set_short_of_space(room.is_short);
        Ok(())
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
