//! Whether a request has left this client. A request that has not is sent elsewhere, whatever it does;
//! one that may have is repeated only if a repetition does no harm.

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::Service;

const WAITING: u8 = 0;
const DEPARTED: u8 = 1;
const WITHDRAWN: u8 = 2;

/// Whether a node may have received the request of a call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// No node has executed it or will.
    NotSent,
    /// A node may have executed it, or may do so later.
    MaybeSent,
}

/// Place of one request. Its caller and what hands it to the connection share it.
///
/// Invariant: after a request has been called `NotSent`, it is not handed to a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Departure(Arc<AtomicU8>);

impl Departure {
    /// Records that the request is handed to the connection now. Returns false if its caller has
    /// withdrawn it: it must then not be sent.
    pub(crate) fn depart(&self) -> bool {
        // bug client.departure_unnoticed: return true;
        match self.0.compare_exchange(WAITING, DEPARTED, SeqCst, SeqCst) {
            Ok(_) => true,
            Err(place) => place == DEPARTED,
        }
    }

    /// Ends the wait of the request, and returns whether it was handed to the connection before.
    pub(crate) fn withdraw(&self) -> Delivery {
        // bug client.queued_is_sent: return Delivery::MaybeSent;
        match self.0.compare_exchange(WAITING, WITHDRAWN, SeqCst, SeqCst) {
            Err(DEPARTED) => Delivery::MaybeSent,
            _ => Delivery::NotSent,
        }
    }

    fn has_departed(&self) -> bool {
        self.0.load(SeqCst) == DEPARTED
    }
}

#[derive(Debug)]
pub(crate) struct Failure {
    pub status: Status,
    pub delivery: Delivery,
}

impl Failure {
    pub(crate) fn without_connection(reason: impl Into<String>) -> Self {
        Self { status: Status::unavailable(reason), delivery: Delivery::NotSent }
    }

    pub(crate) fn of_call(status: Status, departure: &Departure) -> Self {
        let delivery = match is_unprocessed(&status) {
            true => Delivery::NotSent,
            false => departure.withdraw(),
        };
        Self { status, delivery }
    }

    pub(crate) fn of_timeout(departure: &Departure) -> Self {
        let delivery = departure.withdraw();
        let text = match delivery {
            Delivery::NotSent => "the request waited in this client and was not sent",
            Delivery::MaybeSent => "no answer",
        };
        Self { status: Status::cancelled(text), delivery }
    }
}

/// Whether the node states that it has not processed the request: it refused its stream, or its last
/// word names an earlier stream as the last that it processes (RFC 9113, 6.8 and 8.7). h2 gives a
/// stream the node's GOAWAY as its error only in the latter case, and to a stream that it could not
/// open. All other errors of h2, hyper and tonic leave open what the node has received.
fn is_unprocessed(status: &Status) -> bool {
    let mut error = status.source();
    while let Some(inner) = error {
        if let Some(h2) = inner.downcast_ref::<h2::Error>() {
            let is_refused = h2.is_reset() && h2.reason() == Some(h2::Reason::REFUSED_STREAM);
            return h2.is_remote() && (is_refused || h2.is_go_away());
        }
        error = inner.source();
    }
    false
}

/// Whether the node itself ended the call with this status. Statuses that tonic makes of an error of
/// the connection carry the error; it gives them codes that nodes use too.
pub(crate) fn is_from_node(status: &Status) -> bool {
    status.source().is_none()
}

/// Returns the status for the calls of a stream that ended with `status` before its first answer.
/// Only a node that does not serve such streams says with it what happened to the calls.
pub(crate) fn of_unopened_stream(status: Status) -> Status {
    let refusals = [Code::Unimplemented, Code::PermissionDenied, Code::Unauthenticated];
    match refusals.contains(&status.code()) || !is_from_node(&status) {
        true => status,
        false => Status::unavailable(status.message()),
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Observed<S> {
    connection: S,
    departure: Departure,
}

impl<S> Observed<S> {
    pub(crate) fn new(connection: S, departure: &Departure) -> Self {
        Self { connection, departure: departure.clone() }
    }
}

impl<S: Service<http::Request<Body>>> Service<http::Request<Body>> for Observed<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.connection.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let departure = self.departure.clone();
        self.connection.call(request.map(|message| Body::new(ObservedBody { message, departure })))
    }
}

/// Body of a request. The connection takes its bytes from it: while it has taken none, the node has at
/// most the headers, and executes nothing. hyper takes the first bytes before the node's window has room
/// for them, and does not tell when they leave: from then on they may be sent.
struct ObservedBody {
    message: Body,
    departure: Departure,
}

impl http_body::Body for ObservedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if !self.departure.depart() {
            return Poll::Ready(Some(Err(Status::cancelled("the request is withdrawn"))));
        }
        Pin::new(&mut self.message).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.departure.has_departed() && self.message.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.message.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_withdrawn_request_is_not_sent_and_a_sent_one_is_not_withdrawn() {
        let departure = Departure::default();
        assert_eq!(departure.withdraw(), Delivery::NotSent);
        assert!(!departure.depart());
        assert_eq!(departure.withdraw(), Delivery::NotSent, "a second question changes nothing");
        let departure = Departure::default();
        assert!(departure.depart() && departure.depart(), "a body has several frames");
        assert_eq!(departure.withdraw(), Delivery::MaybeSent);
    }

    #[test]
    fn a_nodes_status_ends_a_stream_of_calls_without_telling_their_outcome() {
        for code in [Code::ResourceExhausted, Code::OutOfRange, Code::FailedPrecondition] {
            assert_eq!(of_unopened_stream(Status::new(code, "x")).code(), Code::Unavailable);
        }
        let unserved = of_unopened_stream(Status::unimplemented("x"));
        assert_eq!(unserved.code(), Code::Unimplemented);
    }
}
