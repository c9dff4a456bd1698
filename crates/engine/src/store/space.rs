//! Admission by free space: garbage collection needs space to free any.

use super::reserve::{self, Reserve, ReserveSize};
use super::{Replay, Shared, Store};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stele_storage::Space;
use stele_types::lock::{Mutex, MutexGuard, rank};
use stele_types::{Clock, Command, Error, LogBatch, Op, Record, Result};

/// Time for which a reading of the device's free space is fresh.
const FRESH_NANOS: u64 = 250_000_000;
/// Room below which the store counts as full although no put was refused.
const LEAST_ROOM_BYTES: u64 = 4 << 10;
/// Largest part of the device that the reserve takes because jobs need much.
const RESERVE_OF_DEVICE: u64 = 4;
/// Part of the reserve that may be missing before it is filled again.
const LITTLE_OF_RESERVE: u64 = 16;
/// Part of the reserve that jobs leave for deletes: without deletes nothing could be freed.
const DELETES_OF_RESERVE: u64 = 8;
/// Bytes that an append or a small job may write besides its own: a segment's begin, a manifest edit
/// with its repetition, a sidecar, tombstones.
const BESIDE_BYTES: u64 = 512 << 10;

#[derive(Debug)]
pub(crate) struct SpaceState {
    clock: Arc<dyn Clock>,
    size: ReserveSize,
    room: Mutex<Room, { rank::ROOM }>,
    /// Garbage collection waits for the logs of regions to be truncated.
    truncation_requested: AtomicBool,
    is_short: AtomicBool,
    /// Bytes that one job of garbage collection may have to write.
    job_bytes: AtomicU64,
    /// The room as the last holder of its lock left it: the loop reads it each turn without the lock.
    seen: Seen,
}

/// What [`Store::read_space`] returns while it is fresh. The numbers are for admission and reports, so
/// that one may be a moment older than the other.
#[derive(Debug)]
struct Seen {
    /// Time of the reading; `u64::MAX` for none.
    read_at_nanos: AtomicU64,
    free_bytes: AtomicU64,
    reserve_bytes: AtomicU64,
    is_reserve_allocated: AtomicBool,
    is_full: AtomicBool,
}

/// The locked room. What readers see of it follows when it is dropped.
struct LockedRoom<'a> {
    space: &'a SpaceState,
    room: MutexGuard<'a, Room, { rank::ROOM }>,
}

impl Deref for LockedRoom<'_> {
    type Target = Room;

    fn deref(&self) -> &Room {
        &self.room
    }
}

impl DerefMut for LockedRoom<'_> {
    fn deref_mut(&mut self) -> &mut Room {
        &mut self.room
    }
}

impl Drop for LockedRoom<'_> {
    fn drop(&mut self) {
        let (room, seen) = (&self.room, &self.space.seen);
        let held = room.reserve.held_bytes();
        let is_allocated = held > 0 && held >= room.reserve_bytes / LITTLE_OF_RESERVE * 15;
        let least_bytes = room.refused_bytes.max(LEAST_ROOM_BYTES);
        let is_full = self.space.size.is_limited() && room.left_bytes < least_bytes;
        seen.free_bytes.store(room.free_bytes, Ordering::Relaxed);
        seen.reserve_bytes.store(room.reserve_bytes, Ordering::Relaxed);
        seen.is_reserve_allocated.store(is_allocated, Ordering::Relaxed);
        seen.is_full.store(is_full, Ordering::Relaxed);
        seen.read_at_nanos.store(room.read_at_nanos.unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Room {
    reserve: Reserve,
    /// Bytes of the store's files at the last reading.
    data_bytes: u64,
    /// Bytes that may be written before the device's free space is read again.
    granted_bytes: u64,
    /// Bytes that may be appended beside the reserve at the last reading, less what was taken since.
    left_bytes: u64,
    /// Free bytes of the device at the last reading, with those that the reserve holds.
    free_bytes: u64,
    reserve_bytes: u64,
    read_at_nanos: Option<u64>,
    /// The smallest put that was refused and would be refused again; 0 for none.
    refused_bytes: u64,
}

impl SpaceState {
    pub(crate) fn new(clock: Arc<dyn Clock>, reserve: Reserve, size: ReserveSize) -> Self {
        let room = Room {
            reserve,
            data_bytes: 0,
            granted_bytes: 0,
            left_bytes: 0,
            free_bytes: 0,
            reserve_bytes: 0,
            read_at_nanos: None,
            refused_bytes: 0,
        };
        Self {
            clock,
            size,
            room: Mutex::new(room),
            truncation_requested: AtomicBool::new(false),
            is_short: AtomicBool::new(false),
            job_bytes: AtomicU64::new(0),
            seen: Seen {
                read_at_nanos: AtomicU64::new(u64::MAX),
                free_bytes: AtomicU64::new(0),
                reserve_bytes: AtomicU64::new(0),
                is_reserve_allocated: AtomicBool::new(false),
                is_full: AtomicBool::new(false),
            },
        }
    }

    fn lock_room(&self) -> LockedRoom<'_> {
        LockedRoom { space: self, room: self.room.lock() }
    }

    pub(crate) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    pub(crate) fn note_job_bytes(&self, bytes: u64) {
        self.job_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn request_truncation(&self) {
        self.truncation_requested.store(true, Ordering::Relaxed);
    }

    pub(crate) fn take_truncation_request(&self) -> bool {
        self.truncation_requested.swap(false, Ordering::Relaxed)
    }
}

impl Shared {
    /// Returns the bytes that the store may still write, the reserve included.
    pub(crate) fn writable_bytes(&self) -> Result<u64> {
        let room = self.space.lock_room();
        Ok(self.vfs.free_bytes(&self.dir)? + room.reserve.held_bytes())
    }

    /// Returns the bytes that jobs may write: all but what is kept for deletes, and as much again for
    /// what a job writes besides its outputs.
    pub(crate) fn job_room_bytes(&self) -> Result<u64> {
        let data_bytes = reserve::data_bytes(self);
        let mut room_bytes = self.writable_bytes()?;
        // Invariant: a job of a store that is short of space counts on the reserve alone. Puts may take
        // the rest meanwhile, and what does not end frees nothing.
        // bug engine.jobs_count_on_the_room_of_puts: never
        if self.space.is_short() {
            room_bytes = room_bytes.min(self.reserve_bytes(data_bytes)?);
        }
        Ok(room_bytes.saturating_sub(self.kept_for_deletes(data_bytes)))
    }

    fn kept_for_deletes(&self, data_bytes: u64) -> u64 {
        2 * self.space.size.for_data(data_bytes) / DELETES_OF_RESERVE
    }

    /// Makes room for `bytes` of an append out of the reserve, as far as the device lacks it.
    pub(crate) fn open_reserve(&self, bytes: u64) -> Result<()> {
        self.open_reserve_to(bytes, 0)
    }

    /// Makes room for a step of a job out of the reserve. A part stays for deletes.
    pub(crate) fn open_reserve_for_job(&self, bytes: u64) -> Result<()> {
        self.open_reserve_to(bytes, self.reserve_for_data() / DELETES_OF_RESERVE)
    }

    fn reserve_for_data(&self) -> u64 {
        self.space.size.for_data(reserve::data_bytes(self))
    }

    /// Invariant: what frees space gets the blocks that are held for it. No more are returned than
    /// the next write needs: another user of the device may take what is returned.
    fn open_reserve_to(&self, bytes: u64, kept_bytes: u64) -> Result<()> {
        let mut room = self.space.lock_room();
        let held = room.reserve.held_bytes();
        // bug engine.reserve_stays_shut: always
        if held <= kept_bytes {
            return Ok(());
        }
        let needed = bytes.saturating_add(BESIDE_BYTES);
        let lacking = needed.saturating_sub(self.vfs.free_bytes(&self.dir)?);
        room.reserve.shrink(held.saturating_sub(lacking).max(kept_bytes))
    }

    pub(crate) fn refill_reserve(&self) -> Result<()> {
        let mut room = self.space.lock_room();
        if self.options.reserved_bytes == 0 || !room.reserve.can_hold() {
            return Ok(());
        }
        let wanted = self.reserve_bytes(reserve::data_bytes(self))?;
        let held = room.reserve.held_bytes();
        if wanted < held / 2 {
            return room.reserve.shrink(wanted);
        }
        self.hold(&mut room, wanted)
    }

    /// Holds so many bytes, as far as the device has them.
    fn hold(&self, room: &mut Room, wanted: u64) -> Result<()> {
        let held = room.reserve.held_bytes();
        let missing = wanted.saturating_sub(held);
        let takes = missing.min(self.vfs.free_bytes(&self.dir)?);
        // Little is not worth a call.
        if takes <= wanted / LITTLE_OF_RESERVE { Ok(()) } else { room.reserve.grow(held + takes) }
    }

    /// Returns the bytes kept for what frees space in a store with so many bytes of files: as set, as
    /// far as there is data, or what the next job needs if that is more. What the flush of the
    /// memtables will write is kept besides.
    fn reserve_bytes(&self, data_bytes: u64) -> Result<u64> {
        let reserved = self.space.size.for_data(data_bytes);
        let unflushed = self.index.unflushed_bytes();
        let kept_bytes = self.kept_for_deletes(data_bytes);
        let job_bytes = self.space.job_bytes.load(Ordering::Relaxed) + unflushed + kept_bytes;
        let most = match job_bytes <= reserved {
            true => reserved,
            false => job_bytes.min(self.vfs.total_bytes(&self.dir)? / RESERVE_OF_DEVICE),
        };
        Ok(most.max(reserved) + unflushed)
    }

    /// Grants writes of `least_bytes` or more, until the device is read again soon: sidecars, runs and
    /// garbage collection take space too. Returns false if another user of the device took the room.
    ///
    /// Invariant: the blocks that jobs will need because of what is granted are held before any of it
    /// is written.
    fn grant(&self, room: &mut Room, least_bytes: u64) -> Result<bool> {
        let (size, data_bytes) = (self.space.size, room.data_bytes);
        let granted = size.grant(data_bytes, room.left_bytes).max(least_bytes);
        let grows = room.reserve.can_hold() && !size.is_full_size(data_bytes);
        // bug engine.reserve_follows_the_data: never
        if grows {
            let wanted = self.reserve_bytes(data_bytes.saturating_add(granted))?;
            self.hold(room, wanted)?;
            if room.reserve.held_bytes() < wanted - wanted / LITTLE_OF_RESERVE {
                return Ok(false);
            }
        }
        room.granted_bytes = granted;
        Ok(true)
    }

    /// Reads the free space of the device. Freed segments are returned to it before a put is refused
    /// for lack of `bytes`.
    fn read_room(&self, room: &mut Room, bytes: u64) -> Result<()> {
        let data_bytes = reserve::data_bytes(self);
        let reserve_bytes = self.reserve_bytes(data_bytes)?;
        let held = room.reserve.held_bytes();
        let mut free = self.vfs.free_bytes(&self.dir)? + held;
        let room_of =
            |free: u64| self.space.size.room(data_bytes, free.saturating_sub(reserve_bytes));
        // bug engine.freed_segments_no_room: never
        if room_of(free) < bytes && self.log.drop_free(usize::MAX)? > 0 {
            free = self.vfs.free_bytes(&self.dir)? + held;
        }
        room.free_bytes = free;
        room.reserve_bytes = reserve_bytes;
        room.data_bytes = data_bytes;
        room.left_bytes = room_of(free);
        room.read_at_nanos = Some(self.space.clock.monotonic_nanos());
        // Invariant: a store stops to be short with more room than it becomes short with.
        let reserved = self.options.reserved_bytes;
        let short_bytes = if self.space.is_short() { reserved + reserved / 2 } else { reserved };
        self.space.is_short.store(room.left_bytes < short_bytes, Ordering::Relaxed);
        if room.left_bytes >= room.refused_bytes {
            room.refused_bytes = 0;
        }
        Ok(())
    }
}

impl Store {
    /// Fails with `NoSpace` if `bytes` more would use the reserve of garbage collection.
    pub(super) fn admit_bytes(&self, bytes: u64) -> Result<()> {
        let has_room = self.take_room(bytes)?;
        // bug engine.admit_always: always
        if has_room {
            return Ok(());
        }
        Err(Error::NoSpace(self.shared.dir.clone()))
    }

    /// Fails with `NoSpace` for a batch with `bytes` of entries that would use the reserve of a store
    /// without replicas. A batch of deletes alone passes, because deletes free space. With consensus,
    /// committed entries must be appended while the device has space; there [`Store::admit_bytes`]
    /// refuses puts when proposed.
    pub(super) fn check_space(&self, batch: &LogBatch, bytes: u64) -> Result<()> {
        if self.take_room(bytes)? {
            return Ok(());
        }
        // bug engine.append_refused: `self.shared.replay == Replay::All` is `true`
        let is_refused = self.shared.replay == Replay::All && !only_frees(batch);
        if is_refused {
            return Err(Error::NoSpace(self.shared.dir.clone()));
        }
        self.shared.open_reserve(bytes)
    }

    /// Returns whether `bytes` more leave the reserve untouched. Takes nothing.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        if self.shared.options.reserved_bytes == 0 {
            return true;
        }
        let mut room = self.shared.space.lock_room();
        if room.left_bytes >= bytes {
            return true;
        }
        // Without a reading the device decides.
        let read = self.shared.read_room(&mut room, bytes);
        read.is_err() || room.left_bytes >= bytes
    }

    /// Returns the space of the device; reads it again when the last reading is old.
    pub(super) fn read_space(&self) -> Space {
        let (space, seen) = (&self.shared.space, &self.shared.space.seen);
        let read_at_nanos = seen.read_at_nanos.load(Ordering::Relaxed);
        let age_nanos = space.clock.monotonic_nanos().saturating_sub(read_at_nanos);
        if read_at_nanos == u64::MAX || age_nanos >= FRESH_NANOS {
            // The last reading stays.
            let _ = self.shared.read_room(&mut space.lock_room(), 0);
        }
        Space {
            free_bytes: seen.free_bytes.load(Ordering::Relaxed),
            reserve_bytes: seen.reserve_bytes.load(Ordering::Relaxed),
            is_reserve_allocated: seen.is_reserve_allocated.load(Ordering::Relaxed),
            is_short: space.is_short(),
            is_full: seen.is_full.load(Ordering::Relaxed),
        }
    }

    /// Takes `bytes` from the space above the reserve; returns false if that is too little.
    fn take_room(&self, bytes: u64) -> Result<bool> {
        let reserved = self.shared.options.reserved_bytes;
        if reserved == 0 {
            return Ok(true);
        }
        let mut room = self.shared.space.lock_room();
        let takes = reserve::written_bytes(bytes);
        if room.granted_bytes < takes {
            self.shared.read_room(&mut room, bytes)?;
            if room.left_bytes < bytes || !self.shared.grant(&mut room, takes)? {
                room.granted_bytes = 0;
                room.refused_bytes = match room.refused_bytes {
                    0 => bytes,
                    refused => refused.min(bytes),
                };
                return Ok(false);
            }
        }
        room.granted_bytes -= takes;
        room.left_bytes = room.left_bytes.saturating_sub(bytes);
        Ok(true)
    }

    /// Reads the space before a slice of garbage collection, which depends on it, and tells it.
    pub(super) fn prepare_collection(&self) -> Result<()> {
        if self.shared.options.reserved_bytes > 0 {
            self.shared.space.note_job_bytes(self.gc.job_bytes());
            let mut room = self.shared.space.lock_room();
            self.shared.read_room(&mut room, 0)?;
        }
        let is_short = self.shared.space.is_short();
        self.gc.set_short_of_space(is_short);
        // Invariant: a store that is short of space keeps no segment for readers of regions' logs.
        // Test: `a_store_short_of_space_keeps_nothing_for_readers_of_logs`.
        // bug engine.readers_fill_the_device: let is_short = false;
        let history_bytes_max = if is_short { 0 } else { self.shared.options.history_bytes_max };
        self.shared.log.set_history_bytes_max(history_bytes_max);
        Ok(())
    }
}

pub(super) fn only_frees(batch: &LogBatch) -> bool {
    batch.records.iter().all(|record| match record {
        Record::Entry(entry) if entry.is_command => Command::parse(entry.payload.clone())
            .is_ok_and(|command| command.ops().all(|op| !matches!(op, Op::Put { .. }))),
        _ => true,
    })
}
