//! Task of one connection: requests are received, executed in order, and answered.

use super::clients::Client;
use super::encoded;
use super::input::{Input, Received};
use super::listener::RedisPort;
use super::pipeline::{Charged, Gathered, Runner};
use super::state::{ConnectionState, Taken};
use super::transaction;
use super::{BATCH_BYTES_MAX, BATCH_COMMANDS_MAX, RedisFailure};
use crate::access::{Rights, Socket, SocketReader, SocketWriter, socket};
use crate::memory::{Class, ConnectionMemory, Exceeded, RequestMemory};
use bytes::{Bytes, BytesMut};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use stele_redis::Reply;
use stele_tls::ClientName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

/// Bytes that are received before requests are executed, and that replies wait for others, at most.
const WINDOW_BYTES_MAX: u32 = 64 << 10;
/// Time without a byte after which a connection of a node that stops is closed.
const QUIET: Duration = Duration::from_millis(100);
/// Time for a client to read the last reply and to close: it may otherwise see a broken connection instead.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: u64 = 1 << 20;
/// Idle time after which the system asks whether the other end is there, as Redis does by default.
pub(super) const KEEPALIVE_IDLE: Duration = Duration::from_secs(300);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(100);
const KEEPALIVE_PROBES: u32 = 3;

pub(super) struct Connection {
    reader: SocketReader,
    writer: SocketWriter,
    input: Input,
    /// Replies that are not written yet.
    output: BytesMut,
    state: ConnectionState,
    memory: Arc<ConnectionMemory>,
    stop: watch::Receiver<bool>,
    /// The client sends nothing more.
    has_ended: bool,
}

/// Makes the system end a connection that has been idle for this time and of which the other end does not answer.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let times = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
    SockRef::from(stream).set_tcp_keepalive(&times.with_retries(KEEPALIVE_PROBES))
}

/// End of a connection.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// At once.
    Now,
    /// After the client has read the last reply.
    AfterReply,
}

impl Connection {
    pub(super) fn new(
        socket: Socket,
        rights: Rights,
        redis: Arc<RedisPort>,
        client: Arc<Client>,
        stop: watch::Receiver<bool>,
    ) -> Self {
        // A refusal costs only latency, and the place of a client that is gone.
        let _ = socket::tcp(&socket).set_nodelay(true);
        let _ = keep_alive(socket::tcp(&socket));
        let name = rights.client().map(ClientName::as_str);
        let memory = ConnectionMemory::of_client(&redis.memory, WINDOW_BYTES_MAX, name);
        let (reader, writer) = socket::into_halves(socket);
        let input = Input::new(RequestMemory::new(&memory, Class::Data));
        let state = ConnectionState::new(redis, client, rights);
        let output = BytesMut::new();
        Self { reader, writer, input, output, state, memory, stop, has_ended: false }
    }

    /// Serves the connection until its end. The error of a connection concerns only its client.
    pub(super) async fn serve(mut self) -> io::Result<()> {
        loop {
            self.input.set_authenticated(self.state.is_authenticated());
            let (queue, needs_memory) = self.queued();
            let is_empty = queue.is_empty();
            let end = match (is_empty, needs_memory) {
                (false, _) => self.execute(queue).await?,
                (true, true) => {
                    let wait = self.state.redis.options.body.memory_wait;
                    self.input.wait_for_memory(wait).await;
                    None
                }
                (true, false) => self.receive().await?,
            };
            if !is_empty || end.is_some() {
                self.flush().await?;
            }
            match end {
                None => {}
                Some(End::Now) => return Ok(()),
                Some(End::AfterReply) => return self.linger().await,
            }
        }
    }

    /// Takes the requests that are here, within the bounds of a batch. Returns also whether the next one
    /// waits for memory.
    fn queued(&mut self) -> (Vec<Received>, bool) {
        let (mut queue, mut bytes) = (Vec::new(), 0);
        // The first request may authenticate: then others may follow it.
        let commands_max = if self.state.is_authenticated() { BATCH_COMMANDS_MAX } else { 1 };
        while queue.len() < commands_max && bytes < BATCH_BYTES_MAX {
            let received = self.input.next();
            match &received {
                Received::NeedsMore => break,
                Received::NeedsMemory => return (queue, true),
                Received::Request(words) => bytes += words.iter().map(Bytes::len).sum::<usize>(),
                Received::Refused(_) => {}
                Received::Http | Received::Failed(_) => {
                    queue.push(received);
                    break;
                }
            }
            queue.push(received);
        }
        (queue, false)
    }

    /// Receives bytes, until the connection ends.
    async fn receive(&mut self) -> io::Result<Option<End>> {
        if self.has_ended || self.state.client.is_killed() {
            return Ok(Some(End::Now));
        }
        let began = self.input.began();
        let time_max = self.state.redis.options.body.time_max;
        let receiving = self.input.receive(&mut self.reader);
        if *self.stop.borrow() {
            return match timeout(QUIET, receiving).await {
                Ok(received) => Ok((received? == 0).then_some(End::Now)),
                Err(_) => Ok(Some(End::Now)),
            };
        }
        tokio::select! {
            received = receiving => Ok((received? == 0).then_some(End::Now)),
            // The next call ends the connection.
            _ = self.stop.wait_for(|stop| *stop) => Ok(None),
            () = self.state.client.killed() => Ok(Some(End::Now)),
            () = async {
                match began {
                    Some(began) => sleep_until(began + time_max).await,
                    None => std::future::pending().await,
                }
            } => Ok(Some(End::Now)),
        }
    }

    /// Executes requests in order.
    async fn execute(&mut self, queue: Vec<Received>) -> io::Result<Option<End>> {
        let memory = self.input.replace_memory(RequestMemory::new(&self.memory, Class::Data));
        self.state.redis.commands.fetch_add(queue.len() as u64, Relaxed);
        let mut gathered: Option<Gathered> = None;
        for received in queue {
            let (taken, is_heard) = match received {
                Received::Request(words) => self.state.take(words, &memory),
                Received::Refused(exceeded) => self.refused(exceeded),
                Received::Failed(error) => (Taken::Last(error.reply()), true),
                Received::Http => {
                    self.execute_gathered(gathered.take()).await?;
                    return Ok(Some(End::Now));
                }
                Received::NeedsMore | Received::NeedsMemory => continue,
            };
            if gathered.as_ref().is_some_and(|gathered| gathered.is_heard != is_heard) {
                self.execute_gathered(gathered.take()).await?;
            }
            if let Taken::Program(request) = taken {
                let first = || {
                    let runner = Runner::of(&self.state, &memory);
                    Gathered { runner, requests: Vec::new(), is_heard }
                };
                gathered.get_or_insert_with(first).requests.push(request);
                continue;
            }
            self.execute_gathered(gathered.take()).await?;
            if let Some(end) = self.execute_one(taken, is_heard, &memory).await? {
                return Ok(Some(end));
            }
        }
        self.execute_gathered(gathered.take()).await?;
        Ok(None)
    }

    fn refused(&mut self, exceeded: Exceeded) -> (Taken, bool) {
        self.state.transaction.note_error();
        (Taken::Reply(RedisFailure::Memory(exceeded).into()), true)
    }

    /// Executes what is not part of a batch.
    async fn execute_one(
        &mut self,
        taken: Taken,
        is_heard: bool,
        memory: &Arc<RequestMemory>,
    ) -> io::Result<Option<End>> {
        match taken {
            Taken::Reply(reply) => self.answer(&reply, is_heard).await?,
            Taken::Last(reply) => {
                self.answer(&reply, is_heard).await?;
                return Ok(Some(End::AfterReply));
            }
            Taken::Program(request) | Taken::Alone(request) => {
                let runner = Runner::of(&self.state, memory);
                let keys: Vec<Bytes> = request.header_keys().collect();
                let replies = match runner.only_region(&keys).await {
                    Ok(region) => runner.run(&runner.batch(region, vec![request])).await,
                    Err(failure) => Err(failure),
                };
                let replies = replies.unwrap_or_else(|failure| runner.error(failure, 1));
                self.put(replies, is_heard).await?;
            }
            Taken::Watch(names) => {
                let database = self.state.database;
                let executor = self.state.redis.executor.clone();
                let reply = match executor.changes(database, &names).await {
                    Ok(changes) => {
                        self.state.transaction.watch(database, names, changes);
                        Reply::OK
                    }
                    Err(failure) => failure.into(),
                };
                self.answer(&reply, is_heard).await?;
            }
            Taken::Exec(queue) => {
                let executed = transaction::exec(&mut self.state, queue, memory).await;
                let protocol = self.state.protocol;
                let reply = executed.unwrap_or_else(|error| error.encoded(protocol).into());
                self.put(reply, is_heard).await?;
            }
        }
        Ok(self.state.client.is_killed().then_some(End::AfterReply))
    }

    async fn execute_gathered(&mut self, gathered: Option<Gathered>) -> io::Result<()> {
        let Some(Gathered { runner, requests, is_heard }) = gathered else { return Ok(()) };
        let commands = requests.len();
        let mut parts = match runner.plan(requests).await {
            Ok(parts) => parts,
            Err(failure) => return self.put(runner.error(failure, commands), is_heard).await,
        };
        let mut tries = 0;
        while !parts.is_empty() {
            let replies = runner.next(&mut parts, &mut tries).await;
            self.put(replies, is_heard).await?;
        }
        Ok(())
    }

    async fn answer(&mut self, reply: &Reply, is_heard: bool) -> io::Result<()> {
        self.put(reply.encoded(self.state.protocol).into(), is_heard).await
    }

    /// Appends encoded replies to the output, which is written when it is full.
    async fn put(&mut self, charged: Charged, is_heard: bool) -> io::Result<()> {
        let replies = &charged.replies;
        encoded::error_words(replies)
            .for_each(|word| self.state.redis.stats.edges.note_error(word));
        if !is_heard {
            return Ok(());
        }
        if self.output.len() + replies.len() <= WINDOW_BYTES_MAX as usize {
            self.output.extend_from_slice(replies);
            return Ok(());
        }
        self.write_output().await?;
        self.write(replies).await
    }

    async fn write_output(&mut self) -> io::Result<()> {
        let mut output = std::mem::take(&mut self.output);
        self.write(&output).await?;
        output.clear();
        self.output = output;
        Ok(())
    }

    async fn flush(&mut self) -> io::Result<()> {
        if self.output.is_empty() {
            return Ok(());
        }
        self.write_output().await?;
        // An encrypted connection may otherwise keep the last bytes.
        timeout(self.state.redis.options.body.time_max, self.writer.flush()).await?
    }

    /// Writes bytes. Meanwhile at most a window of requests is received: a client that sends a pipeline
    /// before it reads goes on. A client that does not read for the longest time is disconnected.
    ///
    /// Invariant: beyond the window nothing is received before the replies are taken.
    /// Test: `a_client_that_does_not_read_is_not_read_from`.
    async fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let window = self.memory.window_bytes().min(WINDOW_BYTES_MAX) as usize;
        let time_max = self.state.redis.options.body.time_max;
        // Only what the client takes is progress.
        let mut until = Instant::now() + time_max;
        while !bytes.is_empty() {
            // bug server.redis_received_unbounded: `self.input.pending_bytes() < window` is `true`
            let may_receive = !self.has_ended && self.input.pending_bytes() < window;
            tokio::select! {
                biased;
                written = self.writer.write(bytes) => match written? {
                    0 => return Err(io::ErrorKind::WriteZero.into()),
                    written => {
                        bytes = bytes.get(written..).unwrap_or_default();
                        until = Instant::now() + time_max;
                    }
                },
                received = self.input.receive(&mut self.reader), if may_receive => {
                    self.has_ended = received? == 0;
                }
                () = self.state.client.killed() => return Err(io::ErrorKind::ConnectionAborted.into()),
                () = sleep_until(until) => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
        Ok(())
    }

    async fn linger(mut self) -> io::Result<()> {
        self.flush().await?;
        self.writer.shutdown().await?;
        let mut rest = self.reader.take(LINGER_BYTES_MAX);
        let dropping = async {
            let mut page = [0; 4 << 10];
            while rest.read(&mut page).await? > 0 {}
            Ok(())
        };
        timeout(LINGER, dropping).await.unwrap_or(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn the_system_asks_whether_the_other_end_is_there() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        keep_alive(&stream).unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE_IDLE);
    }
}
