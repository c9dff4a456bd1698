//! Changes of the region that are proposed and not applied, and the rules for its members.

use crate::peer::raft_group::Follower;
use stele_types::{LogIndex, PeerId, Region, mutant};

/// Most committed entries that a follower may lack and still count as caught up.
const LAG_ENTRIES_MAX: u64 = 1_000;

/// Changes of the region under way.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Last proposed entry that changes the region, until it is applied.
    last: Option<LogIndex>,
    /// Last proposed entry that changes the range or the phase, until it is applied.
    barrier: Option<LogIndex>,
}

impl Changes {
    /// Records that the entry at `at` was proposed.
    pub fn note_proposed(&mut self, at: LogIndex, is_barrier: bool) {
        self.last = Some(at);
        self.barrier = is_barrier.then_some(at).or(self.barrier);
    }

    /// Records that the change at `at` is applied.
    pub fn note_applied(&mut self, at: LogIndex) {
        self.last.take_if(|last| *last <= at);
        self.barrier.take_if(|barrier| *barrier <= at);
    }

    /// Forgets all of them: another peer leads.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns whether a change is under way. A descriptor is derived from the applied region: two
    /// changes in flight would overwrite each other.
    pub fn is_pending(&self) -> bool {
        self.last.is_some()
    }

    /// Returns whether proposals must wait; `is_proposing` tells that a change is about to be
    /// proposed. Invariant: nothing is proposed after an entry that
    /// changes the range or the phase, so what is checked against the region now holds when it is
    /// applied.
    pub fn is_barred(&self, is_proposing: bool) -> bool {
        let is_barred = is_proposing || self.barrier.is_some();
        is_barred && !mutant::active("raftstore.propose_behind_barrier")
    }

    /// Returns whether a leader must propose to leave the joint configuration of `region`, which is
    /// applied. `is_blocked` tells that Raft would not take the proposal now.
    pub fn must_leave_joint(&self, region: &Region, is_blocked: bool) -> bool {
        region.is_joint() && !self.is_pending() && !is_blocked
    }
}

/// Returns whether a majority of the voters of `next` responds to the leader that proposes it.
/// Invariant: no other membership is proposed. Otherwise the current voters could commit a change
/// that never completes, and the permanent loss of one unresponsive voter would make the region
/// unavailable.
pub(crate) fn has_next_quorum(next: &Region, responds: impl Fn(PeerId) -> bool) -> bool {
    let voters = || next.peers.iter().filter(|peer| peer.role.votes_next());
    voters().filter(|peer| responds(peer.id)).count() * 2 > voters().count()
        || mutant::active("raftstore.next_quorum_unasked")
}

/// Returns whether a follower has nearly all committed entries. Only then a learner is promoted: a
/// quorum that counts an empty replica can stall.
pub(crate) fn is_caught_up(follower: &Follower, committed: LogIndex) -> bool {
    let LogIndex(matched) = follower.matched;
    follower.snapshot.is_none() && matched > 0 && matched + LAG_ENTRIES_MAX >= committed.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::{Peer as PeerName, PeerRole, StoreId};

    fn region(roles: &[PeerRole]) -> Region {
        let peer = |(id, role): (u64, &PeerRole)| PeerName {
            id: PeerId(id),
            store: StoreId(id),
            role: *role,
        };
        Region { peers: (1..).zip(roles).map(peer).collect(), ..Region::default() }
    }

    #[test]
    fn a_membership_needs_a_majority_of_its_own_voters() {
        use PeerRole::{DemotingVoter, IncomingVoter, Learner, Voter};
        // Roles of the peers 1, 2, ..; those that respond; whether that is enough.
        let rows = [
            (&[Voter][..], &[1][..], true),
            (&[Voter, Voter], &[1], false),
            (&[Voter, Voter, Voter], &[1, 3], true),
            (&[Voter, Learner, Learner], &[1], true),
            (&[Voter, IncomingVoter, DemotingVoter], &[1, 3], false),
            (&[Voter, IncomingVoter, DemotingVoter], &[1, 2], true),
            (&[Learner], &[1], false),
        ];
        for (roles, responding, is_enough) in rows {
            let responds = |id: PeerId| responding.contains(&id.0);
            assert_eq!(has_next_quorum(&region(roles), responds), is_enough, "{roles:?}");
        }
    }

    #[test]
    fn a_joint_configuration_is_left_unless_something_is_under_way() {
        let joint = region(&[PeerRole::Voter, PeerRole::IncomingVoter]);
        let rows = [
            (region(&[PeerRole::Voter]), false, false, false),
            (joint.clone(), false, false, true),
            (joint.clone(), true, false, false),
            (joint, false, true, false),
        ];
        for (region, is_pending, is_blocked, expected) in rows {
            let mut changes = Changes::default();
            if is_pending {
                changes.note_proposed(LogIndex(5), false);
            }
            let found = changes.must_leave_joint(&region, is_blocked);
            assert_eq!(found, expected, "{region:?}, pending {is_pending}, blocked {is_blocked}");
        }
    }

    #[test]
    fn a_follower_that_lacks_few_entries_has_caught_up() {
        // Last entry that it holds, snapshot under way, commit index.
        let rows = [
            (0, None, 10, false),
            (10, None, 1_010, true),
            (10, None, 1_011, false),
            (10, Some(10), 10, false),
        ];
        for (matched, snapshot, committed, expected) in rows {
            let (id, matched) = (PeerId(2), LogIndex(matched));
            let follower = Follower { id, matched, snapshot: snapshot.map(LogIndex) };
            let found = is_caught_up(&follower, LogIndex(committed));
            assert_eq!(found, expected, "{follower:?}, committed {committed}");
        }
    }

    #[test]
    fn a_change_is_pending_and_a_barrier_bars_until_each_is_applied() {
        // Proposed changes (index, whether a barrier), last applied one, whether pending, barred.
        let rows = [
            (&[][..], 0, false, false),
            (&[(5, false)], 4, true, false),
            (&[(5, false)], 5, false, false),
            (&[(5, true)], 4, true, true),
            (&[(5, true)], 6, false, false),
            (&[(5, true), (6, false)], 5, true, false),
        ];
        for (proposed, applied, is_pending, is_barred) in rows {
            let mut changes = Changes::default();
            proposed
                .iter()
                .for_each(|(at, barrier)| changes.note_proposed(LogIndex(*at), *barrier));
            changes.note_applied(LogIndex(applied));
            let found = (changes.is_pending(), changes.is_barred(false));
            assert_eq!(found, (is_pending, is_barred), "{proposed:?} applied {applied}");
            assert!(changes.is_barred(true));
            changes.clear();
            assert!(!changes.is_pending() && !changes.is_barred(false));
        }
    }
}
