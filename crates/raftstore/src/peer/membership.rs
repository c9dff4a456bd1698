//! Membership changes. The leader leaves a joint configuration automatically.

use super::Peer;
use super::parts::{has_next_quorum, is_caught_up};
use super::propose::Proposing;
use super::raft_group::Follower;
use crate::admin::{self, Change};
use crate::input::{ChangeKind, PeerChange};
use crate::messages::{Body, RaftKind, RaftMessage};
use crate::output::{Busy, Refusal, Rejection, Role};
use crate::store::{Context, Effect};
use stele_storage::StorageEngine;
use stele_types::{Peer as PeerName, PeerRole, Record, Region, mutant};

/// Change, and the regions after it.
pub(super) type Plan = Result<(Change, Vec<Region>), Rejection>;

impl<E: StorageEngine> Peer<E> {
    pub(super) fn plan_change(&self, ctx: &Context<E>, changes: &[PeerChange]) -> Plan {
        if self.group.is_changing_members() {
            return Err(Busy::Wait { reason: "another membership change is in progress" }.into());
        }
        self.check_phase()?;
        if changes.is_empty() {
            let region = admin::leave_joint(&self.region).map_err(Refusal::Invalid)?;
            return Ok((Change::LeaveJoint, vec![region]));
        }
        let region = admin::change_peers(&self.region, changes).map_err(Refusal::Invalid)?;
        changes.iter().try_for_each(|change| self.check_promotion(change))?;
        self.check_next_quorum(ctx, &region)?;
        Ok((Change::Members(changes.to_vec()), vec![region]))
    }

    fn check_next_quorum(&self, ctx: &Context<E>, next: &Region) -> Result<(), Rejection> {
        let down = self.down_peers(ctx);
        let responds = |id| {
            // A follower that has not replied since this leader was elected has no known match
            // index.
            let has_answered = || self.group.follower(id).is_some_and(|it| it.matched.0 > 0);
            let is_down = || down.iter().any(|(down, _)| down.id == id);
            id == self.name.id || !is_down() && has_answered()
        };
        match has_next_quorum(next, responds) {
            true => Ok(()),
            false => Err(Busy::Wait { reason: "no majority of the new voters responds" }.into()),
        }
    }

    fn check_promotion(&self, change: &PeerChange) -> Result<(), Rejection> {
        let promotes = change.kind == ChangeKind::Add && change.peer.role == PeerRole::Voter;
        let is_ready = |it: Follower| is_caught_up(&it, self.committed());
        let is_allowed = !promotes
            || change.peer.id == self.name.id
            || self.group.follower(change.peer.id).is_some_and(is_ready);
        match is_allowed {
            true => Ok(()),
            false => Err(Busy::Wait { reason: "the learner has not caught up" }.into()),
        }
    }

    /// Handles an applied change of members. Destroys this replica if it is not a member; a leader
    /// proposes to leave a joint configuration.
    pub(super) fn members_changed(&mut self, ctx: &mut Context<E>) {
        if self.region.peer(self.name.id).is_none() {
            ctx.effects.push(Effect::Destroy((*self.region).clone()));
            return;
        }
        // Invariant: a membership is durable as soon as it counts. Otherwise a hibernating cluster
        // would need, after a power loss of all nodes, a vote of members that it has removed since.
        if !mutant::active("raftstore.members_not_kept") {
            ctx.batches.push(Record::HardState(self.region.id, self.current_hard_state()));
        }
        self.contacts.set_members(&self.region.peers, ctx.now.monotonic_nanos);
        self.leave_joint_if_due(ctx);
    }

    /// Sends the commit index to a member with an older membership, as a vote refusal. Without a
    /// leader that member may be the only one that can be elected, and not know that the change
    /// which allows it is committed. A leader that removed its own vote leaves no other peer that
    /// must send the index.
    pub(super) fn send_commit_index(&self, ctx: &mut Context<E>, to: PeerName) {
        let committed = self.committed();
        let Some(term) = self.group.term_of(committed) else { return };
        // The message carries the current term, which must be durable.
        if self.is_leader() || !self.is_durable() {
            return;
        }
        let mut refusal = RaftMessage::new(RaftKind::RequestPreVoteResponse, self.term());
        refusal.reject = true;
        (refusal.commit, refusal.commit_term) = (committed, term);
        self.send(ctx, to, Body::Raft(refusal));
    }

    /// Learns the commit index from a vote refusal. Raft uses it only while it campaigns, and a
    /// peer that does not know it is a voter never campaigns.
    pub(super) fn learn_from_refusal(&mut self, message: &RaftMessage) {
        use RaftKind::{RequestPreVoteResponse, RequestVoteResponse};
        let refuses =
            message.reject && matches!(message.kind, RequestPreVoteResponse | RequestVoteResponse);
        if refuses && self.group.role() == Role::Follower {
            self.group.learn_committed((message.commit, message.commit_term));
        }
    }

    /// Proposes to leave an applied joint configuration.
    pub(super) fn leave_joint_if_due(&mut self, ctx: &mut Context<E>) {
        let is_blocked = self.group.is_transferring() || self.group.is_changing_members();
        if !self.is_serving() || !self.changes.must_leave_joint(&self.region, is_blocked) {
            return;
        }
        let Ok((change, regions)) = self.plan_change(ctx, &[]) else { return };
        if let Ok((entry, _)) = self.admin_entry(change, &regions) {
            let mut proposing = Proposing::default();
            proposing.push(entry, None);
            proposing.admin = true;
            self.propose(ctx, proposing);
        }
    }
}
