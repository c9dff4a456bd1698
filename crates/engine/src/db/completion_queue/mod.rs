//! Asynchronous calls with completion: a caller submits calls with tags to a queue of fixed depth,
//! and collects their results from it in the order of completion.
//!
//! A call goes through these states. It takes a **slot** and is in flight. Its result is put into
//! the queue: it is completed. The caller collects it, which frees the slot. Puts and deletes go
//! through the group commit, gets and lookups through the reading threads of the store: no call has
//! a thread of its own.
//!
//! Invariant: each accepted call gets exactly one completion, also if the store stops, is closed or
//! panics. A call that returns an error was not accepted and gets none.
//!
//! Invariant: the result of a call is in the queue before its slot is free. Therefore at most
//! `depth` calls are in flight or not collected, and their keys and values take at most
//! `depth` × (`key_bytes_max` + `value_bytes_max`).
//!
//! Invariant: writes of one store complete in the order of their commits. A read is ordered only
//! after the calls that were completed before its submission.

mod state;
#[cfg(test)]
mod tests;

pub(super) use state::Ticket;

use super::Db;
use crate::db::read_queue::{QueuedRead, Wanted};
use bytes::Bytes;
use state::QueueSlots;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stele_types::{CommandBuilder, Error, Result, checksum, command};

/// Bounds of a [`CompletionQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Maximum calls that are in flight or not collected. 1 to 65,536.
    pub depth: usize,
    /// Longest key that is accepted, in bytes.
    pub key_bytes_max: usize,
    /// Longest value that is accepted or returned, in bytes.
    pub value_bytes_max: usize,
}

/// Depth above which a queue is refused: its slots are allocated at once.
const DEPTH_MAX: usize = 1 << 16;

impl QueueOptions {
    /// Returns the most bytes of keys and values that calls of the queue hold. The queue itself
    /// takes another 128 bytes per slot at most.
    pub fn memory_bytes_max(&self) -> u64 {
        let each = self.key_bytes_max as u64 + self.value_bytes_max as u64;
        each.saturating_mul(self.depth as u64)
    }

    fn validate(&self) -> Result<()> {
        if (1..=DEPTH_MAX).contains(&self.depth) {
            return Ok(());
        }
        let depth = self.depth;
        Err(Error::invalid(format!(
            "the depth of a queue is {depth}; allowed are 1 to {DEPTH_MAX}"
        )))
    }
}

/// Wakes an event loop when the first result is in an empty queue. Called on threads of the store:
/// it must not wait and not call the store or the queue.
pub trait Notify: Send + Sync {
    /// Wakes the event loop, which then calls [`CompletionQueue::poll`].
    fn notify(&self);
}

/// Result of an accepted call.
#[derive(Debug)]
pub struct Completed {
    /// The tag that the caller gave.
    pub tag: u64,
    /// The answer, or the error that the synchronous call would return.
    pub result: Result<Answer>,
}

/// Answer of a successful call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Value of a get; `None` if the key does not exist.
    Value(Option<Bytes>),
    /// Whether the key exists.
    Exists(bool),
    /// The put or delete is durable and visible.
    Written,
}

/// Statistics of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Calls without a result.
    pub in_flight: usize,
    /// Results that are not collected.
    pub completed: usize,
    /// Bytes of keys and values of both; a get in flight counts with the longest value.
    pub memory_bytes: u64,
    /// Maximum of `memory_bytes` since the queue was created.
    pub memory_bytes_peak: u64,
    /// Calls accepted since the queue was created.
    pub accepted: u64,
}

/// A store, or several behind one front, that answers calls of a [`CompletionQueue`].
pub trait QueuedStore {
    /// Returns the store that holds `key`. With the directory of a shard, failures of its calls name
    /// it, as [`Error::Shard`] does.
    fn store_of(&self, key: &[u8]) -> Result<(&Db, Option<Arc<Path>>)>;
}

impl QueuedStore for Db {
    fn store_of(&self, _: &[u8]) -> Result<(&Db, Option<Arc<Path>>)> {
        Ok((self, None))
    }
}

/// A queue of calls in flight and their results. Clones are the same queue; threads share it. One
/// queue may serve several stores.
///
/// While all slots are taken, [`CompletionQueue::get`] and its neighbours wait until another thread
/// collects results; `try_get` and its neighbours return [`Error::Busy`]. A thread that submits and
/// collects by itself uses the latter. A write may also wait for the store's own limit,
/// [`queue_bytes_max`](crate::Options::queue_bytes_max).
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    shared: Arc<QueueSlots>,
}

impl CompletionQueue {
    /// Creates a queue. Fails with [`Error::Invalid`] for a depth outside its bounds.
    pub fn new(options: QueueOptions) -> Result<Self> {
        Self::create(options, None)
    }

    /// Creates a queue that wakes an event loop.
    pub fn with_notify(options: QueueOptions, notify: Arc<dyn Notify>) -> Result<Self> {
        Self::create(options, Some(notify))
    }

    fn create(options: QueueOptions, notify: Option<Arc<dyn Notify>>) -> Result<Self> {
        options.validate()?;
        Ok(Self { shared: QueueSlots::new(options, notify) })
    }

    /// Reads the value of `key`. A value above the queue's bound fails with [`Error::Invalid`].
    pub fn get(&self, store: &impl QueuedStore, tag: u64, key: &[u8]) -> Result<()> {
        self.start(store, tag, Call::Get { key }, true)
    }

    /// Does the same as [`CompletionQueue::get`] without waiting for a slot.
    pub fn try_get(&self, store: &impl QueuedStore, tag: u64, key: &[u8]) -> Result<()> {
        self.start(store, tag, Call::Get { key }, false)
    }

    /// Asks whether `key` exists. Reads no value.
    pub fn exist(&self, store: &impl QueuedStore, tag: u64, key: &[u8]) -> Result<()> {
        self.start(store, tag, Call::Exist { key }, true)
    }

    /// Does the same as [`CompletionQueue::exist`] without waiting for a slot.
    pub fn try_exist(&self, store: &impl QueuedStore, tag: u64, key: &[u8]) -> Result<()> {
        self.start(store, tag, Call::Exist { key }, false)
    }

    /// Sets `key`. It is durable and visible when it is completed.
    pub fn put(&self, store: &impl QueuedStore, tag: u64, key: &[u8], value: &[u8]) -> Result<()> {
        self.start(store, tag, Call::Put { key, value }, true)
    }

    /// Does the same as [`CompletionQueue::put`] without waiting for a slot.
    pub fn try_put(
        &self,
        store: &impl QueuedStore,
        tag: u64,
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        self.start(store, tag, Call::Put { key, value }, false)
    }

    /// Removes `key`. It is durable and visible when it is completed.
    pub fn delete(&self, store: &impl QueuedStore, tag: u64, key: &[u8]) -> Result<()> {
        self.start(store, tag, Call::Delete { key }, true)
    }

    /// Does the same as [`CompletionQueue::delete`] without waiting for a slot.
    pub fn try_delete(&self, store: &impl QueuedStore, tag: u64, key: &[u8]) -> Result<()> {
        self.start(store, tag, Call::Delete { key }, false)
    }

    /// Moves all results that are there to the end of `into`, oldest first; returns how many. Never
    /// waits.
    pub fn poll(&self, into: &mut Vec<Completed>) -> usize {
        self.shared.collect(into)
    }

    /// Waits until `at_least` results are there (or as many as calls are not collected, if these
    /// are fewer), or `timeout` has passed. Then collects as [`CompletionQueue::poll`] does.
    /// Returns fewer after the timeout, or if another thread has collected them.
    pub fn wait(&self, into: &mut Vec<Completed>, at_least: usize, timeout: Duration) -> usize {
        self.shared.wait(at_least, timeout);
        self.shared.collect(into)
    }

    /// Returns the statistics.
    pub fn stats(&self) -> QueueStats {
        self.shared.stats()
    }

    /// Returns the bounds.
    pub fn options(&self) -> QueueOptions {
        self.shared.options
    }

    fn start(&self, store: &impl QueuedStore, tag: u64, call: Call<'_>, waits: bool) -> Result<()> {
        call.check(&self.shared.options)?;
        let (store, shard) = store.store_of(call.key())?;
        let reserved_bytes = call.reserved_bytes(&self.shared.options);
        let ticket = self.shared.take_slot(tag, reserved_bytes, shard.clone(), waits)?;
        store.start_call(ticket, call).map_err(|error| of_shard(shard.as_deref(), error))
    }
}

/// Adds the directory of the shard in which a call failed, if the store is one.
fn of_shard(shard: Option<&Path>, error: Error) -> Error {
    match shard {
        Some(dir) => Error::of_shard(dir, error),
        None => error,
    }
}

#[derive(Clone, Copy, Debug)]
enum Call<'a> {
    Get { key: &'a [u8] },
    Exist { key: &'a [u8] },
    Put { key: &'a [u8], value: &'a [u8] },
    Delete { key: &'a [u8] },
}

impl<'a> Call<'a> {
    fn key(&self) -> &'a [u8] {
        match self {
            Self::Get { key } | Self::Exist { key } | Self::Delete { key } => key,
            Self::Put { key, .. } => key,
        }
    }

    fn check(&self, options: &QueueOptions) -> Result<()> {
        let bound = |name: &str, bytes: usize, most: usize| {
            if bytes <= most {
                return Ok(());
            }
            Err(Error::invalid(format!(
                "the {name} has {bytes} bytes and the queue takes at most {most}; \
                 create the queue with a larger `{name}_bytes_max`"
            )))
        };
        bound("key", self.key().len(), options.key_bytes_max)?;
        match self {
            Self::Put { key, value } => {
                bound("value", value.len(), options.value_bytes_max)?;
                command::check_user_pair(key, value)
            }
            _ => command::check_user_key(self.key()),
        }
    }

    /// Returns the bytes that the call counts while it is in flight: of a get those of the longest
    /// value, because its length is not known.
    fn reserved_bytes(&self, options: &QueueOptions) -> usize {
        self.key().len()
            + match self {
                Self::Get { .. } => options.value_bytes_max,
                Self::Put { value, .. } => value.len(),
                Self::Exist { .. } | Self::Delete { .. } => 0,
            }
    }
}

impl Db {
    /// Starts a checked call. On an error the call was not accepted.
    fn start_call(&self, ticket: Ticket, call: Call<'_>) -> Result<()> {
        match call {
            Call::Get { key } => self.start_read(ticket, key, Wanted::Value),
            Call::Exist { key } => self.start_read(ticket, key, Wanted::Existence),
            Call::Put { key, value } => {
                let crc = checksum::crc32c(value);
                self.start_write(ticket, key.len() + value.len(), |builder| {
                    builder.put_with_crc(key, value, crc, 0).map(|_| ())
                })
            }
            Call::Delete { key } => {
                self.start_write(ticket, key.len(), |builder| builder.delete(key).map(|_| ()))
            }
        }
    }

    fn start_read(&self, ticket: Ticket, key: &[u8], wanted: Wanted) -> Result<()> {
        let read = QueuedRead { ticket, key: Bytes::copy_from_slice(key), wanted };
        match &self.workers {
            Some(workers) => workers.reads().submit(read),
            // Without threads the caller reads.
            None => self.reader.answer(vec![read]),
        }
        Ok(())
    }

    fn start_write(
        &self,
        ticket: Ticket,
        bytes: usize,
        add: impl FnOnce(&mut CommandBuilder) -> Result<()>,
    ) -> Result<()> {
        let mut ticket = Some(ticket);
        let submitted = self.pipeline.submit_then(bytes, add, || {
            let ticket = ticket.take()?;
            Some(Box::new(move |result: Result<()>| {
                ticket.complete(result.map(|()| Answer::Written));
            }))
        });
        match submitted {
            Ok(completion) if self.workers.is_none() => {
                // Without threads the caller commits. The result is in the queue.
                let _ = completion.wait();
                Ok(())
            }
            Ok(_) => {
                self.commit_soon();
                Ok(())
            }
            Err(error) => {
                if let Some(ticket) = ticket {
                    ticket.withdraw();
                }
                Err(error)
            }
        }
    }
}
