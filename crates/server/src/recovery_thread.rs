//! Store of this node that waits for copies of lost log entries. Its thread requests copies from
//! other stores and serves stores that are recovering too; nothing else of the store runs.

use crate::store::{OutputSink, spawn};
use crate::tasks::Thread;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use stele_replica::{EntryRecovery, PeerMessage};
use stele_storage::RecoverableLog;
use stele_types::{Clock, Result, StoreId};

/// Bytes of messages that wait for the thread; further ones are dropped and requested again.
const INBOX_BYTES_MAX: u64 = 16 << 20;
/// Longest wait for a message: bounds the delay until the thread stops.
const WAIT_MAX: Duration = Duration::from_millis(200);
const LOG_INTERVAL_NANOS: u64 = 30_000_000_000;

/// Parts of the node that the thread uses.
pub struct RecoveryContext {
    /// Clock of the node.
    pub clock: Arc<dyn Clock>,
    /// Receiver of the thread's messages.
    pub sink: Arc<dyn OutputSink>,
    /// Returns all known stores of the cluster.
    pub stores: Box<dyn Fn() -> Vec<StoreId> + Send>,
}

/// Handle of the recovery thread of one store.
pub struct RecoveryThread {
    /// Id of the store in the cluster.
    pub id: StoreId,
    /// Directory of the store.
    pub dir: PathBuf,
    /// Size of the store's device.
    pub device_bytes: u64,
    /// Entries that were missing when recovery began.
    pub lost_at_first: usize,
    lost: AtomicUsize,
    inbox: Sender<(PeerMessage, u64)>,
    inbox_bytes: AtomicU64,
    stopping: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl RecoveryThread {
    /// Starts the thread. The thread calls `ended` when the directory is free again, with whether
    /// the store is recovered, or with the device's error.
    pub fn start<M: RecoverableLog + 'static>(
        recovery: EntryRecovery<M>,
        (dir, device_bytes): (PathBuf, u64),
        context: RecoveryContext,
        ended: impl FnOnce(Result<bool>) + Send + 'static,
    ) -> Result<Arc<Self>> {
        let (lost, lost_at_first) = recovery.lost();
        let (inbox, messages) = channel();
        let store = Arc::new(Self {
            id: recovery.store(),
            dir,
            device_bytes,
            lost_at_first,
            lost: AtomicUsize::new(lost),
            inbox,
            inbox_bytes: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            thread: Mutex::new(None),
        });
        let worker = Worker { store: store.clone(), recovery, messages, context };
        // The directory is free when `run` has returned.
        let thread = spawn(Thread::EntryRecovery, store.id, move || ended(worker.run()))?;
        *store.thread.lock() = Some(thread);
        Ok(store)
    }

    /// Returns the number of entries that are missing now.
    pub fn lost(&self) -> usize {
        self.lost.load(Ordering::Relaxed)
    }

    /// Queues a message of `bytes` for the thread; drops it if the inbox is full.
    pub fn message(&self, message: PeerMessage, bytes: u64) {
        let waiting = self.inbox_bytes.fetch_add(bytes, Ordering::Relaxed);
        let is_full = waiting > 0 && waiting + bytes > INBOX_BYTES_MAX;
        // The thread may have ended.
        if is_full || self.inbox.send((message, bytes)).is_err() {
            self.inbox_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Stops the thread; waits if it is opening the store.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        let thread = self.thread.lock().take();
        // A panic has ended the process already.
        thread.into_iter().for_each(|thread| drop(thread.join()));
    }
}

struct Worker<M> {
    store: Arc<RecoveryThread>,
    recovery: EntryRecovery<M>,
    messages: Receiver<(PeerMessage, u64)>,
    context: RecoveryContext,
}

impl<M: RecoverableLog> Worker<M> {
    /// Runs until the store is recovered; returns `false` when stopped before.
    fn run(mut self) -> Result<bool> {
        let RecoveryContext { clock, sink, stores } = &self.context;
        let mut logged_nanos = clock.monotonic_nanos();
        while !self.store.stopping.load(Ordering::Acquire) {
            let now = clock.monotonic_nanos();
            sink.send(self.recovery.poll(now, &stores()));
            if self.recovery.is_recovered() {
                let (count, seconds) = (self.store.lost_at_first, self.waited_s(now));
                tracing::info!(
                    "store {}: recovered all {count} lost entries after {seconds} s; opening",
                    self.store.id
                );
                return Ok(true);
            }
            if now.saturating_sub(logged_nanos) >= LOG_INTERVAL_NANOS {
                logged_nanos = now;
                self.log_progress(now);
            }
            let pause = Duration::from_nanos(self.recovery.asks_at().saturating_sub(now));
            match self.messages.recv_timeout(pause.min(WAIT_MAX)) {
                Ok((message, bytes)) => {
                    self.store.inbox_bytes.fetch_sub(bytes, Ordering::Relaxed);
                    sink.send(self.recovery.receive(message)?);
                    self.store.lost.store(self.recovery.lost().0, Ordering::Relaxed);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(false),
            }
        }
        Ok(false)
    }

    fn waited_s(&self, now_nanos: u64) -> u64 {
        self.recovery.waited_nanos(now_nanos) / 1_000_000_000
    }

    fn log_progress(&self, now_nanos: u64) {
        let id = self.store.id;
        let ((lost, at_first), seconds) = (self.recovery.lost(), self.waited_s(now_nanos));
        let example = self.recovery.asked().map(|lost| {
            let (index, region, term) = (lost.index, lost.region, lost.term);
            format!(", among them entry {index} of region {region}, term {term}")
        });
        tracing::warn!(
            "store {id}: after {seconds} s {lost} of {at_first} lost entries are still missing{}; \
             requests go to every other store in turn. Start those that are down. If no store has \
             them, remove this store (`stele ctl remove-store {id}`) and start its node with an \
             empty directory instead of {}",
            example.unwrap_or_default(),
            self.store.dir.display()
        );
    }
}

#[cfg(test)]
mod tests;
