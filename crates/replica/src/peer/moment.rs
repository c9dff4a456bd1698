//! Steps of a moment in its region: pause, answer and seal.

use super::Replica;
use super::parts::{LogEnd, ReadOutcome, WaitingRead};
use crate::context::Context;
use crate::input::{Header, MomentCall, MomentStep, RequestId};
use crate::output::{Busy, Done, Refusal, Rejection};
use stele_storage::StorageEngine;
use stele_types::{LogIndex, MomentId};

impl<E: StorageEngine> Replica<E> {
    pub(crate) fn moment(&mut self, ctx: &mut Context<E>, id: RequestId, call: MomentCall) {
        let MomentCall { header, moment, step } = call;
        if !self.is_leader() {
            ctx.reject(id, Refusal::NotLeader { leader: self.leader_hint() });
            return;
        }
        if let Err(refusal) = self.check_version(&header, &ctx.readers) {
            ctx.reject(id, refusal);
            return;
        }
        match step {
            MomentStep::Pause => self.begin_pause(ctx, id, moment),
            MomentStep::Seal => {
                let (at, deadline) =
                    ((self.term(), ctx.now.monotonic_nanos), header.deadline_nanos);
                if !self.moments.add_seal((id, moment), at, deadline) {
                    let text =
                        format!("no pause for moment {moment} lasts in region {}", header.region);
                    ctx.reject(id, Refusal::Invalid(text));
                }
            }
        }
    }

    fn begin_pause(&mut self, ctx: &mut Context<E>, id: RequestId, moment: MomentId) {
        let (region, now) = (self.region.id, ctx.now.monotonic_nanos);
        let Some((until_nanos, ended)) = self.moments.begin((id, moment), self.term(), now) else {
            let text = format!("region {region} has paused for moment {moment} or a later one");
            ctx.reject(id, Refusal::Invalid(text));
            return;
        };
        if let Some(ended) = ended {
            ctx.reject(ended, Busy::Wait { reason: "the region pauses for a later moment" });
        }
        ctx.pauses.push_back((until_nanos, region));
    }

    /// Returns whether this leader proposes nothing now.
    ///
    /// Invariant: in a pause a leader proposes nothing: no writes, no modifications, no changes that placement
    /// requests, and none that it decides itself, as the end of a joint configuration. It would answer
    /// clients of entries that the cut lacks, while other regions have not reached theirs.
    /// Tests: `in_a_pause_nothing_is_proposed_and_reads_go_on`,
    /// `in_a_pause_a_leader_does_not_leave_a_joint_configuration`.
    pub(super) fn is_paused(&self, ctx: &Context<E>) -> bool {
        // bug replica.moment_pause_proposes: return false;
        self.moments.is_paused(ctx.now.monotonic_nanos)
    }

    /// Answers a pause with the end of the log, once all of it is committed.
    pub(super) fn answer_pause(&mut self, ctx: &mut Context<E>) {
        if !self.is_leader() {
            return;
        }
        let last = self.group.last();
        let log = LogEnd {
            is_serving: self.is_serving(),
            last,
            committed: self.committed(),
            visible: self.visible(),
        };
        if let Some(id) = self.moments.take_answer(&log) {
            let (range, term) = (self.region.range.clone(), self.term());
            ctx.done(id, Done::Paused { range, last, term });
        }
    }

    /// Confirms seals, by a lease that is valid now or by a round that begins now, and ends their pause.
    ///
    /// Invariant: a seal is confirmed at a time after its request. A lease that was valid before, or a round that
    /// began before, proves nothing of the time since: another leader may have answered writes of which the
    /// cut has a later one.
    /// Tests: `a_leader_that_was_deposed_after_its_answer_seals_nothing`, `a_seal_without_a_lease_needs_a_round`.
    ///
    /// Invariant: the pause ends here, and not with the answers to the round. What is proposed from here on was
    /// requested after the answers of all regions.
    /// Test: `a_leader_proposes_again_while_the_round_of_its_seal_is_under_way`.
    pub(super) fn confirm_seals(&mut self, ctx: &mut Context<E>) {
        let (term, now) = (self.term(), ctx.now.monotonic_nanos);
        let Some((seals, paused_nanos)) = self.moments.take_seals(now) else { return };
        let confirmed_nanos = now;
        // bug replica.moment_round_before_request: let confirmed_nanos = now.saturating_sub(super::PAUSE_NANOS);
        // bug replica.moment_seal_unconfirmed: always
        if self.has_lease(confirmed_nanos) {
            let sealed = Done::Sealed { term, paused_nanos };
            seals.into_iter().for_each(|(id, _)| ctx.done(id, sealed.clone()));
            return;
        }
        for (id, deadline_nanos) in seals {
            let header = Header { region: self.region.id, deadline_nanos, ..Header::default() };
            let answer = ReadOutcome::Sealed(term, paused_nanos);
            let (replica, min_visible, arrived_nanos) = (false, LogIndex(0), now);
            self.reads.push(WaitingRead {
                id,
                header,
                replica,
                min_visible,
                arrived_nanos,
                answer,
            });
        }
        let context = self.start_round(ctx);
        self.group.start_round(context);
    }

    /// Ends a pause of which the time is over.
    pub(super) fn end_late_pause(&mut self, ctx: &mut Context<E>) {
        if let Some(id) = self.moments.end_late(ctx.now.monotonic_nanos) {
            ctx.reject(id, Busy::Wait { reason: "the pause ended before the log was committed" });
        }
    }

    /// Ends the pause, and refuses the requests that wait in it.
    pub(super) fn end_pause<R>(&mut self, ctx: &mut Context<E>, refusal: &R)
    where
        R: Clone + Into<Rejection>,
    {
        self.moments.end_all().into_iter().for_each(|id| ctx.reject(id, refusal.clone()));
    }
}
