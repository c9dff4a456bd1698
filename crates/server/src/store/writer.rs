//! Thread that writes a store's batches beside its loop, which goes on with its items meanwhile.

use super::spawn;
use crate::threads::Thread;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use stele_replica::{Append, Input};
use stele_storage::StorageEngine;
use stele_types::{Result, StoreId};

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

    /// Returns the result of the batch under way, once it is written.
    pub(super) fn written(&mut self) -> Option<Input<E>> {
        let written = self.written.try_recv();
        if !matches!(written, Err(TryRecvError::Empty)) {
            self.is_writing = false;
        }
        written.ok()
    }
}
