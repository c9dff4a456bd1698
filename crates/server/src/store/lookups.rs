//! Threads that read the pairs of keys for modifications, beside a store's loop.

use super::spawn;
use super::store_loop::Inbox;
use crate::threads::Thread;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use stele_replica::Item;
use stele_replica::{Input, Lookup};
use stele_storage::{EngineView, StorageEngine};
use stele_types::{Result, StoreId};

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
