//! gRPC for answers that hold values: these go to the socket from where they were read, while
//! tonic's server copies each message into one buffer. Answers are not compressed, as in TiKV: most
//! clients announce that they accept compression, and values that compress are rare.

use crate::access::Rights;
use crate::memory::{Arrived, Exceeded, Held, IsHeld, Piece, RequestMemory};
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use bytes::Bytes;
use http_body::Frame;
use prost::Message;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use stele_proto::Pieces;
use tokio_stream::Stream;
use tonic::metadata::GRPC_CONTENT_TYPE;
use tonic::{Status, Streaming};
use tonic_prost::ProstDecoder;

/// Short messages that are ready together are sent together, up to this many bytes.
const COALESCED_BYTES_MAX: usize = 32 << 10;
pub(super) enum Unread {
    Status(Box<Status>),
    /// Its message has no memory.
    Exceeded(Exceeded),
}

/// Returns the rights of the caller of a request.
///
/// Invariant: a request without them is not served.
pub(super) fn rights(request: &Request) -> Result<Rights, Box<Status>> {
    let missing = || Box::new(Status::internal("a request without rights"));
    request.extensions().get().cloned().ok_or_else(missing)
}

/// Returns the messages of a request, and the memory of the last one.
pub(super) fn messages<T>(
    mut request: Request,
    bytes_max: usize,
) -> Result<(Streaming<T>, Arc<Arrived>), Box<Status>>
where
    T: Message + Default + 'static,
{
    let missing = || Box::new(Status::internal("a request without memory"));
    let arrived = request.extensions_mut().remove::<Arc<Arrived>>().ok_or_else(missing)?;
    let decoder = ProstDecoder::default();
    Ok((Streaming::new_request(decoder, request.into_body(), None, Some(bytes_max)), arrived))
}

pub(super) async fn message<T>(
    request: Request,
    bytes_max: usize,
) -> Result<(T, Arc<RequestMemory>), Unread>
where
    T: Message + Default + 'static,
{
    let (mut messages, arrived) = messages(request, bytes_max).map_err(Unread::Status)?;
    let unread = |status| match arrived.refusal() {
        Some(exceeded) => Unread::Exceeded(exceeded),
        None => Unread::Status(Box::new(status)),
    };
    let missing = || unread(Status::internal("a request without a message"));
    let message = messages.message().await.map_err(unread)?.ok_or_else(missing)?;
    let memory = arrived.take();
    // A body that is not read to its end is reset, which clients may take for a failure.
    messages.trailers().await.map_err(unread)?;
    Ok((message, memory))
}

/// Creates the answer from its messages; an error ends it.
pub(super) fn answer<S, M>(messages: S) -> Response
where
    S: Stream<Item = Result<Held<M>, Status>> + Unpin + Send + 'static,
    M: Message + 'static,
{
    let (ready, memory) = (Pieces::default(), Arc::default());
    let body = EncodedBody { messages, ready, memory, end: None, is_over: false };
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
    response.extensions_mut().insert(IsHeld);
    response
}

struct EncodedBody<S> {
    messages: S,
    /// Encoded bytes that are not sent.
    ready: Pieces,
    /// Memory of the requests that these bytes answer.
    memory: Arc<Vec<Arc<RequestMemory>>>,
    /// Final status, once the messages have ended.
    end: Option<Status>,
    is_over: bool,
}

impl<S, M> EncodedBody<S>
where
    S: Stream<Item = Result<Held<M>, Status>> + Unpin,
    M: Message,
{
    /// Encodes messages until there is enough to send or none is ready, once all before are sent.
    fn fill(&mut self, context: &mut Context<'_>) {
        if self.ready.bytes() > 0 {
            return;
        }
        let mut memory = Vec::new();
        while self.ready.bytes() < COALESCED_BYTES_MAX && self.end.is_none() {
            let Poll::Ready(next) = Pin::new(&mut self.messages).poll_next(context) else { break };
            let added = match next {
                Some(Ok(mut held)) => {
                    match memory.is_empty() {
                        true => memory = held.memory,
                        false => memory.append(&mut held.memory),
                    }
                    self.ready.message(&held.message).map_err(|status| *status)
                }
                Some(Err(status)) => Err(status),
                None => Err(Status::ok("")),
            };
            self.end = added.err();
        }
        self.memory = Arc::new(memory);
    }
}

impl<S, M> HttpBody for EncodedBody<S>
where
    S: Stream<Item = Result<Held<M>, Status>> + Unpin,
    M: Message,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.fill(context);
        if let Some(piece) = self.ready.take() {
            return Poll::Ready(Some(Ok(Frame::data(Piece::bytes(piece, &self.memory)))));
        }
        if self.is_over {
            return Poll::Ready(None);
        }
        let Some(status) = &self.end else { return Poll::Pending };
        let mut trailers = HeaderMap::new();
        let added = status.add_header(&mut trailers);
        self.is_over = true;
        Poll::Ready(Some(added.map(|()| Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over
    }
}
