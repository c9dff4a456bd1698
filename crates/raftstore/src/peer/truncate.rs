//! Truncation of a replica's log.

use super::Peer;
use crate::store::Context;
use stele_storage::StorageEngine;
use stele_types::{LogIndex, Term, mutant};

/// Least entries, or bytes, that a truncation drops.
const STEP_ENTRIES: u64 = 64;
const STEP_BYTES: u64 = 4 << 20;

impl<E: StorageEngine> Peer<E> {
    /// Truncates entries that a checkpoint covers (without one a crash would lose them), except the
    /// latest entries and those a follower lacks. A follower that lags by too many bytes gets a
    /// snapshot instead, and the entries it pinned request a checkpoint at once.
    ///
    /// Invariant: nothing above `applied` is truncated. An engine that applies beside the loop may
    /// have a later checkpoint, and entries that were handed out are in the log until they are
    /// reported.
    pub fn truncate_log(&mut self, ctx: &mut Context<E>) {
        let kept = ctx.options.log_kept;
        let Some(progress) = ctx.engine.progress(self.region.id) else { return };
        let applied = self.applied().0;
        let enough = applied.saturating_sub(kept.entries);
        let within = self.log().index_with_bytes_above(kept.pin_bytes_max).min(applied);
        let mut upto = enough.max(within);
        let needed = self.needed_above();
        let pins_too_much = self.log().bytes_above(needed) > kept.pin_bytes_max;
        if !pins_too_much {
            upto = upto.min(needed);
        }
        let checkpointed = progress.checkpointed.0;
        let over = self.log().bytes_above(checkpointed) > kept.pin_bytes_max;
        if pins_too_much && over && upto > checkpointed {
            ctx.out.wants_checkpoint |= !mutant::active("raftstore.pin_waits");
        }
        upto = upto.min(checkpointed);
        let (from, _) = self.log().truncated();
        let dropped = self.log().bytes_above(from).saturating_sub(self.log().bytes_above(upto));
        if upto <= from || upto < from + STEP_ENTRIES && dropped < STEP_BYTES {
            return;
        }
        let Some(term) = self.log().term_of(upto) else { return };
        self.log_mut().truncate(upto, term);
        ctx.batches.piggyback_truncation(self.region.id, LogIndex(upto), Term(term));
    }

    /// Returns the index above which followers need entries. Counts followers that can still be
    /// sent entries from the log. A follower that is receiving a snapshot needs the entries after
    /// it, or it would need another snapshot at once.
    fn needed_above(&self) -> u64 {
        if !self.is_leader() {
            return u64::MAX;
        }
        let (truncated, _) = self.log().truncated();
        let needs = self.group.followers().filter_map(|it| match it.snapshot {
            Some(_) if mutant::active("raftstore.snapshot_pins_nothing") => None,
            Some(snapshot) => Some(snapshot.0),
            None => Some(it.matched.0),
        });
        needs.filter(|need| *need > 0 && *need >= truncated).min().unwrap_or(u64::MAX)
    }
}
