//! Queue of a store's loop. Requests are bounded in bytes from acceptance to reply, peer messages
//! while they wait. Above the bound, requests are refused as busy and messages are dropped, which
//! Raft repairs.

use crate::{
    Body, Busy, Input, PeerMessage, RaftKind, RaftStore, Refusal, Reply, Request, RequestId,
};
use parking_lot::Mutex;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use stele_storage::StorageEngine;
use stele_types::Error;

const REQUEST_OVERHEAD_BYTES: u64 = 256;
/// Capacity that an empty list of items keeps.
const PLACES_KEPT_MAX: usize = 1024;

/// Closure run on the core between two turns.
pub type CoreCall<E> = Box<dyn FnOnce(&mut RaftStore<E>) + Send>;

/// Item of the queue. `A` names the caller that gets a request's reply.
pub enum Item<E: StorageEngine, A> {
    /// Input of the core without a reply.
    Input(Input<E>),
    /// Request, with its caller.
    Request {
        /// Id of the request.
        id: RequestId,
        /// The request.
        request: Request,
        /// Caller that gets the reply.
        caller: A,
        /// The request's share of the bound.
        admitted: Admitted,
    },
    /// Message of a peer, with its size.
    Message {
        /// The message.
        message: PeerMessage,
        /// Its size in bytes.
        bytes: u64,
    },
    /// Closure to run on the core.
    Call(CoreCall<E>),
    /// The engine stopped; the loop stops too.
    Stopped(Error),
}

impl<E: StorageEngine, A> Item<E, A> {
    /// Returns whether the item may wait for the end of the write under way: entries of a leader are
    /// written after it.
    fn waits_for_write(&self) -> bool {
        let Self::Message { message, .. } = self else { return false };
        matches!(&message.body, Body::Raft(raft) if raft.kind == RaftKind::Append)
    }

    /// Returns the caller of a request that the loop did not take, with its refusal.
    pub fn refused(self) -> Option<(A, Reply)> {
        match self {
            Self::Request { caller, .. } => Some((caller, Reply::Refused(Refusal::StoreStopped))),
            _ => None,
        }
    }
}

/// Request to queue.
pub struct Submission<A> {
    /// The request.
    pub request: Request,
    /// Caller that gets the reply.
    pub caller: A,
    /// Kept until the outcome of the request is known, also if its caller does not wait for it.
    pub memory: MemoryGuard,
}

/// Request that was not taken into the queue: it has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotTaken<A> {
    /// Its caller.
    pub caller: A,
    /// The loop has stopped; otherwise too many bytes are in progress.
    pub is_stopped: bool,
}

impl<A> NotTaken<A> {
    /// Returns the reply to the request.
    pub fn reply(&self) -> Reply {
        let reason = "too many bytes of requests in progress";
        match self.is_stopped {
            true => Reply::Refused(Refusal::StoreStopped),
            false => Reply::Busy(Busy::Wait { reason }),
        }
    }
}

/// Owner of memory that a request uses until its outcome is known.
pub type MemoryGuard = Option<Arc<dyn Any + Send + Sync>>;

/// Share of a request in the bound; released when dropped.
pub struct Admitted {
    request_bytes: Arc<AtomicU64>,
    bytes: u64,
    /// Dropped with the share.
    _memory: MemoryGuard,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.request_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

struct State<E: StorageEngine, A> {
    items: Vec<Item<E, A>>,
    /// Whether the loop was woken since it took items.
    is_woken: bool,
    is_writing: bool,
    is_stopped: bool,
}

/// Queue of one store's loop. Its owner wakes the loop when a call returns that it must be woken.
///
/// Invariant: the loop is woken for each item once, or the end of the write under way wakes it. What it
/// could only put aside until then does not wake it: a follower turns once for all entries that came during
/// a write.
/// Test: `entries_that_come_during_a_write_wake_no_loop_and_all_else_does`.
///
/// Invariant: what one call queues is taken by one turn. A loop that turns meanwhile would make two turns,
/// writes and messages of it.
/// Test: `what_is_queued_together_is_taken_together`.
pub struct Queue<E: StorageEngine, A> {
    state: Mutex<State<E, A>>,
    /// Whether items wait or the queue is stopped. Changed under the lock of `state` only.
    ///
    /// It begins as true, so that the first [`Queue::take`] locks: an item that came before the owner
    /// could wake the loop woke nothing.
    is_due: AtomicBool,
    next_request: AtomicU64,
    request_bytes: Arc<AtomicU64>,
    message_bytes: AtomicU64,
    bytes_max: u64,
}

impl<E: StorageEngine, A> Queue<E, A> {
    /// Creates the queue: `bytes_max` for requests in progress, and again for waiting messages.
    pub fn new(bytes_max: u64) -> Self {
        let items = Vec::new();
        let state = State { items, is_woken: false, is_writing: false, is_stopped: false };
        Self {
            state: Mutex::new(state),
            is_due: AtomicBool::new(true),
            next_request: AtomicU64::new(1),
            request_bytes: Arc::default(),
            message_bytes: AtomicU64::new(0),
            bytes_max,
        }
    }

    /// Returns the bytes of requests in progress.
    pub fn request_bytes(&self) -> u64 {
        self.request_bytes.load(Relaxed)
    }

    /// Adds an item. Returns whether the loop must be woken.
    fn add(&self, state: &mut State<E, A>, item: Item<E, A>) -> bool {
        let is_writing = state.is_writing;
        // bug replica.entries_wake_no_loop: let is_writing = true;
        let needs_no_wake = state.is_woken || is_writing && item.waits_for_write();
        state.is_woken |= !needs_no_wake;
        state.items.push(item);
        self.is_due.store(true, Relaxed);
        !needs_no_wake
    }

    /// Queues a request. Returns whether the loop must be woken.
    pub fn submit(
        &self,
        request: Request,
        caller: A,
        memory: MemoryGuard,
    ) -> Result<bool, NotTaken<A>> {
        let mut state = self.state.lock();
        self.take_in(&mut state, Submission { request, caller, memory })
    }

    /// Queues requests in order, and gives each its id. Returns whether the loop must be woken, and the
    /// requests that were not taken.
    pub fn submit_all(
        &self,
        requests: impl IntoIterator<Item = Submission<A>>,
    ) -> (bool, Vec<NotTaken<A>>) {
        let (mut wakes, mut not_taken) = (false, Vec::new());
        let mut state = self.state.lock();
        for submission in requests {
            match self.take_in(&mut state, submission) {
                Ok(needs_wake) => wakes |= needs_wake,
                Err(refused) => not_taken.push(refused),
            }
        }
        (wakes, not_taken)
    }

    fn take_in(
        &self,
        state: &mut State<E, A>,
        Submission { request, caller, memory }: Submission<A>,
    ) -> Result<bool, NotTaken<A>> {
        let is_stopped = state.is_stopped;
        let id = RequestId(self.next_request.fetch_add(1, Relaxed));
        let admitted = self.admit(request.bytes() + REQUEST_OVERHEAD_BYTES, memory);
        let Some(admitted) = admitted.filter(|_| !is_stopped) else {
            return Err(NotTaken { caller, is_stopped });
        };
        Ok(self.add(state, Item::Request { id, request, caller, admitted }))
    }

    /// Admits a request of `bytes`; `None` above the limit. A single request is always admitted,
    /// whatever its size.
    fn admit(&self, bytes: u64, memory: MemoryGuard) -> Option<Admitted> {
        let before = self.request_bytes.fetch_add(bytes, Relaxed);
        let admitted =
            Admitted { request_bytes: self.request_bytes.clone(), bytes, _memory: memory };
        let is_above = before > 0 && before + bytes > self.bytes_max;
        // bug replica.admit_all: `!is_above` is `true`
        (!is_above).then_some(admitted)
    }

    /// Queues an item and returns whether the loop must be woken; `None` when it has stopped. For
    /// requests see [`Queue::submit_all`].
    pub fn push(&self, item: Item<E, A>) -> Option<bool> {
        let mut state = self.state.lock();
        if state.is_stopped {
            return None;
        }
        Some(self.add(&mut state, item))
    }

    /// Queues messages of peers, each with its bytes, in order. Drops those for which too many wait, and
    /// all when the loop has stopped. Returns whether the loop must be woken.
    pub fn push_messages(&self, messages: impl IntoIterator<Item = (PeerMessage, u64)>) -> bool {
        let mut wakes = false;
        let mut state = self.state.lock();
        for (message, bytes) in messages {
            let before = self.message_bytes.load(Relaxed);
            let fits = before == 0 || before + bytes <= self.bytes_max;
            if fits && !state.is_stopped {
                self.message_bytes.fetch_add(bytes, Relaxed);
                wakes |= self.add(&mut state, Item::Message { message, bytes });
            }
            // bug replica.taken_in_part: parking_lot::MutexGuard::unlocked(&mut state, std::thread::yield_now);
        }
        wakes
    }

    /// Sets whether a write is under way, of which the end wakes the loop. Only the loop calls it, and
    /// after the end before it takes items.
    pub fn set_writing(&self, is_writing: bool) {
        // Under the lock: an item added before the end is found by the next take.
        self.state.lock().is_writing = is_writing;
    }

    /// Appends all items to `into`. Returns `false` when the queue is stopped and was empty.
    pub fn take(&self, into: &mut Vec<Item<E, A>>) -> bool {
        // Relaxed: a loop that does not see an item here parks. The first item after a take set the
        // flag before its caller unparks the loop, and `park` returns with all that was before.
        if !self.is_due.load(Relaxed) {
            return true;
        }
        let before = into.len();
        let is_stopped = {
            let mut state = self.state.lock();
            self.is_due.store(state.is_stopped, Relaxed);
            state.is_woken = false;
            match into.is_empty() {
                // The two lists keep their memory in turn, less what a burst needed.
                true => {
                    std::mem::swap(&mut state.items, into);
                    state.items.shrink_to(PLACES_KEPT_MAX);
                }
                false => into.append(&mut state.items),
            }
            state.is_stopped
        };
        let message_bytes = into.iter().skip(before).map(|item| match item {
            Item::Message { bytes, .. } => *bytes,
            _ => 0,
        });
        self.message_bytes.fetch_sub(message_bytes.sum(), Relaxed);
        !is_stopped || into.len() > before
    }

    /// Refuses further items; those that wait are still taken.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        state.is_stopped = true;
        self.is_due.store(true, Relaxed);
    }

    /// Stops the queue when the loop has ended, and returns the refusals of the requests that still
    /// waited: the loop did not take them, so they have no effect.
    pub fn refuse_all(&self) -> Vec<(A, Reply)> {
        self.stop();
        let items = std::mem::take(&mut self.state.lock().items);
        items.into_iter().filter_map(Item::refused).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Header, RaftMessage, Write};
    use bytes::Bytes;
    use stele_conformance::ModelEngine;
    use stele_types::{StoreId, Term};

    #[test]
    fn memory_of_a_request_is_kept_until_its_outcome_is_known() {
        let queue = Queue::<ModelEngine, u8>::new(1000);
        let memory = Arc::new(7);
        queue.submit(write(1), 1, Some(memory.clone())).unwrap();
        let mut items = Vec::new();
        queue.take(&mut items);
        assert_eq!(Arc::strong_count(&memory), 2);
        items.clear();
        assert_eq!(Arc::strong_count(&memory), 1);
    }

    fn write(bytes: usize) -> Request {
        let (header, command) = (Header::default(), Bytes::from(vec![0; bytes]));
        Write { header, command, only_deletes: false }.into()
    }

    // Catalogue: 63, 64.
    #[test]
    fn requests_above_the_bound_are_busy_until_others_are_answered_and_one_is_always_taken() {
        let queue = Queue::<ModelEngine, u8>::new(1000);
        assert_eq!(queue.submit(write(5000), 1, None), Ok(true), "one, whatever its size");
        let is_busy = |pushed: Result<bool, NotTaken<u8>>| {
            matches!(pushed.unwrap_err().reply(), Reply::Busy(_))
        };
        assert!(is_busy(queue.submit(write(1), 2, None)));
        let mut items = Vec::new();
        assert!(queue.take(&mut items));
        assert!(is_busy(queue.submit(write(1), 3, None)), "in progress");
        items.clear();
        assert_eq!(queue.request_bytes(), 0);
        assert_eq!(queue.submit(write(1), 4, None), Ok(true));
        assert_eq!(queue.submit(write(1), 5, None), Ok(false));
    }

    fn message(kind: RaftKind) -> PeerMessage {
        let body = Body::Raft(RaftMessage::new(kind, Term(3)));
        PeerMessage::between_stores(StoreId(1), StoreId(2), body)
    }

    #[test]
    fn entries_that_come_during_a_write_wake_no_loop_and_all_else_does() {
        let queue = Queue::<ModelEngine, u8>::new(1 << 20);
        let mut items = Vec::new();
        let entries = || queue.push_messages([(message(RaftKind::Append), 100)]);
        queue.set_writing(true);
        assert_eq!((entries(), entries()), (false, false));
        assert!(queue.push_messages([(message(RaftKind::Heartbeat), 100)]));
        assert_eq!(queue.submit(write(1), 1, None), Ok(false), "it was woken");
        assert!(queue.take(&mut items));
        assert_eq!(items.len(), 4);
        assert!(!entries());
        assert_eq!(queue.submit(write(1), 2, None), Ok(true));
        // The write ended.
        queue.set_writing(false);
        queue.take(&mut items);
        assert_eq!((entries(), entries()), (true, false));
    }

    #[test]
    fn what_is_queued_together_is_taken_together() {
        const TOGETHER: usize = 8;
        let queue = Queue::<ModelEngine, u8>::new(1 << 30);
        std::thread::scope(|scope| {
            let loop_thread = scope.spawn(|| {
                let mut items = Vec::new();
                while queue.take(&mut items) {
                    let (taken, messages) = (items.len(), is_message(&items));
                    assert_eq!((taken % TOGETHER, messages % TOGETHER), (0, 0));
                    items.clear();
                }
            });
            for _ in 0..5_000 {
                let messages = std::iter::repeat_with(|| (message(RaftKind::Append), 100));
                queue.push_messages(messages.take(TOGETHER));
                let request = || Submission { request: write(1), caller: 1, memory: None };
                let (_, not_taken) =
                    queue.submit_all(std::iter::repeat_with(request).take(TOGETHER));
                assert!(not_taken.is_empty());
            }
            queue.stop();
            loop_thread.join().unwrap();
        });
    }

    fn is_message(items: &[Item<ModelEngine, u8>]) -> usize {
        items.iter().filter(|item| matches!(item, Item::Message { .. })).count()
    }

    #[test]
    fn the_memory_of_a_burst_of_items_is_returned() {
        let queue = Queue::<ModelEngine, u8>::new(u64::MAX);
        let mut items = Vec::new();
        for _ in 0..10 * PLACES_KEPT_MAX {
            queue.push(Item::Call(Box::new(|_| {}))).unwrap();
        }
        for _ in 0..3 {
            items.clear();
            queue.push(Item::Call(Box::new(|_| {}))).unwrap();
            queue.take(&mut items);
        }
        assert!(items.capacity() <= 2 * PLACES_KEPT_MAX, "{}", items.capacity());
        assert!(queue.state.lock().items.capacity() <= 2 * PLACES_KEPT_MAX);
    }

    #[test]
    fn every_take_finds_what_came_since_the_last_one_and_the_stop() {
        let queue = Queue::<ModelEngine, u8>::new(1000);
        for bytes in 1..3 {
            let mut items = Vec::new();
            assert!(queue.take(&mut items) && items.is_empty());
            assert_eq!(queue.submit(write(bytes), 1, None), Ok(true));
            assert!(queue.take(&mut items));
            assert_eq!(items.len(), 1);
        }
        queue.stop();
        assert!(!queue.take(&mut Vec::new()) && !queue.take(&mut Vec::new()));
    }

    #[test]
    fn a_stopped_queue_refuses_what_comes_and_what_the_loop_did_not_take() {
        let queue = Queue::<ModelEngine, u8>::new(1000);
        assert_eq!(queue.submit(write(1), 1, None), Ok(true));
        let refused = |caller| (caller, Reply::Refused(Refusal::StoreStopped));
        assert_eq!(queue.refuse_all(), [refused(1)]);
        let not_taken = queue.submit(write(1), 2, None).unwrap_err();
        assert_eq!((not_taken.caller, not_taken.reply()), refused(2));
        assert!(!queue.take(&mut Vec::new()));
        assert_eq!(queue.request_bytes(), 0);
    }
}
