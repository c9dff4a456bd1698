//! Members: joint changes, left by the leader itself.

use super::Peer;
use super::propose::Proposing;
use crate::admin::{self, Change};
use crate::input::{ChangeKind, PeerChange};
use crate::messages::{Body, RaftKind, RaftMessage};
use crate::output::Refusal;
use crate::store::{Context, Effect, Pairs};
use raft::StateRole;
use stele_storage::StorageEngine;
use stele_types::{LogIndex, Peer as PeerName, PeerRole, Record, Region, Term, mutant};

/// A change, and the regions as they are after it.
pub(super) type Plan = Result<(Change, Vec<Region>), Refusal>;

impl<E: StorageEngine> Peer<E> {
    pub(super) fn plan_change(&self, ctx: &Context<E>, changes: &[PeerChange]) -> Plan {
        if self.node.raft.has_pending_conf() {
            return Err(Refusal::Busy { reason: "another change of members is under way" });
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

    /// Rule: most of those who are to vote answer this leader. Else the change could be taken by who votes
    /// now and never be completed, and where one that does not answer is lost for good, the region is.
    fn check_next_quorum(&self, ctx: &Context<E>, next: &Region) -> Result<(), Refusal> {
        let down = self.down_peers(ctx);
        // Of a follower that answered nothing since this leader was elected, nothing is known to match.
        let has_answered = |id| self.progress_of(id).is_some_and(|progress| progress.matched > 0);
        let answers = |peer: &&PeerName| {
            let is_down = down.iter().any(|(silent, _)| silent.id == peer.id);
            peer.id == self.name.id || !is_down && has_answered(peer.id)
        };
        let voters = || next.peers.iter().filter(|peer| peer.role.votes_next());
        let is_safe = voters().filter(answers).count() * 2 > voters().count();
        match is_safe || mutant::active("raftstore.next_quorum_unasked") {
            true => Ok(()),
            false => Err(Refusal::Busy { reason: "too few of who would vote then answer now" }),
        }
    }

    /// Who is to vote has the log first: a quorum that counts an empty replica can get stuck.
    fn check_promotion(&self, change: &PeerChange) -> Result<(), Refusal> {
        let promotes = change.kind == ChangeKind::Add && change.peer.role == PeerRole::Voter;
        if !promotes || change.peer.id == self.name.id {
            return Ok(());
        }
        let ready = self.progress_of(change.peer.id).is_some_and(|it| self.is_caught_up(it));
        match ready {
            true => Ok(()),
            false => Err(Refusal::Busy { reason: "the learner has not caught up" }),
        }
    }

    /// The members changed: who is no member leaves, and a leader goes on to leave the joint
    /// configuration.
    pub(super) fn members_changed(&mut self, ctx: &mut Context<E>) {
        self.strangers.clear();
        if self.region.peer(self.name.id).is_none() {
            let region = (*self.region).clone();
            let pairs = Pairs::Known(region.range.clone());
            ctx.effects.push(Effect::Destroy { region, pairs });
            return;
        }
        // Rule: who the members are outlives a crash as soon as it counts. Else a cluster that is at rest
        // would, after a power cut of all, still need a vote of members that it did without since.
        if !mutant::active("raftstore.members_not_kept") {
            ctx.batches.push(Record::HardState(self.region.id, self.current_hard_state()));
        }
        let now = ctx.now.monotonic_nanos;
        let known = std::mem::take(&mut self.heard);
        let heard = |id: u64| known.get(&id).copied().unwrap_or(now);
        self.heard = self.region.peers.iter().map(|p| (p.id.0, heard(p.id.0))).collect();
        self.leave_joint_if_due(ctx);
    }

    /// A member is behind with who the members are. Where nobody leads it may be the only one that can,
    /// and not know that the change which lets it is committed: a leader that takes its own vote away
    /// leaves nobody behind who has to say so.
    pub(super) fn tell_committed(&self, ctx: &mut Context<E>, to: PeerName) {
        let committed = self.committed();
        let term = self.node.raft.raft_log.term(committed).unwrap_or(0);
        // The message is of this term, which must not be forgotten.
        if self.is_leader() || !self.is_durable() || term == 0 {
            return;
        }
        let mut refusal = RaftMessage::new(RaftKind::RequestPreVoteResponse, Term(self.term()));
        refusal.reject = true;
        (refusal.commit, refusal.commit_term) = (LogIndex(committed), Term(term));
        self.send(ctx, to, Body::Raft(refusal));
    }

    /// Who refuses a vote says what is committed. Raft listens only while it asks for votes, and who is
    /// no voter as far as it knows never asks.
    pub(super) fn learn_from_refusal(&mut self, message: &RaftMessage) {
        use RaftKind::{RequestPreVoteResponse, RequestVoteResponse};
        let refuses =
            message.reject && matches!(message.kind, RequestPreVoteResponse | RequestVoteResponse);
        if refuses && self.node.raft.state == StateRole::Follower {
            self.learn_committed((message.commit, message.commit_term));
        }
    }

    /// Proposes to leave a joint configuration that is applied.
    pub(super) fn leave_joint_if_due(&mut self, ctx: &mut Context<E>) {
        let due = self.is_leader()
            && self.region.is_joint()
            && self.leading == Some(self.term())
            && !self.is_transferring()
            && self.admin_at.is_none()
            && !self.node.raft.has_pending_conf();
        if !due {
            return;
        }
        let Ok((change, regions)) = self.plan_change(ctx, &[]) else { return };
        if let Ok((entry, _)) = self.admin_entry(change, &regions) {
            let mut proposing = Proposing::default();
            proposing.push(entry, None, ctx.now.monotonic_nanos);
            proposing.admin = true;
            self.propose(ctx, proposing);
        }
    }
}
