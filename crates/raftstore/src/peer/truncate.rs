//! Truncation of a replica's log.

use super::Peer;
use super::raft_group::Follower;
use crate::store::Context;
use stele_storage::StorageEngine;
use stele_types::{LogIndex, Term, mutant};

/// Least entries, or bytes, that a truncation drops.
const STEP_ENTRIES: u64 = 64;
const STEP_BYTES: u64 = 4 << 20;

impl<E: StorageEngine> Peer<E> {
    /// Truncates entries that a checkpoint covers (without one a crash would lose them), except the
    /// latest entries and those a follower lacks. A follower that lags by too many bytes gets a
    /// snapshot instead, and the entries it pinned request a checkpoint at once. `at_once`: a few
    /// entries are worth a truncation.
    ///
    /// Invariant: nothing above `applied` is truncated. An engine that applies behind a queue of its own
    /// may have a later checkpoint.
    pub fn truncate_log(&mut self, ctx: &mut Context<E>, at_once: bool) {
        let Some(progress) = ctx.engine.progress(self.region.id) else { return };
        let pin_bytes_max = ctx.options.log_kept.pin_bytes_max;
        let applied = self.applied().0;
        let enough = applied.saturating_sub(self.entries_kept(ctx));
        let within = self.log().index_with_bytes_above(pin_bytes_max).min(applied);
        let mut upto = enough.max(within);
        let needed = self.needed_above(ctx);
        let pins_too_much = self.log().bytes_above(needed) > pin_bytes_max;
        if !pins_too_much {
            upto = upto.min(needed);
        }
        let checkpointed = progress.checkpointed.0;
        let over = self.log().bytes_above(checkpointed) > pin_bytes_max;
        if pins_too_much && over && upto > checkpointed {
            ctx.out.wants_checkpoint |= !mutant::active("raftstore.pin_waits");
        }
        upto = upto.min(checkpointed);
        let (from, _) = self.log().truncated();
        let dropped = self.log().bytes_above(from).saturating_sub(self.log().bytes_above(upto));
        let is_worth_it = at_once || upto >= from + STEP_ENTRIES || dropped >= STEP_BYTES;
        if upto <= from || !is_worth_it {
            return;
        }
        let Some(term) = self.log().term_of(upto) else { return };
        self.log_mut().truncate(upto, term);
        ctx.batches.piggyback(self.region.id, self.current_hard_state());
        ctx.batches.piggyback_truncation(self.region.id, LogIndex(upto), Term(term));
    }

    /// Returns how many of the latest entries stay for followers that fall behind later.
    ///
    /// Invariant: while the store is short of space, or if the region has no other replica, no entry
    /// stays that no live follower lacks. A new leader keeps them until it knows what its followers
    /// have.
    fn entries_kept(&self, ctx: &Context<E>) -> u64 {
        let is_alone = self.region.peers.len() == 1;
        let knows_followers = !self.is_leader() || self.is_serving();
        let keeps_none = (ctx.space.is_short || is_alone) && knows_followers;
        match keeps_none && !mutant::active("raftstore.short_store_keeps_entries") {
            true => 0,
            false => ctx.options.log_kept.entries,
        }
    }

    /// Returns the index above which followers need entries. Counts followers that can still be
    /// sent entries from the log. A follower that is receiving a snapshot needs the entries after
    /// it, or it would need another snapshot at once. A store that is short of space keeps nothing
    /// for followers that do not answer or have no room.
    fn needed_above(&self, ctx: &Context<E>) -> u64 {
        if !self.is_leader() {
            return u64::MAX;
        }
        let (truncated, _) = self.log().truncated();
        let takes = |it: &Follower| {
            let is_known = it.snapshot.is_some() || self.is_live(ctx, it.id);
            !ctx.space.is_short || is_known && !self.room.is_full(it.id)
        };
        let needs = self.group.followers().filter(takes).filter_map(|it| match it.snapshot {
            Some(_) if mutant::active("raftstore.snapshot_pins_nothing") => None,
            Some(snapshot) => Some(snapshot.0),
            None => Some(it.matched.0),
        });
        needs.filter(|need| *need > 0 && *need >= truncated).min().unwrap_or(u64::MAX)
    }
}
