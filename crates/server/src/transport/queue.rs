//! Messages that wait for a connection: bounded in bytes, dropped without a connection.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;
use stele_replica::{Body, PeerMessage, RaftEntry, RaftKind};
use stele_storage::LostEntry;
use stele_types::Peer;
use tokio::sync::Notify;

const MESSAGE_OVERHEAD_BYTES: u64 = size_of::<(PeerMessage, u64)>() as u64;
const ENTRY_OVERHEAD_BYTES: u64 = size_of::<RaftEntry>() as u64;
const FOUND_OVERHEAD_BYTES: u64 = size_of::<(LostEntry, Bytes)>() as u64;
const PLACES_KEPT_MAX: usize = 1024;

/// Returns the approximate bytes of a message.
pub fn message_bytes(message: &PeerMessage) -> u64 {
    let keys = message.range.start.len() + message.range.end.len();
    let body = match &message.body {
        Body::Raft(raft) => {
            let payloads: usize = raft.entries.iter().map(|entry| entry.payload.len()).sum();
            let entries = raft.entries.len() as u64 * ENTRY_OVERHEAD_BYTES;
            (payloads + raft.context.len()) as u64 + entries
        }
        Body::ValueRepairRequest(values) => {
            let keys: usize = values.iter().map(|lost| lost.key.len()).sum();
            keys as u64 + values.len() as u64 * ENTRY_OVERHEAD_BYTES
        }
        Body::ValueRepairReply(pairs) => {
            let bytes: usize = pairs.iter().map(|(key, value)| key.len() + value.len()).sum();
            bytes as u64 + pairs.len() as u64 * ENTRY_OVERHEAD_BYTES
        }
        Body::RangeRepairRequest(range) => (range.start.len() + range.end.len()) as u64,
        Body::RangeRepairReply(found) => {
            let bytes = found.pairs.iter().map(|pair| pair.key.len() + pair.value.len());
            bytes.sum::<usize>() as u64 + found.pairs.len() as u64 * ENTRY_OVERHEAD_BYTES
        }
        Body::EntryRecoveryRequest(lost) => lost.len() as u64 * ENTRY_OVERHEAD_BYTES,
        Body::EntryRecoveryReply(found) => {
            let bytes: usize = found.iter().map(|(_, payload)| payload.len()).sum();
            bytes as u64 + found.len() as u64 * FOUND_OVERHEAD_BYTES
        }
        Body::MergeAnswer(answer) => answer.stores.len() as u64 * size_of::<u64>() as u64,
        Body::Members(members) => members.len() as u64 * size_of::<Peer>() as u64,
        _ => 0,
    };
    MESSAGE_OVERHEAD_BYTES + keys as u64 + body
}

/// Returns whether a message travels with the entries: all others are small and must not wait for
/// them.
pub(super) fn is_data(message: &PeerMessage) -> bool {
    match &message.body {
        Body::Raft(raft) => matches!(raft.kind, RaftKind::Append | RaftKind::AppendResponse),
        Body::ValueRepairReply(_) | Body::RangeRepairReply(_) | Body::EntryRecoveryReply(_) => true,
        _ => false,
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pushed {
    /// Messages dropped because too many wait.
    pub full: usize,
    /// Messages dropped because the queue is closed.
    pub down: usize,
    /// These are the first drops since the queue was empty.
    pub overflowed: bool,
    /// Bytes that wait if none waited before: they are written now, or the task is woken.
    pub begun_bytes: Option<u64>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(PeerMessage, u64)>,
    /// Of waiting messages and of those being written.
    bytes: u64,
    open: bool,
    overflowed: bool,
}

pub(super) struct Queue {
    state: Mutex<State>,
    filled: Notify,
    bytes_max: u64,
}

impl Queue {
    /// Creates an open queue of at most `bytes_max` bytes; a single message always fits.
    pub(super) fn new(bytes_max: u64) -> Self {
        let state = Mutex::new(State { open: true, ..State::default() });
        Self { state, filled: Notify::new(), bytes_max }
    }

    /// Appends the messages that fit.
    pub(super) fn push(&self, messages: impl Iterator<Item = PeerMessage>) -> Pushed {
        let mut pushed = Pushed::default();
        let mut state = self.state.lock();
        if !state.open {
            drop(state);
            pushed.down = messages.count();
            return pushed;
        }
        let was_empty = state.waiting.is_empty();
        let mut accepted_bytes = 0;
        for message in messages {
            let bytes = message_bytes(&message);
            let full = state.bytes > 0 && state.bytes + bytes > self.bytes_max;
            // bug server.queue_unbounded: never
            if full {
                pushed.full += 1;
                continue;
            }
            state.bytes += bytes;
            accepted_bytes += bytes;
            state.waiting.push_back((message, bytes));
        }
        if pushed.full > 0 && !state.overflowed {
            state.overflowed = true;
            pushed.overflowed = true;
        }
        pushed.begun_bytes = Some(accepted_bytes).filter(|bytes| was_empty && *bytes > 0);
        pushed
    }

    /// Wakes the task that waits for [`Queue::filled`], or lets its next wait end at once.
    pub(super) fn wake_task(&self) {
        self.filled.notify_one();
    }

    /// Moves at least one message, then more up to `bytes_max` bytes, to `into`; returns their bytes,
    /// which count until [`Queue::release`].
    pub(super) fn take(&self, bytes_max: u64, into: &mut Vec<PeerMessage>) -> u64 {
        let mut state = self.state.lock();
        let mut taken = 0;
        while let Some((_, bytes)) = state.waiting.front() {
            if taken > 0 && taken + bytes > bytes_max {
                break;
            }
            taken += bytes;
            into.extend(state.waiting.pop_front().map(|(message, _)| message));
        }
        if state.waiting.is_empty() {
            state.waiting.shrink_to(PLACES_KEPT_MAX);
        }
        taken
    }

    /// Releases the bytes of messages that were taken and are written. Returns whether others wait.
    pub(super) fn release(&self, written: u64) -> bool {
        let mut state = self.state.lock();
        state.bytes = state.bytes.saturating_sub(written);
        if state.waiting.is_empty() {
            state.overflowed = false;
        }
        !state.waiting.is_empty()
    }

    pub(super) async fn filled(&self) {
        self.filled.notified().await;
    }

    /// Opens the queue: messages are accepted from now on.
    pub(super) fn open(&self) {
        self.state.lock().open = true;
    }

    /// Closes the queue: drops waiting and further messages. Returns the number that waited.
    /// Messages out with [`Queue::take`] no longer count.
    pub(super) fn close(&self) -> usize {
        let mut state = self.state.lock();
        state.open = false;
        state.bytes = 0;
        state.overflowed = false;
        std::mem::take(&mut state.waiting).len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::common::append;
    use super::*;

    #[test]
    fn beyond_the_bound_messages_are_dropped_and_told_once() {
        let one = message_bytes(&append(1, 2, 1, 1000));
        let queue = Queue::new(3 * one);
        let many = |count| (0..count).map(|i| append(1, 2, i, 1000));
        let begun_bytes = Some(3 * one);
        let pushed = queue.push(many(5));
        assert_eq!(pushed, Pushed { full: 2, overflowed: true, begun_bytes, ..Pushed::default() });
        assert_eq!(queue.push(many(1)), Pushed { full: 1, ..Pushed::default() });
        let mut taken = Vec::new();
        let bytes = queue.take(u64::MAX, &mut taken);
        assert_eq!((taken.len(), bytes), (3, 3 * one));
        assert_eq!(queue.push(many(1)).full, 1, "what is being written counts");
        assert!(!queue.release(bytes));
        let pushed = queue.push(many(4));
        assert_eq!(pushed, Pushed { full: 1, overflowed: true, begun_bytes, ..Pushed::default() });
        assert!(queue.bytes() <= 3 * one);
        let first = queue.take(1, &mut taken);
        assert_eq!((taken.len(), first), (4, one));
        assert!(queue.release(first), "two wait");
    }

    #[test]
    fn one_message_always_fits() {
        let queue = Queue::new(10);
        let bytes = message_bytes(&append(1, 2, 1, 1000));
        let pushed = queue.push([append(1, 2, 1, 1000)].into_iter());
        assert_eq!(pushed, Pushed { begun_bytes: Some(bytes), ..Pushed::default() });
        assert_eq!(queue.take(1, &mut Vec::new()), queue.bytes());
    }

    #[test]
    fn a_closed_queue_holds_nothing() {
        let queue = Queue::new(1 << 20);
        queue.push([append(1, 2, 1, 10), append(1, 2, 2, 10)].into_iter());
        assert_eq!(queue.close(), 2);
        assert_eq!(queue.push([append(1, 2, 3, 10)].into_iter()).down, 1);
        assert_eq!(queue.bytes(), 0);
        queue.open();
        let pushed = queue.push([append(1, 2, 3, 10)].into_iter());
        assert_eq!((pushed.down, pushed.begun_bytes.is_some()), (0, true));
    }
}
