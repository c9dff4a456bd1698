//! Connections to nodes: a few for each, made when first used, shared by all calls.

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

/// Time within which a node that refused a connection is not asked for another.
const REFUSED_FOR: Duration = Duration::from_millis(200);
/// Pings while calls are open; a node that does not answer in time is given up.
const PING_EVERY: Duration = Duration::from_secs(1);
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
    /// Why and when the last connection could not be made.
    refused: Mutex<Option<(Instant, String)>>,
}

/// A connection, and the stream on it once a call wanted one.
#[derive(Clone)]
struct Opened {
    channel: Channel,
    commands: Arc<OnceLock<CommandStream>>,
}

/// A connection in use.
#[derive(Clone)]
pub struct Connection {
    /// For calls.
    pub channel: Channel,
    commands: Arc<OnceLock<CommandStream>>,
    address: String,
    node: Arc<Node>,
}

impl Connections {
    /// None yet.
    pub fn new(options: Options) -> Self {
        Self { options, nodes: Mutex::default() }
    }

    /// A connection to `host:port`. An error says why there is none: nothing was sent.
    pub async fn get(&self, address: &str) -> Result<Connection, String> {
        let node = self.node(address);
        let turn = node.next.fetch_add(1, Relaxed) % node.channels.len().max(1);
        let Some(cell) = node.channels.get(turn) else { return Err("no connections".to_owned()) };
        let Opened { channel, commands } = match cell.get() {
            Some(opened) => opened.clone(),
            None => {
                if let Some(why) = node.refused_lately() {
                    return Err(why);
                }
                let made = cell.get_or_try_init(|| self.connect(address)).await;
                let refuse = |why: String| {
                    *node.refused.lock() = Some((Instant::now(), why.clone()));
                    why
                };
                made.map_err(refuse)?.clone()
            }
        };
        Ok(Connection { channel, commands, address: address.to_owned(), node })
    }

    /// Gives a connection that failed up, with the others to its node.
    pub fn forget(&self, failed: &Connection) {
        let mut nodes = self.nodes.lock();
        // Another call may have made new ones since.
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
        let invalid = |error| format!("`{address}` is no address (host:port): {error}");
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(invalid)?;
        let endpoint = endpoint
            .connect_timeout(self.options.connect_timeout)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT);
        let connected = transport::connect(endpoint).await;
        let channel = connected.map_err(|error| format!("{address}: {}", root_cause(&error)))?;
        Ok(Opened { channel, commands: Arc::default() })
    }
}

impl Connection {
    /// The stream that calls of single keys share.
    pub fn commands(&self) -> &CommandStream {
        self.commands.get_or_init(|| CommandStream::new(self.channel.clone()))
    }
}

impl Node {
    fn refused_lately(&self) -> Option<String> {
        let refused = self.refused.lock();
        let (at, why) = refused.as_ref()?;
        (at.elapsed() < REFUSED_FOR).then(|| why.clone())
    }
}

/// The innermost reason: the outer ones say only that there is one.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
