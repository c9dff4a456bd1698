//! Leader lease: while it lasts no other peer can lead, so the leader's own state is the latest.
//!
//! A follower that answers a heartbeat round withholds its vote for `election_ticks_min` of its
//! ticks from the receipt, which is after the round was sent. So the lease runs from the *sending*
//! of a round that a quorum answered, minus one tick (the first may come at once), on a clock that
//! may run slower than theirs by the drift bound. Their ticks are as long as this store's:
//! [`crate::LeaseTimes`].

use super::Peer;
use crate::store::Context;
use stele_storage::StorageEngine;
use stele_types::{PeerRole, RegionPhase};

impl<E: StorageEngine> Peer<E> {
    /// Returns whether a lease may be valid: this peer leads, has applied an entry of its term, is
    /// a voter, and has started no leadership transfer in this term.
    fn may_hold_lease(&self) -> bool {
        let role = self.region.peer(self.name.id).map(|peer| peer.role);
        // A region prepared for a merge may belong to its target at any moment.
        self.is_leader()
            && self.region.phase == RegionPhase::Normal
            && self.leading == Some(self.term())
            && self.transfer_term != self.term()
            && role.is_some_and(|role| role != PeerRole::Learner)
    }

    /// Returns whether this peer is certainly the latest leader at this moment.
    pub(super) fn has_lease(&self, now_nanos: u64) -> bool {
        self.may_hold_lease() && self.reader.is_leased(now_nanos)
    }

    /// Renews the lease from a quorum-confirmed round sent at `sent_nanos`, unless leases are off.
    pub(super) fn renew_lease(&mut self, ctx: &Context<E>, sent_nanos: u64) {
        let on = ctx.leases || stele_types::mutant::active("raftstore.leases_stay_on");
        if on && self.may_hold_lease() {
            self.reader.renew(sent_nanos + ctx.options.lease_nanos());
        }
    }

    /// Ends the lease; no lease is valid in this term again.
    pub(super) fn end_lease_for_term(&mut self) {
        if stele_types::mutant::active("raftstore.lease_after_transfer") {
            return;
        }
        self.transfer_term = self.term();
        self.reader.end_lease();
    }

    /// Attaches a read index round to the heartbeats of the next tick: their replies renew the
    /// lease.
    pub(super) fn join_heartbeat(&mut self, ctx: &mut Context<E>) {
        if !self.group.is_heartbeat_due() || self.leading != Some(self.term()) {
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
