//! The port of a node: nodes and clients connect to the same listener, unless settings give them listeners
//! of their own. The first bytes distinguish them: what is not another node's transport is HTTP/2 or
//! HTTP/1. Calls and paths that the port does not serve are answered too.

pub mod probes;
#[cfg(test)]
pub(crate) mod secured_tests;
#[cfg(test)]
pub(crate) mod tests;

use crate::access::{Access, Handshakes, Listener, Rights, Socket, plain, socket};
use crate::http::HttpFailure;
use crate::memory::{Accounted, ConnectionMemory, Limits, NodeMemory};
use crate::observe::EdgeCounts;
use crate::transport::{MAGIC, Transport};
use axum::Router;
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;
use stele_tls::{ClientName, Protocol};
use stele_vfs::HandlePool;
use tokio::io::AsyncBufReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::either::Either;
use tonic::{Code, Status};

/// Largest gRPC message: one largest batch or a list of many regions, and room to spare.
pub const MESSAGE_BYTES_MAX: usize = 128 << 20;

/// Bounds of the port.
#[derive(Clone, Debug)]
pub struct PortOptions {
    /// Connections, plain or over TLS, and their identities.
    pub access: Access,
    /// Most connections of all kinds; further ones are closed at once. It may change while the port
    /// serves.
    pub connections_max: Arc<AtomicU64>,
    /// Open value files, of which some are closed when no connection can be accepted.
    pub handles: Arc<HandlePool>,
    /// Time for the first bytes, and for the header of an HTTP/1 request.
    pub first_bytes_timeout: Duration,
    /// Most requests at the same time on one HTTP/2 connection.
    pub streams_max: u32,
    /// Bytes of one request's body that may arrive before they are read, at most.
    pub stream_window_bytes_max: u32,
    /// The same for all requests of a connection. The memory of the node decides.
    pub connection_window_bytes_max: u32,
    /// Limits of the body of a request.
    pub body: Limits,
    /// Bytes in an HTTP/2 frame of a request. Each frame is one write of its client: with its
    /// headers it fits into the 64 KiB that the kernel passes to its device at once.
    pub frame_bytes_max: u32,
    /// Bytes of a request's headers.
    pub header_bytes_max: u32,
    /// Time between HTTP/2 pings to an idle client.
    pub keepalive_interval: Duration,
    /// Time for the reply to a ping.
    pub keepalive_timeout: Duration,
    /// Time for requests in progress to end at shutdown.
    pub drain_timeout: Duration,
}

impl Default for PortOptions {
    fn default() -> Self {
        Self {
            access: Access::default(),
            connections_max: Arc::new(AtomicU64::new(4096)),
            handles: Arc::default(),
            first_bytes_timeout: Duration::from_secs(5),
            streams_max: 4096,
            stream_window_bytes_max: 1 << 20,
            connection_window_bytes_max: 4 << 20,
            body: Limits {
                message_bytes_max: MESSAGE_BYTES_MAX as u64,
                time_max: Duration::from_secs(60),
                memory_wait: Duration::from_secs(10),
            },
            frame_bytes_max: 60 << 10,
            header_bytes_max: 16 << 10,
            keepalive_interval: Duration::from_secs(20),
            keepalive_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(5),
        }
    }
}

/// Totals since the start.
#[derive(Debug, Default)]
pub struct Stats {
    /// Accepted connections.
    pub accepted: AtomicU64,
    /// Connections open now.
    pub open: AtomicU64,
    /// Connections closed at once because there were too many.
    pub refused: AtomicU64,
    /// Connections that sent no recognizable first bytes in time.
    pub silent: AtomicU64,
    /// Failures of the listener itself, for example when file handles run out.
    pub failed: AtomicU64,
    /// Requests of the protocols.
    pub edges: EdgeCounts,
}

/// Serves the listeners until `stop` turns true, then waits for requests of clients in progress. The
/// first of several is accepted from first.
pub async fn serve(
    listeners: Vec<(TcpListener, Listener)>,
    router: Router,
    transport: Transport,
    options: PortOptions,
    memory: Arc<NodeMemory>,
    stats: Arc<Stats>,
    mut stop: watch::Receiver<bool>,
) {
    let builder = Arc::new(builder(&options));
    let http = Http { builder, router, memory, options: options.clone(), stop: stop.clone() };
    let accepting =
        Arc::new(Accepting { handshakes: Handshakes::default(), options: options.clone() });
    // Closed when the last connection of a client has dropped its receiver.
    let running = watch::Sender::new(());
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listeners) => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let Ok((stream, listener)) = accepted else {
            stats.failed.fetch_add(1, Relaxed);
            // Out of descriptors or memory: open files are closed, or other connections must end first.
            options.handles.close_some();
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Some(open) = Open::begin(&stats, &options) else { continue };
        let (http, transport, stats) = (http.clone(), transport.clone(), stats.clone());
        let (accepting, alive) = (accepting.clone(), running.subscribe());
        let mut stop = stop.clone();
        tokio::spawn(async move {
            let _open = open;
            let first = tokio::select! {
                first = accepting.first(stream, listener) => first,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            match first {
                First::Node(socket, rights) => {
                    // The transport closes the connections of nodes.
                    drop(alive);
                    transport.serve(socket, rights).await;
                }
                First::Client(socket, rights) => {
                    let Ok(_counted) = rights.connect() else {
                        stats.refused.fetch_add(1, Relaxed);
                        return;
                    };
                    http.serve(socket, rights).await;
                    drop(alive);
                }
                First::Ended => {}
                First::Silent => {
                    stats.silent.fetch_add(1, Relaxed);
                }
            }
        });
    }
    drop(listeners);
    // Connections that do not end in time are closed with the runtime.
    let _ = timeout(options.drain_timeout, running.closed()).await;
}

/// Waits for the next connection of any listener.
async fn accept(listeners: &[(TcpListener, Listener)]) -> io::Result<(TcpStream, Listener)> {
    poll_fn(|context| {
        for (listener, kind) in listeners {
            if let Poll::Ready(accepted) = listener.poll_accept(context) {
                return Poll::Ready(accepted.map(|(stream, _)| (stream, *kind)));
            }
        }
        Poll::Pending
    })
    .await
}

/// Counts a connection as open until it is dropped.
pub(crate) struct Open(Arc<Stats>);

impl Open {
    /// Counts an accepted connection; `None` if there are too many.
    pub(crate) fn begin(stats: &Arc<Stats>, options: &PortOptions) -> Option<Self> {
        let connections_max = options.connections_max.load(Relaxed);
        let one_more = |open: u64| (open < connections_max).then_some(open + 1);
        // The listener of Redis opens connections too.
        if stats.open.fetch_update(Relaxed, Relaxed, one_more).is_err() {
            stats.refused.fetch_add(1, Relaxed);
            return None;
        }
        stats.accepted.fetch_add(1, Relaxed);
        Some(Self(stats.clone()))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

/// What an accepted connection turns out to be.
enum First {
    Node(Socket, Rights),
    Client(Socket, Rights),
    Ended,
    Silent,
}

struct Accepting {
    handshakes: Handshakes,
    options: PortOptions,
}

impl Accepting {
    async fn first(&self, stream: TcpStream, listener: Listener) -> First {
        let access = &self.options.access;
        let is_tls =
            match timeout(self.options.first_bytes_timeout, may_be_tls(access, &stream)).await {
                Ok(Ok(is_tls)) => is_tls,
                Ok(Err(_)) => return First::Ended,
                Err(_) => return First::Silent,
            };
        if let Some(tls) = access.tls().filter(|_| is_tls) {
            let Some(mut accepted) = self.handshakes.accept(tls, stream).await else {
                return First::Ended;
            };
            if let Either::Right(stream) = &mut accepted.socket {
                // Consumes none of them.
                let bytes = timeout(self.options.first_bytes_timeout, stream.fill_buf()).await;
                match bytes {
                    Ok(Ok(bytes)) if !bytes.is_empty() => {}
                    Ok(_) => return First::Ended,
                    Err(_) => return First::Silent,
                }
            }
            let (socket, rights) = (accepted.socket, accepted.rights.at(listener));
            return match accepted.protocol {
                Protocol::Node => First::Node(socket, rights),
                Protocol::Http2 | Protocol::Http1 => First::Client(socket, rights),
            };
        }
        let audit = self.options.access.audit().clone();
        let rights = Rights::of_plain().at(listener).recorded(audit, stream.peer_addr().ok());
        let is_node = is_node(&stream);
        match timeout(self.options.first_bytes_timeout, is_node).await {
            Ok(Ok(true)) => First::Node(plain(stream), rights),
            Ok(Ok(false)) => First::Client(plain(stream), rights),
            Ok(Err(_)) => First::Ended,
            Err(_) => First::Silent,
        }
    }
}

/// First byte of a connection over TLS: the type of the record of a handshake.
const TLS_HANDSHAKE: u8 = 22;

/// Returns whether a connection is to begin with a handshake. In the transition to TLS its first byte decides, which
/// is not consumed.
///
/// Invariant: a node with TLS serves connections without it in the transition alone.
/// Tests: `tls_is_turned_on_node_by_node_while_clients_work`.
pub(crate) async fn may_be_tls(access: &Access, stream: &TcpStream) -> io::Result<bool> {
    // bug server.plain_beside_tls: never
    if !access.is_in_transition() {
        return Ok(access.tls().is_some());
    }
    let mut first = [0];
    match stream.peek(&mut first).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(first == [TLS_HANDSHAKE]),
    }
}

/// Returns whether the first bytes are another node's. Consumes none of them.
async fn is_node(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; MAGIC.len()];
    loop {
        let bytes = stream.peek(&mut first).await?;
        if bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if first[..bytes] != MAGIC[..bytes] {
            return Ok(false);
        }
        if bytes == MAGIC.len() {
            return Ok(true);
        }
        // Part of the eight bytes is here, so that the socket counts as readable.
        sleep(Duration::from_millis(5)).await;
    }
}

fn builder(options: &PortOptions) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(options.streams_max)
        .max_frame_size(options.frame_bytes_max)
        .max_header_list_size(options.header_bytes_max)
        .keep_alive_interval(options.keepalive_interval)
        .keep_alive_timeout(options.keepalive_timeout);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(options.first_bytes_timeout)
        .max_buf_size((options.header_bytes_max as usize).max(8 << 10));
    builder
}

#[derive(Clone)]
struct Http {
    builder: Arc<Builder<TokioExecutor>>,
    router: Router,
    memory: Arc<NodeMemory>,
    options: PortOptions,
    stop: watch::Receiver<bool>,
}

impl Http {
    async fn serve(mut self, stream: Socket, rights: Rights) {
        // A refusal costs only latency.
        let _ = socket::tcp(&stream).set_nodelay(true);
        let PortOptions { stream_window_bytes_max, connection_window_bytes_max, body, .. } =
            self.options;
        let client = rights.client().map(ClientName::as_str);
        let memory = ConnectionMemory::of_client(&self.memory, connection_window_bytes_max, client);
        let window_bytes = memory.window_bytes();
        let mut builder = (*self.builder).clone();
        builder
            .http2()
            .initial_stream_window_size(window_bytes.min(stream_window_bytes_max))
            .initial_connection_window_size(window_bytes);
        let service = TowerToHyperService::new(Accounted::new(self.router, memory, body, rights));
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        // The error of a client's connection concerns only the client.
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = self.stop.wait_for(|stop| *stop) => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    }
}

pub(crate) const RAW_CALLS_ONLY: &str = "raw key-value calls only";

/// Beginning of the paths of Stele's own calls.
pub(crate) const OWN_CALLS: &str = "/stele.";

/// Adds a text to the refusals of calls that a generated service does not have. Their status has none.
pub(crate) fn with_text_of_unsupported(grpc: Router) -> Router {
    grpc.layer(map_response(async |uri: Uri, response: Response| {
        let status = response.headers().get(Status::GRPC_STATUS);
        let is_refusal =
            status.is_some_and(|status| Code::from_bytes(status.as_bytes()) == Code::Unimplemented);
        match is_refusal && !response.headers().contains_key(Status::GRPC_MESSAGE) {
            true => refusal(uri.path()),
            false => response,
        }
    }))
}

pub(crate) async fn answer_unsupported(request: Request) -> Response {
    unsupported(request.uri().path(), request.headers())
}

/// Returns the answer to a request for a path that is not served.
pub(crate) fn unsupported(path: &str, headers: &HeaderMap) -> Response {
    let kind = headers.get(CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        return refusal(path);
    }
    if path.starts_with("/v1/") {
        return HttpFailure::no_such_path(path).into_response();
    }
    (StatusCode::NOT_FOUND, "this path does not exist; / lists those that do\n").into_response()
}

fn refusal(path: &str) -> Response {
    let text = match path.starts_with(OWN_CALLS) {
        true => format!("{path} is not a call of this version: upgrade the node"),
        false => format!("{path} is not supported: {RAW_CALLS_ONLY}"),
    };
    Status::unimplemented(text).into_http()
}
