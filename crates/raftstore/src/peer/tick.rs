//! Raft ticks.

use super::Peer;
use crate::input::Now;
use crate::messages::Body;
use crate::options::Options;
use crate::store::{Context, Note};
use stele_storage::StorageEngine;
use stele_types::{PeerId, Prng, RegionId};

/// Ticks between queries of a merging replica for the outcome of the merge.
const ASK_EVERY_TICKS: u64 = 20;

/// Tick state of a peer.
pub(super) struct Timer {
    prng: Prng,
    election_ticks: (u64, u64),
    /// Ticks without a leader before this peer campaigns, drawn again after each change.
    timeout: usize,
    /// Monotonic nanoseconds before which no vote is granted: a reply to a heartbeat round binds
    /// for as long as a lease may last.
    vote_hold_until_nanos: u64,
    vote_hold_nanos: u64,
    /// The next poll replies to a heartbeat, which starts the vote hold.
    vote_hold_pending: bool,
    /// Ticks without work.
    pub idle_ticks: u64,
    /// Whether ticks are stopped.
    pub is_hibernating: bool,
}

impl Timer {
    pub fn new(options: &Options, now: Now, region: RegionId, peer: PeerId) -> Self {
        let seed = options.seed ^ region.0.rotate_left(32) ^ peer.0.wrapping_mul(0x9e37_79b9);
        let hold = options.lease_times().vote_hold_nanos();
        let mut timer = Self {
            prng: Prng::new(seed),
            election_ticks: (options.election_ticks_min, options.election_ticks_max),
            timeout: 0,
            vote_hold_until_nanos: now.monotonic_nanos + hold,
            vote_hold_nanos: hold,
            vote_hold_pending: false,
            idle_ticks: 0,
            is_hibernating: false,
        };
        timer.redraw();
        timer
    }

    /// Draws the election timeout; Raft's own draw is not reproducible. The first tick may come at
    /// once: a peer that campaigned after `min` ticks would still find the others withholding their
    /// votes, and would wait again.
    pub fn redraw(&mut self) {
        let (min, max) = self.election_ticks;
        let least = match stele_types::mutant::active("raftstore.campaign_at_the_least") {
            true => min,
            false => (min + 1).min(max - 1),
        };
        self.timeout = (least + self.prng.below(max - least)) as usize;
    }

    /// Returns whether no vote hold is active, from this process or an earlier one. Raft itself
    /// clears its leader when it sees a later term, and a candidate that was paused may send one.
    pub fn may_vote(&self, now_nanos: u64) -> bool {
        let is_free = !self.vote_hold_pending && now_nanos >= self.vote_hold_until_nanos;
        is_free || stele_types::mutant::active("raftstore.vote_at_once")
    }

    /// Records a heartbeat from the leader.
    pub fn note_heartbeat_round(&mut self) {
        self.vote_hold_pending = !stele_types::mutant::active("raftstore.answer_binds_nobody");
    }

    /// Starts the vote hold. The reply to the heartbeat is sent now at the earliest.
    pub fn start_vote_hold(&mut self, now_nanos: u64) {
        if std::mem::take(&mut self.vote_hold_pending) {
            self.vote_hold_until_nanos = now_nanos + self.vote_hold_nanos;
        }
    }

    /// Clears the vote hold. A new replica has made no promise.
    pub fn clear_vote_hold(&mut self) {
        self.vote_hold_until_nanos = 0;
    }
}

impl<E: StorageEngine> Peer<E> {
    /// Runs one tick.
    pub fn tick(&mut self, ctx: &mut Context<E>) {
        self.expire_waiting(ctx);
        self.expire_reads(ctx);
        self.check_transfer(ctx);
        self.timer.idle_ticks += 1;
        let served = self.reader.take_reads();
        if served > 0 {
            self.traffic.read_ops += served;
            self.timer.idle_ticks = 0;
        }
        self.query_membership_if_leaderless(ctx);
        self.offer_snapshots_if_leaderless(ctx);
        self.leave_joint_if_due(ctx);
        self.announce_prepared(ctx);
        self.destroy_if_merged(ctx);
        if self.timer.idle_ticks.is_multiple_of(ASK_EVERY_TICKS) {
            self.query_outcome_if_merging(ctx);
        }
        self.hibernate_if_idle(ctx);
        // A heartbeat after the hibernate message would wake the followers.
        if !self.timer.is_hibernating && (self.is_leader() || self.may_campaign()) {
            self.tick_raft(ctx);
        }
    }

    /// Asks the members of the region whether this replica is still one, if it may not campaign and
    /// has no leader. The reply is a heartbeat, or that it is not a member.
    fn query_membership_if_leaderless(&mut self, ctx: &mut Context<E>) {
        let leaderless_ticks = self.group.silent_ticks();
        let interval = 2 * ctx.options.election_ticks_max;
        if self.group.is_voter() || leaderless_ticks < interval {
            return;
        }
        self.leaderless_since.get_or_insert(ctx.now.monotonic_nanos);
        if leaderless_ticks.is_multiple_of(interval) {
            for peer in self.region.peers.iter().filter(|peer| peer.id != self.name.id) {
                self.send(ctx, *peer, Body::WakeUp);
            }
        }
    }

    fn tick_raft(&mut self, ctx: &mut Context<E>) {
        self.join_heartbeat(ctx);
        if self.group.tick(self.timer.timeout) && !self.is_leader() {
            self.timer.redraw();
        }
    }

    /// Starts an election, if Raft allows it.
    pub fn campaign(&mut self) {
        if !self.is_leader() && self.may_campaign() {
            self.group.campaign();
        }
    }

    /// Starts an election at once if this peer is the only voter.
    pub fn campaign_if_alone(&mut self) {
        if self.group.is_sole_voter() {
            self.campaign();
        }
    }

    /// Starts a new log: its first records are in the batch being filled. A new replica has made no
    /// promise, so its vote hold is cleared.
    pub fn start_new_log(&mut self, ctx: &mut Context<E>, campaigns: bool) {
        self.timer.clear_vote_hold();
        self.durability.log_start_pending = true;
        self.campaigns_first = campaigns;
        ctx.batches.note(Note { region: self.region.id, incarnation: self.incarnation, number: 0 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use stele_types::{ClusterId, StoreId};

    /// A vote requested after exactly the least timeout is refused by a follower that answered the
    /// old leader: it withholds its vote by time, and the first tick may come at once.
    #[test]
    fn no_peer_campaigns_at_the_least_election_timeout() {
        let options = Options::new(StoreId(1), ClusterId(7), 1, 1);
        let (min, max) = (options.election_ticks_min as usize, options.election_ticks_max as usize);
        let now = Now { monotonic_nanos: 0, unix_seconds: 0 };
        let mut drawn = BTreeSet::new();
        for peer in 0..400 {
            let mut timer = Timer::new(&options, now, RegionId(2), PeerId(peer));
            drawn.insert(timer.timeout);
            timer.redraw();
            drawn.insert(timer.timeout);
        }
        assert!(drawn.iter().eq((min + 1..max).collect::<BTreeSet<_>>().iter()), "{drawn:?}");
    }
}
