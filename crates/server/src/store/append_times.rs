//! How long the last appends took, write and sync together.

use parking_lot::Mutex;

/// Appends remembered; later ones replace earlier ones.
const KEPT: usize = 1024;

/// See the module.
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
    /// Notes an append.
    pub fn note(&self, nanos: u64) {
        let mut last = self.last.lock();
        let at = last.next;
        match last.nanos.get_mut(at) {
            Some(slot) => *slot = nanos,
            None => last.nanos.push(nanos),
        }
        last.next = (at + 1) % KEPT;
    }

    /// The time that 99 of 100 of them stayed below; 0 of none.
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
        times.note(7);
        assert_eq!(times.p99_nanos(), 7);
        (1..=100).for_each(|nanos| times.note(nanos));
        assert_eq!(times.p99_nanos(), 99);
        (0..KEPT).for_each(|_| times.note(5));
        assert_eq!(times.p99_nanos(), 5, "earlier ones are forgotten");
    }
}
