//! Leadership: changes when this peer becomes or stops being leader, and leadership transfer.

use super::Replica;
use super::parts::{Reaction, Seen, TransferEnd, TransferTimes};
use super::snapshot::OFFER_AFTER;
use crate::context::{Context, StoreRequest};
use crate::input::RequestId;
use crate::messages::{Body, RaftKind};
use crate::output::{Busy, Done, Event, Refusal, Unknown};
use crate::pipeline::ReadyInBatch;
use stele_storage::StorageEngine;
use stele_types::{LogIndex, Peer, PeerId, PeerRole, RegionPhase, Term};

/// Ticks of devices after which a peer that lost its leadership no longer waits for the next leader.
const TRANSFER_TICKS: u64 = 20;

impl<E: StorageEngine> Replica<E> {
    pub(super) fn observe(&mut self, ctx: &mut Context<E>) {
        let leader = self.group.leader();
        let seen = Seen { leads: self.is_leader(), term: self.term(), leader };
        let Some(transition) = self.leadership.observe(seen) else { return };
        let now = ctx.now.monotonic_nanos;
        if transition.is_lost {
            self.lose_leadership(ctx);
        }
        if transition.is_won {
            self.snapshots.clear();
            self.room.forget_followers();
            self.contacts.restart(&self.region.peers, |_| now);
        }
        if transition.is_leader_changed {
            self.reads.requeue();
        }
        self.answer_transfer(ctx);
        self.contacts.set_has_leader(leader.is_some(), now);
        if leader.is_some() {
            self.transfers.note_has_leader();
        }
        self.election.redraw();
        self.publish_leader();
    }

    pub(super) fn publish_leader(&self) {
        self.reader.set_leader(self.leader(), self.term().0);
    }

    /// Starts serving: the first entry of this peer's own term is applied.
    pub(super) fn start_leading(&mut self, ctx: &mut Context<E>) {
        let (region, term) = (self.region.id, self.term());
        self.leadership.start_serving(term);
        self.reader.set_leading_term(term.0);
        ctx.out.events.push(Event::BecameLeader { region, term });
    }

    fn lose_leadership(&mut self, ctx: &mut Context<E>) {
        self.reader.clear_leadership();
        self.snapshots.clear();
        self.changes.clear();
        self.group.set_commits_sent_at_once(false);
        self.lose_proposals(ctx);
        self.lose_reads(ctx);
        self.end_pause(ctx, &Refusal::NotLeader { leader: self.leader_hint() });
        self.transfers.note_leadership_lost(&self.region);
        self.refuse_held(ctx, &Refusal::NotLeader { leader: self.leader_hint() });
        if self.leadership.stop_serving() {
            ctx.out.events.push(Event::LostLeader { region: self.region.id });
        }
    }

    /// Starts a leadership transfer to `to`. From here on no lease is valid in this term: the
    /// target campaigns regardless of the followers' vote holds.
    pub(super) fn begin_transfer(
        &mut self,
        ctx: &mut Context<E>,
        to: PeerId,
        id: Option<RequestId>,
    ) {
        let times = TransferTimes {
            term: self.term(),
            until_nanos: ctx.now.monotonic_nanos + ctx.options.device_nanos(TRANSFER_TICKS),
            // Raft gives each up after the least ticks of an election.
            attempts: ctx
                .options
                .device_ticks(ctx.options.election_ticks_min)
                .div_ceil(ctx.options.election_ticks_min),
        };
        match self.transfers.begin((&self.region, self.peer.id), to, id, times) {
            Ok(true) => {
                self.end_lease_for_term();
                self.group.transfer_leadership(to);
            }
            Ok(false) => id.into_iter().for_each(|id| self.done(ctx, id)),
            Err(rejection) => id.into_iter().for_each(|id| ctx.reject(id, rejection.clone())),
        }
    }

    fn answer_transfer(&mut self, ctx: &mut Context<E>) {
        if let Some(leader) = self.leader().filter(|it| it.id != self.peer.id && !self.is_leader())
        {
            let ended = self.transfers.end_with_leader(leader.id);
            self.answer_transfer_end(ctx, ended);
        }
    }

    pub(super) fn check_transfer(&mut self, ctx: &mut Context<E>) {
        let is_given_up = !self.group.is_transferring();
        if self.is_leader()
            && is_given_up
            && let Some(to) = self.transfers.take_attempt(self.term())
        {
            self.group.transfer_leadership(to);
            return;
        }
        let now = ctx.now.monotonic_nanos;
        let ended = self.transfers.end_late(self.is_leader(), is_given_up, now);
        self.answer_transfer_end(ctx, ended);
    }

    fn answer_transfer_end(&self, ctx: &mut Context<E>, end: Option<(RequestId, TransferEnd)>) {
        let Some((id, end)) = end else { return };
        match end {
            TransferEnd::Done => self.done(ctx, id),
            TransferEnd::Superseded => {
                ctx.reject(id, Refusal::Superseded { leader: self.leader() })
            }
            TransferEnd::Unknown => ctx.unknown(id, Unknown::TransferTimedOut),
            TransferEnd::TimedOut => {
                ctx.reject(id, Busy::Wait { reason: "the leadership transfer timed out" });
            }
        }
    }

    pub(super) fn done(&self, ctx: &mut Context<E>, id: RequestId) {
        ctx.done(id, Done::Admin { region: (*self.region).clone() });
    }

    /// Steps down if this leader is no longer a voter: its log does not count for the quorum.
    pub(super) fn step_down_if_no_voter(&mut self) {
        if self.is_leader() && !self.group.is_voter() {
            self.group.step_down();
        }
    }
}

// Raft ticks.

/// Ticks of devices between queries of a merging replica for the outcome of the merge.
const ASK_EVERY_TICKS: u64 = 20;

impl<E: StorageEngine> Replica<E> {
    pub(crate) fn tick(&mut self, ctx: &mut Context<E>) {
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
        if self.hibernation.is_every(ctx.options.device_ticks(ASK_EVERY_TICKS)) {
            self.query_outcome_if_merging(ctx);
        }
        self.hibernate_if_idle(ctx);
        // A heartbeat after the hibernate message would wake the followers.
        if !self.is_hibernating() && (self.is_leader() || self.may_campaign()) {
            self.tick_raft(ctx);
        }
    }

    /// Asks whether this replica is still a member, if it has no leader: all members, learners too,
    /// those of later memberships that it heard of, and one other store. The reply is a heartbeat, that it is not a
    /// member, or the members of a later membership with it. A voter also campaigns, and asks only
    /// where that has not helped for long: other voters may know no more than it does.
    ///
    /// Invariant: only a member of a later applied membership without this replica says that it is
    /// gone. That no replica replies proves nothing.
    /// Test: `a_stale_voter_stays_where_no_later_member_without_it_answers`.
    fn query_membership_if_leaderless(&mut self, ctx: &mut Context<E>) {
        let options = &ctx.options;
        let interval = 2 * options.election_ticks_max;
        let is_due = if self.group.is_voter() {
            let (interval_nanos, now) = (options.device_nanos(interval), ctx.now.monotonic_nanos);
            let after_nanos = options.device_nanos(OFFER_AFTER * options.election_ticks_max);
            self.contacts.is_question_due(now, after_nanos, interval_nanos)
        } else {
            let interval = options.device_ticks(interval);
            let leaderless_ticks = self.group.silent_ticks();
            if leaderless_ticks >= interval {
                self.contacts.set_has_leader(false, ctx.now.monotonic_nanos);
            }
            leaderless_ticks >= interval && leaderless_ticks.is_multiple_of(interval)
        };
        // bug replica.stale_voter_asks_nothing: let is_due = is_due && !self.group.is_voter();
        if is_due {
            self.send_to_others(ctx, &Body::WakeUp);
            let later = self.contacts.later_members().iter();
            let later = later.filter(|peer| self.region.peer(peer.id).is_none());
            later.for_each(|peer| self.send(ctx, *peer, Body::WakeUp));
            ctx.store_requests.push(StoreRequest::AskElsewhere(self.region.id));
        }
    }

    fn tick_raft(&mut self, ctx: &mut Context<E>) {
        self.join_heartbeat(ctx);
        let timeout_ticks = self.election.timeout_ticks(self.rank());
        if self.group.tick(timeout_ticks) && !self.is_leader() {
            self.election.redraw();
        }
    }

    /// Returns how many other voters come before this one if the known leader is lost, in the order of
    /// their ids; `None` without a known leader.
    fn rank(&self) -> Option<u64> {
        let leader = self.group.leader()?;
        let comes_before = |peer: &&Peer| {
            peer.role != PeerRole::Learner && peer.id != leader && peer.id < self.peer.id
        };
        // bug replica.timeouts_by_chance: return None;
        Some(self.region.peers.iter().filter(comes_before).count() as u64)
    }

    /// Starts an election, if this peer is a voter with a durable log. Invariant: no learner campaigns.
    /// It may lack the changes of members that a leader must know.
    pub(crate) fn campaign(&mut self) {
        let is_voter = self.group.is_voter();
        // bug replica.learner_campaigns: let is_voter = true;
        if is_voter && !self.is_leader() && self.may_campaign() {
            self.group.campaign();
        }
    }

    /// Starts an election at once if this peer is the only voter.
    pub(crate) fn campaign_if_alone(&mut self) {
        if self.group.is_sole_voter() {
            self.campaign();
        }
    }

    /// Starts a new log: its first records are in the batch being filled.
    pub(crate) fn start_new_log(&mut self, ctx: &mut Context<E>, campaigns: bool) {
        self.election.start_log(campaigns);
        self.durability.start_log();
        ctx.batches.note_ready(ReadyInBatch {
            region: self.region.id,
            incarnation: self.incarnation,
            number: 0,
        });
    }
}

// Hibernation: an idle region sends no messages and stops its ticks. Its lease runs out; a request
// wakes it. A hibernating replica may be removed without learning of it: its store probes for
// that, see [`crate::store`].

impl<E: StorageEngine> Replica<E> {
    /// Returns whether ticks are stopped.
    pub(crate) fn is_hibernating(&self) -> bool {
        self.hibernation.is_active()
    }

    /// Returns whether it hibernates and is not the only member: the others may have removed it.
    pub(crate) fn may_have_been_removed(&self) -> bool {
        self.is_hibernating() && self.region.peers.len() > 1
    }

    /// Resumes ticks. Silence during hibernation is not a failure: only peers on unreachable stores
    /// count as unresponsive.
    pub(crate) fn wake(&mut self, ctx: &mut Context<E>) {
        let has_rested = self.hibernation.end();
        // bug replica.rest_is_silence: never
        if has_rested {
            let now = ctx.now.monotonic_nanos;
            let since = |peer: &Peer| ctx.unreachable.get(&peer.store).copied().unwrap_or(now);
            self.contacts.restart(&self.region.peers, since);
        }
    }

    /// Wakes the replica for a client. A hibernating follower cannot know whether its leader
    /// still runs, so it also wakes the leader.
    pub(crate) fn wake_for_client(&mut self, ctx: &mut Context<E>) {
        if self.is_hibernating()
            && let Some(leader) = self.leader()
            && leader.id != self.peer.id
        {
            self.send(ctx, leader, Body::WakeUp);
        }
        self.wake(ctx);
    }

    pub(super) fn note_message(&mut self, ctx: &mut Context<E>, kind: RaftKind) {
        match self.hibernation.reaction(kind) {
            Reaction::None => {}
            Reaction::HasLeader => self.contacts.set_has_leader(true, ctx.now.monotonic_nanos),
            Reaction::Wake => self.wake(ctx),
        }
    }

    /// Hibernates the region if this peer leads, nothing happened for `hibernate_after_ticks` and
    /// all followers have the whole log. Sends the followers the request to hibernate.
    pub(super) fn hibernate_if_idle(&mut self, ctx: &mut Context<E>) {
        if !self.hibernation.is_due(ctx.options.hibernate_after_ticks) || !self.is_serving() {
            return;
        }
        let last = self.group.last();
        let caught_up = self.group.followers().all(|it| it.matched == last);
        if !caught_up
            || !self.is_idle(last)
            || self.transfers.is_pending()
            || self.region.is_joint()
        {
            return;
        }
        let term = self.term();
        self.send_to_others(ctx, &Body::Hibernate { term, last });
        self.hibernation.start();
    }

    /// Returns whether everything up to `last` is committed, applied and durable and nothing is
    /// pending.
    fn is_idle(&self, last: LogIndex) -> bool {
        self.committed() == last
            && self.applied() == last
            && self.is_durable()
            && self.proposals.is_idle()
            && self.held.is_empty()
            && self.reads.is_idle()
            && self.moments.is_idle()
            && self.region.phase == RegionPhase::Normal
    }

    /// Hibernates with its leader if the log ends at `last` and nothing is pending. Otherwise wakes
    /// the leader.
    pub(super) fn on_hibernate(
        &mut self,
        ctx: &mut Context<E>,
        from: Peer,
        term: Term,
        last: LogIndex,
    ) {
        let follows = self.group.leader() == Some(from.id) && self.term() == term;
        if follows && self.group.last() == last && self.is_idle(last) {
            self.hibernation.start();
        } else if follows {
            self.send(ctx, from, Body::WakeUp);
        }
    }
}
