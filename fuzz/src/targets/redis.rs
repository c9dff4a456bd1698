//! Targets for the Redis protocol: requests of any client, the pairs of Redis keys, and files of Redis.

use super::SMALL;
use crate::{Bound, Target};
use bytes::{Bytes, BytesMut};
use stele_redis::transaction::Intent;
use stele_redis::{Header, Kind, ReadStep, Request, RequestReader};
use stele_types::redis_key;

pub(super) const REQUESTS: Target = Target {
    name: "redis_requests",
    run: requests,
    seeds: samples,
    fix_checksums: None,
    // A list of arguments has room for some before they arrive.
    bound: Bound { bytes: 64 << 10, per_byte: 256 },
};

/// Reads requests from an input at once and byte by byte: both must give the same.
fn requests(input: &[u8]) {
    let at_once = read(input, input.len().max(1));
    assert_eq!(read(input, 1), at_once);
}

fn read(input: &[u8], piece_bytes: usize) -> (Vec<Vec<Bytes>>, Option<String>) {
    let (mut reader, mut received, mut requests) =
        (RequestReader::default(), BytesMut::new(), Vec::new());
    reader.set_authenticated(true);
    for piece in input.chunks(piece_bytes) {
        received.extend_from_slice(piece);
        loop {
            match reader.next(&mut received) {
                Ok(ReadStep::NeedsMore) => break,
                Ok(ReadStep::Announces(_)) => {}
                Ok(ReadStep::Http) => return (requests, None),
                Ok(ReadStep::Request(words)) => {
                    let _ = Request::parse(0, words.clone());
                    requests.push(words);
                }
                Err(error) => return (requests, Some(error.to_string())),
            }
        }
    }
    (requests, None)
}

fn samples() -> Vec<Vec<u8>> {
    let samples: [&[u8]; 5] = [
        b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*1\r\n$4\r\nPING\r\n",
        b"SET \"a b\" 'c'\r\nPING\r\n",
        b"*0\r\n*-1\r\n\r\n",
        b"*3\r\n$3\r\nSET\r\n$0\r\n\r\n$2\r\n\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\n",
    ];
    samples.map(<[u8]>::to_vec).to_vec()
}

pub(super) const PAIR: Target =
    Target { name: "redis_pair", run: pair, seeds: pairs, fix_checksums: None, bound: SMALL };

/// Decodes an input as an engine key, and as the value of a header or an intent. What is decoded is encoded to the same.
fn pair(input: &[u8]) {
    if let Some(named) = redis_key::decode(input) {
        let header = redis_key::header_key(named.database, &named.name);
        let again = match named.part {
            redis_key::KeyPart::Header => header,
            redis_key::KeyPart::Member { stamp, field } => {
                redis_key::member_key(&header, stamp, &field)
            }
            redis_key::KeyPart::Record { transaction } => {
                redis_key::record_key(&header, transaction)
            }
        };
        assert_eq!(again, input);
    }
    let bytes = Bytes::copy_from_slice(input);
    let border = redis_key::border(&bytes);
    assert!(input.starts_with(&border) && redis_key::border(&border) == border);
    if let Some(intent) = Intent::decode(&bytes) {
        assert_eq!(Intent::decode(&intent.encode()), Some(intent));
    }
    if let Ok((header, value)) = Header::decode(&bytes) {
        let again = header.encode(&value);
        assert_eq!(Header::decode(&again), Ok((header, value)));
    }
}

fn pairs() -> Vec<Vec<u8>> {
    let key = redis_key::header_key(3, b"{tag}na\0me");
    let member = redis_key::member_key(&key, 1 << 40, b"field");
    let header =
        Header { kind: Kind::Hash, stamp: 1, change: 2, count: 300, expires_at_ms: 1 << 41 };
    vec![key.to_vec(), member.to_vec(), header.encode(b"value").to_vec()]
}

pub(super) const FILE: Target = Target {
    name: "redis_file",
    run: |input| {
        stele_cli::fuzzing::rdb(input);
    },
    seeds: files,
    // Zero stands for no checksum.
    fix_checksums: Some(|input| {
        let end = input.len().saturating_sub(8);
        input[end..].fill(0);
    }),
    // A compressed string is up to 88 times as long, and its buffer twice that.
    bound: Bound { bytes: 64 << 10, per_byte: 400 },
};

fn files() -> Vec<Vec<u8>> {
    let files: [&[u8]; 5] = [
        include_bytes!("../../../crates/cli/tests/rdb/redis-6.2.5.rdb"),
        include_bytes!("../../../crates/cli/tests/rdb/redis-7.0.15.rdb"),
        include_bytes!("../../../crates/cli/tests/rdb/redis-8.2.3.rdb"),
        include_bytes!("../../../crates/cli/tests/rdb/valkey-9.1.2.rdb"),
        b"REDIS0003\xfe\0\xfd\0\0\0\x70\x09\x01z\x07\x01\x01k\x01\0v\xff\xff",
    ];
    files.map(<[u8]>::to_vec).to_vec()
}
