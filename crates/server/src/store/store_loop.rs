//! Loop of one store. An iteration steps all waiting items, sends messages, makes the records of
//! all regions durable with one write and one sync, then applies and replies what that allows.
//! Items that arrive meanwhile wait for the next iteration: this is the group commit.

use super::append_times::AppendTimes;
use super::inbox::{Inbox, Item};
use super::{Core, Engine, OutputSink};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stele_raftstore::{Append, Input, Now, Outputs, Reply, RequestId};
use stele_storage::LogStore;
use stele_types::{Clock, Result};
use tokio::sync::oneshot;

pub(super) struct StoreLoop {
    pub core: Core,
    pub engine: Arc<Engine>,
    pub inbox: Arc<Inbox>,
    pub appends: Arc<AppendTimes>,
    pub clock: Arc<dyn Clock>,
    pub sink: Arc<dyn OutputSink>,
    pub answers: HashMap<RequestId, oneshot::Sender<Reply>>,
    /// Set when the core needs a checkpoint, for the maintenance thread.
    pub wants_checkpoint: Arc<AtomicBool>,
}

impl StoreLoop {
    /// Runs until stopped. An error ends the store; durable data stays.
    pub fn run(mut self) -> Result<()> {
        let mut items = Vec::new();
        let mut append = None;
        let mut outputs = self.core.poll(self.now())?;
        loop {
            let next = self.dispatch(outputs);
            append = append.or(next);
            let wait = if append.is_some() { Some(Duration::ZERO) } else { self.time_to_tick() };
            if !self.inbox.take(&mut items, wait) && append.is_none() {
                return Ok(());
            }
            let mut ended = Ok(());
            for item in items.drain(..) {
                match ended {
                    Ok(()) => ended = self.step(item),
                    Err(_) => item.refuse(),
                }
            }
            ended?;
            if let Some(append) = append.take() {
                self.append(append);
            }
            outputs = self.core.poll(self.now())?;
        }
    }

    fn step(&mut self, item: Item) -> Result<()> {
        match item {
            Item::Input(input) | Item::Message { input, .. } => self.core.step(input),
            Item::Request { id, input, answer } => {
                self.answers.insert(id, answer);
                self.core.step(input);
            }
            Item::CoreCall(call) => call(&mut self.core),
            Item::Stopped(error) => return Err(error),
        }
        Ok(())
    }

    /// Sends outputs; messages leave before the write starts: followers persist while this store
    /// does.
    fn dispatch(&mut self, outputs: Outputs<Engine>) -> Option<Append> {
        if !outputs.messages.is_empty() {
            self.sink.send(outputs.messages);
        }
        for (id, reply) in outputs.replies {
            if let Some(answer) = self.answers.remove(&id) {
                // The caller may have gone.
                let _ = answer.send(reply);
            }
        }
        for snapshot in outputs.snapshots {
            self.sink.send_snapshot(snapshot);
        }
        if !outputs.events.is_empty() {
            self.sink.events(outputs.events);
        }
        if outputs.wants_checkpoint {
            self.wants_checkpoint.store(true, Ordering::Release);
        }
        outputs.append
    }

    fn append(&mut self, append: Append) {
        let began = self.clock.monotonic_nanos();
        let result = self.engine.append(&append.batch);
        self.appends.record(self.clock.monotonic_nanos().saturating_sub(began));
        self.core.step(Input::Appended { ticket: append.ticket, result });
    }

    fn time_to_tick(&self) -> Option<Duration> {
        let next = self.core.next_tick_nanos()?;
        Some(Duration::from_nanos(next.saturating_sub(self.clock.monotonic_nanos())))
    }

    fn now(&self) -> Now {
        Now {
            monotonic_nanos: self.clock.monotonic_nanos(),
            unix_seconds: self.clock.unix_seconds(),
        }
    }
}
