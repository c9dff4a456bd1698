//! Thread that applies a store's entries beside its loop, for engines of which apply is slow.

use super::spawn;
use super::store_loop::Inbox;
use crate::threads::Thread;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use stele_node::store::Item;
use stele_raftstore::{Apply, Input};
use stele_storage::StorageEngine;
use stele_types::{Clock, Result, StoreId};

/// The loop's end of the thread. The core bounds the bytes of entries that are not applied.
pub(super) struct Applier {
    waiting: Sender<Apply>,
}

impl Applier {
    /// Starts the thread. It ends when the loop has ended, without the entries that wait: they are in
    /// the log.
    pub fn start<E>(
        store: StoreId,
        engine: Arc<E>,
        inbox: Arc<Inbox<E>>,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, JoinHandle<()>)>
    where
        E: StorageEngine + 'static,
        E::Ingest: 'static,
    {
        let (waiting, taken) = channel::<Apply>();
        let thread = spawn(Thread::Apply, store, move || {
            while let Ok(apply) = taken.recv() {
                let (item, failed) = match applied(&*engine, &*clock, &apply) {
                    Ok(report) => (Item::Input(report), false),
                    Err(error) => (Item::Stopped(error), true),
                };
                if !inbox.push(item) || failed {
                    return;
                }
            }
        })?;
        Ok((Self { waiting }, thread))
    }

    /// Hands entries over. The report comes through the inbox.
    pub fn apply(&self, apply: Apply) {
        // After a failed apply the thread has ended, and the loop ends.
        let _ = self.waiting.send(apply);
    }
}

fn applied<E: StorageEngine>(engine: &E, clock: &dyn Clock, apply: &Apply) -> Result<Input<E>> {
    let Some(last) = apply.entries.last() else {
        return Err(stele_types::Error::invalid("no entries to apply"));
    };
    let began_nanos = clock.monotonic_nanos();
    engine.apply(apply.region, &apply.entries)?;
    let ended_nanos = clock.monotonic_nanos();
    let Apply { region, incarnation, .. } = *apply;
    Ok(Input::Applied { region, incarnation, index: last.index, began_nanos, ended_nanos })
}
