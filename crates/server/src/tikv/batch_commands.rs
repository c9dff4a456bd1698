//! `BatchCommands`: many requests on one stream, answered in any order, each exactly once. A
//! command does not end the stream, because that would fail every other one on it, except by a panic.
//! Then it has no answer, and its client must not wait for one.

use super::{Call, Memory, TikvService, get_groups, put_groups, unsupported};
use crate::memory::{Arrived, Held, RequestMemory};
use crate::tasks::{caught, next_until};
use std::future::Future;
use std::sync::Arc;
use stele_proto::kvrpcpb::{
    Context, GetHealthFeedbackResponse, RawGetRequest, RawGetResponse, RawPutResponse,
};
use stele_proto::tikvpb::batch_commands_request::{Request, request::Cmd};
use stele_proto::tikvpb::batch_commands_response::{Response, response::Cmd as Done};
use stele_proto::tikvpb::{
    BatchCommandsEmptyResponse, BatchCommandsRequest, BatchCommandsResponse,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

/// Commands of one stream in progress; above, its next batch is not read, which throttles the
/// client.
const COMMANDS_MAX: usize = 4096;
/// Answers that may wait for a slow reader.
const ANSWERS_MAX: usize = 1024;
/// Answers sent together.
const ANSWERS_PER_BATCH: usize = 256;
/// Bytes of answers sent together, approximately: a client processes the first while the others are
/// in flight.
const BATCH_BYTES_MAX: usize = 256 << 10;

type NumberedResponse = (u64, Response);
/// Answers of a command or a group, with their memory; an error if it panicked.
type Answered = stele_types::Result<(Vec<NumberedResponse>, Memory)>;
type Answers = mpsc::Sender<Answered>;
type HeldAnswers = Held<BatchCommandsResponse>;
type Batches = ReceiverStream<Result<HeldAnswers, Status>>;

/// Serves one stream until its client ends it.
pub(super) fn serve(
    service: TikvService,
    requests: Streaming<BatchCommandsRequest>,
    arrived: Arc<Arrived>,
) -> Batches {
    let (answers, waiting) = mpsc::channel(ANSWERS_MAX);
    let (batches, out) = mpsc::channel(4);
    tokio::spawn(collect(waiting, batches.clone()));
    tokio::spawn(async move {
        let ended = tokio::select! {
            ended = read(service, requests, &arrived, answers.clone()) => ended,
            // Without answers the stream ends: no client waits for one.
            () = answers.closed() => Ok(()),
        };
        if let Err(status) = ended {
            // If the client is gone, the status is dropped.
            let _ = batches.send(Err(*status)).await;
        }
    });
    ReceiverStream::new(out)
}

async fn read(
    service: TikvService,
    mut requests: Streaming<BatchCommandsRequest>,
    arrived: &Arrived,
    answers: Answers,
) -> Result<(), Box<Status>> {
    let room = Arc::new(Semaphore::new(COMMANDS_MAX));
    let mut stop = service.stop.clone();
    while let Some(next) = next_until(&mut requests, &mut stop).await {
        let batch = match (next, arrived.refusal()) {
            (Ok(batch), _) => batch,
            // Its commands cannot be answered one by one: they were not read.
            (Err(status), Some(_)) => return Err(Box::new(status)),
            (Err(_), None) => return Ok(()),
        };
        let message = arrived.take();
        let commands = batch.requests.len().clamp(1, COMMANDS_MAX) as u32;
        let Ok(permit) = room.clone().acquire_many_owned(commands).await else { return Ok(()) };
        let (service, answers) = (service.clone(), answers.clone());
        let work = Work { service, answers, message, _permit: permit };
        Arc::new(work).begin(batch)?;
    }
    Ok(())
}

/// One message in progress; its commands hold a reference.
struct Work {
    service: TikvService,
    answers: Answers,
    message: Memory,
    _permit: OwnedSemaphorePermit,
}

impl Work {
    /// Starts every command.
    fn begin(self: Arc<Self>, batch: BatchCommandsRequest) -> Result<(), Box<Status>> {
        let (mut puts, mut gets) =
            (put_groups::PutGroups::default(), get_groups::GetGroups::default());
        for (id, request) in batch.request_ids.into_iter().zip(batch.requests) {
            self.service.check_cluster(context(&request))?;
            match request.cmd {
                Some(Cmd::RawPut(put)) => {
                    let added = puts.add(&self.service.stores, &self.message, (id, &put));
                    if let Err(failure) = added {
                        let response = self.service.put_failed(failure);
                        self.clone().answer(|_| async move { vec![(id, put_done(response))] });
                    }
                }
                Some(Cmd::RawGet(get)) => {
                    if let Some(get) = gets.add(&self.service.stores, (id, get)) {
                        self.clone().get(get);
                    }
                }
                cmd => {
                    let service = self.service.clone();
                    let is_scan = matches!(cmd, Some(Cmd::RawScan(_) | Cmd::RawBatchScan(_)));
                    let request = Request { cmd };
                    let memory = RequestMemory::part_of(&self.message);
                    let charged = memory.clone();
                    let work = async move { vec![(id, run(&service, request, &charged).await)] };
                    match is_scan {
                        true => self.clone().answer_while_open(memory, work),
                        false => self.clone().answer_within(memory, work),
                    }
                }
            }
        }
        for group in gets.finish() {
            let work = self.clone();
            self.clone().answer(|memory| async move {
                let (done, left) = group.run(&work.service, &memory);
                left.into_iter().for_each(|get| work.clone().get(get));
                done.into_iter().map(|(id, response)| (id, get_done(response))).collect()
            });
        }
        for group in puts.finish() {
            let service = self.service.clone();
            self.clone().answer_within(group.memory(), async move {
                let done = group.run(&service).await;
                done.into_iter().map(|(id, response)| (id, put_done(response))).collect()
            });
        }
        Ok(())
    }

    /// Starts a get outside of any group.
    fn get(self: Arc<Self>, (id, request): (u64, RawGetRequest)) {
        let service = self.service.clone();
        self.answer(|memory| async move {
            vec![(id, get_done(request.execute(&service, &memory).await))]
        });
    }

    /// Starts a command or a group, within memory of its own.
    fn answer<W>(self: Arc<Self>, work: impl FnOnce(Memory) -> W)
    where
        W: Future<Output = Vec<NumberedResponse>> + Send + 'static,
    {
        let memory = RequestMemory::part_of(&self.message);
        let work = work(memory.clone());
        self.answer_within(memory, work);
    }

    /// Like [`Work::answer_within`], for work that ends with the stream.
    fn answer_while_open(
        self: Arc<Self>,
        memory: Memory,
        work: impl Future<Output = Vec<NumberedResponse>> + Send + 'static,
    ) {
        tokio::spawn(async move {
            tokio::select! {
                () = answer(&self.answers, memory, work) => {}
                () = self.answers.closed() => {}
            }
        });
    }

    fn answer_within(
        self: Arc<Self>,
        memory: Memory,
        work: impl Future<Output = Vec<NumberedResponse>> + Send + 'static,
    ) {
        tokio::spawn(async move {
            answer(&self.answers, memory, work).await;
        });
    }
}

/// Runs a command or a group and passes its answers on; a panic ends the stream.
async fn answer(
    answers: &Answers,
    memory: Memory,
    work: impl Future<Output = Vec<NumberedResponse>>,
) {
    let done = caught("a command", work).await;
    // The stream may have ended meanwhile.
    let _ = answers.send(done.map(|done| (done, memory))).await;
}

fn get_done(response: RawGetResponse) -> Response {
    Response { cmd: Some(Done::RawGet(response)) }
}

fn put_done(response: RawPutResponse) -> Response {
    Response { cmd: Some(Done::RawPut(response)) }
}

/// Combines answers that are ready at the same time into one message.
async fn collect(
    mut waiting: mpsc::Receiver<Answered>,
    batches: mpsc::Sender<Result<HeldAnswers, Status>>,
) {
    let mut ready = Vec::new();
    loop {
        let received = tokio::select! {
            received = waiting.recv_many(&mut ready, ANSWERS_PER_BATCH) => received,
            // The client is gone.
            () = batches.closed() => return,
        };
        if received == 0 {
            return;
        }
        let mut batch = empty();
        let mut bytes = 0;
        // Invariant: the stream ends when a command will have no answer.
        // bug server.command_panic_unanswered: never
        if ready.iter().any(Result::is_err) {
            let status = "a command panicked; the outcome of commands without an answer is unknown";
            // If the client is gone, the status is dropped.
            let _ = batches.send(Err(Status::internal(status))).await;
            return;
        }
        for (answers, memory) in ready.drain(..).flatten() {
            batch.memory.push(memory.clone());
            for (id, response) in answers {
                bytes += prost::Message::encoded_len(&response);
                batch.message.request_ids.push(id);
                batch.message.responses.push(response);
                if bytes > BATCH_BYTES_MAX {
                    bytes = 0;
                    if batches.send(Ok(std::mem::replace(&mut batch, empty()))).await.is_err() {
                        return;
                    }
                    // Of the group's other answers.
                    batch.memory.push(memory.clone());
                }
            }
        }
        if !batch.message.responses.is_empty() && batches.send(Ok(batch)).await.is_err() {
            return;
        }
    }
}

fn empty() -> HeldAnswers {
    Held { message: BatchCommandsResponse::default(), memory: Vec::new() }
}

/// Defines what depends on the type of a command: its execution and its context.
macro_rules! raw_commands {
    ($($name:ident)*) => {
        async fn run(service: &TikvService, request: Request, memory: &Memory) -> Response {
            let done = match request.cmd {
                $(Some(Cmd::$name(call)) => Done::$name(call.execute(service, memory).await),)*
                Some(Cmd::GetHealthFeedback(_)) => {
                    Done::GetHealthFeedback(GetHealthFeedbackResponse::default())
                }
                Some(Cmd::Empty(request)) => {
                    Done::Empty(BatchCommandsEmptyResponse { test_id: request.test_id })
                }
                Some(unsupported) => unsupported::refusal(&unsupported),
                // Command of a newer client: it gets an empty answer, so that the stream does not
                // stall.
                None => Done::Empty(BatchCommandsEmptyResponse::default()),
            };
            Response { cmd: Some(done) }
        }

        fn context(request: &Request) -> Option<&Context> {
            match request.cmd.as_ref()? {
                $(Cmd::$name(call) => call.context(),)*
                Cmd::GetHealthFeedback(request) => request.context.as_ref(),
                // Unsupported commands and `Empty`.
                _ => None,
            }
        }
    };
}

raw_commands! {
    RawGet RawBatchGet RawPut RawBatchPut RawDelete RawBatchDelete RawScan RawDeleteRange
    RawBatchScan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Class, ConnectionMemory, NodeMemory};
    use std::time::Duration;

    #[tokio::test]
    async fn answers_are_not_wanted_when_the_client_is_gone() {
        let (answers, waiting) = mpsc::channel(4);
        let (batches, out) = mpsc::channel(4);
        tokio::spawn(collect(waiting, batches));
        drop(out);
        let closed = tokio::time::timeout(Duration::from_secs(30), answers.closed()).await;
        closed.expect("commands go on");
    }

    #[tokio::test]
    async fn a_command_that_panics_ends_the_stream_with_an_error() {
        let (answers, waiting) = mpsc::channel(4);
        let (batches, mut out) = mpsc::channel(4);
        tokio::spawn(collect(waiting, batches));
        let empty = || Response { cmd: Some(Done::Empty(BatchCommandsEmptyResponse::default())) };
        let memory = || {
            let connection = ConnectionMemory::new(&NodeMemory::new(0), 0);
            RequestMemory::new(&connection, Class::Data)
        };
        answer(&answers, memory(), async { vec![(7, empty())] }).await;
        let batch = out.recv().await.unwrap().unwrap();
        assert_eq!(batch.message.request_ids, [7]);
        answer(&answers, memory(), async { panic!("a bug") }).await;
        let next = tokio::time::timeout(Duration::from_secs(30), out.recv()).await;
        let status = next.expect("the client waits").unwrap().err().unwrap();
        assert_eq!(status.code(), tonic::Code::Internal);
        assert!(out.recv().await.is_none() && answers.is_closed());
    }
}
