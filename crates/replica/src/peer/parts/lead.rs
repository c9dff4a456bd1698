//! Leadership: changes between two observations of Raft, and the term in which this peer serves.

use crate::input::Now;
use crate::messages::RaftKind;
use crate::options::Options;
use std::collections::BTreeMap;
use stele_types::{Peer, PeerId, Prng, RegionId, Term};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub leads: bool,
    pub term: Term,
    pub leader: Option<PeerId>,
}

#[derive(Debug, Default)]
pub(crate) struct Leadership {
    seen: Seen,
    /// Term in which this peer leads *and* has applied its first entry.
    serving: Option<Term>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transition {
    /// It no longer leads, or leads a later term.
    pub is_lost: bool,
    /// It leads, and did not lead this term before.
    pub is_won: bool,
    /// The leader is another one, or has become known or unknown.
    pub is_leader_changed: bool,
}

impl Leadership {
    /// Compares Raft's state with the last one; `None` if nothing changed.
    pub(crate) fn observe(&mut self, seen: Seen) -> Option<Transition> {
        let before = std::mem::replace(&mut self.seen, seen);
        let stays_leader = before.leads && seen.leads && before.term == seen.term;
        (before != seen).then_some(Transition {
            is_lost: before.leads && !stays_leader,
            is_won: seen.leads && !stays_leader,
            is_leader_changed: before.leader != seen.leader || before.leads != seen.leads,
        })
    }

    /// Starts serving in a term. Invariant: only after the first entry of that term is applied.
    /// Before that a new leader may lack the effects of what earlier terms committed.
    pub(crate) fn start_serving(&mut self, term: Term) {
        self.serving = Some(term);
    }

    /// Stops serving. Returns whether it served.
    pub(crate) fn stop_serving(&mut self) -> bool {
        self.serving.take().is_some()
    }

    /// Returns whether this peer serves in any term.
    pub(crate) fn is_serving(&self) -> bool {
        self.serving.is_some()
    }

    /// Returns whether this peer serves in `term`: it knows all that earlier terms committed, and
    /// may propose.
    pub(crate) fn is_serving_in(&self, term: Term) -> bool {
        self.serving == Some(term)
    }
}

// Times of elections: the timeout after which a peer campaigns, and the vote hold.
//
// The voters that follow a leader have different timeouts, by their ids: the first of them campaigns
// as early as any may, and the second only if that has not helped. A peer without a known leader draws its
// timeout: it has campaigned before, or its view of the members may differ from that of the others, and
// equal timeouts would then meet again in each round.

/// Ticks between the timeouts of two ranks. Ticks of two stores begin at different times, so one tick of
/// them is lost; within the other the first campaigns and the second replies.
const TICKS_PER_RANK: u64 = 2;

pub(crate) struct ElectionTimer {
    prng: Prng,
    election_ticks: (u64, u64),
    /// Ticks before this peer campaigns where no rank decides, drawn again after each change.
    drawn: u64,
    /// Monotonic nanoseconds before which no vote is granted: a reply to a heartbeat round binds
    /// for as long as a lease may last.
    vote_hold_until_nanos: u64,
    vote_hold_nanos: u64,
    /// The next poll replies to a heartbeat, which starts the vote hold.
    is_vote_hold_pending: bool,
    /// Campaigns as soon as the start of its log is durable.
    campaigns_first: bool,
}

impl ElectionTimer {
    /// Returns the timer of a peer that starts now: a vote hold of an earlier process may last.
    pub(crate) fn new(options: &Options, now: Now, region: RegionId, peer: PeerId) -> Self {
        let seed = options.seed ^ region.0.rotate_left(32) ^ peer.0.wrapping_mul(0x9e37_79b9);
        let hold = options.lease_times().vote_hold_nanos();
        let mut timer = Self {
            prng: Prng::new(seed),
            election_ticks: (options.election_ticks_min, options.election_ticks_max),
            drawn: 0,
            vote_hold_until_nanos: now.monotonic_nanos + hold,
            vote_hold_nanos: hold,
            is_vote_hold_pending: false,
            campaigns_first: false,
        };
        timer.redraw();
        timer
    }

    /// Starts a new log. A new replica has made no promise, so its vote hold is cleared.
    pub(crate) fn start_log(&mut self, campaigns_first: bool) {
        self.vote_hold_until_nanos = 0;
        self.campaigns_first = campaigns_first;
    }

    /// Returns, once, whether the peer must campaign now that the start of its log is durable.
    pub(crate) fn take_campaigns_first(&mut self) -> bool {
        std::mem::take(&mut self.campaigns_first)
    }

    /// Draws the election timeout; Raft's own draw is not reproducible.
    pub(crate) fn redraw(&mut self) {
        let ((_, max), least) = (self.election_ticks, self.least_ticks());
        self.drawn = least + self.prng.below(max - least);
    }

    /// Returns the fewest ticks of a timeout. The first tick may come at once: a peer that campaigned
    /// after `min` ticks would still find the others withholding their votes, and would wait again.
    fn least_ticks(&self) -> u64 {
        let (min, max) = self.election_ticks;
        // bug replica.campaign_at_the_least: return min;
        (min + 1).min(max - 1)
    }

    /// Returns the ticks without a leader after which a peer campaigns. `rank` is the number of voters
    /// that come before it; `None` if it knows no leader.
    ///
    /// Invariant: two voters that follow the same leader do not campaign at one time, and after a campaign
    /// that failed a peer draws its next timeout. Ranks above those that fit below the most ticks draw too.
    /// Tests: `followers_of_a_leader_have_timeouts_by_rank`, `equal_ranks_do_not_meet_again`.
    pub(crate) fn timeout_ticks(&self, rank: Option<u64>) -> usize {
        let after = |rank: u64| rank.saturating_mul(TICKS_PER_RANK);
        let of_rank = |rank: u64| self.least_ticks().saturating_add(after(rank));
        // bug replica.rank_without_a_leader: let rank = rank.or(Some(0));
        let ranked = rank.map(of_rank).filter(|ticks| *ticks < self.election_ticks.1);
        ranked.unwrap_or(self.drawn) as usize
    }

    /// Returns whether no vote hold is active, from this process or an earlier one. Raft itself
    /// clears its leader when it sees a later term, and a candidate that was paused may send one.
    pub(crate) fn may_vote(&self, now_nanos: u64) -> bool {
        // bug replica.vote_at_once: return true;
        !self.is_vote_hold_pending && now_nanos >= self.vote_hold_until_nanos
    }

    pub(crate) fn note_heartbeat_round(&mut self) {
        // bug replica.answer_binds_nobody: `true` is `false`
        self.is_vote_hold_pending = true;
    }

    /// Starts the vote hold. The reply to the heartbeat is sent now at the earliest.
    pub(crate) fn start_vote_hold(&mut self, now_nanos: u64) {
        if std::mem::take(&mut self.is_vote_hold_pending) {
            self.vote_hold_until_nanos = now_nanos + self.vote_hold_nanos;
        }
    }
}

// Idle time of a replica, and whether its ticks are stopped.

#[derive(Debug, Default)]
pub(crate) struct Hibernation {
    idle_ticks: u64,
    is_active: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    None,
    /// A leader runs; not work.
    HasLeader,
    /// Work, or the sign that the leader is awake.
    Wake,
}

impl Hibernation {
    /// Returns whether ticks are stopped.
    pub(crate) fn is_active(&self) -> bool {
        self.is_active
    }

    pub(crate) fn start(&mut self) {
        self.is_active = true;
    }

    /// Resumes ticks. Returns whether they were stopped.
    pub(crate) fn end(&mut self) -> bool {
        self.idle_ticks = 0;
        std::mem::take(&mut self.is_active)
    }

    /// Counts a tick, in which leases served reads or not.
    pub(crate) fn note_tick(&mut self, has_served: bool) {
        self.idle_ticks = if has_served { 0 } else { self.idle_ticks + 1 };
    }

    /// Returns whether the region was idle for `after_ticks`; 0 disables hibernation.
    pub(crate) fn is_due(&self, after_ticks: u64) -> bool {
        after_ticks != 0 && self.idle_ticks >= after_ticks
    }

    /// Returns whether this tick is one of every `ticks` idle ones.
    pub(crate) fn is_every(&self, ticks: u64) -> bool {
        self.idle_ticks.is_multiple_of(ticks)
    }

    /// Returns the effect of a message. A heartbeat does not end the idle time. It wakes a
    /// hibernating follower, because the leader is awake. Every other message except a heartbeat
    /// reply counts as work.
    pub(crate) fn reaction(&self, kind: RaftKind) -> Reaction {
        match kind {
            RaftKind::HeartbeatResponse => Reaction::None,
            RaftKind::Heartbeat if !self.is_active => Reaction::HasLeader,
            _ => Reaction::Wake,
        }
    }
}

// Peers of the region: when each was heard from last, and those outside the known membership.

const UNKNOWN_PEERS_MAX: usize = 64;

/// Contacts of a peer. All times are monotonic nanoseconds.
#[derive(Debug)]
pub(crate) struct Contacts {
    last: BTreeMap<PeerId, u64>,
    /// Senders outside the known membership.
    unknown: BTreeMap<PeerId, Peer>,
    leaderless_since: Option<u64>,
    /// Members as of a later membership that this peer has not applied.
    later: Vec<Peer>,
    /// Time of the last question whether this peer is still a member.
    asked: u64,
}

impl Contacts {
    /// Returns the contacts of a peer that starts now: it has heard from none and knows no leader.
    pub(crate) fn new(now_nanos: u64) -> Self {
        let leaderless_since = Some(now_nanos);
        Self {
            last: BTreeMap::new(),
            unknown: BTreeMap::new(),
            leaderless_since,
            later: Vec::new(),
            asked: now_nanos,
        }
    }

    pub(crate) fn note(&mut self, peer: PeerId, now_nanos: u64) {
        self.last.insert(peer, now_nanos);
    }

    pub(crate) fn note_unknown(&mut self, peer: Peer) {
        if self.unknown.len() >= UNKNOWN_PEERS_MAX {
            self.unknown.clear();
        }
        self.unknown.insert(peer.id, peer);
    }

    /// Counts silence from the time that `since` returns for each member.
    pub(crate) fn restart(&mut self, members: &[Peer], since: impl Fn(&Peer) -> u64) {
        self.last = members.iter().map(|peer| (peer.id, since(peer))).collect();
    }

    /// Remembers members as of a later membership, which may know whether this peer is one.
    pub(crate) fn note_later_members(&mut self, members: &[Peer]) {
        for member in members {
            let is_known = self.later.iter().any(|known| known.id == member.id);
            if !is_known && self.later.len() < UNKNOWN_PEERS_MAX {
                self.later.push(*member);
            }
        }
    }

    pub(crate) fn later_members(&self) -> &[Peer] {
        &self.later
    }

    /// Returns whether to ask now whether this peer is still a member: no leader is known for
    /// `after_nanos`, and the last question is `interval_nanos` ago. Counts it as asked.
    pub(crate) fn is_question_due(
        &mut self,
        now: u64,
        after_nanos: u64,
        interval_nanos: u64,
    ) -> bool {
        let is_alone = self.leaderless_nanos(now).is_some_and(|nanos| nanos >= after_nanos);
        let is_due = is_alone && now.saturating_sub(self.asked) >= interval_nanos;
        if is_due {
            self.asked = now;
        }
        is_due
    }

    /// Continues with a changed membership. Silence of a new member counts from now.
    pub(crate) fn set_members(&mut self, members: &[Peer], now_nanos: u64) {
        self.unknown.clear();
        self.later.clear();
        let known = std::mem::take(&mut self.last);
        self.restart(members, |peer| known.get(&peer.id).copied().unwrap_or(now_nanos));
    }

    pub(crate) fn set_has_leader(&mut self, has_leader: bool, now_nanos: u64) {
        match has_leader {
            true => self.leaderless_since = None,
            false => _ = self.leaderless_since.get_or_insert(now_nanos),
        }
    }

    pub(crate) fn unknown(&self, id: PeerId) -> Option<Peer> {
        self.unknown.get(&id).copied()
    }

    /// Returns the time of the last message from a peer; `None` if it was never heard from.
    pub(crate) fn last(&self, peer: PeerId) -> Option<u64> {
        self.last.get(&peer).copied()
    }

    /// Returns for how long no leader is known; `None` while one is.
    pub(crate) fn leaderless_nanos(&self, now_nanos: u64) -> Option<u64> {
        self.leaderless_since.map(|since| now_nanos.saturating_sub(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use stele_types::{ClusterId, PeerRole, StoreId};

    #[test]
    fn each_observation_yields_what_changed_since_the_last_one() {
        let seen = |leads, term, leader: u64| Seen {
            leads,
            term: Term(term),
            leader: (leader != 0).then_some(PeerId(leader)),
        };
        let change = |is_lost, is_won, is_leader_changed| {
            Some(Transition { is_lost, is_won, is_leader_changed })
        };
        let rows = [
            ("nothing", seen(false, 0, 0), None),
            ("a term", seen(false, 1, 0), change(false, false, false)),
            ("elected", seen(true, 1, 9), change(false, true, true)),
            ("the same", seen(true, 1, 9), None),
            ("elected again", seen(true, 3, 9), change(true, true, false)),
            ("deposed", seen(false, 4, 0), change(true, false, true)),
            ("follows", seen(false, 4, 8), change(false, false, true)),
        ];
        let mut leadership = Leadership::default();
        for (name, seen, expected) in rows {
            assert_eq!(leadership.observe(seen), expected, "{name}");
        }
    }

    #[test]
    fn a_peer_serves_one_term() {
        let mut leadership = Leadership::default();
        assert!(!leadership.stop_serving());
        leadership.start_serving(Term(3));
        assert!(leadership.is_serving_in(Term(3)) && !leadership.is_serving_in(Term(4)));
        assert!(leadership.is_serving() && leadership.stop_serving() && !leadership.is_serving());
    }

    const START: Now = Now { monotonic_nanos: 0, unix_millis: 0 };

    fn options() -> Options {
        Options::new(StoreId(1), ClusterId(7), 1, 1)
    }

    /// A vote requested after exactly the least timeout is refused by a follower that answered the
    /// old leader: it withholds its vote by time, and the first tick may come at once.
    #[test]
    fn no_peer_campaigns_at_the_least_election_timeout() {
        let options = options();
        let (min, max) = (options.election_ticks_min as usize, options.election_ticks_max as usize);
        let mut drawn = BTreeSet::new();
        for peer in 0..400 {
            let mut timer = ElectionTimer::new(&options, START, RegionId(2), PeerId(peer));
            drawn.insert(timer.timeout_ticks(None));
            timer.redraw();
            drawn.insert(timer.timeout_ticks(None));
        }
        assert!(drawn.iter().eq((min + 1..max).collect::<BTreeSet<_>>().iter()), "{drawn:?}");
    }

    #[test]
    fn followers_of_a_leader_have_timeouts_by_rank() {
        let options = options();
        let mut timer = ElectionTimer::new(&options, START, RegionId(2), PeerId(1));
        let of_ranks = |timer: &ElectionTimer, ranks: std::ops::Range<u64>| -> Vec<usize> {
            ranks.map(|rank| timer.timeout_ticks(Some(rank))).collect()
        };
        assert_eq!(of_ranks(&timer, 0..5), [11, 13, 15, 17, 19]);
        for rank in [5, 6, u64::MAX] {
            assert_eq!(timer.timeout_ticks(Some(rank)), timer.timeout_ticks(None), "rank {rank}");
        }
        timer.redraw();
        assert_eq!(of_ranks(&timer, 0..5), [11, 13, 15, 17, 19], "chance changes no rank");
        // The least timeout is also the most: all ranks have it.
        let narrow = Options { election_ticks_max: options.election_ticks_min + 1, ..options };
        let timer = ElectionTimer::new(&narrow, START, RegionId(2), PeerId(1));
        assert_eq!(of_ranks(&timer, 0..2), [10, 10]);
    }

    /// Two peers that each believe to be the first campaign together once. Neither knows a leader then.
    #[test]
    fn equal_ranks_do_not_meet_again() {
        let options = options();
        let mut peers = [1, 2].map(|peer| {
            let options = Options { seed: peer, ..options.clone() };
            ElectionTimer::new(&options, START, RegionId(2), PeerId(peer))
        });
        assert_eq!(peers[0].timeout_ticks(Some(0)), peers[1].timeout_ticks(Some(0)));
        let meets = |_: &u32| {
            peers.iter_mut().for_each(ElectionTimer::redraw);
            peers[0].timeout_ticks(None) == peers[1].timeout_ticks(None)
        };
        let met = (0..90).filter(meets).count();
        assert!((1..25).contains(&met), "one round in nine: {met} of 90");
    }

    #[test]
    fn a_vote_is_withheld_from_the_heartbeat_until_the_hold_after_its_answer() {
        let options = options();
        let hold = options.lease_times().vote_hold_nanos();
        let timer = || ElectionTimer::new(&options, START, RegionId(2), PeerId(1));
        let heard = |answered: Option<u64>| {
            let mut timer = timer();
            timer.start_log(false);
            timer.note_heartbeat_round();
            answered.into_iter().for_each(|at| timer.start_vote_hold(at));
            timer
        };
        let started = || {
            let mut timer = timer();
            timer.start_log(false);
            timer
        };
        let rows = [
            ("opened", timer(), hold - 1, false),
            ("opened, after the hold", timer(), hold, true),
            ("new replica", started(), 0, true),
            ("not answered", heard(None), 9 * hold, false),
            ("answered at 5", heard(Some(5)), hold + 4, false),
            ("answered at 5, after the hold", heard(Some(5)), hold + 5, true),
        ];
        for (state, timer, now, may_vote) in rows {
            assert_eq!(timer.may_vote(now), may_vote, "{state}");
        }
    }

    #[test]
    fn only_idle_ticks_in_a_row_lead_to_hibernation() {
        // Ticks, whether reads were served in each; limit; whether it is reached.
        let rows: [(&[bool], u64, bool); 5] = [
            (&[false; 9], 10, false),
            (&[false; 10], 10, true),
            (&[false, false, true, false], 3, false),
            (&[true, false, false], 2, true),
            (&[false; 10], 0, false),
        ];
        for (ticks, limit, is_due) in rows {
            let mut hibernation = Hibernation::default();
            ticks.iter().for_each(|has_served| hibernation.note_tick(*has_served));
            assert_eq!(hibernation.is_due(limit), is_due, "{ticks:?}, limit {limit}");
            hibernation.start();
            assert!(hibernation.is_active() && hibernation.end() && !hibernation.end());
            assert!(!hibernation.is_due(1));
        }
    }

    #[test]
    fn a_heartbeat_wakes_only_a_replica_that_hibernates() {
        let rows = [
            (RaftKind::Heartbeat, Reaction::HasLeader, Reaction::Wake),
            (RaftKind::HeartbeatResponse, Reaction::None, Reaction::None),
            (RaftKind::Append, Reaction::Wake, Reaction::Wake),
            (RaftKind::RequestPreVote, Reaction::Wake, Reaction::Wake),
        ];
        for (kind, awake, hibernating) in rows {
            let mut hibernation = Hibernation::default();
            assert_eq!(hibernation.reaction(kind), awake, "{kind:?}");
            hibernation.start();
            assert_eq!(hibernation.reaction(kind), hibernating, "{kind:?}, hibernating");
        }
    }

    fn peer(id: u64) -> Peer {
        Peer { id: PeerId(id), store: StoreId(id), role: PeerRole::Voter }
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
