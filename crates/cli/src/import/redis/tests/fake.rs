//! A server of the Redis protocol in memory, with the commands that an import sends, and with faults.

use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use stele_redis::{Protocol, ReadStep, Reply, RequestReader};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    Text(Bytes),
    Hash(BTreeMap<Bytes, Bytes>),
    Set(BTreeSet<Bytes>),
    /// A value of another type.
    Other(&'static str),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub data: Data,
    pub expires_at_ms: Option<u64>,
}

pub(crate) type Names = BTreeMap<Bytes, Stored>;

/// What happens to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// It is answered with an error, without an effect.
    Error(&'static str),
    /// The connection is closed before the command has an effect.
    Close,
}

/// Called with each command, or with all of a transaction at its EXEC.
type Hook = Box<dyn FnMut(&mut FakeState, &str) -> Fault + Send>;

#[derive(Default)]
pub(crate) struct FakeState {
    pub databases: BTreeMap<u64, Names>,
    pub hook: Option<Hook>,
    /// Commands that are unknown.
    pub without: Vec<&'static str>,
    pub password: Option<&'static str>,
    pub has_one_database: bool,
    /// Names of a page of SCAN, if not 3.
    pub page_names: usize,
}

impl FakeState {
    pub(crate) fn put(&mut self, database: u64, name: &str, data: Data, expires_at_ms: u64) {
        let expires_at_ms = Some(expires_at_ms).filter(|at_ms| *at_ms != 0);
        let names = self.databases.entry(database).or_default();
        names.insert(Bytes::copy_from_slice(name.as_bytes()), Stored { data, expires_at_ms });
    }

    pub(crate) fn get(&self, database: u64, name: &str) -> Option<&Stored> {
        self.databases.get(&database)?.get(name.as_bytes())
    }
}

pub(crate) struct Fake {
    pub address: String,
    state: Arc<Mutex<FakeState>>,
}

impl Fake {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(Mutex::new(FakeState::default()));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = shared.clone();
                std::thread::spawn(move || drop(serve(stream, &state)));
            }
        });
        Self { address, state }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, FakeState> {
        self.state.lock()
    }
}

struct Connection {
    database: u64,
    queue: Option<Vec<Vec<Bytes>>>,
    is_authenticated: bool,
}

fn serve(mut stream: TcpStream, state: &Mutex<FakeState>) -> std::io::Result<()> {
    let (mut reader, mut input, mut buffer) =
        (RequestReader::default(), BytesMut::new(), vec![0; 64 << 10]);
    reader.set_authenticated(true);
    stream.set_nodelay(true)?;
    let mut connection = Connection { database: 0, queue: None, is_authenticated: false };
    loop {
        match reader.next(&mut input).unwrap() {
            ReadStep::NeedsMore => match stream.read(&mut buffer)? {
                0 => return Ok(()),
                read => input.extend_from_slice(&buffer[..read]),
            },
            ReadStep::Announces(_) => {}
            ReadStep::Http => return Ok(()),
            ReadStep::Request(words) => match connection.answer(words, &mut state.lock()) {
                Some(reply) => stream.write_all(&reply.encoded(Protocol::Resp2))?,
                None => return Ok(()),
            },
        }
    }
}

fn line(words: &[Bytes]) -> String {
    let words: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
    words.join(" ")
}

impl Connection {
    /// Returns the reply to a command; `None` closes the connection.
    fn answer(&mut self, words: Vec<Bytes>, state: &mut FakeState) -> Option<Reply> {
        let command = String::from_utf8_lossy(&words[0]).to_uppercase();
        let argument = |at: usize| String::from_utf8_lossy(&words[at]).into_owned();
        if state.without.contains(&command.as_str()) {
            return Some(Reply::error(format!("ERR unknown command '{command}'")));
        }
        if command == "AUTH" {
            self.is_authenticated = Some(argument(words.len() - 1).as_str()) == state.password;
            let refusal = Reply::error("WRONGPASS invalid username-password pair");
            return Some(if self.is_authenticated { Reply::OK } else { refusal });
        }
        if state.password.is_some() && !self.is_authenticated {
            return Some(Reply::error("NOAUTH Authentication required."));
        }
        match command.as_str() {
            "PING" => return Some(Reply::Simple("PONG")),
            "SELECT" => {
                self.database = argument(1).parse().unwrap();
                if state.has_one_database && self.database > 0 {
                    return Some(Reply::error("ERR DB index is out of range"));
                }
                return Some(Reply::OK);
            }
            "MULTI" => {
                self.queue = Some(Vec::new());
                return Some(Reply::OK);
            }
            "EXEC" => {}
            _ => {
                if let Some(queue) = &mut self.queue {
                    queue.push(words);
                    return Some(Reply::Simple("QUEUED"));
                }
            }
        }
        let is_transaction = command == "EXEC";
        let commands = if is_transaction { self.queue.take().unwrap() } else { vec![words] };
        let text = commands.iter().map(|words| line(words)).collect::<Vec<_>>().join("; ");
        if let Some(mut hook) = state.hook.take() {
            let fault = hook(state, &text);
            state.hook.get_or_insert(hook);
            match fault {
                Fault::None => {}
                Fault::Error(text) => return Some(Reply::error(text)),
                Fault::Close => return None,
            }
        }
        let mut replies: Vec<Reply> =
            commands.iter().map(|words| execute(self.database, words, state)).collect();
        Some(if is_transaction { Reply::Array(replies) } else { replies.remove(0) })
    }
}

fn now_ms() -> u64 {
    super::super::unix_ms()
}

fn bulk(bytes: &Bytes) -> Reply {
    Reply::Bulk(bytes.clone())
}

/// Executes a command of names.
fn execute(database: u64, words: &[Bytes], state: &mut FakeState) -> Reply {
    let command = String::from_utf8_lossy(&words[0]).to_uppercase();
    if command == "INFO" {
        let lines = state.databases.iter().filter(|(_, names)| !names.is_empty());
        let lines =
            lines.map(|(number, names)| format!("db{number}:keys={},expires=0", names.len()));
        let text = format!("# Keyspace\r\n{}\r\n", lines.collect::<Vec<_>>().join("\r\n"));
        return Reply::Bulk(text.into());
    }
    let page_names = state.page_names;
    let names = state.databases.entry(database).or_default();
    names.retain(|_, stored| stored.expires_at_ms.is_none_or(|at_ms| at_ms > now_ms()));
    if command == "SCAN" {
        return page(
            &words[1],
            names.keys().map(|name| vec![bulk(name)]).collect(),
            page_names.max(3),
        );
    }
    let name = words[1].clone();
    match command.as_str() {
        "EXISTS" => return Reply::count(u64::from(names.contains_key(&name))),
        "DEL" => return Reply::count(u64::from(names.remove(&name).is_some())),
        "SET" => {
            let number = |word: &Bytes| String::from_utf8_lossy(word).parse().unwrap();
            assert!(words.len() == 3 || &words[3][..] == b"PXAT");
            let expires_at_ms = words.get(4).map(number);
            names.insert(name, Stored { data: Data::Text(words[2].clone()), expires_at_ms });
            return Reply::OK;
        }
        _ => {}
    }
    read_or_add(&command, words, names)
}

fn read_or_add(command: &str, words: &[Bytes], names: &mut Names) -> Reply {
    let (name, rest) = (words[1].clone(), &words[2..]);
    let stored = names.get_mut(&name);
    let expiry = stored.as_ref().map(|stored| stored.expires_at_ms);
    match (command, stored) {
        ("PEXPIRETIME" | "PTTL", _) => Reply::Integer(match expiry {
            None => -2,
            Some(None) => -1,
            Some(Some(at_ms)) if command == "PTTL" => (at_ms - now_ms()) as i64,
            Some(Some(at_ms)) => at_ms as i64,
        }),
        ("TYPE", stored) => Reply::Simple(match stored.map(|stored| &stored.data) {
            None => "none",
            Some(Data::Text(_)) => "string",
            Some(Data::Hash(_)) => "hash",
            Some(Data::Set(_)) => "set",
            Some(Data::Other(of)) => of,
        }),
        ("PEXPIREAT", Some(stored)) => {
            let at_ms = String::from_utf8_lossy(&rest[0]).parse().unwrap();
            stored.expires_at_ms = Some(at_ms);
            Reply::Integer(1)
        }
        ("HSET" | "SADD", None) => {
            let data = match command {
                "HSET" => Data::Hash(BTreeMap::new()),
                _ => Data::Set(BTreeSet::new()),
            };
            names.insert(name, Stored { data, expires_at_ms: None });
            read_or_add(command, words, names)
        }
        (_, Some(stored)) => of_data(command, rest, &mut stored.data),
        ("GET", None) => Reply::Null,
        ("HGETALL" | "SMEMBERS", None) => Reply::Array(vec![]),
        ("HSCAN" | "SSCAN", None) => page(&rest[0], vec![], 1),
        ("HMGET", None) => Reply::Array(vec![Reply::Null; rest.len()]),
        ("SMISMEMBER", None) => Reply::Array(vec![Reply::Integer(0); rest.len()]),
        _ => Reply::Integer(0),
    }
}

fn of_data(command: &str, rest: &[Bytes], data: &mut Data) -> Reply {
    match (command, data) {
        ("GET", Data::Text(text)) => bulk(text),
        ("STRLEN", Data::Text(text)) => Reply::count(text.len()),
        ("HSET", Data::Hash(fields)) => {
            for pair in rest.chunks(2) {
                fields.insert(pair[0].clone(), pair[1].clone());
            }
            Reply::Integer(1)
        }
        ("HLEN", Data::Hash(fields)) => Reply::count(fields.len()),
        ("HGETALL", Data::Hash(fields)) => Reply::Array(
            fields.iter().flat_map(|(field, value)| [bulk(field), bulk(value)]).collect(),
        ),
        ("HMGET", Data::Hash(fields)) => Reply::Array(
            rest.iter().map(|it| Reply::bulk_or_null(fields.get(it).cloned())).collect(),
        ),
        ("HSCAN", Data::Hash(fields)) => {
            let pairs = fields.iter().map(|(field, value)| vec![bulk(field), bulk(value)]);
            page(&rest[0], pairs.collect(), 500)
        }
        ("SADD", Data::Set(members)) => {
            members.extend(rest.iter().cloned());
            Reply::Integer(1)
        }
        ("SCARD", Data::Set(members)) => Reply::count(members.len()),
        ("SMEMBERS", Data::Set(members)) => Reply::Array(members.iter().map(bulk).collect()),
        ("SMISMEMBER", Data::Set(members)) => {
            let has = |member| Reply::count(u64::from(members.contains(member)));
            Reply::Array(rest.iter().map(has).collect())
        }
        ("SSCAN", Data::Set(members)) => {
            page(&rest[0], members.iter().map(|member| vec![bulk(member)]).collect(), 500)
        }
        ("PING" | "INFO", _) => Reply::error("ERR not of a name"),
        _ => Reply::error("WRONGTYPE Operation against a key holding the wrong kind of value"),
    }
}

/// Returns the page at a cursor, which is the number of the items before it.
fn page(cursor: &Bytes, items: Vec<Vec<Reply>>, size: usize) -> Reply {
    let at: usize = String::from_utf8_lossy(cursor).parse().unwrap();
    let next = if at + size < items.len() { at + size } else { 0 };
    let page = items.into_iter().skip(at).take(size).flatten().collect();
    Reply::Array(vec![Reply::Bulk(next.to_string().into()), Reply::Array(page)])
}
