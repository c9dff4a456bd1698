//! gRPC for answers that hold values: these go to the socket from where they were read, while
//! tonic's server copies each message into one buffer. Answers are not compressed, as in TiKV: most
//! clients announce that they accept compression, and values that compress are rare.

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

/// Short messages that are ready together are sent together, up to this many bytes.
const COALESCED_BYTES_MAX: usize = 32 << 10;
/// Header that names the compression of a client's messages.
const ENCODING: &str = "grpc-encoding";

/// Returns the messages of a request.
pub fn messages<T>(request: Request, bytes_max: usize) -> Result<Streaming<T>, Box<Status>>
where
    T: Message + Default + 'static,
{
    let encoding = match request.headers().get(ENCODING).map(HeaderValue::as_bytes) {
        None | Some(b"identity") => None,
        Some(b"gzip") => Some(CompressionEncoding::Gzip),
        Some(other) => {
            let other = String::from_utf8_lossy(other);
            let text = format!("compression {other} is not supported: use gzip");
            return Err(Box::new(Status::unimplemented(text)));
        }
    };
    let decoder = ProstDecoder::default();
    Ok(Streaming::new_request(decoder, request.into_body(), encoding, Some(bytes_max)))
}

/// Returns the one message of a request.
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

/// Creates the answer from its messages; an error ends it.
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

/// Body of an answer.
struct Answer<S> {
    messages: S,
    /// Encoded bytes that are not sent.
    ready: Pieces,
    /// Final status, once the messages have ended.
    end: Option<Status>,
    is_over: bool,
}

impl<S, M> Answer<S>
where
    S: Stream<Item = Result<M, Status>> + Unpin,
    M: Message,
{
    /// Encodes messages until there is enough to send or none is ready.
    fn fill(&mut self, context: &mut Context<'_>) {
        while self.ready.bytes() < COALESCED_BYTES_MAX && self.end.is_none() {
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
