//! Commands of strings and numbers.

use super::Script;
use stele_redis::Protocol;

const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value|";
const NOT_INTEGER: &str = "-ERR value is not an integer or out of range|";
const NOT_FLOAT: &str = "-ERR value is not a valid float|";
const SYNTAX: &str = "-ERR syntax error|";

#[test]
fn set_and_get_follow_their_options() {
    Script::new().check(&[
        ("get k", "$-1|"),
        ("set k v", "+OK|"),
        ("GET k", "$1|v|"),
        ("set k w nx", "$-1|"),
        ("set n w xx", "$-1|"),
        ("set k w xx get", "$1|v|"),
        ("set k x nx get", "$1|w|"),
        ("set n x nx get", "$-1|"),
        ("mget k n", "*2|$1|w|$1|x|"),
        ("set k v ex 0", "-ERR invalid expire time in 'set' command|"),
        ("set k v px -1", "-ERR invalid expire time in 'set' command|"),
        ("set k v ex 9223372036854775", "-ERR invalid expire time in 'set' command|"),
        ("set k v ex x", NOT_INTEGER),
        ("set k v pxat 9223372036854775807", "+OK|"),
        ("ttl k", ":9223370336854775|"),
        ("set k v pxat 1", "+OK|"),
        ("exists k", ":0|"),
        ("set k v ex 5 ex 6", "+OK|"),
        ("ttl k", ":6|"),
        ("set k w keepttl", "+OK|"),
        ("ttl k", ":6|"),
        ("set k w", "+OK|"),
        ("ttl k", ":-1|"),
        ("set k v ex 5 keepttl", SYNTAX),
        ("set k v nx xx", SYNTAX),
        ("set k v ex", SYNTAX),
        ("set k", "-ERR wrong number of arguments for 'set' command|"),
        ("hset h f v", ":1|"),
        ("set h v get", WRONG_TYPE),
        ("set h v nx", "$-1|"),
        ("expire h 100", ":1|"),
        ("set h v keepttl", "+OK|"),
        ("ttl h", ":100|"),
        ("get h", "$1|v|"),
    ]);
}

#[test]
fn set_compares_as_valkey_does_and_delex_deletes_by_value() {
    Script::new().check(&[
        ("set k v ifeq x", "$-1|"),
        ("set k v", "+OK|"),
        ("set k w ifeq x", "$-1|"),
        ("set k w ifeq x get", "$1|v|"),
        ("set k w ifeq v get", "$1|v|"),
        ("set k x ifeq w ex 10", "+OK|"),
        ("ttl k", ":10|"),
        ("set k v ifeq x nx", SYNTAX),
        ("hset h f v", ":1|"),
        ("set h v ifeq x", WRONG_TYPE),
        ("delex k ifeq y", ":0|"),
        ("delex k ifne x", ":0|"),
        ("delex k ifeq x", ":1|"),
        ("delex k ifeq x", ":0|"),
        ("delex h ifeq x", WRONG_TYPE),
        ("delex h", ":1|"),
        ("delex h ifeq", SYNTAX),
        ("delex h now x", SYNTAX),
    ]);
}

#[test]
fn the_kin_of_set_answer_as_redis() {
    Script::new().check(&[
        ("setnx k v", ":1|"),
        ("setnx k w", ":0|"),
        ("getset k w", "$1|v|"),
        ("getset n w", "$-1|"),
        ("getdel n", "$1|w|"),
        ("getdel n", "$-1|"),
        ("setex k 10 v", "+OK|"),
        ("ttl k", ":10|"),
        ("setex k 0 v", "-ERR invalid expire time in 'setex' command|"),
        ("psetex k 1500 v", "+OK|"),
        ("pttl k", ":1500|"),
        ("psetex k x v", NOT_INTEGER),
        ("getset k v", "$1|v|"),
        ("pttl k", ":-1|"),
        ("getex k ex 100", "$1|v|"),
        ("ttl k", ":100|"),
        ("getex k", "$1|v|"),
        ("ttl k", ":100|"),
        ("getex k persist", "$1|v|"),
        ("ttl k", ":-1|"),
        ("getex k ex 0", "-ERR invalid expire time in 'getex' command|"),
        ("getex n ex 0", "$-1|"),
        ("getex k keepttl", SYNTAX),
        ("getex k pxat 1", "$1|v|"),
        ("get k", "$-1|"),
        ("hset h f v", ":1|"),
        ("getdel h", WRONG_TYPE),
        ("getex h", WRONG_TYPE),
        ("getset h v", WRONG_TYPE),
        ("setnx h v", ":0|"),
    ]);
}

#[test]
fn several_strings_are_set_and_read_together() {
    Script::new().check(&[
        ("mset a 1 b 2 a 3", "+OK|"),
        ("hset h f v", ":1|"),
        ("mget a b n h", "*4|$1|3|$1|2|$-1|$-1|"),
        ("msetnx c 1 a 2", ":0|"),
        ("get c", "$-1|"),
        ("msetnx c 1 c 2", ":1|"),
        ("get c", "$1|2|"),
        ("mset a 1 b", "-ERR wrong number of arguments for 'mset' command|"),
        ("msetnx a 1 b", "-ERR wrong number of arguments for 'msetnx' command|"),
    ]);
}

#[test]
fn parts_of_strings_are_read_and_written() {
    Script::new().check(&[
        ("append k \"\"", ":0|"),
        ("exists k", ":1|"),
        ("append k hello", ":5|"),
        ("strlen k", ":5|"),
        ("strlen n", ":0|"),
        ("getrange k 0 -1", "$5|hello|"),
        ("getrange k -3 -2", "$2|ll|"),
        ("getrange k 3 1", "$0||"),
        ("getrange k -100 -50", "$1|h|"),
        ("getrange k 0 -9223372036854775808", "$1|h|"),
        ("getrange k 0 9223372036854775807", "$5|hello|"),
        ("getrange n 0 -1", "$0||"),
        ("getrange k x 1", NOT_INTEGER),
        ("setrange k 1 EL", ":5|"),
        ("get k", "$5|hELlo|"),
        ("setrange k 7 !", ":8|"),
        ("get k", "$8|hELlo\0\0!|"),
        ("setrange n 5 \"\"", ":0|"),
        ("exists n", ":0|"),
        ("setrange k 5 \"\"", ":8|"),
        ("setrange k -1 x", "-ERR offset is out of range|"),
        ("setrange n 2 x", ":3|"),
        ("setrange n 1048575 x", ":1048576|"),
        ("setrange n 1048576 x", "-ERR string exceeds maximum allowed size (proto-max-bulk-len)|"),
        ("append n x", "-ERR string exceeds maximum allowed size (proto-max-bulk-len)|"),
        ("hset h f v", ":1|"),
        ("append h x", WRONG_TYPE),
        ("setrange h 0 x", WRONG_TYPE),
        ("getrange h 0 1", WRONG_TYPE),
        ("strlen h", WRONG_TYPE),
    ]);
}

#[test]
fn numbers_are_added_and_keep_their_expiry() {
    let mut script = Script::new();
    script.check(&[
        ("incr k", ":1|"),
        ("expire k 100", ":1|"),
        ("incrby k 41", ":42|"),
        ("decr k", ":41|"),
        ("decrby k 50", ":-9|"),
        ("ttl k", ":100|"),
        ("incrby k x", NOT_INTEGER),
        ("decrby k -9223372036854775808", "-ERR decrement would overflow|"),
        ("set k 9223372036854775807", "+OK|"),
        ("incr k", "-ERR increment or decrement would overflow|"),
        ("get k", "$19|9223372036854775807|"),
        ("hset h f v", ":1|"),
        ("incr h", WRONG_TYPE),
    ]);
    for text in ["+1", "01", "\" 1\"", "-0", "1.0", "\"\"", "9223372036854775808"] {
        script.check(&[(&format!("set k {text}"), "+OK|"), ("incr k", NOT_INTEGER)]);
    }
}

#[test]
fn floating_point_numbers_are_printed_as_redis_does() {
    let mut script = Script::new();
    let sums = [
        ("0.1", "0.2", "$3|0.3|"),
        ("1e20", "1", "$21|100000000000000000000|"),
        ("123456789.123456789", "0.1", "$27|123456789.22345678899728227|"),
        ("1e-18", "0", "$1|0|"),
        ("+1", "01", "$1|2|"),
        (".5", "0x10", "$4|16.5|"),
        ("1", "inf", "-ERR increment would produce NaN or Infinity|"),
        ("1", "\" 1\"", NOT_FLOAT),
        ("x", "1", NOT_FLOAT),
        ("1", "nan", NOT_FLOAT),
    ];
    for (before, by, sum) in sums {
        script.check(&[
            (&format!("set k {before} ex 100"), "+OK|"),
            (&format!("incrbyfloat k {by}"), sum),
            ("ttl k", ":100|"),
        ]);
    }
    script.check(&[
        ("set k 1e400", "+OK|"),
        ("hset h f v", ":1|"),
        ("incrbyfloat h 1", WRONG_TYPE),
    ]);
    assert!(script.reply("incrbyfloat k 1").starts_with("$401|10000000000000000000"));
    let mut script = Script::with(Protocol::Resp3);
    script.check(&[("incrbyfloat n 3.0", "$1|3|"), ("get m", "_|"), ("mget m", "*1|_|")]);
}
