//! The reader of requests.

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use stele_redis::{
    ARGUMENTS_MAX, BULK_BYTES_MAX, LINE_BYTES_MAX, ProtocolError, ReadStep, RequestReader,
};
use stele_redis_region::encode_request;

/// What a reader made of a stream.
#[derive(Debug, Default, PartialEq)]
struct Found {
    requests: Vec<Vec<Bytes>>,
    announced: usize,
    is_http: bool,
    error: Option<ProtocolError>,
}

fn read<'p>(pieces: impl IntoIterator<Item = &'p [u8]>, is_authenticated: bool) -> Found {
    let mut reader = RequestReader::default();
    reader.set_authenticated(is_authenticated);
    let mut input = BytesMut::new();
    let mut found = Found::default();
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            match reader.next(&mut input) {
                Ok(ReadStep::NeedsMore) => break,
                Ok(ReadStep::Announces(bytes)) => found.announced += bytes,
                Ok(ReadStep::Request(request)) => found.requests.push(request),
                Ok(ReadStep::Http) => {
                    found.is_http = true;
                    return found;
                }
                Err(error) => {
                    found.error = Some(error);
                    return found;
                }
            }
        }
    }
    found
}

fn request() -> impl Strategy<Value = Vec<u8>> {
    let array = vec(vec(any::<u8>(), 0..20), 1..6).prop_map(|words| {
        let words: Vec<Bytes> = words.into_iter().map(Bytes::from).collect();
        encode_request(&words).to_vec()
    });
    let inline = vec(prop::sample::select(&b"ab \"'\\x\t"[..]), 0..12).prop_map(|mut line| {
        line.extend_from_slice(b"\r\n");
        line
    });
    prop_oneof![array, inline, Just(b"*0\r\n".to_vec()), Just(b"*-1\r\n".to_vec())]
}

proptest! {
    #[test]
    fn every_split_of_a_stream_gives_the_same_requests(
        requests in vec(request(), 0..6),
        cuts in vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let stream = requests.concat();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|cut| &stream[cut[0]..cut[1]]);
        let whole = read([&stream[..]], true);
        prop_assert_eq!(&read(pieces, true), &whole);
        prop_assert_eq!(&read(stream.chunks(1), true), &whole);
    }

    #[test]
    fn no_bytes_make_the_reader_fail_otherwise_than_by_its_errors(
        bytes in vec(prop::sample::select(&b"*$-0123\r\n\"'\\x a\0\xff"[..]), 0..60),
    ) {
        let whole = read([&bytes[..]], false);
        prop_assert_eq!(read(bytes.chunks(1), false), whole);
    }
}

#[test]
fn a_stream_that_breaks_the_protocol_gets_the_text_of_redis() {
    let rows: [(&[u8], &str); 17] = [
        (b"*x\r\n", "invalid multibulk length"),
        (b"*\r\n", "invalid multibulk length"),
        (b"*+1\r\n", "invalid multibulk length"),
        (b"*1048577\r\n", "invalid multibulk length"),
        (b"*99999999999999999999\r\n", "invalid multibulk length"),
        (b"*1\r\nx3\r\n", "expected '$', got 'x'"),
        (b"*1\r\n*1\r\n", "expected '$', got '*'"),
        (b"*1\r\n$x\r\n", "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$67174401\r\n", "invalid bulk length"),
        (b"get \"a\r\n", "unbalanced quotes in request"),
        (b"get 'a\r\n", "unbalanced quotes in request"),
        (b"get \"a\"b\r\n", "unbalanced quotes in request"),
        (b"get 'a'b\r\n", "unbalanced quotes in request"),
        (&[b'a'; LINE_BYTES_MAX + 1], "too big inline request"),
        (&[b'*'; LINE_BYTES_MAX + 1], "too big mbulk count string"),
        (&[&b"*1\r\n"[..], &[b'$'; LINE_BYTES_MAX + 1]].concat(), "too big bulk count string"),
    ];
    for (stream, text) in rows {
        let error = read([stream], true).error.unwrap();
        assert_eq!(error.to_string(), format!("Protocol error: {text}"));
    }
}

#[test]
fn a_client_without_authentication_may_send_small_requests_only() {
    let rows: [(&[u8], Option<&str>); 4] = [
        (b"*10\r\n", None),
        (b"*11\r\n", Some("unauthenticated multibulk length")),
        (b"*1\r\n$16384\r\n", None),
        (b"*1\r\n$16385\r\n", Some("unauthenticated bulk length")),
    ];
    for (stream, text) in rows {
        let error = read([stream], false).error.map(|error| error.to_string());
        assert_eq!(error, text.map(|text| format!("Protocol error: {text}")));
        assert_eq!(read([stream], true).error, None);
    }
}

#[test]
fn lengths_are_announced_before_their_bytes_and_reserve_nothing() {
    let mut reader = RequestReader::default();
    reader.set_authenticated(true);
    let of_count = size_of::<Bytes>() * ARGUMENTS_MAX;
    let mut input = BytesMut::from(&b"*1048576\r\n$67174400\r\n"[..]);
    assert_eq!(reader.next(&mut input), Ok(ReadStep::Announces(of_count)));
    assert_eq!(reader.next(&mut input), Ok(ReadStep::Announces(BULK_BYTES_MAX + 2)));
    assert_eq!(reader.next(&mut input), Ok(ReadStep::NeedsMore));
    assert!(input.capacity() < 1000);
    let found = read([&b"*2\r\n$3\r\nget\r\n$1\r\na\r\n"[..]], true);
    assert_eq!(found.announced, 2 * size_of::<Bytes>() + 5 + 3);
    assert_eq!(found.requests, [["get", "a"]]);
}

#[test]
fn inline_requests_are_split_as_redis_does() {
    let rows: [(&[u8], &[&[u8]]); 11] = [
        (b"get a\r\n", &[b"get", b"a"]),
        (b"get a\n", &[b"get", b"a"]),
        (b"  get\t a  \r\n", &[b"get", b"a"]),
        (b"set a \"b c\"\r\n", &[b"set", b"a", b"b c"]),
        (b"set a 'b \" c'\r\n", &[b"set", b"a", b"b \" c"]),
        (b"\"\\x41\\xzz\\n\\r\\t\\b\\a\\\\\\\"\"\r\n", &[b"Axzz\n\r\t\x08\x07\\\""]),
        (b"'a\\'b\\n'\r\n", &[b"a'b\\n"]),
        (b"set a \"\"\r\n", &[b"set", b"a", b""]),
        (b"fo\"o b\"\r\n", &[b"foo b"]),
        (b"a\"b\" c\r\n", &[b"ab", b"c"]),
        (b"get \xff\r\n", &[b"get", b"\xff"]),
    ];
    for (line, words) in rows {
        assert_eq!(read([line], false).requests, [words], "{line:?}");
    }
    assert_eq!(read([&b"\r\n\n   \r\n*0\r\n*-5\r\nping\r\n"[..]], false).requests, [["ping"]]);
}

#[test]
fn a_browser_is_not_a_client() {
    for stream in [&b"POST / HTTP/1.1\r\n"[..], b"GET /\r\nHost: a\r\n", b"*1\r\n$5\r\nhost:\r\n"] {
        assert!(read([stream], false).is_http);
    }
    assert!(!read([&b"get post\r\n"[..]], false).is_http);
}
