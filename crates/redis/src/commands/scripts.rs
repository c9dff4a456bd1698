//! EVAL and EVALSHA of the scripts that lock libraries send. No script is interpreted: each that a current
//! version of a library sends is known by its SHA-1, and has a function here with the same effect and reply.
//!
//! A script executes commands on the state of its request. If one of them fails, the script fails with its
//! error and changes nothing.

use super::Call;
use crate::number::parse_i64;
use crate::reply::Reply;
use crate::request::Request;
use crate::state::{Answer, State, Stop};
use crate::table::CommandSpec;
use bytes::Bytes;

/// Place of the number of names among the arguments, and of the first name.
const NUMBER: usize = 2;
const FIRST_NAME: usize = 3;

type Run = fn(&mut Script<'_, '_>) -> Answer;

/// Script that a library sends.
#[derive(Debug)]
pub struct RecordedScript {
    /// SHA-1 of its text, in small hexadecimal digits.
    pub sha1: &'static str,
    /// Library with the version from which it was recorded, and what it is for.
    pub library: &'static str,
    /// Names that it takes at least and at most.
    names: (usize, usize),
    /// Arguments after the names that it takes at least.
    arguments_min: usize,
    run: Run,
}

const ONE: (usize, usize) = (1, 1);
const MANY: (usize, usize) = (1, usize::MAX);

const fn script(
    sha1: &'static str,
    library: &'static str,
    names: (usize, usize),
    arguments_min: usize,
    run: Run,
) -> RecordedScript {
    RecordedScript { sha1, library, names, arguments_min, run }
}

/// Source: the packages named, of which the scripts were printed and hashed on 1 December 2026. The scripts of
/// redis-py are the same in 4.6.0, 5.2.1, 6.4.0, 7.0.1 and 8.1.0, and in valkey-py 6.2.0.
static RECORDED: [RecordedScript; 37] = [
    script("c3f8721cbb97f72bc19e972846bd7aaf91901658", "redis-py 8.1.0 release", ONE, 1, release),
    script("a4e8783852e6b949f9ef3a97212805108459a890", "redis-py 8.1.0 extend", ONE, 3, extend),
    script("1cac51482acf5858da00f6d685d68f886cd6b6b2", "redis-py 8.1.0 reacquire", ONE, 2, renew),
    script(
        "e950836ed1e694540c503ef9972b8de518044d3b",
        "redsync 4.18.1 unlock",
        ONE,
        1,
        unlock_known,
    ),
    script("d75bb8b5bd13532ddedd17762e772346e39b321e", "redsync 4.18.1 extend", ONE, 2, renew),
    script(
        "b6b55c439e02c6f52ffb8be7ec8c0d0ac816ea79",
        "redsync 4.18.1 lock or extend",
        ONE,
        2,
        take_or_renew,
    ),
    script("80a1b5f2cfccec3b7119ba7721d2127682b691a7", "redislock 0.9.4 obtain", ONE, 3, obtain),
    script("a7aba3bc5d6e99b3003da8b9d80a63b9f4092ecf", "redislock 0.9.4 refresh", ONE, 2, renew),
    script("cf0e94b2e9ffc7e04395cf88f7583fc309985910", "redislock 0.9.4 release", ONE, 1, release),
    script("6484da7d58920897fdc22b7f9afd1a3d47524ea8", "redislock 0.9.4 ttl", ONE, 1, held_pttl),
    script(
        "9eb62214c9af87ae5f9a9f12bb4520281c0d2ae1",
        "rueidislock 1.0.79 release",
        ONE,
        1,
        release,
    ),
    script(
        "852ba6ec6104340ced36643283c856d4698569e4",
        "rueidislock 1.0.79 extend",
        ONE,
        2,
        renew_until,
    ),
    script("fa3d1aaa7e4145457755016a3d5daf72fa7a11bf", "rueidislock 1.0.79 try", ONE, 2, take),
    script(
        "3875d208d9e377969d2022550302cc83ad17b584",
        "rueidislock 1.0.79 try until",
        ONE,
        2,
        take_until,
    ),
    script("4384ed08baff4dd7071b6c78c516a2fded4ee3e7", "rueidislock 1.0.79 force", ONE, 2, force),
    script(
        "c10e8119872659b926e8e28002d9b7fccbf15617",
        "rueidislock 1.0.79 force until",
        ONE,
        2,
        force_until,
    ),
    script("e5a322e2634ef59a516e8ea150cb085afafee684", "redlock 4.2.0 lock", MANY, 2, take_all),
    script("ce46f80993d5dac20dd066eb301a4e37994bdbed", "redlock 4.2.0 extend", MANY, 2, renew_all),
    script(
        "0f0f23b9048b36752b5be114f357ba083449f908",
        "redlock 4.2.0 unlock",
        MANY,
        1,
        release_all,
    ),
    script(
        "96da70f7716f27d278a5218544df37fd8b0a5e4c",
        "redlock 5.0.0-beta.2 acquire",
        MANY,
        2,
        take_all,
    ),
    script(
        "aed6f382e410db8ba7926d4e5e9aab410bf2a78a",
        "redlock 5.0.0-beta.2 extend",
        MANY,
        2,
        renew_all,
    ),
    script(
        "e4612211c9f8f51c257e26e056b0a654b3187242",
        "redlock 5.0.0-beta.2 release",
        MANY,
        1,
        release_all,
    ),
    script(
        "1b77b94aa78451d55dfa97e18819bfbfc596cb5b",
        "@sesamecare-oss/redlock 1.4.0 acquire",
        MANY,
        3,
        take_all_in,
    ),
    script(
        "820e9778d2b6733e9ed771e4be90ae73a95a6f3b",
        "@sesamecare-oss/redlock 1.4.0 extend",
        MANY,
        3,
        renew_all_in,
    ),
    script(
        "df51f6837dcfe303d334e6abea9aeae192bab216",
        "@sesamecare-oss/redlock 1.4.0 release",
        MANY,
        2,
        release_all_in,
    ),
    script("ae3671744a5dbb24ea37ef607b8b10ac7856d43e", "aiocache 0.12.3 release", ONE, 1, release),
    script(
        "782e993d12091daacc7a3164ddf5c4624fe56042",
        "aiocache 0.12.3 compare and set",
        ONE,
        2,
        compare_and_set,
    ),
    script("b948f76fda6b97319d3426a2fb42b0d4f02c7146", "cashews 7.6.0 unlock", ONE, 1, release),
    script(
        "0f8a745c1b5efe281bd1299ea0d1b2994c6ae601",
        "cashews 7.6.0 count with expiry",
        ONE,
        2,
        count_until,
    ),
    script(
        "aecadef15d24ccd9360d8641cdec8e0337a0d343",
        "aioredlock 0.7.3 lock",
        ONE,
        2,
        take_or_keep,
    ),
    script(
        "0e084295a6567dabd5b7d5b4c99018cff95fceff",
        "aioredlock 0.7.3 unlock",
        ONE,
        1,
        release_or_fail,
    ),
    script(
        "2239e3d89e276c90ec523515c30bcf0071823c7e",
        "aioredlock 0.7.3 ttl",
        ONE,
        1,
        held_ttl_or_fail,
    ),
    script(
        "f5f7bd3a3aa4a63c507c1155c5ea1219b350d992",
        "pottery 3.0.1 acquired",
        ONE,
        1,
        held_pttl_or_zero,
    ),
    script("ba015a80261b616e7a62d35df0b8e3edbe6c9414", "pottery 3.0.1 extend", ONE, 2, renew),
    script("a4aada0b36710970eedaaaeec4a6b7d8c78c4f80", "pottery 3.0.1 release", ONE, 1, release),
    script(
        "f4a7da3e5d8ea3b46642af08427151cae0190400",
        "django-redis 7.0.0 incr",
        ONE,
        1,
        count_if_present,
    ),
    script(
        "4d15273b16b10c15e1d9202cbe93c959ab7d250b",
        "django-redis 7.0.0 incr of any",
        ONE,
        1,
        count,
    ),
];

impl RecordedScript {
    /// Returns the script with this SHA-1, in small digits or capitals.
    pub fn of_sha1(sha1: &[u8]) -> Option<&'static Self> {
        RECORDED.iter().find(|it| it.sha1.as_bytes().eq_ignore_ascii_case(sha1))
    }

    /// Returns the script with this text.
    pub fn of_text(text: &[u8]) -> Option<&'static Self> {
        Self::of_sha1(sha1_of(text).as_bytes())
    }

    /// Returns all scripts.
    pub fn all() -> &'static [Self] {
        &RECORDED
    }
}

/// Returns the SHA-1 in small hexadecimal digits.
fn sha1_of(text: &[u8]) -> String {
    sha1_smol::Sha1::from(text).digest().to_string()
}

/// Reasons for which a request names no script that can be executed. The texts are those of Redis where it has
/// the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// EVALSHA with another SHA-1 than those of the table.
    #[error("NOSCRIPT No matching script. Please use EVAL.")]
    UnknownSha1,
    /// A text that no recorded library sends.
    #[error(
        "ERR this script is not known: only scripts of lock libraries are, docs/redis.md lists them; use MULTI \
         with WATCH, or SET with NX, XX, GET or IFEQ"
    )]
    UnknownText,
    /// The number of names is no number.
    #[error("ERR value is not an integer or out of range")]
    NoNumber,
    /// The number of names is below zero.
    #[error("ERR Number of keys can{} be negative", "'t")]
    Negative,
    /// There are fewer arguments than names.
    #[error("ERR Number of keys can{} be greater than number of args", "'t")]
    TooManyNames,
    /// The library sends the script with other numbers of names and arguments.
    #[error("ERR the script of {library} takes other numbers of keys and arguments")]
    OtherNumbers {
        /// Library and script.
        library: &'static str,
    },
}

/// Returns the script of an EVAL or EVALSHA request, of which the number of arguments was checked.
pub(crate) fn of_request(
    spec: &CommandSpec,
    request: &[Bytes],
) -> Result<&'static RecordedScript, ScriptError> {
    let body = request.get(1).map_or(&[][..], |body| &body[..]);
    let found = match spec.name {
        "evalsha" => RecordedScript::of_sha1(body).ok_or(ScriptError::UnknownSha1),
        _ => RecordedScript::of_text(body).ok_or(ScriptError::UnknownText),
    };
    let number = request.get(NUMBER).and_then(|number| parse_i64(number));
    let number = number.ok_or(ScriptError::NoNumber)?;
    let names = usize::try_from(number).map_err(|_| ScriptError::Negative)?;
    let arguments = request.len().saturating_sub(FIRST_NAME).checked_sub(names);
    let arguments = arguments.ok_or(ScriptError::TooManyNames)?;
    let script = found?;
    let (least, most) = script.names;
    match (least..=most).contains(&names) && arguments >= script.arguments_min {
        true => Ok(script),
        false => Err(ScriptError::OtherNumbers { library: script.library }),
    }
}

/// Returns the names of a request; none if their number is wrong.
pub(crate) fn names(request: &[Bytes]) -> &[Bytes] {
    let number = request.get(NUMBER).and_then(|number| parse_i64(number));
    let number = number.and_then(|number| usize::try_from(number).ok()).unwrap_or(0);
    let end = number.saturating_add(FIRST_NAME);
    request.get(FIRST_NAME..end).unwrap_or_default()
}

/// EVAL and EVALSHA.
pub(crate) fn eval(call: &mut Call<'_, '_>) -> Answer {
    call.read_keys()?;
    let request = call.request.arguments();
    let recorded = of_request(call.request.spec(), request);
    let recorded = recorded.map_err(|error| Stop::error(error.to_string()))?;
    let names = names(request);
    let arguments = request.get(FIRST_NAME + names.len()..).unwrap_or_default();
    let database = call.request.database();
    (recorded.run)(&mut Script { names, arguments, database, state: call.state })
}

/// Script that is executed: its names, its arguments, and the state that its commands change.
struct Script<'a, 's> {
    names: &'a [Bytes],
    arguments: &'a [Bytes],
    database: u8,
    state: &'a mut State<'s>,
}

impl<'a> Script<'a, '_> {
    /// Executes a command.
    fn redis(&mut self, words: &[&[u8]]) -> Answer {
        let words = words.iter().map(|word| Bytes::copy_from_slice(word)).collect();
        let request = Request::parse(self.database, words);
        let request = request.map_err(|error| Stop::error(error.to_string()))?;
        match request.spec().execute {
            Some(execute) => execute(&mut Call::new(&request, self.state)),
            None => Err(Stop::SYNTAX),
        }
    }

    fn name(&self) -> &'a Bytes {
        static EMPTY: Bytes = Bytes::new();
        self.names.first().unwrap_or(&EMPTY)
    }

    /// Returns an argument; 0 is the first. Their number was checked.
    fn argument(&self, place: usize) -> &'a Bytes {
        static EMPTY: Bytes = Bytes::new();
        self.arguments.get(place).unwrap_or(&EMPTY)
    }

    fn get(&mut self, name: &Bytes) -> Result<Option<Bytes>, Stop> {
        match self.redis(&[b"get", name])? {
            Reply::Bulk(value) => Ok(Some(value)),
            _ => Ok(None),
        }
    }

    /// Whether the name has the token: the first argument.
    fn is_held(&mut self) -> Result<bool, Stop> {
        let (name, token) = (self.name(), self.argument(0));
        Ok(self.get(name)?.as_ref() == Some(token))
    }

    /// Sets a name for some milliseconds.
    fn set(&mut self, name: &Bytes, token: &Bytes, milliseconds: &Bytes) -> Answer {
        self.redis(&[b"set", name, token, b"px", milliseconds])
    }

    fn delete(&mut self) -> Answer {
        let name = self.name();
        self.redis(&[b"del", name])
    }

    fn pexpire(&mut self, milliseconds: &[u8]) -> Answer {
        let name = self.name();
        self.redis(&[b"pexpire", name, milliseconds])
    }
}

const FALSE: Reply = Reply::Integer(0);

/// Deletes the name if it has the token.
fn release(script: &mut Script<'_, '_>) -> Answer {
    if script.is_held()? { script.delete() } else { Ok(FALSE) }
}

/// Like [`release`]; the reply distinguishes an absent name from one with another token.
fn unlock_known(script: &mut Script<'_, '_>) -> Answer {
    let (name, token) = (script.name(), script.argument(0));
    match script.get(name)? {
        None => Ok(Reply::Integer(-1)),
        Some(value) if value == *token => script.delete(),
        Some(_) => Ok(FALSE),
    }
}

/// Gives the name a new time if it has the token.
fn renew(script: &mut Script<'_, '_>) -> Answer {
    if script.is_held()? { script.pexpire(script.argument(1)) } else { Ok(FALSE) }
}

/// Gives the name a new end of its time if it has the token.
fn renew_until(script: &mut Script<'_, '_>) -> Answer {
    let (name, end_ms) = (script.name(), script.argument(1));
    if script.is_held()? { script.redis(&[b"pexpireat", name, end_ms]) } else { Ok(FALSE) }
}

/// Takes the name if it is absent. Otherwise the reply is null.
fn take(script: &mut Script<'_, '_>) -> Answer {
    let (name, token, milliseconds) = (script.name(), script.argument(0), script.argument(1));
    script.redis(&[b"set", name, token, b"nx", b"px", milliseconds])
}

/// Like [`take`], with the end of the time.
fn take_until(script: &mut Script<'_, '_>) -> Answer {
    let (name, token, end_ms) = (script.name(), script.argument(0), script.argument(1));
    script.redis(&[b"set", name, token, b"nx", b"pxat", end_ms])
}

/// Takes the name from any other holder.
fn force(script: &mut Script<'_, '_>) -> Answer {
    script.set(script.name(), script.argument(0), script.argument(1))
}

/// Like [`force`], with the end of the time.
fn force_until(script: &mut Script<'_, '_>) -> Answer {
    let (name, token, end_ms) = (script.name(), script.argument(0), script.argument(1));
    script.redis(&[b"set", name, token, b"pxat", end_ms])
}

/// Adds to the time of the name, or replaces it unless the third argument is `0`. A name without an expiry is
/// left as it is.
fn extend(script: &mut Script<'_, '_>) -> Answer {
    if !script.is_held()? {
        return Ok(FALSE);
    }
    let name = script.name();
    let Reply::Integer(left_ms @ 0..) = script.redis(&[b"pttl", name])? else { return Ok(FALSE) };
    let more_ms = parse_i64(script.argument(1)).ok_or(Stop::NOT_AN_INTEGER)?;
    let new_ms = match &script.argument(2)[..] {
        b"0" => more_ms.checked_add(left_ms).ok_or(Stop::NOT_AN_INTEGER)?,
        _ => more_ms,
    };
    script.pexpire(new_ms.to_string().as_bytes())?;
    Ok(Reply::Integer(1))
}

/// Renews the name if it has the token, and takes it if it is absent.
fn take_or_renew(script: &mut Script<'_, '_>) -> Answer {
    if script.is_held()? {
        return script.pexpire(script.argument(1));
    }
    let (name, token, milliseconds) = (script.name(), script.argument(0), script.argument(1));
    let taken = script.redis(&[b"set", name, token, b"px", milliseconds, b"nx"])?;
    Ok(Reply::Integer(i64::from(taken == Reply::OK)))
}

/// Takes the name if it is absent, or has a value with the same first bytes, of which the second argument is
/// the number. Otherwise the reply is null.
fn obtain(script: &mut Script<'_, '_>) -> Answer {
    let (name, token, milliseconds) = (script.name(), script.argument(0), script.argument(2));
    let taken = script.redis(&[b"set", name, token, b"nx", b"px", milliseconds])?;
    if taken == Reply::OK {
        return Ok(taken);
    }
    let same = parse_i64(script.argument(1)).and_then(|same| usize::try_from(same).ok());
    let same = same.ok_or(Stop::NOT_AN_INTEGER)?;
    let first = |value: &Bytes| value.slice(..same.min(value.len()));
    match script.get(name)? {
        Some(value) if first(&value) == first(token) => script.set(name, token, milliseconds),
        _ => Ok(Reply::Null),
    }
}

/// Takes the name unless it has another token.
fn take_or_keep(script: &mut Script<'_, '_>) -> Answer {
    let (name, token, milliseconds) = (script.name(), script.argument(0), script.argument(1));
    match script.get(name)? {
        Some(value) if value != *token => Err(another_token()),
        _ => script.set(name, token, milliseconds),
    }
}

fn release_or_fail(script: &mut Script<'_, '_>) -> Answer {
    let (name, token) = (script.name(), script.argument(0));
    match script.get(name)? {
        None => Ok(Reply::OK),
        Some(value) if value == *token => script.delete(),
        Some(_) => Err(another_token()),
    }
}

fn held_ttl_or_fail(script: &mut Script<'_, '_>) -> Answer {
    let name = script.name();
    if script.is_held()? { script.redis(&[b"ttl", name]) } else { Err(another_token()) }
}

/// Error that aioredlock knows by this text.
fn another_token() -> Stop {
    Stop::error("ERROR")
}

/// Answers -3 for a name that has another token.
fn held_pttl(script: &mut Script<'_, '_>) -> Answer {
    let name = script.name();
    if script.is_held()? { script.redis(&[b"pttl", name]) } else { Ok(Reply::Integer(-3)) }
}

fn held_pttl_or_zero(script: &mut Script<'_, '_>) -> Answer {
    Ok(match held_pttl(script)? {
        Reply::Integer(left_ms @ 1..) => Reply::Integer(left_ms),
        _ => FALSE,
    })
}

/// Takes all names if none exists. `first` is the place of the token among the arguments.
fn take_all_from(script: &mut Script<'_, '_>, first: usize) -> Answer {
    for name in script.names {
        if script.redis(&[b"exists", name])? != FALSE {
            return Ok(FALSE);
        }
    }
    set_all(script, first)
}

/// Renews all names if all have the token.
fn renew_all_from(script: &mut Script<'_, '_>, first: usize) -> Answer {
    for name in script.names {
        if script.get(name)?.as_ref() != Some(script.argument(first)) {
            return Ok(FALSE);
        }
    }
    set_all(script, first)
}

fn set_all(script: &mut Script<'_, '_>, first: usize) -> Answer {
    for name in script.names {
        script.set(name, script.argument(first), script.argument(first + 1))?;
    }
    Ok(Reply::count(script.names.len()))
}

/// Deletes the names that have the token.
fn release_all_from(script: &mut Script<'_, '_>, first: usize) -> Answer {
    let mut released = 0u64;
    for name in script.names {
        if script.get(name)?.as_ref() == Some(script.argument(first)) {
            script.redis(&[b"del", name])?;
            released += 1;
        }
    }
    Ok(Reply::count(released))
}

fn take_all(script: &mut Script<'_, '_>) -> Answer {
    take_all_from(script, 0)
}

fn renew_all(script: &mut Script<'_, '_>) -> Answer {
    renew_all_from(script, 0)
}

fn release_all(script: &mut Script<'_, '_>) -> Answer {
    release_all_from(script, 0)
}

fn take_all_in(script: &mut Script<'_, '_>) -> Answer {
    check_database(script)?;
    take_all_from(script, 1)
}

fn renew_all_in(script: &mut Script<'_, '_>) -> Answer {
    check_database(script)?;
    renew_all_from(script, 1)
}

fn release_all_in(script: &mut Script<'_, '_>) -> Answer {
    check_database(script)?;
    release_all_from(script, 1)
}

/// Fails unless the first argument is the database of the connection, which located the names.
fn check_database(script: &Script<'_, '_>) -> Result<(), Stop> {
    match parse_i64(script.argument(0)) == Some(i64::from(script.database)) {
        true => Ok(()),
        false => Err(Stop::error(format!(
            "ERR the script selects another database than the connection, which has {}: SELECT it before",
            script.database
        ))),
    }
}

/// Sets the name if it has the second argument as its value; the last two are an option with its value.
fn compare_and_set(script: &mut Script<'_, '_>) -> Answer {
    let (name, value) = (script.name(), script.argument(0));
    if script.get(name)?.as_ref() != Some(script.argument(1)) {
        return Ok(FALSE);
    }
    match script.arguments {
        [_, _, option, number] => script.redis(&[b"set", name, value, option, number]),
        _ => script.redis(&[b"set", name, value]),
    }
}

fn count(script: &mut Script<'_, '_>) -> Answer {
    let name = script.name();
    script.redis(&[b"incrby", name, script.argument(0)])
}

/// Counts, and sets the time of a name that did not exist.
fn count_until(script: &mut Script<'_, '_>) -> Answer {
    let counted = count(script)?;
    if counted == Reply::Integer(1) {
        script.pexpire(script.argument(1))?;
    }
    Ok(counted)
}

/// Counts if the name exists; otherwise the reply is null.
fn count_if_present(script: &mut Script<'_, '_>) -> Answer {
    let name = script.name();
    match script.redis(&[b"exists", name])? {
        Reply::Integer(1) => count(script),
        _ => Ok(Reply::Null),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_hashed_as_clients_hash_them() {
        assert_eq!(sha1_of(b"abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert!(RecordedScript::of_text(b"abc").is_none());
    }
}
