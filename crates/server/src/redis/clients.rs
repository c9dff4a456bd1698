//! Open connections, and CLIENT.

use super::refusals::shown;
use super::state::{ConnectionState, ReplyMode};
use crate::access::Rights;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use stele_redis::{Protocol, Reply, parse_i64};
use tokio_util::sync::CancellationToken;

/// Bytes of a name of a client at most.
const NAME_BYTES_MAX: usize = 256;
const SYNTAX: &str = "ERR syntax error";

/// Open connections by number.
#[derive(Debug, Default)]
pub(super) struct Clients(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    last_id: u64,
    clients: BTreeMap<u64, Arc<Client>>,
}

/// Open connection.
#[derive(Debug)]
pub(super) struct Client {
    pub id: u64,
    peer: String,
    local: String,
    connected: Instant,
    killed: CancellationToken,
    state: Mutex<ClientState>,
}

/// What CLIENT LIST prints of a connection.
#[derive(Debug)]
pub(super) struct ClientState {
    pub name: Bytes,
    pub user: String,
    pub database: u8,
    pub protocol: Protocol,
    library: (Bytes, Bytes),
    command: (&'static str, Option<Bytes>),
    last: Instant,
    /// Queued commands; `None` outside MULTI.
    queued: Option<usize>,
    watched: usize,
}

/// Place among the open connections, until it is dropped.
pub(super) struct Registered<'a> {
    of: &'a Clients,
    client: Arc<Client>,
}

impl Registered<'_> {
    pub(super) fn client(&self) -> &Arc<Client> {
        &self.client
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.of.0.lock().clients.remove(&self.client.id);
    }
}

impl Clients {
    /// Adds a connection between two addresses.
    pub(super) fn add(
        &self,
        (peer, local): (Option<SocketAddr>, Option<SocketAddr>),
        rights: &Rights,
    ) -> Registered<'_> {
        let text = |address: Option<SocketAddr>| {
            address.map_or("?:0".to_owned(), |address| address.to_string())
        };
        let user = match rights.standing() {
            Some(standing) => standing.caller().replace(' ', "_"),
            None => "default".to_owned(),
        };
        let now = Instant::now();
        let state = ClientState {
            name: Bytes::new(),
            user,
            database: 0,
            protocol: Protocol::Resp2,
            library: (Bytes::new(), Bytes::new()),
            command: ("NULL", None),
            last: now,
            queued: None,
            watched: 0,
        };
        let mut open = self.0.lock();
        open.last_id += 1;
        let client = Arc::new(Client {
            id: open.last_id,
            peer: text(peer),
            local: text(local),
            connected: now,
            killed: CancellationToken::new(),
            state: Mutex::new(state),
        });
        open.clients.insert(client.id, client.clone());
        Registered { of: self, client }
    }

    /// Returns the number of open connections.
    pub(super) fn count(&self) -> usize {
        self.0.lock().clients.len()
    }

    fn all(&self) -> Vec<Arc<Client>> {
        self.0.lock().clients.values().cloned().collect()
    }
}

impl Client {
    pub(super) fn update(&self, update: impl FnOnce(&mut ClientState)) {
        update(&mut self.state.lock());
    }

    /// Notes the last command; of those with subcommands also the first argument.
    pub(super) fn note_command(&self, name: &'static str, argument: Option<&Bytes>) {
        let has_subcommands =
            matches!(name, "client" | "config" | "command" | "function" | "script");
        let argument = argument.filter(|_| has_subcommands);
        let argument = argument.map(|argument| Bytes::from(argument.to_ascii_lowercase()));
        self.update(|state| (state.command, state.last) = ((name, argument), Instant::now()));
    }

    /// Sets the name that CLIENT LIST prints. Fails with the reply for one with other characters.
    pub(super) fn set_name(&self, name: &Bytes) -> Result<(), Reply> {
        if !is_printable(name) {
            return Err(Reply::error(
                "ERR Client names cannot contain spaces, newlines or special characters.",
            ));
        }
        let name = Bytes::copy_from_slice(name);
        self.update(|state| state.name = name);
        Ok(())
    }

    pub(super) fn is_killed(&self) -> bool {
        self.killed.is_cancelled()
    }

    /// Waits until the connection must be closed.
    pub(super) async fn killed(&self) {
        self.killed.cancelled().await;
    }

    /// Formats the connection as a line of CLIENT LIST, without its end.
    fn line(&self) -> String {
        let state = self.state.lock();
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        let flags = if state.queued.is_some() { 'x' } else { 'N' };
        let queued = state.queued.map_or("-1".to_owned(), |queued| queued.to_string());
        let (command, argument) = &state.command;
        let argument = argument.as_ref().map_or(String::new(), |it| format!("|{}", shown(it)));
        let mut line = String::new();
        // Writing to a string cannot fail.
        let _ = write!(
            line,
            "id={} addr={} laddr={} fd=0 name={} age={} idle={} flags={flags} db={} sub=0 psub=0 ssub=0 \
             multi={queued} watch={} qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 \
             omem=0 tot-mem=0 events=r cmd={command}{argument} user={} redir=-1 resp={} lib-name={} \
             lib-ver={}",
            self.id,
            self.peer,
            self.local,
            text(&state.name),
            self.connected.elapsed().as_secs(),
            state.last.elapsed().as_secs(),
            state.database,
            state.watched,
            state.user,
            if state.protocol == Protocol::Resp3 { 3 } else { 2 },
            text(&state.library.0),
            text(&state.library.1),
        );
        line
    }
}

/// Answers CLIENT. Its subcommand and the number of its arguments were checked.
pub(super) fn answer(state: &mut ConnectionState, arguments: &[Bytes]) -> Reply {
    let (queued, watched) = (state.transaction.queued(), state.transaction.watched());
    state.client.update(|state| (state.queued, state.watched) = (queued, watched));
    let lower = |word: &Bytes| word.to_ascii_lowercase();
    let words: Vec<Vec<u8>> = arguments.iter().skip(1).map(lower).collect();
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    match (words.as_slice(), arguments) {
        ([b"id"], _) => Reply::count(state.client.id),
        ([b"getname"], _) => {
            let name = state.client.state.lock().name.clone();
            Reply::bulk_or_null(Some(name).filter(|name| !name.is_empty()))
        }
        ([b"setname", _], [_, _, name]) => state.client.set_name(name).err().unwrap_or(Reply::OK),
        ([b"setinfo", attribute, _], [_, _, _, value]) => set_info(state, attribute, value),
        ([b"info"], _) => Reply::Verbatim(Bytes::from(state.client.line() + "\n")),
        ([b"list", options @ ..], _) => list(state, options),
        ([b"kill", _], [_, _, address]) => kill_at(state, address),
        ([b"kill", options @ ..], _) => kill(state, options),
        ([b"no-evict" | b"no-touch", b"on" | b"off"], _) => Reply::OK,
        ([b"reply", mode], _) => set_reply_mode(state, mode),
        ([b"tracking", ..], _) => Reply::error(
            "ERR CLIENT TRACKING is not built: turn the cache of the client off, for example by DisableCache",
        ),
        _ => Reply::error(SYNTAX),
    }
}

fn set_info(state: &ConnectionState, attribute: &[u8], value: &Bytes) -> Reply {
    if !is_printable(value) {
        let attribute = shown(attribute);
        return Reply::error(format!(
            "ERR {attribute} cannot contain spaces, newlines or special characters."
        ));
    }
    let value = Bytes::copy_from_slice(value);
    match attribute {
        b"lib-name" => state.client.update(|state| state.library.0 = value),
        b"lib-ver" => state.client.update(|state| state.library.1 = value),
        other => return Reply::error(format!("ERR Unrecognized option '{}'", shown(other))),
    }
    Reply::OK
}

fn set_reply_mode(state: &mut ConnectionState, mode: &[u8]) -> Reply {
    state.reply_mode = match (mode, state.reply_mode) {
        (b"on", _) => ReplyMode::On,
        (b"off", _) | (b"skip", ReplyMode::Off) => ReplyMode::Off,
        (b"skip", _) => ReplyMode::SkipsNext,
        _ => return Reply::error(SYNTAX),
    };
    Reply::OK
}

/// Returns the connections that the caller may see: its own, and all for an administrator.
fn visible(state: &ConnectionState) -> Vec<Arc<Client>> {
    let mut clients = state.redis.clients.all();
    if !state.rights.may_administer() {
        let user = state.user();
        clients.retain(|client| client.state.lock().user == user);
    }
    clients
}

fn list(state: &ConnectionState, options: &[&[u8]]) -> Reply {
    let mut clients = visible(state);
    match options {
        [] | [b"type", b"normal"] => {}
        [b"type", b"master" | b"replica" | b"slave" | b"pubsub"] => clients.clear(),
        [b"type", kind] => return unknown_type(kind),
        [b"id", ids @ ..] if !ids.is_empty() => {
            let ids: Option<Vec<i64>> = ids.iter().map(|id| parse_i64(id)).collect();
            let Some(ids) = ids else { return Reply::error("ERR Invalid client ID") };
            clients.retain(|client| ids.iter().any(|id| u64::try_from(*id) == Ok(client.id)));
        }
        _ => return Reply::error(SYNTAX),
    }
    let lines: String = clients.iter().map(|client| client.line() + "\n").collect();
    Reply::Verbatim(Bytes::from(lines))
}

/// Answers the older form of CLIENT KILL, which names an address.
fn kill_at(state: &ConnectionState, address: &Bytes) -> Reply {
    let clients = visible(state);
    match clients.iter().find(|client| client.peer.as_bytes() == &address[..]) {
        Some(client) => {
            client.killed.cancel();
            Reply::OK
        }
        None => Reply::error("ERR No such client"),
    }
}

fn kill(state: &ConnectionState, options: &[&[u8]]) -> Reply {
    let mut clients = visible(state);
    let mut skips_itself = true;
    let pairs = options.chunks_exact(2);
    if options.is_empty() || !pairs.remainder().is_empty() {
        return Reply::error(SYNTAX);
    }
    for pair in pairs {
        match pair {
            [b"id", id] => match parse_i64(id).and_then(|id| u64::try_from(id).ok()) {
                Some(id) if id > 0 => clients.retain(|client| client.id == id),
                _ => return Reply::error("ERR client-id should be greater than 0"),
            },
            [b"addr", address] => clients.retain(|client| client.peer.as_bytes() == *address),
            [b"laddr", address] => clients.retain(|client| client.local.as_bytes() == *address),
            [b"user", user] => {
                clients.retain(|client| {
                    client.state.lock().user.as_bytes().eq_ignore_ascii_case(user)
                });
            }
            [b"type", b"normal"] => {}
            [b"type", b"master" | b"replica" | b"slave" | b"pubsub"] => clients.clear(),
            [b"type", kind] => return unknown_type(kind),
            [b"maxage", seconds] => match parse_i64(seconds).map(u64::try_from) {
                Some(Ok(seconds)) => {
                    clients.retain(|client| client.connected.elapsed().as_secs() >= seconds);
                }
                _ => return Reply::error("ERR maxage is not an integer or out of range"),
            },
            [b"skipme", b"yes"] => skips_itself = true,
            [b"skipme", b"no"] => skips_itself = false,
            _ => return Reply::error(SYNTAX),
        }
    }
    clients.retain(|client| !skips_itself || client.id != state.client.id);
    clients.iter().for_each(|client| client.killed.cancel());
    Reply::count(clients.len())
}

fn unknown_type(kind: &[u8]) -> Reply {
    Reply::error(format!("ERR Unknown client type '{}'", shown(kind)))
}

fn is_printable(text: &[u8]) -> bool {
    text.len() <= NAME_BYTES_MAX && text.iter().all(|byte| (b'!'..=b'~').contains(byte))
}
