//! To bytes.

use super::{FORMAT, REJECT, zigzag};
use crate::messages::{Body, PeerMessage, RaftMessage, RangeRepairReply, SnapshotHeader};
use bytes::Bytes;
use stele_storage::LostEntry;
use stele_types::{Peer, varint};

/// Appends the message's head, and its entries' commands without a copy. The frame is the head, then
/// the payloads in order.
pub fn encode(message: &PeerMessage, head: &mut Vec<u8>, payloads: &mut Vec<Bytes>) {
    head.push(FORMAT);
    head.push(match &message.body {
        Body::Raft(_) => 0,
        Body::Gone => 1,
        Body::Merged { left: None, .. } => 2,
        Body::Merged { left: Some(_), .. } => 12,
        Body::Hibernate { .. } => 3,
        Body::WakeUp => 4,
        Body::Prepared { .. } => 5,
        Body::ValueRepairRequest(_) => 6,
        Body::ValueRepairReply(_) => 7,
        Body::RangeRepairRequest(_) => 8,
        Body::RangeRepairReply(_) => 9,
        Body::EntryRecoveryRequest(_) => 10,
        Body::EntryRecoveryReply(_) => 11,
    });
    numbers(head, [message.from_store.0, message.to_store.0, message.region.0]);
    head.push(message.kind as u8);
    varint::put_bytes(head, &message.range.start);
    varint::put_bytes(head, &message.range.end);
    numbers(head, [message.epoch.conf_version, message.epoch.version]);
    peer(head, &message.from);
    peer(head, &message.to);
    match &message.body {
        Body::Raft(body) => raft(body, head, payloads),
        Body::Merged { prepared: (index, term), target, left } => {
            numbers(head, [index.0, term.0, target.0]);
            left.iter().for_each(|version| varint::put(head, *version));
        }
        Body::Prepared { prepared: (index, term) } => numbers(head, [index.0, term.0]),
        Body::Hibernate { term, last } => numbers(head, [term.0, last.0]),
        Body::ValueRepairRequest(values) => {
            varint::put(head, values.len() as u64);
            for value in values {
                varint::put_bytes(head, &value.key);
                numbers(head, [u64::from(value.length), u64::from(value.crc)]);
            }
        }
        Body::ValueRepairReply(pairs) => {
            varint::put(head, pairs.len() as u64);
            for (key, value) in pairs {
                varint::put_bytes(head, key);
                varint::put(head, value.len() as u64);
            }
            let filled = pairs.iter().filter(|(_, value)| !value.is_empty());
            payloads.extend(filled.map(|(_, value)| value.clone()));
        }
        Body::RangeRepairRequest(range) => {
            varint::put_bytes(head, &range.start);
            varint::put_bytes(head, &range.end);
        }
        Body::RangeRepairReply(found) => found_range(found, head, payloads),
        Body::EntryRecoveryRequest(lost) => lost_entries(lost.iter(), head),
        Body::EntryRecoveryReply(found) => {
            lost_entries(found.iter().map(|(lost, _)| lost), head);
            let filled = found.iter().filter(|(_, payload)| !payload.is_empty());
            payloads.extend(filled.map(|(_, payload)| payload.clone()));
        }
        Body::Gone | Body::WakeUp => {}
    }
}

/// Appends the head of a snapshot.
pub fn encode_snapshot(header: &SnapshotHeader, out: &mut Vec<u8>) {
    out.push(FORMAT);
    varint::put_bytes(out, &header.region.encode());
    numbers(out, [header.at.0.0, header.at.1.0, header.leader_term.0]);
    peer(out, &header.from);
    peer(out, &header.to);
    varint::put(out, header.bytes);
}

fn found_range(found: &RangeRepairReply, head: &mut Vec<u8>, payloads: &mut Vec<Bytes>) {
    varint::put_bytes(head, &found.range.start);
    varint::put_bytes(head, &found.range.end);
    numbers(head, [found.at.0, found.pairs.len() as u64]);
    for pair in &found.pairs {
        varint::put_bytes(head, &pair.key);
        numbers(head, [pair.value.len() as u64, pair.expires_at_s]);
    }
    let filled = found.pairs.iter().filter(|pair| !pair.value.is_empty());
    payloads.extend(filled.map(|pair| pair.value.clone()));
}

fn lost_entries<'a>(entries: impl ExactSizeIterator<Item = &'a LostEntry>, head: &mut Vec<u8>) {
    varint::put(head, entries.len() as u64);
    for lost in entries {
        let LostEntry { region, index, term, bytes, crc } = lost;
        numbers(head, [region.0, index.0, term.0, u64::from(*bytes), u64::from(*crc)]);
    }
}

fn raft(message: &RaftMessage, head: &mut Vec<u8>, payloads: &mut Vec<Bytes>) {
    head.push(message.kind as u8);
    head.push(if message.reject { REJECT } else { 0 });
    numbers(head, [message.term.0, message.log_term.0, message.index.0, message.commit.0]);
    numbers(head, [message.commit_term.0, message.reject_hint.0, message.request_snapshot.0]);
    varint::put(head, zigzag(message.priority));
    varint::put_bytes(head, &message.context);
    varint::put(head, message.entries.len() as u64);
    for entry in &message.entries {
        numbers(head, [entry.term.0, entry.index.0, entry.payload.len() as u64]);
    }
    let filled = message.entries.iter().filter(|entry| !entry.payload.is_empty());
    payloads.extend(filled.map(|entry| entry.payload.clone()));
}

fn peer(out: &mut Vec<u8>, peer: &Peer) {
    numbers(out, [peer.id.0, peer.store.0]);
    out.push(peer.role as u8);
}

fn numbers<const N: usize>(out: &mut Vec<u8>, numbers: [u64; N]) {
    for number in numbers {
        varint::put(out, number);
    }
}
