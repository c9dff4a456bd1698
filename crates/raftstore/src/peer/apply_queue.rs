//! Entries that the owner of the store applies beside the loop, for engines of which apply is slow.
//!
//! Such an entry is handed out when it is committed and durable here, and stays in the tail until it
//! is reported as applied: the bound of the tails bounds how far apply lags. `applied` never passes
//! what is reported.

use super::Peer;
use crate::store::Context;
use stele_storage::StorageEngine;
use stele_types::{CommittedEntry, LogIndex, RegionPhase, Result, mutant};

impl<E: StorageEngine> Peer<E> {
    /// Returns whether entries of this replica are handed out and not reported as applied. Until then
    /// the engine holds an unknown part of them.
    pub(super) fn is_applying(&self, ctx: &Context<E>) -> bool {
        ctx.applies.has_any(self.region.id)
    }

    /// Returns whether entries that follow are handed out; otherwise the loop applies them.
    ///
    /// Invariant: nothing of a region that is prepared for a merge, or of a replica that removed
    /// itself, is handed out. The target takes the keys over, and the replica ends, as soon as the
    /// loop decides so.
    pub(super) fn hands_out(&self, ctx: &Context<E>) -> bool {
        let stays = self.region.phase == RegionPhase::Normal
            && self.region.peer(self.name.id).is_some()
            || mutant::active("raftstore.merge_source_handed_out");
        ctx.options.apply_queue && stays
    }

    /// Hands entries out to be applied.
    pub(super) fn hand_out(&mut self, ctx: &mut Context<E>, run: Vec<CommittedEntry>) {
        if mutant::active("raftstore.answered_at_hand_out") {
            run.iter().for_each(|entry| self.answer_applied(ctx, entry.index, entry.term));
        }
        if mutant::active("raftstore.applied_at_hand_out") {
            run.last().into_iter().for_each(|last| self.note_applied(last.index));
        }
        ctx.applies.hand_out(&mut ctx.out, (self.region.id, self.incarnation), run);
    }

    /// Takes the report that entries up to `index` were applied between two times, and answers
    /// their writes. A report of entries that are not handed out has no effect.
    pub fn applied_beside(&mut self, ctx: &mut Context<E>, index: LogIndex, times: (u64, u64)) {
        if index <= self.applied() || !ctx.applies.note_applied(self.region.id, index) {
            return;
        }
        let run = self.applied().next().0..=index.0;
        let run: Vec<_> = run.map(LogIndex).map(|at| (at, self.group.term_of(at))).collect();
        self.note_applied(index);
        for (index, term) in run {
            term.into_iter().for_each(|term| self.answer_applied(ctx, index, term));
        }
        self.note_times(ctx, self.applied(), times);
    }

    /// Returns whether nothing may be handed out until what is handed out is applied: a snapshot or
    /// the repair of a range needs an exact state.
    pub(super) fn must_await_applies(&self, ctx: &Context<E>) -> bool {
        self.is_applying(ctx)
            && (self.snapshots.has_applying() || self.repairs.has_applied(self.applied()))
    }

    /// Does what needs an exact state, if nothing is handed out.
    pub(super) fn work_between_applies(&mut self, ctx: &mut Context<E>) -> Result<()> {
        if !self.is_applying(ctx) {
            self.send_applied_snapshots(ctx);
            self.apply_range_repairs(ctx)?;
        }
        Ok(())
    }
}
