//! EVAL and EVALSHA of the scripts that lock libraries send. No script is interpreted: each that a current
//! version of a library sends is known by its SHA-1, and has a function here with the same effect and reply.
//!
//! A script executes commands on the state of its request. If one of them fails, the script fails with its
//! error and changes nothing.

use super::Call;
use super::locks::{
    Script, compare_and_set, count, count_if_present, count_until, extend, force, force_until,
    held_pttl, held_pttl_or_zero, held_ttl_or_fail, obtain, release, release_all, release_all_in,
    release_or_fail, renew, renew_all, renew_all_in, renew_until, take, take_all, take_all_in,
    take_or_keep, take_or_renew, take_until, unlock_known,
};
use crate::number::parse_i64;
use crate::state::{Answer, Stop};
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_hashed_as_clients_hash_them() {
        assert_eq!(sha1_of(b"abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert!(RecordedScript::of_text(b"abc").is_none());
    }
}
