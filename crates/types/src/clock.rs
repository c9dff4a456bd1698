//! Time is handed in: nothing below the edges reads a clock of the machine.

use std::sync::atomic::{AtomicU64, Ordering};

/// The time, as the store is told it.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Seconds since the Unix epoch; times to live are compared with it.
    fn unix_seconds(&self) -> u64;
    /// Nanoseconds on a clock that never goes back; durations are measured with it.
    fn monotonic_nanos(&self) -> u64;
}

/// A clock that moves only when told to; for tests and simulation.
#[derive(Debug, Default)]
pub struct ManualClock {
    nanos: AtomicU64,
}

impl ManualClock {
    /// A clock that stands at `seconds` since the Unix epoch.
    pub fn at(seconds: u64) -> Self {
        Self { nanos: AtomicU64::new(seconds * 1_000_000_000) }
    }

    /// Moves the clock forward.
    pub fn advance_seconds(&self, seconds: u64) {
        self.nanos.fetch_add(seconds * 1_000_000_000, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn unix_seconds(&self) -> u64 {
        self.nanos.load(Ordering::Relaxed) / 1_000_000_000
    }

    fn monotonic_nanos(&self) -> u64 {
        self.nanos.load(Ordering::Relaxed)
    }
}
