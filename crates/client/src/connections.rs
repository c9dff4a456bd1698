//! Connections to nodes: a fixed number per node, made on first use and shared by all calls.

use crate::Options;
use crate::stream::CommandStream;
use crate::wire::{Dial, Wire};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::time::Instant;

/// Time after a refused connection during which no further one is attempted.
const REFUSAL_BACKOFF: Duration = Duration::from_millis(200);
pub(crate) struct Connections {
    dial: Box<dyn Dial>,
    connections_per_node: usize,
    nodes: Mutex<HashMap<String, Arc<Node>>>,
}

struct Node {
    channels: Vec<OnceCell<Opened>>,
    next: AtomicUsize,
    /// Time and reason of the last failed connection.
    refused: Mutex<Option<(Instant, String)>>,
}

/// A connection, with its command stream once a call has used it.
#[derive(Clone)]
struct Opened {
    wire: Wire,
    commands: Arc<OnceLock<CommandStream>>,
}

/// A connection handed to a call.
#[derive(Clone)]
pub(crate) struct Connection {
    /// Connection for unary calls.
    pub wire: Wire,
    commands: Arc<OnceLock<CommandStream>>,
    address: String,
    node: Arc<Node>,
}

impl Connections {
    pub(crate) fn new(dial: Box<dyn Dial>, options: &Options) -> Self {
        let connections_per_node = options.connections_per_node.max(1);
        Self { dial, connections_per_node, nodes: Mutex::default() }
    }

    /// Returns a connection to `host:port`. On an error nothing was sent.
    pub(crate) async fn get(&self, address: &str) -> Result<Connection, String> {
        let node = self.node(address);
        let turn = node.next.fetch_add(1, Relaxed) % node.channels.len().max(1);
        let Some(cell) = node.channels.get(turn) else { return Err("no connections".to_owned()) };
        let Opened { wire, commands } = match cell.get() {
            Some(opened) => opened.clone(),
            None => {
                if let Some(reason) = node.recent_refusal() {
                    return Err(reason);
                }
                let made = cell.get_or_try_init(|| self.connect(address)).await;
                let refuse = |reason: String| {
                    *node.refused.lock() = Some((Instant::now(), reason.clone()));
                    reason
                };
                made.map_err(refuse)?.clone()
            }
        };
        Ok(Connection { wire, commands, address: address.to_owned(), node })
    }

    /// Drops all connections to the node of a failed one.
    pub(crate) fn forget(&self, failed: &Connection) {
        let mut nodes = self.nodes.lock();
        // Another call may have replaced them meanwhile.
        if nodes.get(&failed.address).is_some_and(|node| Arc::ptr_eq(node, &failed.node)) {
            nodes.remove(&failed.address);
        }
    }

    fn node(&self, address: &str) -> Arc<Node> {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get(address) {
            return Arc::clone(node);
        }
        let channels = (0..self.connections_per_node).map(|_| OnceCell::new()).collect();
        let node = Node { channels, next: AtomicUsize::new(0), refused: Mutex::new(None) };
        let node = Arc::new(node);
        nodes.insert(address.to_owned(), Arc::clone(&node));
        node
    }

    async fn connect(&self, address: &str) -> Result<Opened, String> {
        Ok(Opened { wire: self.dial.dial(address).await?, commands: Arc::default() })
    }
}

impl Connection {
    /// Returns the stream that calls of single keys share.
    pub(crate) fn commands(&self) -> &CommandStream {
        self.commands.get_or_init(|| CommandStream::new(self.wire.clone()))
    }
}

impl Node {
    fn recent_refusal(&self) -> Option<String> {
        let refused = self.refused.lock();
        let (at, reason) = refused.as_ref()?;
        (at.elapsed() < REFUSAL_BACKOFF).then(|| reason.clone())
    }
}
