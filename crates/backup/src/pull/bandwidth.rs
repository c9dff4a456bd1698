//! Limit of the bytes that a backup reads and sends.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Time of which the bytes may be used at once after a pause.
const BURST: Duration = Duration::from_millis(100);

/// A token bucket. Bytes are taken after they were used, so that one use may be larger than the bucket: the next one
/// waits.
pub(super) struct Bandwidth {
    bytes_per_second: Option<u64>,
    /// When all bytes that were taken are due.
    paid_at: Mutex<Instant>,
}

impl Bandwidth {
    pub(super) fn new(bytes_per_second: Option<u64>) -> Self {
        Self { bytes_per_second, paid_at: Mutex::new(Instant::now()) }
    }

    /// Takes bytes, and waits until they are due.
    pub(super) async fn take(&self, bytes: u64) {
        if let Some(until) = self.due(bytes, Instant::now()) {
            sleep_until(until).await;
        }
    }

    fn due(&self, bytes: u64, now: Instant) -> Option<Instant> {
        let rate = self.bytes_per_second?.max(1);
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
        let lasts = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let mut paid_at = self.paid_at.lock().unwrap_or_else(PoisonError::into_inner);
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        *paid_at = (*paid_at).max(earliest).checked_add(lasts).unwrap_or(*paid_at);
        (*paid_at > now).then_some(*paid_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_their_time_and_a_pause_saves_a_tenth_of_a_second_at_most() {
        let begun = Instant::now();
        let at = |millis| begun + Duration::from_millis(millis);
        let bandwidth = Bandwidth { bytes_per_second: Some(1000), paid_at: Mutex::new(begun) };
        assert_eq!(bandwidth.due(500, begun), Some(at(500)));
        assert_eq!(bandwidth.due(500, at(200)), Some(at(1000)), "two users share it");
        assert_eq!(bandwidth.due(0, at(1000)), None);
        assert_eq!(bandwidth.due(100, at(5000)), None, "what was not used before");
        assert_eq!(bandwidth.due(500, at(5000)), Some(at(5500)));
        let unlimited = Bandwidth { bytes_per_second: None, paid_at: Mutex::new(begun) };
        assert_eq!(unlimited.due(u64::MAX, begun), None);
    }
}
