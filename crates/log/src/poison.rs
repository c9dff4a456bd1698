//! Invariant: after a failed write or sync nothing is appended. The durable state is unknown, and a second sync
//! that succeeds would prove nothing.
//! Test: `fault_17_a_failed_sync_stops_the_log_for_good`.

use std::sync::atomic::{AtomicBool, Ordering};
use stele_types::lock::{Mutex, rank};
use stele_types::{Error, Result};

#[derive(Debug, Default)]
pub(crate) struct Poison {
    set: AtomicBool,
    reason: Mutex<String, { rank::LOG_POISON }>,
}

impl Poison {
    pub(crate) fn check(&self) -> Result<()> {
        // bug log.retry_after_failed_sync: always
        if !self.is_set() {
            return Ok(());
        }
        Err(Error::Poisoned(self.reason.lock().clone()))
    }

    pub(crate) fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    /// Stops the log because of `error`, unless the device is merely full. Returns the error.
    pub(crate) fn unless_full(&self, error: Error) -> Error {
        if matches!(error, Error::NoSpace(_)) {
            return error;
        }
        self.set(error)
    }

    /// Returns a guard that stops the log if a panic drops it. Declare it after the lock that it
    /// belongs to: it is then dropped before the lock is free.
    pub(crate) fn on_panic(&self, interrupted: &'static str) -> StopOnPanic<'_> {
        StopOnPanic { poison: self, interrupted }
    }

    /// Stops the log because of `error`. Returns the error.
    pub(crate) fn set(&self, error: Error) -> Error {
        if !self.set.load(Ordering::Acquire) {
            *self.reason.lock() = error.to_string();
            self.set.store(true, Ordering::Release);
        }
        error
    }
}

/// Stops the log if a panic drops it.
///
/// Invariant: no other thread uses what a panic left half changed. The log has stopped before the
/// lock on it is free.
/// Test: `a_lock_that_a_panic_frees_protects_nothing_that_is_used_again`.
#[derive(Debug)]
pub struct StopOnPanic<'a> {
    poison: &'a Poison,
    interrupted: &'static str,
}

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        // bug log.panic_stops_nothing: never
        if std::thread::panicking() {
            let interrupted = self.interrupted;
            self.poison.set(Error::Panicked(format!("a panic interrupted {interrupted}")));
        }
    }
}
