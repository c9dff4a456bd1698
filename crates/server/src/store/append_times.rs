//! Durations of the last appends, write and sync together.

use parking_lot::Mutex;
use stele_types::mutant;

/// Appends kept; later ones replace earlier ones.
const APPENDS_MAX: usize = 1024;

/// Durations of the last appends, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct AppendTimes {
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    nanos: Vec<u64>,
    next: usize,
    /// Start of the append under way.
    began_nanos: Option<u64>,
}

impl AppendTimes {
    /// Records that an append begins.
    pub fn begin(&self, now_nanos: u64) {
        self.last.lock().began_nanos = Some(now_nanos);
    }

    /// Records the end of the append under way.
    pub fn end(&self, now_nanos: u64) {
        let mut last = self.last.lock();
        let nanos = now_nanos.saturating_sub(last.began_nanos.take().unwrap_or(now_nanos));
        let at = last.next;
        match last.nanos.get_mut(at) {
            Some(slot) => *slot = nanos,
            None => last.nanos.push(nanos),
        }
        last.next = (at + 1) % APPENDS_MAX;
    }

    /// Returns the age of the append under way; 0 without one.
    pub fn age_nanos(&self, now_nanos: u64) -> u64 {
        let began_nanos = self.last.lock().began_nanos;
        began_nanos.map_or(0, |began| now_nanos.saturating_sub(began))
    }

    /// Returns the 99th percentile, and at least the age of the append under way; 0 without appends.
    ///
    /// Invariant: a device that hangs shows. Its append does not end, so that no duration tells.
    pub fn p99_nanos(&self, now_nanos: u64) -> u64 {
        let (mut nanos, began_nanos) = {
            let last = self.last.lock();
            (last.nanos.clone(), last.began_nanos)
        };
        let age_nanos = began_nanos.map_or(0, |began| now_nanos.saturating_sub(began));
        let at = (nanos.len() * 99).div_ceil(100).saturating_sub(1);
        let ended_nanos = match nanos.is_empty() {
            true => 0,
            false => *nanos.select_nth_unstable(at).1,
        };
        match mutant::active("server.hanging_append_unseen") {
            true => ended_nanos,
            false => ended_nanos.max(age_nanos),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_99th_of_the_last_thousand_counts() {
        let times = AppendTimes::default();
        let record = |nanos: u64| {
            times.begin(1_000);
            times.end(1_000 + nanos);
        };
        assert_eq!(times.p99_nanos(9_000), 0);
        record(7);
        assert_eq!(times.p99_nanos(9_000), 7);
        (1..=100).for_each(record);
        assert_eq!(times.p99_nanos(9_000), 99);
        (0..APPENDS_MAX).for_each(|_| record(5));
        assert_eq!(times.p99_nanos(9_000), 5, "earlier ones are dropped");
    }

    #[test]
    fn an_append_that_does_not_end_counts_with_its_age() {
        let times = AppendTimes::default();
        times.begin(1_000);
        assert_eq!(times.p99_nanos(5_000), 4_000);
        times.end(6_000);
        assert_eq!(times.p99_nanos(50_000), 5_000);
        times.begin(51_000);
        assert_eq!(times.p99_nanos(52_000), 5_000, "it is not yet slower than those before");
    }
}
