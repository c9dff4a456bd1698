//! Messages for a replica that is not here. A leader that added one learns by the answers that it
//! has nothing, and sends a snapshot; the replica begins when that is installed. Until then there is
//! no state of it: it never votes, and forgets nothing. Whom nobody leads offers one to voters that answer
//! nothing: where all others are lost who would elect a leader, that may be what is missing.

use super::RaftStore;
use crate::admin;
use crate::messages::{Body, PeerMessage, RaftKind, RaftMessage};
use crate::peer::find_values;
use stele_storage::{EngineView, StorageEngine};
use stele_types::{LogIndex, RegionId, StoreId, keyspace};

/// Questions kept for regions that are not here.
const EARLY_VOTES_MAX: usize = 256;

impl<E: StorageEngine> RaftStore<E> {
    pub(super) fn receive_for_absent(&mut self, message: &PeerMessage) {
        if let Body::ValueRepairRequest(lost) = &message.body
            && !lost.is_empty()
        {
            // Membership does not matter: only the very value is sent. A store that is behind a split
            // may have the last whole copy of what the new region's other replicas lost.
            let found = find_values(&*self.ctx.engine, message, lost);
            if !found.is_empty() && !stele_types::mutant::active("raftstore.absent_finds_nothing") {
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
            } else if let Some(merged) = self.merged(message.region, message.from_store) {
                self.answer(message, merged);
            }
            return;
        }
        let Body::Raft(raft) = &message.body else { return };
        if matches!(raft.kind, RaftKind::RequestVote | RaftKind::RequestPreVote) {
            self.keep_early(message);
            return;
        }
        if let Some(answer) = answer_of_nothing(raft) {
            self.answer(message, Body::Raft(answer));
        }
    }

    /// A region that a split makes may campaign before the split is applied here: its question waits
    /// for the replica.
    fn keep_early(&mut self, message: &PeerMessage) {
        if self.early_votes.len() >= EARLY_VOTES_MAX {
            self.early_votes.clear();
        }
        self.early_votes.insert(message.region, message.clone());
    }

    /// The replica began: what was asked of it before is asked again.
    pub(super) fn ask_early(&mut self, region: stele_types::RegionId) {
        if let Some(message) = self.early_votes.remove(&region) {
            self.receive(message);
        }
    }

    /// The region's last change here was its preparation for a merge. A replica elsewhere that has
    /// not heard learns that it is committed, and whether its store's replica of the target is gone;
    /// nobody else may be left to tell.
    fn merged(&self, region: RegionId, store: StoreId) -> Option<Body> {
        let pair = self.ctx.engine.view().ok()?.get(&keyspace::admin_key(region)).ok()??;
        match admin::Record::decode(&pair.value)?.change {
            admin::Change::PrepareMerge { target, prepared } => {
                let here = self.peers.get(&target).map(|peer| &*peer.region);
                let known = here.or_else(|| self.tombstones.get(&target));
                let without = known.filter(|region| region.peer_on(store).is_none());
                let left = without.map(|region| region.epoch.version);
                Some(Body::Merged { prepared, target, left })
            }
            _ => None,
        }
    }

    fn answer(&mut self, message: &PeerMessage, body: Body) {
        // What is said of a region that left is as of its end.
        let (range, epoch) = match self.tombstones.get(&message.region) {
            Some(tombstone) if matches!(body, Body::Gone | Body::Merged { .. }) => {
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

/// What a replica with an empty log says to its leader.
fn answer_of_nothing(message: &RaftMessage) -> Option<RaftMessage> {
    match message.kind {
        RaftKind::Heartbeat => {
            // Rule: it takes part in no round. A lease would rest on a promise that nobody keeps: the
            // replica may begin a moment later, by a split, and vote at once.
            let mut answer = RaftMessage::new(RaftKind::HeartbeatResponse, message.term);
            if stele_types::mutant::active("raftstore.absent_lends_lease") {
                answer.context = message.context.clone();
            }
            Some(answer)
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
