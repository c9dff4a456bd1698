//! A `BatchCommands` stream to a node, shared by calls of single keys: calls that wait at the same
//! time are sent in one message, which costs both sides much less than one call each.

use crate::call::MESSAGE_BYTES_MAX;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use stele_proto::tikvpb::batch_commands_request::{Request, request::Cmd};
use stele_proto::tikvpb::batch_commands_response::response::Cmd as Done;
use stele_proto::tikvpb::tikv_client::TikvClient;
use stele_proto::tikvpb::{BatchCommandsRequest, BatchCommandsResponse};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

/// Maximum number of calls in the queue; further calls wait for space in it.
const WAITING_MAX: usize = 1024;
/// Maximum number of calls in one message.
const COMMANDS_PER_BATCH: usize = 256;
/// Bytes of keys and values after which a message is complete.
const BATCH_BYTES_MAX: usize = 512 << 10;
/// Maximum bytes of a call on the stream. Longer calls are sent alone, because they would delay all
/// calls after them.
pub const COMMAND_BYTES_MAX: usize = 64 << 10;

type Answer = oneshot::Sender<Result<Done, Status>>;
/// Calls in flight, by request ID.
type Pending = Mutex<HashMap<u64, Answer>>;

struct Waiting {
    command: Cmd,
    bytes: usize,
    answer: Answer,
}

/// A stream to one node. Clones share it.
#[derive(Clone, Debug)]
pub struct CommandStream {
    waiting: mpsc::Sender<Waiting>,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.bytes)
    }
}

impl CommandStream {
    /// Opens a stream, which closes with its last clone.
    pub fn new(channel: Channel) -> Self {
        let (waiting, queue) = mpsc::channel(WAITING_MAX);
        tokio::spawn(run(channel, queue));
        Self { waiting }
    }

    /// Sends a command of about `bytes`. Fails with `Unavailable` if the stream ended; the command
    /// may then have been executed.
    pub async fn call(&self, command: Cmd, bytes: usize) -> Result<Done, Status> {
        let (answer, done) = oneshot::channel();
        let sent = self.waiting.send(Waiting { command, bytes, answer }).await;
        sent.map_err(|_| ended())?;
        done.await.unwrap_or_else(|_| Err(ended()))
    }
}

fn ended() -> Status {
    Status::unavailable("the stream to the node ended")
}

async fn run(channel: Channel, queue: mpsc::Receiver<Waiting>) {
    let pending = Arc::new(Pending::default());
    let (batches, out) = mpsc::channel(2);
    // Some servers respond to the call only with their first message, so reading runs beside
    // writing.
    let reason = tokio::select! {
        reason = read(channel, out, &pending) => reason,
        () = write(queue, batches, &pending) => ended(),
    };
    for (_, answer) in std::mem::take(&mut *pending.lock()) {
        // The caller may have given up.
        let _ = answer.send(Err(reason.clone()));
    }
}

/// Sends batches. Ends when the last clone of the stream is dropped.
async fn write(
    mut queue: mpsc::Receiver<Waiting>,
    batches: mpsc::Sender<BatchCommandsRequest>,
    pending: &Pending,
) {
    let mut received = Vec::new();
    let mut next_id = 1;
    loop {
        // Yields so that other ready callers join the batch.
        tokio::task::yield_now().await;
        if queue.recv_many(&mut received, COMMANDS_PER_BATCH).await == 0 {
            return;
        }
        let mut waiting = received.drain(..).filter(|one| !one.answer.is_closed()).peekable();
        while waiting.peek().is_some() {
            let batch = batch(&mut waiting, &mut next_id, &mut pending.lock());
            if batches.send(batch).await.is_err() {
                // The reading side returns the reason.
                return std::future::pending().await;
            }
        }
    }
}

/// Builds the next message from waiting calls.
fn batch(
    waiting: &mut impl Iterator<Item = Waiting>,
    next_id: &mut u64,
    pending: &mut HashMap<u64, Answer>,
) -> BatchCommandsRequest {
    let mut batch = BatchCommandsRequest::default();
    let mut bytes = 0;
    while bytes < BATCH_BYTES_MAX
        && let Some(one) = waiting.next()
    {
        bytes += one.bytes;
        pending.insert(*next_id, one.answer);
        batch.request_ids.push(*next_id);
        batch.requests.push(Request { cmd: Some(one.command) });
        *next_id += 1;
    }
    batch
}

/// Delivers responses until the stream ends; returns the reason.
async fn read(
    channel: Channel,
    batches: mpsc::Receiver<BatchCommandsRequest>,
    pending: &Pending,
) -> Status {
    let mut client = TikvClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let mut answers: Streaming<BatchCommandsResponse> =
        match client.batch_commands(ReceiverStream::new(batches)).await {
            Ok(response) => response.into_inner(),
            Err(status) => return status,
        };
    loop {
        match answers.message().await {
            Ok(Some(batch)) => deliver(batch, &mut pending.lock()),
            Ok(None) => return ended(),
            Err(status) => return status,
        }
    }
}

fn deliver(batch: BatchCommandsResponse, pending: &mut HashMap<u64, Answer>) {
    for (id, response) in batch.request_ids.into_iter().zip(batch.responses) {
        if let Some(answer) = pending.remove(&id) {
            let done = response.cmd.ok_or_else(|| Status::internal("the response has no content"));
            // The caller may have given up.
            let _ = answer.send(done);
        }
    }
}
