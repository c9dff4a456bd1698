//! Part of a leader in a moment: a cut of all regions at one instant, chosen without clocks
//! (spec/Moment.tla, decision 0062).
//!
//! A pause begins with its request. In it the leader proposes nothing; once its log is committed it
//! answers with the log's end. A seal ends the pause: the leader confirms that it led at a time after the
//! request of the seal. The placement leader requests seals after the last answer of all regions. So the
//! cut holds what was proposed before that instant, and nothing that was proposed after it: later entries
//! of this term are proposed after the pause, and those of later terms by leaders elected after the
//! confirmation.
//!
//! Invariant: a leader pauses at most once for a moment in a term, and for no earlier one afterwards. A
//! request that comes twice would pause it again, and the seal would confirm the first answer, which lacks
//! what was written in between.
//! Test: `a_leader_pauses_once_for_a_moment_and_for_no_earlier_one`.
//!
//! Invariant: a seal ends a pause that lasts since its answer. After another end the leader has proposed more
//! than it answered.
//! Test: `a_seal_after_the_end_of_a_pause_is_refused`.

use crate::input::RequestId;
use stele_types::{LogIndex, MomentId, Term};

/// Longest pause of a region for a moment, in nanoseconds of its leader's monotonic clock.
pub const PAUSE_NANOS: u64 = 200_000_000;

/// Moments for which this peer pauses.
#[derive(Debug, Default)]
pub(crate) struct Moments {
    /// Last moment for which this peer paused, with the term in which it led.
    latest: (Term, MomentId),
    pause: Option<Pause>,
    /// Requests of seals that are not confirmed, with their deadlines.
    seals: Vec<(RequestId, u64)>,
}

#[derive(Debug)]
struct Pause {
    /// Request to answer; `None` once it is answered.
    request: Option<RequestId>,
    until_nanos: u64,
}

/// End of a leader's log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogEnd {
    /// Whether an entry of the leader's own term is visible.
    pub is_serving: bool,
    pub last: LogIndex,
    pub committed: LogIndex,
    /// Last entry up to which all is committed, and applied if it changes the region.
    pub visible: LogIndex,
}

impl Moments {
    /// Returns whether no request waits for an answer.
    pub(crate) fn is_idle(&self) -> bool {
        self.seals.is_empty() && self.pause.as_ref().is_none_or(|pause| pause.request.is_none())
    }

    /// Returns whether there is a pause or a seal. Most polls of most regions ask only this.
    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        self.pause.is_some() || !self.seals.is_empty()
    }

    /// Begins a pause of the leader of `term`. Returns its end in monotonic nanoseconds, and the request of
    /// an earlier moment that it ends; `None` if this peer has paused for this moment or a later one.
    pub(crate) fn begin(
        &mut self,
        (request, moment): (RequestId, MomentId),
        term: Term,
        now_nanos: u64,
    ) -> Option<(u64, Option<RequestId>)> {
        let is_later = (term, moment) > self.latest;
        // bug replica.moment_pauses_twice: let is_later = (term, moment) >= self.latest;
        if !is_later {
            return None;
        }
        let ended = self.end();
        self.latest = (term, moment);
        let until_nanos = now_nanos.saturating_add(PAUSE_NANOS);
        self.pause = Some(Pause { request: Some(request), until_nanos });
        Some((until_nanos, ended))
    }

    /// Returns whether a pause lasts.
    ///
    /// Invariant: a pause ends by the leader's own clock. Writes do not depend on the placement group.
    /// Test: `a_pause_ends_by_the_clock_of_its_leader_and_requests_keep_their_deadlines`.
    pub(crate) fn is_paused(&self, now_nanos: u64) -> bool {
        // bug replica.moment_pause_without_end: `now_nanos < pause.until_nanos` is `true`
        self.pause.as_ref().is_some_and(|pause| now_nanos < pause.until_nanos)
    }

    /// Returns the request to answer now, once.
    ///
    /// Invariant: all entries up to the answered index are committed, among them the first of the leader's own
    /// term. The seal confirms the leader, not its entries: a later leader may replace those that are not.
    /// Test: `a_pause_is_answered_when_all_that_was_proposed_is_committed`.
    ///
    /// Invariant: those that change the range are applied. The region that a split makes may answer writes
    /// elsewhere before its parent's leader has applied the split.
    /// Test: `a_pause_is_answered_with_the_range_after_a_split_that_is_committed`.
    pub(crate) fn take_answer(&mut self, log: &LogEnd) -> Option<RequestId> {
        let LogEnd { is_serving, last, committed, visible } = *log;
        let is_committed = is_serving && last <= committed;
        // bug replica.moment_answer_uncommitted: let (is_committed, visible) = (true, last);
        let is_applied = last <= visible;
        // bug replica.moment_range_before_apply: let is_applied = true;
        self.pause.as_mut().filter(|_| is_committed && is_applied)?.request.take()
    }

    /// Takes the request of a seal. Returns whether it ends a pause of this term that lasts.
    pub(crate) fn add_seal(
        &mut self,
        (request, moment): (RequestId, MomentId),
        (term, now_nanos): (Term, u64),
        deadline_nanos: u64,
    ) -> bool {
        let has_answered = self.pause.as_ref().is_some_and(|pause| pause.request.is_none());
        let is_answered = has_answered && self.is_paused(now_nanos);
        // bug replica.moment_seal_after_pause: let is_answered = true;
        let is_sealed = is_answered && self.latest == (term, moment);
        if is_sealed {
            self.seals.push((request, deadline_nanos));
        }
        is_sealed
    }

    /// Removes and returns the seals to confirm now, with the nanoseconds that the pause lasted. They end it.
    pub(crate) fn take_seals(&mut self, now_nanos: u64) -> Option<(Vec<(RequestId, u64)>, u64)> {
        if self.seals.is_empty() {
            return None;
        }
        let until_nanos = self.pause.take().map_or(now_nanos, |pause| pause.until_nanos);
        let left_nanos = until_nanos.saturating_sub(now_nanos);
        let paused_nanos = PAUSE_NANOS.saturating_sub(left_nanos);
        Some((std::mem::take(&mut self.seals), paused_nanos))
    }

    /// Ends a pause of which the time is over. Returns its request, if it is not answered.
    pub(crate) fn end_late(&mut self, now_nanos: u64) -> Option<RequestId> {
        let is_over = self.pause.is_some() && !self.is_paused(now_nanos);
        if is_over { self.end() } else { None }
    }

    fn end(&mut self) -> Option<RequestId> {
        self.pause.take()?.request
    }

    /// Ends the pause with leadership. Returns all requests that are not answered.
    pub(crate) fn end_all(&mut self) -> Vec<RequestId> {
        let seals = std::mem::take(&mut self.seals).into_iter().map(|(request, _)| request);
        seals.chain(self.end()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: MomentId = MomentId(7);

    #[test]
    fn a_pause_needs_a_later_moment_or_a_later_term() {
        // Term and moment, whether it pauses after moment 7 of term 3.
        let rows = [((3, 7), false), ((3, 6), false), ((3, 8), true), ((4, 1), true)];
        for ((term, moment), pauses) in rows {
            let mut moments = Moments::default();
            let first = moments.begin((RequestId(1), MOMENT), Term(3), 10);
            assert_eq!(first, Some((10 + PAUSE_NANOS, None)));
            let begun = moments.begin((RequestId(2), MomentId(moment)), Term(term), 20);
            let expected = pauses.then_some((20 + PAUSE_NANOS, Some(RequestId(1))));
            assert_eq!(begun, expected, "moment {moment} of term {term}");
        }
    }

    #[test]
    fn a_pause_is_answered_once_at_the_end_of_a_log_that_is_visible() {
        // Serving, last, committed, visible; answered.
        let rows = [
            (true, 9, 9, 9, true),
            (true, 9, 9, 8, false),
            (true, 9, 8, 8, false),
            (false, 9, 9, 9, false),
        ];
        for (is_serving, last, committed, visible, is_answered) in rows {
            let [last, committed, visible] = [last, committed, visible].map(LogIndex);
            let log = LogEnd { is_serving, last, committed, visible };
            let mut moments = Moments::default();
            assert_eq!(moments.take_answer(&log), None, "no pause");
            moments.begin((RequestId(1), MOMENT), Term(3), 10);
            let answered = is_answered.then_some(RequestId(1));
            assert_eq!(moments.take_answer(&log), answered, "{log:?}");
            assert_eq!(moments.take_answer(&log), None, "once");
            let sealed = moments.add_seal((RequestId(2), MOMENT), (Term(3), 20), 0);
            assert_eq!(sealed, is_answered, "{log:?}");
        }
    }

    #[test]
    fn a_seal_is_of_the_moment_and_the_term_of_the_pause() {
        let log = LogEnd {
            is_serving: true,
            last: LogIndex(9),
            committed: LogIndex(9),
            visible: LogIndex(9),
        };
        let mut moments = Moments::default();
        moments.begin((RequestId(1), MOMENT), Term(3), 10);
        moments.take_answer(&log).unwrap();
        for (moment, term) in [(6, 3), (8, 3), (7, 2), (7, 4)] {
            let sealed = moments.add_seal((RequestId(2), MomentId(moment)), (Term(term), 20), 0);
            assert!(!sealed, "moment {moment} of term {term}");
        }
        let over = 10 + PAUSE_NANOS;
        assert!(!moments.add_seal((RequestId(3), MOMENT), (Term(3), over), 5));
        assert!(moments.add_seal((RequestId(3), MOMENT), (Term(3), over - 1), 5));
        assert!(moments.is_paused(20), "until it is confirmed, or a round begins");
        assert_eq!(moments.take_seals(25), Some((vec![(RequestId(3), 5)], 15)));
        assert_eq!(moments.take_seals(25), None);
        assert!(!moments.is_paused(20));
        assert!(!moments.add_seal((RequestId(4), MOMENT), (Term(3), 20), 0));
    }
}
