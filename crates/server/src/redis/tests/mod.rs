//! The listener over sockets, before regions in memory.

mod bounds;
mod fake;
mod handshakes;
mod pipelines;
mod rights;
mod server;
mod transactions;

use super::encoded::replies;
use super::{RedisPort, serve};
use crate::memory::NodeMemory;
use crate::port::{PortOptions, Stats};
use bytes::{Bytes, BytesMut};
use fake::FakeRegions;
use std::sync::Arc;
use std::time::Duration;
use stele_redis_region::encode_request;
use stele_vfs::SystemClock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Time in which whatever a test waits for must happen.
const TIME: Duration = Duration::from_secs(20);

struct Server {
    address: String,
    fake: Arc<FakeRegions>,
    redis: Arc<RedisPort>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Server {
    async fn start() -> Self {
        Self::with(PortOptions::default(), 64 << 20).await
    }

    async fn with(options: PortOptions, memory_bytes: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let fake = Arc::new(FakeRegions::default());
        let memory = NodeMemory::new(memory_bytes);
        let (stats, clock) = (Arc::new(Stats::default()), Arc::new(SystemClock::new()));
        let redis = RedisPort::new(fake.clone(), options, memory, stats, clock);
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(serve(listener, redis.clone(), stopped));
        Self { address, fake, redis, stop, task }
    }

    async fn connect(&self) -> Client {
        Client::new(TcpStream::connect(&self.address).await.unwrap())
    }
}

struct Client {
    stream: TcpStream,
    received: BytesMut,
}

impl Client {
    fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        Self { stream, received: BytesMut::new() }
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Receives a number of replies.
    async fn replies(&mut self, count: usize) -> Vec<String> {
        loop {
            let whole = replies(&Bytes::copy_from_slice(&self.received)).unwrap_or_default();
            if whole.len() >= count {
                assert_eq!(whole.len(), count, "{whole:?}");
                self.received.clear();
                return whole.iter().map(|it| String::from_utf8_lossy(it).into_owned()).collect();
            }
            let read = timeout(TIME, self.stream.read_buf(&mut self.received)).await;
            let read = read.unwrap_or_else(|_| panic!("no more after {:?}", self.received));
            assert_ne!(read.unwrap(), 0, "closed after {:?}", self.received);
        }
    }

    /// Sends commands, each a line of words, in one write; returns their replies.
    async fn ask_all(&mut self, commands: &[&str]) -> Vec<String> {
        self.send(&pipeline(commands)).await;
        self.replies(commands.len()).await
    }

    async fn ask(&mut self, command: &str) -> String {
        self.ask_all(&[command]).await.remove(0)
    }

    /// Returns what is received until the end of the connection.
    async fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        // A connection that is reset has ended too.
        let _ = timeout(TIME, self.stream.read_to_end(&mut rest)).await.expect("it ends");
        String::from_utf8_lossy(&[&self.received[..], &rest].concat()).into_owned()
    }
}

fn words(command: &str) -> Vec<Bytes> {
    command.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes())).collect()
}

fn pipeline(commands: &[&str]) -> Vec<u8> {
    commands.iter().flat_map(|command| encode_request(&words(command))).collect()
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let started = std::time::Instant::now();
    while !is_so() {
        assert!(started.elapsed() < TIME, "{what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
