//! Memory of requests and answers: one budget for the node, with a share for each connection and each
//! request. Bytes count from their arrival, or from before they are read, until the socket has taken
//! the answer. What a request would need beyond its share is refused as a whole: a part of an answer
//! would look like a whole one.
//!
//! | part of the budget | use |
//! |---|---|
//! | 4/16 | windows of HTTP/2: bytes that clients may send before a request is read |
//! | 11/16 | requests for data and their answers; of one client with a certificate or one connection at most 10/16, of one request 9/16 |
//! | 1/16 | calls of placement and control besides, so that data does not keep nodes from reporting |

mod answer;
mod body;
mod layer;

pub use answer::{
    AnswerBody, Charging, Held, IsHeld, Piece, gets_memory, next_page, pair_memory, pairs_memory,
    value_memory,
};
pub(crate) use body::PlainBody;
pub use body::{Arrived, Limits};
pub use layer::Accounted;

use body::MEMORY_RETRY;
use layer::Windows;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// Smallest budget: the shares of a request and of the windows must hold something.
pub const BYTES_MIN: u64 = 16 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shares {
    windows: u64,
    data: u64,
    all: u64,
    connection: u64,
    request: u64,
}

impl Shares {
    fn of(bytes_max: u64) -> Self {
        let share = |sixteenths| bytes_max / 16 * sixteenths;
        Self {
            windows: share(4),
            data: share(11),
            all: share(12),
            connection: share(10),
            request: share(9),
        }
    }
}

/// Kind of a request, by which part of the budget it may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Keys and values of clients.
    Data,
    /// Placement, control, health and statistics.
    System,
}

/// Reason why memory was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exceeded {
    /// The request alone needs more than any may: repeating it is useless.
    Request {
        /// Bytes that it needs, at least.
        bytes: u64,
        /// Bytes of a request at most.
        bytes_max: u64,
    },
    /// Other requests use the memory now.
    Shared,
    /// The caller no longer waits for the answer.
    Abandoned,
    /// The caller exceeds the limits of its grant.
    Limit,
}

impl std::fmt::Display for Exceeded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Request { bytes, bytes_max } => write!(
                f,
                "the request and its answer need {bytes} bytes of memory or more; the limit is \
                 {bytes_max}: request less at once, or raise request_memory_bytes_max of the node"
            ),
            Self::Shared => {
                f.write_str("other requests use the memory of request_memory_bytes_max")
            }
            Self::Abandoned => f.write_str("the caller does not wait for the answer"),
            Self::Limit => f.write_str(
                "the caller exceeds the limits of its grant: `stele ctl access list` shows them",
            ),
        }
    }
}

/// Totals of the node's budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes of requests and answers now.
    pub used_bytes: u64,
    /// Bytes of windows now.
    pub window_bytes: u64,
    /// Requests refused since the start.
    pub refused: u64,
}

/// Budget of the node.
#[derive(Debug)]
pub struct NodeMemory {
    shares: Shares,
    used: AtomicU64,
    windows: Windows,
    refused: AtomicU64,
    /// Sent when memory is released while a request waits for it.
    released: watch::Sender<()>,
    /// Shares of the clients that are connected, by name.
    clients: Mutex<HashMap<String, Weak<AtomicU64>>>,
}

impl NodeMemory {
    /// Creates the budget of `bytes_max`.
    pub fn new(bytes_max: u64) -> Arc<Self> {
        let shares = Shares::of(bytes_max.max(BYTES_MIN));
        Arc::new(Self {
            shares,
            used: AtomicU64::new(0),
            windows: Windows::new(shares.windows),
            refused: AtomicU64::new(0),
            released: watch::Sender::new(()),
            clients: Mutex::default(),
        })
    }

    /// Returns the bytes that the connections of a client use together.
    fn client(&self, name: &str) -> Arc<AtomicU64> {
        let mut clients = self.clients.lock();
        clients.retain(|_, used| used.strong_count() > 0);
        if let Some(used) = clients.get(name).and_then(Weak::upgrade) {
            return used;
        }
        let used = Arc::default();
        clients.insert(name.to_owned(), Arc::downgrade(&used));
        used
    }

    /// Returns its totals.
    pub fn stats(&self) -> MemoryStats {
        MemoryStats {
            used_bytes: self.used.load(Relaxed),
            window_bytes: self.windows.bytes(),
            refused: self.refused.load(Relaxed),
        }
    }
}

/// Share of one connection.
#[derive(Debug)]
pub struct ConnectionMemory {
    node: Arc<NodeMemory>,
    used: AtomicU64,
    /// Bytes of all connections of its client; `None` without a name.
    client: Option<Arc<AtomicU64>>,
    window_bytes: u32,
}

impl ConnectionMemory {
    /// Creates the share of a new connection, with a window of at most `window_bytes_max`.
    pub fn new(node: &Arc<NodeMemory>, window_bytes_max: u32) -> Arc<Self> {
        Self::of_client(node, window_bytes_max, None)
    }

    /// Like [`ConnectionMemory::new`], for a connection of the client with this name: all of its connections
    /// together have the share of one.
    pub fn of_client(
        node: &Arc<NodeMemory>,
        window_bytes_max: u32,
        client: Option<&str>,
    ) -> Arc<Self> {
        let window_bytes = node.windows.take(window_bytes_max);
        let client = client.map(|name| node.client(name));
        Arc::new(Self { node: node.clone(), used: AtomicU64::new(0), client, window_bytes })
    }

    /// Returns the bytes that the client may send before they are read.
    pub(crate) fn window_bytes(&self) -> u32 {
        self.window_bytes
    }

    fn charge(&self, class: Class, bytes: u64) -> bool {
        let node = &self.node;
        let node_max = match class {
            Class::System => node.shares.all,
            // bug server.data_uses_all_memory: `node.shares.data` is `node.shares.all`
            Class::Data => node.shares.data,
        };
        let client = self.client.as_deref();
        // bug server.clients_use_all_memory: let client = None;
        let share = node.shares.connection;
        let shares = [(Some(&self.used), share), (client, share), (Some(&node.used), node_max)];
        let shares = shares.into_iter().filter_map(|(used, bytes_max)| Some((used?, bytes_max)));
        for (taken, (used, bytes_max)) in shares.clone().enumerate() {
            if !take(used, bytes, bytes_max) {
                for (used, _) in shares.take(taken) {
                    used.fetch_sub(bytes, Relaxed);
                }
                return false;
            }
        }
        true
    }

    fn each_use(&self) -> impl Iterator<Item = &AtomicU64> {
        [Some(&self.used), self.client.as_deref(), Some(&self.node.used)].into_iter().flatten()
    }

    fn release(&self, bytes: u64) {
        for used in self.each_use() {
            used.fetch_sub(bytes, Relaxed);
        }
        if self.node.released.receiver_count() > 0 {
            self.node.released.send_replace(());
        }
    }
}

impl Drop for ConnectionMemory {
    fn drop(&mut self) {
        self.node.windows.give_back(self.window_bytes);
    }
}

/// Adds `bytes` unless the sum exceeds `bytes_max`.
fn take(used: &AtomicU64, bytes: u64, bytes_max: u64) -> bool {
    let add = |used: u64| used.checked_add(bytes).filter(|used| *used <= bytes_max);
    used.fetch_update(Relaxed, Relaxed, add).is_ok()
}

/// Memory of one request and its answer; released when the last owner drops it.
#[derive(Debug)]
pub struct RequestMemory {
    connection: Arc<ConnectionMemory>,
    class: Class,
    used: AtomicU64,
    is_abandoned: AtomicBool,
    /// Message that the request is a part of: it may refer to the message's bytes.
    _message: Option<Arc<RequestMemory>>,
}

impl RequestMemory {
    /// Creates the memory of a request that uses none yet.
    pub fn new(connection: &Arc<ConnectionMemory>, class: Class) -> Arc<Self> {
        Arc::new(Self::with(connection, class, None))
    }

    /// Creates the memory of one of many requests in a message. The message is kept with it.
    pub fn part_of(message: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self::with(&message.connection, message.class, Some(message.clone())))
    }

    fn with(
        connection: &Arc<ConnectionMemory>,
        class: Class,
        message: Option<Arc<RequestMemory>>,
    ) -> Self {
        let (connection, used) = (connection.clone(), AtomicU64::new(0));
        Self { connection, class, used, is_abandoned: AtomicBool::new(false), _message: message }
    }

    /// Returns the bytes that it uses, without those of its message.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Uses `bytes` more, or none of them.
    ///
    /// Invariant: memory is charged before it is used, within the shares of request, connection, client and
    /// node.
    /// Tests: `the_connections_of_a_client_share_the_memory_of_one`,
    /// `requests_share_the_memory_of_their_connection_and_their_node_and_return_it`,
    /// `a_message_is_charged_when_its_length_arrives_and_its_elements_as_they_arrive`.
    pub(crate) fn charge(&self, bytes: u64) -> Result<(), Exceeded> {
        self.try_charge(bytes).inspect_err(|_| self.note_refused())
    }

    pub(crate) fn note_refused(&self) {
        self.connection.node.refused.fetch_add(1, Relaxed);
    }

    /// [`RequestMemory::charge`] of a caller that waits while other requests use the memory, at most `wait`.
    pub(crate) async fn charge_within(&self, bytes: u64, wait: Duration) -> Result<(), Exceeded> {
        let until = Instant::now() + wait;
        loop {
            let mut released = self.released();
            match self.try_charge(bytes) {
                Err(Exceeded::Shared) if Instant::now() < until => {
                    // It fails when the node ends.
                    let _ = timeout(MEMORY_RETRY, released.changed()).await;
                }
                charged => return charged.inspect_err(|_| self.note_refused()),
            }
        }
    }

    /// [`RequestMemory::charge`] of a caller that waits and tries again.
    pub(crate) fn try_charge(&self, bytes: u64) -> Result<(), Exceeded> {
        // bug server.memory_unbounded: self.charge_anyway(bytes); return Ok(());
        // bug server.scans_for_no_caller: never
        if self.is_abandoned.load(Relaxed) {
            return Err(Exceeded::Abandoned);
        }
        let bytes_max = self.connection.node.shares.request;
        if !take(&self.used, bytes, bytes_max) {
            let bytes = self.used().saturating_add(bytes);
            return Err(Exceeded::Request { bytes, bytes_max });
        }
        if self.connection.charge(self.class, bytes) {
            return Ok(());
        }
        self.used.fetch_sub(bytes, Relaxed);
        Err(Exceeded::Shared)
    }

    /// Returns a guard of a caller that waits for work on another thread. Dropped before
    /// [`Waiting::ended`], it makes the work fail when it needs memory next.
    pub fn waiting(&self) -> Waiting<'_> {
        Waiting(Some(self))
    }

    /// Counts memory that is in use already: others get less.
    pub(crate) fn charge_anyway(&self, bytes: u64) {
        self.used.fetch_add(bytes, Relaxed);
        for used in self.connection.each_use() {
            used.fetch_add(bytes, Relaxed);
        }
    }

    /// Releases what was charged beyond `used_before`.
    pub(crate) fn release_to(&self, used_before: u64) {
        let released = self.used().saturating_sub(used_before);
        self.used.fetch_sub(released, Relaxed);
        self.connection.release(released);
    }

    fn released(&self) -> watch::Receiver<()> {
        self.connection.node.released.subscribe()
    }
}

impl Drop for RequestMemory {
    fn drop(&mut self) {
        self.release_to(0);
    }
}

/// Guard of a caller that waits for work.
pub struct Waiting<'a>(Option<&'a RequestMemory>);

impl Waiting<'_> {
    /// Notes that the work has ended.
    pub fn ended(mut self) {
        self.0 = None;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(memory) = self.0 {
            memory.is_abandoned.store(true, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
