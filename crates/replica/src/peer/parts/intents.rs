//! Time in which programs of this leader read the pairs of their keys before they replace them, because
//! there may be intents: pairs of transactions over several regions that may still commit.
//!
//! A leader does not know which intents earlier leaders of the region have written, or those of a region that
//! was merged into it. But no transaction commits that is older than 5 s by the clock of its record's leader.
//! So it is enough to read for a time after the first program of a term and a version of the region, and
//! after each program that writes intents. The time is six times as long, so that two leaders of the record
//! may have clocks that differ by 25 s.
//!
//! Invariant: no program replaces an intent of a transaction that may commit.
//! Tests: `a_program_that_replaces_unread_pairs_reads_them_in_a_new_term`,
//! `a_program_that_replaces_unread_pairs_reads_them_after_intents`.

use stele_types::Term;

/// Time in nanoseconds of the leader's monotonic clock.
const GUARDED_NANOS: u64 = 30_000_000_000;

#[derive(Debug, Default)]
pub(crate) struct IntentGuard {
    /// Term and version of the region's range that it knows.
    known: Option<(Term, u64)>,
    until_nanos: u64,
}

impl IntentGuard {
    /// Whether there may be intents that no program may replace unread.
    pub(crate) fn is_on(&mut self, term: Term, version: u64, now_nanos: u64) -> bool {
        // bug replica.intents_unguarded_in_a_term: never
        if self.known != Some((term, version)) {
            self.known = Some((term, version));
            self.extend(now_nanos);
        }
        now_nanos < self.until_nanos
    }

    /// Notes that an intent is written now.
    pub(crate) fn extend(&mut self, now_nanos: u64) {
        self.until_nanos = now_nanos.saturating_add(GUARDED_NANOS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_on_after_a_term_or_a_version_begins_and_after_intents() {
        let mut guard = IntentGuard::default();
        let rows = [
            (1, 1, 5, true),
            (1, 1, 4 + GUARDED_NANOS, true),
            (1, 1, 5 + GUARDED_NANOS, false),
            (2, 1, 6 + GUARDED_NANOS, true),
            (2, 1, 6 + 2 * GUARDED_NANOS, false),
            (2, 2, 6 + 2 * GUARDED_NANOS, true),
            (2, 2, 6 + 3 * GUARDED_NANOS, false),
        ];
        for (term, version, now, is_on) in rows {
            assert_eq!(guard.is_on(Term(term), version, now), is_on, "{term} {version} {now}");
        }
        let now = 9 + 9 * GUARDED_NANOS;
        guard.extend(now);
        assert!(guard.is_on(Term(2), 2, now + GUARDED_NANOS - 1));
        assert!(!guard.is_on(Term(2), 2, now + GUARDED_NANOS));
    }
}
