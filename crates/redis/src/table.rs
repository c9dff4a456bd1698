//! The commands: names, numbers of arguments, flags, positions of keys.

use crate::commands::{self, Execute};
use crate::request::RequestError;
use bytes::Bytes;

/// Changes pairs.
pub const WRITE: u8 = 1;
/// Only reads pairs.
pub const READ_ONLY: u8 = 2;
/// Needs memory or space.
pub const DENY_OOM: u8 = 4;
/// Takes a time that does not grow with the value.
pub const FAST: u8 = 8;
/// May be sent before the client has authenticated.
pub const NO_AUTH: u8 = 16;
/// The second argument is the number of names, which follow it.
pub const MOVABLE_KEYS: u8 = 32;

/// Flags by name, as COMMAND INFO answers them.
pub const FLAG_NAMES: [(u8, &str); 6] = [
    (WRITE, "write"),
    (READ_ONLY, "readonly"),
    (DENY_OOM, "denyoom"),
    (FAST, "fast"),
    (NO_AUTH, "no_auth"),
    (MOVABLE_KEYS, "movablekeys"),
];

const W: u8 = WRITE;
const WM: u8 = WRITE | DENY_OOM;
const WF: u8 = WRITE | FAST;
const WMF: u8 = WRITE | DENY_OOM | FAST;
const R: u8 = READ_ONLY;
const RF: u8 = READ_ONLY | FAST;
const FA: u8 = FAST | NO_AUTH;
const WMK: u8 = WM | MOVABLE_KEYS;

/// Command of the protocol.
#[derive(Debug)]
pub struct CommandSpec {
    /// Name in small letters.
    pub name: &'static str,
    /// Number of arguments with the name; a negative one is the least.
    pub arity: i8,
    /// Sum of the flags.
    pub flags: u8,
    /// Position of the first key; 0 for none, and with [`MOVABLE_KEYS`].
    pub first_key: i8,
    /// Position of the last key; negative ones count from the end.
    pub last_key: i8,
    /// Distance of keys.
    pub key_step: i8,
    pub(crate) execute: Option<Execute>,
}

impl CommandSpec {
    /// Returns the command with this name, in any case.
    pub fn find(name: &[u8]) -> Option<&'static Self> {
        const NAME_BYTES_MAX: usize = 16;
        let mut lower = [0; NAME_BYTES_MAX];
        let lower = lower.get_mut(..name.len())?;
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        let place = TABLE.binary_search_by(|spec| spec.name.as_bytes().cmp(lower)).ok()?;
        TABLE.get(place)
    }

    /// Returns all commands, by name.
    pub fn all() -> &'static [Self] {
        &TABLE
    }

    /// Returns the place of the command among [`CommandSpec::all`].
    pub fn place(&self) -> usize {
        TABLE.binary_search_by(|spec| spec.name.cmp(self.name)).unwrap_or_default()
    }

    /// Whether the command has all of these flags.
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// Whether a program executes it. The connection answers all others itself.
    pub fn is_program(&self) -> bool {
        self.execute.is_some()
    }

    /// Fails unless a request has a possible number of arguments.
    pub fn check_arity(&self, arguments: usize) -> Result<(), RequestError> {
        let expected = usize::from(self.arity.unsigned_abs());
        let fits = if self.arity < 0 { arguments >= expected } else { arguments == expected };
        if fits { Ok(()) } else { Err(RequestError::WrongArity(self.name)) }
    }

    /// Returns the keys of a request.
    pub fn keys<'a>(&self, arguments: &'a [Bytes]) -> impl Iterator<Item = &'a Bytes> + use<'a> {
        let first = usize::from(self.first_key.unsigned_abs());
        let last = match self.last_key {
            last @ 0.. => usize::from(last.unsigned_abs()),
            last => arguments.len().saturating_sub(usize::from(last.unsigned_abs())),
        };
        let range = if first == 0 { 0..0 } else { first..(last + 1).min(arguments.len()) };
        let step = usize::from(self.key_step.unsigned_abs()).max(1);
        let keys = match self.has(MOVABLE_KEYS) {
            true => commands::scripts::names(arguments),
            false => arguments.get(range).unwrap_or_default(),
        };
        keys.iter().step_by(step)
    }
}

const fn spec(
    name: &'static str,
    arity: i8,
    flags: u8,
    (first_key, last_key, key_step): (i8, i8, i8),
    execute: Option<Execute>,
) -> CommandSpec {
    CommandSpec { name, arity, flags, first_key, last_key, key_step, execute }
}

const NO_KEY: (i8, i8, i8) = (0, 0, 0);
const ONE: (i8, i8, i8) = (1, 1, 1);
const TWO: (i8, i8, i8) = (1, 2, 1);
const ALL: (i8, i8, i8) = (1, -1, 1);
const PAIRS: (i8, i8, i8) = (1, -1, 2);

/// Invariant: ordered by name. Test: `the_table_is_ordered_and_each_command_is_found`.
static TABLE: [CommandSpec; COMMANDS] = [
    spec("append", 3, WMF, ONE, Some(commands::strings::append)),
    spec("auth", -2, FA, NO_KEY, None),
    spec("client", -2, 0, NO_KEY, None),
    spec("command", -1, 0, NO_KEY, None),
    spec("config", -2, 0, NO_KEY, None),
    spec("copy", -3, WM, TWO, Some(commands::keys::copy)),
    spec("dbsize", 1, RF, NO_KEY, None),
    spec("decr", 2, WMF, ONE, Some(commands::numbers::decr)),
    spec("decrby", 3, WMF, ONE, Some(commands::numbers::decrby)),
    spec("del", -2, W, ALL, Some(commands::keys::del)),
    spec("delex", -2, WF, ONE, Some(commands::strings::delex)),
    spec("discard", 1, FAST, NO_KEY, None),
    spec("echo", 2, FAST, NO_KEY, None),
    spec("eval", -3, WMK, NO_KEY, Some(commands::scripts::eval)),
    spec("evalsha", -3, WMK, NO_KEY, Some(commands::scripts::eval)),
    spec("exec", 1, 0, NO_KEY, None),
    spec("exists", -2, RF, ALL, Some(commands::keys::exists)),
    spec("expire", -3, WF, ONE, Some(commands::expiry::expire)),
    spec("expireat", -3, WF, ONE, Some(commands::expiry::expireat)),
    spec("expiretime", 2, RF, ONE, Some(commands::expiry::expiretime)),
    spec("flushall", -1, W, NO_KEY, None),
    spec("flushdb", -1, W, NO_KEY, None),
    spec("function", -2, 0, NO_KEY, None),
    spec("get", 2, RF, ONE, Some(commands::strings::get)),
    spec("getdel", 2, WF, ONE, Some(commands::strings::getdel)),
    spec("getex", -2, WF, ONE, Some(commands::strings::getex)),
    spec("getrange", 4, R, ONE, Some(commands::strings::getrange)),
    spec("getset", 3, WMF, ONE, Some(commands::strings::getset)),
    spec("hdel", -3, WF, ONE, Some(commands::hashes::hdel)),
    spec("hello", -1, FA, NO_KEY, None),
    spec("hexists", 3, RF, ONE, Some(commands::hashes::hexists)),
    spec("hget", 3, RF, ONE, Some(commands::hashes::hget)),
    spec("hgetall", 2, R, ONE, Some(commands::hashes::hgetall)),
    spec("hincrby", 4, WMF, ONE, Some(commands::hashes::hincrby)),
    spec("hincrbyfloat", 4, WMF, ONE, Some(commands::hashes::hincrbyfloat)),
    spec("hkeys", 2, R, ONE, Some(commands::hashes::hkeys)),
    spec("hlen", 2, RF, ONE, Some(commands::hashes::hlen)),
    spec("hmget", -3, RF, ONE, Some(commands::hashes::hmget)),
    spec("hmset", -4, WMF, ONE, Some(commands::hashes::hset)),
    spec("hscan", -3, R, ONE, None),
    spec("hset", -4, WMF, ONE, Some(commands::hashes::hset)),
    spec("hsetnx", 4, WMF, ONE, Some(commands::hashes::hsetnx)),
    spec("hstrlen", 3, RF, ONE, Some(commands::hashes::hstrlen)),
    spec("hvals", 2, R, ONE, Some(commands::hashes::hvals)),
    spec("incr", 2, WMF, ONE, Some(commands::numbers::incr)),
    spec("incrby", 3, WMF, ONE, Some(commands::numbers::incrby)),
    spec("incrbyfloat", 3, WMF, ONE, Some(commands::numbers::incrbyfloat)),
    spec("info", -1, 0, NO_KEY, None),
    spec("keys", 2, R, NO_KEY, None),
    spec("lastsave", 1, FAST, NO_KEY, None),
    spec("mget", -2, RF, ALL, Some(commands::strings::mget)),
    spec("mset", -3, WM, PAIRS, Some(commands::strings::mset)),
    spec("msetnx", -3, WM, PAIRS, Some(commands::strings::msetnx)),
    spec("multi", 1, FAST, NO_KEY, None),
    spec("persist", 2, WF, ONE, Some(commands::expiry::persist)),
    spec("pexpire", -3, WF, ONE, Some(commands::expiry::pexpire)),
    spec("pexpireat", -3, WF, ONE, Some(commands::expiry::pexpireat)),
    spec("pexpiretime", 2, RF, ONE, Some(commands::expiry::pexpiretime)),
    spec("ping", -1, FAST, NO_KEY, None),
    spec("psetex", 4, WM, ONE, Some(commands::strings::psetex)),
    spec("pttl", 2, RF, ONE, Some(commands::expiry::pttl)),
    spec("quit", -1, FA, NO_KEY, None),
    spec("randomkey", 1, R, NO_KEY, None),
    spec("rename", 3, W, TWO, Some(commands::keys::rename)),
    spec("renamenx", 3, WF, TWO, Some(commands::keys::renamenx)),
    spec("reset", 1, FA, NO_KEY, None),
    spec("sadd", -3, WMF, ONE, Some(commands::sets::sadd)),
    spec("scan", -2, R, NO_KEY, None),
    spec("scard", 2, RF, ONE, Some(commands::sets::scard)),
    spec("script", -2, 0, NO_KEY, None),
    spec("select", 2, FAST, NO_KEY, None),
    spec("set", -3, WM, ONE, Some(commands::strings::set)),
    spec("setex", 4, WM, ONE, Some(commands::strings::setex)),
    spec("setnx", 3, WMF, ONE, Some(commands::strings::setnx)),
    spec("setrange", 4, WM, ONE, Some(commands::strings::setrange)),
    spec("sismember", 3, RF, ONE, Some(commands::sets::sismember)),
    spec("smembers", 2, R, ONE, Some(commands::sets::smembers)),
    spec("smismember", -3, RF, ONE, Some(commands::sets::smismember)),
    spec("srem", -3, WF, ONE, Some(commands::sets::srem)),
    spec("sscan", -3, R, ONE, None),
    spec("strlen", 2, RF, ONE, Some(commands::strings::strlen)),
    spec("touch", -2, RF, ALL, Some(commands::keys::exists)),
    spec("ttl", 2, RF, ONE, Some(commands::expiry::ttl)),
    spec("type", 2, RF, ONE, Some(commands::keys::type_of)),
    spec("unlink", -2, WF, ALL, Some(commands::keys::del)),
    spec("unwatch", 1, FAST, NO_KEY, None),
    spec("wait", 3, 0, NO_KEY, None),
    spec("waitaof", 4, 0, NO_KEY, None),
    spec("watch", -2, FAST, ALL, None),
];
const COMMANDS: usize = 89;

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &'static str) -> Vec<Bytes> {
        text.split(' ').map(Bytes::from).collect()
    }

    #[test]
    fn the_table_is_ordered_and_each_command_is_found() {
        for (before, after) in TABLE.iter().zip(TABLE.iter().skip(1)) {
            assert!(before.name < after.name, "{}", after.name);
        }
        for spec in CommandSpec::all() {
            let upper = spec.name.to_uppercase();
            assert_eq!(CommandSpec::find(upper.as_bytes()).unwrap().name, spec.name);
            assert!(!(spec.has(WRITE) && spec.has(READ_ONLY)));
            let has_keys = spec.first_key == 1 || spec.has(MOVABLE_KEYS);
            assert!(!spec.is_program() || has_keys, "{}", spec.name);
        }
        for name in [&b""[..], b"nothing", b"a name that is longer than all others", &[0xff]] {
            assert!(CommandSpec::find(name).is_none());
        }
    }

    #[test]
    fn the_keys_of_a_request_are_where_the_table_says() {
        let rows = [
            ("ping", ""),
            ("get a", "a"),
            ("set a b EX 5", "a"),
            ("mget a b c", "a b c"),
            ("mset a 1 b 2", "a b"),
            ("mset a 1 b", "a b"),
            ("rename a b", "a b"),
            ("hset a f v", "a"),
            ("get", ""),
            ("mget", ""),
            ("evalsha x 2 a b c", "a b"),
            ("eval x 0 a", ""),
            ("eval x -1 a", ""),
            ("eval x 2 a", ""),
            ("eval x 9223372036854775807 a", ""),
        ];
        for (request, keys) in rows {
            let request = words(request);
            let spec = CommandSpec::find(&request[0]).unwrap();
            let found: Vec<&[u8]> = spec.keys(&request).map(|key| &key[..]).collect();
            assert_eq!(found.join(&b' '), keys.as_bytes(), "{request:?}");
        }
    }

    #[test]
    fn a_wrong_number_of_arguments_is_refused_by_name() {
        let check = |request| {
            let request = words(request);
            let checked = CommandSpec::find(&request[0]).unwrap().check_arity(request.len());
            checked.map_err(|error| error.to_string())
        };
        let wrong = "ERR wrong number of arguments for 'get' command".to_owned();
        assert_eq!(check("get a"), Ok(()));
        assert_eq!(check("GET"), Err(wrong.clone()));
        assert_eq!(check("get a b"), Err(wrong));
        assert_eq!(check("set a b c d e f"), Ok(()));
        assert!(check("set a").is_err());
    }
}
