//! Comparison of the replies of two servers, and the differences that are allowed.

use super::reply::Reply;
use super::sequence::{Command, Sequence, Word};
use super::servers::Against;
use std::collections::BTreeMap;

/// Milliseconds by which a time from now may differ, beside the time that the sequence took.
const TIME_MS_MAX: u64 = 1_500;

/// First reply in which two servers differ.
#[derive(Clone, Debug)]
pub(super) struct Difference {
    pub against: &'static Against,
    pub command: Command,
    /// Command of a transaction, if the difference is in the reply to EXEC.
    pub queued: Option<Command>,
    pub stele: Reply,
    pub other: Reply,
}

/// Replies to one command.
#[derive(Clone, Copy)]
struct Pair<'a> {
    command: &'a Command,
    stele: &'a Reply,
    other: &'a Reply,
    sequence: &'a Sequence,
    elapsed_ms: u64,
}

/// Difference that is allowed.
struct Allowed {
    /// Server that differs; empty for both.
    against: &'static str,
    applies: fn(&Pair<'_>) -> bool,
    reason: &'static str,
}

/// Texts of an error that differ.
struct Texts {
    /// Server that differs; empty for both.
    against: &'static str,
    command: &'static str,
    stele: &'static str,
    other: &'static str,
    reason: &'static str,
}

const TEXTS: &[Texts] = &[
    Texts {
        against: "valkey",
        command: "multi",
        stele: "ERR MULTI calls can not be nested",
        other: "ERR Command not allowed inside a transaction",
        reason: NESTED,
    },
    Texts {
        against: "valkey",
        command: "watch",
        stele: "ERR WATCH inside MULTI is not allowed",
        other: "ERR Command not allowed inside a transaction",
        reason: NESTED,
    },
    Texts {
        against: "valkey",
        command: "client",
        stele: "ERR client-id should be greater than 0",
        other: "ERR syntax error",
        reason: "CLIENT KILL ID with a word has the text of Redis",
    },
    Texts {
        against: "valkey",
        command: "client",
        stele: "ERR Invalid client ID",
        other: "ERR syntax error",
        reason: "CLIENT LIST ID with a word has the text of Redis",
    },
    Texts {
        against: "valkey",
        command: "evalsha",
        stele: "NOSCRIPT No matching script. Please use EVAL.",
        other: "NOSCRIPT No matching script.",
        reason: "EVALSHA of an unknown script has the text of Redis",
    },
];
const NESTED: &str = "MULTI and WATCH within MULTI have the texts of Redis, and EXEC is executed";

const ALLOWED: &[Allowed] = &[
    Allowed {
        against: "",
        applies: is_same_without_order,
        reason: "members and names have no order",
    },
    Allowed {
        against: "",
        applies: is_same_time,
        reason: "a time from now differs by the delay between the two servers",
    },
    Allowed {
        against: "",
        applies: |pair| pair.command.is("hello") && same_keys(pair.stele, pair.other),
        reason: "HELLO states the server, its version and the number of the connection",
    },
    Allowed {
        against: "",
        applies: is_same_description,
        reason: "COMMAND INFO has other flags, and no categories, tips and forms of keys",
    },
    Allowed {
        against: "",
        applies: |pair| {
            pair.command.is("randomkey") && !pair.stele.is_null() && !pair.other.is_null()
        },
        reason: "RANDOMKEY chooses",
    },
    Allowed {
        against: "",
        applies: has_advice,
        reason: "the text of an error also says what to do instead",
    },
    Allowed {
        against: "",
        applies: |pair| pair.command.is("waitaof") && pair.stele.elements().is_some(),
        reason: "WAITAOF counts the node, of which every write is durable; the other server has no log",
    },
    Allowed {
        against: "",
        applies: |pair| {
            pair.command.is("client")
                && pair.command.lower(2) == b"user"
                && *pair.stele == Reply::Integer(0)
        },
        reason: "CLIENT KILL USER does not say whether a grant has this name",
    },
    Allowed {
        against: "",
        applies: |pair| pair.command.is("dbsize") && has_past_time(pair.sequence),
        reason: "DBSIZE of Redis counts a name that has expired until it is read",
    },
];

/// Times that each allowed difference was met.
pub(super) type Met = BTreeMap<&'static str, u64>;

/// Returns the first difference between the replies of a node and of another server to a sequence that took some
/// time. `met` has what was met in this sequence.
pub(super) fn first(
    sequence: &Sequence,
    (of_stele, of_other, elapsed_ms): (&[Reply], &[Reply], u64),
    against: &'static Against,
    met: &mut Met,
) -> Option<Difference> {
    let after = sequence.after();
    let commands = sequence.commands.iter().chain(&after);
    // Commands that are queued, by connection.
    let mut queues: [Vec<&Command>; 2] = [Vec::new(), Vec::new()];
    for (place, ((command, stele), other)) in commands.zip(of_stele).zip(of_other).enumerate() {
        let queue = queues.get_mut(command.connection)?;
        let queued = Reply::Simple(b"QUEUED".to_vec());
        if *stele == queued && *other == queued {
            queue.push(command);
            continue;
        }
        let is_done = !matches!(stele, Reply::Error(_));
        if command.is_one_of(&["multi", "discard", "reset"]) && is_done {
            queue.clear();
        }
        let pair = Pair { command, stele, other, sequence, elapsed_ms };
        let queue = if command.is("exec") { std::mem::take(queue) } else { Vec::new() };
        let different = match executed(&pair, &queue) {
            Some(pairs) => pairs.into_iter().find(|pair| !is_equal(pair, against, met)),
            None => Some(pair).filter(|pair| !is_equal(pair, against, met)),
        };
        if let Some(different) = different {
            // What EXEC did differs then, so that the rest is not compared.
            if other.is_null() && may_be_missing_again(sequence, place, of_stele) {
                *met.entry(MISSING_AGAIN).or_default() += 1;
                return None;
            }
            let is_aborted = matches!(other, Reply::Error(text) if text.starts_with(b"EXECABORT"));
            if command.is("exec") && is_aborted && met.contains_key(NESTED) {
                return None;
            }
            let queued = (!std::ptr::eq(different.command, command)).then_some(different.command);
            return Some(Difference {
                against,
                command: command.clone(),
                queued: queued.cloned(),
                stele: different.stele.clone(),
                other: different.other.clone(),
            });
        }
    }
    None
}

const MISSING_AGAIN: &str = "EXEC is executed if a watched name that was missing is missing again";

/// Whether a name that was missing when the connection of an EXEC watched it may have been created and deleted
/// meanwhile. WATCH follows EXISTS of the same names.
fn may_be_missing_again(sequence: &Sequence, exec: usize, stele: &[Reply]) -> bool {
    const DELETING: [&str; 21] = [
        "del",
        "unlink",
        "getdel",
        "delex",
        "rename",
        "renamenx",
        "hdel",
        "srem",
        "flushdb",
        "set",
        "getex",
        "expire",
        "pexpire",
        "expireat",
        "pexpireat",
        "setex",
        "psetex",
        "exec",
        "copy",
        "mset",
        "getset",
    ];
    let Some((exec, before)) = sequence.commands.get(..=exec).and_then(<[_]>::split_last) else {
        return false;
    };
    let is_watch = |command: &Command| command.is("watch") && command.connection == exec.connection;
    let Some(watch) = before.iter().position(is_watch).filter(|_| exec.is("exec")) else {
        return false;
    };
    let was_missing = (0..before.len()).any(|place| {
        let is_counted = before.get(place).is_some_and(|exists| exists.is("exists"));
        let (names, found) =
            (before.get(place).map_or(0, |it| it.words.len() - 1), stele.get(place));
        let is_watched = before.get(place + 1).is_some_and(is_watch);
        is_counted
            && is_watched
            && matches!(found, Some(Reply::Integer(found)) if *found < names as i64)
    });
    was_missing && before.iter().skip(watch).any(|command| command.is_one_of(&DELETING))
}

/// Returns the replies to the queued commands, if both are arrays of them.
fn executed<'a>(pair: &Pair<'a>, queue: &[&'a Command]) -> Option<Vec<Pair<'a>>> {
    let (stele, other) = (pair.stele.elements()?, pair.other.elements()?);
    if !pair.command.is("exec") || stele.len() != queue.len() || other.len() != queue.len() {
        return None;
    }
    let pairs = queue.iter().zip(stele.into_iter().zip(other));
    Some(pairs.map(|(command, (stele, other))| Pair { command, stele, other, ..*pair }).collect())
}

impl Difference {
    /// Returns what differences of one kind have in common.
    pub(super) fn kind(&self) -> String {
        let command = self.queued.as_ref().unwrap_or(&self.command);
        let form = |reply: &Reply| match reply {
            Reply::Error(text) => text.escape_ascii().to_string(),
            other => format!("{:?}", std::mem::discriminant(other)),
        };
        let name = command.lower(0).escape_ascii().to_string();
        format!("{} {name} {} {}", self.against.name, form(&self.stele), form(&self.other))
    }
}

fn is_equal(pair: &Pair<'_>, against: &Against, met: &mut Met) -> bool {
    if pair.stele == pair.other {
        return true;
    }
    let is_of = |rule: &str| rule.is_empty() || rule == against.name;
    let mut texts = TEXTS.iter();
    let is_text = |texts: &&Texts| {
        let is = |reply: &Reply, text: &str| *reply == Reply::Error(text.as_bytes().to_vec());
        is_of(texts.against)
            && pair.command.is(texts.command)
            && is(pair.stele, texts.stele)
            && is(pair.other, texts.other)
    };
    let text = texts.find(is_text).map(|texts| texts.reason);
    let mut rules = ALLOWED.iter();
    let mut rule = || rules.find(|rule| is_of(rule.against) && (rule.applies)(pair));
    let reason = text.or_else(|| rule().map(|rule| rule.reason));
    if let Some(reason) = reason {
        *met.entry(reason).or_default() += 1;
    }
    reason.is_some()
}

fn is_same_without_order(pair: &Pair<'_>) -> bool {
    const UNORDERED: [&str; 6] = ["hgetall", "hkeys", "hvals", "smembers", "keys", "config"];
    if !pair.command.is_one_of(&UNORDERED) {
        return false;
    }
    let is_same_form = std::mem::discriminant(pair.stele) == std::mem::discriminant(pair.other);
    let width = match pair.command.is_one_of(&["hgetall", "config"]) {
        true => 2,
        false => 1,
    };
    let ordered = |reply: &Reply| {
        let elements: Vec<Reply> = reply.elements()?.into_iter().cloned().collect();
        let mut parts: Vec<Vec<Reply>> = elements.chunks(width).map(<[_]>::to_vec).collect();
        parts.sort();
        Some(parts)
    };
    let (stele, other) = (ordered(pair.stele), ordered(pair.other));
    is_same_form && stele.is_some() && stele == other
}

fn is_same_time(pair: &Pair<'_>) -> bool {
    let (Reply::Integer(stele @ 0..), Reply::Integer(other @ 0..)) = (pair.stele, pair.other)
    else {
        return false;
    };
    let (difference, most_ms) = (stele.abs_diff(*other), TIME_MS_MAX + pair.elapsed_ms);
    match pair.command.is_one_of(&["pttl", "pexpiretime"]) {
        true => difference <= most_ms,
        false => pair.command.is_one_of(&["ttl", "expiretime"]) && difference <= most_ms / 1_000,
    }
}

/// Whether an option of SET sets a time that has passed.
fn has_past_time(sequence: &Sequence) -> bool {
    let is_past = |word: &Word| *word == Word::from("1");
    sequence.commands.iter().any(|command| command.words.iter().any(is_past))
}

/// Whether both are errors, and that of Stele goes on where the other one ends.
fn has_advice(pair: &Pair<'_>) -> bool {
    match (pair.stele, pair.other) {
        (Reply::Error(stele), Reply::Error(other)) => {
            pair.command.is("config") && stele.starts_with(other)
        }
        _ => false,
    }
}

/// Whether two maps, or arrays of keys and values, have the same keys in order.
fn same_keys(stele: &Reply, other: &Reply) -> bool {
    let is_same_form = std::mem::discriminant(stele) == std::mem::discriminant(other);
    let keys = |reply: &Reply| -> Option<Vec<Reply>> {
        Some(reply.elements()?.into_iter().step_by(2).cloned().collect())
    };
    is_same_form && keys(stele).is_some() && keys(stele) == keys(other)
}

/// Whether name, arity and places of keys are the same.
fn is_same_description(pair: &Pair<'_>) -> bool {
    if !(pair.command.is("command") && pair.command.lower(1) == b"info") {
        return false;
    }
    let stated = |reply: &Reply| -> Option<Vec<Option<Vec<Reply>>>> {
        let of_command = |reply: &&Reply| -> Option<Vec<Reply>> {
            let elements = reply.elements()?;
            let places = [0, 1, 3, 4, 5].into_iter();
            places.map(|place| elements.get(place).map(|&it| it.clone())).collect()
        };
        Some(reply.elements()?.iter().map(of_command).collect())
    };
    let (stele, other) = (stated(pair.stele), stated(pair.other));
    stele.is_some() && stele == other
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis_compare::servers::VALKEY;

    fn replies(text: &str) -> Vec<Reply> {
        let mut input = text.as_bytes();
        std::iter::from_fn(|| Reply::read(&mut input).ok()).collect()
    }

    /// Returns the first difference of replies to commands, each a line.
    fn found(commands: &str, stele: &str, other: &str) -> Option<String> {
        let commands =
            commands.lines().map(|line| Command::of(0, &line.split(' ').collect::<Vec<_>>()));
        let sequence =
            Sequence { seed: 1, protocol: 2, names: Vec::new(), commands: commands.collect() };
        let replies = (&replies(stele)[..], &replies(other)[..], 100);
        let difference = first(&sequence, replies, &VALKEY, &mut Met::new())?;
        Some(difference.queued.unwrap_or(difference.command).shown(0))
    }

    #[test]
    fn only_differences_with_a_reason_are_allowed() {
        let pages = ("*2\r\n:1\r\n:2\r\n", "*2\r\n:2\r\n:1\r\n");
        assert_eq!(found("SMEMBERS s", pages.0, pages.1), None);
        assert_eq!(found("HMGET h a b", pages.0, pages.1).unwrap(), "0> HMGET h a b");
        assert_eq!(
            found("HGETALL h", pages.0, pages.1).unwrap(),
            "0> HGETALL h",
            "pairs stay pairs"
        );
        assert_eq!(found("SMEMBERS s", "*1\r\n:1\r\n", "~1\r\n:1\r\n").unwrap(), "0> SMEMBERS s");
        assert_eq!(found("PTTL a", ":5000\r\n", ":6600\r\n"), None);
        assert_eq!(found("PTTL a", ":5000\r\n", ":6601\r\n").unwrap(), "0> PTTL a");
        assert_eq!(found("TTL a", ":-1\r\n", ":-2\r\n").unwrap(), "0> TTL a");
        assert_eq!(found("GET a", "-ERR a\r\n", "-ERR b\r\n").unwrap(), "0> GET a");
        assert_eq!(found("GET a\nGET b", "$-1\r\n:1\r\n", "$-1\r\n:2\r\n").unwrap(), "0> GET b");
    }

    #[test]
    fn replies_of_a_transaction_are_compared_one_by_one() {
        let commands = "MULTI\nSMEMBERS s\nGET a\nEXEC";
        let queued = "+OK\r\n+QUEUED\r\n+QUEUED\r\n";
        let reply =
            |members: &str, value: &str| format!("{queued}*2\r\n*2\r\n{members}:{value}\r\n");
        let stele = reply(":1\r\n:2\r\n", "5");
        assert_eq!(found(commands, &stele, &reply(":2\r\n:1\r\n", "5")), None);
        assert_eq!(found(commands, &stele, &reply(":2\r\n:1\r\n", "6")).unwrap(), "0> GET a");
        let shorter = format!("{queued}*1\r\n:5\r\n");
        assert_eq!(found(commands, &stele, &shorter).unwrap(), "0> EXEC");
    }

    #[test]
    fn a_transaction_may_only_be_executed_if_a_watched_name_was_missing() {
        let commands = "EXISTS a\nWATCH a\nMULTI\nEXEC";
        let with = |found: &str, end: &str| format!(":{found}\r\n+OK\r\n+OK\r\n{end}\r\n");
        let (executed, aborted) = (with("0", "*0"), with("0", "*-1"));
        assert_eq!(found(commands, &executed, &aborted).unwrap(), "0> EXEC");
        let deleted = commands.replace("MULTI", "DEL a");
        assert_eq!(found(&deleted, &executed, &aborted), None);
        assert_eq!(found(&deleted, &with("1", "*0"), &with("1", "*-1")).unwrap(), "0> EXEC");
    }
}
