//! The machine's clock. It is read only here.

use crate::Sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stele_types::Clock;

/// The machine's clock.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    /// Time since the boot at which monotonic time starts.
    started_nanos: u64,
}

impl SystemClock {
    /// Creates a clock with monotonic time starting now.
    pub fn new() -> Self {
        Self { started_nanos: nanos_since_boot() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn unix_millis(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        since.as_secs() * 1_000 + u64::from(since.subsec_millis())
    }

    fn monotonic_nanos(&self) -> u64 {
        nanos_since_boot().saturating_sub(self.started_nanos)
    }
}

impl Sleep for SystemClock {
    fn sleep_until(&self, monotonic_nanos: u64) {
        loop {
            let left = monotonic_nanos.saturating_sub(self.monotonic_nanos());
            if left == 0 {
                return;
            }
            std::thread::sleep(Duration::from_nanos(left));
        }
    }
}

/// Returns the time since the boot. Invariant: it includes the time in which the machine was
/// suspended, which `CLOCK_MONOTONIC` and so `std::time::Instant` leave out: a lease would be valid
/// after the machine resumes, although other nodes have elected a leader.
///
/// The C library reads it, as it does for the standard library, so that libfaketime can replace both
/// clocks.
fn nanos_since_boot() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a `timespec` that lives through the call, which writes only to it.
    // The call fails only for a clock that the kernel does not have; Linux has this one since 2.6.39.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel counts `/proc/uptime` with time in suspend, in hundredths of a second.
    fn uptime_nanos() -> u64 {
        let text = std::fs::read_to_string("/proc/uptime").expect("Linux has it");
        let seconds = text.split(' ').next().and_then(|word| word.parse::<f64>().ok());
        (seconds.expect("the first word is a number") * 1e9) as u64
    }

    #[test]
    fn the_clock_counts_from_the_boot_with_time_in_suspend() {
        const STEP_NANOS: u64 = 20_000_000;
        let clock = SystemClock { started_nanos: 0 };
        let before = uptime_nanos();
        let now = clock.monotonic_nanos();
        let after = uptime_nanos();
        assert!(before.saturating_sub(STEP_NANOS) <= now, "{now} after {before}");
        assert!(now <= after + STEP_NANOS, "{now} before {after}");
    }

    #[test]
    fn a_sleep_ends_at_its_time() {
        let clock = SystemClock::new();
        let until = clock.monotonic_nanos() + 3_000_000;
        clock.sleep_until(until);
        assert!(clock.monotonic_nanos() >= until);
        clock.sleep_until(0);
    }

    #[test]
    fn a_new_clock_starts_at_zero() {
        assert!(SystemClock::new().monotonic_nanos() < 60_000_000_000);
    }
}
