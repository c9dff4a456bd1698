//! Connections to nodes: a fixed number per node, made on first use and shared by all calls.

use crate::Options;
use crate::stream::CommandStream;
use crate::transport;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};

/// Time after a refused connection during which no further one is attempted.
const REFUSAL_BACKOFF: Duration = Duration::from_millis(200);
/// Interval of pings while calls are open, and the time after which a node without a reply is
/// disconnected.
const PING_INTERVAL: Duration = Duration::from_secs(1);
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// All connections of a client.
pub struct Connections {
    options: Options,
    nodes: Mutex<HashMap<String, Arc<Node>>>,
}

/// Connections to one node.
struct Node {
    channels: Vec<OnceCell<Opened>>,
    next: AtomicUsize,
    /// Time and reason of the last failed connection.
    refused: Mutex<Option<(Instant, String)>>,
}

/// A connection, with its command stream once a call has used it.
#[derive(Clone)]
struct Opened {
    channel: Channel,
    commands: Arc<OnceLock<CommandStream>>,
}

/// A connection handed to a call.
#[derive(Clone)]
pub struct Connection {
    /// Channel for unary calls.
    pub channel: Channel,
    commands: Arc<OnceLock<CommandStream>>,
    address: String,
    node: Arc<Node>,
}

impl Connections {
    /// Creates the pool without connections.
    pub fn new(options: Options) -> Self {
        Self { options, nodes: Mutex::default() }
    }

    /// Returns a connection to `host:port`. On an error nothing was sent.
    pub async fn get(&self, address: &str) -> Result<Connection, String> {
        let node = self.node(address);
        let turn = node.next.fetch_add(1, Relaxed) % node.channels.len().max(1);
        let Some(cell) = node.channels.get(turn) else { return Err("no connections".to_owned()) };
        let Opened { channel, commands } = match cell.get() {
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
        Ok(Connection { channel, commands, address: address.to_owned(), node })
    }

    /// Drops all connections to the node of a failed one.
    pub fn forget(&self, failed: &Connection) {
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
        let count = self.options.connections_per_node.max(1);
        let channels = (0..count).map(|_| OnceCell::new()).collect();
        let node = Node { channels, next: AtomicUsize::new(0), refused: Mutex::new(None) };
        let node = Arc::new(node);
        nodes.insert(address.to_owned(), Arc::clone(&node));
        node
    }

    async fn connect(&self, address: &str) -> Result<Opened, String> {
        let invalid = |error| format!("`{address}` is not an address (host:port): {error}");
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(invalid)?;
        let endpoint = endpoint
            .connect_timeout(self.options.connect_timeout)
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        let connected = transport::connect(endpoint).await;
        let channel = connected.map_err(|error| format!("{address}: {}", root_cause(&error)))?;
        Ok(Opened { channel, commands: Arc::default() })
    }
}

impl Connection {
    /// Returns the stream that calls of single keys share.
    pub fn commands(&self) -> &CommandStream {
        self.commands.get_or_init(|| CommandStream::new(self.channel.clone()))
    }
}

impl Node {
    fn recent_refusal(&self) -> Option<String> {
        let refused = self.refused.lock();
        let (at, reason) = refused.as_ref()?;
        (at.elapsed() < REFUSAL_BACKOFF).then(|| reason.clone())
    }
}

/// Returns the innermost cause, because outer errors say only that there is one.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
