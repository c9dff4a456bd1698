//! What the server states about itself: HELLO, INFO, CONFIG, COMMAND, LASTSAVE.

use super::connection::KEEPALIVE_IDLE;
use super::refusals::shown;
use super::state::ConnectionState;
use bytes::Bytes;
use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;
use stele_redis::table::{CommandSpec, FLAG_NAMES, WRITE};
use stele_redis::{BULK_BYTES_MAX, Protocol, RecordedScript, Reply, ScriptError};

/// Version of Redis with the behaviour that clients find. Some compare it.
const REDIS_VERSION: &str = "7.2.0";

fn text(text: impl Into<Bytes>) -> Reply {
    Reply::Bulk(text.into())
}

/// Returns the reply to HELLO.
pub(super) fn hello(client: u64, protocol: Protocol) -> Reply {
    let number = if protocol == Protocol::Resp3 { 3 } else { 2 };
    let pair = |name: &'static str, value| (text(name), value);
    Reply::Map(vec![
        pair("server", text("redis")),
        pair("version", text(REDIS_VERSION)),
        pair("proto", Reply::Integer(number)),
        pair("id", Reply::count(client)),
        pair("mode", text("standalone")),
        pair("role", text("master")),
        pair("modules", Reply::Array(Vec::new())),
    ])
}

/// Answers a command that states something. Subcommands were checked.
pub(super) fn answer(state: &ConnectionState, name: &'static str, arguments: &[Bytes]) -> Reply {
    match name {
        "info" => Reply::Verbatim(Bytes::from(info(state, arguments.get(1..).unwrap_or_default()))),
        "lastsave" => Reply::count(state.redis.clock.unix_seconds()),
        "config" => config(state, arguments),
        "command" => command(arguments),
        "script" => script(arguments),
        other => Reply::error(format!("ERR '{other}' is not executed here")),
    }
}

/// SCRIPT: what is known does not change, so there is nothing to load and nothing to flush.
fn script(arguments: &[Bytes]) -> Reply {
    let words = arguments.get(2..).unwrap_or_default();
    let is_known = |sha1: &Bytes| RecordedScript::of_sha1(sha1).is_some();
    match arguments.get(1).map(|word| word.to_ascii_lowercase()).as_deref() {
        Some(b"exists") => {
            Reply::Array(words.iter().map(|it| Reply::Integer(i64::from(is_known(it)))).collect())
        }
        Some(b"load") => match words.first().and_then(|text| RecordedScript::of_text(text)) {
            Some(script) => Reply::Bulk(Bytes::from_static(script.sha1.as_bytes())),
            None => Reply::error(ScriptError::UnknownText.to_string()),
        },
        _ => match is_flush_mode(words) {
            true => Reply::OK,
            false => Reply::error("ERR SCRIPT FLUSH only support SYNC|ASYNC option"),
        },
    }
}

/// FUNCTION FLUSH: there are no functions.
pub(super) fn flush_functions(arguments: &[Bytes]) -> Reply {
    match is_flush_mode(arguments.get(2..).unwrap_or_default()) {
        true => Reply::OK,
        false => Reply::error("ERR FUNCTION FLUSH only supports SYNC|ASYNC option"),
    }
}

fn is_flush_mode(words: &[Bytes]) -> bool {
    let is_mode =
        |word: &Bytes| word.eq_ignore_ascii_case(b"sync") || word.eq_ignore_ascii_case(b"async");
    words.len() <= 1 && words.iter().all(is_mode)
}

const SECTIONS: [&str; 9] = [
    "server",
    "clients",
    "memory",
    "persistence",
    "stats",
    "replication",
    "cpu",
    "cluster",
    "keyspace",
];

/// Returns the sections that the words name: all of them without words, or for `all`, `default` and
/// `everything`.
fn info(state: &ConnectionState, words: &[Bytes]) -> String {
    let words: Vec<Vec<u8>> = words.iter().map(|word| word.to_ascii_lowercase()).collect();
    let is_all = |word: &Vec<u8>| matches!(&word[..], b"all" | b"default" | b"everything");
    let is_all = words.is_empty() || words.iter().any(is_all);
    let wanted = |section: &&str| is_all || words.iter().any(|word| word == section.as_bytes());
    let sections: Vec<String> = SECTIONS
        .into_iter()
        .filter(wanted)
        .map(|section| {
            let mut name = section.to_owned();
            if let Some(first) = name.get_mut(..1) {
                first.make_ascii_uppercase();
            }
            let mut lines = format!("# {}\r\n", if section == "cpu" { "CPU" } else { &name });
            for (key, value) in lines_of(state, section) {
                // Writing to a string cannot fail.
                let _ = write!(lines, "{key}:{value}\r\n");
            }
            lines
        })
        .collect();
    sections.join("\r\n")
}

fn lines_of(state: &ConnectionState, section: &str) -> Vec<(&'static str, String)> {
    let redis = &state.redis;
    let uptime = redis.started.elapsed().as_secs();
    let number = |number: u64| number.to_string();
    let word = |word: &str| word.to_owned();
    match section {
        "server" => vec![
            ("redis_version", word(REDIS_VERSION)),
            ("redis_mode", word("standalone")),
            ("stele_version", word(env!("CARGO_PKG_VERSION"))),
            ("os", word(std::env::consts::OS)),
            ("arch_bits", number(u64::from(usize::BITS))),
            ("multiplexing_api", word("epoll")),
            ("process_id", number(u64::from(std::process::id()))),
            ("run_id", redis.run_id.clone()),
            ("tcp_port", number(redis.port.load(Relaxed))),
            ("server_time_usec", number(redis.clock.unix_millis() * 1_000)),
            ("uptime_in_seconds", number(uptime)),
            ("uptime_in_days", number(uptime / 86_400)),
        ],
        "clients" => vec![
            ("connected_clients", number(redis.clients.count() as u64)),
            ("maxclients", number(redis.options.connections_max.load(Relaxed))),
            ("blocked_clients", number(0)),
        ],
        "memory" => {
            let used = redis.memory.stats().used_bytes;
            vec![
                ("used_memory", number(used)),
                ("used_memory_human", format!("{used}B")),
                ("maxmemory", number(0)),
                ("maxmemory_policy", word("noeviction")),
            ]
        }
        "persistence" => vec![
            ("loading", number(0)),
            ("rdb_changes_since_last_save", number(0)),
            ("rdb_bgsave_in_progress", number(0)),
            ("rdb_last_save_time", number(redis.clock.unix_seconds())),
            ("rdb_last_bgsave_status", word("ok")),
            ("aof_enabled", number(1)),
            ("aof_rewrite_in_progress", number(0)),
            ("aof_last_write_status", word("ok")),
        ],
        "stats" => vec![
            ("total_connections_received", number(redis.stats.accepted.load(Relaxed))),
            ("total_commands_processed", number(redis.commands.load(Relaxed))),
            ("rejected_connections", number(redis.stats.refused.load(Relaxed))),
            ("evicted_keys", number(0)),
        ],
        "replication" => vec![
            ("role", word("master")),
            ("connected_slaves", number(0)),
            ("master_replid", redis.run_id.clone()),
            ("master_repl_offset", number(0)),
        ],
        "cluster" => vec![("cluster_enabled", number(0))],
        _ => Vec::new(),
    }
}

/// Settings that CONFIG GET answers.
fn settings(state: &ConnectionState) -> Vec<(&'static str, String)> {
    let word = |word: &str| word.to_owned();
    vec![
        ("appendfsync", word("always")),
        ("appendonly", word("yes")),
        ("databases", stele_types::redis_key::DATABASES.to_string()),
        ("maxclients", state.redis.options.connections_max.load(Relaxed).to_string()),
        ("maxmemory", word("0")),
        ("maxmemory-policy", word("noeviction")),
        ("port", state.redis.port.load(Relaxed).to_string()),
        ("proto-max-bulk-len", BULK_BYTES_MAX.to_string()),
        ("save", String::new()),
        ("tcp-keepalive", KEEPALIVE_IDLE.as_secs().to_string()),
        ("timeout", word("0")),
    ]
}

/// Names that CONFIG SET accepts without an effect: test suites set them, and none of them changes what a
/// command of Stele answers.
const WITHOUT_EFFECT: [&str; 31] = [
    "active-expire-effort",
    "appendfsync",
    "appendonly",
    "client-output-buffer-limit",
    "client-query-buffer-limit",
    "hash-max-listpack-entries",
    "hash-max-listpack-value",
    "hash-max-ziplist-entries",
    "hash-max-ziplist-value",
    "hz",
    "latency-monitor-threshold",
    "latency-tracking",
    "lazyfree-lazy-expire",
    "lazyfree-lazy-server-del",
    "lazyfree-lazy-user-del",
    "lazyfree-lazy-user-flush",
    "list-compress-depth",
    "list-max-listpack-size",
    "list-max-ziplist-size",
    "maxmemory-policy",
    "maxmemory-samples",
    "proto-max-bulk-len",
    "save",
    "set-max-intset-entries",
    "set-max-listpack-entries",
    "set-max-listpack-value",
    "slowlog-log-slower-than",
    "slowlog-max-len",
    "zset-max-listpack-entries",
    "zset-max-ziplist-entries",
    "zset-max-ziplist-value",
];

fn config(state: &ConnectionState, arguments: &[Bytes]) -> Reply {
    let rest = arguments.get(2..).unwrap_or_default();
    let word = arguments.get(1).map(|word| word.to_ascii_lowercase()).unwrap_or_default();
    match &word[..] {
        b"get" => {
            let settings = settings(state).into_iter();
            let wanted = |name: &str| rest.iter().any(|pattern| matches(pattern, name.as_bytes()));
            let found = settings.filter(|(name, _)| wanted(name));
            Reply::Map(found.map(|(name, value)| (text(name), text(value))).collect())
        }
        b"set" if !rest.len().is_multiple_of(2) => Reply::error("ERR syntax error"),
        b"set" => {
            let is_known = |name: &Bytes| {
                let name = name.to_ascii_lowercase();
                WITHOUT_EFFECT.iter().any(|known| known.as_bytes() == name)
            };
            match rest.iter().step_by(2).find(|name| !is_known(name)) {
                None => Reply::OK,
                Some(name) => Reply::error(format!(
                    "ERR Unknown option or number of arguments for CONFIG SET - '{}': settings of the node are in \
                     its configuration (docs/configuration.md)",
                    shown(name)
                )),
            }
        }
        _ => Reply::OK,
    }
}

/// Returns whether a name matches a pattern with `*` and `?`, in any case.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    // The last `*`, and the rest of the name when it was met: it may stand for one byte more.
    let (mut pattern, mut name) = (pattern, name);
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        match (pattern, name) {
            ([b'*', rest @ ..], _) => (pattern, star) = (rest, Some((rest, name))),
            ([], []) => return true,
            ([one, after @ ..], [byte, rest @ ..])
                if *one == b'?' || one.eq_ignore_ascii_case(byte) =>
            {
                (pattern, name) = (after, rest);
            }
            _ => match star {
                Some((after, [_, rest @ ..])) => {
                    (pattern, name, star) = (after, rest, Some((after, rest)));
                }
                _ => return false,
            },
        }
    }
}

fn command(arguments: &[Bytes]) -> Reply {
    let names = arguments.get(2..).unwrap_or_default();
    let word = arguments.get(1).map(|word| word.to_ascii_lowercase());
    let named = |names: &[Bytes]| -> Vec<&'static CommandSpec> {
        match names {
            [] => CommandSpec::all().iter().collect(),
            names => names.iter().filter_map(|name| CommandSpec::find(name)).collect(),
        }
    };
    match word.as_deref() {
        None => Reply::Array(CommandSpec::all().iter().map(described).collect()),
        Some(b"count") => Reply::count(CommandSpec::all().len()),
        Some(b"list") => list(names),
        Some(b"info") if names.is_empty() => {
            Reply::Array(CommandSpec::all().iter().map(described).collect())
        }
        Some(b"info") => {
            let one = |name: &Bytes| CommandSpec::find(name).map_or(Reply::NullArray, described);
            Reply::Array(names.iter().map(one).collect())
        }
        Some(b"docs") => {
            let docs = named(names).into_iter().map(|spec| (text(spec.name), documented(spec)));
            Reply::Map(docs.collect())
        }
        Some(b"getkeys") => keys_of(names),
        Some(_) => Reply::error("ERR syntax error"),
    }
}

/// Returns the names of commands: all of them, or those that a filter names.
fn list(filter: &[Bytes]) -> Reply {
    let words: Vec<Vec<u8>> = filter.iter().map(|word| word.to_ascii_lowercase()).collect();
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    let is_listed = |name: &str| match words[..] {
        [b"filterby", b"pattern", pattern] => matches(pattern, name.as_bytes()),
        [b"filterby", b"module", _] => false,
        _ => true,
    };
    match words[..] {
        [] | [b"filterby", b"pattern" | b"module", _] => {
            let names = CommandSpec::all().iter().map(|spec| spec.name);
            Reply::Array(names.filter(|name| is_listed(name)).map(text).collect())
        }
        _ => Reply::error("ERR syntax error"),
    }
}

/// Returns a command as COMMAND INFO does: name, arity, flags, keys, and four lists that are empty here.
fn described(spec: &CommandSpec) -> Reply {
    let flags = FLAG_NAMES.into_iter().filter(|(flag, _)| spec.has(*flag));
    let number = |number: i8| Reply::Integer(i64::from(number));
    let nothing = || Reply::Array(Vec::new());
    Reply::Array(vec![
        text(spec.name),
        number(spec.arity),
        Reply::Set(flags.map(|(_, name)| Reply::Simple(name)).collect()),
        number(spec.first_key),
        number(spec.last_key),
        number(spec.key_step),
        Reply::Set(Vec::new()),
        nothing(),
        nothing(),
        nothing(),
    ])
}

fn documented(spec: &CommandSpec) -> Reply {
    let summary = match (spec.is_program(), spec.has(WRITE)) {
        (_, true) => "Changes keys.",
        (true, false) => "Reads keys.",
        (false, false) => "Concerns the connection or the server.",
    };
    let pair = |name: &'static str, value: &'static str| (text(name), text(value));
    Reply::Map(vec![pair("summary", summary), pair("since", "1.0.0"), pair("group", "generic")])
}

fn keys_of(request: &[Bytes]) -> Reply {
    let spec = request.first().and_then(|name| CommandSpec::find(name));
    let Some(spec) = spec else { return Reply::error("ERR Invalid command specified") };
    if spec.check_arity(request.len()).is_err() {
        return Reply::error("ERR Invalid number of arguments specified for command");
    }
    let keys: Vec<Reply> = spec.keys(request).cloned().map(Reply::Bulk).collect();
    match keys.is_empty() {
        true => Reply::error("ERR The command has no key arguments"),
        false => Reply::Array(keys),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_a_shell() {
        let rows = [
            ("*", "save", true),
            ("s*e", "save", true),
            ("SAVE", "save", true),
            ("s?ve", "save", true),
            ("sav", "save", false),
            ("save*", "save", true),
            ("*a*a*", "databases", true),
            ("*x*", "databases", false),
            ("", "", true),
            ("", "a", false),
            ("?", "", false),
        ];
        for (pattern, name, expected) in rows {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn names_without_an_effect_are_ordered_and_each_is_there_once() {
        assert!(WITHOUT_EFFECT.is_sorted_by(|a, b| a < b));
    }
}
