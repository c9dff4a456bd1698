//! Membership changes. The leader leaves a joint configuration automatically.

use super::Replica;
use super::parts::{Purpose, Waiting, has_next_quorum, is_caught_up};
use super::raft_group::Follower;
use super::write::Proposing;
use crate::admin::{self, AdminRecord, Change};
use crate::context::{Context, StoreRequest};
use crate::input::{Admin, AdminCall, ChangeKind, NewRegion, PeerChange, RequestId};
use crate::messages::{Body, RaftKind, RaftMessage};
use crate::output::{Busy, Refusal, Rejection, Role};
use bytes::Bytes;
use stele_storage::StorageEngine;
use stele_types::{LogIndex, Peer, PeerRole, Region, Term};

/// Change, and the regions after it.
pub(super) type Plan = Result<(Change, Vec<Region>), Rejection>;

impl<E: StorageEngine> Replica<E> {
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
            id == self.peer.id || !is_down() && has_answered()
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
            || change.peer.id == self.peer.id
            || self.group.follower(change.peer.id).is_some_and(is_ready);
        match is_allowed {
            true => Ok(()),
            false => Err(Busy::Wait { reason: "the learner has not caught up" }.into()),
        }
    }

    /// Handles an applied change of members. Destroys this replica if it is not a member; a leader
    /// proposes to leave a joint configuration.
    pub(super) fn members_changed(&mut self, ctx: &mut Context<E>) {
        if self.region.peer(self.peer.id).is_none() {
            ctx.store_requests.push(StoreRequest::Destroy((*self.region).clone()));
            return;
        }
        // Invariant: a membership is durable as soon as it counts. Otherwise a hibernating cluster
        // would need, after a power loss of all nodes, a vote of members that it has removed since.
        // bug replica.members_not_kept: skip
        ctx.batches.push(stele_types::Record::HardState(self.region.id, self.current_hard_state()));
        self.contacts.set_members(&self.region.peers, ctx.now.monotonic_nanos);
        self.leave_joint_if_due(ctx);
    }

    /// Sends the commit index to a member with an older membership, as a vote refusal. Without a
    /// leader that member may be the only one that can be elected, and not know that the change
    /// which allows it is committed. A leader that removed its own vote leaves no other peer that
    /// must send the index.
    pub(super) fn send_commit_index(&self, ctx: &mut Context<E>, to: Peer) {
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

    pub(super) fn leave_joint_if_due(&mut self, ctx: &mut Context<E>) {
        let is_blocked =
            self.group.is_transferring() || self.group.is_changing_members() || self.is_paused(ctx);
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

// Changes of the region: a request of an administrator or of placement becomes an entry.

impl<E: StorageEngine> Replica<E> {
    /// Proposes a change, or executes one that needs no entry. Returns the request if it must wait.
    pub(super) fn propose_admin(
        &mut self,
        ctx: &mut Context<E>,
        id: RequestId,
        call: AdminCall,
        proposing: &mut Proposing,
    ) -> Option<Waiting> {
        if self.changes.is_pending() && !matches!(call.call, Admin::TransferLeader(_)) {
            ctx.reject(id, Busy::Wait { reason: "another change of the region is in progress" });
            return None;
        }
        let at = LogIndex(self.group.last().0 + proposing.payloads.len() as u64 + 1);
        let planned = match &call.call {
            // Entries before the transfer must be sent first: the target needs them all.
            Admin::TransferLeader(_) if !proposing.payloads.is_empty() => {
                return Some(Waiting::Admin(id, call));
            }
            Admin::TransferLeader(to) => {
                self.begin_transfer(ctx, *to, Some(id));
                proposing.admin = true;
                return None;
            }
            Admin::Campaign | Admin::Wake => {
                self.done(ctx, id);
                return None;
            }
            Admin::Destroy(peer) => {
                let reason =
                    format!("peer {peer} leads the region: remove it from the members first");
                Err(Refusal::Invalid(reason).into())
            }
            Admin::ChangePeers(changes) if changes.is_empty() && !self.region.is_joint() => {
                self.done(ctx, id);
                return None;
            }
            Admin::ChangePeers(changes) => self.plan_change(ctx, changes),
            Admin::Split { keys, new_ids } => self.plan_split(keys, new_ids),
            Admin::PrepareMerge { target } => self.plan_prepare_merge(ctx, target, at),
            Admin::CommitMerge { source, prepared_index } => {
                self.plan_commit_merge(ctx, source, *prepared_index)
            }
            Admin::RollbackMerge(stores) => self.plan_rollback_merge(ctx, stores, false),
            Admin::AbandonMerge(stores) => self.plan_rollback_merge(ctx, stores, true),
            // It needs no leader, and was handled before.
            Admin::Recover(_) => Err(Refusal::Invalid("the region has a leader".to_owned()).into()),
        };
        let planned = planned.and_then(|(change, regions)| self.admin_entry(change, &regions));
        match planned {
            Ok((entry, barrier)) => {
                proposing.push(entry, Some(Purpose::Admin(id)));
                proposing.admin = true;
                proposing.barrier = barrier;
            }
            Err(rejection) => ctx.reject(id, rejection),
        }
        None
    }

    /// Returns the entry of a change, and whether it is a barrier: requests checked against the
    /// range or the phase must not be proposed after a change of them.
    pub(super) fn admin_entry(
        &self,
        change: Change,
        regions: &[Region],
    ) -> Result<(Bytes, bool), Rejection> {
        let barrier = !matches!(change, Change::Members(_) | Change::LeaveJoint);
        let record = AdminRecord { region: self.region.id, change };
        let command = admin::command(&record, regions);
        let command = command.map_err(|error| Refusal::Invalid(error.to_string()))?;
        Ok((command.bytes().clone(), barrier))
    }
}

// Region split: the region keeps its first part, each new region starts at a split key.

pub(crate) const CHILD_STARTS_AFTER: (LogIndex, Term) = (LogIndex(5), Term(5));

/// First entry of the log of a region that a split created.
pub const FIRST_OF_CHILD: LogIndex = LogIndex(CHILD_STARTS_AFTER.0.0 + 1);

impl<E: StorageEngine> Replica<E> {
    pub(super) fn plan_split(&self, keys: &[Bytes], new_ids: &[NewRegion]) -> Plan {
        self.check_phase()?;
        if self.region.is_joint() {
            return Err(Busy::Wait { reason: "a membership change is in progress" }.into());
        }
        let regions = admin::split(&self.region, keys, new_ids).map_err(Refusal::Invalid)?;
        Ok((Change::Split { count: new_ids.len() }, regions))
    }

    /// Creates the new regions. Where this peer leads, its replicas of them campaign at once: no
    /// other peer has a reason to.
    pub(super) fn split_applied(&mut self, ctx: &mut Context<E>, children: Vec<Region>) {
        // After a crash, opening must apply the split before the children's own entries. It does:
        // every batch carries the changed commit indexes, so the one that commits the split is
        // durable no later than the start of the children's logs.
        self.split_children = children.clone();
        let campaign = self.is_leader();
        for region in children {
            ctx.store_requests.push(StoreRequest::Create {
                region,
                after: CHILD_STARTS_AFTER,
                campaign,
            });
        }
    }
}
