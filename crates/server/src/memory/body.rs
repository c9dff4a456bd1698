//! Bodies of requests: their bytes are charged before they are collected to messages, and their
//! memory then passes from the body to the handler. Compressed messages are unpacked here, so that
//! what they become is charged too.

use super::{Class, ConnectionMemory, Exceeded, RequestMemory};
use crate::access::{OverLimit, Usage, WAIT_MAX};
use axum::body::HttpBody;
use bytes::{BufMut, Bytes, BytesMut};
use flate2::read::GzDecoder;
use http_body::Frame;
use parking_lot::Mutex;
use std::future::Future;
use std::io::Read;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use stele_proto::{Counter, Method};
use tokio::time::{Instant, Sleep, sleep, timeout};
use tonic::Status;

/// Bytes of gRPC's header before each message: a compression flag and the length.
const HEADER_BYTES: usize = 5;
/// Bytes of a body that is not of a method of this node, at most: of a health check, for example.
const PLAIN_BYTES_MAX: u64 = 4 << 20;
/// Bytes by which an unpacked message grows: it doubles at first.
const GROWTH_BYTES_MIN: usize = 64 << 10;
const GROWTH_BYTES_MAX: usize = 8 << 20;
/// Pause between two tries, if no memory is released.
pub(super) const MEMORY_RETRY: Duration = Duration::from_millis(100);

pub(super) struct RequestBody<B> {
    body: B,
    arrived: Arc<Arrived>,
    /// Memory of the request itself, beside its messages.
    request: Arc<RequestMemory>,
    kind: Kind,
    is_gzip: bool,
    /// Bytes that have arrived and are not passed on.
    rest: Bytes,
    limits: Limits,
    /// Time by which the body, or a message of a stream, must be whole.
    deadline: Option<Pin<Box<Sleep>>>,
    waiting: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// End of all such waits of the message.
    wait_until: Option<Instant>,
}

/// Limits of a body.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a message.
    pub message_bytes_max: u64,
    /// Time for a body; for each message of a stream.
    pub time_max: Duration,
    /// Longest wait of a message for memory that other requests use.
    pub memory_wait: Duration,
}

enum Kind {
    Messages(&'static Method, State),
    /// Anything else.
    Plain(PlainBody),
}

/// Bounds of a body without messages, and how much of it has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainBody {
    /// Bytes at most.
    pub bytes_max: u64,
    /// Memory for each byte: also that of what is made of it.
    pub memory_factor: u64,
    /// Bytes that its header announces; 0: none.
    pub announced_bytes: u64,
    arrived_bytes: u64,
    charged_bytes: u64,
}

impl Default for PlainBody {
    fn default() -> Self {
        // A text of a message is copied.
        Self::new(PLAIN_BYTES_MAX, 2, 0)
    }
}

impl PlainBody {
    /// Creates the bounds of a body that has not arrived.
    pub(crate) fn new(bytes_max: u64, memory_factor: u64, announced_bytes: u64) -> Self {
        let (arrived_bytes, charged_bytes) = (0, 0);
        Self { bytes_max, memory_factor, announced_bytes, arrived_bytes, charged_bytes }
    }

    /// Returns whether what is announced is not charged.
    fn is_uncharged(&self) -> bool {
        self.charged_bytes < self.announced_bytes.saturating_mul(self.memory_factor)
    }
}

enum State {
    /// In a header, of which these bytes arrived.
    Header([u8; HEADER_BYTES], usize),
    /// In a message, with the bytes that are missing.
    Message { left: u64, counter: Counter, memory: Arc<RequestMemory> },
    /// In a compressed message, with its bytes so far.
    Compressed { left: u64, packed: BytesMut, memory: Arc<RequestMemory> },
    /// In a message that is refused: its bytes are dropped, so that the client reads the answer. What
    /// was passed on of it still needs its memory.
    Dropped { left: u64, _memory: Arc<RequestMemory> },
}

enum Step {
    Pass(Bytes),
    /// More bytes must arrive, or be processed.
    Continue,
    Wait,
    Fail(Status),
}

impl<B> RequestBody<B> {
    /// Creates the body of a request to `method`, or to another path. With `is_gzip`, messages may be
    /// compressed.
    pub(super) fn new(
        body: B,
        (method, is_gzip, plain): (Option<&'static Method>, bool, PlainBody),
        arrived: Arc<Arrived>,
        request: Arc<RequestMemory>,
        limits: Limits,
    ) -> Self {
        let kind = match method {
            Some(method) => Kind::Messages(method, State::Header([0; HEADER_BYTES], 0)),
            None => Kind::Plain(plain),
        };
        Self {
            body,
            arrived,
            request,
            kind,
            is_gzip,
            rest: Bytes::new(),
            limits,
            deadline: None,
            waiting: None,
            wait_until: None,
        }
    }

    #[cfg(test)]
    pub(super) fn with_bounds(self, plain: PlainBody) -> Self {
        Self { kind: Kind::Plain(plain), ..self }
    }

    fn step(&mut self) -> Step {
        let (method, state) = match &mut self.kind {
            Kind::Plain(plain) => {
                let plain = *plain;
                return self.plain_step(plain);
            }
            Kind::Messages(method, state) => (*method, state),
        };
        match state {
            State::Header(header, have) => {
                let mut ahead = self.rest.clone();
                let (mut header, mut have_ahead) = (*header, *have);
                if !fill(&mut header, &mut have_ahead, &mut ahead) {
                    *state = State::Header(header, have_ahead);
                    self.rest = ahead;
                    return Step::Continue;
                }
                let ahead = HEADER_BYTES - *have;
                self.begin(method, header, ahead)
            }
            State::Message { .. } => self.pass([0; HEADER_BYTES], 0),
            State::Compressed { left, packed, .. } => {
                let piece = self.rest.split_to(piece_bytes(*left, &self.rest));
                *left -= piece.len() as u64;
                packed.extend_from_slice(&piece);
                if *left > 0 { Step::Continue } else { self.unpack(method) }
            }
            State::Dropped { left, .. } => {
                let piece = self.rest.split_to(piece_bytes(*left, &self.rest));
                *left -= piece.len() as u64;
                if *left > 0 { Step::Continue } else { self.end_refused() }
            }
        }
    }

    /// Passes on what arrived of a body without messages.
    ///
    /// Invariant: what a body announces is charged before it is received, and everything before it is passed
    /// on.
    /// Test: `a_body_without_messages_is_charged_before_it_is_received`.
    fn plain_step(&mut self, mut plain: PlainBody) -> Step {
        plain.arrived_bytes += self.rest.len() as u64;
        let bytes = plain.arrived_bytes.max(plain.announced_bytes);
        let wanted = bytes.saturating_mul(plain.memory_factor).max(plain.charged_bytes);
        // bug server.http_bodies_uncharged: `wanted - plain.charged_bytes` is `0`
        let charged = match bytes > plain.bytes_max {
            true => Err(Exceeded::Request { bytes, bytes_max: plain.bytes_max }),
            false => match self.request.try_charge(wanted - plain.charged_bytes) {
                Err(Exceeded::Shared) if self.may_wait() => return Step::Wait,
                charged => charged,
            },
        };
        self.wait_until = None;
        if let Err(exceeded) = charged {
            self.request.note_refused();
            self.arrived.refuse(exceeded);
            return Step::Fail(refused(exceeded));
        }
        plain.charged_bytes = wanted;
        // Nothing is announced twice.
        plain.announced_bytes = bytes;
        self.kind = Kind::Plain(plain);
        match self.rest.is_empty() {
            true => Step::Continue,
            false => Step::Pass(std::mem::take(&mut self.rest)),
        }
    }

    /// Returns whether a step is due without further bytes.
    fn has_to_charge(&self) -> bool {
        matches!(&self.kind, Kind::Plain(plain) if plain.is_uncharged())
    }

    /// Begins the message after a header, of which `ahead` bytes are not consumed. All bytes of the
    /// message are charged before they are collected.
    fn begin(&mut self, method: &'static Method, header: [u8; HEADER_BYTES], ahead: usize) -> Step {
        let [flag, length @ ..] = header;
        let bytes = u64::from(u32::from_be_bytes(length));
        let memory = self.arrived.new_memory();
        let refusal = match (self.arrived.refusal(), bytes > self.limits.message_bytes_max) {
            (Some(exceeded), _) => Some(exceeded),
            (None, true) => {
                Some(Exceeded::Request { bytes, bytes_max: self.limits.message_bytes_max })
            }
            (None, false) => match memory.try_charge(bytes) {
                Ok(()) => None,
                Err(Exceeded::Shared) if self.may_wait() => return Step::Wait,
                Err(exceeded) => Some(exceeded),
            },
        };
        self.wait_until = None;
        if let Some(exceeded) = refusal {
            memory.note_refused();
            drop(self.rest.split_to(ahead));
            return self.refuse(exceeded, bytes, memory);
        }
        match flag {
            0 => {
                self.set(State::Message {
                    left: bytes,
                    counter: Counter::new(method, bytes),
                    memory,
                });
                self.pass(header, ahead)
            }
            1 if self.is_gzip => {
                drop(self.rest.split_to(ahead));
                let packed = BytesMut::with_capacity(bytes as usize);
                self.set(State::Compressed { left: bytes, packed, memory });
                if bytes == 0 { self.unpack(method) } else { Step::Continue }
            }
            1 => Step::Fail(Status::internal("a compressed message without grpc-encoding")),
            other => Step::Fail(Status::internal(format!("compression flag {other}: 0 or 1"))),
        }
    }

    /// Passes on what arrived of a message, after `ahead` bytes of its header.
    fn pass(&mut self, header: [u8; HEADER_BYTES], ahead: usize) -> Step {
        let Kind::Messages(_, State::Message { left, counter, memory }) = &mut self.kind else {
            return Step::Continue;
        };
        let arrived = self.rest.len().saturating_sub(ahead);
        let bytes = (*left).min(arrived as u64);
        let piece = self.rest.split_to(ahead + bytes as usize);
        *left -= bytes;
        let left = *left;
        if let Err(exceeded) = memory.charge(counter.count(piece.get(ahead..).unwrap_or_default()))
        {
            let memory = memory.clone();
            return self.refuse(exceeded, left, memory);
        }
        if left == 0 {
            self.arrived.put(memory.clone());
            self.next_message();
        }
        match ahead {
            0 | HEADER_BYTES => Step::Pass(piece),
            // The header came in two parts.
            _ => {
                let first = header.get(..HEADER_BYTES - ahead).unwrap_or_default();
                Step::Pass([first, &piece[..]].concat().into())
            }
        }
    }

    /// Unpacks a compressed message. Passes it on as one that is not compressed.
    fn unpack(&mut self, method: &'static Method) -> Step {
        let next = State::Header([0; HEADER_BYTES], 0);
        let Kind::Messages(_, state) = &mut self.kind else { return Step::Continue };
        let State::Compressed { packed, memory, .. } = std::mem::replace(state, next) else {
            return Step::Continue;
        };
        self.next_message();
        let packed_bytes = memory.used();
        let message = match unpack(&packed, &memory, self.limits.message_bytes_max) {
            Ok(Ok(message)) => message,
            Ok(Err(exceeded)) => return self.refuse(exceeded, 0, memory),
            Err(error) => {
                return Step::Fail(Status::internal(format!("a message is damaged: {error}")));
            }
        };
        let unpacked_bytes = memory.used() - packed_bytes;
        drop(packed);
        memory.release_to(unpacked_bytes);
        let bytes = message.len().saturating_sub(HEADER_BYTES) as u64;
        let mut counter = Counter::new(method, bytes);
        let counted = counter.count(message.get(HEADER_BYTES..).unwrap_or_default());
        if let Err(exceeded) = memory.charge(counted) {
            return self.refuse(exceeded, 0, memory);
        }
        self.arrived.put(memory);
        Step::Pass(message)
    }

    /// Refuses a message, of which `left` bytes are missing.
    fn refuse(&mut self, exceeded: Exceeded, left: u64, memory: Arc<RequestMemory>) -> Step {
        self.arrived.refuse(exceeded);
        self.set(State::Dropped { left, _memory: memory });
        if left == 0 { self.end_refused() } else { Step::Continue }
    }

    fn end_refused(&self) -> Step {
        Step::Fail(refused(self.arrived.refusal().unwrap_or(Exceeded::Shared)))
    }

    fn set(&mut self, state: State) {
        if let Kind::Messages(_, at) = &mut self.kind {
            *at = state;
        }
    }

    fn next_message(&mut self) {
        self.set(State::Header([0; HEADER_BYTES], 0));
        if self.is_stream() {
            self.deadline = None;
        }
    }

    fn is_stream(&self) -> bool {
        matches!(&self.kind, Kind::Messages(method, _) if method.is_stream())
    }

    /// Returns whether the client must send more: the rest of a body, or of a message of a stream.
    fn is_due(&self) -> bool {
        let is_between = matches!(&self.kind, Kind::Messages(_, State::Header(_, 0)));
        !(self.is_stream() && is_between)
    }

    /// Returns whether the message may wait for memory. What arrives of it meanwhile stays in the
    /// window of its connection, so that it may not while all windows together use up their share.
    fn may_wait(&self) -> bool {
        let has_waited = self.wait_until.is_some_and(|until| Instant::now() >= until);
        !has_waited && !self.request.connection.node.windows.is_used_up()
    }

    /// Waits until memory was released, or for a moment: it may have been released just before.
    fn wait(&mut self) {
        let wait = self.limits.memory_wait;
        self.wait_until.get_or_insert_with(|| Instant::now() + wait);
        let mut released = self.request.released();
        self.waiting = Some(Box::pin(async move {
            // It fails when the node ends.
            let _ = timeout(MEMORY_RETRY, released.changed()).await;
        }));
    }

    fn poll_deadline(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // bug server.body_without_time_limit: always
        if !self.is_due() {
            return Poll::Pending;
        }
        let time_max = self.limits.time_max;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(time_max)));
        deadline.as_mut().poll(context)
    }
}

impl<B> HttpBody for RequestBody<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<axum::BoxError>,
{
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        let this = &mut *self;
        loop {
            if let Some(waiting) = &mut this.waiting {
                ready!(waiting.as_mut().poll(context));
                this.waiting = None;
            }
            if !this.rest.is_empty() || this.wait_until.is_some() || this.has_to_charge() {
                match this.step() {
                    Step::Pass(bytes) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                    Step::Continue => {}
                    Step::Wait => this.wait(),
                    Step::Fail(status) => return Poll::Ready(Some(Err(status.into()))),
                }
                continue;
            }
            match Pin::new(&mut this.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => {
                        this.arrived.note_bytes(&data);
                        this.rest = data;
                    }
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error.into()))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {
                    ready!(this.poll_deadline(context));
                    let seconds = this.limits.time_max.as_secs_f64();
                    let text = format!("the request did not arrive within {seconds} s");
                    return Poll::Ready(Some(Err(Status::deadline_exceeded(text).into())));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.wait_until.is_none() && self.body.is_end_stream()
    }
}

/// Moves bytes into a header; returns whether it is whole.
fn fill(header: &mut [u8; HEADER_BYTES], have: &mut usize, rest: &mut Bytes) -> bool {
    while *have < HEADER_BYTES && !rest.is_empty() {
        let byte = rest.split_to(1);
        if let (Some(to), Some(byte)) = (header.get_mut(*have), byte.first()) {
            *to = *byte;
        }
        *have += 1;
    }
    *have == HEADER_BYTES
}

fn piece_bytes(left: u64, rest: &Bytes) -> usize {
    left.min(rest.len() as u64) as usize
}

/// Returns the message with a header, unpacked, or the reason why it has no memory.
fn unpack(
    packed: &[u8],
    memory: &RequestMemory,
    bytes_max: u64,
) -> std::io::Result<Result<Bytes, Exceeded>> {
    let mut unpacker = GzDecoder::new(packed);
    let mut message = Vec::new();
    message.put_bytes(0, HEADER_BYTES);
    loop {
        if message.len() == message.capacity() || message.len() == HEADER_BYTES {
            if message.len() as u64 > bytes_max {
                break;
            }
            let more = message.capacity().clamp(GROWTH_BYTES_MIN, GROWTH_BYTES_MAX);
            if let Err(exceeded) = memory.charge(more as u64) {
                return Ok(Err(exceeded));
            }
            message.reserve_exact(more);
        }
        let room = message.capacity() - message.len();
        if (&mut unpacker).take(room as u64).read_to_end(&mut message)? == 0 {
            break;
        }
    }
    let bytes = (message.len() - HEADER_BYTES) as u64;
    let Some(length) = u32::try_from(bytes).ok().filter(|_| bytes <= bytes_max) else {
        return Ok(Err(Exceeded::Request { bytes, bytes_max }));
    };
    for (to, byte) in message.iter_mut().skip(1).zip(length.to_be_bytes()) {
        *to = byte;
    }
    Ok(Ok(Bytes::from(message)))
}

fn refused(exceeded: Exceeded) -> Status {
    Status::resource_exhausted(exceeded.to_string())
}

/// Memory of the last whole message of a request: an extension of the request.
#[derive(Debug)]
pub struct Arrived {
    connection: Arc<ConnectionMemory>,
    class: Class,
    /// Account of the caller.
    usage: Option<Arc<Usage>>,
    state: Mutex<ArrivedState>,
}

#[derive(Debug, Default)]
struct ArrivedState {
    /// Invariant: of at most one message. A body delivers the end of a message only when the message
    /// before it was decoded, and a handler that needs its memory for longer has taken it by then.
    message: Option<Arc<RequestMemory>>,
    refusal: Option<Exceeded>,
}

impl Arrived {
    /// Creates it for a request without a message yet.
    pub fn new(
        connection: &Arc<ConnectionMemory>,
        class: Class,
        usage: Option<Arc<Usage>>,
    ) -> Arc<Self> {
        Arc::new(Self { connection: connection.clone(), class, usage, state: Mutex::default() })
    }

    /// Counts a call of one message; returns the time until its turn. Beyond the limits of its caller the
    /// message is refused after that time.
    ///
    /// Invariant: what exceeds the limits of its caller is not refused before the longest wait.
    /// Test: `what_exceeds_a_limit_is_refused_after_the_longest_wait`.
    pub(super) fn take_turn(&self) -> Duration {
        match self.usage.as_ref().map(|usage| usage.admit(1)) {
            Some(Ok(wait)) => wait,
            Some(Err(OverLimit)) => {
                self.refuse(Exceeded::Limit);
                // bug server.calls_are_refused_at_once: `WAIT_MAX` is `Duration::ZERO`
                WAIT_MAX
            }
            None => Duration::ZERO,
        }
    }

    /// Counts bytes that were received or sent.
    pub(super) fn note_bytes(&self, bytes: &Bytes) {
        if let Some(usage) = &self.usage {
            usage.note_bytes(bytes.len() as u64);
        }
    }

    /// Takes the memory of the message that was decoded last.
    pub fn take(&self) -> Arc<RequestMemory> {
        let taken = self.state.lock().message.take();
        taken.unwrap_or_else(|| self.new_memory())
    }

    /// Returns the reason if a message was refused. Its bytes were dropped.
    pub fn refusal(&self) -> Option<Exceeded> {
        self.state.lock().refusal
    }

    pub(super) fn new_memory(&self) -> Arc<RequestMemory> {
        RequestMemory::new(&self.connection, self.class)
    }

    pub(super) fn put(&self, message: Arc<RequestMemory>) {
        self.state.lock().message = Some(message);
    }

    pub(super) fn refuse(&self, exceeded: Exceeded) {
        self.state.lock().refusal = Some(exceeded);
    }
}
