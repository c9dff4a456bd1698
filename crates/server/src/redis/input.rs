//! Received bytes of a connection, up to whole requests, within the memory of the node.

use crate::memory::{Exceeded, RequestMemory};
use bytes::{Buf, Bytes, BytesMut};
use std::io;
use std::mem::size_of;
use std::sync::Arc;
use std::time::Duration;
use stele_redis::{LINE_BYTES_MAX, ProtocolError, ReadStep, RequestReader};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;

/// Bytes that one read takes, unless an announced argument is longer.
const READ_BYTES: usize = 16 << 10;
/// Free bytes of the buffer below which it is replaced.
const FREE_BYTES_MIN: usize = 2 << 10;
const CRLF_BYTES: usize = 2;

/// Next part of what a client sent.
#[derive(Debug)]
pub(super) enum Received {
    /// Name of a command and its arguments.
    Request(Vec<Bytes>),
    /// No whole request is here.
    NeedsMore,
    /// A request needs this number of bytes of memory, which are in use. [`Input::wait_for_memory`] waits.
    NeedsMemory,
    /// A request was dropped: there is no memory for it.
    Refused(Exceeded),
    /// An HTTP request.
    Http,
    /// The bytes are not a request.
    Failed(ProtocolError),
}

/// Received bytes of one connection.
#[derive(Debug)]
pub(super) struct Input {
    reader: RequestReader,
    is_authenticated: bool,
    bytes: BytesMut,
    /// Bytes of the argument that is received now; 0 between arguments.
    expected: usize,
    /// Bytes that an argument of the unfinished request has at most, so far.
    largest: usize,
    unfinished: Unfinished,
    /// Announced bytes that are not charged yet.
    uncharged: Option<usize>,
    /// Refused request of which bytes are still to be received.
    dropping: Option<Dropping>,
    memory: Arc<RequestMemory>,
}

/// Unfinished request.
#[derive(Debug, Default)]
struct Unfinished {
    /// Bytes that were charged for it.
    charged: u64,
    /// Arguments that are still to be announced; `None` before their number is.
    arguments: Option<usize>,
    /// Time at which its number of arguments was received.
    began: Option<Instant>,
}

/// Rest of a refused request.
#[derive(Debug)]
struct Dropping {
    reason: Exceeded,
    arguments: usize,
    bytes: usize,
}

impl Input {
    /// Creates the input of a connection. Requests are charged to `memory`.
    pub(super) fn new(memory: Arc<RequestMemory>) -> Self {
        Self {
            reader: RequestReader::default(),
            is_authenticated: false,
            bytes: BytesMut::new(),
            expected: 0,
            largest: 0,
            unfinished: Unfinished::default(),
            uncharged: None,
            dropping: None,
            memory,
        }
    }

    /// Allows large requests, or forbids them.
    pub(super) fn set_authenticated(&mut self, is_authenticated: bool) {
        self.is_authenticated = is_authenticated;
        self.reader.set_authenticated(is_authenticated);
    }

    /// Returns the memory of the requests since the last call, and charges later ones to `next`. That of an
    /// unfinished request goes over.
    pub(super) fn replace_memory(&mut self, next: Arc<RequestMemory>) -> Arc<RequestMemory> {
        next.charge_anyway(self.unfinished.charged);
        let memory = std::mem::replace(&mut self.memory, next);
        memory.release_to(memory.used().saturating_sub(self.unfinished.charged));
        memory
    }

    /// Returns the received bytes that were not passed on.
    pub(super) fn pending_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the time at which an unfinished request began.
    pub(super) fn began(&self) -> Option<Instant> {
        self.unfinished.began
    }

    /// Takes the next request from the received bytes.
    pub(super) fn next(&mut self) -> Received {
        loop {
            if let Some(dropping) = &mut self.dropping {
                match dropping.advance(&mut self.bytes) {
                    Ok(true) => {
                        let reason = dropping.reason;
                        self.end_request();
                        self.dropping = None;
                        return Received::Refused(reason);
                    }
                    Ok(false) => return Received::NeedsMore,
                    Err(error) => return Received::Failed(error),
                }
            }
            if let Some(bytes) = self.uncharged {
                // bug server.redis_requests_uncharged: `self.memory.try_charge(bytes as u64)` is `Ok::<(), Exceeded>(())`
                match self.memory.try_charge(bytes as u64) {
                    Ok(()) => self.accept(bytes),
                    Err(Exceeded::Shared) => return Received::NeedsMemory,
                    Err(exceeded) => {
                        self.memory.note_refused();
                        self.refuse(exceeded);
                    }
                }
                continue;
            }
            if self.bytes.len() >= self.expected {
                self.expected = 0;
            }
            match self.reader.next(&mut self.bytes) {
                Ok(ReadStep::NeedsMore) => return Received::NeedsMore,
                Ok(ReadStep::Announces(bytes)) => self.note_announced(bytes),
                Ok(ReadStep::Request(words)) => {
                    self.charge_inline(&words);
                    self.end_request();
                    return Received::Request(words);
                }
                Ok(ReadStep::Http) => return Received::Http,
                Err(error) => return Received::Failed(error),
            }
        }
    }

    /// Waits for the memory of the announced bytes, at most `wait`. After that the request is refused.
    pub(super) async fn wait_for_memory(&mut self, wait: Duration) {
        let Some(bytes) = self.uncharged else { return };
        match self.memory.charge_within(bytes as u64, wait).await {
            Ok(()) => self.accept(bytes),
            Err(exceeded) => self.refuse(exceeded),
        }
    }

    fn note_announced(&mut self, bytes: usize) {
        self.unfinished.began.get_or_insert_with(Instant::now);
        self.unfinished.arguments = Some(match self.unfinished.arguments {
            // The first bytes that the reader announces are those of the list of arguments.
            None => bytes / size_of::<Bytes>(),
            Some(arguments) => {
                self.expected = bytes;
                arguments.saturating_sub(1)
            }
        });
        self.uncharged = Some(bytes);
    }

    fn accept(&mut self, bytes: usize) {
        self.uncharged = None;
        self.unfinished.charged += bytes as u64;
        self.largest = self.largest.max(self.expected);
    }

    /// Drops the request of which bytes were announced, and all of it that is still to be received.
    fn refuse(&mut self, reason: Exceeded) {
        self.reader = RequestReader::default();
        self.reader.set_authenticated(self.is_authenticated);
        let arguments = self.unfinished.arguments.unwrap_or_default();
        self.dropping = Some(Dropping { reason, arguments, bytes: self.expected });
        self.memory.release_to(self.memory.used().saturating_sub(self.unfinished.charged));
        (self.uncharged, self.unfinished.charged, self.expected) = (None, 0, 0);
    }

    /// Counts the bytes of an inline command, which are not announced and are at most a line.
    fn charge_inline(&self, words: &[Bytes]) {
        if self.unfinished.arguments.is_none() {
            let bytes: usize = words.iter().map(|word| word.len() + size_of::<Bytes>()).sum();
            self.memory.charge_anyway(bytes as u64);
        }
    }

    fn end_request(&mut self) {
        if self.largest > READ_BYTES {
            // The buffer of a large request must not stay with an idle connection.
            self.bytes = BytesMut::from(&self.bytes[..]);
        }
        (self.unfinished, self.expected, self.largest) = (Unfinished::default(), 0, 0);
    }

    /// Receives bytes. Returns their number; 0 at the end of the connection. Nothing is lost if the future
    /// is dropped.
    pub(super) async fn receive(
        &mut self,
        socket: &mut (impl AsyncRead + Unpin),
    ) -> io::Result<usize> {
        let is_charged = self.uncharged.is_none() && self.dropping.is_none();
        let expected = if is_charged { self.expected } else { 0 };
        let free = self.bytes.capacity() - self.bytes.len();
        if expected > READ_BYTES && self.bytes.capacity() < expected {
            let mut bytes = BytesMut::with_capacity(expected);
            bytes.extend_from_slice(&self.bytes);
            self.bytes = bytes;
        } else if free < FREE_BYTES_MIN && (expected <= self.bytes.len() || free == 0) {
            self.bytes.reserve(READ_BYTES);
        }
        socket.read_buf(&mut self.bytes).await
    }
}

impl Dropping {
    /// Drops received bytes. Returns whether the request has ended.
    fn advance(&mut self, input: &mut BytesMut) -> Result<bool, ProtocolError> {
        loop {
            let dropped = self.bytes.min(input.len());
            input.advance(dropped);
            self.bytes -= dropped;
            if self.bytes > 0 {
                return Ok(false);
            }
            if self.arguments == 0 {
                return Ok(true);
            }
            let Some(end) = input.iter().position(|&byte| byte == b'\r') else {
                return match input.len() > LINE_BYTES_MAX {
                    true => Err(ProtocolError::TooBig("bulk count string")),
                    false => Ok(false),
                };
            };
            if input.len() < end + CRLF_BYTES {
                return Ok(false);
            }
            let line = input.split_to(end + CRLF_BYTES);
            let digits = line.strip_prefix(b"$").and_then(|rest| rest.strip_suffix(b"\r\n"));
            let length = digits.and_then(stele_redis::parse_i64);
            let length = length.and_then(|length| usize::try_from(length).ok());
            let length = length.and_then(|length| length.checked_add(CRLF_BYTES));
            self.bytes = length.ok_or(ProtocolError::InvalidLength)?;
            self.arguments -= 1;
        }
    }
}
