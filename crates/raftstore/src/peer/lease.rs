//! Leader lease: its renewal by heartbeat rounds.

use super::Peer;
use super::parts::LeaseTerms;
use crate::store::Context;
use stele_storage::StorageEngine;
use stele_types::mutant;

impl<E: StorageEngine> Peer<E> {
    fn may_hold_lease(&self) -> bool {
        self.lease.may_hold(&LeaseTerms {
            term: self.term(),
            is_serving: self.is_serving(),
            phase: self.region.phase,
            role: self.region.peer(self.name.id).map(|peer| peer.role),
        })
    }

    /// Returns whether this peer is certainly the latest leader at this moment.
    pub(super) fn has_lease(&self, now_nanos: u64) -> bool {
        self.may_hold_lease() && self.reader.is_leased(now_nanos)
    }

    /// Renews the lease from a quorum-confirmed round sent at `sent_nanos`, unless leases are off.
    pub(super) fn renew_lease(&mut self, ctx: &Context<E>, sent_nanos: u64) {
        let on = ctx.leases || mutant::active("raftstore.leases_stay_on");
        if on && self.may_hold_lease() {
            self.reader.renew(sent_nanos + ctx.options.lease_nanos());
        }
    }

    /// Ends the lease; no lease is valid in this term again.
    pub(super) fn end_lease_for_term(&mut self) {
        self.lease.end_for_term(self.term());
        if !self.may_hold_lease() {
            self.reader.end_lease();
        }
    }

    /// Attaches a read index round to the heartbeats of the next tick: their replies renew the
    /// lease.
    pub(super) fn join_heartbeat(&mut self, ctx: &mut Context<E>) {
        if !self.group.is_heartbeat_due() || !self.is_serving() {
            return;
        }
        if self.group.is_sole_voter() {
            self.renew_lease(ctx, ctx.now.monotonic_nanos);
            return;
        }
        let context = self.start_round(ctx);
        self.group.attach_round(context);
    }
}
