//! Right of a leader to a lease.
//!
//! While a lease lasts no other peer can lead, so the leader's own state is the latest. A follower
//! that answers a heartbeat round withholds its vote for `election_ticks_min` of its ticks from the
//! receipt, which is after the round was sent. So the lease runs from the *sending* of a round that
//! a quorum answered, minus one tick (the first may come at once), on a clock that may run slower
//! than theirs by the drift bound. Their ticks are as long as this store's: [`crate::LeaseTimes`].

use stele_types::{PeerRole, RegionPhase, Term, mutant};

/// Terms in which a peer may hold no lease.
#[derive(Debug, Default)]
pub(crate) struct LeaseRight {
    /// Last term in which a leadership transfer was started.
    transfer_term: Term,
}

/// State on which the right depends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseTerms {
    pub term: Term,
    /// Whether this peer leads and has applied an entry of `term`.
    pub is_serving: bool,
    pub phase: RegionPhase,
    /// Role of this peer in the region; `None` if it is not a member.
    pub role: Option<PeerRole>,
}

impl LeaseRight {
    /// Ends the right in a term in which a leadership transfer starts: its target may campaign at
    /// any moment regardless of the followers' vote holds.
    pub fn end_for_term(&mut self, term: Term) {
        if !mutant::active("raftstore.lease_after_transfer") {
            self.transfer_term = term;
        }
    }

    /// Returns whether a lease may be valid. A region prepared for a merge may belong to its target
    /// at any moment.
    pub fn may_hold(&self, state: &LeaseTerms) -> bool {
        state.is_serving
            && state.phase == RegionPhase::Normal
            && self.transfer_term != state.term
            && state.role.is_some_and(|role| role != PeerRole::Learner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_needs_a_serving_voter_of_a_normal_region_and_a_term_without_transfer() {
        let (normal, tombstone) = (RegionPhase::Normal, RegionPhase::Tombstone);
        let (voter, learner) = (Some(PeerRole::Voter), Some(PeerRole::Learner));
        // Term, serving, phase, role; whether the lease may be valid after a transfer in term 4.
        let rows = [
            (5, true, normal, voter, true),
            (4, true, normal, voter, false),
            (5, false, normal, voter, false),
            (5, true, tombstone, voter, false),
            (5, true, normal, learner, false),
            (5, true, normal, Some(PeerRole::IncomingVoter), true),
            (5, true, normal, None, false),
        ];
        for (term, is_serving, phase, role, may_hold) in rows {
            let mut right = LeaseRight::default();
            right.end_for_term(Term(4));
            let state = LeaseTerms { term: Term(term), is_serving, phase, role };
            assert_eq!(right.may_hold(&state), may_hold, "{state:?}");
        }
    }
}
