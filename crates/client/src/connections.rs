//! Connections to nodes: a fixed number per node, made on first use and shared by all calls. Their
//! readers yield regularly. A [`Wire`] is such a connection below everything that decides: the
//! network, or a simulation of it.

use crate::Options;
use crate::stream::CommandStream;
use http::Uri;
use http::header::{AUTHORIZATION, HeaderValue};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;
use stele_tls::rustls::pki_types::ServerName;
use stele_tls::{ClientTls, HandshakeFailure, Protocol};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_util::either::Either;
use tonic::Status;
use tonic::body::Body;
use tonic::transport::{Channel, Endpoint, Error};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceExt, service_fn};

/// Time after a refused connection during which no further one is attempted.
const REFUSAL_BACKOFF: Duration = Duration::from_millis(200);
pub(crate) struct Connections {
    dial: Arc<dyn Dial>,
    connections_per_node: usize,
    nodes: Mutex<HashMap<String, Arc<Node>>>,
}

struct Node {
    channels: Vec<OnceCell<Opened>>,
    next: AtomicUsize,
    refused: Mutex<Option<(Instant, String)>>,
}

#[derive(Clone)]
struct Opened {
    wire: Wire,
    commands: Arc<OnceLock<CommandStream>>,
}

#[derive(Clone)]
pub(crate) struct Connection {
    pub wire: Wire,
    commands: Arc<OnceLock<CommandStream>>,
    address: String,
    node: Arc<Node>,
}

impl Connections {
    pub(crate) fn new(dial: Box<dyn Dial>, options: &Options) -> Self {
        let connections_per_node = options.connections_per_node.max(1);
        Self { dial: dial.into(), connections_per_node, nodes: Mutex::default() }
    }

    /// Returns a set of other connections, one to each node, that are made in the same way.
    pub(crate) fn beside(&self) -> Self {
        Self { dial: Arc::clone(&self.dial), connections_per_node: 1, nodes: Mutex::default() }
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

/// Flow-control windows, sized for a few large values in flight.
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
/// Maximum bytes of a frame in a response. Each frame is one write of the server. The limit is the
/// largest that, with its header, fits into what the kernel passes to its device at once: 64 KiB
/// with IP and TCP headers.
const FRAME_BYTES_MAX: u32 = 60 << 10;
/// Bytes after which the reader of a connection yields. The consumer copies messages out of the
/// frames: after so many bytes they are still in the processor's cache, after a whole window they
/// are not.
const YIELD_BYTES: usize = 64 << 10;

/// Connects as the client connects to its nodes, so that a benchmark of another server uses the
/// same settings. With `tls` the certificate of the server must have the name or address that is dialled.
pub async fn connect(endpoint: Endpoint, tls: Option<&ClientTls>) -> Result<Channel, Error> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let tls = tls.map(|tls| TlsConnector::from(tls.config(Protocol::Http2)));
    let yielding = service_fn(move |uri: Uri| {
        let (mut tcp, tls) = (tcp.clone(), tls.clone());
        async move {
            let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
            let stream = tcp.ready().await?.call(uri).await?.into_inner();
            let stream = match tls {
                None => Either::Left(stream),
                Some(tls) => Either::Right(
                    tls.connect(ServerName::try_from(host)?, stream).await.map_err(with_remedy)?,
                ),
            };
            Ok::<_, BoxError>(TokioIo::new(YieldingStream::new(stream)))
        }
    });
    endpoint
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .connect_with_connector(yielding)
        .await
}

/// Adds what an operator can do to an error of TLS. A server's refusal of a certificate comes after the
/// handshake, with the first bytes.
fn with_remedy(error: io::Error) -> io::Error {
    if !error.get_ref().is_some_and(|inner| inner.is::<stele_tls::rustls::Error>()) {
        return error;
    }
    let failure = HandshakeFailure::of(&error);
    io::Error::new(error.kind(), format!("TLS: {error}; {}", failure.remedy()))
}

/// First bytes of an alert of TLS, with which a node answers a client that speaks none. An answer of HTTP/2
/// begins with the length of a frame, which is shorter.
const ALERT: [u8; 2] = [21, 3];

/// A stream that makes its reader yield after [`YIELD_BYTES`], even if more bytes are available.
struct YieldingStream<S> {
    stream: S,
    left_bytes: usize,
    is_new: bool,
}

impl<S> YieldingStream<S> {
    fn new(stream: S) -> Self {
        Self { stream, left_bytes: YIELD_BYTES, is_new: true }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for YieldingStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left_bytes == 0 {
            self.left_bytes = YIELD_BYTES;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = into.filled().len();
        let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, into) else {
            // Waiting for bytes lets other tasks run.
            self.left_bytes = YIELD_BYTES;
            return Poll::Pending;
        };
        self.left_bytes = self.left_bytes.saturating_sub(into.filled().len() - before);
        let first = into.filled().get(before..).unwrap_or_default();
        if std::mem::take(&mut self.is_new) && first.starts_with(&ALERT) {
            let text =
                "the node requires TLS: give its authority and a certificate (--ca, --cert, --key)";
            return Poll::Ready(Err(io::Error::other(text)));
        }
        Poll::Ready(read.map_err(with_remedy))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for YieldingStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Interval of pings while calls are open, and the time after which a node without a reply is
/// disconnected.
const PING_INTERVAL: Duration = Duration::from_secs(1);
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// A connection that carries any number of calls. A failure has the connection's error as its source.
pub type Wire = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, Status>;

/// A connection in the making. The error is a text; nothing was sent then.
pub type Dialled<'a> = Pin<Box<dyn Future<Output = Result<Wire, String>> + Send + 'a>>;

/// Makes connections to nodes.
pub trait Dial: Send + Sync {
    /// Connects to `host:port`.
    fn dial<'a>(&'a self, address: &'a str) -> Dialled<'a>;
}

pub(crate) struct Network {
    pub connect_timeout: Duration,
    pub tls: Option<Arc<ClientTls>>,
    /// Header with the token of all calls.
    pub token: Option<HeaderValue>,
}

/// Returns the header that carries a token. Fails with `Invalid`, without the token, if it is not one.
pub(crate) fn bearer(token: &str) -> stele_types::Result<HeaderValue> {
    let mut header = HeaderValue::from_str(&format!("Bearer {}", token.trim()))
        .map_err(|_| stele_types::Error::invalid("the token has characters that no token has"))?;
    header.set_sensitive(true);
    Ok(header)
}

impl Dial for Network {
    fn dial<'a>(&'a self, address: &'a str) -> Dialled<'a> {
        Box::pin(async move {
            let invalid = |error| format!("`{address}` is not an address (host:port): {error}");
            let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(invalid)?;
            let endpoint = endpoint
                .connect_timeout(self.connect_timeout)
                .http2_keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_TIMEOUT);
            let connected = connect(endpoint, self.tls.as_deref()).await;
            let channel =
                connected.map_err(|error| format!("{address}: {}", root_cause(&error)))?;
            let Some(token) = self.token.clone() else { return Ok(over(channel)) };
            Ok(over(channel.map_request(move |mut request: http::Request<Body>| {
                request.headers_mut().insert(AUTHORIZATION, token.clone());
                request
            })))
        })
    }
}

/// Makes a connection of a service that carries calls.
pub fn over<S>(service: S) -> Wire
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
{
    BoxCloneSyncService::new(service.map_err(|error| Status::from_error(error.into())))
}

/// Returns the innermost cause, because outer errors say only that there is one.
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::task::{Wake, Waker};

    #[derive(Default)]
    struct Wakes(AtomicU64);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn a_reader_lets_others_run_after_a_turn_and_gets_each_byte() {
        let sent: Vec<u8> = (0..YIELD_BYTES * 3).map(|at| (at % 251) as u8).collect();
        let mut stream = YieldingStream::new(sent.as_slice());
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        let mut cx = Context::from_waker(&waker);
        let (mut got, mut bytes_in_turn, mut turns) = (Vec::new(), 0, Vec::new());
        let mut page = [0; 4096];
        loop {
            let mut into = ReadBuf::new(&mut page);
            match Pin::new(&mut stream).poll_read(&mut cx, &mut into) {
                Poll::Ready(read) => read.unwrap(),
                Poll::Pending => {
                    turns.push(bytes_in_turn);
                    bytes_in_turn = 0;
                    // The bytes are already there, so no other event would wake the reader.
                    assert_eq!(wakes.0.load(Relaxed), turns.len() as u64);
                    continue;
                }
            }
            if into.filled().is_empty() {
                break;
            }
            bytes_in_turn += into.filled().len();
            got.extend_from_slice(into.filled());
        }
        assert_eq!(turns, [YIELD_BYTES; 3]);
        assert!(got == sent);
    }
}
