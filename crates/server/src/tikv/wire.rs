//! gRPC for answers that hold values: these go to the socket from where they were read, while tonic's
//! own server copies each message into one piece of memory. Answers are not compressed, as TiKV's
//! are not: most clients say that they could take it, and values that compress are rare.

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use bytes::Bytes;
use http_body::Frame;
use prost::Message;
use std::pin::Pin;
use std::task::{Context, Poll};
use stele_proto::Pieces;
use tokio_stream::Stream;
use tonic::codec::CompressionEncoding;
use tonic::metadata::GRPC_CONTENT_TYPE;
use tonic::{Status, Streaming};
use tonic_prost::ProstDecoder;

/// Short messages that are ready together are sent together, up to so many bytes.
const TOGETHER_BYTES: usize = 32 << 10;
/// What a client has compressed its messages with, if it has.
const ENCODING: &str = "grpc-encoding";

/// The messages of a request.
pub fn messages<T>(request: Request, bytes_max: usize) -> Result<Streaming<T>, Box<Status>>
where
    T: Message + Default + 'static,
{
    let encoding = match request.headers().get(ENCODING).map(HeaderValue::as_bytes) {
        None | Some(b"identity") => None,
        Some(b"gzip") => Some(CompressionEncoding::Gzip),
        Some(other) => {
            let other = String::from_utf8_lossy(other);
            let text = format!("messages compressed with {other} are not understood, gzip's are");
            return Err(Box::new(Status::unimplemented(text)));
        }
    };
    let decoder = ProstDecoder::default();
    Ok(Streaming::new_request(decoder, request.into_body(), encoding, Some(bytes_max)))
}

/// The one message of a request.
pub async fn message<T>(request: Request, bytes_max: usize) -> Result<T, Box<Status>>
where
    T: Message + Default + 'static,
{
    let mut messages = messages(request, bytes_max)?;
    let missing = || Box::new(Status::internal("a request without a message"));
    let message = messages.message().await?.ok_or_else(missing)?;
    // A body that is not read to its end is reset, which clients may take for a failure.
    messages.trailers().await?;
    Ok(message)
}

/// The answer of so many messages; a failure ends them.
pub fn answer<S, M>(messages: S) -> Response
where
    S: Stream<Item = Result<M, Status>> + Unpin + Send + 'static,
    M: Message + 'static,
{
    let body = Answer { messages, ready: Pieces::default(), end: None, is_over: false };
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
    response
}

/// The body of an answer.
struct Answer<S> {
    messages: S,
    /// What was encoded and not sent.
    ready: Pieces,
    /// How the messages ended, if they have.
    end: Option<Status>,
    is_over: bool,
}

impl<S, M> Answer<S>
where
    S: Stream<Item = Result<M, Status>> + Unpin,
    M: Message,
{
    /// Takes messages until there is enough to send or nothing more at hand.
    fn fill(&mut self, context: &mut Context<'_>) {
        while self.ready.bytes() < TOGETHER_BYTES && self.end.is_none() {
            let Poll::Ready(next) = Pin::new(&mut self.messages).poll_next(context) else { return };
            let added = match next {
                Some(Ok(message)) => self.ready.message(&message).map_err(|status| *status),
                Some(Err(status)) => Err(status),
                None => Err(Status::ok("")),
            };
            self.end = added.err();
        }
    }
}

impl<S, M> HttpBody for Answer<S>
where
    S: Stream<Item = Result<M, Status>> + Unpin,
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
            return Poll::Ready(Some(Ok(Frame::data(piece))));
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
