//! Bodies of answers. The memory that their pairs need is charged before the pairs are read, and
//! until the socket has taken the body.

use super::{Arrived, Exceeded, RequestMemory};
use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use stele_proto::SHARED_BYTES_MIN;
use stele_proto::kvrpcpb::KvPair;
use stele_storage::{Admitted, EngineView, Pages, PairSink, Passed};
use stele_types::Result;

/// Message with the memory of the requests that it answers.
#[derive(Debug)]
pub struct Held<M> {
    /// The message.
    pub message: M,
    /// Memory of what it holds.
    pub memory: Vec<Arc<RequestMemory>>,
}

/// Bytes on their way to the socket, with the memory that they are a part of.
pub struct Piece {
    bytes: Bytes,
    _memory: Arc<Vec<Arc<RequestMemory>>>,
}

impl Piece {
    /// Returns `bytes` that release the memory when the last of them is sent or dropped. HTTP/2 keeps
    /// a whole piece while the client takes a part of it.
    pub fn bytes(bytes: Bytes, memory: &Arc<Vec<Arc<RequestMemory>>>) -> Bytes {
        Bytes::from_owner(Self { bytes, _memory: memory.clone() })
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Marks an answer of which the pieces hold their memory already.
#[derive(Clone, Copy, Debug)]
pub struct IsHeld;

/// Body of any answer of the node.
pub struct AnswerBody {
    body: Body,
    /// Memory of the request and its last message, kept until the body has ended.
    memory: Arc<RequestMemory>,
    arrived: Arc<Arrived>,
    is_held: bool,
}

impl AnswerBody {
    pub(super) fn new(
        body: Body,
        memory: Arc<RequestMemory>,
        arrived: Arc<Arrived>,
        is_held: bool,
    ) -> Self {
        Self { body, memory, arrived, is_held }
    }

    /// Counts a piece that its service has encoded without asking.
    fn hold(&self, bytes: Bytes) -> Bytes {
        self.arrived.note_bytes(&bytes);
        if self.is_held {
            return bytes;
        }
        let memory = RequestMemory::new(&self.memory.connection, self.memory.class);
        memory.charge_anyway(bytes.len() as u64);
        Piece::bytes(bytes, &Arc::new(vec![memory]))
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let next = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(next.map(|frame| frame.map(|frame| frame.map_data(|bytes| self.hold(bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Memory of a pair beside its bytes: its place in a list that doubles, while the previous half exists.
const PAIR_BYTES: u64 = 3 * size_of::<KvPair>() as u64;

/// Returns the memory of a value in an answer: a short one is copied into the encoded answer.
pub fn value_memory(bytes: u64) -> u64 {
    if bytes < SHARED_BYTES_MIN as u64 { 2 * bytes } else { bytes }
}

/// Returns the memory of pairs that are read together. The memory of their reads is at most twice
/// their bytes, and short ones are copied into the encoded answer.
pub fn pairs_memory(pairs: usize, bytes: u64) -> u64 {
    pairs as u64 * PAIR_BYTES + 3 * bytes
}

/// Returns the memory of one pair that was read by itself.
pub fn pair_memory(key_bytes: u64, value_bytes: u64) -> u64 {
    PAIR_BYTES + 2 * key_bytes + value_memory(value_bytes)
}

/// Returns the memory of pairs that are read together by their keys, each of at most `key_bytes_max`. One
/// that is read by itself has no more memory than its value. Of others the reads take at most twice their
/// bytes; keys and short values are copied into the encoded answer.
pub fn gets_memory(pairs: usize, bytes: u64, key_bytes_max: u64) -> u64 {
    if pairs == 1 {
        return pair_memory(key_bytes_max.min(bytes), bytes);
    }
    let copied = pairs as u64 * (key_bytes_max + SHARED_BYTES_MIN as u64);
    pairs as u64 * PAIR_BYTES + 2 * bytes + copied.min(bytes)
}

/// Charges reads before they use memory, and settles what they used.
pub struct Charging<'a> {
    memory: &'a RequestMemory,
    used_before: u64,
    exceeded: Option<Exceeded>,
}

impl<'a> Charging<'a> {
    /// Begins a read.
    pub fn new(memory: &'a RequestMemory) -> Self {
        Self { memory, used_before: memory.used(), exceeded: None }
    }

    /// Charges `bytes`; returns whether they may be used.
    pub fn admit(&mut self, bytes: u64) -> bool {
        self.exceeded = self.memory.charge(bytes).err();
        self.exceeded.is_none()
    }

    /// Ends the read, of which `bytes` stay in use.
    pub fn settle(&self, bytes: u64) -> Result<(), Exceeded> {
        let charged = self.memory.used().saturating_sub(self.used_before);
        if bytes > charged {
            return self.memory.charge(bytes - charged);
        }
        self.memory.release_to(self.used_before + bytes);
        Ok(())
    }

    /// Returns the reason of the refusal.
    pub fn exceeded(&self) -> Exceeded {
        self.exceeded.unwrap_or(Exceeded::Shared)
    }
}

/// Passes the next page to `sink`, if there is memory for it: an inner error otherwise.
pub fn next_page<V: EngineView>(
    pages: &mut Pages<'_, V>,
    charging: &mut Charging<'_>,
    sink: &mut dyn PairSink,
) -> Result<Result<Option<Passed>, Exceeded>> {
    let admit = &mut |pairs, bytes| charging.admit(pairs_memory(pairs, bytes));
    let read = pages.next_into(admit, sink)?;
    Ok(match read {
        Admitted::Read(page) => Ok(page),
        Admitted::Refused => Err(charging.exceeded()),
    })
}
