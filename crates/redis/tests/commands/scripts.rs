//! Scripts of lock libraries.

use super::{Script, words};
use stele_redis::{RecordedScript, Request, ScriptError};

const RELEASE: &str = "c3f8721cbb97f72bc19e972846bd7aaf91901658";
const EXTEND: &str = "a4e8783852e6b949f9ef3a97212805108459a890";
const RENEW: &str = "1cac51482acf5858da00f6d685d68f886cd6b6b2";
const UNLOCK_KNOWN: &str = "e950836ed1e694540c503ef9972b8de518044d3b";
const TAKE_OR_RENEW: &str = "b6b55c439e02c6f52ffb8be7ec8c0d0ac816ea79";
const OBTAIN: &str = "80a1b5f2cfccec3b7119ba7721d2127682b691a7";
const HELD_PTTL: &str = "6484da7d58920897fdc22b7f9afd1a3d47524ea8";
const RENEW_UNTIL: &str = "852ba6ec6104340ced36643283c856d4698569e4";
const TAKE: &str = "fa3d1aaa7e4145457755016a3d5daf72fa7a11bf";
const TAKE_UNTIL: &str = "3875d208d9e377969d2022550302cc83ad17b584";
const FORCE: &str = "4384ed08baff4dd7071b6c78c516a2fded4ee3e7";
const FORCE_UNTIL: &str = "c10e8119872659b926e8e28002d9b7fccbf15617";
const TAKE_ALL: &str = "96da70f7716f27d278a5218544df37fd8b0a5e4c";
const RENEW_ALL: &str = "aed6f382e410db8ba7926d4e5e9aab410bf2a78a";
const RELEASE_ALL: &str = "e4612211c9f8f51c257e26e056b0a654b3187242";
const TAKE_ALL_IN: &str = "1b77b94aa78451d55dfa97e18819bfbfc596cb5b";
const RELEASE_ALL_IN: &str = "df51f6837dcfe303d334e6abea9aeae192bab216";
const COMPARE_AND_SET: &str = "782e993d12091daacc7a3164ddf5c4624fe56042";
const COUNT_UNTIL: &str = "0f8a745c1b5efe281bd1299ea0d1b2994c6ae601";
const TAKE_OR_KEEP: &str = "aecadef15d24ccd9360d8641cdec8e0337a0d343";
const RELEASE_OR_FAIL: &str = "0e084295a6567dabd5b7d5b4c99018cff95fceff";
const HELD_TTL_OR_FAIL: &str = "2239e3d89e276c90ec523515c30bcf0071823c7e";
const HELD_OR_ZERO: &str = "f5f7bd3a3aa4a63c507c1155c5ea1219b350d992";
const COUNT_IF_PRESENT: &str = "f4a7da3e5d8ea3b46642af08427151cae0190400";

/// Executes rows of which the first word is a SHA-1, and the number of names follows.
fn run(script: &mut Script, rows: &[(&str, &str, &str)]) {
    for (sha1, rest, expected) in rows {
        let reply = script.reply(&format!("evalsha {sha1} {rest}"));
        assert_eq!(reply, *expected, "{sha1} {rest}");
    }
}

#[test]
fn a_lock_is_released_and_renewed_by_its_holder_alone() {
    let mut script = Script::new();
    script.check(&[("set k t px 5000", "+OK|")]);
    let rows = [
        (RELEASE, "1 k other", ":0|"),
        (RENEW, "1 k other 9000", ":0|"),
        (HELD_PTTL, "1 k other", ":-3|"),
        (HELD_PTTL, "1 k t", ":5000|"),
        (HELD_OR_ZERO, "1 k other", ":0|"),
        (HELD_OR_ZERO, "1 k t", ":5000|"),
        (HELD_TTL_OR_FAIL, "1 k other", "-ERROR|"),
        (HELD_TTL_OR_FAIL, "1 k t", ":5|"),
        (RENEW, "1 k t 9000", ":1|"),
        (EXTEND, "1 k other 1000 0", ":0|"),
        (EXTEND, "1 k t 1000 0", ":1|"),
        (HELD_PTTL, "1 k t", ":10000|"),
        (EXTEND, "1 k t 700 1", ":1|"),
        (HELD_PTTL, "1 k t", ":700|"),
        (EXTEND, "1 k t x 0", "-ERR value is not an integer or out of range|"),
        (RELEASE_OR_FAIL, "1 k other", "-ERROR|"),
        (UNLOCK_KNOWN, "1 k other", ":0|"),
        (UNLOCK_KNOWN, "1 k t", ":1|"),
        (UNLOCK_KNOWN, "1 k t", ":-1|"),
        (RELEASE_OR_FAIL, "1 k t", "+OK|"),
        (RELEASE, "1 k t", ":0|"),
        (EXTEND, "1 k t 1 0", ":0|"),
    ];
    run(&mut script, &rows);
    // No expiry: there is no time to extend.
    script.check(&[("set k t", "+OK|")]);
    run(&mut script, &[(EXTEND, "1 k t 1000 0", ":0|"), (RELEASE, "1 k t", ":1|")]);
    script.check(&[("exists k", ":0|"), ("sadd s a", ":1|")]);
    let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value|";
    run(&mut script, &[(RELEASE, "1 s t", wrong)]);
}

#[test]
fn a_lock_is_taken_if_it_is_free() {
    let mut script = Script::new();
    let rows = [
        (TAKE_OR_RENEW, "1 k t 5000", ":1|"),
        (TAKE_OR_RENEW, "1 k u 5000", ":0|"),
        (TAKE_OR_RENEW, "1 k t 6000", ":1|"),
        (HELD_PTTL, "1 k t", ":6000|"),
        (OBTAIN, "1 k u:x 2 1000", "$-1|"),
        (RELEASE, "1 k t", ":1|"),
        (OBTAIN, "1 k t:x 2 1000", "+OK|"),
        // The token is the first two bytes, and the rest is new.
        (OBTAIN, "1 k t:y 2 2000", "+OK|"),
        (HELD_PTTL, "1 k t:y", ":2000|"),
        (RELEASE, "1 k t:y", ":1|"),
        (TAKE_OR_KEEP, "1 k t 5000", "+OK|"),
        (TAKE_OR_KEEP, "1 k t 7000", "+OK|"),
        (TAKE_OR_KEEP, "1 k u 5000", "-ERROR|"),
        (HELD_PTTL, "1 k t", ":7000|"),
    ];
    run(&mut script, &rows);
}

#[test]
fn a_lock_is_held_until_an_instant() {
    let mut script = Script::new();
    let rows = [
        (RENEW_UNTIL, "1 k t 9000000000000", ":0|"),
        (TAKE_UNTIL, "1 k t 9000000000000", "+OK|"),
        (TAKE_UNTIL, "1 k u 9000000000000", "$-1|"),
        (TAKE, "1 k u 5000", "$-1|"),
        (RENEW_UNTIL, "1 k u 9000000000001", ":0|"),
        (RENEW_UNTIL, "1 k t 9000000000002", ":1|"),
    ];
    run(&mut script, &rows);
    script.check(&[("pexpiretime k", ":9000000000002|")]);
    run(&mut script, &[(FORCE_UNTIL, "1 k u 9000000000003", "+OK|")]);
    script.check(&[("pexpiretime k", ":9000000000003|"), ("get k", "$1|u|")]);
    let rows = [
        (FORCE, "1 k v 5000", "+OK|"),
        (HELD_PTTL, "1 k v", ":5000|"),
        (RELEASE, "1 k v", ":1|"),
        (TAKE, "1 k t 6000", "+OK|"),
        (HELD_PTTL, "1 k t", ":6000|"),
    ];
    run(&mut script, &rows);
}

#[test]
fn several_locks_are_taken_together_or_not_at_all() {
    let mut script = Script::new();
    let rows = [
        (TAKE_ALL, "2 {k}a {k}b t 5000", ":2|"),
        (TAKE_ALL, "2 {k}b {k}c u 5000", ":0|"),
        (RENEW_ALL, "2 {k}a {k}c t 5000", ":0|"),
        (RENEW_ALL, "2 {k}a {k}b t 9000", ":2|"),
        (HELD_PTTL, "1 {k}b t", ":9000|"),
        (RELEASE_ALL, "3 {k}a {k}b {k}c u", ":0|"),
        (RELEASE_ALL, "3 {k}a {k}b {k}c t", ":2|"),
        (TAKE_ALL_IN, "1 {k}a 0 t 5000", ":1|"),
        (RELEASE_ALL_IN, "1 {k}a 0 t", ":1|"),
    ];
    run(&mut script, &rows);
    script.check(&[("exists {k}a {k}b {k}c", ":0|")]);
    let other = script.reply(&format!("evalsha {TAKE_ALL_IN} 1 k 3 t 5000"));
    assert!(other.contains("another database than the connection, which has 0"), "{other}");
}

#[test]
fn caches_compare_and_count() {
    let mut script = Script::new();
    script.check(&[("set k 1", "+OK|")]);
    let rows = [
        (COMPARE_AND_SET, "1 k 2 other", ":0|"),
        (COMPARE_AND_SET, "1 k 2 1 PX 5000", "+OK|"),
        (HELD_PTTL, "1 k 2", ":5000|"),
        (COUNT_IF_PRESENT, "1 k 3", ":5|"),
        (COUNT_IF_PRESENT, "1 none 3", "$-1|"),
        (COUNT_UNTIL, "1 n 1 5000", ":1|"),
        (COUNT_UNTIL, "1 n 1 9000", ":2|"),
        (HELD_PTTL, "1 n 2", ":5000|"),
    ];
    run(&mut script, &rows);
    script.check(&[("exists none", ":0|")]);
}

#[test]
fn a_script_changes_nothing_if_one_of_its_commands_fails() {
    let mut script = Script::new();
    script.check(&[("sadd {k}b x", ":1|")]);
    let rows = [(TAKE_ALL, "2 {k}a {k}c t x", "-ERR value is not an integer or out of range|")];
    run(&mut script, &rows);
    script.check(&[("exists {k}a {k}c", ":0|")]);
    let reply = script.together(&[&format!("evalsha {TAKE_ALL} 1 {{k}}a t 50"), "get {k}a"], true);
    assert_eq!(reply, "*2|:1|$1|t|");
}

#[test]
fn a_request_without_a_known_script_is_refused_when_it_is_parsed() {
    let parse = |request: &str| Request::parse(0, words(request)).err().map(|it| it.to_string());
    let is = |request: &str, error: ScriptError| {
        assert_eq!(parse(request), Some(error.to_string()), "{request}");
    };
    is("evalsha 0123 1 a", ScriptError::UnknownSha1);
    is("eval 'return 1' 1 a", ScriptError::UnknownText);
    is("eval x y a", ScriptError::NoNumber);
    is("eval x -1 a", ScriptError::Negative);
    is("eval x 2 a", ScriptError::TooManyNames);
    is("eval x 9223372036854775807 a", ScriptError::TooManyNames);
    let library = "redis-py 8.1.0 release";
    is(&format!("evalsha {RELEASE} 0"), ScriptError::OtherNumbers { library });
    is(&format!("evalsha {RELEASE} 2 a b t"), ScriptError::OtherNumbers { library });
    is(&format!("evalsha {RELEASE} 1 a"), ScriptError::OtherNumbers { library });
    assert_eq!(parse(&format!("evalsha {} 1 a t", RELEASE.to_uppercase())), None);
}

#[test]
fn each_script_is_in_the_table_once() {
    let all = RecordedScript::all();
    for (place, script) in all.iter().enumerate() {
        assert_eq!(script.sha1.len(), 40);
        assert!(script.sha1.bytes().all(|it| it.is_ascii_digit() || (b'a'..=b'f').contains(&it)));
        assert!(all.iter().skip(place + 1).all(|other| other.sha1 != script.sha1));
        assert_eq!(
            RecordedScript::of_sha1(script.sha1.as_bytes()).unwrap().library,
            script.library
        );
    }
}
