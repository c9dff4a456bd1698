//! Durations of the last appends, write and sync together.

use parking_lot::Mutex;

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
}

impl AppendTimes {
    /// Records an append.
    pub fn record(&self, nanos: u64) {
        let mut last = self.last.lock();
        let at = last.next;
        match last.nanos.get_mut(at) {
            Some(slot) => *slot = nanos,
            None => last.nanos.push(nanos),
        }
        last.next = (at + 1) % APPENDS_MAX;
    }

    /// Returns the 99th percentile; 0 without appends.
    pub fn p99_nanos(&self) -> u64 {
        let mut nanos = self.last.lock().nanos.clone();
        let at = (nanos.len() * 99).div_ceil(100).saturating_sub(1);
        match nanos.is_empty() {
            true => 0,
            false => *nanos.select_nth_unstable(at).1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_99th_of_the_last_thousand_counts() {
        let times = AppendTimes::default();
        assert_eq!(times.p99_nanos(), 0);
        times.record(7);
        assert_eq!(times.p99_nanos(), 7);
        (1..=100).for_each(|nanos| times.record(nanos));
        assert_eq!(times.p99_nanos(), 99);
        (0..APPENDS_MAX).for_each(|_| times.record(5));
        assert_eq!(times.p99_nanos(), 5, "earlier ones are dropped");
    }
}
