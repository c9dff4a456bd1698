//! Watches: the committed writes of a range, as they come.
//!
//! A watch reads the log of each region with watched keys, and follows keys from log to log
//! ([`cursors`](Cursors)). It begins at positions that leaders confirm to be of one instant, or at those of a
//! token. A *mark* is a position in each log that is at least that of every write acknowledged before the mark
//! began; once all keys have passed it, [`WatchEvent::Resolved`] is returned.
//!
//! Bounds: a response is held for each region that is read, and at most [`WatchOptions::streams_max`] regions
//! are read at once; others take turns of 200 ms. Connections of a watch are its own: what its caller leaves
//! unread delays no other call of the client.

mod cursors;
mod mark;
mod seek;
mod start;
mod streams;
mod token;
mod writes;

pub use cursors::{Cursors, Cut, CutPart, LoggedEvent, LoggedWrite, StreamId, Wanted};
pub use mark::{First, Mark, MarkPart};
pub use token::{Families, Position, Token};
pub use writes::Writes;

use crate::Client;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use stele_types::{Error, KeyRange, Result};
use streams::{Outcome, Reader, Received, Shared};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_stream::Stream;

/// Responses between the readers and the watch.
const RECEIVED_MAX: usize = 64;

/// What a key had before a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OldValue {
    /// Not asked for, or the store that was read has not looked it up: it applied the write before the watch
    /// came to it, or other writes waited for the watch.
    Unknown,
    /// No value.
    Absent,
    /// This value.
    Present(Bytes),
}

/// What a watch returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// A key was set.
    Put {
        /// The key.
        key: Bytes,
        /// Its new value.
        value: Bytes,
        /// Unix seconds at which the pair expires; 0: never. The end itself is not an event.
        expires_at_s: u64,
        /// What it had before.
        old: OldValue,
    },
    /// A key was deleted, or a delete found none.
    Delete {
        /// The key.
        key: Bytes,
        /// What it had before.
        old: OldValue,
    },
    /// All keys of a range were deleted. It is the part of the deleted range in one region.
    DeletedRange {
        /// First key.
        start: Bytes,
        /// First key after the range; empty for no end.
        end: Bytes,
    },
    /// All writes to the watched keys were returned that were acknowledged before an instant, later than that of
    /// the former `Resolved`.
    Resolved,
}

impl From<LoggedEvent> for WatchEvent {
    fn from(event: LoggedEvent) -> Self {
        match event {
            LoggedEvent::Write(write) => write.event,
            LoggedEvent::Resolved => Self::Resolved,
        }
    }
}

/// Where a watch begins.
#[derive(Clone, Debug)]
pub enum WatchFrom {
    /// Every write that begins after the watch was made is returned, and perhaps some before.
    Now,
    /// Where the watch was of which this is the token.
    Token(Token),
}

/// Options of a watch.
#[derive(Clone, Copy, Debug)]
pub struct WatchOptions {
    /// Least time between two `Resolved`; `None`: none is returned.
    pub resolved_interval: Option<Duration>,
    /// Most regions of which the logs are read at once; others take turns.
    pub streams_max: usize,
    /// Whether puts and deletes are returned with what the key had before. The stores that are read look each
    /// written key up.
    pub old_values: bool,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self { resolved_interval: None, streams_max: 256, old_values: false }
    }
}

/// A running watch: a stream of events, for each key in the order of its writes. It ends after an error.
pub struct Watch {
    shared: Arc<Shared>,
    range: KeyRange,
    cursors: Cursors,
    readers: BTreeMap<StreamId, Running>,
    out: mpsc::Sender<Received>,
    received: mpsc::Receiver<Received>,
    resolved_interval: Option<Duration>,
    marking: Marking,
    has_ended: bool,
}

/// A reader; it ends when this is dropped.
struct Running {
    generation: u64,
    go: Arc<Notify>,
    /// Its response was taken: it waits until the next one is wanted.
    is_waiting: bool,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Marked = Pin<Box<dyn Future<Output = Result<Mark>> + Send>>;

enum Marking {
    Off,
    Pause(Pin<Box<Sleep>>),
    Asking { since: Instant, marked: Marked },
    Passing { since: Instant },
}

impl Client {
    /// Watches the keys of a range in the column family of this handle. Fails with `Invalid` for a token of
    /// another range, family or cluster.
    pub async fn watch(&self, range: KeyRange, from: WatchFrom) -> Result<Watch> {
        self.watch_with(range, from, WatchOptions::default()).await
    }

    /// Does the same as [`Client::watch`], with options.
    pub async fn watch_with(
        &self,
        range: KeyRange,
        from: WatchFrom,
        options: WatchOptions,
    ) -> Result<Watch> {
        self.watch_families(range, Families::One(self.family), from, options).await
    }

    async fn watch_families(
        &self,
        range: KeyRange,
        families: Families,
        from: WatchFrom,
        options: WatchOptions,
    ) -> Result<Watch> {
        if range.is_empty() {
            return Err(Error::invalid("the range has no keys: its end is not after its start"));
        }
        let cursors = match from {
            WatchFrom::Now => self.begin(&range, families).await?,
            WatchFrom::Token(token) => self.resume(&range, families, &token)?,
        };
        let (out, received) = mpsc::channel(RECEIVED_MAX);
        let pause = Marking::Pause(Box::pin(sleep_until(Instant::now())));
        Ok(Watch {
            shared: Arc::new(Shared::new(self.clone(), options)),
            range,
            cursors,
            readers: BTreeMap::new(),
            out,
            received,
            resolved_interval: options.resolved_interval,
            marking: options.resolved_interval.map_or(Marking::Off, |_| pause),
            has_ended: false,
        })
    }

    fn resume(&self, range: &KeyRange, families: Families, token: &Token) -> Result<Cursors> {
        let other = |what| Err(Error::invalid(format!("the token is of another {what}")));
        if token.cluster() != self.cluster() {
            return other("cluster");
        }
        if token.families() != families {
            return other("column family");
        }
        match token.range() == range {
            true => Cursors::resume(token),
            false => other("range of keys"),
        }
    }
}

impl Watch {
    /// Returns the next event; `None` after an error. Fails with `TooOld` if the logs no longer have the next
    /// writes, and otherwise as calls do: another watch may continue from the token.
    pub async fn next(&mut self) -> Option<Result<WatchEvent>> {
        let event = self.next_logged().await;
        event.map(|event| event.map(WatchEvent::from))
    }

    async fn next_logged(&mut self) -> Option<Result<LoggedEvent>> {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// Returns the present token, also after an error: a watch from it returns every write that this
    /// one has not returned, and may repeat the last one of each region.
    pub fn token(&self) -> Result<Token> {
        self.cursors.token(self.shared.client.cluster())
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<LoggedEvent>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let polled = self.poll_event(cx).map(Some);
        self.has_ended = matches!(polled, Poll::Ready(Some(Err(_))));
        if self.has_ended {
            self.readers.clear();
        }
        polled
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Result<LoggedEvent>> {
        loop {
            let event = self.cursors.next_event()?;
            self.change_readers();
            if let Some(event) = event {
                return Poll::Ready(Ok(event));
            }
            if let Poll::Ready(Some(received)) = self.received.poll_recv(cx) {
                self.take(received)?;
                continue;
            }
            if !self.poll_mark(cx)? {
                return Poll::Pending;
            }
        }
    }

    fn take(&mut self, received: Received) -> Result<()> {
        let Received { stream, generation, outcome } = received;
        let running = self.readers.get_mut(&stream);
        let Some(running) = running.filter(|running| running.generation == generation) else {
            return Ok(());
        };
        running.is_waiting = true;
        match outcome {
            Outcome::Response(response) => self.cursors.feed(stream, generation, *response),
            Outcome::TooOld { has_key } => self.cursors.too_old(stream, generation, has_key),
            Outcome::Sought { next_index, is_source_there } => match stream {
                StreamId::Seek(source) => {
                    self.cursors.sought(source, generation, next_index, is_source_there)
                }
                StreamId::Cursor(_) => Ok(()),
            },
            Outcome::Failed(error) => Err(error),
        }
    }

    /// Opens, closes and continues streams.
    fn change_readers(&mut self) {
        for stream in self.cursors.take_changes() {
            let Some(wanted) = self.cursors.wanted(stream) else {
                self.readers.remove(&stream);
                continue;
            };
            match self.readers.get_mut(&stream) {
                Some(running) if running.generation == wanted.generation => {
                    if running.is_waiting && !wanted.is_held {
                        running.is_waiting = false;
                        running.go.notify_one();
                    }
                }
                _ => {
                    let (generation, go) = (wanted.generation, Arc::new(Notify::new()));
                    let reader = Reader::new(Arc::clone(&self.shared), wanted);
                    let task = tokio::spawn(reader.run(stream, self.out.clone(), Arc::clone(&go)));
                    let running = Running { generation, go, is_waiting: false, task };
                    self.readers.insert(stream, running);
                }
            }
        }
    }

    /// Goes on with the next mark. Returns whether something happened.
    fn poll_mark(&mut self, cx: &mut Context<'_>) -> Result<bool> {
        let Some(interval) = self.resolved_interval else { return Ok(false) };
        self.marking = match &mut self.marking {
            Marking::Pause(pause) => {
                if pause.as_mut().poll(cx).is_pending() {
                    return Ok(false);
                }
                let (client, range) = (self.shared.client.clone(), self.range.clone());
                let marked = Box::pin(async move { client.mark(range).await });
                Marking::Asking { since: Instant::now(), marked }
            }
            Marking::Asking { since, marked } => match marked.as_mut().poll(cx) {
                Poll::Pending => return Ok(false),
                Poll::Ready(Ok(mark)) => {
                    self.cursors.set_mark(mark);
                    Marking::Passing { since: *since }
                }
                // The leaders may be there again at the next mark.
                Poll::Ready(Err(Error::Unavailable(_))) => {
                    Marking::Pause(Box::pin(sleep_until(*since + interval)))
                }
                Poll::Ready(Err(error)) => return Err(error),
            },
            Marking::Passing { since } if !self.cursors.has_mark() => {
                Marking::Pause(Box::pin(sleep_until(*since + interval)))
            }
            Marking::Off | Marking::Passing { .. } => return Ok(false),
        };
        Ok(true)
    }
}

impl Stream for Watch {
    type Item = Result<WatchEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.poll(cx);
        polled.map(|event| event.map(|event| event.map(WatchEvent::from)))
    }
}
