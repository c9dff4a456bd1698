//! Threads of one store. The loop takes turns and carries out what each turn orders. Beside it, so
//! that it goes on with its items meanwhile, one thread writes its batches, some read the pairs of
//! keys for modifications, and one does maintenance in slices, as [`Maintenance`] decides.

use super::space_watch::{Change, SpaceWatch};
use super::{Caller, OutputSink, spawn};
use crate::tasks::Thread;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;
use stele_replica::{
    Append, CarryOut, Ended, Event, Input, Item, Lookup, Maintenance, Now, PeerMessage, Queue,
    Reply, SendSnapshot, SlowWriters, StoreLoop,
};
use stele_storage::{EngineView, StorageEngine};
use stele_types::{Clock, Result, StoreId};

pub(super) struct Inbox<E: StorageEngine> {
    pub queue: Queue<E, Caller>,
    thread: OnceLock<std::thread::Thread>,
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

/// The loop's end of the writer: at most one batch is under way.
pub(super) struct Writer<E: StorageEngine> {
    batches: Sender<(Append, std::thread::Thread)>,
    written: Receiver<Input<E>>,
    is_writing: bool,
}

impl<E: StorageEngine + 'static> Writer<E> {
    /// Starts the thread. It ends when the writer is dropped.
    pub(super) fn start(store: StoreId, engine: Arc<E>) -> Result<(Self, JoinHandle<()>)> {
        let (batches, taken) = channel::<(Append, std::thread::Thread)>();
        let (done, written) = channel();
        let thread = spawn(Thread::Write, store, move || {
            while let Ok((Append { ticket, batch }, store_loop)) = taken.recv() {
                let result = engine.append(&batch);
                // The loop may have ended.
                let _ = done.send(Input::Appended { ticket, result });
                store_loop.unpark();
            }
        })?;
        Ok((Self { batches, written, is_writing: false }, thread))
    }

    /// Hands over a batch; the calling thread is woken when it is written.
    pub(super) fn write(&mut self, append: Append) {
        self.is_writing = self.batches.send((append, std::thread::current())).is_ok();
    }

    pub(super) fn is_writing(&self) -> bool {
        self.is_writing
    }

    pub(super) fn written(&mut self) -> Option<Input<E>> {
        let written = self.written.try_recv();
        if !matches!(written, Err(TryRecvError::Empty)) {
            self.is_writing = false;
        }
        written.ok()
    }
}

/// Threads of a store. Each waits for one read of the device at a time.
const THREADS: usize = 4;

/// The loop's end of the threads. The core bounds the lookups without a result.
pub(super) struct Lookups {
    waiting: Sender<Lookup>,
}

impl Lookups {
    /// Starts the threads. They end when the lookups are dropped.
    pub(super) fn start<E>(
        store: StoreId,
        engine: &Arc<E>,
        inbox: &Arc<Inbox<E>>,
    ) -> Result<(Self, Vec<JoinHandle<()>>)>
    where
        E: StorageEngine + 'static,
    {
        let (waiting, taken) = channel();
        let taken = Arc::new(Mutex::new(taken));
        let threads = (0..THREADS).map(|_| {
            let (taken, engine, inbox) = (taken.clone(), engine.clone(), inbox.clone());
            spawn(Thread::Lookup, store, move || {
                while let Some(lookup) = next(&taken) {
                    let result = engine.view().and_then(|view| view.get(&lookup.key));
                    inbox.push(Item::Input(Input::Found { lookup, result }));
                }
            })
        });
        Ok((Self { waiting }, threads.collect::<Result<_>>()?))
    }

    /// Hands over a lookup. Its result comes through the inbox.
    pub(super) fn begin(&self, lookup: Lookup) {
        // A thread that panics ends the process.
        let _ = self.waiting.send(lookup);
    }
}

/// Waits for a lookup; `None` at the end. One thread waits in the channel, the others for the lock.
fn next(taken: &Mutex<Receiver<Lookup>>) -> Option<Lookup> {
    taken.lock().recv().ok()
}

/// Bytes of one slice; between slices the thread checks whether to stop.
const SLICE_BYTES: u64 = 1 << 20;

/// Work of one stage since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageWork {
    /// Slices that did work.
    pub slices: u64,
    /// Bytes read and written; for `reclaim`, bytes freed.
    pub bytes: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counts(Mutex<BTreeMap<&'static str, StageWork>>);

impl Counts {
    fn record(&self, stage: &'static str, bytes: u64) {
        let mut stages = self.0.lock();
        let done = stages.entry(stage).or_default();
        done.slices += 1;
        done.bytes += bytes;
    }

    pub(super) fn all(&self) -> Vec<(&'static str, StageWork)> {
        self.0.lock().iter().map(|(stage, done)| (*stage, *done)).collect()
    }
}

pub(super) fn maintain<E: StorageEngine>(
    engine: &E,
    running: &AtomicBool,
    wants_checkpoint: &AtomicBool,
    inbox: &Inbox<E>,
    counts: &Counts,
    space: &SpaceWatch,
    (clock, writers): (&dyn Clock, &SlowWriters),
) {
    let mut maintenance = Maintenance::default();
    while running.load(Ordering::Acquire) {
        let began_nanos = clock.monotonic_nanos();
        let slice = match maintenance.slice(engine, wants_checkpoint, SLICE_BYTES) {
            Ok(slice) => slice,
            Err(error) => {
                inbox.push(Item::Stopped(error));
                return;
            }
        };
        match space.note(engine.space()) {
            Some(Change::Full(text)) => tracing::warn!("{text}"),
            Some(Change::HasRoom(text)) => tracing::info!("{text}"),
            None => {}
        }
        if slice.has_new_damage {
            inbox.push(Item::Input(Input::Damaged));
        }
        let nanos = clock.monotonic_nanos().saturating_sub(began_nanos);
        writers.maintained(slice.work.map(|done| (done.bytes, nanos)), engine.pressure());
        match slice.work {
            Some(done) => counts.record(done.stage, done.bytes),
            None if slice.pause_nanos == 0 => {}
            None => std::thread::sleep(Duration::from_nanos(slice.pause_nanos)),
        }
    }
}
