//! Memory of a request's message, counted while its bytes arrive and before it is decoded. A field of
//! two bytes may become hundreds of bytes in memory, so the length of a message does not bound it.

use smallvec::{SmallVec, smallvec};

include!(concat!(env!("OUT_DIR"), "/shapes.rs"));

/// Factor for the elements of a list that grows: it doubles, while the previous half still exists.
const GROWTH: u64 = 3;
/// Bytes of an element that is a string.
const STRING_BYTES: u64 = 32 * GROWTH;
/// Bytes of an element that is a number.
const NUMBER_BYTES: u64 = 8 * GROWTH;
/// Open messages that need no memory of their own: the context of a put of a stream is the fourth.
const LEVELS_IN_PLACE: usize = 6;
/// Most messages within each other; decoding refuses more.
const LEVELS_MAX: usize = 100;

/// Method of a service of this node.
#[derive(Debug)]
pub struct Method {
    path: &'static str,
    /// Place of its request in [`SHAPES`].
    input: u16,
    is_stream: bool,
}

impl Method {
    /// Returns the method at a path of HTTP/2; `None` if there is none in `proto/`.
    pub fn at(path: &str) -> Option<&'static Self> {
        let at = METHODS.binary_search_by(|method| method.path.cmp(path)).ok()?;
        METHODS.get(at)
    }

    /// Returns all methods.
    pub fn all() -> &'static [Self] {
        METHODS
    }

    /// Returns its path.
    pub fn path(&self) -> &'static str {
        self.path
    }

    /// Returns whether a client sends many requests on one stream.
    pub fn is_stream(&self) -> bool {
        self.is_stream
    }
}

#[derive(Clone, Copy, Debug)]
struct Field {
    tag: u32,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Message inside of the other one, at this place in [`SHAPES`].
    Message(u16),
    /// List of messages, each of `bytes`.
    Messages {
        bytes: u32,
        shape: u16,
    },
    Text,
    Texts,
    Strings,
    /// List of numbers, packed or not.
    Numbers,
}

/// Counter of the memory that one message needs beside its bytes. It receives the bytes in pieces.
#[derive(Debug)]
pub struct Counter {
    /// Messages that are open, the innermost last.
    levels: SmallVec<[Level; LEVELS_IN_PLACE]>,
    /// Bytes received.
    at: u64,
    state: State,
    number: u64,
    number_bits: u32,
    /// Groups that are open. All their fields are unknown.
    groups: u32,
}

#[derive(Clone, Copy, Debug)]
struct Level {
    shape: u16,
    end: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Key,
    Number,
    Length(Option<Kind>),
    /// Bytes of a field that are not read.
    Skip(u64),
    /// The message has ended, or cannot be decoded beyond this byte.
    Over,
}

impl Counter {
    /// Creates the counter of a message of `bytes` to a method.
    pub fn new(method: &Method, bytes: u64) -> Self {
        let levels = smallvec![Level { shape: method.input, end: bytes }];
        Self { levels, at: 0, state: State::Key, number: 0, number_bits: 0, groups: 0 }
    }

    /// Counts the next bytes of the message. Returns the memory that decoding them needs beside them,
    /// at most.
    pub fn count(&mut self, mut piece: &[u8]) -> u64 {
        let mut memory = 0;
        loop {
            self.leave();
            match self.state {
                State::Over => return memory,
                State::Skip(left) => {
                    let bytes = left.min(piece.len() as u64);
                    self.at += bytes;
                    piece = piece.get(bytes as usize..).unwrap_or_default();
                    if bytes < left {
                        self.state = State::Skip(left - bytes);
                        return memory;
                    }
                    self.state = State::Key;
                }
                State::Key | State::Number | State::Length(_) => {
                    let Some((byte, rest)) = piece.split_first() else { return memory };
                    piece = rest;
                    self.at += 1;
                    memory += self.push(*byte);
                }
            }
        }
    }

    fn leave(&mut self) {
        while matches!(self.state, State::Key) && self.number_bits == 0 {
            match self.levels.last() {
                Some(level) if self.at >= level.end => {
                    self.levels.pop();
                }
                Some(_) => return,
                None => self.state = State::Over,
            }
        }
    }

    /// Adds a byte to the number that is read; returns the memory of the field that it completes.
    fn push(&mut self, byte: u8) -> u64 {
        self.number |= u64::from(byte & 0x7f).checked_shl(self.number_bits).unwrap_or_default();
        self.number_bits += 7;
        if byte & 0x80 != 0 {
            if self.number_bits >= 70 {
                self.state = State::Over;
            }
            return 0;
        }
        let number = std::mem::take(&mut self.number);
        self.number_bits = 0;
        match self.state {
            State::Key => self.begin(number),
            State::Length(kind) => self.enter(kind, number),
            _ => {
                self.state = State::Key;
                0
            }
        }
    }

    fn begin(&mut self, key: u64) -> u64 {
        let kind = self.kind((key >> 3) as u32);
        let memory = if matches!(kind, Some(Kind::Numbers)) { NUMBER_BYTES } else { 0 };
        let (state, memory) = match key & 7 {
            0 => (State::Number, memory),
            1 => (State::Skip(8), memory),
            2 => (State::Length(kind), 0),
            3 => {
                self.groups += 1;
                (State::Key, 0)
            }
            4 if self.groups > 0 => {
                self.groups -= 1;
                (State::Key, 0)
            }
            5 => (State::Skip(4), memory),
            _ => (State::Over, 0),
        };
        self.state = state;
        memory
    }

    fn kind(&self, tag: u32) -> Option<Kind> {
        if self.groups > 0 {
            return None;
        }
        let fields = SHAPES.get(usize::from(self.levels.last()?.shape))?;
        fields.iter().find(|field| field.tag == tag).map(|field| field.kind)
    }

    fn enter(&mut self, kind: Option<Kind>, bytes: u64) -> u64 {
        let end = self.at.saturating_add(bytes);
        if self.levels.last().is_none_or(|level| end > level.end) {
            self.state = State::Over;
            return 0;
        }
        self.state = State::Skip(bytes);
        let (memory, shape) = match kind {
            None => (0, None),
            Some(Kind::Message(shape)) => (0, Some(shape)),
            Some(Kind::Messages { bytes, shape }) => (u64::from(bytes) * GROWTH, Some(shape)),
            Some(Kind::Text) => (bytes, None),
            Some(Kind::Texts) => (STRING_BYTES + bytes, None),
            Some(Kind::Strings) => (STRING_BYTES, None),
            // Each byte may be a number.
            Some(Kind::Numbers) => (NUMBER_BYTES.saturating_mul(bytes), None),
        };
        if let Some(shape) = shape {
            self.state = State::Key;
            self.levels.push(Level { shape, end });
            if self.levels.len() > LEVELS_MAX {
                self.state = State::Over;
            }
        }
        memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kvrpcpb::{Context, KeyRange, KvPair, RawBatchGetRequest, RawPutRequest};
    use crate::tikvpb::BatchCommandsRequest;
    use crate::tikvpb::batch_commands_request::{Request, request::Cmd};
    use bytes::Bytes;
    use prost::Message;
    use std::mem::size_of;

    const BATCH_COMMANDS: &str = "/tikvpb.Tikv/BatchCommands";
    const BATCH_GET: &str = "/tikvpb.Tikv/RawBatchGet";

    fn counted(path: &str, bytes: &[u8], piece_bytes: usize) -> u64 {
        let mut counter = Counter::new(Method::at(path).unwrap(), bytes.len() as u64);
        bytes.chunks(piece_bytes).map(|piece| counter.count(piece)).sum()
    }

    /// Returns the count, which must not depend on the pieces.
    fn count(path: &str, message: &impl Message) -> u64 {
        let bytes = message.encode_to_vec();
        let whole = counted(path, &bytes, bytes.len().max(1));
        for piece_bytes in [1, 2, 3, 7, 64] {
            assert_eq!(counted(path, &bytes, piece_bytes), whole, "pieces of {piece_bytes}");
        }
        whole
    }

    #[test]
    fn every_method_is_found_by_its_path() {
        assert!(Method::all().iter().all(|method| Method::at(method.path).is_some()));
        assert!(Method::at("/tikvpb.Tikv/NoSuchMethod").is_none());
        let streams = Method::all().iter().filter(|method| method.is_stream);
        let streams: Vec<&str> = streams.map(|method| method.path).collect();
        assert_eq!(streams, ["/pdpb.PD/QueryRegion", "/pdpb.PD/Tso", BATCH_COMMANDS]);
    }

    #[test]
    fn values_need_only_their_bytes_and_short_elements_many_times_theirs() {
        let put = RawPutRequest { value: vec![7; 100_000].into(), ..Default::default() };
        assert_eq!(count("/tikvpb.Tikv/RawPut", &put), 0);
        let gets = RawBatchGetRequest { keys: vec![Bytes::new(); 1000], ..Default::default() };
        assert!(count(BATCH_GET, &gets) >= 1000 * 2 * size_of::<Bytes>() as u64);
        let commands = BatchCommandsRequest {
            requests: vec![Request::default(); 1000],
            request_ids: (1..=1000).collect(),
            ..Default::default()
        };
        let counted = count(BATCH_COMMANDS, &commands);
        assert!(counted >= 2 * 1000 * (size_of::<Request>() as u64 + 8), "{counted}");
    }

    #[test]
    fn elements_inside_of_commands_are_counted_too() {
        let gets = RawBatchGetRequest { keys: vec![Bytes::new(); 1000], ..Default::default() };
        let cmd = Some(Cmd::RawBatchGet(gets.clone()));
        let commands =
            BatchCommandsRequest { requests: vec![Request { cmd }], ..Default::default() };
        assert!(count(BATCH_COMMANDS, &commands) > count(BATCH_GET, &gets));
        let context = Context { request_source: "x".repeat(5000), ..Default::default() };
        let with_text = RawBatchGetRequest { context: Some(context), ..gets.clone() };
        assert_eq!(count(BATCH_GET, &with_text), count(BATCH_GET, &gets) + 5000);
    }

    #[test]
    fn bytes_that_are_not_a_message_are_counted_to_their_end() {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        for length in 0..2000 {
            let noise = (0..length).map(|_| {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                seed as u8
            });
            let noise: Vec<u8> = noise.collect();
            counted(BATCH_COMMANDS, &noise, 13);
        }
        counted(BATCH_COMMANDS, &[0x0b; 100_000], 1000);
        counted(BATCH_COMMANDS, &[0x80; 100], 1);
        counted(BATCH_GET, &[0x12, 0xff, 0xff, 0xff, 0xff, 0x0f, 1, 2, 3], 1);
    }

    #[test]
    fn the_table_states_at_least_the_sizes_of_the_structs() {
        let bytes_of = |path: &str, tag: u32| {
            let shape = SHAPES[usize::from(Method::at(path).unwrap().input)];
            match shape.iter().find(|field| field.tag == tag).unwrap().kind {
                Kind::Messages { bytes, .. } => bytes as usize,
                other => panic!("{other:?}"),
            }
        };
        assert!(bytes_of("/tikvpb.Tikv/RawBatchPut", 2) >= size_of::<KvPair>());
        assert!(bytes_of("/tikvpb.Tikv/RawBatchScan", 2) >= size_of::<KeyRange>());
        assert!(bytes_of(BATCH_COMMANDS, 1) >= size_of::<Request>());
        let heartbeat = "/stele.control.v1.Control/Heartbeat";
        assert!(
            bytes_of(heartbeat, 7) >= size_of::<crate::stele::control::v1::RegionReport>(),
            "a region's report"
        );
    }
}
