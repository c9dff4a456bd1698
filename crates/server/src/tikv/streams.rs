//! Calls of which the answer is a stream of one region: how they begin, whether they may go on, and how they end.

use super::errors::{Failure, not_leader};
use super::permissions::Permitted;
use super::{Memory, TikvService, wire};
use crate::access::Rights;
use crate::memory::Held;
use crate::port::MESSAGE_BYTES_MAX;
use crate::store::StoreHandle;
use axum::extract::{Request, State};
use axum::response::Response;
use prost::Message;
use std::future::Future;
use std::time::Duration;
use stele_proto::kvrpcpb::Context;
use stele_types::RegionId;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Time between two checks of a stream of which the client takes nothing.
pub(super) const CHECK: Duration = Duration::from_secs(1);

/// Request of a stream.
pub(super) trait StreamCall: Message + Default + Permitted + 'static {
    type Answer: Message + 'static;
    const PATH: &'static str;

    fn context(&self) -> Option<&Context>;

    fn failed(failure: Failure) -> Self::Answer;

    /// Sends answers until the client is gone, or the stream ends.
    fn send(stream: &Stream<Self>) -> impl Future<Output = Result<(), End<Self>>> + Send;
}

/// Reason for which a stream ends.
pub(super) enum End<Q: StreamCall> {
    Response(Box<Q::Answer>),
    Status(Box<Status>),
}

impl<Q: StreamCall> From<Failure> for End<Q> {
    fn from(failure: Failure) -> Self {
        Self::Response(Box::new(Q::failed(failure)))
    }
}

pub(super) struct Stream<Q: StreamCall> {
    pub service: TikvService,
    pub rights: Rights,
    pub request: Q,
    pub memory: Memory,
    pub sender: mpsc::Sender<Result<Held<Q::Answer>, Status>>,
}

/// Serves the call: the answer ends when nothing more can be sent here.
pub(super) async fn serve<Q: StreamCall>(
    State(service): State<TikvService>,
    request: Request,
) -> Response {
    let rights = match wire::rights(&request) {
        Ok(rights) => rights,
        Err(status) => return status.into_http(),
    };
    let (request, memory) = match wire::message::<Q>(request, MESSAGE_BYTES_MAX).await {
        Ok(read) => read,
        Err(wire::Unread::Exceeded(exceeded)) => {
            let message = Q::failed(Failure::exceeded(exceeded, RegionId(0)));
            return wire::answer(tokio_stream::once(Ok(Held { message, memory: Vec::new() })));
        }
        Err(wire::Unread::Status(status)) => return status.into_http(),
    };
    if let Err(status) = service.check_cluster(request.context()) {
        return status.into_http();
    }
    if let Err(status) = permitted(&request, &rights) {
        return status.into_http();
    }
    let (sender, messages) = mpsc::channel(1);
    tokio::spawn(async move {
        let stream = Stream { service, rights, request, memory, sender };
        let last = match Q::send(&stream).await {
            Ok(()) => return,
            Err(End::Response(message)) => Ok(Held { message: *message, memory: Vec::new() }),
            Err(End::Status(status)) => Err(*status),
        };
        // The client may be gone.
        let _ = stream.sender.send(last).await;
    });
    wire::answer(ReceiverStream::new(messages))
}

/// Fails unless the caller may read all keys of the request.
///
/// Invariant: a right that is taken back ends the stream before it sends anything more.
/// Test: `a_right_that_is_taken_back_ends_a_stream`.
fn permitted<Q: StreamCall>(request: &Q, rights: &Rights) -> Result<(), Box<Status>> {
    let denied = |text: String| Box::new(Status::permission_denied(text));
    rights.check(Q::PATH).map_err(|denial| denied(denial.to_string()))?;
    let Some(standing) = rights.standing() else { return Ok(()) };
    request.permitted(&standing).map_err(|failure| {
        rights.note_ungranted();
        denied(failure.into_error().message)
    })
}

impl<Q: StreamCall> Stream<Q> {
    /// Fails unless the stream may send more.
    pub(super) fn check(&self, store: &StoreHandle) -> Result<(), End<Q>> {
        if !store.is_running() || *self.service.stop.borrow() {
            return Err(not_leader(self.region(), None).into());
        }
        // bug server.follow_after_revocation: return Ok(());
        permitted(&self.request, &self.rights).map_err(End::Status)
    }

    /// Returns the region that the request names.
    pub(super) fn region(&self) -> RegionId {
        RegionId(self.request.context().map_or(0, |context| context.region_id))
    }
}
