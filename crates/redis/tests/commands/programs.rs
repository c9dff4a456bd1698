//! Runs of requests as one program.

use super::{NOW_MS, Script, words};
use bytes::Bytes;
use stele_redis::key::header_key;
use stele_redis::{
    Header, Kind, Members, ProgramAnswer, Protocol, RedisProgram, Request, Run, Watched, run,
};
use stele_storage::{Pair, Pairs, Program, ProgramStep};

fn requests(texts: &[&str]) -> Vec<Request> {
    texts.iter().map(|text| Request::parse(0, words(text)).unwrap()).collect()
}

#[test]
fn later_requests_see_earlier_ones_and_a_failed_one_changes_nothing() {
    let mut script = Script::new();
    let replies = script.together(
        &[
            "set k 1",
            "incr k",
            "hset k f v",
            "get k",
            "set l 5 ex 0",
            "exists l",
            "append k x",
            "incr k",
        ],
        false,
    );
    assert_eq!(
        replies,
        "+OK|:2|-WRONGTYPE Operation against a key holding the wrong kind of value|$1|2|\
         -ERR invalid expire time in 'set' command|:0|:2|\
         -ERR value is not an integer or out of range|"
    );
    script.check(&[("get k", "$2|2x|"), ("exists l", ":0|")]);
}

#[test]
fn exec_answers_one_array() {
    let mut script = Script::new();
    assert_eq!(script.together(&["set k 1", "get k", "get n"], true), "*3|+OK|$1|1|$-1|");
    assert_eq!(script.together(&[], true), "*0|");
}

#[test]
fn members_written_in_a_run_are_seen_in_it() {
    let mut script = Script::new();
    script.check(&[("hset h f 1 g 2", ":2|"), ("sadd s a b", ":2|")]);
    assert_eq!(
        script.together(&["hdel h f", "hset h i 3", "hgetall h", "hlen h"], false),
        ":1|:1|*4|$1|g|$1|2|$1|i|$1|3|:2|"
    );
    assert_eq!(
        script.together(&["del s", "sadd s c", "smembers s", "rename s t", "sismember t c"], false),
        ":1|:1|*1|$1|c|+OK|:1|"
    );
    assert_eq!(
        script.together(&["hdel h g i", "exists h", "hset h z 1", "hkeys h"], false),
        ":2|:0|:1|*1|$1|z|"
    );
    script.check(&[("hgetall h", "*2|$1|z|$1|1|"), ("smembers t", "*1|$1|c|")]);
}

#[test]
fn writes_without_conditions_read_nothing() {
    let mut script = Script::new();
    let blind = ["set k v", "set k v px 100", "setex k 10 v", "psetex k 10 v", "mset a 1 b 2"];
    assert_eq!(script.together(&blind, false), "+OK|+OK|+OK|+OK|+OK|");
    assert_eq!(script.region.reads, 0);
    script.together(&["get k", "mget a b c", "set c 1", "get c"], false);
    assert_eq!(script.region.reads, 1);
    script.together(&["hset h f 1", "hset h g 1", "hget h f"], false);
    assert_eq!(script.region.reads, 2);
    script.together(&["hget h f", "hmget h g i", "sismember s a", "get k"], false);
    assert_eq!(script.region.reads, 4);
}

#[test]
fn a_run_that_only_reads_has_no_operations() {
    let texts = ["get k", "hgetall n", "exists k", "ttl k", "expire n 5", "del n", "touch k"];
    let pairs: Pairs = [(header_key(0, b"k"), None), (header_key(0, b"n"), None)].into();
    match run(&requests(&texts), &pairs, &Members::new(), 1, NOW_MS) {
        Run::Done { command, replies } => {
            assert!(command.is_empty());
            assert_eq!(replies.len(), texts.len());
        }
        needs => panic!("{needs:?}"),
    }
}

#[test]
fn a_run_is_a_function_of_its_arguments_and_draws_distinct_numbers() {
    let texts = ["set a 1", "set b 1", "sadd s m", "append a x"];
    let pairs: Pairs = [(header_key(0, b"s"), None)].into();
    let effects = |seed| match run(&requests(&texts), &pairs, &Members::new(), seed, NOW_MS) {
        Run::Done { command, .. } => command.build().bytes().clone(),
        needs => panic!("{needs:?}"),
    };
    assert_eq!(effects(7), effects(7));
    assert_ne!(effects(7), effects(8));
    let mut script = Script::new();
    script.together(&texts, false);
    let header = |name: &[u8]| script.region.stored(0, name).0.unwrap();
    let mut numbers: Vec<u64> = [b"a", b"b", b"s"]
        .into_iter()
        .flat_map(|name| [header(name).stamp, header(name).change])
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 6);
}

#[test]
fn collections_read_before_a_change_are_needed_again() {
    let mut script = Script::new();
    script.check(&[("hset h f 1", ":1|")]);
    let header = script.region.stored(0, b"h").0.unwrap();
    let key = header_key(0, b"h");
    let pair = |header: &Header| {
        Some(Pair { key: key.clone(), value: header.encode(b""), expires_at_s: 0 })
    };
    let pairs: Pairs = [(key.clone(), pair(&header))].into();
    let program = |members| {
        let requests = requests(&["hgetall h"]);
        RedisProgram::new(requests, Protocol::Resp3, 1).unwrap().of_exec().with_members(members)
    };
    let answer = |pairs: &Pairs, members: Members| match program(members).decide(pairs, NOW_MS) {
        ProgramStep::Done(outcome) if outcome.command.is_empty() => {
            ProgramAnswer::decode(outcome.answer).unwrap()
        }
        step => panic!("{step:?}"),
    };
    let ProgramAnswer::NeedsMembers(needs) = answer(&pairs, Members::new()) else { panic!() };
    let read: Members = [(needs[0].clone(), vec![(Bytes::from("f"), Bytes::from("1"))])].into();
    let reply = ProgramAnswer::Replies(Bytes::from_static(b"*1\r\n%1\r\n$1\r\nf\r\n$1\r\n1\r\n"));
    assert_eq!(answer(&pairs, read.clone()), reply);
    let mut changed = header;
    changed.change += 1;
    let pairs: Pairs = [(key.clone(), pair(&changed))].into();
    let ProgramAnswer::NeedsMembers(again) = answer(&pairs, read) else { panic!() };
    assert_eq!(again[0].version.change, changed.change);
}

#[test]
fn damage_of_a_header_is_an_error_of_the_commands_that_read_it() {
    let key = header_key(0, b"k");
    let damaged = |value: &'static [u8]| -> Pairs {
        let pair = Pair { key: key.clone(), value: Bytes::from_static(value), expires_at_s: 0 };
        [(key.clone(), Some(pair)), (header_key(0, b"l"), None)].into()
    };
    let rows: [(&[u8], &str); 2] = [
        (&[9, 0], "-ERR header of version 9; known is 1: upgrade this node\r\n"),
        (&[1, 0, 0], "-ERR header of 3 bytes is cut short: the pair is damaged\r\n"),
    ];
    for (value, text) in rows {
        let requests = requests(&["get k", "get l", "set k v", "get k"]);
        let Run::Done { replies, .. } = run(&requests, &damaged(value), &Members::new(), 1, 1)
        else {
            panic!()
        };
        let replies: Vec<Bytes> =
            replies.iter().map(|reply| reply.encoded(Protocol::Resp2)).collect();
        assert_eq!(replies, [text, "$-1\r\n", "+OK\r\n", "$1\r\nv\r\n"]);
    }
}

#[test]
fn commands_of_the_connection_are_not_executed_by_a_program() {
    let mut script = Script::new();
    script.check(&[(
        "ping",
        "-ERR 'ping' is not a command of a program: the connection answers it|",
    )]);
}

#[test]
fn exec_answers_the_missing_array_if_a_watched_name_has_changed() {
    let header = Header { kind: Kind::String, stamp: 1, change: 7, count: 0, expires_at_ms: 0 };
    let key = header_key(0, b"w");
    let stored = |header: Header| {
        Some(Pair { key: key.clone(), value: header.encode(b"v"), expires_at_s: 0 })
    };
    let live = stored(header);
    let changed = stored(Header { change: 8, ..header });
    let expiring = stored(Header { expires_at_ms: NOW_MS + 5, ..header });
    // Pair when it was watched, and 5 ms later; whether EXEC is executed.
    let rows = [
        (&live, &live, true),
        (&None, &None, true),
        (&live, &changed, false),
        (&live, &None, false),
        (&None, &live, false),
        (&expiring, &expiring, false),
    ];
    for (before, after, is_executed) in rows {
        let watched = Watched::now(key.clone(), before.as_ref(), NOW_MS).unwrap();
        let program = RedisProgram::new(requests(&["set k v"]), Protocol::Resp2, 1).unwrap();
        let program = program.of_exec().watching(vec![watched.clone(), watched]).unwrap();
        assert_eq!(program.keys(), [header_key(0, b"k"), key.clone()]);
        let ProgramStep::Read(read) = program.decide(&Pairs::new(), NOW_MS + 5) else { panic!() };
        assert_eq!(read, std::slice::from_ref(&key));
        let pairs: Pairs = [(key.clone(), after.clone())].into();
        let ProgramStep::Done(outcome) = program.decide(&pairs, NOW_MS + 5) else { panic!() };
        assert_eq!(outcome.command.is_empty(), !is_executed);
        let expected = if is_executed { "*1\r\n+OK\r\n" } else { "*-1\r\n" };
        assert_eq!(outcome.answer, expected, "{before:?}, {after:?}");
    }
}
