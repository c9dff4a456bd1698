//! Publication of what is committed: request threads see it, waiting reads are served, and writes are
//! answered.

use super::Peer;
use crate::admin;
use crate::store::Context;
use crate::window::Coverage;
use stele_storage::StorageEngine;
use stele_types::{CommittedEntry, LogIndex, mutant};

impl<E: StorageEngine> Peer<E> {
    /// Returns the last entry that reads can see: it is applied here, or in the window.
    pub(super) fn visible(&self) -> LogIndex {
        self.reader.window().visible()
    }

    /// Publishes the committed entries, then answers what waits for them. Returns whether this peer
    /// begins to serve: requests may wait for that.
    ///
    /// Invariant: called before the outputs of a poll leave. A write that is answered and an entry
    /// of which a follower learns that it is committed are visible before.
    pub(super) fn publish(&mut self, ctx: &mut Context<E>) -> bool {
        let (committed, applied) = (self.committed(), self.applied());
        if committed > applied && ctx.options.read_acceleration {
            self.extend_window(committed);
        }
        let coverage = match self.visible() {
            _ if committed == applied || mutant::active("raftstore.lease_ahead_of_apply") => {
                Coverage::Applied
            }
            visible if visible >= committed => Coverage::Window,
            _ => Coverage::Part,
        };
        self.reader.window().set_coverage(coverage);
        let begins = self.begin_serving(ctx);
        if ctx.options.commit_return {
            self.answer_committed(ctx);
        }
        self.answer_reads(ctx);
        begins
    }

    /// Adds committed entries to the window, up to the first administrative one: that one may move
    /// keys to another region, and this window does not hold the entries of that one.
    fn extend_window(&self, committed: LogIndex) {
        let window = self.reader.window();
        let is_plain = |payload: &bytes::Bytes| {
            !admin::is_admin(payload) || mutant::active("raftstore.window_over_admin")
        };
        let next = self.log().tail_from(window.visible().next());
        let plain = next.take_while(|(index, payload)| *index <= committed && is_plain(payload));
        window.extend(plain.map(|(index, payload)| (index, payload.clone())));
    }

    /// Makes entries visible that are about to be applied, if the window is not empty: its effects
    /// must not be older than a view.
    pub(super) fn show_before_apply(&self, ctx: &Context<E>, run: &[CommittedEntry]) {
        let window = self.reader.window();
        if ctx.options.read_acceleration
            && window.coverage() != Coverage::Applied
            && !mutant::active("raftstore.apply_ahead_of_window")
        {
            window.extend(run.iter().map(|entry| (entry.index, entry.payload.clone())));
        }
        let last = run.last().map_or(LogIndex(0), |entry| entry.index);
        debug_assert!(window.is_empty() || window.visible() >= last, "views pass the window");
    }

    /// Starts serving if an entry of this peer's own term is visible: then all that earlier terms
    /// committed is visible too, and no administrative entry before it waits to be applied.
    fn begin_serving(&mut self, ctx: &mut Context<E>) -> bool {
        let term = self.term();
        if !self.is_leader() || self.leadership.is_serving_in(term) {
            return false;
        }
        let begins = self.group.term_of(self.visible()) == Some(term);
        if begins {
            self.start_leading(ctx);
        }
        begins
    }
}
