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

    /// Wakes the loop, if the queue says that it must be woken.
    pub(super) fn wake(&self, is_needed: bool) {
        if let Some(thread) = self.thread.get().filter(|_| is_needed) {
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
            self.writer.write_own();
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
            let was_writing = self.writer.is_writing();
            items.extend(self.writer.written().map(Item::Input));
            if was_writing && !self.writer.is_writing() {
                // bug server.entries_wait_without_a_write: skip
                self.inbox.queue.set_writing(false);
            }
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
        Now { monotonic_nanos: self.clock.monotonic_nanos(), unix_millis: self.clock.unix_millis() }
    }
}

impl<E: StorageEngine + 'static> CarryOut<E, Caller> for LoopThread<E> {
    fn send(&mut self, messages: Vec<PeerMessage>) {
        self.sink.send(messages);
    }

    fn append(&mut self, append: Append) {
        self.writer.write(append);
        if self.writer.is_writing() {
            self.inbox.queue.set_writing(true);
        }
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

/// Mean time of an append below which the loop writes itself. A hand-over to the writer and back takes
/// 10 microseconds and two wake-ups (decision 0046).
const SHORT_NANOS: u64 = 300_000;
/// Longest batch that the loop writes itself.
const OWN_BYTES_MAX: u64 = 128 << 10;

/// Mean time of the last appends.
#[derive(Debug)]
struct AppendTime(u64);

impl AppendTime {
    /// Nothing is measured: the first batches are handed over.
    const UNKNOWN: Self = Self(16 * SHORT_NANOS);

    fn note(&mut self, nanos: u64) {
        self.0 = self.0 - self.0 / 8 + nanos / 8;
    }

    fn is_short(&self) -> bool {
        self.0 < SHORT_NANOS
    }
}

/// Written batch, with the time that it took.
type Written<E> = (Input<E>, u64);

/// The loop's end of the writer: at most one batch is under way.
///
/// Invariant: while appends are slow, the loop does not wait for one: heartbeats and acknowledgements
/// leave meanwhile. One that is slow although those before were short is waited for once.
/// Test: `a_loop_writes_itself_while_appends_are_short_and_hands_over_while_they_are_not`.
pub(super) struct Writer<E: StorageEngine> {
    engine: Arc<E>,
    clock: Arc<dyn Clock>,
    batches: Sender<(Append, std::thread::Thread)>,
    written: Receiver<Written<E>>,
    /// Batch that the loop writes after what the turn ordered, and its result then.
    own: Option<Append>,
    own_written: Option<Input<E>>,
    is_handed_over: bool,
    time: AppendTime,
}

impl<E: StorageEngine + 'static> Writer<E> {
    /// Starts the thread. It ends when the writer is dropped.
    pub(super) fn start(
        store: StoreId,
        engine: Arc<E>,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, JoinHandle<()>)> {
        let (batches, taken) = channel::<(Append, std::thread::Thread)>();
        let (done, written) = channel();
        let (writes, timer) = (engine.clone(), clock.clone());
        let thread = spawn(Thread::Write, store, move || {
            while let Ok((append, store_loop)) = taken.recv() {
                // The loop may have ended.
                let _ = done.send(write(&*writes, &*timer, append));
                store_loop.unpark();
            }
        })?;
        let (own, own_written) = (None, None);
        let (is_handed_over, time) = (false, AppendTime::UNKNOWN);
        let writer =
            Self { engine, clock, batches, written, own, own_written, is_handed_over, time };
        Ok((writer, thread))
    }

    /// Takes a batch: for [`Writer::write_own`] while appends are short, for the thread otherwise, which
    /// wakes the calling one when it is written.
    pub(super) fn write(&mut self, append: Append) {
        // bug server.loop_waits_for_slow_appends: `self.time.is_short()` is `true`
        if self.time.is_short() && append.batch.payload_bytes() <= OWN_BYTES_MAX {
            self.own = Some(append);
            return;
        }
        self.is_handed_over = self.batches.send((append, std::thread::current())).is_ok();
    }

    /// Writes the batch that was not handed over, on this thread.
    pub(super) fn write_own(&mut self) {
        let Some(append) = self.own.take() else { return };
        let (input, nanos) = write(&*self.engine, &*self.clock, append);
        self.time.note(nanos);
        self.own_written = Some(input);
    }

    pub(super) fn is_writing(&self) -> bool {
        self.is_handed_over
    }

    /// Returns the result of the last batch, once it is written.
    pub(super) fn written(&mut self) -> Option<Input<E>> {
        if self.own_written.is_some() || !self.is_handed_over {
            return self.own_written.take();
        }
        let written = self.written.try_recv();
        self.is_handed_over = matches!(written, Err(TryRecvError::Empty));
        let (input, nanos) = written.ok()?;
        self.time.note(nanos);
        Some(input)
    }
}

fn write<E: StorageEngine>(engine: &E, clock: &dyn Clock, append: Append) -> Written<E> {
    let began_nanos = clock.monotonic_nanos();
    let Append { ticket, batch } = append;
    let result = engine.append(&batch);
    let nanos = clock.monotonic_nanos().saturating_sub(began_nanos);
    (Input::Appended { ticket, result }, nanos)
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
    inbox: &Arc<Inbox<E>>,
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
