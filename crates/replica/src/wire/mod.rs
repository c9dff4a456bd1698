//! Wire format of messages between stores. The memory of a decoded message is bounded by its frame:
//! no count alone causes an allocation, and every entry's command is a slice of the frame.
//!
//! ```text
//! frame    := header payload*                              (payloads in the order of their entries)
//! header   := version:u8 (1) body:u8 route body
//! route    := from_store to_store region kind:u8 start:bytes end:bytes conf_version version
//!             from:peer to:peer
//! joined   := ((0 route | number) body:u8 body payload*)*  (a frame of several messages; a number is
//!             that of a route sent before on the connection, see `joined`)
//! peer     := id store role:u8                   (numbers are varints, bytes length-prefixed)
//! body     := 0 raft | 1 | 2 index term target | 3 term last | 4 | 5 index term | 6 lost | 7 found
//!              (raft, gone, merged, hibernate, wake up, prepared, value repair request, reply)
//!            | 8 start:bytes end:bytes | 9 start:bytes end:bytes index ranged  (range repair)
//!            | 10 entries | 11 entries                           (entry recovery request, reply)
//!            | 12 index term target version     (merged; the target left the receiver's store)
//!            | 13 source index term target conf_version version refuse:u8       (merge query)
//!            | 14 source index term verdict:u8 count store*                      (merge answer)
//!            | 15 count peer*                                                         (members)
//! entries  := count (region index term length crc)*        (each one of a reply is a payload)
//! ranged   := count (key:bytes length expires_at_s)*       (each value is a payload)
//! lost     := count (key:bytes length crc)*
//! found    := count (key:bytes length)*                    (each value is a payload)
//! raft     := kind:u8 flags:u8 term log_term index commit commit_term reject_hint request_snapshot
//!             priority context:bytes count (term index length)*
//! flags    := 1 reject
//! snapshot := version:u8 (1) region:bytes index term leader_term from:peer to:peer bytes merges?
//!             (merges: see `CommittedMerges`; nodes of earlier versions read none)
//! ```

mod decode;
mod joined;
#[cfg(test)]
mod tests;

pub use decode::{decode, decode_joined, decode_snapshot};
pub use joined::{JOINED_MAX, ROUTE_BYTES_MAX, ReceivedRoutes, SentRoutes};

use crate::messages::{
    Body, MergeAnswer, PeerMessage, Preparation, RaftMessage, RangeRepairReply, SnapshotHeader,
};
use bytes::Bytes;
use stele_storage::LostEntry;
use stele_types::{Peer, varint};

const FORMAT: u8 = 1;
/// Most entries in one message. Their descriptions take more bytes in memory than in a frame.
pub(crate) const ENTRIES_MAX: usize = 1 << 17;
pub(crate) const CONTEXT_BYTES_MAX: usize = 64;

/// Most values or entries requested, or sent, in one message.
pub(crate) const VALUES_MAX: usize = 1 << 10;

const MEMBERS_MAX: u64 = 64;

const REJECT: u8 = 1;

/// Maps a signed number to an unsigned one, so that small negative ones stay short.
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Appends the message's header to `header`, and its payloads, without a copy, to `payloads`. The
/// frame is the header followed by the payloads in order.
pub fn encode(message: &PeerMessage, header: &mut Vec<u8>, payloads: &mut Vec<Bytes>) {
    header.push(FORMAT);
    header.push(body_number(&message.body));
    put_route(message, header);
    put_body(&message.body, header, payloads);
}

/// Appends a message's body, with its number, to `header`, and its payloads, without a copy, to
/// `payloads`, for a frame of several messages: [`SentRoutes::put`] comes before it, the payloads after it.
pub fn encode_body(body: &Body, header: &mut Vec<u8>, payloads: &mut Vec<Bytes>) {
    header.push(body_number(body));
    put_body(body, header, payloads);
}

fn put_route(message: &PeerMessage, out: &mut Vec<u8>) {
    numbers(out, [message.from_store.0, message.to_store.0, message.region.0]);
    out.push(message.kind as u8);
    varint::put_bytes(out, &message.range.start);
    varint::put_bytes(out, &message.range.end);
    numbers(out, [message.epoch.conf_version, message.epoch.version]);
    peer(out, &message.from);
    peer(out, &message.to);
}

fn put_body(body: &Body, header: &mut Vec<u8>, payloads: &mut Vec<Bytes>) {
    match body {
        Body::Raft(body) => raft(body, header, payloads),
        Body::Merged { prepared: (index, term), target, left } => {
            numbers(header, [index.0, term.0, target.0]);
            left.iter().for_each(|version| varint::put(header, *version));
        }
        Body::Prepared { prepared: (index, term) } => numbers(header, [index.0, term.0]),
        Body::Hibernate { term, last } => numbers(header, [term.0, last.0]),
        Body::ValueRepairRequest(values) => {
            varint::put(header, values.len() as u64);
            for value in values {
                varint::put_bytes(header, &value.key);
                numbers(header, [u64::from(value.length), u64::from(value.crc)]);
            }
        }
        Body::ValueRepairReply(pairs) => {
            varint::put(header, pairs.len() as u64);
            for (key, value) in pairs {
                varint::put_bytes(header, key);
                varint::put(header, value.len() as u64);
            }
            let filled = pairs.iter().filter(|(_, value)| !value.is_empty());
            payloads.extend(filled.map(|(_, value)| value.clone()));
        }
        Body::RangeRepairRequest(range) => {
            varint::put_bytes(header, &range.start);
            varint::put_bytes(header, &range.end);
        }
        Body::RangeRepairReply(found) => found_range(found, header, payloads),
        Body::EntryRecoveryRequest(lost) => lost_entries(lost.iter(), header),
        Body::EntryRecoveryReply(found) => {
            lost_entries(found.iter().map(|(lost, _)| lost), header);
            let filled = found.iter().filter(|(_, payload)| !payload.is_empty());
            payloads.extend(filled.map(|(_, payload)| payload.clone()));
        }
        Body::MergeQuery(query) => {
            let Preparation { source, prepared: (index, term), target, target_epoch } =
                query.preparation;
            numbers(header, [source.0, index.0, term.0, target.0]);
            numbers(header, [target_epoch.conf_version, target_epoch.version]);
            header.push(u8::from(query.refuse));
        }
        Body::MergeAnswer(MergeAnswer { source, prepared: (index, term), verdict, stores }) => {
            numbers(header, [source.0, index.0, term.0]);
            header.push(*verdict as u8);
            varint::put(header, stores.len() as u64);
            stores.iter().for_each(|store| varint::put(header, store.0));
        }
        Body::Members(members) => {
            varint::put(header, members.len() as u64);
            members.iter().for_each(|member| peer(header, member));
        }
        Body::Gone | Body::WakeUp => {}
    }
}

fn body_number(body: &Body) -> u8 {
    match body {
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
        Body::MergeQuery(_) => 13,
        Body::MergeAnswer(_) => 14,
        Body::Members(_) => 15,
    }
}

/// Appends the encoded header of a snapshot to `out`.
pub fn encode_snapshot(header: &SnapshotHeader, out: &mut Vec<u8>) {
    out.push(FORMAT);
    varint::put_bytes(out, &header.region.encode());
    numbers(out, [header.at.0.0, header.at.1.0, header.leader_term.0]);
    peer(out, &header.from);
    peer(out, &header.to);
    varint::put(out, header.bytes);
    header.merges.iter().for_each(|merges| merges.put(out));
}

/// Returns an encoded header as nodes of earlier versions read it.
pub fn snapshot_without_merges(header: &Bytes) -> Bytes {
    match decode_snapshot(header) {
        Ok(read) if read.merges.is_some() => {
            let mut out = Vec::new();
            encode_snapshot(&SnapshotHeader { merges: None, ..read }, &mut out);
            out.into()
        }
        _ => header.clone(),
    }
}

fn found_range(found: &RangeRepairReply, header: &mut Vec<u8>, payloads: &mut Vec<Bytes>) {
    varint::put_bytes(header, &found.range.start);
    varint::put_bytes(header, &found.range.end);
    numbers(header, [found.at.0, found.pairs.len() as u64]);
    for pair in &found.pairs {
        varint::put_bytes(header, &pair.key);
        numbers(header, [pair.value.len() as u64, pair.expires_at_s]);
    }
    let filled = found.pairs.iter().filter(|pair| !pair.value.is_empty());
    payloads.extend(filled.map(|pair| pair.value.clone()));
}

fn lost_entries<'a>(entries: impl ExactSizeIterator<Item = &'a LostEntry>, header: &mut Vec<u8>) {
    varint::put(header, entries.len() as u64);
    for lost in entries {
        let LostEntry { region, index, term, bytes, crc } = lost;
        numbers(header, [region.0, index.0, term.0, u64::from(*bytes), u64::from(*crc)]);
    }
}

fn raft(message: &RaftMessage, header: &mut Vec<u8>, payloads: &mut Vec<Bytes>) {
    header.push(message.kind as u8);
    header.push(if message.reject { REJECT } else { 0 });
    numbers(header, [message.term.0, message.log_term.0, message.index.0, message.commit.0]);
    numbers(header, [message.commit_term.0, message.reject_hint.0, message.request_snapshot.0]);
    varint::put(header, zigzag(message.priority));
    varint::put_bytes(header, &message.context);
    varint::put(header, message.entries.len() as u64);
    for entry in &message.entries {
        numbers(header, [entry.term.0, entry.index.0, entry.payload.len() as u64]);
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
