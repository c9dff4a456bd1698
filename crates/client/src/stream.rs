//! A `BatchCommands` stream to a node, shared by calls of single keys: calls that wait at the same
//! time are sent in one message, which costs both sides much less than one call each.

use crate::call::MESSAGE_BYTES_MAX;
use crate::connections::Wire;
use crate::delivery::{Departure, of_unopened_stream};
use crate::pd_rpc_client::status_text;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use stele_proto::tikvpb::batch_commands_request::Request;
use stele_proto::tikvpb::batch_commands_request::request::Cmd;
use stele_proto::tikvpb::batch_commands_response::response::Cmd as Done;
use stele_proto::tikvpb::tikv_client::TikvClient;
use stele_proto::tikvpb::{BatchCommandsRequest, BatchCommandsResponse};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::Stream;
use tonic::{Status, Streaming};

/// Maximum number of calls in the queue; further calls wait for space in it.
const WAITING_MAX: usize = 1024;
const COMMANDS_PER_BATCH: usize = 256;
/// Bytes of keys and values after which a message is complete.
const BATCH_BYTES_MAX: usize = 512 << 10;
/// Maximum bytes of a call on the stream. Longer calls are sent alone, because they would delay all
/// calls after them.
pub(crate) const COMMAND_BYTES_MAX: usize = 64 << 10;

type ReplySender = oneshot::Sender<Result<Done, Status>>;
/// Calls in flight, by request ID; `None` once the stream has ended.
///
/// Invariant: a call is here from its departure on. One that the stream's end leaves in the queue was
/// not sent.
type Pending = Mutex<Option<HashMap<u64, ReplySender>>>;

struct Waiting {
    command: Cmd,
    bytes: usize,
    answer: ReplySender,
    departure: Departure,
}

/// A stream to one node. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct CommandStream {
    waiting: mpsc::Sender<Waiting>,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.bytes)
    }
}

impl CommandStream {
    /// Opens a stream, which closes with its last clone.
    pub(crate) fn new(wire: Wire) -> Self {
        let (waiting, queue) = mpsc::channel(WAITING_MAX);
        tokio::spawn(run(wire, queue));
        Self { waiting }
    }

    /// Sends a command of about `bytes`. Fails with `Unavailable` if the stream ended; `departure`
    /// tells whether the command was sent before.
    pub(crate) async fn call(
        &self,
        command: Cmd,
        bytes: usize,
        departure: &Departure,
    ) -> Result<Done, Status> {
        let (answer, done) = oneshot::channel();
        let waiting = Waiting { command, bytes, answer, departure: departure.clone() };
        self.waiting.send(waiting).await.map_err(|_| ended())?;
        done.await.unwrap_or_else(|_| Err(ended()))
    }
}

fn ended() -> Status {
    Status::unavailable("the stream to the node ended")
}

async fn run(wire: Wire, queue: mpsc::Receiver<Waiting>) {
    let pending = Arc::new(Pending::new(Some(HashMap::new())));
    let (closing, closed) = oneshot::channel();
    let batches = Batches::new(queue, Arc::clone(&pending), closing);
    let last_clone_dropped = async {
        if closed.await.is_err() {
            // The connection has dropped the batches. The reading side returns the reason.
            std::future::pending::<()>().await;
        }
    };
    // Some servers respond to the call only with their first message, so reading runs beside
    // writing.
    let reason = tokio::select! {
        biased;
        reason = read(wire, batches, &pending) => reason,
        () = last_clone_dropped => ended(),
    };
    let calls = pending.lock().take().unwrap_or_default();
    let mut calls: Vec<(u64, ReplySender)> = calls.into_iter().collect();
    calls.sort_unstable_by_key(|(id, _)| *id);
    for (_, answer) in calls {
        // The caller may have given up.
        let _ = answer.send(Err(reason.clone()));
    }
}

/// Messages to the node. Each is made when the connection takes it: until then its calls are in the
/// queue, and none of them is sent.
struct Batches {
    queue: mpsc::Receiver<Waiting>,
    /// Calls taken from the queue, the first one last.
    taken: Vec<Waiting>,
    has_yielded: bool,
    next_id: u64,
    pending: Arc<Pending>,
    /// Receives a message when the last clone of the stream is dropped.
    closing: Option<oneshot::Sender<()>>,
}

impl Batches {
    fn new(
        queue: mpsc::Receiver<Waiting>,
        pending: Arc<Pending>,
        closing: oneshot::Sender<()>,
    ) -> Self {
        let (taken, closing) = (Vec::new(), Some(closing));
        Self { queue, taken, has_yielded: false, next_id: 1, pending, closing }
    }

    /// Builds the next message from the taken calls; `None` if the stream has ended.
    fn batch(&mut self) -> Option<BatchCommandsRequest> {
        let mut pending = self.pending.lock();
        let pending = pending.as_mut()?;
        let mut batch = BatchCommandsRequest::default();
        let mut bytes = 0;
        while bytes < BATCH_BYTES_MAX
            && let Some(one) = self.taken.pop()
        {
            // Its caller has withdrawn it.
            if one.answer.is_closed() || !one.departure.depart() {
                continue;
            }
            bytes += one.bytes;
            pending.insert(self.next_id, one.answer);
            batch.request_ids.push(self.next_id);
            batch.requests.push(Request { cmd: Some(one.command) });
            self.next_id += 1;
        }
        Some(batch)
    }
}

impl Stream for Batches {
    type Item = BatchCommandsRequest;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<BatchCommandsRequest>> {
        let this = &mut *self;
        loop {
            if this.taken.is_empty() {
                // Yields so that other ready callers join the batch.
                if !std::mem::replace(&mut this.has_yielded, true) {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                let taken = this.queue.poll_recv_many(cx, &mut this.taken, COMMANDS_PER_BATCH);
                if ready!(taken) == 0 {
                    this.closing.take().map(|closing| closing.send(()));
                    return Poll::Ready(None);
                }
                this.has_yielded = false;
                this.taken.reverse();
            }
            match this.batch() {
                None => return Poll::Ready(None),
                Some(batch) if batch.requests.is_empty() => {}
                Some(batch) => return Poll::Ready(Some(batch)),
            }
        }
    }
}

/// Delivers responses until the stream ends; returns the reason.
async fn read(wire: Wire, batches: Batches, pending: &Pending) -> Status {
    let mut client = TikvClient::new(wire)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let mut answers: Streaming<BatchCommandsResponse> = match client.batch_commands(batches).await {
        Ok(response) => response.into_inner(),
        Err(status) => return of_unopened_stream(status),
    };
    loop {
        match answers.message().await {
            Ok(Some(batch)) => deliver(batch, pending.lock().as_mut()),
            Ok(None) => return ended(),
            // The node has accepted the stream: its end tells of no call that it was not executed.
            Err(status) => return Status::unavailable(status_text(&status)),
        }
    }
}

fn deliver(batch: BatchCommandsResponse, pending: Option<&mut HashMap<u64, ReplySender>>) {
    let Some(pending) = pending else { return };
    for (id, response) in batch.request_ids.into_iter().zip(batch.responses) {
        if let Some(answer) = pending.remove(&id) {
            let done = response.cmd.ok_or_else(|| Status::internal("the response has no content"));
            // The caller may have given up.
            let _ = answer.send(done);
        }
    }
}
