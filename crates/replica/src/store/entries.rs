//! Recovery of another store's lost entries from this store's log.

use super::RaftStore;
use crate::entry_recovery::find_entries;
use crate::messages::{Body, PeerMessage};
use crate::validate;
use bytes::Bytes;
use stele_storage::{LostEntry, StorageEngine};

impl<E: StorageEngine> RaftStore<E> {
    /// Answers a store that recovers its log. Membership does not matter: only the exact bytes that
    /// the other store once wrote are sent.
    pub(super) fn answer_entry_recovery(&mut self, message: &PeerMessage, lost: &[LostEntry]) {
        let here = self.ctx.options.store;
        if let Err(reason) = validate::check_stores(message, here) {
            slog::debug!(self.ctx.logger, "refused a message"; "reason" => reason);
            return;
        }
        let found = find_entries(lost, |lost| self.entry(lost));
        if !found.is_empty() {
            let body = Body::EntryRecoveryReply(found);
            let answer = PeerMessage::between_stores(here, message.from_store, body);
            self.ctx.out.messages.push(answer);
        }
    }

    /// Returns the payload of an entry; `None` if this log does not have it or cannot read it
    /// either.
    fn entry(&self, lost: &LostEntry) -> Option<Bytes> {
        let (from, to) = (lost.index, lost.index.next());
        let entries = self.ctx.engine.entries(lost.region, from, to, 0).ok()?;
        let entry = entries.into_iter().next()?;
        // Invariant: only the requested entry is sent. One of another term may be the proposal of a
        // deposed leader, and would replace an acknowledged entry.
        let is_it =
            entry.index == lost.index && entry.term == lost.term && lost.is_copy(&entry.payload);
        // bug replica.found_entry_unchecked: `is_it` is `true`
        is_it.then_some(entry.payload)
    }
}
