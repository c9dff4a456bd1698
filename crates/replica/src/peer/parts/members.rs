//! Changes of the region that are proposed and not applied, and the rules for its members.

use crate::input::RequestId;
use crate::output::{Busy, Refusal, Rejection};
use crate::peer::raft_group::Follower;
use stele_types::{LogIndex, Peer, PeerId, Region, Term};

/// Most committed entries that a follower may lack and still count as caught up.
const LAG_ENTRIES_MAX: u64 = 1_000;

#[derive(Debug, Default)]
pub(crate) struct PendingChanges {
    /// Last proposed entry that changes the region, until it is applied.
    last: Option<LogIndex>,
    /// Last proposed entry that changes the range or the phase, until it is applied.
    barrier: Option<LogIndex>,
}

impl PendingChanges {
    pub(crate) fn note_proposed(&mut self, at: LogIndex, is_barrier: bool) {
        self.last = Some(at);
        self.barrier = is_barrier.then_some(at).or(self.barrier);
    }

    pub(crate) fn note_applied(&mut self, at: LogIndex) {
        self.last.take_if(|last| *last <= at);
        self.barrier.take_if(|barrier| *barrier <= at);
    }

    /// Forgets all of them: another peer leads.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns whether a change is under way. A descriptor is derived from the applied region: two
    /// changes in flight would overwrite each other.
    pub(crate) fn is_pending(&self) -> bool {
        self.last.is_some()
    }

    /// Returns whether proposals must wait; `is_proposing` tells that a change is about to be
    /// proposed. Invariant: nothing is proposed after an entry that
    /// changes the range or the phase, so what is checked against the region now holds when it is
    /// applied.
    pub(crate) fn is_barred(&self, is_proposing: bool) -> bool {
        // bug replica.propose_behind_barrier: return false;
        is_proposing || self.barrier.is_some()
    }

    /// Returns whether a leader must propose to leave the joint configuration of `region`, which is
    /// applied. `is_blocked` tells that Raft would not take the proposal now.
    pub(crate) fn must_leave_joint(&self, region: &Region, is_blocked: bool) -> bool {
        region.is_joint() && !self.is_pending() && !is_blocked
    }
}

/// Returns whether a majority of the voters of `next` responds to the leader that proposes it.
/// Invariant: no other membership is proposed. Otherwise the current voters could commit a change
/// that never completes, and the permanent loss of one unresponsive voter would make the region
/// unavailable.
pub(crate) fn has_next_quorum(next: &Region, responds: impl Fn(PeerId) -> bool) -> bool {
    let voters = || next.peers.iter().filter(|peer| peer.role.votes_next());
    // bug replica.next_quorum_unasked: return true;
    voters().filter(|peer| responds(peer.id)).count() * 2 > voters().count()
}

/// Returns whether a follower has nearly all committed entries. Only then a learner is promoted: a
/// quorum that counts an empty replica can stall.
pub(crate) fn is_caught_up(follower: &Follower, committed: LogIndex) -> bool {
    let LogIndex(matched) = follower.matched;
    follower.snapshot.is_none() && matched > 0 && matched + LAG_ENTRIES_MAX >= committed.0
}

// Leadership transfer (Raft §3.10).

#[derive(Debug, Default)]
pub(crate) struct Transfers {
    current: Option<Transfer>,
    /// Target of the last transfer, from the loss of leadership until a leader is known.
    target: Option<Peer>,
}

#[derive(Debug)]
struct Transfer {
    to: PeerId,
    id: Option<RequestId>,
    /// Whether the target was offered the leadership. Before that it cannot become leader by this
    /// transfer.
    is_offered: bool,
    times: TransferTimes,
}

/// Times of a leadership transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferTimes {
    /// Term that ends with it.
    pub term: Term,
    /// Monotonic nanoseconds after which a peer that no longer leads gives up on the answer.
    pub until_nanos: u64,
    /// Times that Raft tries, at least 1.
    pub attempts: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferEnd {
    Done,
    /// Another peer than the target leads.
    Superseded,
    /// The target was not offered the leadership in time.
    TimedOut,
    /// The target was offered the leadership and may still campaign.
    Unknown,
}

impl Transfers {
    /// Begins a transfer by `own` to another voter. Returns whether it began: `own` needs none.
    pub(crate) fn begin(
        &mut self,
        (region, own): (&Region, PeerId),
        to: PeerId,
        id: Option<RequestId>,
        times: TransferTimes,
    ) -> Result<bool, Rejection> {
        match region.peer(to) {
            Some(peer) if peer.id == own => Ok(false),
            Some(peer) if peer.role.votes_next() && self.current.is_none() => {
                self.current = Some(Transfer { to, id, is_offered: false, times });
                Ok(true)
            }
            Some(peer) if peer.role.votes_next() => {
                Err(Busy::Wait { reason: "a leadership transfer is already in progress" }.into())
            }
            _ => Err(Refusal::Invalid(format!("peer {to} is not a voter of the region")).into()),
        }
    }

    /// Returns whether a transfer is in progress, or waits for its outcome.
    pub(crate) fn is_pending(&self) -> bool {
        self.current.is_some()
    }

    /// Returns the target for another attempt, if one is left: Raft, with the leader in `term`, gave the
    /// last one up.
    ///
    /// Invariant: the transfer goes on only in the term in which it began. In a later one the lease is valid.
    pub(crate) fn take_attempt(&mut self, term: Term) -> Option<PeerId> {
        // bug replica.transfer_given_up_early: return None;
        let transfer = self.current.as_mut().filter(|transfer| transfer.times.term == term)?;
        let left = transfer.times.attempts.checked_sub(1).filter(|left| *left > 0)?;
        transfer.times.attempts = left;
        Some(transfer.to)
    }

    pub(crate) fn note_offered(&mut self) {
        self.current.iter_mut().for_each(|transfer| transfer.is_offered = true);
    }

    /// Records the loss of leadership: clients are redirected to the target until a leader is
    /// known.
    pub(crate) fn note_leadership_lost(&mut self, region: &Region) {
        if let Some(transfer) = &self.current {
            self.target = region.peer(transfer.to).copied();
        }
    }

    pub(crate) fn note_has_leader(&mut self) {
        self.target = None;
    }

    /// Returns the peer that probably leads next.
    pub(crate) fn target(&self) -> Option<Peer> {
        self.target
    }

    /// Ends the transfer because another peer, `leader`, leads. It is done only if that is the
    /// target. Otherwise the offer to the target is of an earlier term and has no effect.
    pub(crate) fn end_with_leader(&mut self, leader: PeerId) -> Option<(RequestId, TransferEnd)> {
        let Transfer { to, id, .. } = self.current.take()?;
        // bug replica.transfer_done_to_any: always
        let end = if leader == to { TransferEnd::Done } else { TransferEnd::Superseded };
        Some((id?, end))
    }

    /// Ends the transfer if it did not succeed in time: Raft gave it up on a leader, as
    /// `is_given_up` says, or no leader is known.
    pub(crate) fn end_late(
        &mut self,
        is_leader: bool,
        is_given_up: bool,
        now_nanos: u64,
    ) -> Option<(RequestId, TransferEnd)> {
        let has_ended = |it: &mut Transfer| {
            if is_leader { is_given_up } else { it.times.until_nanos <= now_nanos }
        };
        let Transfer { id, is_offered, .. } = self.current.take_if(has_ended)?;
        Some((id?, if is_offered { TransferEnd::Unknown } else { TransferEnd::TimedOut }))
    }

    /// Ends the transfer without an outcome. Returns the request.
    pub(crate) fn abandon(&mut self) -> Option<RequestId> {
        self.current.take()?.id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::{Peer, PeerRole, StoreId};

    fn region(roles: &[PeerRole]) -> Region {
        let peer =
            |(id, role): (u64, &PeerRole)| Peer { id: PeerId(id), store: StoreId(id), role: *role };
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
            let mut changes = PendingChanges::default();
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
            let mut changes = PendingChanges::default();
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

    const ID: RequestId = RequestId(9);

    /// Region of the voters 1 to 3 and the learner 4.
    fn three_voters() -> Region {
        let role = |id| if id == 4 { PeerRole::Learner } else { PeerRole::Voter };
        let peer = |id| Peer { id: PeerId(id), store: StoreId(id), role: role(id) };
        Region { peers: (1..=4).map(peer).collect(), ..Region::default() }
    }

    fn begin(transfers: &mut Transfers, to: u64) -> Result<bool, Rejection> {
        let times = TransferTimes { term: Term(7), until_nanos: 100, attempts: 3 };
        transfers.begin((&three_voters(), PeerId(1)), PeerId(to), Some(ID), times)
    }

    #[test]
    fn a_transfer_is_attempted_again_in_its_term_only() {
        let mut transfers = Transfers::default();
        assert_eq!(transfers.take_attempt(Term(7)), None);
        assert_eq!(begin(&mut transfers, 2).ok(), Some(true));
        assert_eq!(transfers.take_attempt(Term(8)), None);
        let attempts = [(); 4].map(|()| transfers.take_attempt(Term(7)));
        assert_eq!(attempts, [Some(PeerId(2)), Some(PeerId(2)), None, None]);
    }

    #[test]
    fn only_another_voter_is_a_target_and_one_at_a_time() {
        // Targets in order; whether the last one begins, or is rejected as busy or invalid.
        let rows: [(&[u64], Result<bool, bool>); 5] = [
            (&[2], Ok(true)),
            (&[1], Ok(false)),
            (&[2, 3], Err(true)),
            (&[4], Err(false)),
            (&[5], Err(false)),
        ];
        for (targets, expected) in rows {
            let mut transfers = Transfers::default();
            let begun = targets.iter().map(|to| begin(&mut transfers, *to)).last().unwrap();
            let is_busy = |rejection| matches!(rejection, Rejection::Busy(_));
            assert_eq!(begun.map_err(is_busy), expected, "{targets:?}");
        }
    }

    #[test]
    fn a_transfer_ends_with_a_leader_or_late_and_once() {
        use TransferEnd::{Done, Superseded, TimedOut, Unknown};
        type End = fn(&mut Transfers) -> Option<(RequestId, TransferEnd)>;
        // Whether the target was offered the leadership, the event, the answer.
        let rows: [(bool, End, Option<TransferEnd>); 8] = [
            (true, |it| it.end_with_leader(PeerId(2)), Some(Done)),
            (true, |it| it.end_with_leader(PeerId(3)), Some(Superseded)),
            (true, |it| it.end_late(true, false, 500), None),
            (true, |it| it.end_late(true, true, 0), Some(Unknown)),
            (false, |it| it.end_late(true, true, 0), Some(TimedOut)),
            (true, |it| it.end_late(false, true, 99), None),
            (true, |it| it.end_late(false, true, 100), Some(Unknown)),
            (false, |it| it.end_late(false, true, 100), Some(TimedOut)),
        ];
        for (row, (is_offered, end, expected)) in rows.into_iter().enumerate() {
            let mut transfers = Transfers::default();
            begin(&mut transfers, 2).unwrap();
            if is_offered {
                transfers.note_offered();
            }
            assert_eq!(end(&mut transfers), expected.map(|end| (ID, end)), "row {row}");
            assert_eq!(transfers.is_pending(), expected.is_none(), "row {row}");
        }
    }

    #[test]
    fn clients_are_redirected_to_the_target_until_a_leader_is_known() {
        let mut transfers = Transfers::default();
        transfers.note_leadership_lost(&three_voters());
        assert_eq!(transfers.target(), None);
        begin(&mut transfers, 2).unwrap();
        transfers.note_leadership_lost(&three_voters());
        assert_eq!(transfers.target().map(|peer| peer.id), Some(PeerId(2)));
        transfers.note_has_leader();
        assert_eq!((transfers.target(), transfers.abandon()), (None, Some(ID)));
    }
}
