//! Messages that no correct peer sends: each must be rejected and change nothing.

use super::{Happening, Stated, World};
use bytes::Bytes;
use stele_replica::{Body, PeerMessage, RaftKind, RaftMessage, wire};
use stele_types::checksum::crc32c;
use stele_types::{LogIndex, Peer, Term};

/// Index beyond every log of a run.
const BEYOND: u64 = 1 << 40;

impl World {
    pub(super) fn send_forged(&mut self, from: u64, message: &PeerMessage) {
        let raft = match &message.body {
            Body::Raft(raft) => raft,
            Body::ValueRepairReply(pairs) => {
                let pairs = self.other_values(pairs);
                let forged = PeerMessage { body: Body::ValueRepairReply(pairs), ..message.clone() };
                return self.deliver_forged(from, &forged, None);
            }
            Body::EntryRecoveryReply(found) => {
                let payloads: Vec<_> =
                    found.iter().map(|(_, it)| (Bytes::new(), it.clone())).collect();
                let payloads = self.other_values(&payloads).into_iter().map(|(_, it)| it);
                let forged = found.iter().map(|(lost, _)| *lost).zip(payloads).collect();
                let forged =
                    PeerMessage { body: Body::EntryRecoveryReply(forged), ..message.clone() };
                return self.deliver_forged(from, &forged, None);
            }
            _ => return,
        };
        let other = self.other_member(from, message);
        let (forged, extra) = match self.rngs.net.below(3) {
            0 => (message.clone(), Some(7)),
            1 => match huge(message, raft) {
                Some(forged) => (forged, None),
                None => return,
            },
            _ => match changed(message, raft, other) {
                Some(forged) => (forged, None),
                None => return,
            },
        };
        self.deliver_forged(from, &forged, extra);
    }

    /// Returns the same keys with one wrong bit in each value.
    fn other_values(&mut self, pairs: &[(Bytes, Bytes)]) -> Vec<(Bytes, Bytes)> {
        let prng = &mut self.rngs.net;
        let other = |(key, value): &(Bytes, Bytes)| {
            let mut bytes = value.to_vec();
            if let Some(byte) = bytes.get_mut(prng.below(value.len() as u64) as usize) {
                *byte ^= 1;
            }
            (key.clone(), Bytes::from(bytes))
        };
        pairs.iter().map(other).collect()
    }

    fn deliver_forged(&mut self, from: u64, forged: &PeerMessage, extra: Option<u8>) {
        let Some(to) = self.homes.get(&forged.to_store).copied() else { return };
        let (mut frame, mut payloads) = (Vec::new(), Vec::new());
        wire::encode(forged, &mut frame, &mut payloads);
        payloads.iter().for_each(|payload| frame.extend_from_slice(payload));
        if let Some(byte) = extra {
            frame.push(byte);
            if wire::decode(Bytes::from(frame.clone())).is_ok() {
                let text = format!("a byte after {:?} is decoded as part of it", forged.body);
                return self.fail(crate::world::short(&text));
            }
        }
        let checksum = crc32c(&frame);
        frame.extend_from_slice(&checksum.to_le_bytes());
        self.counts.corruptions += 1;
        let frame = Bytes::from(frame);
        for (delay, is_damaged) in self.deliveries(from, to, frame.len() as u64) {
            if !is_damaged {
                let frame = frame.clone();
                let stated = Stated::default();
                self.after(
                    delay,
                    Happening::Frame { slot: to, from, stated, frame, is_forged: true },
                );
            }
        }
    }

    /// Returns a member that is neither sender nor receiver.
    fn other_member(&self, from: u64, message: &PeerMessage) -> Option<Peer> {
        let reader = self.slots.get(&from)?.readers()?.get(message.region)?;
        let region = reader.region();
        let apart = |peer: &&Peer| peer.id != message.from.id && peer.id != message.to.id;
        region.peers.iter().find(apart).copied()
    }
}

fn with(message: &PeerMessage, raft: RaftMessage) -> PeerMessage {
    PeerMessage { body: Body::Raft(raft), ..message.clone() }
}

/// Replaces the term with one that no cluster reaches by elections.
fn huge(message: &PeerMessage, raft: &RaftMessage) -> Option<PeerMessage> {
    let carries = raft.term > Term(0);
    carries.then(|| with(message, RaftMessage { term: Term(u64::MAX), ..raft.clone() }))
}

/// Replaces fields with impossible values.
fn changed(message: &PeerMessage, raft: &RaftMessage, other: Option<Peer>) -> Option<PeerMessage> {
    let mut forged = raft.clone();
    match raft.kind {
        // Messages batched by `raft` must follow the index; these would not.
        RaftKind::Append
            if raft.entries.first().is_some_and(|it| it.index == raft.index.next()) =>
        {
            forged.entries.iter_mut().for_each(|entry| entry.index = entry.index.next());
        }
        RaftKind::AppendResponse if raft.index.0.is_multiple_of(2) => {
            forged.index = LogIndex(raft.index.0 + BEYOND);
        }
        RaftKind::Heartbeat => forged.commit = LogIndex(raft.commit.0 + BEYOND),
        RaftKind::AppendResponse | RaftKind::HeartbeatResponse => {
            // A follower transfers leadership that it does not have.
            let to = other?;
            let raft = RaftMessage::new(RaftKind::TimeoutNow, raft.term);
            return Some(PeerMessage { to_store: to.store, to, ..with(message, raft) });
        }
        _ => return None,
    }
    Some(with(message, forged))
}
