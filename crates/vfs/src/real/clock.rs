//! The machine's clock: the only place that reads it.

use std::time::{Instant, SystemTime, UNIX_EPOCH};
use stele_types::Clock;

/// The machine's clock.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    /// Monotonic time counts from here.
    started: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time starts now.
    pub fn new() -> Self {
        Self { started: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn unix_seconds(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }

    fn monotonic_nanos(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }
}
