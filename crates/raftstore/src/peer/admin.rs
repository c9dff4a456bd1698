//! Changes of the region: a request of an administrator or of placement becomes an entry.

use super::Peer;
use super::parts::{Purpose, Request};
use super::propose::Proposing;
use crate::admin::{self, Change, Record};
use crate::input::{Admin, AdminCall};
use crate::output::{Busy, Refusal, Rejection};
use crate::store::Context;
use bytes::Bytes;
use stele_storage::StorageEngine;
use stele_types::{LogIndex, Region};

impl<E: StorageEngine> Peer<E> {
    /// Proposes a change, or executes one that needs no entry. Returns the request if it must wait.
    pub(super) fn propose_admin(
        &mut self,
        ctx: &mut Context<E>,
        call: AdminCall,
        proposing: &mut Proposing,
    ) -> Option<Request> {
        let id = call.id;
        if self.changes.is_pending() && !matches!(call.call, Admin::TransferLeader(_)) {
            ctx.reject(id, Busy::Wait { reason: "another change of the region is in progress" });
            return None;
        }
        let at = LogIndex(self.group.last().0 + proposing.payloads.len() as u64 + 1);
        let planned = match &call.call {
            // Entries before the transfer must be sent first: the target needs them all.
            Admin::TransferLeader(_) if !proposing.payloads.is_empty() => {
                return Some(Request::Admin(call));
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
        let record = Record { region: self.region.id, change };
        let command = admin::command(&record, regions);
        let command = command.map_err(|error| Refusal::Invalid(error.to_string()))?;
        Ok((command.bytes().clone(), barrier))
    }
}
