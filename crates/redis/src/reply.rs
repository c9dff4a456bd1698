//! Replies, and their encoding in both versions of the protocol.

use bytes::{BufMut, Bytes, BytesMut};
use std::borrow::Cow;
use std::fmt::Write;

/// Version of the protocol, chosen by HELLO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// RESP2: strings, numbers and arrays.
    #[default]
    Resp2,
    /// RESP3: also maps, sets, doubles, booleans and pushes.
    Resp3,
}

/// Reply to a command.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Status such as `OK`: a line.
    Simple(&'static str),
    /// Error, with its code in capitals first, such as `ERR`: a line.
    Error(Cow<'static, str>),
    /// Number.
    Integer(i64),
    /// Bytes.
    Bulk(Bytes),
    /// Missing value.
    Null,
    /// Missing array: EXEC after a change of a watched key.
    NullArray,
    /// Elements in order.
    Array(Vec<Reply>),
    /// Keys with values; in RESP2 an array of both in turn.
    Map(Vec<(Reply, Reply)>),
    /// Elements without order; in RESP2 an array.
    Set(Vec<Reply>),
    /// Message that is not an answer; in RESP2 an array.
    Push(Vec<Reply>),
    /// Floating-point number; in RESP2 bytes.
    Double(f64),
    /// Truth value; in RESP2 1 or 0.
    Boolean(bool),
    /// Text for people; in RESP2 bytes.
    Verbatim(Bytes),
}

impl Reply {
    /// The reply `OK`.
    pub const OK: Self = Self::Simple("OK");

    /// Returns an error; its text begins with a code in capitals.
    pub fn error(text: impl Into<Cow<'static, str>>) -> Self {
        Self::Error(text.into())
    }

    /// Returns a number that counts things in memory or pairs of a name.
    pub fn count(count: impl TryInto<i64>) -> Self {
        Self::Integer(count.try_into().unwrap_or(i64::MAX))
    }

    /// Returns the bytes, or the missing value.
    pub fn bulk_or_null(value: Option<Bytes>) -> Self {
        value.map_or(Self::Null, Self::Bulk)
    }

    /// Appends the reply.
    pub fn encode(&self, protocol: Protocol, out: &mut BytesMut) {
        let is_3 = protocol == Protocol::Resp3;
        match self {
            Self::Simple(text) => put_text(out, b'+', text),
            Self::Error(text) => put_text(out, b'-', text),
            Self::Integer(number) => put_number(out, b':', *number),
            Self::Bulk(bytes) => put_bulk(out, bytes),
            Self::Null | Self::NullArray if is_3 => out.put_slice(b"_\r\n"),
            Self::Null => out.put_slice(b"$-1\r\n"),
            Self::NullArray => out.put_slice(b"*-1\r\n"),
            Self::Array(elements) => {
                put_header(out, b'*', elements.len());
                put_all(out, protocol, elements);
            }
            Self::Map(pairs) => {
                put_map_header(out, protocol, pairs.len());
                for (key, value) in pairs {
                    key.encode(protocol, out);
                    value.encode(protocol, out);
                }
            }
            Self::Set(elements) => {
                put_header(out, if is_3 { b'~' } else { b'*' }, elements.len());
                put_all(out, protocol, elements);
            }
            Self::Push(elements) => {
                put_header(out, if is_3 { b'>' } else { b'*' }, elements.len());
                put_all(out, protocol, elements);
            }
            Self::Double(number) if is_3 => put_text(out, b',', &double_text(*number)),
            Self::Double(number) => put_bulk(out, double_text(*number).as_bytes()),
            Self::Boolean(is_true) if is_3 => put_text(out, b'#', if *is_true { "t" } else { "f" }),
            Self::Boolean(is_true) => put_number(out, b':', i64::from(*is_true)),
            Self::Verbatim(text) if is_3 => {
                put_header(out, b'=', text.len() + VERBATIM_FORMAT.len());
                out.put_slice(VERBATIM_FORMAT);
                out.put_slice(text);
                out.put_slice(CRLF);
            }
            Self::Verbatim(text) => put_bulk(out, text),
        }
    }

    /// Returns the encoded reply.
    pub fn encoded(&self, protocol: Protocol) -> Bytes {
        let mut out = BytesMut::new();
        self.encode(protocol, &mut out);
        out.freeze()
    }
}

const CRLF: &[u8] = b"\r\n";
const VERBATIM_FORMAT: &[u8] = b"txt:";

/// Appends the header of an array of which the elements are encoded after it.
pub fn put_array_header(out: &mut BytesMut, elements: usize) {
    put_header(out, b'*', elements);
}

/// Appends the header of a map of which the keys and values are encoded after it, in turn.
pub fn put_map_header(out: &mut BytesMut, protocol: Protocol, pairs: usize) {
    match protocol {
        Protocol::Resp3 => put_header(out, b'%', pairs),
        Protocol::Resp2 => put_header(out, b'*', pairs.saturating_mul(2)),
    }
}

fn put_all(out: &mut BytesMut, protocol: Protocol, elements: &[Reply]) {
    for element in elements {
        element.encode(protocol, out);
    }
}

fn put_header(out: &mut BytesMut, kind: u8, length: usize) {
    put_number(out, kind, i64::try_from(length).unwrap_or(i64::MAX));
}

fn put_number(out: &mut BytesMut, kind: u8, number: i64) {
    out.put_u8(kind);
    // Writing to memory does not fail.
    let _ = write!(out, "{number}\r\n");
}

/// Appends a line. Bytes that would end it early become spaces.
fn put_text(out: &mut BytesMut, kind: u8, text: &str) {
    out.put_u8(kind);
    for byte in text.bytes() {
        out.put_u8(if matches!(byte, b'\r' | b'\n') { b' ' } else { byte });
    }
    out.put_slice(CRLF);
}

fn put_bulk(out: &mut BytesMut, bytes: &[u8]) {
    put_header(out, b'$', bytes.len());
    out.put_slice(bytes);
    out.put_slice(CRLF);
}

fn double_text(number: f64) -> String {
    match number {
        _ if number.is_nan() => "nan".to_owned(),
        _ if number.is_infinite() => if number > 0.0 { "inf" } else { "-inf" }.to_owned(),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reply_has_its_bytes_in_both_protocols() {
        let bulk = |text: &'static str| Reply::Bulk(Bytes::from_static(text.as_bytes()));
        let rows = [
            (Reply::OK, "+OK\r\n", "+OK\r\n"),
            (Reply::error("ERR a\r\nb"), "-ERR a  b\r\n", "-ERR a  b\r\n"),
            (Reply::Integer(i64::MIN), ":-9223372036854775808\r\n", ":-9223372036854775808\r\n"),
            (bulk("a\r\n"), "$3\r\na\r\n\r\n", "$3\r\na\r\n\r\n"),
            (bulk(""), "$0\r\n\r\n", "$0\r\n\r\n"),
            (Reply::Null, "$-1\r\n", "_\r\n"),
            (Reply::NullArray, "*-1\r\n", "_\r\n"),
            (Reply::Array(vec![Reply::Null]), "*1\r\n$-1\r\n", "*1\r\n_\r\n"),
            (
                Reply::Map(vec![(bulk("k"), Reply::Integer(1))]),
                "*2\r\n$1\r\nk\r\n:1\r\n",
                "%1\r\n$1\r\nk\r\n:1\r\n",
            ),
            (Reply::Map(vec![]), "*0\r\n", "%0\r\n"),
            (Reply::Set(vec![Reply::count(2u64)]), "*1\r\n:2\r\n", "~1\r\n:2\r\n"),
            (Reply::Push(vec![]), "*0\r\n", ">0\r\n"),
            (Reply::Double(1.5), "$3\r\n1.5\r\n", ",1.5\r\n"),
            (Reply::Double(f64::NEG_INFINITY), "$4\r\n-inf\r\n", ",-inf\r\n"),
            (Reply::Boolean(true), ":1\r\n", "#t\r\n"),
            (Reply::Boolean(false), ":0\r\n", "#f\r\n"),
            (Reply::Verbatim("ab".into()), "$2\r\nab\r\n", "=6\r\ntxt:ab\r\n"),
        ];
        for (reply, resp2, resp3) in rows {
            assert_eq!(reply.encoded(Protocol::Resp2), resp2);
            assert_eq!(reply.encoded(Protocol::Resp3), resp3);
        }
    }
}
