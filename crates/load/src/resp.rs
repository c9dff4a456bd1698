//! Client of the Redis protocol in its version 2: one connection with pipelined requests.
//!
//! The caller sends requests and receives one reply for each, in order. It may send the next request before
//! it has received a reply.
//!
//! Invariant: a reply takes no memory before its bytes are received, and a string longer than the limit of
//! the connection takes none.
//! Test: `a_string_above_the_limit_is_dropped_and_the_next_reply_is_read`.

use crate::server::unavailable;
use bytes::Bytes;
use std::sync::Arc;
use stele_tls::rustls::pki_types::ServerName;
use stele_tls::{ClientTls, HandshakeFailure, Protocol};
use stele_types::{Error, Result, address};
use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufStream, copy_buf, sink,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Longest line: a status, an error or a number.
const LINE_BYTES_MAX: usize = 4096;
/// Deepest array in an array.
const DEPTH_MAX: usize = 8;
/// Part in which a long string is received.
const PIECE_BYTES: usize = 1 << 20;
/// Bytes of each of the two buffers of a connection: one record of TLS.
const BUFFER_BYTES: usize = 16 << 10;
const CRLF_BYTES: usize = 2;
/// First bytes of an alert of TLS, which a server with TLS sends to a client without.
const ALERT: [u8; 2] = [21, 3];

/// Reply to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RespReply {
    /// Status such as `OK`.
    Status(String),
    /// Error, with its code first.
    Error(String),
    /// Number.
    Integer(i64),
    /// Bytes; `None` for a missing value.
    Bulk(Option<Bytes>),
    /// Bytes that are more than the limit of the connection, and their number. They were dropped.
    TooLong(u64),
    /// Replies in order; `None` for a missing array.
    Array(Option<Vec<RespReply>>),
}

/// Beginning of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RespHead {
    /// An array of so many replies, which the caller receives next.
    Array(u64),
    /// A whole reply.
    Whole(RespReply),
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Connection to a server.
pub struct RespConnection {
    stream: BufStream<Box<dyn Stream>>,
    bulk_bytes_max: usize,
    line: Vec<u8>,
}

impl RespConnection {
    /// Connects to `host:port`, over TLS if there are files for it. The connection drops strings of replies
    /// that have more than `bulk_bytes_max` bytes.
    pub async fn connect(
        address: &str,
        tls: Option<&Arc<ClientTls>>,
        bulk_bytes_max: usize,
    ) -> Result<Self> {
        let failed = |error: std::io::Error| unavailable(format!("{address}: {error}"));
        let (host, _) = address::split(address)?;
        let stream = TcpStream::connect(address).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let stream: Box<dyn Stream> = match tls {
            None => Box::new(stream),
            Some(tls) => {
                let name = ServerName::try_from(host.to_owned()).map_err(|error| {
                    Error::invalid(format!("`{host}` is not a name of a certificate: {error}"))
                })?;
                let connector = TlsConnector::from(tls.config(Protocol::Http1));
                let connected = connector.connect(name, stream).await.map_err(|error| {
                    let remedy = HandshakeFailure::of(&error).remedy();
                    unavailable(format!("{address}: TLS: {error}; {remedy}"))
                })?;
                Box::new(connected)
            }
        };
        let stream = BufStream::with_capacity(BUFFER_BYTES, BUFFER_BYTES, stream);
        Ok(Self { stream, bulk_bytes_max, line: Vec::new() })
    }

    /// Sends a request. It may stay in a buffer until [`RespConnection::flush`].
    pub async fn send<P: AsRef<[u8]>>(&mut self, parts: &[P]) -> Result<()> {
        let mut head = format!("*{}\r\n", parts.len());
        for part in parts {
            let part = part.as_ref();
            head.push_str(&format!("${}\r\n", part.len()));
            self.stream.write_all(head.as_bytes()).await.map_err(unavailable)?;
            self.stream.write_all(part).await.map_err(unavailable)?;
            "\r\n".clone_into(&mut head);
        }
        self.stream.write_all(head.as_bytes()).await.map_err(unavailable)
    }

    /// Sends what is in the buffer.
    pub async fn flush(&mut self) -> Result<()> {
        self.stream.flush().await.map_err(unavailable)
    }

    /// Sends one request and receives its reply.
    pub async fn call<P: AsRef<[u8]>>(&mut self, parts: &[P]) -> Result<RespReply> {
        self.send(parts).await?;
        self.flush().await?;
        self.receive().await
    }

    /// Receives a reply.
    pub async fn receive(&mut self) -> Result<RespReply> {
        let head = self.receive_head().await?;
        self.rest(head, DEPTH_MAX).await
    }

    /// Receives a reply up to the elements of an array.
    pub async fn receive_head(&mut self) -> Result<RespHead> {
        let kind = self.read_line().await?;
        let text = || String::from_utf8_lossy(&self.line).into_owned();
        let number = || {
            let digits = std::str::from_utf8(&self.line).ok();
            digits.and_then(|it| it.parse::<i64>().ok()).ok_or_else(unexpected)
        };
        let whole = match kind {
            b'+' => RespReply::Status(text()),
            b'-' => RespReply::Error(text()),
            b':' => RespReply::Integer(number()?),
            b'$' => match u64::try_from(number()?) {
                Ok(bytes) => self.bulk(bytes).await?,
                Err(_) => RespReply::Bulk(None),
            },
            b'*' => match u64::try_from(number()?) {
                Ok(elements) => return Ok(RespHead::Array(elements)),
                Err(_) => RespReply::Array(None),
            },
            _ => return Err(unexpected()),
        };
        Ok(RespHead::Whole(whole))
    }

    /// Receives the elements of an array. Calls itself for arrays in it, at most `depth` deep.
    async fn rest(&mut self, head: RespHead, depth: usize) -> Result<RespReply> {
        let elements = match head {
            RespHead::Whole(whole) => return Ok(whole),
            RespHead::Array(elements) => elements,
        };
        let depth = depth.checked_sub(1).ok_or_else(unexpected)?;
        let mut received = Vec::new();
        for _ in 0..elements {
            let head = self.receive_head().await?;
            received.push(Box::pin(self.rest(head, depth)).await?);
        }
        Ok(RespReply::Array(Some(received)))
    }

    /// Reads a line without its end into `line`; returns its first byte, which is not part of it then.
    async fn read_line(&mut self) -> Result<u8> {
        self.line.clear();
        let mut bounded = (&mut self.stream).take(LINE_BYTES_MAX as u64);
        bounded.read_until(b'\n', &mut self.line).await.map_err(unavailable)?;
        if self.line.is_empty() {
            return Err(unavailable("the server closed the connection"));
        }
        if self.line.starts_with(&ALERT) {
            return Err(unavailable(
                "the server requires TLS: write rediss://, and give --ca FILE",
            ));
        }
        let end = self.line.strip_suffix(b"\r\n").ok_or_else(unexpected)?.len();
        self.line.truncate(end);
        match self.line.is_empty() {
            true => Err(unexpected()),
            false => Ok(self.line.remove(0)),
        }
    }

    async fn bulk(&mut self, bytes: u64) -> Result<RespReply> {
        let held = usize::try_from(bytes).ok().filter(|bytes| *bytes <= self.bulk_bytes_max);
        let Some(bytes_held) = held else {
            let whole = bytes.saturating_add(CRLF_BYTES as u64);
            let mut dropped = (&mut self.stream).take(whole);
            let read = copy_buf(&mut dropped, &mut sink()).await.map_err(unavailable)?;
            return match read == whole {
                true => Ok(RespReply::TooLong(bytes)),
                false => Err(unavailable("the server closed the connection")),
            };
        };
        let whole = bytes_held + CRLF_BYTES;
        let mut value = Vec::new();
        while value.len() < whole {
            let begin = value.len();
            value.resize(whole.min(begin + PIECE_BYTES), 0);
            let piece = value.get_mut(begin..).unwrap_or_default();
            self.stream.read_exact(piece).await.map_err(unavailable)?;
        }
        value.truncate(bytes_held);
        Ok(RespReply::Bulk(Some(Bytes::from(value))))
    }
}

/// Makes the error of a reply that no request has.
pub fn unexpected() -> Error {
    unavailable("a reply of an unexpected type")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    async fn answering(replies: &'static [u8], bulk_bytes_max: usize) -> RespConnection {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(replies).await.unwrap();
        });
        RespConnection::connect(&address, None, bulk_bytes_max).await.unwrap()
    }

    #[tokio::test]
    async fn every_reply_is_read() {
        let replies =
            b"+OK\r\n-ERR no\r\n:-7\r\n$2\r\na\n\r\n$-1\r\n*-1\r\n*2\r\n:1\r\n*1\r\n$0\r\n\r\n";
        let mut connection = answering(replies, 10).await;
        let bulk = |text: &'static str| RespReply::Bulk(Some(Bytes::from(text)));
        let expected = [
            RespReply::Status("OK".into()),
            RespReply::Error("ERR no".into()),
            RespReply::Integer(-7),
            bulk("a\n"),
            RespReply::Bulk(None),
            RespReply::Array(None),
            RespReply::Array(Some(vec![
                RespReply::Integer(1),
                RespReply::Array(Some(vec![bulk("")])),
            ])),
        ];
        for expected in expected {
            assert_eq!(connection.receive().await.unwrap(), expected);
        }
        let error = connection.receive().await.unwrap_err().to_string();
        assert!(error.contains("closed the connection"), "{error}");
    }

    #[tokio::test]
    async fn a_string_above_the_limit_is_dropped_and_the_next_reply_is_read() {
        let mut connection = answering(b"$6\r\nabcdef\r\n$3\r\nabc\r\n$9\r\nab", 5).await;
        assert_eq!(connection.receive().await.unwrap(), RespReply::TooLong(6));
        assert_eq!(connection.receive().await.unwrap(), RespReply::Bulk(Some("abc".into())));
        assert!(connection.receive().await.is_err(), "cut off");
    }

    #[tokio::test]
    async fn the_elements_of_an_array_can_be_received_one_by_one() {
        let mut connection = answering(b"*2\r\n:1\r\n:2\r\n:3\r\n", 5).await;
        assert_eq!(connection.receive_head().await.unwrap(), RespHead::Array(2));
        for number in 1..4 {
            assert_eq!(connection.receive().await.unwrap(), RespReply::Integer(number));
        }
    }

    #[tokio::test]
    async fn nonsense_and_too_deep_arrays_are_errors() {
        let deep: &[u8] = b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n";
        let rows = [b"what\r\n" as &[u8], b":x\r\n", b"\r\n", b"+OK\n", b"\x15\x03\x03\0\n", deep];
        for replies in rows {
            let received = answering(replies, 5).await.receive().await;
            assert!(received.is_err(), "{received:?} of {}", String::from_utf8_lossy(replies));
        }
    }
}
