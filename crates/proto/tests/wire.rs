//! Field numbers, compared with manually encoded bytes that clients of TiKV send and expect.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use prost::Message;
use stele_proto::tikvpb::batch_commands_request::{Request, request};
use stele_proto::tikvpb::batch_commands_response::{Response, response};
use stele_proto::{errorpb, kvrpcpb, metapb, pdpb, tikvpb};

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn number(field: u64, value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    varint(field << 3, &mut out);
    varint(value, &mut out);
    out
}

/// Encodes a field that is bytes, text, a message or packed numbers.
fn block(field: u64, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint(field << 3 | 2, &mut out);
    varint(content.len() as u64, &mut out);
    out.extend_from_slice(content);
    out
}

/// Asserts that the bytes decode to the message and the message encodes to the bytes.
fn agree<M: Message + Default + PartialEq + std::fmt::Debug>(wire: &[&[u8]], message: &M) {
    let wire = wire.concat();
    assert_eq!(&M::decode(&wire[..]).unwrap(), message);
    assert_eq!(message.encode_to_vec(), wire);
}

fn epoch() -> (Vec<u8>, metapb::RegionEpoch) {
    (vec![0x08, 0x05, 0x10, 0x09], metapb::RegionEpoch { conf_ver: 5, version: 9 })
}

fn peer() -> (Vec<u8>, metapb::Peer) {
    let peer = metapb::Peer {
        id: 300,
        store_id: 2,
        role: metapb::PeerRole::DemotingVoter as i32,
        ..Default::default()
    };
    (vec![0x08, 0xac, 0x02, 0x10, 0x02, 0x18, 0x03], peer)
}

fn region() -> (Vec<u8>, metapb::Region) {
    let wire =
        [number(1, 7), block(2, b"a"), block(3, b"z"), block(4, &epoch().0), block(5, &peer().0)];
    let region = metapb::Region {
        id: 7,
        start_key: Bytes::from_static(b"a"),
        end_key: Bytes::from_static(b"z"),
        region_epoch: Some(epoch().1),
        peers: vec![peer().1],
        ..Default::default()
    };
    (wire.concat(), region)
}

#[test]
fn a_batch_of_commands_is_read_with_its_ids_packed() {
    let get = [0x12, 0x01, b'k', 0x1a, 0x04, b'l', b'o', b'c', b'k'];
    let put = [0x12, 0x01, b'k', 0x1a, 0x01, b'v', 0x22, 0x00, 0x28, 0x3c];
    // An empty `cf` that is encoded must be read as the default.
    let wire = [
        block(1, &block(13, &get)),
        block(1, &block(15, &put)),
        block(1, &block(255, &[0x08, 0x2a])),
        block(2, &[0x01, 0xac, 0x02, 0x03]),
        number(3, 99),
    ]
    .concat();
    let key = Bytes::from_static(b"k");
    let commands = [
        request::Cmd::RawGet(kvrpcpb::RawGetRequest {
            key: key.clone(),
            cf: "lock".into(),
            ..Default::default()
        }),
        request::Cmd::RawPut(kvrpcpb::RawPutRequest {
            key,
            value: Bytes::from_static(b"v"),
            ttl: 60,
            ..Default::default()
        }),
        request::Cmd::Empty(tikvpb::BatchCommandsEmptyRequest { test_id: 42, delay_time: 0 }),
    ];
    let batch = tikvpb::BatchCommandsRequest::decode(&wire[..]).unwrap();
    let expected = commands.map(|cmd| Request { cmd: Some(cmd) });
    assert_eq!(batch.requests, expected);
    assert_eq!(batch.request_ids, [1, 300, 3]);
    assert_eq!(batch.client_send_time_ns, 99);
}

#[test]
fn every_command_and_its_answer_have_one_number() {
    use request::Cmd as Ask;
    use response::Cmd as Answer;
    let table = [
        (13, Ask::RawGet(Default::default()), Answer::RawGet(Default::default())),
        (14, Ask::RawBatchGet(Default::default()), Answer::RawBatchGet(Default::default())),
        (15, Ask::RawPut(Default::default()), Answer::RawPut(Default::default())),
        (16, Ask::RawBatchPut(Default::default()), Answer::RawBatchPut(Default::default())),
        (17, Ask::RawDelete(Default::default()), Answer::RawDelete(Default::default())),
        (18, Ask::RawBatchDelete(Default::default()), Answer::RawBatchDelete(Default::default())),
        (19, Ask::RawScan(Default::default()), Answer::RawScan(Default::default())),
        (20, Ask::RawDeleteRange(Default::default()), Answer::RawDeleteRange(Default::default())),
        (21, Ask::RawBatchScan(Default::default()), Answer::RawBatchScan(Default::default())),
        (
            39,
            Ask::GetHealthFeedback(Default::default()),
            Answer::GetHealthFeedback(Default::default()),
        ),
        (255, Ask::Empty(Default::default()), Answer::Empty(Default::default())),
    ];
    for (field, ask, answer) in table {
        agree(&[&block(field, b"")], &Request { cmd: Some(ask) });
        agree(&[&block(field, b"")], &Response { cmd: Some(answer) });
    }
    let batch = tikvpb::BatchCommandsResponse {
        responses: vec![Response::default()],
        request_ids: vec![300],
        ..Default::default()
    };
    agree(&[&block(1, b""), &block(2, &[0xac, 0x02])], &batch);
    let unknown = Request::decode(&block(60, b"\x0a\x00")[..]).unwrap();
    assert_eq!(unknown.cmd, None, "an unknown command must not fail the decoding");
}

#[test]
fn every_command_that_is_not_supported_has_a_response_with_a_region_error() {
    use response::Cmd as Answer;
    let fields = (1..=12).chain(22..=26).chain(33..=38);
    for field in fields {
        let command = Bytes::from_static(b"\x0a\x01\xff");
        let wire = block(field, &command);
        let asked = Request::decode(&wire[..]).unwrap();
        assert_eq!(asked.encode_to_vec(), wire, "{field}");
        assert!(asked.cmd.is_some(), "{field}");
        let error = if field == 22 { 2 } else { 1 };
        let wire = block(field, &block(error, &block(1, b"text")));
        let answer = Response::decode(&wire[..]).unwrap();
        assert_eq!(answer.encode_to_vec(), wire, "{field}");
    }
    let answer = Answer::Prewrite(Default::default());
    agree(&[&block(3, b"")], &Response { cmd: Some(answer) });
}

#[test]
fn every_region_error_has_its_number() {
    let error = |wire: Vec<u8>, error: errorpb::Error| agree(&[&wire], &error);
    let none = errorpb::Error::default;
    error(block(1, b"text"), errorpb::Error { message: "text".into(), ..none() });
    let not_leader = errorpb::NotLeader { region_id: 7, leader: Some(peer().1) };
    let wire = block(2, &[number(1, 7), block(2, &peer().0)].concat());
    error(wire, errorpb::Error { not_leader: Some(not_leader), ..none() });
    let not_found = Some(errorpb::RegionNotFound { region_id: 7 });
    error(block(3, &number(1, 7)), errorpb::Error { region_not_found: not_found, ..none() });
    let outside = errorpb::KeyNotInRegion {
        key: Bytes::from_static(b"k"),
        region_id: 7,
        start_key: Bytes::from_static(b"a"),
        end_key: Bytes::from_static(b"b"),
    };
    let wire = [block(1, b"k"), number(2, 7), block(3, b"a"), block(4, b"b")].concat();
    error(block(4, &wire), errorpb::Error { key_not_in_region: Some(outside), ..none() });
    let epoch = errorpb::EpochNotMatch { current_regions: vec![region().1] };
    let wire = block(5, &block(1, &region().0));
    error(wire, errorpb::Error { epoch_not_match: Some(epoch), ..none() });
    let busy = errorpb::ServerIsBusy {
        reason: "r".into(),
        backoff_ms: 2,
        estimated_wait_ms: 3,
        applied_index: 4,
    };
    let wire = [block(1, b"r"), number(2, 2), number(3, 3), number(4, 4)].concat();
    error(block(6, &wire), errorpb::Error { server_is_busy: Some(busy), ..none() });
    let stale = Some(errorpb::StaleCommand {});
    error(block(7, b""), errorpb::Error { stale_command: stale, ..none() });
    let store = errorpb::StoreNotMatch { request_store_id: 1, actual_store_id: 2 };
    let wire = block(8, &[number(1, 1), number(2, 2)].concat());
    error(wire, errorpb::Error { store_not_match: Some(store), ..none() });
    let large = errorpb::RaftEntryTooLarge { region_id: 7, entry_size: 1 << 30 };
    let wire = block(9, &[number(1, 7), number(2, 1 << 30)].concat());
    error(wire, errorpb::Error { raft_entry_too_large: Some(large), ..none() });
}

#[test]
fn every_later_region_error_has_its_number() {
    let error = |wire: Vec<u8>, error: errorpb::Error| agree(&[&wire], &error);
    let none = errorpb::Error::default;
    let not_ready = errorpb::ReadIndexNotReady { reason: "r".into(), region_id: 7 };
    let wire = block(11, &[block(1, b"r"), number(2, 7)].concat());
    error(wire, errorpb::Error { read_index_not_ready: Some(not_ready), ..none() });
    let merging = Some(errorpb::ProposalInMergingMode { region_id: 7 });
    let wire = block(12, &number(1, 7));
    error(wire, errorpb::Error { proposal_in_merging_mode: merging, ..none() });
    let not_initialized = Some(errorpb::RegionNotInitialized { region_id: 7 });
    let wire = block(14, &number(1, 7));
    error(wire, errorpb::Error { region_not_initialized: not_initialized, ..none() });
    let full = errorpb::DiskFull { store_id: vec![3, 300], reason: "r".into() };
    let wire = block(15, &[block(1, &[0x03, 0xac, 0x02]), block(2, b"r")].concat());
    error(wire, errorpb::Error { disk_full: Some(full), ..none() });
    let peer = errorpb::MismatchPeerId { request_peer_id: 1, store_peer_id: 2 };
    let wire = block(20, &[number(1, 1), number(2, 2)].concat());
    error(wire, errorpb::Error { mismatch_peer_id: Some(peer), ..none() });
    let undetermined = Some(errorpb::UndeterminedResult { message: "m".into() });
    let wire = block(22, &block(1, b"m"));
    error(wire, errorpb::Error { undetermined_result: undetermined, ..none() });
}

#[test]
fn a_context_of_a_newer_client_is_read() {
    let wire = [
        number(1, 7),
        block(2, &epoch().0),
        block(3, &peer().0),
        number(5, 6),
        number(12, 1),
        number(14, 20_000),
        block(16, b"a field we do not have"),
        number(21, 2),
        block(24, b"source"),
        number(32, 0xff_ffff),
        number(35, u64::MAX),
    ]
    .concat();
    let context = kvrpcpb::Context::decode(&wire[..]).unwrap();
    let expected = kvrpcpb::Context {
        region_id: 7,
        region_epoch: Some(epoch().1),
        peer: Some(peer().1),
        term: 6,
        replica_read: true,
        max_execution_duration_ms: 20_000,
        api_version: kvrpcpb::ApiVersion::V2 as i32,
        request_source: "source".into(),
        keyspace: Some(kvrpcpb::context::Keyspace::KeyspaceId(0xff_ffff)),
        cluster_id: u64::MAX,
        ..Default::default()
    };
    assert_eq!(context, expected);
}

#[test]
fn compare_and_swap_has_its_numbers() {
    let request = kvrpcpb::RawCasRequest {
        key: Bytes::from_static(b"k"),
        value: Bytes::from_static(b"v"),
        previous_not_exist: true,
        previous_value: Bytes::from_static(b"p"),
        cf: "write".into(),
        ttl: 9,
        delete: true,
        ..Default::default()
    };
    let wire = [
        block(2, b"k"),
        block(3, b"v"),
        number(4, 1),
        block(5, b"p"),
        block(6, b"write"),
        number(7, 9),
        number(8, 1),
    ];
    agree(&[&wire.concat()], &request);
    let response = kvrpcpb::RawCasResponse {
        error: "e".into(),
        succeed: true,
        previous_not_exist: true,
        previous_value: Bytes::from_static(b"p"),
        ..Default::default()
    };
    let wire = [block(2, b"e"), number(3, 1), number(4, 1), block(5, b"p")];
    agree(&[&wire.concat()], &response);
}

#[test]
fn a_query_of_regions_and_its_answer_have_their_numbers() {
    let request = pdpb::QueryRegionRequest {
        header: Some(pdpb::RequestHeader { cluster_id: 1, ..Default::default() }),
        need_buckets: true,
        ids: vec![7],
        keys: vec![Bytes::new(), Bytes::from_static(b"k")],
        prev_keys: vec![Bytes::from_static(b"p")],
    };
    let wire = [
        block(1, &number(1, 1)),
        number(2, 1),
        block(3, &[7]),
        block(4, b""),
        block(4, b"k"),
        block(5, b"p"),
    ];
    agree(&[&wire.concat()], &request);

    let answer = pdpb::RegionResponse {
        region: Some(region().1),
        leader: Some(peer().1),
        down_peers: vec![pdpb::PeerStats { peer: Some(peer().1), down_seconds: 4 }],
        pending_peers: vec![peer().1],
    };
    let down = [block(1, &peer().0), number(2, 4)].concat();
    let wire_answer =
        [block(1, &region().0), block(2, &peer().0), block(3, &down), block(4, &peer().0)];
    agree(&[&wire_answer.concat()], &answer);
    let response = pdpb::QueryRegionResponse {
        header: Some(pdpb::ResponseHeader { cluster_id: 1, error: None }),
        key_id_map: vec![7, 0],
        prev_key_id_map: vec![0],
        regions_by_id: [(7, answer)].into(),
    };
    let entry = [number(1, 7), block(2, &wire_answer.concat())].concat();
    let wire =
        [block(1, &number(1, 1)), block(2, &[7, 0]), block(3, &[0]), block(4, &entry)].concat();
    agree(&[&wire], &response);
}

#[test]
fn members_and_stores_have_their_numbers() {
    let member = pdpb::Member {
        name: "n".into(),
        member_id: 3,
        peer_urls: vec!["p".into()],
        client_urls: vec!["http://127.0.0.1:1".into()],
    };
    let wire_member =
        [block(1, b"n"), number(2, 3), block(3, b"p"), block(4, b"http://127.0.0.1:1")];
    let response = pdpb::GetMembersResponse {
        header: Some(Default::default()),
        members: vec![member.clone()],
        leader: Some(member.clone()),
        etcd_leader: Some(member),
    };
    let member = wire_member.concat();
    let wire = [block(1, b""), block(2, &member), block(3, &member), block(4, &member)];
    agree(&[&wire.concat()], &response);

    let store = metapb::Store {
        id: 1,
        address: "h:1".into(),
        state: metapb::StoreState::Tombstone as i32,
        labels: vec![metapb::StoreLabel { key: "k".into(), value: "v".into() }],
        version: "8.5.0".into(),
        start_timestamp: 9,
        last_heartbeat: 11,
        node_state: metapb::NodeState::Removed as i32,
        ..Default::default()
    };
    let wire = [
        number(1, 1),
        block(2, b"h:1"),
        number(3, 2),
        block(4, &[block(1, b"k"), block(2, b"v")].concat()),
        block(5, b"8.5.0"),
        number(9, 9),
        number(11, 11),
        number(13, 3),
    ];
    agree(&[&wire.concat()], &store);
}

#[test]
fn lists_of_regions_are_answered_in_both_forms() {
    let response = pdpb::ScanRegionsResponse {
        header: Some(Default::default()),
        region_metas: vec![region().1],
        leaders: vec![peer().1],
        regions: vec![pdpb::Region {
            region: Some(region().1),
            leader: Some(peer().1),
            ..Default::default()
        }],
    };
    let both = [block(1, &region().0), block(2, &peer().0)].concat();
    let wire = [block(1, b""), block(2, &region().0), block(3, &peer().0), block(4, &both)];
    agree(&[&wire.concat()], &response);
    let request = pdpb::ScanRegionsRequest {
        start_key: Bytes::from_static(b"a"),
        limit: 5,
        end_key: Bytes::from_static(b"b"),
        ..Default::default()
    };
    agree(&[&block(2, b"a"), &number(3, 5), &block(4, b"b")], &request);
}

#[test]
fn garbage_is_refused() {
    for wire in [&b"\x0a\xff\xff\xff\xff\x0f"[..], b"\x07", b"\x0a\x05ab", &[0xff; 64]] {
        assert!(tikvpb::BatchCommandsRequest::decode(wire).is_err(), "{wire:?}");
    }
}
