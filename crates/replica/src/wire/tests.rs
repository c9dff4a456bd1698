use super::*;
use crate::CommittedMerges;
use crate::messages::{
    Body, MergeAnswer, MergeQuery, PeerMessage, Preparation, RaftEntry, RaftKind, RaftMessage,
    RangeRepairReply, SnapshotHeader, Verdict,
};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use stele_storage::{LostEntry, LostValue};
use stele_types::size::USER_KEY_BYTES_MAX;
use stele_types::{
    CommandBuilder, KeyRange, LogIndex, Peer, PeerId, PeerRole, Prng, Region, RegionEpoch,
    RegionId, RegionKind, StoreId, Term,
};

fn frame(message: &PeerMessage) -> Bytes {
    let (mut head, mut payloads) = (Vec::new(), Vec::new());
    encode(message, &mut head, &mut payloads);
    Bytes::from([&head[..], &payloads.concat()[..]].concat())
}

fn command(value: &[u8]) -> Bytes {
    let mut builder = CommandBuilder::new();
    builder.put(b"\x01key", value, 0).unwrap();
    builder.build().bytes().clone()
}

fn sample(body: Body) -> PeerMessage {
    PeerMessage {
        from_store: StoreId(1),
        to_store: StoreId(2),
        region: RegionId(300),
        kind: RegionKind::Data,
        range: KeyRange::new("b", "q"),
        epoch: RegionEpoch { conf_version: 5, version: 1 << 33 },
        from: Peer { id: PeerId(11), store: StoreId(1), role: PeerRole::Voter },
        to: Peer { id: PeerId(12), store: StoreId(2), role: PeerRole::Learner },
        body,
    }
}

fn append() -> PeerMessage {
    let mut raft = RaftMessage::new(RaftKind::Append, Term(7));
    (raft.index, raft.log_term, raft.commit) = (LogIndex(1000), Term(6), LogIndex(999));
    raft.priority = -3;
    raft.context = Bytes::from_static(b"round");
    for (number, payload) in [command(b"one"), Bytes::new(), command(&[7; 200])].iter().enumerate()
    {
        let index = LogIndex(1001 + number as u64);
        raft.entries.push(RaftEntry { term: Term(7), index, payload: payload.clone() });
    }
    sample(Body::Raft(raft))
}

fn header() -> SnapshotHeader {
    SnapshotHeader {
        region: Region { id: RegionId(9), range: KeyRange::new("a", ""), ..Region::default() },
        at: (LogIndex(500), Term(3)),
        leader_term: Term(4),
        from: sample(Body::Gone).from,
        to: sample(Body::Gone).to,
        bytes: 1 << 40,
        merges: None,
    }
}

fn lost_entry(payload: &Bytes) -> LostEntry {
    let (region, index, term) = (RegionId(2), LogIndex(1 << 40), Term(3));
    let crc = stele_types::checksum::crc32c(payload);
    LostEntry { region, index, term, bytes: payload.len() as u32, crc }
}

pub(super) fn bodies() -> Vec<PeerMessage> {
    let merged =
        |left| Body::Merged { prepared: (LogIndex(8), Term(2)), target: RegionId(44), left };
    let prepared = Body::Prepared { prepared: (LogIndex(8), Term(2)) };
    let hibernate = Body::Hibernate { term: Term(9), last: LogIndex(77) };
    let small = [
        Body::Gone,
        merged(None),
        merged(Some(300)),
        prepared,
        hibernate,
        Body::WakeUp,
        Body::ValueRepairRequest(Vec::new()),
    ];
    let mut all: Vec<_> = small.into_iter().map(sample).collect();
    all.push(append());
    let lost = LostValue { key: Bytes::from_static(b"\x01c"), length: 1 << 20, crc: u32::MAX };
    all.push(sample(Body::ValueRepairRequest(vec![lost.clone(), LostValue { length: 0, ..lost }])));
    let pair = |value: &'static [u8]| (Bytes::from_static(b"\x01c"), Bytes::from_static(value));
    let range = KeyRange::new("\x01a", "\x01d");
    all.push(sample(Body::RangeRepairRequest(range.clone())));
    let pairs = [("\x01b", "", 0), ("\x01c", "value", 77)];
    let pairs = pairs.map(|(key, value, expires_at_s)| stele_storage::Pair {
        key: key.into(),
        value: value.into(),
        expires_at_s,
    });
    let found = RangeRepairReply { range, at: LogIndex(1 << 40), pairs: pairs.to_vec() };
    all.push(sample(Body::RangeRepairReply(found)));
    all.push(sample(Body::ValueRepairReply(vec![pair(b"value"), pair(b""), pair(b"other")])));
    let entries =
        [command(b"one"), Bytes::new(), command(b"other")].map(|it| (lost_entry(&it), it));
    let between = |body| PeerMessage::between_stores(StoreId(1), StoreId(2), body);
    all.push(between(Body::EntryRecoveryRequest(entries.iter().map(|(lost, _)| *lost).collect())));
    all.push(between(Body::EntryRecoveryReply(entries.to_vec())));
    let (source, prepared) = (RegionId(1 << 40), (LogIndex(300), Term(2)));
    let target_epoch = RegionEpoch { conf_version: 5, version: 1 << 33 };
    let preparation = Preparation { source, prepared, target: RegionId(44), target_epoch };
    for refuse in [false, true] {
        all.push(between(Body::MergeQuery(MergeQuery { preparation, refuse })));
    }
    for verdict in [Verdict::Unknown, Verdict::Refused, Verdict::TargetLost] {
        let stores = vec![StoreId(1), StoreId(1 << 40)];
        all.push(between(Body::MergeAnswer(MergeAnswer { source, prepared, verdict, stores })));
    }
    let members = vec![sample(Body::Gone).from, sample(Body::Gone).to];
    all.push(sample(Body::Members(members)));
    all
}

#[test]
fn every_body_survives_the_round_trip_and_every_cut_or_addition_is_refused() {
    for message in bodies() {
        let frame = frame(&message);
        assert_eq!(decode(frame.clone()).unwrap(), message);
        for cut in 0..frame.len() {
            assert!(decode(frame.slice(..cut)).is_err(), "{message:?} cut at {cut}");
        }
        assert!(decode(Bytes::from([&frame[..], b"x"].concat())).is_err());
    }
    let mut bytes = Vec::new();
    encode_snapshot(&header(), &mut bytes);
    assert_eq!(decode_snapshot(&bytes).unwrap(), header());
    for cut in 0..bytes.len() {
        assert!(decode_snapshot(&bytes[..cut]).is_err(), "cut at {cut}");
    }
    assert!(decode_snapshot(&[&bytes[..], b"x"].concat()).is_err());
}

#[test]
fn a_snapshot_header_carries_the_committed_merges_and_earlier_versions_get_it_without_them() {
    let encoded = |header: &SnapshotHeader| {
        let mut bytes = Vec::new();
        encode_snapshot(header, &mut bytes);
        Bytes::from(bytes)
    };
    let earlier = encoded(&header());
    let mut merges = CommittedMerges::since(300);
    merges.note(300, 1 << 40, Some(RegionId(900)));
    let header = SnapshotHeader { merges: Some(merges), ..header() };
    let bytes = encoded(&header);
    assert_eq!(decode_snapshot(&bytes).unwrap(), header);
    for cut in (0..bytes.len()).filter(|cut| *cut != earlier.len()) {
        assert!(decode_snapshot(&bytes[..cut]).is_err(), "cut at {cut}");
    }
    assert!(decode_snapshot(&[&bytes[..], b"x"].concat()).is_err());
    for bytes in [&bytes, &earlier] {
        assert_eq!(snapshot_without_merges(bytes), earlier);
    }
    assert_eq!(snapshot_without_merges(&Bytes::from_static(b"?")), &b"?"[..]);
}

#[test]
fn payloads_are_slices_of_the_frame() {
    let frame = frame(&append());
    let inside = frame.as_ptr_range();
    let Body::Raft(raft) = decode(frame.clone()).unwrap().body else { panic!("not Raft's") };
    for entry in raft.entries.iter().filter(|entry| !entry.payload.is_empty()) {
        assert!(inside.contains(&entry.payload.as_ptr()));
    }
}

fn edited(change: impl FnOnce(&mut PeerMessage, &mut RaftMessage)) -> Bytes {
    let mut message = append();
    let Body::Raft(mut raft) = message.body.clone() else { panic!("not Raft's") };
    change(&mut message, &mut raft);
    message.body = Body::Raft(raft);
    frame(&message)
}

#[test]
fn what_passes_a_limit_is_refused() {
    let entry = |payload| RaftEntry { term: Term(1), index: LogIndex(1), payload };
    let key = |bytes: usize| Bytes::from(vec![b'k'; bytes]);
    let largest = edited(|message, raft| {
        raft.context = Bytes::from(vec![1; CONTEXT_BYTES_MAX]);
        message.range = KeyRange::new(key(USER_KEY_BYTES_MAX), key(USER_KEY_BYTES_MAX));
        raft.entries = vec![entry(Bytes::new()); ENTRIES_MAX];
    });
    assert!(decode(largest).is_ok());
    let found = |payload: Bytes| {
        let lost = lost_entry(&payload);
        frame(&sample(Body::EntryRecoveryReply(vec![(lost, payload)])))
    };
    assert!(decode(found(command(b"v"))).is_ok());
    let many =
        |count| frame(&sample(Body::EntryRecoveryRequest(vec![lost_entry(&Bytes::new()); count])));
    assert!(decode(many(VALUES_MAX)).is_ok());
    let refused = [
        many(VALUES_MAX + 1),
        found(Bytes::from_static(b"no command")),
        found(command(b"v").slice(..9)),
        edited(|_, raft| raft.context = Bytes::from(vec![1; CONTEXT_BYTES_MAX + 1])),
        edited(|message, _| message.range.end = key(USER_KEY_BYTES_MAX + 1)),
        edited(|_, raft| raft.entries = vec![entry(Bytes::new()); ENTRIES_MAX + 1]),
        edited(|_, raft| raft.entries = vec![entry(Bytes::from_static(b"no command"))]),
        edited(|_, raft| raft.entries = vec![entry(command(b"v").slice(..9))]),
    ];
    for frame in refused {
        assert!(matches!(decode(frame), Err(stele_types::Error::Invalid(_))));
    }
}

// Catalogue: 60.
#[test]
fn a_great_count_in_a_short_frame_allocates_nothing() {
    let mut bytes = edited(|_, raft| raft.entries.clear()).to_vec();
    assert_eq!(bytes.pop(), Some(0), "the count of entries ends the header");
    stele_types::varint::put(&mut bytes, (1 << 17) - 1);
    let error = decode(Bytes::from(bytes)).unwrap_err();
    assert!(error.to_string().contains("too many entries"), "{error}");
}

#[test]
fn a_flipped_bit_gives_an_error_or_another_message_but_no_panic() {
    let frame = frame(&append());
    for bit in 0..frame.len() * 8 {
        let mut bytes = frame.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(other) = decode(Bytes::from(bytes)) {
            assert_ne!(other, append(), "bit {bit} has no effect");
        }
    }
}

// Catalogue: 60.
/// Replays with `STELE_SEED=<seed> cargo test -p stele-replica random_bytes`.
#[test]
fn random_bytes_give_no_panic() {
    let chosen = std::env::var("STELE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = chosen.unwrap_or(7);
    println!("STELE_SEED={seed}");
    let mut prng = Prng::new(seed);
    let whole = frame(&append());
    for _ in 0..20_000 {
        let length = prng.below(120) as usize;
        let mut bytes: Vec<u8> = (0..length).map(|_| prng.draw() as u8).collect();
        let kept = prng.below(whole.len() as u64) as usize;
        if prng.coin() {
            bytes = [&whole[..kept], &bytes[..]].concat();
        }
        let _ = decode_snapshot(&bytes);
        let _ = decode(Bytes::from(bytes));
    }
}

fn any_raft() -> impl Strategy<Value = RaftMessage> {
    let numbers = any::<[u64; 8]>();
    let entry = (any::<u64>(), any::<u64>(), proptest::option::of(vec(any::<u8>(), 0..40)));
    (0..12u8, numbers, any::<bool>(), any::<i64>(), vec(any::<u8>(), 0..64), vec(entry, 0..20))
        .prop_map(|(kind, numbers, reject, priority, context, entries)| {
            let [term, log_term, index, commit, commit_term, reject_hint, request_snapshot, _] =
                numbers;
            let entries = entries.into_iter().map(|(term, index, value)| RaftEntry {
                term: Term(term),
                index: LogIndex(index),
                payload: value.map(|value| command(&value)).unwrap_or_default(),
            });
            RaftMessage {
                kind: RaftKind::from_number(kind).unwrap(),
                term: Term(term),
                log_term: Term(log_term),
                index: LogIndex(index),
                commit: LogIndex(commit),
                commit_term: Term(commit_term),
                reject,
                reject_hint: LogIndex(reject_hint),
                request_snapshot: LogIndex(request_snapshot),
                priority,
                context: Bytes::from(context),
                entries: entries.collect(),
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn any_raft_message_survives_the_round_trip(raft in any_raft(), roles in any::<[u8; 2]>()) {
        let mut message = sample(Body::Raft(raft));
        message.from.role = PeerRole::from_number(u64::from(roles[0] % 4)).unwrap();
        message.to.role = PeerRole::from_number(u64::from(roles[1] % 4)).unwrap();
        prop_assert_eq!(decode(frame(&message)).unwrap(), message);
    }
}
