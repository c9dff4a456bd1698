//! Commands of hashes and sets.

use super::Script;
use stele_redis::{Kind, Protocol};

const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value|";

#[test]
fn fields_are_set_read_and_removed() {
    Script::new().check(&[
        ("hset h f 1 g 2 f 3", ":2|"),
        ("hset h f 4 i 5", ":1|"),
        ("hset h f", "-ERR wrong number of arguments for 'hset' command|"),
        ("hset h f 1 g", "-ERR wrong number of arguments for 'hset' command|"),
        ("hmset h j 6", "+OK|"),
        ("hmset h j", "-ERR wrong number of arguments for 'hmset' command|"),
        ("hsetnx h j 7", ":0|"),
        ("hsetnx h k 7", ":1|"),
        ("hget h f", "$1|4|"),
        ("hget h n", "$-1|"),
        ("hget n f", "$-1|"),
        ("hmget h f n j", "*3|$1|4|$-1|$1|6|"),
        ("hmget n f g", "*2|$-1|$-1|"),
        ("hexists h f", ":1|"),
        ("hexists h n", ":0|"),
        ("hlen h", ":5|"),
        ("hlen n", ":0|"),
        ("hset h l hello", ":1|"),
        ("hstrlen h l", ":5|"),
        ("hstrlen h n", ":0|"),
        ("hdel h f f n", ":1|"),
        ("hkeys h", "*5|$1|g|$1|i|$1|j|$1|k|$1|l|"),
        ("hvals h", "*5|$1|2|$1|5|$1|6|$1|7|$5|hello|"),
        ("hgetall n", "*0|"),
        ("hdel h g i j k l", ":5|"),
        ("exists h", ":0|"),
        ("hdel h g", ":0|"),
    ]);
}

#[test]
fn numbers_in_fields_are_added() {
    Script::new().check(&[
        ("hincrby h f 5", ":5|"),
        ("hincrby h f -7", ":-2|"),
        ("hlen h", ":1|"),
        ("hincrby h f x", "-ERR value is not an integer or out of range|"),
        ("hset h s text m 9223372036854775807", ":2|"),
        ("hincrby h s 1", "-ERR hash value is not an integer|"),
        ("hincrby h m 1", "-ERR increment or decrement would overflow|"),
        ("hincrbyfloat h f 0.5", "$4|-1.5|"),
        ("hincrbyfloat h n 3.0", "$1|3|"),
        ("hincrbyfloat h s 1", "-ERR hash value is not a float|"),
        ("hincrbyfloat h f x", "-ERR value is not a valid float|"),
        ("hincrbyfloat h f inf", "-ERR value is NaN or Infinity|"),
        ("hlen h", ":4|"),
    ]);
}

#[test]
fn members_of_sets_are_added_found_and_removed() {
    Script::new().check(&[
        ("sadd s a b a", ":2|"),
        ("sadd s b c", ":1|"),
        ("scard s", ":3|"),
        ("sismember s a", ":1|"),
        ("sismember s x", ":0|"),
        ("sismember n a", ":0|"),
        ("smismember s a x c", "*3|:1|:0|:1|"),
        ("smismember n a b", "*2|:0|:0|"),
        ("smembers s", "*3|$1|a|$1|b|$1|c|"),
        ("smembers n", "*0|"),
        ("srem s a x a", ":1|"),
        ("srem s b c", ":2|"),
        ("exists s", ":0|"),
        ("srem s b", ":0|"),
        ("scard s", ":0|"),
    ]);
}

#[test]
fn a_name_of_another_type_is_refused() {
    let mut script = Script::new();
    script.check(&[("set t 1", "+OK|"), ("hset h f v", ":1|"), ("sadd s m", ":1|")]);
    for command in ["hget", "hdel", "hexists", "hstrlen", "hmget"] {
        script.check(&[
            (&format!("{command} t f"), WRONG_TYPE),
            (&format!("{command} s m"), WRONG_TYPE),
        ]);
    }
    for command in ["sadd", "srem", "sismember", "smismember"] {
        script.check(&[
            (&format!("{command} t f"), WRONG_TYPE),
            (&format!("{command} h f"), WRONG_TYPE),
        ]);
    }
    for command in ["hgetall", "hkeys", "hvals", "hlen"] {
        script
            .check(&[(&format!("{command} t"), WRONG_TYPE), (&format!("{command} s"), WRONG_TYPE)]);
    }
    script.check(&[
        ("smembers h", WRONG_TYPE),
        ("scard h", WRONG_TYPE),
        ("hset t f v", WRONG_TYPE),
        ("hsetnx s f v", WRONG_TYPE),
        ("hincrby t f 1", WRONG_TYPE),
        ("hincrbyfloat s f 1", WRONG_TYPE),
        ("get h", WRONG_TYPE),
        ("get s", WRONG_TYPE),
    ]);
}

#[test]
fn resp3_has_maps_sets_and_one_missing_value() {
    Script::with(Protocol::Resp3).check(&[
        ("hset h f 1", ":1|"),
        ("sadd s m", ":1|"),
        ("hgetall h", "%1|$1|f|$1|1|"),
        ("hgetall n", "%0|"),
        ("hkeys h", "*1|$1|f|"),
        ("smembers s", "~1|$1|m|"),
        ("smembers n", "~0|"),
        ("hget h n", "_|"),
        ("hmget h f n", "*2|$1|1|_|"),
        ("set s v nx", "_|"),
    ]);
}

#[test]
fn a_hash_that_was_replaced_has_none_of_its_members() {
    let mut script = Script::new();
    script.check(&[("hset h f 1 g 2", ":2|"), ("del h", ":1|"), ("hset h g 3", ":1|")]);
    script.check(&[("hget h f", "$-1|"), ("hgetall h", "*2|$1|g|$1|3|")]);
    script.check(&[("set h v", "+OK|"), ("del h", ":1|"), ("sadd h f", ":1|")]);
    script.check(&[("smembers h", "*1|$1|f|"), ("pexpire h 5", ":1|")]);
    script.wait(5);
    script.check(&[("scard h", ":0|"), ("hset h i 1", ":1|"), ("hlen h", ":1|")]);
    // The members of earlier stamps are still stored, and do not exist.
    let (header, members) = script.region.stored(0, b"h");
    assert_eq!((header.unwrap().kind, header.unwrap().count, members), (Kind::Hash, 1, 5));
}

#[test]
fn each_write_of_a_member_draws_a_new_change_number_and_others_do_not() {
    let mut script = Script::new();
    script.check(&[("hset h f 1", ":1|"), ("sadd s m", ":1|"), ("set k v", "+OK|")]);
    let changes = |script: &Script| {
        let of = |name: &[u8]| script.region.stored(0, name).0.unwrap();
        [of(b"h"), of(b"s"), of(b"k")].map(|header| (header.stamp, header.change))
    };
    let changing = [("hset h f 1", ":0|"), ("hincrby h f 0", ":1|"), ("append k \"\"", ":1|")];
    for row in changing {
        let before = changes(&script);
        script.check(&[row]);
        assert_ne!(changes(&script), before, "{row:?}");
        assert!(changes(&script).iter().zip(before).all(|(after, before)| after.0 == before.0));
    }
    let keeping = [
        ("sadd s m", ":0|"),
        ("srem s n", ":0|"),
        ("hdel h n", ":0|"),
        ("hsetnx h f 2", ":0|"),
        ("getex k", "$1|v|"),
        ("persist k", ":0|"),
        ("setnx k w", ":0|"),
        ("setrange k 0 \"\"", ":1|"),
        ("expire k 100 gt", ":0|"),
        ("rename k k", "+OK|"),
        ("touch k", ":1|"),
        ("hincrby h f x", "-ERR value is not an integer or out of range|"),
    ];
    let before = changes(&script);
    script.check(&keeping);
    assert_eq!(changes(&script), before);
}
