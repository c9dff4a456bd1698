//! The machine's clock. It is read only here.

use std::time::{Instant, SystemTime, UNIX_EPOCH};
use stele_types::Clock;

/// The machine's clock.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    /// Origin of monotonic time.
    started: Instant,
}

impl SystemClock {
    /// Creates a clock with monotonic time starting now.
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
