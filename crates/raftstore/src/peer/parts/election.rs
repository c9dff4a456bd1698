//! Times of elections: the timeout after which a peer campaigns, and the vote hold.

use crate::input::Now;
use crate::options::Options;
use stele_types::{PeerId, Prng, RegionId, mutant};

/// Election timeout and vote hold of a peer.
pub(crate) struct ElectionTimer {
    prng: Prng,
    election_ticks: (u64, u64),
    /// Ticks without a leader before this peer campaigns, drawn again after each change.
    timeout: usize,
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
    pub fn new(options: &Options, now: Now, region: RegionId, peer: PeerId) -> Self {
        let seed = options.seed ^ region.0.rotate_left(32) ^ peer.0.wrapping_mul(0x9e37_79b9);
        let hold = options.lease_times().vote_hold_nanos();
        let mut timer = Self {
            prng: Prng::new(seed),
            election_ticks: (options.election_ticks_min, options.election_ticks_max),
            timeout: 0,
            vote_hold_until_nanos: now.monotonic_nanos + hold,
            vote_hold_nanos: hold,
            is_vote_hold_pending: false,
            campaigns_first: false,
        };
        timer.redraw();
        timer
    }

    /// Starts a new log. A new replica has made no promise, so its vote hold is cleared.
    pub fn start_log(&mut self, campaigns_first: bool) {
        self.vote_hold_until_nanos = 0;
        self.campaigns_first = campaigns_first;
    }

    /// Returns, once, whether the peer must campaign now that the start of its log is durable.
    pub fn take_campaigns_first(&mut self) -> bool {
        std::mem::take(&mut self.campaigns_first)
    }

    /// Draws the election timeout; Raft's own draw is not reproducible. The first tick may come at
    /// once: a peer that campaigned after `min` ticks would still find the others withholding their
    /// votes, and would wait again.
    pub fn redraw(&mut self) {
        let (min, max) = self.election_ticks;
        let least = match mutant::active("raftstore.campaign_at_the_least") {
            true => min,
            false => (min + 1).min(max - 1),
        };
        self.timeout = (least + self.prng.below(max - least)) as usize;
    }

    /// Returns the ticks without a leader before this peer campaigns.
    pub fn timeout_ticks(&self) -> usize {
        self.timeout
    }

    /// Returns whether no vote hold is active, from this process or an earlier one. Raft itself
    /// clears its leader when it sees a later term, and a candidate that was paused may send one.
    pub fn may_vote(&self, now_nanos: u64) -> bool {
        let is_free = !self.is_vote_hold_pending && now_nanos >= self.vote_hold_until_nanos;
        is_free || mutant::active("raftstore.vote_at_once")
    }

    /// Records a heartbeat from the leader.
    pub fn note_heartbeat_round(&mut self) {
        self.is_vote_hold_pending = !mutant::active("raftstore.answer_binds_nobody");
    }

    /// Starts the vote hold. The reply to the heartbeat is sent now at the earliest.
    pub fn start_vote_hold(&mut self, now_nanos: u64) {
        if std::mem::take(&mut self.is_vote_hold_pending) {
            self.vote_hold_until_nanos = now_nanos + self.vote_hold_nanos;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use stele_types::{ClusterId, StoreId};

    const START: Now = Now { monotonic_nanos: 0, unix_seconds: 0 };

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
            drawn.insert(timer.timeout_ticks());
            timer.redraw();
            drawn.insert(timer.timeout_ticks());
        }
        assert!(drawn.iter().eq((min + 1..max).collect::<BTreeSet<_>>().iter()), "{drawn:?}");
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
}
