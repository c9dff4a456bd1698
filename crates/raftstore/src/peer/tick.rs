//! Raft ticks.

use super::Peer;
use super::snapshot::OFFER_AFTER;
use crate::messages::Body;
use crate::store::{Context, Note};
use stele_storage::StorageEngine;
use stele_types::mutant;

/// Ticks between queries of a merging replica for the outcome of the merge.
const ASK_EVERY_TICKS: u64 = 20;

impl<E: StorageEngine> Peer<E> {
    /// Runs one tick.
    pub fn tick(&mut self, ctx: &mut Context<E>) {
        self.expire_waiting(ctx);
        self.expire_reads(ctx);
        self.check_transfer(ctx);
        let served = self.reader.take_reads(&ctx.readers);
        self.hibernation.note_tick(served > 0);
        self.query_membership_if_leaderless(ctx);
        self.offer_snapshots_if_leaderless(ctx);
        self.leave_joint_if_due(ctx);
        self.announce_prepared(ctx);
        self.ask_for_room(ctx);
        self.destroy_if_merged(ctx);
        if self.hibernation.is_every(ASK_EVERY_TICKS) {
            self.query_outcome_if_merging(ctx);
        }
        self.hibernate_if_idle(ctx);
        // A heartbeat after the hibernate message would wake the followers.
        if !self.is_hibernating() && (self.is_leader() || self.may_campaign()) {
            self.tick_raft(ctx);
        }
    }

    /// Asks whether this replica is still a member, if it has no leader: all members, learners too,
    /// and those of later memberships that it heard of. The reply is a heartbeat, that it is not a
    /// member, or the members of a later membership with it. A voter also campaigns, and asks only
    /// where that has not helped for long: other voters may know no more than it does.
    ///
    /// Invariant: only a member of a later applied membership without this replica says that it is
    /// gone. That no replica replies proves nothing.
    fn query_membership_if_leaderless(&mut self, ctx: &mut Context<E>) {
        let interval = 2 * ctx.options.election_ticks_max;
        let is_due = if self.group.is_voter() {
            let (interval_nanos, now) =
                (interval * ctx.options.tick_nanos, ctx.now.monotonic_nanos);
            let after_nanos = OFFER_AFTER * ctx.options.election_ticks_max * ctx.options.tick_nanos;
            self.contacts.is_question_due(now, after_nanos, interval_nanos)
                && !mutant::active("raftstore.stale_voter_asks_nothing")
        } else {
            let leaderless_ticks = self.group.silent_ticks();
            if leaderless_ticks >= interval {
                self.contacts.set_has_leader(false, ctx.now.monotonic_nanos);
            }
            leaderless_ticks >= interval && leaderless_ticks.is_multiple_of(interval)
        };
        if is_due {
            self.send_to_others(ctx, &Body::WakeUp);
            let later = self.contacts.later_members().iter();
            let later = later.filter(|peer| self.region.peer(peer.id).is_none());
            later.for_each(|peer| self.send(ctx, *peer, Body::WakeUp));
        }
    }

    fn tick_raft(&mut self, ctx: &mut Context<E>) {
        self.join_heartbeat(ctx);
        if self.group.tick(self.election.timeout_ticks()) && !self.is_leader() {
            self.election.redraw();
        }
    }

    /// Starts an election, if this peer is a voter with a durable log. Invariant: no learner campaigns.
    /// It may lack the changes of members that a leader must know.
    pub fn campaign(&mut self) {
        let is_voter = self.group.is_voter() || mutant::active("raftstore.learner_campaigns");
        if is_voter && !self.is_leader() && self.may_campaign() {
            self.group.campaign();
        }
    }

    /// Starts an election at once if this peer is the only voter.
    pub fn campaign_if_alone(&mut self) {
        if self.group.is_sole_voter() {
            self.campaign();
        }
    }

    /// Starts a new log: its first records are in the batch being filled.
    pub fn start_new_log(&mut self, ctx: &mut Context<E>, campaigns: bool) {
        self.election.start_log(campaigns);
        self.durability.start_log();
        ctx.batches.note(Note { region: self.region.id, incarnation: self.incarnation, number: 0 });
    }
}
