//! State of a connection, and the commands that it answers itself.

use super::clients::{self, Client};
use super::listener::RedisPort;
use super::transaction::{QueuedCommands, Transaction};
use super::{information, refusals};
use crate::access::{CountedConnection, Principal, Rights};
use crate::memory::RequestMemory;
use bytes::Bytes;
use std::sync::Arc;
use stele_placement::Permissions;
use stele_redis::table::{NO_AUTH, READ_ONLY};
use stele_redis::{
    Literal, Protocol, Reply, Request, RequestError, ScanRequest, parse_i64, pattern_of,
};
use stele_types::{KeyRange, redis_key};

/// What must be done with a request.
#[derive(Debug)]
pub(super) enum Taken {
    /// It is answered.
    Reply(Reply),
    /// It is answered, and the connection is closed.
    Last(Reply),
    /// It travels in a batch.
    Program(Request),
    /// It is a batch of its own: it concerns a whole key space, or scans a name.
    Alone(Request),
    /// Names of which the change numbers must be read.
    Watch(Vec<Bytes>),
    /// A transaction to be executed.
    Exec(QueuedCommands),
}

/// Whether the client receives replies: CLIENT REPLY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyMode {
    On,
    Off,
    /// Not that of the next command.
    SkipsNext,
}

/// State of a connection.
pub(super) struct ConnectionState {
    pub redis: Arc<RedisPort>,
    pub client: Arc<Client>,
    pub database: u8,
    pub protocol: Protocol,
    pub rights: Rights,
    pub reply_mode: ReplyMode,
    pub transaction: Transaction,
    /// Rights of the connection without a token.
    connected: Rights,
    /// Place of the token's grant among its connections.
    counted: Option<CountedConnection>,
}

impl ConnectionState {
    pub(super) fn new(redis: Arc<RedisPort>, client: Arc<Client>, rights: Rights) -> Self {
        Self {
            redis,
            client,
            database: 0,
            protocol: Protocol::default(),
            connected: rights.clone(),
            rights,
            reply_mode: ReplyMode::On,
            transaction: Transaction::default(),
            counted: None,
        }
    }

    /// Decides on a request. Returns also whether the client receives its reply. Requests that are queued
    /// keep `memory`.
    pub(super) fn take(&mut self, words: Vec<Bytes>, memory: &Arc<RequestMemory>) -> (Taken, bool) {
        let is_heard = self.reply_mode == ReplyMode::On;
        if self.reply_mode == ReplyMode::SkipsNext {
            self.reply_mode = ReplyMode::On;
        }
        let is_exec = words.first().is_some_and(|name| name.eq_ignore_ascii_case(b"exec"));
        let request = match self.checked(words) {
            Ok(request) => request,
            Err(Reply::Error(text)) if is_exec => {
                return (Taken::Reply(self.transaction.abort(&text)), is_heard);
            }
            Err(reply) => {
                self.transaction.note_error();
                return (Taken::Reply(reply), is_heard);
            }
        };
        self.client.note_command(request.spec().name, request.arguments().get(1));
        if self.transaction.is_open() && !is_immediate(request.spec().name) {
            self.transaction.queue(&request, memory);
            return (Taken::Reply(Reply::Simple("QUEUED")), is_heard);
        }
        if request.spec().is_program() {
            return (Taken::Program(request), is_heard);
        }
        let before = self.reply_mode;
        let taken = self.execute(request, memory);
        // CLIENT REPLY ON is answered, and OFF and SKIP are not.
        let is_heard = match self.reply_mode == before {
            true => is_heard,
            false => self.reply_mode == ReplyMode::On,
        };
        (taken, is_heard)
    }

    /// Returns the request, or the error of one that is not executed.
    fn checked(&self, words: Vec<Bytes>) -> Result<Request, Reply> {
        let request = Request::parse(self.database, words).map_err(|error| refused(&error))?;
        let spec = request.spec();
        self.redis.stats.edges.note_command(spec);
        if let Some(error) = refusals::of_subcommand(&request) {
            return Err(error);
        }
        if !spec.has(NO_AUTH) {
            self.check_rights(&request)?;
        }
        if self.transaction.is_open() && is_alone(spec.name) {
            return Err(Reply::error(format!(
                "ERR '{}' is not executed in a transaction: send it before MULTI",
                spec.name
            )));
        }
        Ok(request)
    }

    pub(super) fn check_rights(&self, request: &Request) -> Result<(), Reply> {
        let Some(standing) = self.rights.standing() else { return Ok(()) };
        if let Err(denied) = self.rights.check_redis() {
            let is_unknown =
                matches!(self.rights.principal(), Principal::Anonymous | Principal::Token(_));
            return Err(match is_unknown {
                true => Reply::error(NO_AUTH_TEXT),
                false => Reply::error(format!("NOPERM {denied}")),
            });
        }
        let (spec, arguments) = (request.spec(), request.arguments());
        let wanted = wanted(request);
        let checked = match is_alone(spec.name) && spec.first_key == 0 {
            // bug server.scans_unpermitted: `standing.check_range(wanted, &names_of(request))` is `Ok(())`
            true => standing.check_range(wanted, &names_of(request)),
            false => standing.check_keys(wanted, spec.keys(arguments).map(|name| &name[..])),
        };
        checked.map_err(|reason| {
            self.rights.note_ungranted();
            Reply::error(format!("NOPERM {reason}"))
        })
    }

    /// Executes a request that is not a program.
    fn execute(&mut self, request: Request, memory: &Arc<RequestMemory>) -> Taken {
        let name = request.spec().name;
        if is_alone(name) {
            return Taken::Alone(request);
        }
        match name {
            "multi" => Taken::Reply(self.transaction.begin()),
            "exec" => match self.transaction.end() {
                Ok(queue) => Taken::Exec(queue),
                Err(reply) => Taken::Reply(reply),
            },
            "discard" => Taken::Reply(self.transaction.discard()),
            "watch" => match self.transaction.may_watch(request.arguments().len() - 1) {
                Ok(()) => {
                    self.transaction.keep(memory);
                    let names = request.arguments().iter().skip(1);
                    Taken::Watch(names.map(|name| Bytes::copy_from_slice(name)).collect())
                }
                Err(reply) => Taken::Reply(reply),
            },
            "quit" => Taken::Last(Reply::OK),
            _ => Taken::Reply(self.answer(&request)),
        }
    }

    /// Answers a command that needs no pairs; in a transaction too.
    pub(super) fn answer(&mut self, request: &Request) -> Reply {
        let arguments = request.arguments();
        let argument = |place: usize| arguments.get(place).cloned().unwrap_or_default();
        match request.spec().name {
            "ping" if arguments.len() > 2 => {
                Reply::error("ERR wrong number of arguments for 'ping' command")
            }
            "ping" if arguments.len() == 2 => Reply::Bulk(argument(1)),
            "ping" => Reply::Simple("PONG"),
            "echo" => Reply::Bulk(argument(1)),
            "select" => self.select(&argument(1)),
            "hello" => self.hello(arguments),
            "auth" => self.auth(arguments),
            "reset" => self.reset(),
            "unwatch" => {
                self.transaction.unwatch();
                Reply::OK
            }
            "wait" | "waitaof" => self.wait(arguments),
            "function" => information::flush_functions(arguments),
            "client" => clients::answer(self, arguments),
            name => information::answer(self, name, arguments),
        }
    }

    /// Answers at once: a write is on the disks of a quorum before it is acknowledged.
    fn wait(&self, arguments: &[Bytes]) -> Reply {
        if let Some(refused) = refused_wait(arguments) {
            return refused;
        }
        let followers = Reply::count(self.redis.executor.followers_of_a_write());
        match arguments {
            [_, _, _] => followers,
            _ => Reply::Array(vec![Reply::Integer(1), followers]),
        }
    }

    fn select(&mut self, number: &[u8]) -> Reply {
        match parse_i64(number).map(u8::try_from) {
            Some(Ok(database)) if database < redis_key::DATABASES => {
                self.database = database;
                self.client.update(|state| state.database = database);
                Reply::OK
            }
            Some(_) => Reply::error("ERR DB index is out of range"),
            None => Reply::error("ERR value is not an integer or out of range"),
        }
    }

    /// Returns whether the client may use the commands of pairs.
    pub(super) fn is_authenticated(&self) -> bool {
        self.rights.may_use_redis()
    }

    fn hello(&mut self, arguments: &[Bytes]) -> Reply {
        let mut protocol = self.protocol;
        let mut rest = arguments.iter().skip(1);
        if let Some(version) = rest.next() {
            protocol = match parse_i64(version) {
                Some(2) => Protocol::Resp2,
                Some(3) => Protocol::Resp3,
                Some(_) => return Reply::error("NOPROTO unsupported protocol version"),
                None => {
                    return Reply::error("ERR Protocol version is not an integer or out of range");
                }
            };
        }
        let (mut user, mut name) = (None, None);
        while let Some(option) = rest.next() {
            match option.to_ascii_lowercase().as_slice() {
                b"auth" if rest.len() >= 2 => user = rest.next().zip(rest.next()),
                b"setname" if rest.len() >= 1 => name = rest.next(),
                _ => {
                    let option = refusals::shown(option);
                    return Reply::error(format!("ERR Syntax error in HELLO option '{option}'"));
                }
            }
        }
        if let Some((user, password)) = user
            && let Err(error) = self.authenticate(Some(user), password)
        {
            return error;
        }
        if !self.is_authenticated() {
            return Reply::error(NO_AUTH_HELLO);
        }
        if let Some(name) = name
            && let Err(error) = self.client.set_name(name)
        {
            return error;
        }
        self.protocol = protocol;
        self.client.update(|state| state.protocol = protocol);
        information::hello(self.client.id, protocol)
    }

    fn auth(&mut self, arguments: &[Bytes]) -> Reply {
        let authenticated = match arguments {
            [_, password] => self.authenticate(None, password),
            [_, user, password] => self.authenticate(Some(user), password),
            _ => Err(Reply::error("ERR syntax error")),
        };
        authenticated.err().unwrap_or(Reply::OK)
    }

    /// Takes the rights of a token over. Without access rules it is a Redis without a password.
    ///
    /// Invariant: a password that is not a token in force changes no rights.
    /// Test: `only_a_token_in_force_authenticates`.
    fn authenticate(&mut self, user: Option<&Bytes>, password: &[u8]) -> Result<(), Reply> {
        let is_default = user.is_none_or(|user| user == "default");
        let Some(rights) = self.connected.with_token(password) else {
            return match user {
                Some(_) if is_default => Ok(()),
                Some(_) => Err(Reply::error(WRONG_PASS)),
                None => Err(Reply::error(NO_PASSWORD)),
            };
        };
        let has_name = |user: &Bytes| {
            let standing = rights.standing();
            let caller = standing.as_ref().map_or("", |standing| standing.caller());
            let names = [Some(caller), caller.strip_prefix(stele_placement::access::TOKEN_NAME)];
            names.into_iter().flatten().any(|name| name.as_bytes() == &user[..])
        };
        // bug server.redis_any_password: never
        if !rights.may_use_redis() || !is_default && !user.is_some_and(has_name) {
            return Err(Reply::error(WRONG_PASS));
        }
        let Ok(counted) = rights.connect() else {
            return Err(Reply::error("ERR max number of clients reached for this user"));
        };
        (self.rights, self.counted) = (rights, counted);
        let user = self.user();
        self.client.update(|state| state.user = user);
        Ok(())
    }

    /// Returns the caller as one word.
    pub(super) fn user(&self) -> String {
        match self.rights.standing() {
            Some(standing) => standing.caller().replace(' ', "_"),
            None => "default".to_owned(),
        }
    }

    fn reset(&mut self) -> Reply {
        self.transaction = Transaction::default();
        (self.database, self.protocol, self.reply_mode) = (0, Protocol::Resp2, ReplyMode::On);
        (self.rights, self.counted) = (self.connected.clone(), None);
        let user = self.user();
        self.client.update(|state| {
            (state.database, state.protocol) = (0, Protocol::Resp2);
            state.name = Bytes::new();
            state.user = user;
        });
        Reply::Simple("RESET")
    }
}

const NO_AUTH_TEXT: &str = "NOAUTH Authentication required.";
const NO_AUTH_HELLO: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
     HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP \
     protocol version at the same time";
const WRONG_PASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. Are \
     you sure your configuration is correct?";

/// Returns the error of wrong arguments of WAIT and WAITAOF: the least numbers of copies, then the time.
fn refused_wait(arguments: &[Bytes]) -> Option<Reply> {
    let (time, copies) = arguments.get(1..)?.split_last()?;
    for (place, copies_min) in copies.iter().enumerate() {
        let error = match (parse_i64(copies_min), copies.len(), place) {
            (None, _, _) => "ERR value is not an integer or out of range",
            // WAIT takes any number.
            (_, 1, _) | (Some(0 | 1), _, 0) | (Some(0..), _, 1) => continue,
            (_, _, 0) => "ERR value is out of range, value must between 0 and 1",
            _ => "ERR value is out of range, must be positive",
        };
        return Some(Reply::error(error));
    }
    match parse_i64(time) {
        None => Some(Reply::error("ERR timeout is not an integer or out of range")),
        Some(..=-1) => Some(Reply::error("ERR timeout is negative")),
        Some(_) => None,
    }
}

/// Returns whether a command is executed within MULTI at once.
fn is_immediate(name: &str) -> bool {
    matches!(name, "multi" | "exec" | "discard" | "watch" | "quit" | "reset")
}

/// Returns whether a command is a batch of its own.
fn is_alone(name: &str) -> bool {
    const ALONE: [&str; 8] =
        ["scan", "keys", "dbsize", "randomkey", "flushdb", "flushall", "hscan", "sscan"];
    ALONE.contains(&name)
}

/// Returns the range of all names that a command of a whole key space may return or change.
///
/// Invariant: a caller with the keys of a prefix sees no other name: its pattern begins with the prefix.
/// Test: `a_caller_of_a_prefix_scans_names_of_the_prefix_alone`.
fn names_of(request: &Request) -> KeyRange {
    let pattern = match request.spec().name {
        "scan" => ScanRequest::parse(request).ok().and_then(|scan| scan.pattern),
        "keys" => {
            let pattern = request.arguments().get(1).map(pattern_of);
            pattern.and_then(Result::ok).flatten()
        }
        _ => None,
    };
    match pattern.map(|pattern| pattern.literal()) {
        Some(Literal { bytes, is_whole: true }) => KeyRange::of_key(bytes),
        Some(Literal { bytes, .. }) if !bytes.is_empty() => KeyRange::prefix(&bytes),
        _ => KeyRange::all(),
    }
}

/// Returns the rights that a request needs for its names. Commands that return nothing of what was there need
/// no right to read.
fn wanted(request: &Request) -> Permissions {
    const BLIND: [&str; 11] = [
        "del", "expire", "flushall", "flushdb", "hmset", "mset", "pexpire", "psetex", "set",
        "setex", "unlink",
    ];
    let spec = request.spec();
    if spec.has(READ_ONLY) || spec.name == "watch" {
        return Permissions::READ;
    }
    let has_condition = spec.name == "set" && {
        let options = request.arguments().iter().skip(3);
        let reads = |option: &Bytes| {
            [&b"get"[..], b"nx", b"xx", b"ifeq"]
                .iter()
                .any(|condition| option.eq_ignore_ascii_case(condition))
        };
        options.into_iter().any(reads)
    };
    match BLIND.contains(&spec.name) && !has_condition {
        true => Permissions::WRITE,
        false => Permissions::READ_WRITE,
    }
}

fn refused(error: &RequestError) -> Reply {
    let RequestError::UnknownCommand { name, .. } = error else {
        return Reply::error(error.to_string());
    };
    let text = match refusals::instead(name) {
        Some(instead) => format!("{error}. {instead}"),
        None => error.to_string(),
    };
    Reply::error(text.replace(['\r', '\n'], " "))
}
