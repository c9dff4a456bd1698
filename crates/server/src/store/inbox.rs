//! Queue of a store's loop. Requests are bounded in bytes from acceptance to reply, peer messages
//! while they wait. Above the bound, requests are refused as busy and messages are dropped, which
//! Raft repairs.

use super::{Core, Engine};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use stele_raftstore::{Input, Refusal, Reply, RequestId};
use stele_types::Error;
use tokio::sync::oneshot;

/// Closure run on the core between two iterations of the loop.
pub(super) type CoreCall = Box<dyn FnOnce(&mut Core) + Send>;

/// Item of the queue.
pub(super) enum Item {
    /// Input of the core without a reply.
    Input(Input<Engine>),
    /// Request with the channel of its reply.
    Request { id: RequestId, input: Input<Engine>, answer: oneshot::Sender<Reply> },
    /// Message of a peer, with its size.
    Message { input: Input<Engine>, bytes: u64 },
    /// Closure to run on the core.
    CoreCall(CoreCall),
    /// The engine stopped; the loop stops too.
    Stopped(Error),
}

impl Item {
    /// Answers a request that the loop does not take.
    pub fn refuse(self) {
        if let Self::Request { answer, .. } = self {
            // The caller may have gone.
            let _ = answer.send(Reply::Refused(Refusal::StoreStopped));
        }
    }
}

#[derive(Default)]
struct State {
    items: Vec<Item>,
    stopped: bool,
}

/// Queue of one store's loop.
pub(super) struct Inbox {
    state: Mutex<State>,
    filled: Condvar,
    request_bytes: AtomicU64,
    message_bytes: AtomicU64,
    bytes_max: u64,
}

/// Bytes of a request in progress; released when dropped.
pub(super) struct Permit {
    inbox: Arc<Inbox>,
    bytes: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.inbox.request_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

impl Inbox {
    pub fn new(bytes_max: u64) -> Self {
        Self {
            state: Mutex::default(),
            filled: Condvar::new(),
            request_bytes: AtomicU64::new(0),
            message_bytes: AtomicU64::new(0),
            bytes_max,
        }
    }

    /// Admits a request of `bytes`; `None` above the limit. A single request is always admitted,
    /// whatever its size.
    pub fn admit(self: &Arc<Self>, bytes: u64) -> Option<Permit> {
        let before = self.request_bytes.fetch_add(bytes, Relaxed);
        if before > 0 && before + bytes > self.bytes_max {
            self.request_bytes.fetch_sub(bytes, Relaxed);
            return None;
        }
        Some(Permit { inbox: self.clone(), bytes })
    }

    /// Returns the bytes of requests in progress.
    pub fn request_bytes(&self) -> u64 {
        self.request_bytes.load(Relaxed)
    }

    /// Queues an item; false when the loop has stopped.
    pub fn push(&self, item: Item) -> bool {
        let mut state = self.state.lock();
        if state.stopped {
            return false;
        }
        state.items.push(item);
        let was_empty = state.items.len() == 1;
        drop(state);
        if was_empty {
            self.filled.notify_one();
        }
        true
    }

    /// Queues a peer's message; false if it was dropped because too many wait.
    pub fn push_message(&self, input: Input<Engine>, bytes: u64) -> bool {
        let before = self.message_bytes.fetch_add(bytes, Relaxed);
        let fits = before == 0 || before + bytes <= self.bytes_max;
        if fits && self.push(Item::Message { input, bytes }) {
            return true;
        }
        self.message_bytes.fetch_sub(bytes, Relaxed);
        false
    }

    /// Moves all items to `into`, after waiting up to `at_most` for the first; false when stopped
    /// and empty.
    pub fn take(&self, into: &mut Vec<Item>, at_most: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        if state.items.is_empty() && !state.stopped {
            match at_most {
                Some(limit) if limit.is_zero() => {}
                Some(limit) => {
                    self.filled.wait_for(&mut state, limit);
                }
                None => self.filled.wait(&mut state),
            }
        }
        std::mem::swap(&mut state.items, into);
        let more = !state.stopped || !into.is_empty();
        drop(state);
        for item in into.iter() {
            if let Item::Message { bytes, .. } = item {
                self.message_bytes.fetch_sub(*bytes, Relaxed);
            }
        }
        more
    }

    /// Refuses the requests that still wait when the loop has ended: it did not take them, so they
    /// have no effect.
    pub fn refuse_all(&self) {
        std::mem::take(&mut self.state.lock().items).into_iter().for_each(Item::refuse);
    }

    /// Refuses further items; those that wait are still taken.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.filled.notify_all();
    }
}
