//! `BatchCommands`: many requests on one stream, answered in any order, each exactly once. A
//! command does not end the stream, because that would fail every other one on it, except by a panic.
//! Then it has no answer, and its client must not wait for one.

use super::{Call, Failure, Memory, TikvService, denial, denied, errors, groups};
use crate::access::{OverLimit, Rights, Standing, WAIT_MAX};
use crate::memory::{Arrived, Exceeded, Held, RequestMemory};
use crate::tasks::{caught, next_until};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};
use stele_proto::kvrpcpb::{
    Context, GetHealthFeedbackResponse, RawGetRequest, RawGetResponse, RawPutResponse,
};
use stele_proto::tikvpb::batch_commands_request::Request;
use stele_proto::tikvpb::batch_commands_request::request::Cmd;
use stele_proto::tikvpb::batch_commands_response::Response;
use stele_proto::tikvpb::batch_commands_response::response::Cmd as Done;
use stele_proto::tikvpb::{
    BatchCommandsEmptyResponse, BatchCommandsRequest, BatchCommandsResponse,
};
use stele_replica::Reply;
use stele_types::RegionId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::Stream;
use tonic::{Status, Streaming};

/// Commands of one stream that are in progress or have an answer that is not sent; above, its next batch
/// is not read, which throttles the client.
const COMMANDS_MAX: usize = 4096;
/// Commands and groups of which the answers are sent together.
const ANSWERED_PER_BATCH: usize = 256;
/// Bytes of answers sent together, approximately: a client processes the first while the others are
/// in flight.
const BATCH_BYTES_MAX: usize = 256 << 10;

type NumberedResponse = (u64, Response);
type HeldAnswers = Held<BatchCommandsResponse>;

/// Command or group that has its answers, or a status that ends the stream.
type Answered = Result<(Outcome, Arc<Work>), Box<Status>>;

enum Outcome {
    Ready(Vec<NumberedResponse>, Memory),
    /// Puts with the reply to their proposal. Their answers are made where they are sent.
    Replied(Box<groups::Proposed>, Reply),
}

/// Bounded by the permits of [`COMMANDS_MAX`], which the answers hold.
type Answers = mpsc::UnboundedSender<Answered>;

pub(super) fn serve(
    service: TikvService,
    requests: Streaming<BatchCommandsRequest>,
    arrived: Arc<Arrived>,
    rights: Rights,
) -> Batches {
    let (answers, waiting) = mpsc::unbounded_channel();
    let batches = Batches::new(service.clone(), waiting);
    tokio::spawn(async move {
        let ended = tokio::select! {
            ended = read(service, requests, &arrived, (&rights, answers.clone())) => ended,
            // Without answers the stream ends: no client waits for one.
            () = answers.closed() => Ok(()),
        };
        if let Err(status) = ended {
            // If the client is gone, the status is dropped.
            let _ = answers.send(Err(status));
        }
    });
    batches
}

async fn read(
    service: TikvService,
    mut requests: Streaming<BatchCommandsRequest>,
    arrived: &Arrived,
    (rights, answers): (&Rights, Answers),
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
        let is_over_limit = match rights.usage().map(|usage| usage.admit(u64::from(commands))) {
            None => false,
            Some(Ok(wait)) => {
                tokio::time::sleep(wait).await;
                false
            }
            Some(Err(OverLimit)) => {
                // bug server.commands_are_refused_at_once: `WAIT_MAX` is `std::time::Duration::ZERO`
                tokio::time::sleep(WAIT_MAX).await;
                true
            }
        };
        // They may have changed since the stream began.
        Arc::new(work).begin(batch, (rights, is_over_limit))?;
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
    fn begin(
        self: Arc<Self>,
        batch: BatchCommandsRequest,
        (rights, is_over_limit): (&Rights, bool),
    ) -> Result<(), Box<Status>> {
        let standing = rights.standing();
        let (mut puts, mut gets) = (groups::PutGroups::default(), groups::GetGroups::default());
        let mut refusals = Vec::new();
        for (id, request) in batch.request_ids.into_iter().zip(batch.requests) {
            self.service.check_cluster(context(&request))?;
            if let Some(response) = refused(&request, standing.as_deref(), is_over_limit) {
                if !is_over_limit {
                    rights.note_ungranted();
                }
                refusals.push((id, response));
                continue;
            }
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
        if !refusals.is_empty() {
            let memory = RequestMemory::part_of(&self.message);
            // The stream may have ended meanwhile.
            let _ = self.answers.send(Ok((Outcome::Ready(refusals, memory), self.clone())));
        }
        for group in gets.finish() {
            let work = self.clone();
            self.clone().answer(|memory| async move {
                let groups::GroupFound { done, alone, cold } = group.run(&work.service, &memory);
                alone.into_iter().for_each(|get| work.clone().get(get));
                // bug server.warm_gets_wait_for_cold_ones: let (done, cold) = match cold { Some(cold) => (done.into_iter().chain(cold.read(&work.service, &memory).await.0).collect(), None), None => (done, None) };
                if let Some(cold) = cold {
                    work.cold_gets(cold);
                }
                gets_done(done)
            });
        }
        puts.propose(move |puts, reply| {
            let answers = self.answers.clone();
            // The stream may have ended meanwhile.
            let _ = answers.send(Ok((Outcome::Replied(puts, reply), self)));
        });
        Ok(())
    }

    fn get(self: Arc<Self>, (id, request): (u64, RawGetRequest)) {
        let service = self.service.clone();
        self.answer(|memory| async move {
            vec![(id, get_done(request.execute(&service, &memory).await))]
        });
    }

    fn cold_gets(self: Arc<Self>, cold: groups::ColdGets) {
        let work = self.clone();
        self.answer(|memory| async move {
            let (done, alone) = cold.read(&work.service, &memory).await;
            alone.into_iter().for_each(|get| work.clone().get(get));
            gets_done(done)
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
                () = answer(&self, memory, work) => {}
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
            answer(&self, memory, work).await;
        });
    }
}

/// Runs a command or a group and passes its answers on; a panic ends the stream.
async fn answer(of: &Arc<Work>, memory: Memory, work: impl Future<Output = Vec<NumberedResponse>>) {
    let answered = match caught("a command", work).await {
        Ok(answers) => Ok((Outcome::Ready(answers, memory), of.clone())),
        Err(_) => {
            let status = "a command panicked; the outcome of commands without an answer is unknown";
            Err(Box::new(Status::internal(status)))
        }
    };
    // The stream may have ended meanwhile.
    let _ = of.answers.send(answered);
}

fn get_done(response: RawGetResponse) -> Response {
    Response { cmd: Some(Done::RawGet(response)) }
}

fn gets_done(done: Vec<(u64, RawGetResponse)>) -> Vec<NumberedResponse> {
    done.into_iter().map(|(id, response)| (id, get_done(response))).collect()
}

fn put_done(response: RawPutResponse) -> Response {
    Response { cmd: Some(Done::RawPut(response)) }
}

/// Answers of a stream; those that are ready at the same time are one message.
pub(super) struct Batches {
    service: TikvService,
    waiting: mpsc::UnboundedReceiver<Answered>,
    /// Answers of one command or group that the last message had no room for, with their memory.
    left: VecDeque<NumberedResponse>,
    memory: Option<Memory>,
    end: Option<Box<Status>>,
    is_over: bool,
}

impl Batches {
    fn new(service: TikvService, waiting: mpsc::UnboundedReceiver<Answered>) -> Self {
        Self { service, waiting, left: VecDeque::new(), memory: None, end: None, is_over: false }
    }

    /// Takes the next command or group that has its answers. Returns whether there was one.
    fn take(&mut self, context: &mut task::Context<'_>) -> bool {
        if self.end.is_some() || self.is_over {
            return false;
        }
        match self.waiting.poll_recv(context) {
            Poll::Ready(Some(Ok((Outcome::Ready(answers, memory), _)))) => {
                (self.left, self.memory) = (answers.into(), Some(memory));
            }
            Poll::Ready(Some(Ok((Outcome::Replied(puts, reply), _)))) => {
                self.memory = Some(puts.memory.clone());
                let answers = puts.answers(&self.service, reply);
                self.left = answers.map(|(id, response)| (id, put_done(response))).collect();
            }
            // Invariant: the stream ends when a command will have no answer.
            Poll::Ready(Some(Err(status))) => {
                // bug server.command_panic_unanswered: return true;
                self.end = Some(status);
            }
            Poll::Ready(None) => self.is_over = true,
            Poll::Pending => return false,
        }
        true
    }
}

impl Stream for Batches {
    type Item = Result<HeldAnswers, Status>;

    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
    ) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let (mut batch, mut bytes, mut taken) = (empty(), 0, 0);
        batch.memory.extend(this.memory.clone().filter(|_| !this.left.is_empty()));
        while bytes <= BATCH_BYTES_MAX {
            if let Some((id, response)) = this.left.pop_front() {
                bytes += bytes_of(&response);
                batch.message.request_ids.push(id);
                batch.message.responses.push(response);
                continue;
            }
            this.memory = None;
            // Without a message to return, only the channel says when to go on.
            let is_full = taken >= ANSWERED_PER_BATCH && !batch.message.responses.is_empty();
            if is_full || !this.take(context) {
                break;
            }
            taken += 1;
            batch.memory.extend(this.memory.clone());
        }
        if !batch.message.responses.is_empty() {
            return Poll::Ready(Some(Ok(batch)));
        }
        match this.end.take() {
            Some(status) => {
                this.is_over = true;
                Poll::Ready(Some(Err(*status)))
            }
            None if this.is_over => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

/// Returns the bytes of an answer, approximately: its exact length is computed where it is encoded.
fn bytes_of(response: &Response) -> usize {
    match &response.cmd {
        Some(Done::RawGet(found)) => found.value.len(),
        _ => prost::Message::encoded_len(response),
    }
}

fn empty() -> HeldAnswers {
    Held { message: BatchCommandsResponse::default(), memory: Vec::new() }
}

fn refusal<Q: Call>(
    call: &Q,
    standing: Option<&Standing>,
    is_over_limit: bool,
) -> Option<Q::Answer> {
    let over_limit = || Q::failed(Failure::exceeded(Exceeded::Limit, RegionId(0)));
    let denied = denied(call, standing).map(denial::<Q>);
    denied.or_else(|| is_over_limit.then(over_limit))
}

/// Defines what depends on the type of a command: its execution, the rights that it needs, and its context.
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
                Some(unsupported) => errors::refusal(&unsupported),
                // Command of a newer client: it gets an empty answer, so that the stream does not
                // stall.
                None => Done::Empty(BatchCommandsEmptyResponse::default()),
            };
            Response { cmd: Some(done) }
        }

        /// Returns the answer to a command that its caller may not give.
        fn refused(
            request: &Request,
            standing: Option<&Standing>,
            is_over_limit: bool,
        ) -> Option<Response> {
            let done = match request.cmd.as_ref()? {
                $(Cmd::$name(call) => Done::$name(refusal(call, standing, is_over_limit)?),)*
                // They use no keys, or are not executed.
                _ => return None,
            };
            Some(Response { cmd: Some(done) })
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
    use crate::observe::{Metrics, SlowLog};
    use crate::redis::ScanCursors;
    use crate::stores::Stores;
    use std::time::Duration;
    use stele_types::ClusterId;
    use tokio_stream::StreamExt;

    fn service() -> TikvService {
        let (_, stop) = tokio::sync::watch::channel(false);
        let metrics = Arc::new(Metrics::new(SlowLog::new(0)));
        let cursors = Arc::new(ScanCursors::new(1));
        TikvService::new(Arc::new(Stores::new(1)), ClusterId(1), metrics, cursors, stop)
    }

    fn work(answers: Answers) -> Arc<Work> {
        let connection = ConnectionMemory::new(&NodeMemory::new(0), 0);
        let message = RequestMemory::new(&connection, Class::Data);
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        Arc::new(Work { service: service(), answers, message, _permit: permit })
    }

    fn empty_answer(id: u64) -> Vec<NumberedResponse> {
        vec![(id, Response { cmd: Some(Done::Empty(BatchCommandsEmptyResponse::default())) })]
    }

    #[tokio::test]
    async fn answers_are_not_wanted_when_the_client_is_gone() {
        let (answers, waiting) = mpsc::unbounded_channel();
        drop(Batches::new(service(), waiting));
        let closed = tokio::time::timeout(Duration::from_secs(30), answers.closed()).await;
        closed.expect("commands go on");
    }

    #[tokio::test]
    async fn a_command_that_panics_ends_the_stream_with_an_error() {
        let (answers, waiting) = mpsc::unbounded_channel();
        let mut batches = Batches::new(service(), waiting);
        let work = work(answers.clone());
        answer(&work, work.message.clone(), async { empty_answer(7) }).await;
        let batch = batches.next().await.unwrap().unwrap();
        assert_eq!(batch.message.request_ids, [7]);
        answer(&work, work.message.clone(), async { panic!("a bug") }).await;
        let next = tokio::time::timeout(Duration::from_secs(30), batches.next()).await;
        let status = next.expect("the client waits").unwrap().err().unwrap();
        assert_eq!(status.code(), tonic::Code::Internal);
        assert!(batches.next().await.is_none());
    }

    #[tokio::test]
    async fn answers_hold_their_permits_until_they_are_sent_and_long_ones_come_in_several_messages()
    {
        let (answers, waiting) = mpsc::unbounded_channel();
        let mut batches = Batches::new(service(), waiting);
        let work = work(answers);
        let value = bytes::Bytes::from(vec![7; BATCH_BYTES_MAX / 2 + 1]);
        let get =
            |id| (id, get_done(RawGetResponse { value: value.clone(), ..Default::default() }));
        answer(&work, work.message.clone(), async { (0..5).map(get).collect() }).await;
        let held = Arc::downgrade(&work);
        drop(work);
        assert!(held.upgrade().is_some());
        let mut sent = Vec::new();
        while let Some(batch) = batches.next().await {
            let batch = batch.unwrap();
            assert_eq!(batch.memory.len(), 1);
            sent.push(batch.message.request_ids);
        }
        assert_eq!(sent, [vec![0, 1], vec![2, 3], vec![4]]);
        assert!(held.upgrade().is_none());
    }

    #[tokio::test]
    async fn groups_that_leave_all_their_answers_to_others_do_not_stop_the_stream() {
        let (answers, waiting) = mpsc::unbounded_channel();
        let mut batches = Batches::new(service(), waiting);
        let work = work(answers);
        for _ in 0..ANSWERED_PER_BATCH {
            answer(&work, work.message.clone(), async { Vec::new() }).await;
        }
        answer(&work, work.message.clone(), async { empty_answer(7) }).await;
        let next = tokio::time::timeout(Duration::from_secs(30), batches.next()).await;
        assert_eq!(next.expect("no answer").unwrap().unwrap().message.request_ids, [7]);
    }
}
