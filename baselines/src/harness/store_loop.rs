//! Loop of one store: step all queued inputs, send messages, one write and one sync, apply and
//! reply. Inputs that arrive meanwhile wait for the next iteration, which gives group commit.

use super::inbox::Inbox;
use super::slots::Slots;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stele_raftstore::{Append, Input, Now, Outputs, RaftStore};
use stele_storage::StorageEngine;
use stele_types::{Clock, Error, Result, StoreId};

/// Slice size of the product's maintenance (`stele-server`, `store/maintain.rs`).
const SLICE_BYTES: u64 = 1 << 20;
const IDLE_PAUSE: Duration = Duration::from_millis(5);
const IDLE_PAUSE_MAX: Duration = Duration::from_millis(160);

pub struct StoreLoop<E: StorageEngine> {
    pub core: RaftStore<E>,
    pub engine: Arc<E>,
    pub inbox: Arc<Inbox<E>>,
    /// Inboxes of all stores.
    pub inboxes: Arc<BTreeMap<StoreId, Arc<Inbox<E>>>>,
    pub slots: Arc<Slots>,
    pub clock: Arc<dyn Clock>,
    pub wants_checkpoint: Arc<AtomicBool>,
}

impl<E: StorageEngine> StoreLoop<E> {
    /// Runs until the inbox is stopped.
    pub fn run(mut self) -> Result<()> {
        let mut inputs = Vec::new();
        let mut append = None;
        let mut outputs = self.core.poll(now(&*self.clock))?;
        loop {
            let next = self.dispatch(outputs)?;
            append = append.or(next);
            let wait = if append.is_some() { Some(Duration::ZERO) } else { self.time_to_tick() };
            if !self.inbox.take(&mut inputs, wait) && append.is_none() {
                return Ok(());
            }
            inputs.drain(..).for_each(|input| self.core.step(input));
            if let Some(Append { ticket, batch }) = append.take() {
                let result = self.engine.append(&batch);
                self.core.step(Input::Appended { ticket, result });
            }
            outputs = self.core.poll(now(&*self.clock))?;
        }
    }

    /// Sends messages before the write starts: followers persist at the same time as this store.
    fn dispatch(&self, outputs: Outputs<E>) -> Result<Option<Append>> {
        for message in outputs.messages {
            if let Some(inbox) = self.inboxes.get(&message.to_store) {
                inbox.push([Input::Message(message)]);
            }
        }
        for (id, reply) in outputs.replies {
            self.slots.answer(id, reply);
        }
        if !outputs.snapshots.is_empty() {
            return Err(Error::Busy("a follower lags so far that it needs a snapshot".into()));
        }
        if outputs.wants_checkpoint {
            self.wants_checkpoint.store(true, Ordering::Release);
        }
        Ok(outputs.append)
    }

    fn time_to_tick(&self) -> Option<Duration> {
        let next = self.core.next_tick_nanos()?;
        Some(Duration::from_nanos(next.saturating_sub(self.clock.monotonic_nanos())))
    }
}

pub fn now(clock: &dyn Clock) -> Now {
    Now { monotonic_nanos: clock.monotonic_nanos(), unix_seconds: clock.unix_seconds() }
}

/// Runs a store's background work in slices until `running` is false.
pub fn maintain<E: StorageEngine>(
    engine: &E,
    running: &AtomicBool,
    wants_checkpoint: &AtomicBool,
) -> Result<()> {
    let mut pause = IDLE_PAUSE;
    while running.load(Ordering::Acquire) {
        if wants_checkpoint.load(Ordering::Acquire) {
            engine.checkpoint()?;
            wants_checkpoint.store(false, Ordering::Release);
        }
        let done = engine.maintain(SLICE_BYTES)?;
        if done.more && done.bytes > 0 {
            pause = IDLE_PAUSE;
            continue;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(IDLE_PAUSE_MAX);
    }
    Ok(())
}
