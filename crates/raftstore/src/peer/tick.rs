//! Time as Raft counts it.

use super::Peer;
use crate::input::Now;
use crate::messages::Body;
use crate::options::Options;
use crate::store::{Context, Note};
use stele_storage::StorageEngine;
use stele_types::{PeerId, Prng, RegionId};

/// How often a replica that is being merged asks the others whether it was.
const ASK_EVERY_TICKS: u64 = 20;

/// A peer's clockwork.
pub(super) struct Timer {
    prng: Prng,
    election_ticks: (u64, u64),
    /// Ticks without a leader before this peer campaigns, drawn anew after each change.
    timeout: usize,
    /// No vote before this time: an answer to a leader's round binds as long as a lease may last.
    votes_from_nanos: u64,
    silent_nanos: u64,
    /// A leader is answered with the poll to come.
    answers: bool,
    /// Ticks without work.
    pub idle_ticks: u64,
    /// It does not tick.
    pub hibernation_probe: bool,
}

impl Timer {
    pub fn new(options: &Options, now: Now, region: RegionId, peer: PeerId) -> Self {
        let seed = options.seed ^ region.0.rotate_left(32) ^ peer.0.wrapping_mul(0x9e37_79b9);
        let silent = options.election_ticks_min * options.tick_nanos;
        let mut timer = Self {
            prng: Prng::new(seed),
            election_ticks: (options.election_ticks_min, options.election_ticks_max),
            timeout: 0,
            votes_from_nanos: now.monotonic_nanos + silent,
            silent_nanos: silent,
            answers: false,
            idle_ticks: 0,
            hibernation_probe: false,
        };
        timer.redraw();
        timer
    }

    /// Draws the election timeout: Raft's own draw is not repeatable. The first tick may come at once,
    /// so who asked after `min` ticks would find the others bound to the old leader, and wait again.
    pub fn redraw(&mut self) {
        let (min, max) = self.election_ticks;
        let least = match stele_types::mutant::active("raftstore.campaign_at_the_least") {
            true => min,
            false => (min + 1).min(max - 1),
        };
        self.timeout = (least + self.prng.below(max - least)) as usize;
    }

    /// Whether no promise binds any more, of this life or an earlier one. Raft itself forgets whom it
    /// answered when it hears of a later term, and a candidate that stood still may speak of one.
    pub fn may_vote(&self, now_nanos: u64) -> bool {
        let is_free = !self.answers && now_nanos >= self.votes_from_nanos;
        is_free || stele_types::mutant::active("raftstore.vote_at_once")
    }

    /// A round of its leader came.
    pub fn start_vote_hold(&mut self) {
        self.answers = !stele_types::mutant::active("raftstore.answer_binds_nobody");
    }

    /// The answer leaves now, at the earliest.
    pub fn note_heartbeat_round(&mut self, now_nanos: u64) {
        if std::mem::take(&mut self.answers) {
            self.votes_from_nanos = now_nanos + self.silent_nanos;
        }
    }

    /// Nothing was promised in an earlier life.
    pub fn clear_vote_hold(&mut self) {
        self.votes_from_nanos = 0;
    }
}

impl<E: StorageEngine> Peer<E> {
    /// One tick.
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
        self.ask_members_if_silent(ctx);
        self.offer_to_silent_voters(ctx);
        self.leave_joint_if_due(ctx);
        self.tell_prepared(ctx);
        self.destroy_if_merged(ctx);
        if self.timer.idle_ticks.is_multiple_of(ASK_EVERY_TICKS) {
            self.ask_whether_taken_if_merging(ctx);
        }
        self.hibernate_if_idle(ctx);
        // A heartbeat behind the word to rest would wake everyone.
        if !self.timer.hibernation_probe && (self.is_leader() || self.may_campaign()) {
            self.tick_raft(ctx);
        }
    }

    /// A replica that may not campaign, and that no leader speaks to, asks whether it is still a
    /// member: the answer is a heartbeat, or that it is gone.
    fn ask_members_if_silent(&mut self, ctx: &mut Context<E>) {
        let silent = self.node.raft.election_elapsed as u64;
        let often = 2 * ctx.options.election_ticks_max;
        if self.node.raft.promotable() || silent < often {
            return;
        }
        self.leaderless_since.get_or_insert(ctx.now.monotonic_nanos);
        if silent.is_multiple_of(often) {
            for peer in self.region.peers.iter().filter(|peer| peer.id != self.name.id) {
                self.send(ctx, *peer, Body::WakeUp);
            }
        }
    }

    fn tick_raft(&mut self, ctx: &mut Context<E>) {
        if self.node.raft.randomized_election_timeout() != self.timer.timeout {
            self.node.raft.set_randomized_election_timeout(self.timer.timeout);
        }
        self.join_heartbeat(ctx);
        if self.node.tick() && !self.is_leader() {
            self.timer.redraw();
        }
    }

    /// Campaigns now, if Raft lets it.
    pub fn campaign(&mut self) {
        if !self.is_leader() && self.may_campaign() {
            // It fails only for who is no voter, who then just does not campaign.
            let _refused = self.node.campaign();
        }
    }

    /// Campaigns at once where nobody else can.
    pub fn campaign_if_alone(&mut self) {
        if self.node.raft.promotable() && self.node.raft.prs().is_singleton() {
            self.campaign();
        }
    }

    /// Its log begins with records in the batch being filled. Nobody was promised anything by a peer
    /// that never was before.
    pub fn starts_new_log(&mut self, ctx: &mut Context<E>, campaigns: bool) {
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

    /// A vote that is asked for after exactly the least timeout is refused by whoever answered the old
    /// leader: a promise is kept by time, and the first tick may come at once.
    #[test]
    fn nobody_campaigns_at_the_least_election_timeout() {
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
