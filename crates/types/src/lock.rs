//! Locks with an order.
//!
//! Invariant: a thread takes a lock only if its rank is higher than those of all locks that the
//! thread holds. Therefore no two threads wait for each other. Debug builds check each lock and
//! panic; release builds contain no trace of the check. [`rank`] is the table of all ranks.
//! Test: `a_lock_that_is_not_above_the_held_ones_panics_with_both_names`.

use std::fmt;
use std::ops::{Deref, DerefMut};

macro_rules! ranks {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        #[repr(u8)]
        enum Order { $($name,)+ }

        /// The ranks, lowest first: a lock of a later line may be taken while one of an earlier
        /// line is held. Each line states what the lock protects.
        pub mod rank {
            use super::Order;
            $($(#[doc = $doc])+ pub const $name: u8 = Order::$name as u8;)+

            /// Names by rank.
            pub const NAMES: &[&str] = &[$(stringify!($name),)+];
        }
    };
}

ranks! {
    /// Credit and position of the scrub; held while a slice is read.
    SCRUB,
    /// Groups of the embedded front that wait for a leader.
    COMMIT_QUEUE,
    /// Result and callbacks of a group commit.
    COMMIT_OUTCOME,
    /// Wakeup of a thread of the embedded front.
    SIGNAL,
    /// Reads and slices that wait for a reading thread.
    READ_QUEUE,
    /// State of a slice that is read ahead.
    READAHEAD_SLICE,
    /// Slots and results of a completion queue.
    COMPLETION_QUEUE,
    /// Jobs of garbage collection; held for a slice, in which entries are frozen and files removed.
    GC_WORK,
    /// Position of the state machine: what is appended and applied.
    APPLY,
    /// Readers that ask for old values; held while these are looked up.
    OLD_VALUES,
    /// Old values that wait for one reader.
    OLD_VALUES_OF_READER,
    /// Device space that writes may take before it is measured again.
    ROOM,
    /// Scan load by key range; held while garbage collection chooses its work.
    GC_HEAT,
    /// Finished value files of a merge; held while one is finished.
    GC_MOVED_FILES,
    /// Values left in place by a merge because they cannot be read.
    GC_MOVED_UNREADABLE,
    /// Work that writers must do.
    GC_LOAD,
    /// Statistics of garbage collection.
    GC_STATS,
    /// Cluster's time, by which expired pairs are dropped.
    GC_CLUSTER_TIME,
    /// Settings of garbage collection.
    GC_OPTIONS,
    /// Device bytes of the directory, as last counted.
    DISK_BYTES,
    /// Level that the directory records; held while another one is recorded.
    STORE_LEVEL,
    /// Values that cannot be read here.
    LOST_VALUES,
    /// Blocks of runs that cannot be read here.
    LOST_BLOCKS,
    /// Runs to rewrite.
    LOST_REWRITES,
    /// Removal of log files, one at a time.
    LOG_MAINTENANCE,
    /// Active segment of the log; held for a write and its sync.
    LOG_APPENDER,
    /// What readers of regions' logs need.
    LOG_PINS,
    /// Files of the log.
    LOG_CATALOG,
    /// Regions and head of the log.
    LOG_STATE,
    /// Segments to recycle.
    LOG_FREE,
    /// Recent entries in memory.
    LOG_ENTRY_CACHE,
    /// Read buffers to use again.
    LOG_READ_POOL,
    /// Reason why the log has stopped.
    LOG_POISON,
    /// Manifest of the index; held for a commit.
    MANIFEST,
    /// Versions that readers may hold.
    PINS,
    /// Memtables and the current version.
    TABLES,
    /// Checkpoint of a frozen memtable.
    FROZEN_CHECKPOINT,
    /// Applied entries of the durable checkpoint.
    CHECKPOINTED,
    /// Runs to unlink; held while they are.
    GARBAGE,
    /// Value files of a merge that is not committed.
    PENDING_REFS,
    /// Range deletes of a memtable.
    MEMTABLE_DELETES,
    /// Writer of a memtable's tree.
    MEMTABLE_WRITER,
    /// Memory of the block cache that hash indexes take.
    CACHE_RESERVED,
    /// Buffers of evicted blocks.
    CACHE_SPARES,
    /// Open files of the logs of all stores. Any call of the file system may close some.
    HANDLES,
}

#[cfg(debug_assertions)]
mod held {
    use std::cell::RefCell;

    thread_local! {
        static RANKS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }

    /// Panics if this thread holds a lock that is not below `rank`.
    #[track_caller]
    pub(super) fn check(rank: u8) {
        let highest = RANKS.try_with(|ranks| ranks.borrow().iter().max().copied());
        if let Ok(Some(highest)) = highest {
            let name = |rank: u8| super::rank::NAMES.get(usize::from(rank)).unwrap_or(&"unknown");
            let is_ordered = highest < rank;
            // bug types.lock_order_unchecked: let is_ordered = true;
            assert!(
                is_ordered,
                "lock {} is taken while {} is held: the table in types/lock.rs orders them",
                name(rank),
                name(highest)
            );
        }
    }

    pub(super) fn push(rank: u8) {
        // The thread may be ending: then nothing else is checked.
        let _ = RANKS.try_with(|ranks| ranks.borrow_mut().push(rank));
    }

    pub(super) fn pop(rank: u8) {
        let _ = RANKS.try_with(|ranks| {
            let mut ranks = ranks.borrow_mut();
            if let Some(at) = ranks.iter().rposition(|held| *held == rank) {
                ranks.remove(at);
            }
        });
    }
}

#[cfg(not(debug_assertions))]
mod held {
    #[inline(always)]
    pub(super) fn check(_: u8) {}
    #[inline(always)]
    pub(super) fn push(_: u8) {}
    #[inline(always)]
    pub(super) fn pop(_: u8) {}
}

struct Held<const RANK: u8>;

impl<const RANK: u8> Held<RANK> {
    #[inline]
    fn new() -> Self {
        held::push(RANK);
        Self
    }
}

impl<const RANK: u8> Drop for Held<RANK> {
    #[inline]
    fn drop(&mut self) {
        held::pop(RANK);
    }
}

/// Access to what a lock protects; unlocks when it is dropped.
#[must_use = "a guard that is dropped at once protects nothing"]
pub struct Guard<G, const RANK: u8> {
    guard: G,
    _held: Held<RANK>,
}

impl<G, const RANK: u8> Guard<G, RANK> {
    #[inline]
    fn new(guard: G) -> Self {
        Self { guard, _held: Held::new() }
    }

    /// Returns the guard for a wait on a condition variable. While the thread waits it takes no
    /// other lock.
    #[inline]
    pub fn for_wait(&mut self) -> &mut G {
        &mut self.guard
    }
}

impl<G: Deref, const RANK: u8> Deref for Guard<G, RANK> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut, const RANK: u8> DerefMut for Guard<G, RANK> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

impl<G: fmt::Debug, const RANK: u8> fmt::Debug for Guard<G, RANK> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

/// Guard of a [`Mutex`].
pub type MutexGuard<'a, T, const RANK: u8> = Guard<parking_lot::MutexGuard<'a, T>, RANK>;
/// Guard of a reader of an [`RwLock`].
pub(crate) type ReadGuard<'a, T, const RANK: u8> = Guard<parking_lot::RwLockReadGuard<'a, T>, RANK>;
/// Guard of the writer of an [`RwLock`].
pub(crate) type WriteGuard<'a, T, const RANK: u8> =
    Guard<parking_lot::RwLockWriteGuard<'a, T>, RANK>;

/// Mutual exclusion with a rank.
#[derive(Debug, Default)]
pub struct Mutex<T, const RANK: u8>(parking_lot::Mutex<T>);

impl<T, const RANK: u8> Mutex<T, RANK> {
    /// Creates an unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    /// Waits for the lock.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T, RANK> {
        held::check(RANK);
        Guard::new(self.0.lock())
    }

    /// Takes the lock if it is free. Any order is allowed, because the call does not wait.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T, RANK>> {
        self.0.try_lock().map(Guard::new)
    }
}

/// Lock of one writer or many readers, with a rank. A thread does not read-lock it twice: a writer
/// may wait in between.
#[derive(Debug, Default)]
pub struct RwLock<T, const RANK: u8>(parking_lot::RwLock<T>);

impl<T, const RANK: u8> RwLock<T, RANK> {
    /// Creates an unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::RwLock::new(value))
    }

    /// Waits until no writer holds the lock.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> ReadGuard<'_, T, RANK> {
        held::check(RANK);
        Guard::new(self.0.read())
    }

    /// Waits until no other thread holds the lock.
    #[inline]
    #[track_caller]
    pub fn write(&self) -> WriteGuard<'_, T, RANK> {
        held::check(RANK);
        Guard::new(self.0.write())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::caught;

    static FIRST: Mutex<u32, { rank::APPLY }> = Mutex::new(0);
    static SECOND: RwLock<u32, { rank::LOG_STATE }> = RwLock::new(0);

    #[test]
    fn a_lock_that_is_not_above_the_held_ones_panics_with_both_names() {
        {
            let (first, mut second) = (FIRST.lock(), SECOND.write());
            *second += 1;
            // In any order of release.
            drop(first);
            let _again = FIRST.try_lock().map(|first| *first);
        }
        let reversed = caught("a test", || {
            let _second = SECOND.read();
            *FIRST.lock()
        });
        let text = reversed.expect_err("the order is not checked").to_string();
        assert!(text.contains("lock APPLY is taken while LOG_STATE is held"), "{text}");
        let twice = caught("a test", || *SECOND.read() + *SECOND.read());
        assert!(twice.expect_err("a reader may wait for itself").to_string().contains("LOG_STATE"));
        let (first, second) = (FIRST.lock(), SECOND.read());
        assert_eq!((*first, *second), (0, 1), "the list is empty after a panic");
    }

    #[test]
    fn every_rank_has_its_own_name() {
        assert_eq!(rank::NAMES[usize::from(rank::SCRUB)], "SCRUB");
        assert_eq!(rank::NAMES[usize::from(rank::CACHE_SPARES)], "CACHE_SPARES");
        assert_eq!(rank::NAMES.len(), usize::from(rank::HANDLES) + 1);
    }
}
