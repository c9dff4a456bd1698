//! Room on the devices of a region's replicas, as their messages state it.

use std::collections::BTreeMap;
use stele_types::{PeerId, Region};

/// Nanoseconds between two questions to a follower that has no room.
const ASK_INTERVAL_NANOS: u64 = 500_000_000;

/// What a replica knows of room: as a follower of its own device, as leader of those of the others.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Bytes for which the device here had no room at the last append; 0 for none.
    refused_bytes: u64,
    /// Followers that have no room, with the monotonic nanoseconds of the last question to each.
    full: BTreeMap<PeerId, u64>,
}

impl Room {
    /// Records the bytes for which the device here has no room; 0 for none.
    pub(crate) fn set_refused_bytes(&mut self, bytes: u64) {
        self.refused_bytes = bytes;
    }

    /// Returns the bytes for which the device here had no room; 0 for none.
    pub(crate) fn refused_bytes(&self) -> u64 {
        self.refused_bytes
    }

    pub(crate) fn note_answer(&mut self, follower: PeerId, is_full: bool, now_nanos: u64) {
        match is_full {
            true => _ = self.full.entry(follower).or_insert(now_nanos),
            false => _ = self.full.remove(&follower),
        }
    }

    /// Forgets the followers: another peer leads, or this one leads another term.
    pub(crate) fn forget_followers(&mut self) {
        self.full.clear();
    }

    pub(crate) fn is_full(&self, follower: PeerId) -> bool {
        self.full.contains_key(&follower)
    }

    /// Returns the followers to ask now whether they have room again.
    pub(crate) fn take_questions(&mut self, now_nanos: u64) -> Vec<PeerId> {
        let mut due = Vec::new();
        for (id, asked_nanos) in &mut self.full {
            if now_nanos.saturating_sub(*asked_nanos) >= ASK_INTERVAL_NANOS {
                *asked_nanos = now_nanos;
                due.push(*id);
            }
        }
        due
    }

    /// Returns whether the voters of `region` without room are needed for a quorum. `responds` tells
    /// which voters are there at all.
    pub(crate) fn is_quorum_full(
        &self,
        region: &Region,
        responds: impl Fn(PeerId) -> bool,
    ) -> bool {
        // bug replica.full_quorum_unasked: always
        if self.full.is_empty() {
            return false;
        }
        let has_room = |id: PeerId| !self.is_full(id) && responds(id);
        let lacks_majority = |outgoing: bool| {
            let voters = || region.peers.iter().filter(move |peer| peer.role.votes(outgoing));
            voters().filter(|peer| has_room(peer.id)).count() * 2 <= voters().count()
        };
        lacks_majority(true) || lacks_majority(false)
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
    fn a_quorum_is_full_when_too_few_voters_with_room_respond() {
        use PeerRole::{DemotingVoter, IncomingVoter, Learner, Voter};
        // Roles of peers 1, 2 .., those without room, those that do not respond.
        type Row<'a> = (&'a [PeerRole], &'a [u64], &'a [u64], bool);
        let rows: [Row<'_>; 9] = [
            (&[Voter, Voter, Voter], &[], &[2, 3], false),
            (&[Voter, Voter, Voter], &[2], &[], false),
            (&[Voter, Voter, Voter], &[2, 3], &[], true),
            (&[Voter, Voter, Voter], &[2], &[3], true),
            (&[Voter, Voter], &[2], &[], true),
            (&[Voter, Learner], &[2], &[], false),
            (&[Voter, Voter, IncomingVoter, DemotingVoter], &[3], &[], false),
            (&[Voter, Voter, IncomingVoter, DemotingVoter], &[3], &[4], false),
            (&[Voter, Voter, IncomingVoter, DemotingVoter], &[2, 3], &[], true),
        ];
        for (roles, full, silent, expected) in rows {
            let mut room = Room::default();
            full.iter().for_each(|id| room.note_answer(PeerId(*id), true, 0));
            let responds = |id: PeerId| !silent.contains(&id.0);
            let found = room.is_quorum_full(&region(roles), responds);
            assert_eq!(found, expected, "{roles:?}, full {full:?}, silent {silent:?}");
        }
    }

    #[test]
    fn a_follower_without_room_is_asked_twice_a_second_until_it_has_room() {
        let mut room = Room::default();
        room.note_answer(PeerId(2), true, 100);
        room.note_answer(PeerId(2), true, 200);
        assert!(room.is_full(PeerId(2)) && room.take_questions(99 + ASK_INTERVAL_NANOS).is_empty());
        assert_eq!(room.take_questions(100 + ASK_INTERVAL_NANOS), [PeerId(2)]);
        assert!(room.take_questions(101 + ASK_INTERVAL_NANOS).is_empty());
        room.note_answer(PeerId(2), false, 0);
        assert!(!room.is_full(PeerId(2)) && room.take_questions(u64::MAX).is_empty());
    }
}
