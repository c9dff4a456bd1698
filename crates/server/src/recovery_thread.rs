//! A store of this node that waits for copies of entries its log lost. Its thread asks other stores
//! and answers those that wait as well; nothing else of the store runs.

use crate::store::{OutputSink, spawn};
use crate::threads::Thread;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use stele_raftstore::{EntryRecovery, PeerMessage};
use stele_storage::RecoverableLog;
use stele_types::{Clock, Result, StoreId};

/// Bytes of messages that wait for the thread; more are dropped, and what they answer asked for again.
const INBOX_BYTES_MAX: u64 = 16 << 20;
/// Longest sleep: how late the thread sees that it shall end.
const SLEEP_MAX: Duration = Duration::from_millis(200);
/// Between two lines in the log.
const TELL_NANOS: u64 = 30_000_000_000;

/// What the thread needs of the node.
pub struct RecoveryContext {
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Where messages go.
    pub outward: Arc<dyn OutputSink>,
    /// All stores of the cluster, as far as known.
    pub stores: Box<dyn Fn() -> Vec<StoreId> + Send>,
}

/// See the module.
pub struct RecoveryThread {
    /// Its number in the cluster.
    pub id: StoreId,
    /// Its directory.
    pub dir: PathBuf,
    /// Size of its device.
    pub device_bytes: u64,
    /// Entries that were lost when it should have opened.
    pub lost_at_first: usize,
    lost: AtomicUsize,
    inbox: Sender<(PeerMessage, u64)>,
    inbox_bytes: AtomicU64,
    stopping: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl RecoveryThread {
    /// Starts the thread. `ended` is called in it when the directory is free again: with whether the
    /// store is whole, or with the device's error.
    pub fn start<M: RecoverableLog + 'static>(
        mender: EntryRecovery<M>,
        (dir, device_bytes): (PathBuf, u64),
        around: RecoveryContext,
        ended: impl FnOnce(Result<bool>) + Send + 'static,
    ) -> Result<Arc<Self>> {
        let (lost, lost_at_first) = mender.lost();
        let (inbox, messages) = channel();
        let store = Arc::new(Self {
            id: mender.store(),
            dir,
            device_bytes,
            lost_at_first,
            lost: AtomicUsize::new(lost),
            inbox,
            inbox_bytes: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            thread: Mutex::new(None),
        });
        let waits = Waits { store: store.clone(), mender, messages, around };
        // The directory is free when `run` has returned.
        let thread = spawn(Thread::EntryRecovery, store.id, move || ended(waits.run()))?;
        *store.thread.lock() = Some(thread);
        Ok(store)
    }

    /// Entries that are lost now.
    pub fn lost(&self) -> usize {
        self.lost.load(Ordering::Relaxed)
    }

    /// Gives the thread a message of `bytes`, if there is room.
    pub fn message(&self, message: PeerMessage, bytes: u64) {
        let waiting = self.inbox_bytes.fetch_add(bytes, Ordering::Relaxed);
        let is_full = waiting > 0 && waiting + bytes > INBOX_BYTES_MAX;
        // The thread may have ended.
        if is_full || self.inbox.send((message, bytes)).is_err() {
            self.inbox_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Ends the thread; if it was opening the store, after that.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        let thread = self.thread.lock().take();
        // A panic has ended the process already.
        thread.into_iter().for_each(|thread| drop(thread.join()));
    }
}

struct Waits<M> {
    store: Arc<RecoveryThread>,
    mender: EntryRecovery<M>,
    messages: Receiver<(PeerMessage, u64)>,
    around: RecoveryContext,
}

impl<M: RecoverableLog> Waits<M> {
    /// Until the store is whole; `false` when it was told to end before.
    fn run(mut self) -> Result<bool> {
        let RecoveryContext { clock, outward, stores } = &self.around;
        let mut told_nanos = clock.monotonic_nanos();
        while !self.store.stopping.load(Ordering::Acquire) {
            let now = clock.monotonic_nanos();
            outward.send(self.mender.poll(now, &stores()));
            if self.mender.is_recovered() {
                let (count, seconds) = (self.store.lost_at_first, self.waited_s(now));
                tracing::info!(
                    "store {}: all {count} lost entries are back after {seconds} s; it opens",
                    self.store.id
                );
                return Ok(true);
            }
            if now.saturating_sub(told_nanos) >= TELL_NANOS {
                told_nanos = now;
                self.tell(now);
            }
            let pause = Duration::from_nanos(self.mender.asks_at().saturating_sub(now));
            match self.messages.recv_timeout(pause.min(SLEEP_MAX)) {
                Ok((message, bytes)) => {
                    self.store.inbox_bytes.fetch_sub(bytes, Ordering::Relaxed);
                    outward.send(self.mender.receive(message)?);
                    self.store.lost.store(self.mender.lost().0, Ordering::Relaxed);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(false),
            }
        }
        Ok(false)
    }

    fn waited_s(&self, now_nanos: u64) -> u64 {
        self.mender.waited_nanos(now_nanos) / 1_000_000_000
    }

    /// What is missing, and what can be done.
    fn tell(&self, now_nanos: u64) {
        let id = self.store.id;
        let ((lost, at_first), seconds) = (self.mender.lost(), self.waited_s(now_nanos));
        let example = self.mender.asked().map(|lost| {
            let (index, region, term) = (lost.index, lost.region, lost.term);
            format!(", among them entry {index} of region {region}, term {term}")
        });
        tracing::warn!(
            "store {id}: after {seconds} s {lost} of {at_first} lost entries are still missing{}; \
             every other store is asked in turn: start those that are down; if no store has \
             them, take this one out (`stele ctl remove-store {id}`) and start its node with an \
             empty directory instead of {}",
            example.unwrap_or_default(),
            self.store.dir.display()
        );
    }
}

#[cfg(test)]
mod tests;
