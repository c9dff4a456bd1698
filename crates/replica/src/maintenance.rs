//! Policy of a store's maintenance: flushes, merges and garbage collection in slices, a checkpoint
//! when the core needs one, and pauses while there is nothing to do.

use std::sync::atomic::{AtomicBool, Ordering};
use stele_storage::{Maintained, StorageEngine};
use stele_types::{Error, Result};

/// Pause when nothing is to be done: the first, and the longest.
const IDLE_NANOS: u64 = 5_000_000;
const IDLE_NANOS_MAX: u64 = 160_000_000;
/// Idle slices after which the engine learns that it is idle.
const IDLE_SLICES: u32 = 20;

/// Result of one slice.
#[derive(Debug)]
pub struct Slice {
    /// Work of the slice; `None` if it did none.
    pub work: Option<Maintained>,
    /// Time until the next slice; 0 after a slice that did work or scrubbed.
    pub pause_nanos: u64,
    /// Data was found unreadable: pass [`Input::Damaged`](crate::Input::Damaged) to the
    /// loop, which may be waiting. Once awake it requests copies as long as anything is lost.
    pub has_new_damage: bool,
    /// Error of this slice. The engine continues, and its statistics keep the error.
    pub failure: Option<Error>,
}

/// Maintenance of one store.
#[derive(Debug)]
pub struct Maintenance {
    had_lost: bool,
    idle_slices: u32,
    pause_nanos: u64,
}

impl Default for Maintenance {
    fn default() -> Self {
        Self { had_lost: false, idle_slices: 0, pause_nanos: IDLE_NANOS }
    }
}

impl Maintenance {
    /// Does one slice of about `bytes_max` bytes. Fails only with an error that stops the store: a
    /// store that appends nothing would not notice it.
    pub fn slice<E: StorageEngine>(
        &mut self,
        engine: &E,
        wants_checkpoint: &AtomicBool,
        bytes_max: u64,
    ) -> Result<Slice> {
        if wants_checkpoint.load(Ordering::Acquire) {
            // A failure is ignored, as in any maintenance: the core requests a checkpoint while it
            // needs one.
            let _ = engine.checkpoint();
            // Cleared after the checkpoint, which serves most requests made meanwhile.
            wants_checkpoint.store(false, Ordering::Release);
        }
        let (done, failure) = match engine.maintain(bytes_max) {
            Ok(done) => (done, None),
            Err(error @ Error::Poisoned(_)) => return Err(error),
            Err(error) => (Maintained::default(), Some(error)),
        };
        let work = Some(done).filter(|done| done.more && done.bytes > 0);
        let has_lost = engine.has_lost();
        let has_new_damage = has_lost && !self.had_lost;
        self.had_lost = has_lost;
        let pause_nanos = self.pause(engine, work.is_some(), done.scrubbed_bytes);
        Ok(Slice { work, pause_nanos, has_new_damage, failure })
    }

    /// Returns the time until the next slice. Invariant: its budget alone limits the scrub, not the
    /// pauses of an idle store. Its slices do not make the store busy either.
    fn pause<E: StorageEngine>(
        &mut self,
        engine: &E,
        has_worked: bool,
        scrubbed_bytes: u64,
    ) -> u64 {
        if has_worked {
            (self.idle_slices, self.pause_nanos) = (0, IDLE_NANOS);
            return 0;
        }
        // bug replica.scrub_waits_for_work: never
        if scrubbed_bytes > 0 {
            return 0;
        }
        self.idle_slices = self.idle_slices.saturating_add(1);
        if self.idle_slices == IDLE_SLICES {
            engine.idle();
        }
        let pause_nanos = self.pause_nanos;
        self.pause_nanos = (pause_nanos * 2).min(IDLE_NANOS_MAX);
        pause_nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_conformance::ModelEngine;

    #[test]
    fn pauses_grow_while_nothing_is_to_be_done_and_a_checkpoint_is_made_once() {
        let (engine, wants_checkpoint) = (ModelEngine::default(), AtomicBool::new(true));
        let mut maintenance = Maintenance::default();
        let mut pause = || {
            let slice = maintenance.slice(&engine, &wants_checkpoint, 1).unwrap();
            assert!(slice.work.is_none() && !slice.has_new_damage && slice.failure.is_none());
            slice.pause_nanos / 1_000_000
        };
        let pauses: Vec<u64> = (0..8).map(|_| pause()).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 160, 160]);
        assert!(!wants_checkpoint.load(Ordering::Acquire));
    }

    #[test]
    fn slices_of_a_scrub_follow_each_other_at_once_and_the_store_stays_idle() {
        let (engine, mut maintenance) = (ModelEngine::default(), Maintenance::default());
        let mut pause = |bytes| maintenance.pause(&engine, false, bytes) / 1_000_000;
        let pauses: Vec<u64> = [0, 0, 7, 7, 0, 7, 0].into_iter().map(&mut pause).collect();
        assert_eq!(pauses, [5, 10, 0, 0, 20, 0, 40]);
        assert_eq!(maintenance.idle_slices, 4);
    }
}
