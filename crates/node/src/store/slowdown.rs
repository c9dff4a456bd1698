//! Slowing of writers while garbage collection lags behind them. An embedded store makes writers do a
//! part of the work; on a node they wait for as long as that work takes, because request threads must
//! not. Writers slow down early and never stop.

/// Longest wait of one write.
pub const WAIT_NANOS_MAX: u64 = 1_000_000_000;
/// Longest time for a KiB that writers wait: they write at least 1 MiB a second.
const NANOS_PER_KIB_MAX: u64 = 1_000_000;
/// Speed of maintenance before it was measured: 100 MiB a second.
const NANOS_PER_BYTE_UNKNOWN: f64 = 10.0;
/// Weight of the newest slice in the mean.
const NEWEST: f64 = 0.1;

/// Speed of a store's maintenance.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    nanos_per_byte: f64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { nanos_per_byte: NANOS_PER_BYTE_UNKNOWN }
    }
}

impl Pace {
    /// Records a slice of maintenance.
    pub fn worked(&mut self, bytes: u64, nanos: u64) {
        if bytes > 0 {
            let newest = nanos as f64 / bytes as f64;
            self.nanos_per_byte += NEWEST * (newest - self.nanos_per_byte);
        }
    }

    /// Returns the nanoseconds that writers wait for each KiB, if each byte written makes so many bytes
    /// of maintenance due.
    pub fn slowdown(&self, pressure: f64) -> u64 {
        let nanos = (pressure.max(0.0) * self.nanos_per_byte * 1024.0) as u64;
        nanos.min(NANOS_PER_KIB_MAX)
    }
}

/// Order in which the writers of a store wait: one after the other, so that their sum is slowed.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriterQueue {
    /// Monotonic nanoseconds at which the last one may go on.
    last_nanos: u64,
}

impl WriterQueue {
    /// Returns the nanoseconds that a write of `bytes` waits, at most [`WAIT_NANOS_MAX`].
    pub fn wait_nanos(&mut self, now_nanos: u64, bytes: u64, nanos_per_kib: u64) -> u64 {
        if nanos_per_kib == 0 {
            return 0;
        }
        let nanos = bytes.saturating_mul(nanos_per_kib.min(NANOS_PER_KIB_MAX)) / 1024;
        let latest_nanos = now_nanos.saturating_add(WAIT_NANOS_MAX);
        let go_on_nanos = self.last_nanos.max(now_nanos).saturating_add(nanos).min(latest_nanos);
        self.last_nanos = go_on_nanos;
        go_on_nanos - now_nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn writers_wait_as_long_as_the_maintenance_that_they_make_due_takes() {
        let mut pace = Pace::default();
        for _ in 0..100 {
            pace.worked(MIB, 20_000_000);
        }
        assert_eq!(pace.slowdown(0.0), 0);
        // 50 MiB a second, and each byte makes two bytes due.
        let nanos_per_kib = pace.slowdown(2.0);
        let mut writers = WriterQueue::default();
        let (mut now_nanos, mut written) = (0, 0);
        while now_nanos < 10_000_000_000 {
            now_nanos += writers.wait_nanos(now_nanos, MIB / 4, nanos_per_kib);
            written += MIB / 4;
        }
        assert!((240 * MIB..260 * MIB).contains(&written), "{} MiB in 10 s", written / MIB);
    }

    #[test]
    fn many_writers_share_the_rate_and_none_waits_longer_than_a_second() {
        let mut writers = WriterQueue::default();
        let waits: Vec<u64> =
            (0..100).map(|_| writers.wait_nanos(5, 64 << 10, 1_000_000)).collect();
        assert_eq!(waits[..3], [64_000_000, 128_000_000, 192_000_000]);
        assert!(waits.iter().all(|nanos| *nanos <= WAIT_NANOS_MAX));
        assert_eq!(*waits.last().unwrap(), WAIT_NANOS_MAX);
        let soon_nanos = 5 + WAIT_NANOS_MAX;
        assert_eq!(writers.wait_nanos(soon_nanos, 1024, 1_000_000), 1_000_000, "no debt is left");
        assert_eq!(writers.wait_nanos(soon_nanos, 1 << 30, 0), 0, "without pressure");
    }

    #[test]
    fn pressure_without_end_leaves_a_mib_a_second() {
        assert_eq!(Pace::default().slowdown(f64::INFINITY), NANOS_PER_KIB_MAX);
        assert_eq!(Pace::default().slowdown(f64::NAN), 0);
    }
}
