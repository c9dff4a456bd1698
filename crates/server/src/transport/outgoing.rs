//! What is sent on one lane of a node: a queue, and the half of the connection that is written.
//!
//! The thread that sends writes itself when no write is under way: it encodes what it queued and tries the
//! socket once, without a wait. Otherwise, and for what the socket did not take, the task of the connection
//! writes (`link.rs`), by the same steps. A task costs a wake-up, a switch between threads, and time.

use super::batch::FrameBatch;
use super::closed::CloseReason;
use super::frame::FrameKind;
use super::hello::Lane;
use super::node::RemoteNode;
use super::queue::{Pushed, Queue};
use super::shared::{Shared, Stats};
use crate::access::SocketWriter;
use parking_lot::Mutex;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker, ready};
use stele_replica::PeerMessage;
use stele_types::checksum::crc32c;
use tokio::sync::Notify;

/// Most bytes that the thread that sends encodes and writes itself: about the time of a wake-up on
/// each side, so that it can go on with its own work.
const OWN_BYTES_MAX: u64 = 128 << 10;

/// Where the messages of a link go.
#[derive(Clone, Copy)]
pub(super) struct Sending<'a> {
    pub shared: &'a Shared,
    pub node: &'a RemoteNode,
    pub lane: Lane,
}

/// Connection of one lane, and what waits for it.
///
/// Invariant: messages leave in the order in which they were queued. A batch is taken from the queue and
/// written under one lock, and none is taken before the last one is written.
/// Test: `messages_of_all_sizes_arrive_whole_and_in_order`.
///
/// Invariant: a message that was queued is written by its sender, or the task is woken after it was
/// queued. The sender that finds the queue empty answers for it; later ones rely on the same.
/// Test: `what_a_sender_cannot_write_at_once_is_left_to_the_task`.
pub(super) struct Link {
    pub queue: Queue,
    /// Ends a pause: the node is dialled now.
    pub retry: Notify,
    /// `None` without a connection. A thread that sends never waits for the lock: it is held during
    /// calls of the system, which do not wait either.
    outgoing: Mutex<Option<Outgoing>>,
}

/// Half of a connection that is written.
struct Outgoing {
    socket: SocketWriter,
    /// What is being written; without frames while nothing is.
    batch: FrameBatch,
    messages: Vec<PeerMessage>,
    /// Bytes in the queue's account of the messages of the batch; 0 for a keepalive.
    taken_bytes: u64,
}

/// Result of one call that wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing waits.
    Idle,
    /// A part of a batch was written.
    Part,
    /// The rest of a batch was written, and others wait or none do.
    Written { others_wait: bool },
}

impl Link {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { queue: Queue::new(bytes_max), retry: Notify::new(), outgoing: Mutex::new(None) }
    }

    /// Sets the connection, for the time of the result.
    pub(super) fn connect(&self, socket: SocketWriter, batch: FrameBatch) -> LinkGuard<'_> {
        let outgoing = Outgoing { socket, batch, messages: Vec::new(), taken_bytes: 0 };
        *self.outgoing.lock() = Some(outgoing);
        LinkGuard(self)
    }

    /// Sends messages in order, without a wait: they are written, or wait for the task.
    pub(super) fn send(
        &self,
        messages: impl Iterator<Item = PeerMessage>,
        to: Sending<'_>,
    ) -> Pushed {
        let pushed = self.queue.push(messages);
        if let Some(bytes) = pushed.begun_bytes {
            // bug server.task_writes_all: let bytes = u64::MAX;
            let is_written = bytes <= OWN_BYTES_MAX && self.write_now(to);
            if !is_written {
                self.queue.wake_task();
            }
        }
        pushed
    }

    /// Writes one batch if no write is under way. Returns whether nothing is left to write; otherwise the
    /// task must be woken.
    fn write_now(&self, to: Sending<'_>) -> bool {
        let Some(mut outgoing) = self.outgoing.try_lock() else { return false };
        // Invariant: while a write is under way, the task waits for the socket, and no other thread
        // asks the socket: it wakes only the last that did.
        // Test: `what_a_sender_cannot_write_at_once_is_left_to_the_task`.
        let idle = outgoing.as_mut().filter(|it| it.is_idle());
        // bug server.sender_joins_a_write: let idle = outgoing.as_mut();
        let Some(outgoing) = idle else { return false };
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            match outgoing.poll_step(&mut cx, &self.queue, to) {
                Poll::Ready(Ok(Step::Part)) => {}
                Poll::Ready(Ok(Step::Written { others_wait })) => return !others_wait,
                Poll::Ready(Ok(Step::Idle)) => return true,
                // The task meets the error again, and ends the connection.
                // bug server.rest_of_a_write_forgotten: `false` is `true`
                Poll::Ready(Err(_)) | Poll::Pending => return false,
            }
        }
    }

    /// Writes what the socket takes in one call, once it takes some. For the task of the connection.
    pub(super) async fn step(&self, to: Sending<'_>) -> Result<Step, CloseReason> {
        let step = |cx: &mut Context<'_>| match self.outgoing.lock().as_mut() {
            Some(outgoing) => outgoing.poll_step(cx, &self.queue, to),
            None => Poll::Ready(Err(CloseReason::Ended)),
        };
        poll_fn(step).await
    }

    /// Has the next step write a keepalive, unless a write is under way.
    pub(super) fn add_keepalive(&self) {
        if let Some(outgoing) = self.outgoing.lock().as_mut().filter(|it| it.is_idle()) {
            outgoing.batch.add(FrameKind::Alive, b"", Vec::new(), crc32c(b""));
        }
    }
}

impl Outgoing {
    fn is_idle(&self) -> bool {
        self.taken_bytes == 0 && self.batch.frames() == 0
    }

    fn poll_step(
        &mut self,
        cx: &mut Context<'_>,
        queue: &Queue,
        to: Sending<'_>,
    ) -> Poll<Result<Step, CloseReason>> {
        if self.is_idle() {
            self.taken_bytes = queue.take(to.shared.options.batch_bytes_max, &mut self.messages);
            if self.messages.is_empty() {
                return Poll::Ready(Ok(Step::Idle));
            }
            self.encode(to);
        }
        if !ready!(self.batch.poll_write(cx, &mut self.socket))? {
            return Poll::Ready(Ok(Step::Part));
        }
        if self.taken_bytes > 0 {
            self.count(to);
        }
        self.batch.clear();
        let others_wait = queue.release(std::mem::take(&mut self.taken_bytes));
        Poll::Ready(Ok(Step::Written { others_wait }))
    }

    fn encode(&mut self, to: Sending<'_>) {
        let stats = &to.shared.stats;
        let is_sent = |message: &PeerMessage| !to.node.refuses(message.to_store);
        for message in self.messages.drain(..).filter(is_sent) {
            match self.batch.add_message(to.lane, &message) {
                true => Stats::add(&stats.messages_sent, 1),
                false => Stats::add(&stats.dropped_large, 1),
            }
        }
        self.batch.end();
    }

    fn count(&self, to: Sending<'_>) {
        let (stats, batch) = (&to.shared.stats, &self.batch);
        Stats::add(&stats.lane(to.lane).frames_sent, batch.frames());
        Stats::add(&stats.lane(to.lane).bytes_sent, batch.bytes());
        Stats::add(&stats.writes, batch.calls());
        Stats::add(&stats.bytes_sent, batch.bytes());
    }
}

/// Keeps the connection of a link. When it is dropped, the connection is closed.
pub(super) struct LinkGuard<'a>(&'a Link);

impl Drop for LinkGuard<'_> {
    fn drop(&mut self) {
        // bug server.connection_outlives_its_task: skip
        *self.0.outgoing.lock() = None;
    }
}
