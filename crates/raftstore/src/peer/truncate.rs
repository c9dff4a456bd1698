//! How much of the log a replica lets go.

use super::Peer;
use crate::store::Context;
use raft::ProgressState;
use stele_storage::StorageEngine;
use stele_types::{LogIndex, Term};

/// Entries that a truncation drops at least, if not all that there are.
const STEP_ENTRIES: u64 = 64;

impl<E: StorageEngine> Peer<E> {
    /// Truncates what a checkpoint covers (else a crash would lose it), save the latest entries and
    /// those a follower lacks. A follower that lags by too many bytes gets a snapshot instead.
    pub fn truncate_log(&mut self, ctx: &mut Context<E>) {
        let kept = ctx.options.log_kept;
        let Some(progress) = ctx.engine.progress(self.region.id) else { return };
        let enough = self.applied.saturating_sub(kept.entries);
        let within = self.log().index_with_bytes_above(kept.pin_bytes_max).min(self.applied);
        let mut upto = enough.max(within).min(progress.checkpointed.0);
        let needed = self.needed_above();
        if self.log().bytes_above(needed) <= kept.pin_bytes_max {
            upto = upto.min(needed);
        }
        let (from, _) = self.log().truncated();
        if upto < from + STEP_ENTRIES {
            return;
        }
        let Some(term) = self.log().term_of(upto) else { return };
        self.log_mut().truncate(upto, term);
        ctx.batches.ride_truncation(self.region.id, LogIndex(upto), Term(term));
    }

    /// Followers need the entries above this one.
    fn needed_above(&self) -> u64 {
        if !self.is_leader() {
            return u64::MAX;
        }
        let followers = self.node.raft.prs().iter().filter(|(id, _)| **id != self.name.id.0);
        let alive =
            followers.filter(|(_, it)| it.state != ProgressState::Snapshot && it.matched > 0);
        alive.map(|(_, progress)| progress.matched).min().unwrap_or(u64::MAX)
    }
}
