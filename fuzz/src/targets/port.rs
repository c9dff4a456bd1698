//! Target for the server port: the first bytes of a connection from any sender, and the bytes after
//! them.

use super::checksums;
use super::replication::sample_hello;
use crate::{Bound, Target};
use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use stele_node::snapshot::Position;
use stele_replica::PeerMessage;
use stele_server::access::Listener;
use stele_server::memory::NodeMemory;
use stele_server::port;
use stele_server::transport::frame::{FrameKind, whole};
use stele_server::transport::hello::{Offer, RESUMABLE};
use stele_server::transport::{
    Boots, BoxFuture, Deliver, Identity, MAGIC, Resolve, SnapshotOffer, Transport, TransportOptions,
};
use stele_types::{ClusterId, Error, StoreId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::time::timeout;

const MEMORY_BYTES_MAX: u64 = 64 << 20;

/// Handler that knows no store and drops all messages.
struct NullHandler;

impl Resolve for NullHandler {
    fn address(&self, _: StoreId) -> Option<String> {
        None
    }
}

impl Deliver for NullHandler {
    fn messages(&self, messages: &mut Vec<(PeerMessage, u64)>) {
        messages.clear();
    }
    fn reachable(&self, _: StoreId) {}
    fn unreachable(&self, _: StoreId) {}
    fn dropped(&self, _: StoreId) {}
    fn snapshot(&self, offer: SnapshotOffer) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let Ok(mut pieces) = offer.accept(Position::default()).await else { return };
            while let Ok(Some(_)) = pieces.next().await {}
            pieces.done(Ok(())).await;
        })
    }
    fn task_failed(&self, task: &str, error: Error) {
        eprintln!("{task} failed: {error}");
        std::process::abort();
    }
}

/// Port that is served while the thread that created it runs.
struct Served {
    runtime: Runtime,
    address: std::net::SocketAddr,
    _stop: watch::Sender<bool>,
}

impl Served {
    fn start() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let (stop, stopped) = watch::channel(false);
        let address = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let identity = Identity {
                cluster: ClusterId(9),
                address: address.to_string(),
                stores: vec![StoreId(4)],
                times: sample_hello().times.unwrap_or_default(),
                boots: Arc::new(Boots::new(1)),
            };
            let short = Duration::from_millis(20);
            let options = TransportOptions {
                dial_timeout: short,
                stall_max: short,
                ..TransportOptions::default()
            };
            let transport =
                Transport::start(options, identity, Arc::new(NullHandler), Arc::new(NullHandler));
            let router = Router::new().route("/healthz", get(|| async { "ok\n" }));
            let options =
                port::PortOptions { first_bytes_timeout: short, ..port::PortOptions::default() };
            tokio::spawn(port::serve(
                vec![(listener, Listener::ONLY)],
                router,
                transport,
                options,
                NodeMemory::new(MEMORY_BYTES_MAX),
                Arc::default(),
                stopped,
            ));
            address
        });
        Self { runtime, address, _stop: stop }
    }

    fn send(&self, input: &[u8]) {
        self.runtime.block_on(async {
            let Ok(stream) = TcpStream::connect(self.address).await else { return };
            // Connections in time-wait would use up all ports.
            stream.set_zero_linger().unwrap();
            let (mut answers, mut requests) = stream.into_split();
            let talk = async {
                let written = requests.write_all(input).await;
                if written.is_ok() && requests.shutdown().await.is_ok() {
                    let mut answer = [0; 4096];
                    while answers.read(&mut answer).await.is_ok_and(|bytes| bytes > 0) {}
                }
            };
            let _ = timeout(Duration::from_millis(200), talk).await;
        });
    }
}

thread_local! {
    static SERVED: Served = Served::start();
}

fn node(kind: FrameKind, body: &[u8], bulk: bool) -> Vec<u8> {
    let mut hello = sample_hello();
    if bulk {
        hello.lane = stele_server::transport::hello::Lane::Bulk;
    }
    let frames = [whole(FrameKind::Hello, &hello.encode()), whole(kind, body)];
    [&MAGIC[..], &frames[0], &frames[1]].concat()
}

pub(super) const PORT: Target = Target {
    name: "server_port",
    run: |input| SERVED.with(|served| served.send(input)),
    seeds: || {
        let header = Bytes::from_static(b"header");
        let offer = Offer { to: StoreId(4), from: StoreId(1), resumes: true, header };
        let mut bulk = node(FrameKind::Offer, &offer.encode(RESUMABLE), true);
        bulk.extend_from_slice(&whole(FrameKind::Chunk, b"\0\0\0\0\0\0\0\0chunk"));
        let http2 =
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x01\x01\x05\0\0\0\x01";
        vec![
            b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".to_vec(),
            b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
                .to_vec(),
            [&http2[..], b"\x82\x86\x84\x41\x01a"].concat(),
            node(FrameKind::Message, b"no message", false),
            bulk,
        ]
    },
    fix_checksums: Some(|input| {
        if input.starts_with(&MAGIC) {
            let mut frames = input.split_off(MAGIC.len());
            checksums::frames(&mut frames);
            input.extend_from_slice(&frames);
        }
    }),
    // A data frame may reserve 2 MiB before its bytes arrive; hyper's windows have the same size.
    bound: Bound { bytes: 12 << 20, per_byte: 64 },
};
