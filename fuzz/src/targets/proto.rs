//! Targets for messages of clients, placement and control, and their conversions in servers and
//! clients.

use super::records::sample_region;
use crate::{Bound, Target};
use bytes::{Bytes, BytesMut};
use prost::Message;
use stele_proto::stele::control::v1 as control;
use stele_proto::{
    ScanResponse, errorpb, keyspacepb, kvrpcpb, meta_storagepb, metapb, pdpb, tikvpb,
};

/// Bound of protobuf messages: an empty submessage of two bytes takes a few hundred in memory,
/// because `prost` boxes none of them.
const PROTO: Bound = Bound { bytes: 64 << 10, per_byte: 2048 };

fn round_trip<M: Message + Default + PartialEq>(bytes: Bytes) {
    let Ok(message) = M::decode(bytes) else { return };
    let mut out = BytesMut::new();
    message.encode(&mut out).unwrap();
    assert_eq!(out.len(), message.encoded_len());
    assert!(M::decode(out.freeze()).unwrap() == message);
}

type Case = fn(Bytes);

/// Messages that a node receives from clients and nodes, and that clients receive from nodes.
const CASES: &[Case] = &[
    round_trip::<tikvpb::BatchCommandsRequest>,
    round_trip::<tikvpb::BatchCommandsResponse>,
    round_trip::<kvrpcpb::RawGetRequest>,
    round_trip::<kvrpcpb::RawBatchGetRequest>,
    round_trip::<kvrpcpb::RawPutRequest>,
    round_trip::<kvrpcpb::RawBatchPutRequest>,
    round_trip::<kvrpcpb::RawDeleteRequest>,
    round_trip::<kvrpcpb::RawBatchDeleteRequest>,
    round_trip::<kvrpcpb::RawScanRequest>,
    round_trip::<kvrpcpb::RawBatchScanRequest>,
    round_trip::<kvrpcpb::RawDeleteRangeRequest>,
    round_trip::<kvrpcpb::RawGetKeyTtlRequest>,
    round_trip::<kvrpcpb::RawCasRequest>,
    round_trip::<kvrpcpb::RawChecksumRequest>,
    round_trip::<ScanResponse>,
    round_trip::<kvrpcpb::RawBatchGetResponse>,
    round_trip::<errorpb::Error>,
    round_trip::<pdpb::GetMembersResponse>,
    round_trip::<pdpb::GetRegionRequest>,
    round_trip::<pdpb::GetRegionResponse>,
    round_trip::<pdpb::QueryRegionRequest>,
    round_trip::<pdpb::QueryRegionResponse>,
    round_trip::<pdpb::ScanRegionsRequest>,
    round_trip::<pdpb::BatchScanRegionsRequest>,
    round_trip::<pdpb::BatchScanRegionsResponse>,
    round_trip::<pdpb::GetAllStoresResponse>,
    round_trip::<pdpb::TsoRequest>,
    round_trip::<meta_storagepb::GetRequest>,
    round_trip::<keyspacepb::LoadKeyspaceRequest>,
    round_trip::<control::HeartbeatRequest>,
    round_trip::<control::HeartbeatResponse>,
    round_trip::<control::JoinRequest>,
    round_trip::<control::OperatorStep>,
    round_trip::<control::ListRegionsResponse>,
    round_trip::<control::RegionDetailResponse>,
    round_trip::<control::SetConfigRequest>,
    round_trip::<control::SplitRequest>,
];

/// Any message; the first byte chooses its type.
pub(super) const MESSAGES: Target = Target {
    name: "proto_messages",
    run: |input| {
        let Some((&number, bytes)) = input.split_first() else { return };
        let case = CASES.get(usize::from(number) % CASES.len()).copied();
        case.unwrap_or(round_trip::<errorpb::Error>)(Bytes::copy_from_slice(bytes));
    },
    seeds: || {
        let samples = [
            batch().encode_to_vec(),
            region_response().encode_to_vec(),
            epoch_error().encode_to_vec(),
            report().encode_to_vec(),
        ];
        let numbered = |(number, sample): (u8, &Vec<u8>)| [&[number], &sample[..]].concat();
        let each = |sample| (0..CASES.len() as u8).map(move |number| numbered((number, sample)));
        samples.iter().flat_map(each).collect()
    },
    fix_checksums: None,
    bound: PROTO,
};

fn batch() -> tikvpb::BatchCommandsRequest {
    use tikvpb::batch_commands_request::Request;
    use tikvpb::batch_commands_request::request::Cmd;
    let context = kvrpcpb::Context { region_id: 7, ..kvrpcpb::Context::default() };
    let key = Bytes::from_static(b"key");
    let get = kvrpcpb::RawGetRequest { context: Some(context), key, ..Default::default() };
    let requests = vec![Request { cmd: Some(Cmd::RawGet(get)) }, Request { cmd: None }];
    tikvpb::BatchCommandsRequest { requests, request_ids: vec![1, 1 << 40], ..Default::default() }
}

fn region() -> metapb::Region {
    let region = sample_region(7);
    let peer = |peer: &stele_types::Peer| metapb::Peer {
        id: peer.id.0,
        store_id: peer.store.0,
        ..metapb::Peer::default()
    };
    metapb::Region {
        id: region.id.0,
        start_key: region.range.start.clone(),
        end_key: region.range.end.clone(),
        region_epoch: Some(metapb::RegionEpoch { conf_ver: 3, version: 300 }),
        peers: region.peers.iter().map(peer).collect(),
        ..metapb::Region::default()
    }
}

fn region_response() -> pdpb::GetRegionResponse {
    let region = region();
    let leader = region.peers.first().copied();
    pdpb::GetRegionResponse { region: Some(region), leader, ..Default::default() }
}

fn epoch_error() -> errorpb::Error {
    let given = errorpb::EpochNotMatch { current_regions: vec![region(), region()] };
    errorpb::Error { epoch_not_match: Some(given), ..errorpb::Error::default() }
}

fn report() -> control::RegionReport {
    let region = sample_region(7);
    control::RegionReport {
        leader_store: region.peers[0].store.0,
        leader_peer: region.peers[0].id.0,
        region: region.encode(),
        term: 9,
        pending_peers: vec![72],
        down_peers: vec![control::DownPeer { peer_id: 73, down_seconds: 5 }],
        ..control::RegionReport::default()
    }
}

/// Region report of a leader, as the placement group decodes it.
pub(super) const REGION_REPORT: Target = Target {
    name: "region_report",
    run: |input| {
        let Ok(report) = control::RegionReport::decode(input) else { return };
        let Some(known) = stele_server::fuzzing::region_report(&report) else { return };
        let again = stele_server::fuzzing::region_report(&known).unwrap();
        assert!(again == known);
    },
    seeds: || vec![report().encode_to_vec()],
    fix_checksums: None,
    bound: PROTO,
};

/// List of regions from PD, as a client's region cache decodes it.
pub(super) const ROUTES: Target = Target {
    name: "client_routes",
    run: |input| {
        let Ok(answers) = pdpb::ScanRegionsResponse::decode(input) else { return };
        let answer = |it: pdpb::Region| pdpb::GetRegionResponse {
            region: it.region,
            leader: it.leader,
            ..Default::default()
        };
        let answers: Vec<_> = answers.regions.into_iter().map(answer).collect();
        stele_client::fuzzing::routes(&answers);
    },
    seeds: || {
        let mut second = region();
        (second.id, second.start_key, second.end_key) = (8, second.end_key, Bytes::new());
        let entry = |region: metapb::Region| pdpb::Region {
            leader: region.peers.first().copied(),
            region: Some(region),
            ..Default::default()
        };
        let regions = vec![entry(region()), entry(second), entry(region())];
        vec![pdpb::ScanRegionsResponse { regions, ..Default::default() }.encode_to_vec()]
    },
    fix_checksums: None,
    bound: PROTO,
};

/// Region error, as a client handles it.
pub(super) const REGION_ERROR: Target = Target {
    name: "client_region_error",
    run: |input| {
        let Ok(error) = errorpb::Error::decode(input) else { return };
        stele_client::fuzzing::region_error(&error);
    },
    seeds: || {
        let busy = errorpb::ServerIsBusy { backoff_ms: u64::MAX, ..Default::default() };
        let busy = errorpb::Error { server_is_busy: Some(busy), ..Default::default() };
        vec![epoch_error().encode_to_vec(), busy.encode_to_vec()]
    },
    fix_checksums: None,
    bound: PROTO,
};

/// Body of the token of a watch, as a client reads it.
pub(super) const WATCH_TOKEN: Target = Target {
    name: "client_watch_token",
    run: stele_client::fuzzing::watch_token,
    seeds: || {
        // Cluster 1, the default family, all keys in region 2 of version 1 at index 300.
        vec![vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2, 1, 0xac, 2]]
    },
    fix_checksums: None,
    bound: PROTO,
};
