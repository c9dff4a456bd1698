//! Messages for a replica that is not on this store. A leader that added one learns from the
//! replies that its log is empty, and sends a snapshot; the replica starts when that is installed.
//! Until then it has no state: it never votes and has made no promise. Without a leader, a voter
//! offers a snapshot to unresponsive voters: if the other voters needed to elect a leader are lost,
//! this replica may be the missing one.

use super::RaftStore;
use crate::messages::{
    Body, MergeAnswer, MergeQuery, PeerMessage, Preparation, RaftKind, RaftMessage, Verdict,
};
use crate::peer::{find_values, merge_answer};
use crate::{admin, validate};
use std::collections::BTreeSet;
use std::ops::Bound;
use stele_storage::{EngineView, StorageEngine};
use stele_types::{LogIndex, Peer, Region, RegionId, StoreId, keyspace};

const EARLY_VOTES_MAX: usize = 256;

/// Time for which the stores that share a region with this one are kept: after a loss of many nodes all
/// replicas ask, and each look at all of them would take as long as they are many.
const STORES_KEPT_NANOS: u64 = 1_000_000_000;

/// Other stores that replicas without a leader ask, in turn.
#[derive(Default)]
pub(super) struct Elsewhere {
    stores: BTreeSet<StoreId>,
    /// Monotonic nanoseconds at which they were collected.
    collected_nanos: Option<u64>,
    last: StoreId,
}

impl Elsewhere {
    /// Returns whether to collect the stores again, and counts them as collected.
    fn is_due(&mut self, now_nanos: u64) -> bool {
        let is_kept = |at: u64| now_nanos.saturating_sub(at) < STORES_KEPT_NANOS;
        let is_due = !self.collected_nanos.is_some_and(is_kept);
        if is_due {
            self.collected_nanos = Some(now_nanos);
        }
        is_due
    }

    /// Returns the next store without a member of the region.
    fn next(&mut self, region: &Region) -> Option<StoreId> {
        let after = self.stores.range((Bound::Excluded(self.last), Bound::Unbounded));
        let mut from_there = after.chain(&self.stores);
        let next = from_there.find(|store| region.peer_on(**store).is_none()).copied()?;
        self.last = next;
        Some(next)
    }
}

impl<E: StorageEngine> RaftStore<E> {
    pub(super) fn receive_for_absent(&mut self, message: &PeerMessage) {
        if let Body::ValueRepairRequest(lost) = &message.body
            && !lost.is_empty()
        {
            // Membership does not matter, because only the requested value is sent. A store that
            // has not applied a split may have the last intact copy of a value that the new
            // region's other replicas lost.
            let found = find_values(&*self.ctx.engine, message, lost);
            // bug replica.absent_finds_nothing: never
            if !found.is_empty() {
                self.answer(message, Body::ValueRepairReply(found));
            }
            return;
        }
        let conf_version = message.epoch.conf_version;
        let tombstone = self.tombstone_of(message.region, message.to.id, conf_version);
        if let Some(tombstone) = tombstone {
            let gone = tombstone.peer(message.from.id).is_none()
                && message.epoch.conf_version < tombstone.epoch.conf_version;
            if !matches!(message.body, Body::Raft(_) | Body::WakeUp | Body::ValueRepairRequest(_)) {
                return;
            }
            if gone {
                self.answer(message, Body::Gone);
            } else if let Some(merged) = self.merged_body(message.region, message.from_store) {
                self.answer(message, merged);
            } else if let Some(members) = self.later_members(message) {
                self.answer(message, members);
            }
            return;
        }
        let Body::Raft(raft) = &message.body else { return };
        if matches!(raft.kind, RaftKind::RequestVote | RaftKind::RequestPreVote) {
            self.keep_early_vote(message);
            return;
        }
        if let Some(answer) = empty_log_answer(raft) {
            self.answer(message, Body::Raft(answer));
        }
    }

    /// Asks one more store whether a replica here is still a member, each time another one of those
    /// that share a region with this store.
    ///
    /// Invariant: a replica learns that it is gone from any store that knows it. All members that it
    /// knows of may be lost, and it would bar a new replica of its keys permanently.
    /// Test: `a_stale_voter_is_removed_although_all_its_members_are_lost`.
    pub(super) fn ask_elsewhere(&mut self, region: RegionId) {
        // bug replica.only_members_asked: return;
        let now_nanos = self.ctx.now.monotonic_nanos;
        if self.elsewhere.is_due(now_nanos) {
            let members = self.replicas.values().flat_map(|it| &it.region.peers);
            self.elsewhere.stores = members.map(|peer| peer.store).collect();
        }
        let Some(replica) = self.replicas.get(&region) else { return };
        let Some(member) = replica.region.peers.iter().find(|peer| peer.id != replica.peer.id)
        else {
            return;
        };
        if let Some(store) = self.elsewhere.next(&replica.region) {
            // No peer of the region is known there: the id is one that a later peer has passed.
            replica.send(&mut self.ctx, Peer { store, ..*member }, Body::WakeUp);
        }
    }

    /// Keeps a vote request until the replica exists: a split child may campaign elsewhere before
    /// the split is applied here.
    fn keep_early_vote(&mut self, message: &PeerMessage) {
        if self.early_votes.len() >= EARLY_VOTES_MAX {
            self.early_votes.clear();
        }
        self.early_votes.insert(message.region, message.clone());
    }

    /// Delivers the vote request that arrived before the replica existed.
    pub(super) fn deliver_early_vote(&mut self, region: stele_types::RegionId) {
        if let Some(message) = self.early_votes.remove(&region) {
            self.receive(message);
        }
    }

    /// Returns the reply to a peer that asks whether it is a member, if it was one in a later
    /// membership than it knows: the members then. One of them may know of its removal.
    fn later_members(&self, message: &PeerMessage) -> Option<Body> {
        let tombstone = self.tombstones.get(&message.region)?;
        let is_later = tombstone.epoch.conf_version > message.epoch.conf_version;
        let is_asked = message.body == Body::WakeUp;
        // bug replica.tombstone_names_no_members: return None;
        (is_asked && is_later).then(|| Body::Members(tombstone.peers.clone()))
    }

    /// Returns the reply for a region if its last change here was its preparation for a merge. A
    /// replica elsewhere that has not learned it learns that the preparation is committed, and
    /// whether its store's replica of the target is gone. No other store may be left to report it.
    fn merged_body(&self, region: RegionId, store: StoreId) -> Option<Body> {
        let pair = self.ctx.engine.view().ok()?.get(&keyspace::admin_key(region)).ok()??;
        match admin::AdminRecord::decode(&pair.value)?.change {
            admin::Change::PrepareMerge { target, prepared } => {
                let here = self.replicas.get(&target).map(|replica| &*replica.region);
                let known = here.or_else(|| self.tombstones.get(&target));
                let without = known.filter(|region| region.peer_on(store).is_none());
                let left = without.map(|region| region.epoch.version);
                Some(Body::Merged { prepared, target, left })
            }
            _ => None,
        }
    }

    fn answer(&mut self, message: &PeerMessage, body: Body) {
        // A reply about a removed region has the range and epoch of its tombstone.
        let (range, epoch) = match self.tombstones.get(&message.region) {
            Some(tombstone)
                if matches!(body, Body::Gone | Body::Merged { .. } | Body::Members(_)) =>
            {
                (tombstone.range.clone(), tombstone.epoch)
            }
            _ => (message.range.clone(), message.epoch),
        };
        self.ctx.out.messages.push(PeerMessage {
            from_store: message.to_store,
            to_store: message.from_store,
            region: message.region,
            kind: message.kind,
            range,
            epoch,
            from: message.to,
            to: message.from,
            body,
        });
    }
}

fn empty_log_answer(message: &RaftMessage) -> Option<RaftMessage> {
    match message.kind {
        RaftKind::Heartbeat => {
            // Invariant: it confirms no read index round. A lease would then depend on a vote hold
            // that no replica keeps: the replica may start a moment later, by a split, and vote at
            // once.
            let it = RaftMessage::new(RaftKind::HeartbeatResponse, message.term);
            // bug replica.absent_lends_lease: let it = RaftMessage { context: message.context.clone(), ..it };
            Some(it)
        }
        RaftKind::Append => {
            let mut answer = RaftMessage::new(RaftKind::AppendResponse, message.term);
            answer.index = message.index;
            answer.reject = true;
            answer.reject_hint = LogIndex(0);
            Some(answer)
        }
        _ => None,
    }
}

// Questions of one store to others for the outcome of a merge, and their answers. Membership does
// not matter: what an answer says is a fact of the target's log.

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
        if let Some(replica) = self.replicas.get_mut(&answer.source) {
            replica.on_merge_answer(message.from_store, answer);
        }
    }

    pub(super) fn refuse_merge(&mut self, preparation: &Preparation) {
        if let Some(replica) = self.replicas.get_mut(&preparation.target) {
            replica.refuse_merge(&mut self.ctx, preparation);
            self.schedule(preparation.target);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::PeerId;

    #[test]
    fn other_stores_are_asked_in_turn_and_collected_once_a_second() {
        let mut elsewhere = Elsewhere::default();
        let due = [5, 6, STORES_KEPT_NANOS + 4, STORES_KEPT_NANOS + 5];
        assert_eq!(due.map(|now| elsewhere.is_due(now)), [true, false, false, true]);
        let peer = |id| Peer { id: PeerId(id), store: StoreId(id), ..Peer::default() };
        let region = Region { peers: [1, 3].map(peer).to_vec(), ..Region::default() };
        assert_eq!(elsewhere.next(&region), None);
        elsewhere.stores = (1..=5).map(StoreId).collect();
        let asked = [(); 4].map(|()| elsewhere.next(&region).map(|store| store.0));
        assert_eq!(asked, [Some(2), Some(4), Some(5), Some(2)]);
        elsewhere.stores = [1, 3].map(StoreId).into();
        assert_eq!(elsewhere.next(&region), None);
    }
}
