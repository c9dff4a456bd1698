//! Refusals of the last seconds: one that repeats is counted, not written again.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Time in which a refusal is written once.
pub(super) const PAUSE: Duration = Duration::from_secs(10);
/// Different refusals that are remembered for it.
const REMEMBERED_MAX: usize = 1024;

/// Refusals that were written a moment ago.
#[derive(Debug)]
pub(super) struct Repeats<K> {
    written: HashMap<K, Written>,
    /// Refusals for which there was no room.
    beyond: u64,
}

#[derive(Debug)]
struct Written {
    at: Instant,
    repeated: u64,
}

/// Refusals that were not written one by one, and were no longer repeated.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ended<K> {
    /// Each with its number.
    pub repeated: Vec<(K, u64)>,
    /// Number of those that were not remembered.
    pub beyond: u64,
}

impl<K> Default for Repeats<K> {
    fn default() -> Self {
        Self { written: HashMap::new(), beyond: 0 }
    }
}

impl<K: Hash + Eq + Clone> Repeats<K> {
    /// Returns whether the refusal is to be written now. Otherwise it is counted.
    ///
    /// Invariant: refusals that repeat take neither memory nor lines without bound, and each is counted.
    /// Tests: `a_refusal_is_written_once_in_ten_seconds_and_counted`, `what_is_remembered_is_bounded`.
    pub(super) fn note(&mut self, key: &K, now: Instant) -> bool {
        if let Some(written) = self.written.get_mut(key) {
            written.repeated += 1;
            // bug server.audit_floods: `false` is `true`
            return false;
        }
        if self.written.len() >= REMEMBERED_MAX {
            self.beyond += 1;
            return false;
        }
        self.written.insert(key.clone(), Written { at: now, repeated: 0 });
        true
    }

    /// Forgets the refusals of at least 10 s ago; all of them without a time.
    pub(super) fn end(&mut self, now: Option<Instant>) -> Ended<K> {
        let is_old = |written: &Written| now.is_none_or(|now| now - written.at >= PAUSE);
        let ended = self.written.extract_if(|_, written| is_old(written));
        let mut repeated: Vec<(K, u64)> = ended.map(|(key, it)| (key, it.repeated)).collect();
        repeated.retain(|(_, count)| *count > 0);
        Ended { repeated, beyond: std::mem::take(&mut self.beyond) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_written_once_in_ten_seconds_and_counted() {
        let (mut repeats, start) = (Repeats::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(repeats.note(&"a", at(0)) && repeats.note(&"b", at(5)));
        assert!(!repeats.note(&"a", at(9)) && !repeats.note(&"a", at(9)));
        assert_eq!(repeats.end(Some(at(9))), Ended { repeated: vec![], beyond: 0 });
        assert_eq!(repeats.end(Some(at(10))), Ended { repeated: vec![("a", 2)], beyond: 0 });
        assert!(repeats.note(&"a", at(11)), "it is written again");
        // The one of which none repeated is forgotten without a line.
        assert_eq!(repeats.end(Some(at(15))), Ended { repeated: vec![], beyond: 0 });
        assert!(repeats.note(&"b", at(15)));
        assert!(!repeats.note(&"b", at(15)));
        assert_eq!(repeats.end(None), Ended { repeated: vec![("b", 1)], beyond: 0 });
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        let written = (0..3_000).filter(|nth| repeats.note(nth, now)).count();
        assert_eq!(written, REMEMBERED_MAX);
        assert_eq!(repeats.end(None), Ended { repeated: vec![], beyond: 3_000 - 1_024 });
    }
}
