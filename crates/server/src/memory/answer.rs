//! Bodies of answers. Their memory is charged until the socket has taken it.

use super::{Arrived, RequestMemory};
use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

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
    _arrived: Arc<Arrived>,
    is_held: bool,
}

impl AnswerBody {
    pub(super) fn new(
        body: Body,
        memory: Arc<RequestMemory>,
        arrived: Arc<Arrived>,
        is_held: bool,
    ) -> Self {
        Self { body, memory, _arrived: arrived, is_held }
    }

    /// Counts a piece that its service has encoded without asking.
    fn hold(&self, bytes: Bytes) -> Bytes {
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
