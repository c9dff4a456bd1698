//! Execution of a sequence on one server.

use super::reply::Reply;
use super::sequence::{Command, Sequence};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Time after which a reply is missing.
const REPLY_WITHIN: Duration = Duration::from_secs(60);
/// Pages of a drained scan at most.
const PAGES_MAX: usize = 10_000;

struct Connection {
    output: TcpStream,
    input: BufReader<TcpStream>,
}

impl Connection {
    fn open(address: &str) -> Result<Self> {
        let output =
            TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
        output.set_nodelay(true)?;
        output.set_read_timeout(Some(REPLY_WITHIN))?;
        let input = BufReader::new(output.try_clone()?);
        Ok(Self { output, input })
    }

    fn send(&mut self, commands: &[Vec<Vec<u8>>]) -> Result<()> {
        let mut bytes = Vec::new();
        for words in commands {
            bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
            for word in words {
                bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
                bytes.extend_from_slice(word);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        self.output.write_all(&bytes).context("sending commands")
    }

    fn receive(&mut self) -> Result<Reply> {
        Reply::read(&mut self.input)
    }

    fn call(&mut self, words: Vec<Vec<u8>>) -> Result<Reply> {
        self.send(&[words])?;
        self.receive()
    }

    /// Repeats a scan until its cursor is 0. Returns all elements, each once and in their order; or the reply
    /// that is not a page.
    fn drain(&mut self, mut words: Vec<Vec<u8>>, cursor_at: usize) -> Result<Reply> {
        let (command, mut found) = (words.first().cloned().unwrap_or_default(), BTreeSet::new());
        let has_values = command.eq_ignore_ascii_case(b"hscan")
            && !words.iter().any(|word| word.eq_ignore_ascii_case(b"novalues"));
        for _ in 0..PAGES_MAX {
            let reply = self.call(words.clone())?;
            let Reply::Array(page) = &reply else { return Ok(reply) };
            let [Reply::Bulk(cursor), Reply::Array(elements)] = &page[..] else { return Ok(reply) };
            for element in elements.chunks(if has_values { 2 } else { 1 }) {
                found.insert(element.to_vec());
            }
            if cursor == b"0" {
                return Ok(Reply::Array(found.into_iter().flatten().collect()));
            }
            let Some(place) = words.get_mut(cursor_at) else { bail!("a scan has no cursor") };
            *place = cursor.clone();
        }
        bail!("a scan has not ended after {PAGES_MAX} pages")
    }
}

/// Two connections to a server, and the pair of databases that they use.
pub(super) struct Driver {
    connections: [Connection; 2],
    first_database: u8,
}

impl Driver {
    pub(super) fn open(address: &str, first_database: u8) -> Result<Self> {
        let connections = [Connection::open(address)?, Connection::open(address)?];
        Ok(Self { connections, first_database })
    }

    fn connection(&mut self, command: &Command) -> Result<&mut Connection> {
        self.connections.get_mut(command.connection).context("a sequence has two connections")
    }

    fn send(&mut self, together: &[Command]) -> Result<()> {
        let Some(first) = together.first().filter(|first| first.drained_cursor.is_none()) else {
            return Ok(());
        };
        let first_database = self.first_database;
        let rendered = together.iter().map(|command| command.rendered(first_database));
        self.connection(first)?.send(&rendered.collect::<Vec<_>>())
    }

    fn receive(&mut self, together: &[Command], replies: &mut Vec<Reply>) -> Result<()> {
        let first_database = self.first_database;
        for command in together {
            let connection = self.connection(command)?;
            let reply = match command.drained_cursor {
                Some(cursor_at) => connection.drain(command.rendered(first_database), cursor_at),
                None => connection.receive(),
            };
            replies.push(reply.with_context(|| command.shown(first_database))?);
        }
        Ok(())
    }
}

/// Executes a sequence on servers. Returns for each the replies to the commands, and to those that read all keys
/// afterwards.
///
/// Consecutive commands of a connection are sent as one pipeline, to all servers before a reply is read. What one of
/// the two connections sends is answered before the other one sends.
pub(super) fn execute(servers: &mut [Driver], sequence: &Sequence) -> Result<Vec<Vec<Reply>>> {
    for reply in execute_all(servers, &sequence.before())?.into_iter().flatten() {
        ensure!(!matches!(reply, Reply::Error(_)), "a connection cannot be reset: {reply}");
    }
    let commands: Vec<Command> =
        sequence.commands.iter().cloned().chain(sequence.after()).collect();
    execute_all(servers, &commands)
}

fn execute_all(servers: &mut [Driver], commands: &[Command]) -> Result<Vec<Vec<Reply>>> {
    // Redis does not answer a failed AUTH while other replies of the connection are pending.
    let is_pipelined = |command: &Command| {
        command.drained_cursor.is_none() && !command.is_one_of(&["auth", "hello"])
    };
    let are_together = |one: &Command, other: &Command| {
        one.connection == other.connection && is_pipelined(one) && is_pipelined(other)
    };
    let mut replies = vec![Vec::with_capacity(commands.len()); servers.len()];
    for together in commands.chunk_by(are_together) {
        servers.iter_mut().try_for_each(|server| server.send(together))?;
        for (server, replies) in servers.iter_mut().zip(&mut replies) {
            server.receive(together, replies)?;
        }
    }
    Ok(replies)
}
