//! Leadership transfer (Raft §3.10).

use crate::input::RequestId;
use crate::output::{Busy, Refusal, Rejection};
use stele_types::{Peer as PeerName, PeerId, Region};

/// Leadership transfers of a peer.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    current: Option<Transfer>,
    /// Target of the last transfer, from the loss of leadership until a leader is known.
    target: Option<PeerName>,
}

/// Transfer in progress.
#[derive(Debug)]
struct Transfer {
    to: PeerId,
    /// Request to answer.
    id: Option<RequestId>,
    /// Whether the target was offered the leadership. Before that it cannot become leader by this
    /// transfer.
    is_offered: bool,
    /// Monotonic nanoseconds after which a peer that no longer leads gives up on the answer.
    until_nanos: u64,
}

/// Answer to a transfer that began.
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
    pub fn begin(
        &mut self,
        (region, own): (&Region, PeerId),
        to: PeerId,
        id: Option<RequestId>,
        until_nanos: u64,
    ) -> Result<bool, Rejection> {
        match region.peer(to) {
            Some(peer) if peer.id == own => Ok(false),
            Some(peer) if peer.role.votes_next() && self.current.is_none() => {
                self.current = Some(Transfer { to, id, is_offered: false, until_nanos });
                Ok(true)
            }
            Some(peer) if peer.role.votes_next() => {
                Err(Busy::Wait { reason: "a leadership transfer is already in progress" }.into())
            }
            _ => Err(Refusal::Invalid(format!("peer {to} is not a voter of the region")).into()),
        }
    }

    /// Returns whether a transfer is in progress, or waits for its outcome.
    pub fn is_pending(&self) -> bool {
        self.current.is_some()
    }

    /// Records that the offer to campaign leaves for the target.
    pub fn note_offered(&mut self) {
        self.current.iter_mut().for_each(|transfer| transfer.is_offered = true);
    }

    /// Records the loss of leadership: clients are redirected to the target until a leader is
    /// known.
    pub fn note_leadership_lost(&mut self, region: &Region) {
        if let Some(transfer) = &self.current {
            self.target = region.peer(transfer.to).copied();
        }
    }

    /// Records that a leader is known.
    pub fn note_has_leader(&mut self) {
        self.target = None;
    }

    /// Returns the peer that probably leads next.
    pub fn target(&self) -> Option<PeerName> {
        self.target
    }

    /// Ends the transfer because another peer, `leader`, leads. It is done only if that is the
    /// target. Otherwise the offer to the target is of an earlier term and has no effect.
    pub fn end_with_leader(&mut self, leader: PeerId) -> Option<(RequestId, TransferEnd)> {
        let Transfer { to, id, .. } = self.current.take()?;
        let any = stele_types::mutant::active("raftstore.transfer_done_to_any");
        let end = if leader == to || any { TransferEnd::Done } else { TransferEnd::Superseded };
        Some((id?, end))
    }

    /// Ends the transfer if it did not succeed in time: Raft gave it up on a leader, as
    /// `is_given_up` says, or no leader is known.
    pub fn end_late(
        &mut self,
        is_leader: bool,
        is_given_up: bool,
        now_nanos: u64,
    ) -> Option<(RequestId, TransferEnd)> {
        let has_ended =
            |it: &mut Transfer| if is_leader { is_given_up } else { it.until_nanos <= now_nanos };
        let Transfer { id, is_offered, .. } = self.current.take_if(has_ended)?;
        Some((id?, if is_offered { TransferEnd::Unknown } else { TransferEnd::TimedOut }))
    }

    /// Ends the transfer without an outcome. Returns the request.
    pub fn abandon(&mut self) -> Option<RequestId> {
        self.current.take()?.id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::{PeerRole, StoreId};

    const ID: RequestId = RequestId(9);

    /// Region of the voters 1 to 3 and the learner 4.
    fn region() -> Region {
        let role = |id| if id == 4 { PeerRole::Learner } else { PeerRole::Voter };
        let peer = |id| PeerName { id: PeerId(id), store: StoreId(id), role: role(id) };
        Region { peers: (1..=4).map(peer).collect(), ..Region::default() }
    }

    fn begin(transfers: &mut Transfers, to: u64) -> Result<bool, Rejection> {
        transfers.begin((&region(), PeerId(1)), PeerId(to), Some(ID), 100)
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
        transfers.note_leadership_lost(&region());
        assert_eq!(transfers.target(), None);
        begin(&mut transfers, 2).unwrap();
        transfers.note_leadership_lost(&region());
        assert_eq!(transfers.target().map(|peer| peer.id), Some(PeerId(2)));
        transfers.note_has_leader();
        assert_eq!((transfers.target(), transfers.abandon()), (None, Some(ID)));
    }
}
