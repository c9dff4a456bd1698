//! The layer below all services of a connection: every request and every answer passes it.

use super::body::{Limits, PlainBody, RequestBody};
use super::{AnswerBody, Arrived, Class, ConnectionMemory, Exceeded, IsHeld, RequestMemory};
use crate::access::{CallClass, Rights, answer_to, class_of_request, is_http_data};
use crate::http;
use crate::port::unsupported;
use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use bytes::Bytes;
use parking_lot::Mutex;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use stele_proto::Method;
use tokio::time::sleep;
use tokio_util::either::Either;
use tonic::{Code, Status};
use tower::Service;

/// Memory of a request beside its headers and messages: its stream, its task and its answer's headers.
const REQUEST_BYTES: u64 = 4 << 10;
const ENCODING: &str = "grpc-encoding";

/// Services of one connection, within its memory.
#[derive(Clone)]
pub struct Accounted {
    services: Router,
    connection: Arc<ConnectionMemory>,
    limits: Limits,
    rights: Rights,
}

impl Accounted {
    /// Creates the services of a connection for a caller with these rights.
    pub fn new(
        services: Router,
        connection: Arc<ConnectionMemory>,
        limits: Limits,
        rights: Rights,
    ) -> Self {
        Self { services, connection, limits, rights }
    }
}

impl<B> Service<Request<B>> for Accounted
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<axum::BoxError>,
{
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // A router is always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let rights = self.rights.take_token(request.headers_mut());
        let path = request.uri().path();
        let (method, call) = (Method::at(path), class_of_request(path, request.headers()));
        let rights = rights.for_request(call);
        // Invariant: a request reaches no service unless its caller may make the call.
        let (denied, caller) = match (rights.caller((path, call), request.headers()), call) {
            (Err(denied), _) => (Some(denied.into_response(path)), None),
            (Ok(_), None) => (Some(unsupported(path, request.headers())), None),
            (Ok(caller), Some(_)) => (None, caller),
        };
        // bug server.rights_unchecked: let denied = None;
        let is_admin = denied.is_none() && call == Some(CallClass::Admin);
        let recorded = is_admin.then(|| rights.admin_call(path)).flatten();
        let is_http_data = is_http_data(path);
        let plain = match is_http_data {
            true => http::body_bounds(path, request.headers()),
            false => PlainBody::default(),
        };
        let class = memory_class(call);
        let memory = RequestMemory::new(&self.connection, class);
        let arrived = Arrived::new(&self.connection, class, rights.usage());
        // Streams count their commands.
        let is_single = is_http_data || method.is_some_and(|method| !method.is_stream());
        let wait = if is_single { arrived.take_turn() } else { Duration::ZERO };
        let encoding = method.and_then(|_| request.headers_mut().remove(ENCODING));
        let charged = memory.charge(REQUEST_BYTES + header_bytes(request.headers()));
        let has_terms = is_http_data || method.is_some();
        let early =
            denied.or_else(|| unreadable(encoding.as_ref(), (charged, has_terms), &arrived));
        let is_gzip = encoding.is_some_and(|encoding| encoding.as_bytes() == b"gzip");
        request.extensions_mut().insert(arrived.clone());
        request.extensions_mut().insert(rights);
        if let Some(recorded) = &recorded {
            request.extensions_mut().insert(recorded.clone());
        }
        let (held, limits) = (arrived.clone(), self.limits);
        let request = request.map(|body| {
            let kind = (method, is_gzip, plain);
            RequestBody::new(body, kind, arrived, memory.clone(), limits)
        });
        let answering = match early {
            None if wait.is_zero() => Ok(Either::Left(self.services.call(request))),
            None => {
                let mut services = self.services.clone();
                Ok(Either::Right(async move {
                    sleep(wait).await;
                    services.call(request).await
                }))
            }
            Some(response) => Err(response),
        };
        Box::pin(async move {
            let mut response = match answering {
                Ok(answering) => answer_to(caller, answering).await?,
                Err(response) => response,
            };
            if let Some(recorded) = recorded {
                recorded.end(code_of(&response));
            }
            let is_held = response.extensions_mut().remove::<IsHeld>().is_some();
            Ok(response.map(|body| AnswerBody::new(body, memory, held, is_held)))
        })
    }
}

/// Returns the part of the memory that a call uses.
///
/// Invariant: calls of keys leave a part to placement and control, also those that a node makes for its clients, over
/// the protocol of Redis too.
/// Tests: `calls_of_keys_that_nodes_forward_use_the_memory_of_data`.
fn memory_class(call: Option<CallClass>) -> Class {
    let is_of_keys = matches!(call, Some(CallClass::Data | CallClass::Forwarded));
    // bug server.forwarded_calls_use_all_memory: let is_of_keys = call == Some(CallClass::Data);
    if is_of_keys { Class::Data } else { Class::System }
}

/// Returns the answer to a request of which the body is not read: it is compressed in an unknown way, or has no
/// memory and no service with terms for that.
fn unreadable(
    encoding: Option<&HeaderValue>,
    (charged, has_terms): (Result<(), Exceeded>, bool),
    arrived: &Arrived,
) -> Option<Response<Body>> {
    match (encoding.map(HeaderValue::as_bytes), charged) {
        (None | Some(b"identity" | b"gzip"), Ok(())) => None,
        // It is refused in the terms of its service.
        (None | Some(b"identity" | b"gzip"), Err(exceeded)) if has_terms => {
            arrived.refuse(exceeded);
            None
        }
        (None | Some(b"identity" | b"gzip"), Err(exceeded)) => {
            let mut response = Response::new(Body::from(exceeded.to_string()));
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            Some(response)
        }
        (Some(other), _) => {
            let other = String::from_utf8_lossy(other);
            let text = format!("compression {other} is not supported: use gzip");
            Some(Status::unimplemented(text).into_http())
        }
    }
}

/// Returns the outcome of a call that has one answer: a refusal stands in the headers.
fn code_of<B>(response: &Response<B>) -> Code {
    let code = response.headers().get(Status::GRPC_STATUS);
    match code.map(|code| Code::from_bytes(code.as_bytes())) {
        Some(code) => code,
        None if response.status() == StatusCode::OK => Code::Ok,
        None => Code::Unknown,
    }
}

fn header_bytes(headers: &HeaderMap) -> u64 {
    headers.iter().map(|(name, value)| (name.as_str().len() + value.len()) as u64).sum()
}

/// Smallest window, which HTTP/2 prescribes. A connection has it even if no share is left.
pub(super) const WINDOW_BYTES_MIN: u32 = 65_535;
/// Part of what is left that a connection gets.
const PART: u64 = 32;

/// Windows of HTTP/2: bytes that clients may send before a request is read. Each connection has
/// one. Few connections get large ones, many get small ones, so that their sum is bounded.
#[derive(Debug)]
pub(super) struct Windows {
    bytes_max: u64,
    bytes: Mutex<u64>,
}

impl Windows {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, bytes: Mutex::new(0) }
    }

    pub(super) fn bytes(&self) -> u64 {
        *self.bytes.lock()
    }

    /// Returns whether new connections get only what HTTP/2 prescribes.
    pub(super) fn is_used_up(&self) -> bool {
        *self.bytes.lock() >= self.bytes_max
    }

    pub(super) fn take(&self, window_bytes_max: u32) -> u32 {
        let mut bytes = self.bytes.lock();
        let part = self.bytes_max.saturating_sub(*bytes) / PART;
        let window_bytes = (part.min(u64::from(window_bytes_max)) as u32).max(WINDOW_BYTES_MIN);
        *bytes += u64::from(window_bytes);
        window_bytes
    }

    pub(super) fn give_back(&self, window_bytes: u32) {
        let mut bytes = self.bytes.lock();
        *bytes = bytes.saturating_sub(u64::from(window_bytes));
    }
}
