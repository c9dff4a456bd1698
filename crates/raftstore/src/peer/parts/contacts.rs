//! Peers of the region: when each was heard from last, and those outside the known membership.

use std::collections::BTreeMap;
use stele_types::{Peer as PeerName, PeerId};

/// Most senders remembered that are not members.
const UNKNOWN_PEERS_MAX: usize = 64;

/// Contacts of a peer. All times are monotonic nanoseconds.
#[derive(Debug)]
pub(crate) struct Contacts {
    /// Time of the last message from each peer.
    last: BTreeMap<PeerId, u64>,
    /// Senders outside the known membership.
    unknown: BTreeMap<PeerId, PeerName>,
    /// Time since which no leader is known.
    leaderless_since: Option<u64>,
    /// Members as of a later membership that this peer has not applied.
    later: Vec<PeerName>,
    /// Time of the last question whether this peer is still a member.
    asked: u64,
}

impl Contacts {
    /// Returns the contacts of a peer that starts now: it has heard from none and knows no leader.
    pub fn new(now_nanos: u64) -> Self {
        let leaderless_since = Some(now_nanos);
        Self {
            last: BTreeMap::new(),
            unknown: BTreeMap::new(),
            leaderless_since,
            later: Vec::new(),
            asked: now_nanos,
        }
    }

    /// Records a message from a peer, or one that is expected from it next.
    pub fn note(&mut self, peer: PeerId, now_nanos: u64) {
        self.last.insert(peer, now_nanos);
    }

    /// Remembers a sender that is not a member.
    pub fn note_unknown(&mut self, peer: PeerName) {
        if self.unknown.len() >= UNKNOWN_PEERS_MAX {
            self.unknown.clear();
        }
        self.unknown.insert(peer.id, peer);
    }

    /// Counts silence from the time that `since` returns for each member.
    pub fn restart(&mut self, members: &[PeerName], since: impl Fn(&PeerName) -> u64) {
        self.last = members.iter().map(|peer| (peer.id, since(peer))).collect();
    }

    /// Remembers members as of a later membership, which may know whether this peer is one.
    pub fn note_later_members(&mut self, members: &[PeerName]) {
        for member in members {
            let is_known = self.later.iter().any(|known| known.id == member.id);
            if !is_known && self.later.len() < UNKNOWN_PEERS_MAX {
                self.later.push(*member);
            }
        }
    }

    /// Returns the members as of later memberships.
    pub fn later_members(&self) -> &[PeerName] {
        &self.later
    }

    /// Returns whether to ask now whether this peer is still a member: no leader is known for
    /// `after_nanos`, and the last question is `interval_nanos` ago. Counts it as asked.
    pub fn is_question_due(&mut self, now: u64, after_nanos: u64, interval_nanos: u64) -> bool {
        let is_alone = self.leaderless_nanos(now).is_some_and(|nanos| nanos >= after_nanos);
        let is_due = is_alone && now.saturating_sub(self.asked) >= interval_nanos;
        if is_due {
            self.asked = now;
        }
        is_due
    }

    /// Continues with a changed membership. Silence of a new member counts from now.
    pub fn set_members(&mut self, members: &[PeerName], now_nanos: u64) {
        self.unknown.clear();
        self.later.clear();
        let known = std::mem::take(&mut self.last);
        self.restart(members, |peer| known.get(&peer.id).copied().unwrap_or(now_nanos));
    }

    /// Records whether a leader is known.
    pub fn set_has_leader(&mut self, has_leader: bool, now_nanos: u64) {
        match has_leader {
            true => self.leaderless_since = None,
            false => _ = self.leaderless_since.get_or_insert(now_nanos),
        }
    }

    /// Returns a sender that is not a member.
    pub fn unknown(&self, id: PeerId) -> Option<PeerName> {
        self.unknown.get(&id).copied()
    }

    /// Returns the time of the last message from a peer; `None` if it was never heard from.
    pub fn last(&self, peer: PeerId) -> Option<u64> {
        self.last.get(&peer).copied()
    }

    /// Returns for how long no leader is known; `None` while one is.
    pub fn leaderless_nanos(&self, now_nanos: u64) -> Option<u64> {
        self.leaderless_since.map(|since| now_nanos.saturating_sub(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::{PeerRole, StoreId};

    fn peer(id: u64) -> PeerName {
        PeerName { id: PeerId(id), store: StoreId(id), role: PeerRole::Voter }
    }

    #[test]
    fn silence_counts_from_the_last_message_or_from_becoming_a_member() {
        let mut contacts = Contacts::new(0);
        contacts.restart(&[peer(1), peer(2)], |_| 10);
        contacts.note(PeerId(2), 20);
        contacts.note_unknown(peer(3));
        contacts.set_members(&[peer(2), peer(3)], 30);
        let rows = [(1, None), (2, Some(20)), (3, Some(30)), (4, None)];
        for (id, expected) in rows {
            assert_eq!(contacts.last(PeerId(id)), expected, "peer {id}");
        }
        assert_eq!(contacts.unknown(PeerId(3)), None, "it is a member now");
    }

    #[test]
    fn the_time_without_a_leader_starts_once() {
        // Known leader at each time, then the nanoseconds without one at 10.
        let rows = [
            (&[][..], Some(9)),
            (&[(2, false), (5, false)], Some(9)),
            (&[(2, true)], None),
            (&[(2, true), (5, false), (7, false)], Some(5)),
        ];
        for (seen, expected) in rows {
            let mut contacts = Contacts::new(1);
            seen.iter().for_each(|(at, leader)| contacts.set_has_leader(*leader, *at));
            assert_eq!(contacts.leaderless_nanos(10), expected, "{seen:?}");
        }
    }

    #[test]
    fn a_peer_without_a_leader_asks_at_intervals_whether_it_is_a_member() {
        let mut contacts = Contacts::new(0);
        // Time, whether the question is due: without a leader for 30, each 20.
        for (now, is_due) in [(29, false), (30, true), (31, false), (49, false), (50, true)] {
            assert_eq!(contacts.is_question_due(now, 30, 20), is_due, "at {now}");
        }
        contacts.set_has_leader(true, 60);
        assert!(!contacts.is_question_due(1_000, 30, 20));
    }

    #[test]
    fn later_members_are_bounded_and_forgotten_with_the_next_membership() {
        let mut contacts = Contacts::new(0);
        (0..1_000).for_each(|id| contacts.note_later_members(&[peer(id), peer(id)]));
        assert_eq!(contacts.later_members().len(), UNKNOWN_PEERS_MAX);
        contacts.set_members(&[peer(1)], 0);
        assert!(contacts.later_members().is_empty());
    }

    #[test]
    fn unknown_senders_are_bounded() {
        let mut contacts = Contacts::new(0);
        (0..1_000).for_each(|id| contacts.note_unknown(peer(id)));
        assert!(contacts.unknown.len() <= UNKNOWN_PEERS_MAX);
        assert_eq!(contacts.unknown(PeerId(999)), Some(peer(999)));
    }
}
