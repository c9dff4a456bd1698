//! Time as an input: below the edges no code reads the machine's clock.

use std::sync::atomic::{AtomicU64, Ordering};

/// Source of the store's time.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Returns milliseconds since the Unix epoch.
    fn unix_millis(&self) -> u64;
    /// Returns seconds since the Unix epoch; expiry is compared with it.
    fn unix_seconds(&self) -> u64 {
        self.unix_millis() / 1_000
    }
    /// Returns nanoseconds on a clock that never goes back; durations are measured with it. It counts
    /// the time in which the machine was suspended: leases and vote holds rest on it.
    fn monotonic_nanos(&self) -> u64;
}

/// A clock that moves only when advanced; for tests and simulation.
#[derive(Debug, Default)]
pub struct ManualClock {
    nanos: AtomicU64,
}

impl ManualClock {
    /// Creates a clock at `seconds` since the Unix epoch.
    pub fn at(seconds: u64) -> Self {
        Self { nanos: AtomicU64::new(seconds * 1_000_000_000) }
    }

    /// Moves the clock forward.
    pub fn advance_seconds(&self, seconds: u64) {
        self.nanos.fetch_add(seconds * 1_000_000_000, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn unix_millis(&self) -> u64 {
        self.nanos.load(Ordering::Relaxed) / 1_000_000
    }

    fn monotonic_nanos(&self) -> u64 {
        self.nanos.load(Ordering::Relaxed)
    }
}

/// Returns whether a pair with this expiry, in Unix seconds and 0 for none, has expired at a time.
#[inline]
pub fn is_expired(expires_at_s: u64, now_s: u64) -> bool {
    expires_at_s != 0 && expires_at_s <= now_s
}
