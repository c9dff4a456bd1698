//! Entries that another store lost and that are in this one's log.

use super::RaftStore;
use crate::entry_recovery::look_for;
use crate::messages::{Body, PeerMessage};
use crate::validate;
use bytes::Bytes;
use stele_storage::{LostEntry, StorageEngine};
use stele_types::mutant;

impl<E: StorageEngine> RaftStore<E> {
    /// Answers a store that waits for copies of entries. Membership does not matter: only the very
    /// bytes that the other store once wrote are sent.
    pub(super) fn look_for_entries(&mut self, message: &PeerMessage, lost: &[LostEntry]) {
        let here = self.ctx.options.store;
        if let Err(reason) = validate::check_stores(message, here) {
            slog::debug!(self.ctx.logger, "refused a message"; "reason" => reason);
            return;
        }
        let found = look_for(lost, |lost| self.entry(lost));
        if !found.is_empty() {
            let body = Body::EntryRecoveryReply(found);
            let answer = PeerMessage::between_stores(here, message.from_store, body);
            self.ctx.out.messages.push(answer);
        }
    }

    /// `None` when it is not in this log, or can't be read here either.
    fn entry(&self, lost: &LostEntry) -> Option<Bytes> {
        let (from, to) = (lost.index, lost.index.next());
        let entries = self.ctx.engine.entries(lost.region, from, to, 0).ok()?;
        let entry = entries.into_iter().next()?;
        // Rule: only the very entry. Of another term it may be what an overthrown leader proposed, and
        // would stand where an acknowledged one stood.
        let is_it = entry.index == lost.index && entry.term == lost.term && lost.is(&entry.payload);
        (is_it || mutant::active("raftstore.found_entry_unchecked")).then_some(entry.payload)
    }
}
