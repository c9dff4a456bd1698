//! Targets for data from other nodes.

use super::records::{sample_command, sample_region};
use super::{SMALL, checksums};
use crate::{Bound, Target};
use bytes::Bytes;
use std::sync::Arc;
use stele_node::snapshot::fuzzing::{snapshot_bytes, snapshot_pairs};
use stele_replica::wire::{self, ReceivedRoutes, SentRoutes};
use stele_replica::{
    Body, CommittedMerges, LeaseTimes, PeerMessage, RaftEntry, RaftKind, RaftMessage,
    RangeRepairReply, SnapshotHeader,
};
use stele_server::transport::frame::{FrameKind, Frames, whole};
use stele_server::transport::hello::{self, Hello, Lane};
use stele_server::transport::{Boots, Identity};
use stele_storage::{LostEntry, LostValue, Pair};
use stele_types::{
    Boot, ClusterId, KeyRange, Lineage, LogIndex, RegionId, StartId, StoreId, StoreRun, Term,
};

fn frame(message: &PeerMessage) -> Vec<u8> {
    let (mut frame, mut payloads) = (Vec::new(), Vec::new());
    wire::encode(message, &mut frame, &mut payloads);
    payloads.iter().for_each(|payload| frame.extend_from_slice(payload));
    frame
}

fn messages() -> Vec<PeerMessage> {
    let mut append = RaftMessage::new(RaftKind::Append, Term(5));
    let entry = |index, payload| RaftEntry { term: Term(5), index: LogIndex(index), payload };
    append.entries = vec![
        entry(300, sample_command().bytes().clone()),
        entry(301, Bytes::new()),
        entry(302, sample_command().bytes().clone()),
    ];
    let mut vote = RaftMessage::new(RaftKind::RequestVoteResponse, Term(6));
    (vote.reject, vote.priority, vote.context) = (true, -3, Bytes::from_static(b"round 7"));
    let prepared = (LogIndex(8), Term(2));
    let bodies = [
        Body::Raft(append),
        Body::Raft(vote),
        Body::Gone,
        Body::Prepared { prepared },
        Body::Merged { prepared, target: RegionId(44), left: None },
        Body::Merged { prepared, target: RegionId(44), left: Some(300) },
        Body::Hibernate { term: Term(9), last: LogIndex(77) },
        Body::WakeUp,
        Body::ValueRepairRequest(Vec::new()),
        Body::ValueRepairRequest(vec![LostValue {
            key: Bytes::from_static(b"\x01c"),
            length: 5,
            crc: 9,
        }]),
        Body::RangeRepairRequest(KeyRange::new("\x01a", "\x01d")),
        Body::RangeRepairReply(RangeRepairReply {
            range: KeyRange::new("\x01a", "\x01d"),
            at: LogIndex(300),
            pairs: vec![Pair { key: "\x01c".into(), value: "value".into(), expires_at_s: 7 }],
        }),
        Body::ValueRepairReply(vec![(Bytes::from_static(b"\x01c"), Bytes::from_static(b"value"))]),
    ];
    let payload = sample_command().bytes().clone();
    let (bytes, crc) = (payload.len() as u32, stele_types::checksum::crc32c(&payload));
    let (index, term) = (LogIndex(300), Term(5));
    let lost = LostEntry { region: RegionId(2), index, term, bytes, crc };
    let between = [
        Body::EntryRecoveryRequest(vec![lost, lost]),
        Body::EntryRecoveryReply(vec![(lost, payload)]),
    ];
    let between =
        between.map(|body| PeerMessage::between_stores(StoreId(1), StoreId(2), body)).into_iter();
    let region = sample_region(7);
    let message = |body| PeerMessage {
        from_store: StoreId(1),
        to_store: StoreId(2),
        region: region.id,
        kind: region.kind,
        range: region.range.clone(),
        epoch: region.epoch,
        from: region.peers[0],
        to: region.peers[1],
        body,
    };
    bodies.into_iter().map(message).chain(between).collect()
}

pub(super) const PEER_MESSAGE: Target = Target {
    name: "peer_message",
    run: |input| {
        let Ok(message) = wire::decode(Bytes::copy_from_slice(input)) else { return };
        let bytes = frame(&message);
        assert!(bytes.len() <= input.len());
        assert_eq!(wire::decode(Bytes::from(bytes)).unwrap(), message);
        stele_server::transport::message_bytes(&message);
    },
    seeds: || messages().iter().map(frame).collect(),
    fix_checksums: None,
    bound: SMALL,
};

pub(super) const SNAPSHOT_HEAD: Target = Target {
    name: "snapshot_head",
    run: |input| {
        let Ok(header) = wire::decode_snapshot(input) else { return };
        let mut bytes = Vec::new();
        wire::encode_snapshot(&header, &mut bytes);
        assert_eq!(wire::decode_snapshot(&bytes).unwrap(), header);
    },
    seeds: || {
        let region = sample_region(7);
        let (from, to) = (region.peers[0], region.peers[1]);
        let at = (LogIndex(300), Term(4));
        let mut merges = CommittedMerges::since(1 << 20);
        merges.note(1 << 20, 1 << 21, Some(RegionId(300)));
        let (leader_term, bytes, merges) = (Term(5), 1 << 30, Some(merges));
        let header = SnapshotHeader { region, at, leader_term, from, to, bytes, merges };
        let mut bytes = Vec::new();
        wire::encode_snapshot(&header, &mut bytes);
        vec![wire::snapshot_without_merges(&bytes.clone().into()).to_vec(), bytes]
    },
    fix_checksums: None,
    bound: SMALL,
};

/// Frames in a stream that arrives in pieces, with the messages in them.
pub(super) const FRAMES: Target = Target {
    name: "transport_frames",
    run: |input| {
        let mut frames = Frames::new(64 << 10);
        let mut routes = ReceivedRoutes::default();
        let piece = 1 + input.len() % 97;
        for part in input.chunks(piece) {
            frames.room().extend_from_slice(part);
            loop {
                match frames.take() {
                    Ok(Some(frame)) if frame.kind == FrameKind::Message => {
                        assert!(frame.body.len() <= 64 << 10);
                        let _ = wire::decode(frame.body);
                    }
                    Ok(Some(frame)) if frame.kind == FrameKind::Messages => {
                        let _ = wire::decode_joined(&frame.body, &mut routes, |_| {});
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(closed) => return drop(closed.to_string()),
                }
            }
        }
    },
    seeds: || {
        let bodies = messages();
        let mut stream = whole(FrameKind::Hello, &sample_hello().encode()).to_vec();
        bodies
            .iter()
            .for_each(|it| stream.extend_from_slice(&whole(FrameKind::Message, &frame(it))));
        let (mut routes, mut joined) = (SentRoutes::default(), Vec::new());
        for message in bodies.iter().chain(&bodies) {
            let mut payloads = Vec::new();
            routes.put(message, &mut joined);
            wire::encode_body(&message.body, &mut joined, &mut payloads);
            payloads.iter().for_each(|payload| joined.extend_from_slice(payload));
        }
        stream.extend_from_slice(&whole(FrameKind::Messages, &joined));
        stream.extend_from_slice(&whole(FrameKind::Alive, b""));
        vec![stream]
    },
    fix_checksums: Some(|input| checksums::frames(input)),
    // Reads blocks of 64 KiB, several before a frame is complete.
    bound: Bound { bytes: 512 << 10, per_byte: 64 },
};

/// Returns a hello of another node of cluster 9.
pub(super) fn sample_hello() -> Hello {
    let mut hello = Hello::new(Lane::Data, ClusterId(9), "host:1");
    (hello.from, hello.wanted) = (vec![StoreId(1), StoreId(300)], vec![StoreId(4)]);
    hello.times = Some(LeaseTimes { tick_nanos: 50_000_000, election_ticks_min: 10 });
    let run = |count| StoreRun {
        boot: Boot { count, nonce: 5 },
        lineage: Lineage::new([StartId(u128::from(count)), StartId(3)]),
    };
    hello.runs = [7, 900].map(run).to_vec();
    hello
}

pub(super) const HELLO: Target = Target {
    name: "transport_hello",
    run: |input| {
        let Some(hello) = Hello::decode(input) else { return };
        // The starts of many stores are shortened once.
        let encoded = hello.encode();
        let again = Hello::decode(&encoded).map(|hello| hello.encode());
        assert_eq!(again, Some(encoded));
        let (cluster, times) = (ClusterId(9), sample_hello().times.unwrap_or_default());
        let (address, stores) = ("host:2".to_owned(), Vec::new());
        let own = Identity { cluster, address, stores, times, boots: Arc::new(Boots::new(1)) };
        hello.rejection(&own, &[StoreId(4)], |store| store == StoreId(7));
    },
    seeds: || vec![sample_hello().encode()],
    fix_checksums: None,
    bound: SMALL,
};

/// Rejections and snapshot offers.
pub(super) const ANSWERS: Target = Target {
    name: "transport_answers",
    run: |input| {
        let _ = hello::read_refused(input).0.to_string();
        if let Some(welcome) = hello::Welcome::decode(input) {
            let encoded = welcome.encode();
            let again = hello::Welcome::decode(&encoded).map(|welcome| welcome.encode());
            assert_eq!(again, Some(encoded));
        }
        let body = Bytes::copy_from_slice(input);
        for version in [1, hello::RESUMABLE] {
            let Some(offer) = hello::Offer::decode(&body, version) else { continue };
            let again = Bytes::from(offer.encode(version));
            assert_eq!(hello::Offer::decode(&again, version), Some(offer));
        }
        if let Ok(text) = std::str::from_utf8(input) {
            assert!(text.starts_with(hello::bounded(text)));
        }
    },
    seeds: || {
        let refused =
            hello::refused(stele_server::transport::RejectReason::StoreRemoved, "why", &[]);
        let header = Bytes::from_static(b"header");
        let offer = hello::Offer { to: StoreId(1), from: StoreId(300), resumes: true, header };
        vec![refused, offer.encode(1), offer.encode(hello::RESUMABLE)]
    },
    fix_checksums: None,
    bound: SMALL,
};

/// Snapshot pairs; the first byte decides the chunk boundaries of the others.
pub(super) const SNAPSHOT_PAIRS: Target = Target {
    name: "snapshot_pairs",
    run: |input| {
        let Some((&cut, bytes)) = input.split_first() else { return };
        let whole = snapshot_pairs(std::iter::once(bytes));
        let cut = snapshot_pairs(bytes.chunks(1 + usize::from(cut)));
        match (whole, cut) {
            (Ok(whole), Ok(cut)) => {
                assert_eq!(whole, cut);
                let again = snapshot_bytes(&whole);
                assert!(again.len() <= bytes.len());
                assert_eq!(snapshot_pairs(std::iter::once(&again[..])).unwrap(), whole);
            }
            (whole, cut) => assert_eq!(whole.is_err(), cut.is_err()),
        }
    },
    seeds: || {
        let pair = |n: u8| Pair {
            key: Bytes::from(vec![b'k', n]),
            value: Bytes::from(vec![n; usize::from(n) * 10]),
            expires_at_s: u64::from(n % 3) << 20,
        };
        let pairs: Vec<Pair> = (0..20).map(pair).collect();
        vec![[&[7], &snapshot_bytes(&pairs)[..]].concat()]
    },
    fix_checksums: None,
    bound: Bound { bytes: 64 << 10, per_byte: 256 },
};
