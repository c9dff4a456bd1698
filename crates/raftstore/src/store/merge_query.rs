//! Questions of one store to others for the outcome of a merge, and their answers. Membership does
//! not matter: what an answer says is a fact of the target's log.

use super::RaftStore;
use crate::messages::{Body, MergeAnswer, MergeQuery, PeerMessage, Preparation, Verdict};
use crate::peer::merge_answer;
use crate::validate;
use stele_storage::StorageEngine;

impl<E: StorageEngine> RaftStore<E> {
    pub(super) fn answer_merge_query(&mut self, message: &PeerMessage, query: &MergeQuery) {
        let here = self.ctx.options.store;
        if let Err(reason) = validate::check_stores(message, here) {
            slog::debug!(self.ctx.logger, "refused a message"; "reason" => reason);
            return;
        }
        let answer = merge_answer(&self.ctx, &query.preparation);
        if query.refuse && answer.verdict == Verdict::Unknown {
            self.refuse_merge(&query.preparation);
        }
        let body = Body::MergeAnswer(answer);
        let answer = PeerMessage::between_stores(here, message.from_store, body);
        self.ctx.out.messages.push(answer);
    }

    pub(super) fn take_merge_answer(&mut self, message: &PeerMessage, answer: &MergeAnswer) {
        if let Err(reason) = validate::check_stores(message, self.ctx.options.store) {
            slog::debug!(self.ctx.logger, "refused a message"; "reason" => reason);
            return;
        }
        if let Some(peer) = self.peers.get_mut(&answer.source) {
            peer.on_merge_answer(message.from_store, answer);
        }
    }

    /// Lets the target of a merge refuse it, if its leader is here.
    pub(super) fn refuse_merge(&mut self, preparation: &Preparation) {
        if let Some(peer) = self.peers.get_mut(&preparation.target) {
            peer.refuse_merge(&mut self.ctx, preparation);
            self.schedule(preparation.target);
        }
    }
}
