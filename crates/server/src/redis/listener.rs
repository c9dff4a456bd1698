//! Listener of the Redis protocol: connections are accepted, counted and drained as those of the other
//! listeners.

use super::Execute;
use super::clients::Clients;
use super::connection::Connection;
use crate::access::{Handshakes, Listener, Rights, Socket, plain};
use crate::memory::NodeMemory;
use crate::node::random;
use crate::port::{Open, PortOptions, Stats, may_be_tls};
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use stele_tls::Protocol;
use stele_types::Clock;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// What the connections of the listener share.
pub(crate) struct RedisPort {
    pub(super) executor: Arc<dyn Execute>,
    pub(super) options: PortOptions,
    pub(super) memory: Arc<NodeMemory>,
    pub(super) stats: Arc<Stats>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) clients: Clients,
    pub(super) started: Instant,
    /// 40 hexadecimal digits, other ones after each start.
    pub(super) run_id: String,
    /// Requests since the start.
    pub(super) commands: AtomicU64,
    /// Port of the listener; 0 before it serves.
    pub(super) port: AtomicU64,
    handshakes: Handshakes,
}

impl RedisPort {
    /// Creates the state of a listener. `options` and `stats` are those of the node's port: their limit
    /// counts all connections.
    pub(crate) fn new(
        executor: Arc<dyn Execute>,
        options: PortOptions,
        memory: Arc<NodeMemory>,
        stats: Arc<Stats>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        Arc::new(Self {
            executor,
            options,
            memory,
            stats,
            clock,
            clients: Clients::default(),
            started: Instant::now(),
            run_id: format!("{:016x}{:016x}{:08x}", random(), random(), random() as u32),
            commands: AtomicU64::new(0),
            port: AtomicU64::new(0),
            handshakes: Handshakes::default(),
        })
    }

    /// Performs the handshake of an accepted connection, and serves it.
    async fn serve(self: Arc<Self>, stream: TcpStream, stop: watch::Receiver<bool>) {
        let (peer, local) = (stream.peer_addr().ok(), stream.local_addr().ok());
        let Some((socket, rights)) = self.accepted(stream, peer, stop.clone()).await else {
            return;
        };
        // The place of a caller with limits, until the connection ends.
        let Ok(_counted) = rights.connect() else {
            self.stats.refused.fetch_add(1, Relaxed);
            return;
        };
        let _open = self.stats.edges.open_redis();
        let client = self.clients.add((peer, local), &rights);
        let connection =
            Connection::new(socket, rights, self.clone(), client.client().clone(), stop);
        // The error of a client's connection concerns only the client.
        let _ = connection.serve().await;
    }

    async fn accepted(
        &self,
        stream: TcpStream,
        peer: Option<SocketAddr>,
        mut stop: watch::Receiver<bool>,
    ) -> Option<(Socket, Rights)> {
        let access = &self.options.access;
        let is_tls = timeout(self.options.first_bytes_timeout, may_be_tls(access, &stream));
        let is_tls = tokio::select! {
            is_tls = is_tls => is_tls,
            _ = stop.wait_for(|stop| *stop) => return None,
        };
        let Ok(Ok(is_tls)) = is_tls else { return None };
        let Some(tls) = access.tls().filter(|_| is_tls) else {
            let rights = Rights::of_plain().at(Listener::ONLY);
            return Some((plain(stream), rights.recorded(access.audit().clone(), peer)));
        };
        let accepted = self.handshakes.accept(tls, stream).await?;
        match accepted.protocol {
            Protocol::Node => None,
            Protocol::Http1 | Protocol::Http2 => {
                Some((accepted.socket, accepted.rights.at(Listener::ONLY)))
            }
        }
    }
}

/// Serves the listener until `stop` turns true, then waits for requests in progress.
pub(crate) async fn serve(
    listener: TcpListener,
    redis: Arc<RedisPort>,
    mut stop: watch::Receiver<bool>,
) {
    let port = listener.local_addr().map_or(0, |address| address.port());
    redis.port.store(u64::from(port), Relaxed);
    // Closed when the last connection has dropped its receiver.
    let running = watch::Sender::new(());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let Ok((stream, _)) = accepted else {
            redis.stats.failed.fetch_add(1, Relaxed);
            // Out of descriptors or memory: open files are closed, or other connections must end first.
            redis.options.handles.close_some();
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Some(open) = Open::begin(&redis.stats, &redis.options) else {
            refuse(stream, redis.options.access.tls().is_some());
            continue;
        };
        let (redis, stop, alive) = (redis.clone(), stop.clone(), running.subscribe());
        tokio::spawn(async move {
            redis.serve(stream, stop).await;
            drop((open, alive));
        });
    }
    drop(listener);
    // Connections that do not end in time are closed with the runtime.
    let _ = timeout(redis.options.drain_timeout, running.closed()).await;
}

/// Closes a connection beyond the limit. Without TLS the client receives the reason.
fn refuse(stream: TcpStream, is_tls: bool) {
    if is_tls {
        return;
    }
    if let Ok(mut stream) = stream.into_std() {
        // A new connection has room for it; otherwise the client sees only the end.
        let _ = stream.write_all(b"-ERR max number of clients reached\r\n");
    }
}
