//! What is refused before it is executed: subcommands, and commands of Redis that are not built, with what to
//! use instead.

use bytes::Bytes;
use stele_redis::{Reply, Request};

/// Bytes of a word that an error shows.
const SHOWN_BYTES_MAX: usize = 128;

/// Returns a word of a client for an error.
pub(super) fn shown(word: &[u8]) -> String {
    let shown = word.get(..SHOWN_BYTES_MAX).unwrap_or(word);
    String::from_utf8_lossy(shown).replace(|c: char| c.is_control(), " ")
}

/// Subcommands by command, each with its number of arguments; a negative one is the least.
const SUBCOMMANDS: [(&str, &[(&str, i8)]); 5] = [
    (
        "client",
        &[
            ("getname", 2),
            ("id", 2),
            ("info", 2),
            ("kill", -3),
            ("list", -2),
            ("no-evict", 3),
            ("no-touch", 3),
            ("reply", 3),
            ("setinfo", 4),
            ("setname", 3),
            ("tracking", -3),
        ],
    ),
    ("command", &[("count", 2), ("docs", -2), ("getkeys", -3), ("info", -2), ("list", -2)]),
    ("config", &[("get", -3), ("resetstat", 2), ("set", -4)]),
    ("function", &[("flush", -2)]),
    ("script", &[("exists", -3), ("flush", -2), ("load", 3)]),
];

/// Returns the error of a subcommand that is unknown, or has another number of arguments.
pub(super) fn of_subcommand(request: &Request) -> Option<Reply> {
    let command = request.spec().name;
    let (_, subcommands) = SUBCOMMANDS.iter().find(|(name, _)| *name == command)?;
    let arguments = request.arguments();
    let word: &Bytes = arguments.get(1)?;
    let lower = word.to_ascii_lowercase();
    let Some((name, arity)) = subcommands.iter().find(|(name, _)| name.as_bytes() == lower) else {
        let (word, help) = (shown(word), command.to_ascii_uppercase());
        return Some(Reply::error(format!("ERR unknown subcommand '{word}'. Try {help} HELP.")));
    };
    let expected = usize::from(arity.unsigned_abs());
    let fits = match *arity < 0 {
        true => arguments.len() >= expected,
        false => arguments.len() == expected,
    };
    (!fits).then(|| {
        Reply::error(format!("ERR wrong number of arguments for '{command}|{name}' command"))
    })
}

const LISTS: &str =
    "Lists are not built: use a hash with numbered fields, or a queue beside the store";
const SORTED_SETS: &str = "Sorted sets are not built";
const STREAMS: &str =
    "Streams are not built: the log of the store can be followed by `stele watch`";
const PUBLISH: &str =
    "Publish and subscribe are not built: changes can be followed by `stele watch`";
const SCRIPTS: &str = "Functions and read-only scripts are not built: use MULTI with WATCH, or SET with NX, XX, GET or IFEQ";
const BITS: &str = "Bits of strings are not built: use a set of numbers";
const GEO: &str = "Geographic indexes are not built";
const SKETCHES: &str = "Estimates of sets are not built: use SADD and SCARD";
const REPLICATION: &str =
    "Replicas are those of the store: `stele ctl` shows and moves them, and nodes find each other";
const PERSISTENCE: &str = "Every write is durable before it is answered: there is nothing to save";
const SETS: &str =
    "Operations on several sets are not built: use SMEMBERS and compute in the client";
const OTHERS: &str = "It is not built: docs/redis.md lists the commands";

/// Commands of Redis that are not built, in small letters, by what replaces them.
const NOT_BUILT: [(&str, &[&str]); 12] = [
    (
        LISTS,
        &[
            "lpush",
            "rpush",
            "lpushx",
            "rpushx",
            "lpop",
            "rpop",
            "llen",
            "lrange",
            "lindex",
            "lset",
            "linsert",
            "lrem",
            "ltrim",
            "lpos",
            "lmove",
            "lmpop",
            "rpoplpush",
            "blpop",
            "brpop",
            "blmove",
            "blmpop",
            "brpoplpush",
            "sort",
            "sort_ro",
        ],
    ),
    (
        SORTED_SETS,
        &[
            "zadd",
            "zcard",
            "zcount",
            "zdiff",
            "zdiffstore",
            "zincrby",
            "zinter",
            "zintercard",
            "zinterstore",
            "zlexcount",
            "zmpop",
            "zmscore",
            "zpopmax",
            "zpopmin",
            "zrandmember",
            "zrange",
            "zrangebylex",
            "zrangebyscore",
            "zrangestore",
            "zrank",
            "zrem",
            "zremrangebylex",
            "zremrangebyrank",
            "zremrangebyscore",
            "zrevrange",
            "zrevrangebylex",
            "zrevrangebyscore",
            "zrevrank",
            "zscan",
            "zscore",
            "zunion",
            "zunionstore",
            "bzmpop",
            "bzpopmax",
            "bzpopmin",
        ],
    ),
    (
        STREAMS,
        &[
            "xack",
            "xadd",
            "xautoclaim",
            "xclaim",
            "xdel",
            "xgroup",
            "xinfo",
            "xlen",
            "xpending",
            "xrange",
            "xread",
            "xreadgroup",
            "xrevrange",
            "xsetid",
            "xtrim",
        ],
    ),
    (
        PUBLISH,
        &[
            "publish",
            "subscribe",
            "psubscribe",
            "unsubscribe",
            "punsubscribe",
            "ssubscribe",
            "sunsubscribe",
            "spublish",
            "pubsub",
            "monitor",
        ],
    ),
    (SCRIPTS, &["eval_ro", "evalsha_ro", "fcall", "fcall_ro"]),
    (BITS, &["getbit", "setbit", "bitcount", "bitpos", "bitop", "bitfield", "bitfield_ro"]),
    (
        GEO,
        &[
            "geoadd",
            "geodist",
            "geohash",
            "geopos",
            "georadius",
            "georadius_ro",
            "georadiusbymember",
            "georadiusbymember_ro",
            "geosearch",
            "geosearchstore",
        ],
    ),
    (SKETCHES, &["pfadd", "pfcount", "pfmerge", "pfdebug", "pfselftest"]),
    (
        REPLICATION,
        &[
            "replicaof",
            "slaveof",
            "psync",
            "sync",
            "replconf",
            "role",
            "failover",
            "cluster",
            "asking",
            "readonly",
            "readwrite",
        ],
    ),
    (PERSISTENCE, &["save", "bgsave", "bgrewriteaof"]),
    (
        SETS,
        &["sdiff", "sdiffstore", "sinter", "sintercard", "sinterstore", "sunion", "sunionstore"],
    ),
    (
        OTHERS,
        &[
            "acl",
            "debug",
            "dump",
            "latency",
            "lcs",
            "lolwut",
            "memory",
            "migrate",
            "module",
            "move",
            "object",
            "restore",
            "shutdown",
            "slowlog",
            "smove",
            "spop",
            "srandmember",
            "hrandfield",
            "swapdb",
            "time",
            "substr",
            "hexpire",
            "hpexpire",
            "hexpireat",
            "hpexpireat",
            "httl",
            "hpttl",
            "hpersist",
            "hgetdel",
            "hgetex",
            "hsetex",
            "msetex",
        ],
    ),
];

/// Returns what to use instead of a command of Redis that is not built; `None` for other names.
pub(super) fn instead(name: &str) -> Option<&'static str> {
    let lower = name.to_ascii_lowercase();
    let (instead, _) = NOT_BUILT.iter().find(|(_, names)| names.contains(&lower.as_str()))?;
    Some(instead)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use stele_redis::table::CommandSpec;

    #[test]
    fn no_command_that_is_built_is_refused_and_each_is_named_once() {
        let mut seen = BTreeSet::new();
        for name in NOT_BUILT.iter().flat_map(|(_, names)| *names) {
            assert!(CommandSpec::find(name.as_bytes()).is_none(), "{name} is built");
            assert!(seen.insert(name), "{name} is there twice");
        }
        assert_eq!(instead("LPush"), Some(LISTS));
        assert_eq!((instead("get"), instead("")), (None, None));
    }

    #[test]
    fn the_table_of_commands_names_what_is_built() {
        /// Commands that Redis 8.2 does not have.
        const OF_OTHERS: [&str; 1] = ["delex"];
        /// A subcommand that has an error of its own.
        const REFUSED: [&str; 1] = ["client|tracking"];
        let page = include_str!("../../../../docs/redis-commands.md");
        let mut built = BTreeSet::new();
        for row in page.lines().filter_map(|line| line.strip_prefix("| ")) {
            let mut columns = row.split(" | ");
            let name = columns.next().unwrap().to_lowercase().replace(' ', "|");
            match columns.next().unwrap() {
                "yes" | "differs" => assert!(built.insert(name.clone()), "{name} is there twice"),
                "no" => {}
                other => assert_eq!(other, "in Stele", "{name}"),
            }
        }
        let mut known: BTreeSet<String> = BTreeSet::new();
        known.extend(CommandSpec::all().iter().map(|spec| spec.name.to_owned()));
        for (command, subcommands) in SUBCOMMANDS {
            known.extend(subcommands.iter().map(|(name, _)| format!("{command}|{name}")));
        }
        for name in OF_OTHERS.iter().chain(&REFUSED) {
            assert!(known.remove(*name), "{name}");
        }
        let remedy = "run cargo xtask redis-compare --table";
        assert_eq!(built, known, "docs/redis-commands.md is of another version: {remedy}");
    }

    #[test]
    fn subcommands_are_those_of_commands_and_checked_by_their_number_of_arguments() {
        let error = |text: &'static str| {
            let request = Request::parse(0, text.split(' ').map(Bytes::from).collect()).unwrap();
            match of_subcommand(&request) {
                Some(Reply::Error(text)) => text.into_owned(),
                other => format!("{other:?}"),
            }
        };
        assert_eq!(error("client Nothing"), "ERR unknown subcommand 'Nothing'. Try CLIENT HELP.");
        let wrong = "ERR wrong number of arguments for 'client|setname' command";
        assert_eq!(error("client SETNAME"), wrong);
        assert_eq!(error("CONFIG get"), "ERR wrong number of arguments for 'config|get' command");
        for fine in ["client id", "command", "command docs a b", "config set a b", "get a"] {
            assert_eq!(error(fine), "None", "{fine}");
        }
        for (name, _) in SUBCOMMANDS {
            assert!(CommandSpec::find(name.as_bytes()).is_some());
        }
    }
}
