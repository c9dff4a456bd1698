//! Calls of single keys share one `BatchCommands` stream to a node: those that wait at the same time
//! travel in one message, which costs both sides much less than a call each.

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

/// Calls that may wait for the stream; more wait for their turn to wait.
const WAITING_MAX: usize = 1024;
/// Calls in one message.
const COMMANDS_PER_BATCH: usize = 256;
/// Bytes of keys and values after which a message ends.
const BATCH_BYTES_MAX: usize = 512 << 10;
/// Longer calls go by themselves: on one stream everything behind them would wait.
pub const COMMAND_BYTES_MAX: usize = 64 << 10;

type Answer = oneshot::Sender<Result<Done, Status>>;
/// Calls on their way, by id.
type Pending = Mutex<HashMap<u64, Answer>>;

struct Waiting {
    command: Cmd,
    bytes: usize,
    answer: Answer,
}

/// A stream to one node; clones share it.
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
    /// Opens a stream, which ends with its last clone.
    pub fn new(channel: Channel) -> Self {
        let (waiting, queue) = mpsc::channel(WAITING_MAX);
        tokio::spawn(run(channel, queue));
        Self { waiting }
    }

    /// Sends a command of about `bytes`. `Unavailable` when the stream ended: the command may have
    /// been carried out.
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
    // Some servers answer the call only with their first message: it is read beside the writing.
    let why = tokio::select! {
        why = read(channel, out, &pending) => why,
        () = write(queue, batches, &pending) => ended(),
    };
    for (_, answer) in std::mem::take(&mut *pending.lock()) {
        // Whoever asked may have gone.
        let _ = answer.send(Err(why.clone()));
    }
}

/// Ends when nobody holds the stream any more, or it takes nothing more.
async fn write(
    mut queue: mpsc::Receiver<Waiting>,
    batches: mpsc::Sender<BatchCommandsRequest>,
    pending: &Pending,
) {
    let mut taken = Vec::new();
    let mut next_id = 1;
    loop {
        // Others that are ready to ask get the chance to join.
        tokio::task::yield_now().await;
        if queue.recv_many(&mut taken, COMMANDS_PER_BATCH).await == 0 {
            return;
        }
        let mut waiting = taken.drain(..).filter(|one| !one.answer.is_closed()).peekable();
        while waiting.peek().is_some() {
            let batch = batch(&mut waiting, &mut next_id, &mut pending.lock());
            if batches.send(batch).await.is_err() {
                // The reading side knows why.
                return std::future::pending().await;
            }
        }
    }
}

/// The next message, of those that wait.
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

/// Hands answers out until the stream ends; returns why.
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
            Ok(Some(batch)) => hand_out(batch, &mut pending.lock()),
            Ok(None) => return ended(),
            Err(status) => return status,
        }
    }
}

fn hand_out(batch: BatchCommandsResponse, pending: &mut HashMap<u64, Answer>) {
    for (id, response) in batch.request_ids.into_iter().zip(batch.responses) {
        if let Some(answer) = pending.remove(&id) {
            let done = response.cmd.ok_or_else(|| Status::internal("an answer without content"));
            // Whoever asked may have gone.
            let _ = answer.send(done);
        }
    }
}
