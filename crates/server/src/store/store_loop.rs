//! Thread of one store's loop: turns, and what each turn orders.

use super::lookups::Lookups;
use super::writer::Writer;
use super::{Caller, OutputSink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;
use stele_replica::{Append, Event, Lookup, Now, PeerMessage, Reply, SendSnapshot};
use stele_replica::{CarryOut, Ended, Item, Queue, StoreLoop};
use stele_storage::StorageEngine;
use stele_types::Clock;

/// Queue of a store's loop, and its thread to wake.
pub(super) struct Inbox<E: StorageEngine> {
    pub queue: Queue<E, Caller>,
    thread: OnceLock<Thread>,
}

impl<E: StorageEngine> Inbox<E> {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { queue: Queue::new(bytes_max), thread: OnceLock::new() }
    }

    /// Queues an item; `false` when the loop has stopped.
    pub(super) fn push(&self, item: Item<E, Caller>) -> bool {
        let pushed = self.queue.push(item);
        self.wake(pushed == Some(true));
        pushed.is_some()
    }

    /// Wakes the loop if the queue was empty: otherwise it has been woken.
    pub(super) fn wake(&self, was_empty: bool) {
        if was_empty && let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Refuses further items; those that wait are still taken.
    pub(super) fn stop(&self) {
        self.queue.stop();
        self.wake(true);
    }
}

pub(super) struct LoopThread<E: StorageEngine> {
    pub store_loop: StoreLoop<E, Caller>,
    pub writer: Writer<E>,
    pub lookups: Lookups,
    pub inbox: Arc<Inbox<E>>,
    pub clock: Arc<dyn Clock>,
    pub sink: Arc<dyn OutputSink<E>>,
    /// Set when the core needs a checkpoint, for the maintenance thread.
    pub wants_checkpoint: Arc<AtomicBool>,
}

impl<E: StorageEngine + 'static> LoopThread<E> {
    /// Runs until stopped. An error ends the store; durable data stays.
    pub(super) fn run(mut self) -> Result<(), Ended<Caller>> {
        // Set before the first wait: a later push finds the thread.
        let _ = self.inbox.thread.set(std::thread::current());
        let mut items = Vec::new();
        loop {
            let turn = self.store_loop.turn(&mut items, self.now())?;
            turn.carry_out(&mut self);
            if !self.wait(&mut items) {
                break;
            }
        }
        answer_all(self.store_loop.end());
        Ok(())
    }

    /// Waits for items or the next tick. Returns `false` when the queue is stopped and empty.
    fn wait(&mut self, items: &mut Vec<Item<E, Caller>>) -> bool {
        loop {
            items.extend(self.writer.written().map(Item::Input));
            if !self.inbox.queue.take(items) && items.is_empty() && !self.writer.is_writing() {
                return false;
            }
            if !items.is_empty() {
                return true;
            }
            match self.store_loop.next_turn_nanos() {
                Some(due) => {
                    let nanos = due.saturating_sub(self.clock.monotonic_nanos());
                    if nanos == 0 {
                        return true;
                    }
                    std::thread::park_timeout(Duration::from_nanos(nanos));
                }
                None => std::thread::park(),
            }
        }
    }

    fn now(&self) -> Now {
        Now {
            monotonic_nanos: self.clock.monotonic_nanos(),
            unix_seconds: self.clock.unix_seconds(),
        }
    }
}

impl<E: StorageEngine + 'static> CarryOut<E, Caller> for LoopThread<E> {
    fn send(&mut self, messages: Vec<PeerMessage>) {
        self.sink.send(messages);
    }

    fn append(&mut self, append: Append) {
        self.writer.write(append);
    }

    fn reply(&mut self, replies: Vec<(Caller, Reply)>) {
        answer_all(replies);
    }

    fn send_snapshot(&mut self, snapshot: SendSnapshot<E>) {
        self.sink.send_snapshot(snapshot);
    }

    fn look_up(&mut self, lookup: Lookup) {
        self.lookups.begin(lookup);
    }

    fn handle(&mut self, events: Vec<Event>) {
        self.sink.events(events);
    }

    fn want_checkpoint(&mut self) {
        self.wants_checkpoint.store(true, Ordering::Release);
    }
}

pub(super) fn answer_all(replies: Vec<(Caller, Reply)>) {
    replies.into_iter().for_each(|(caller, reply)| caller.answer(reply));
}
