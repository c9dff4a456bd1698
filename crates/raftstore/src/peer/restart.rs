//! End of a replica that starts again from its durable state.

use super::Peer;
use super::room::may_use_reserve;
use crate::output::{Busy, Event, Refusal, Unknown};
use crate::store::Context;
use bytes::Bytes;
use stele_storage::StorageEngine;
use stele_types::{LogIndex, mutant};

impl<E: StorageEngine> Peer<E> {
    /// Answers all pending requests: entries for which the device had no room are given up.
    ///
    /// Invariant: what is answered as refused has no effect later. Of a sole voter no other log that
    /// counts holds an entry that is not durable here. With other voters the outcome is unknown.
    pub fn give_up_unwritten(&mut self, ctx: &mut Context<E>) {
        let refusal = Refusal::NotLeader { leader: self.leader_hint() };
        self.refuse_held(ctx, &refusal);
        self.refuse_waiting(ctx, &refusal);
        let (committed, persisted) = (self.committed(), self.group.persisted());
        let is_alone =
            self.group.is_sole_voter() || mutant::active("raftstore.unwritten_as_refused");
        for proposal in self.proposals.take_above(LogIndex(0)) {
            let is_in_log = self.has_entry((proposal.index, proposal.term));
            match is_in_log && proposal.index <= committed {
                true => self.answer_done(ctx, proposal),
                false if is_alone && proposal.index > persisted => {
                    ctx.reject(proposal.purpose.id(), Busy::DiskFull);
                }
                false => ctx.unknown(proposal.purpose.id(), Unknown::LeadershipLost),
            }
        }
        if let Some(id) = self.transfers.abandon() {
            ctx.unknown(id, Unknown::TransferTimedOut);
        }
        self.lose_reads(ctx);
        if self.leadership.stop_serving() {
            ctx.out.events.push(Event::LostLeader { region: self.region.id });
        }
    }

    /// Returns whether a batch that found no room may give up an entry of this replica. A sole voter
    /// refuses even deletes rather than leave them undecided.
    pub fn may_give_up(&self, payload: &Bytes) -> bool {
        !payload.is_empty() && (self.group.is_sole_voter() || !may_use_reserve(payload))
    }
}
