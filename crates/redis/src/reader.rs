//! Incremental reader of requests: arrays of bulk strings, and inline commands.
//!
//! The caller appends received bytes to a buffer and calls [`RequestReader::next`] until it needs more.
//! Before a request's arguments are received, the reader announces their bytes, so that the caller can
//! charge its memory budget: a count as soon as it is read, each length as soon as it is read. Beyond what
//! was announced, the buffer of an unfinished request holds at most [`LINE_BYTES_MAX`] and one read.
//!
//! Invariant: nothing is allocated for what a client has only announced.

use crate::reply::Reply;
use bytes::{Buf, Bytes, BytesMut};
use stele_types::size::VALUE_BYTES_MAX;

/// Most arguments of a request, with the command's name.
pub const ARGUMENTS_MAX: usize = 1 << 20;
/// Most bytes of an argument: the largest value of the store, and some reserve.
pub const BULK_BYTES_MAX: usize = VALUE_BYTES_MAX + (64 << 10);
/// Bytes after which a line without an end is refused.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// Limits before a client has authenticated.
const UNAUTHENTICATED_ARGUMENTS_MAX: usize = 10;
const UNAUTHENTICATED_BULK_BYTES_MAX: usize = 16 << 10;
/// Arguments for which memory is reserved at once.
const RESERVED_ARGUMENTS_MAX: usize = 16;
const CRLF_BYTES: usize = 2;
/// First words of HTTP requests and their headers: a browser sends them to any port.
const HTTP_WORDS: [&[u8]; 2] = [b"post", b"host:"];

/// What a call of the reader found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadStep {
    /// No more until bytes are received.
    NeedsMore,
    /// This number of bytes will be held until the request is executed. The same request goes on.
    Announces(usize),
    /// A request: the name of a command, and its arguments.
    Request(Vec<Bytes>),
    /// An HTTP request: the connection must be closed without an answer.
    Http,
}

/// Reasons for which the connection must be closed after the error is sent. The texts are those of Redis.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A line without an end.
    #[error("Protocol error: too big {0}")]
    TooBig(&'static str),
    /// A number of arguments that is none, or too large.
    #[error("Protocol error: invalid multibulk length")]
    InvalidCount,
    /// More arguments than a client may send before it has authenticated.
    #[error("Protocol error: unauthenticated multibulk length")]
    UnauthenticatedCount,
    /// Another byte than `$` before a length.
    #[error("Protocol error: expected '$', got '{}'", shown(.0))]
    ExpectedLength(u8),
    /// A length that is none, or too large.
    #[error("Protocol error: invalid bulk length")]
    InvalidLength,
    /// A longer argument than a client may send before it has authenticated.
    #[error("Protocol error: unauthenticated bulk length")]
    UnauthenticatedLength,
    /// A quote without its end, or with a character after it.
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
}

fn shown(byte: &u8) -> char {
    char::from(*byte)
}

impl ProtocolError {
    /// Returns the reply that is sent before the connection is closed.
    pub fn reply(&self) -> Reply {
        Reply::error(format!("ERR {self}"))
    }
}

/// Reader of the requests of one connection.
#[derive(Debug, Default)]
pub struct RequestReader {
    is_authenticated: bool,
    /// Arguments of the unfinished request that are still to be read.
    missing: usize,
    /// Bytes of the argument of which the length was read.
    bulk_bytes: Option<usize>,
    arguments: Vec<Bytes>,
}

impl RequestReader {
    /// Sets whether the client has authenticated, and so may send large requests. At first it has not.
    pub fn set_authenticated(&mut self, is_authenticated: bool) {
        self.is_authenticated = is_authenticated;
    }

    /// Takes the next part of a request off the front of `input`. Arguments of arrays are slices of it.
    pub fn next(&mut self, input: &mut BytesMut) -> Result<ReadStep, ProtocolError> {
        while self.missing == 0 {
            match input.first() {
                None => return Ok(ReadStep::NeedsMore),
                Some(b'*') => {
                    let Some(count) = self.count(input)? else { return Ok(ReadStep::NeedsMore) };
                    self.missing = count;
                    self.arguments = Vec::with_capacity(count.min(RESERVED_ARGUMENTS_MAX));
                    if count > 0 {
                        return Ok(ReadStep::Announces(count * size_of::<Bytes>()));
                    }
                }
                Some(_) => match inline(input)? {
                    None => return Ok(ReadStep::NeedsMore),
                    Some(words) if words.is_empty() => {}
                    Some(words) => return Ok(request(words)),
                },
            }
        }
        self.argument(input)
    }

    /// Reads the number of arguments; 0 for a request without any.
    fn count(&self, input: &mut BytesMut) -> Result<Option<usize>, ProtocolError> {
        let Some(line) = line(input, "mbulk count string")? else { return Ok(None) };
        let count = number(&line).ok_or(ProtocolError::InvalidCount)?;
        match usize::try_from(count) {
            Err(_) => Ok(Some(0)),
            Ok(count) if count > ARGUMENTS_MAX => Err(ProtocolError::InvalidCount),
            Ok(count) if count > UNAUTHENTICATED_ARGUMENTS_MAX && !self.is_authenticated => {
                Err(ProtocolError::UnauthenticatedCount)
            }
            Ok(count) => Ok(Some(count)),
        }
    }

    fn length(&self, input: &mut BytesMut) -> Result<Option<usize>, ProtocolError> {
        let Some(line) = line(input, "bulk count string")? else { return Ok(None) };
        match line.first() {
            Some(b'$') => {}
            // An empty line: Redis prints the byte that ends it.
            other => return Err(ProtocolError::ExpectedLength(other.copied().unwrap_or(b'\r'))),
        }
        let length = number(&line).and_then(|length| usize::try_from(length).ok());
        match length.filter(|&length| length <= BULK_BYTES_MAX) {
            None => Err(ProtocolError::InvalidLength),
            Some(length) if length > UNAUTHENTICATED_BULK_BYTES_MAX && !self.is_authenticated => {
                Err(ProtocolError::UnauthenticatedLength)
            }
            Some(length) => Ok(Some(length)),
        }
    }

    /// Reads arguments up to the next length, the end of the request, or the end of the input.
    fn argument(&mut self, input: &mut BytesMut) -> Result<ReadStep, ProtocolError> {
        let Some(bytes) = self.bulk_bytes else {
            let Some(bytes) = self.length(input)? else { return Ok(ReadStep::NeedsMore) };
            self.bulk_bytes = Some(bytes);
            return Ok(ReadStep::Announces(bytes + CRLF_BYTES));
        };
        if input.len() < bytes + CRLF_BYTES {
            return Ok(ReadStep::NeedsMore);
        }
        self.arguments.push(input.split_to(bytes).freeze());
        // Redis does not check the two bytes either.
        input.advance(CRLF_BYTES);
        self.bulk_bytes = None;
        self.missing -= 1;
        match self.missing {
            0 => Ok(request(std::mem::take(&mut self.arguments))),
            _ => self.argument(input),
        }
    }
}

fn request(words: Vec<Bytes>) -> ReadStep {
    let is_http = |first: &Bytes| HTTP_WORDS.iter().any(|word| first.eq_ignore_ascii_case(word));
    match words.first().is_some_and(is_http) {
        true => ReadStep::Http,
        false => ReadStep::Request(words),
    }
}

/// Takes a line that ends in `\r` and one more byte, without these.
fn line(input: &mut BytesMut, what: &'static str) -> Result<Option<BytesMut>, ProtocolError> {
    let window = input.get(..input.len().min(LINE_BYTES_MAX + 1)).unwrap_or_default();
    let Some(end) = window.iter().position(|&byte| byte == b'\r') else {
        return match input.len() > LINE_BYTES_MAX {
            true => Err(ProtocolError::TooBig(what)),
            false => Ok(None),
        };
    };
    if input.len() < end + CRLF_BYTES {
        return Ok(None);
    }
    let line = input.split_to(end);
    input.advance(CRLF_BYTES);
    Ok(Some(line))
}

/// Returns the number after the first byte of a line.
fn number(line: &[u8]) -> Option<i64> {
    crate::number::parse_i64(line.get(1..)?)
}

/// Takes the words of an inline command.
fn inline(input: &mut BytesMut) -> Result<Option<Vec<Bytes>>, ProtocolError> {
    let window = input.get(..input.len().min(LINE_BYTES_MAX + 1)).unwrap_or_default();
    let Some(end) = window.iter().position(|&byte| byte == b'\n') else {
        return match input.len() > LINE_BYTES_MAX {
            true => Err(ProtocolError::TooBig("inline request")),
            false => Ok(None),
        };
    };
    let line = input.split_to(end);
    input.advance(1);
    let line = line.strip_suffix(b"\r").unwrap_or(&line);
    split_words(line).map(Some).ok_or(ProtocolError::UnbalancedQuotes)
}

/// Splits a line as Redis does: words, "with escapes", 'without'. `None` for unbalanced quotes.
fn split_words(mut line: &[u8]) -> Option<Vec<Bytes>> {
    let mut words = Vec::new();
    loop {
        while let [first, rest @ ..] = line
            && is_space(*first)
        {
            line = rest;
        }
        if line.is_empty() {
            return Some(words);
        }
        let mut word = Vec::new();
        line = split_word(line, &mut word)?;
        words.push(Bytes::from(word));
    }
}

/// Appends the first word of a line and returns the bytes after it.
fn split_word<'a>(mut line: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        line = match line {
            [] => return Some(line),
            [b' ' | b'\n' | b'\r' | b'\t' | 0, rest @ ..] => return Some(rest),
            [quote @ (b'"' | b'\''), rest @ ..] => return quoted(*quote, rest, word),
            [byte, rest @ ..] => {
                word.push(*byte);
                rest
            }
        };
    }
}

/// Appends the text up to a quote, after which a space or the end must follow.
fn quoted<'a>(quote: u8, mut line: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        line = match line {
            [byte, rest @ ..] if *byte == quote => {
                let ends_word = rest.first().is_none_or(|&next| is_space(next));
                return ends_word.then_some(rest);
            }
            [b'\\', b'x', high, low, rest @ ..]
                if quote == b'"' && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
                word.push(digit(*high) << 4 | digit(*low));
                rest
            }
            [b'\\', byte, rest @ ..] if quote == b'"' => {
                word.push(match byte {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                rest
            }
            [b'\\', b'\'', rest @ ..] if quote == b'\'' => {
                word.push(b'\'');
                rest
            }
            [byte, rest @ ..] => {
                word.push(*byte);
                rest
            }
            [] => return None,
        };
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}
