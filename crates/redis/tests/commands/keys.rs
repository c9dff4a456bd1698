//! Commands of names and their expiry.

use super::{NOW_MS, Script};
use stele_types::size::KEY_BYTES_MAX;

#[test]
fn names_are_counted_as_often_as_they_are_given() {
    Script::new().check(&[
        ("mset a 1 b 2 c 3", "+OK|"),
        ("hset h f v", ":1|"),
        ("sadd s m", ":1|"),
        ("exists a a n", ":2|"),
        ("touch a b n", ":2|"),
        ("type a", "+string|"),
        ("type h", "+hash|"),
        ("type s", "+set|"),
        ("type n", "+none|"),
        ("del a a n", ":1|"),
        ("unlink b h n", ":2|"),
        ("exists a b c h s", ":2|"),
        ("del", "-ERR wrong number of arguments for 'del' command|"),
        ("nosuch a", "-ERR unknown command 'nosuch', with args beginning with: 'a' |"),
    ]);
}

#[test]
fn a_renamed_name_carries_its_expiry_and_members() {
    Script::new().check(&[
        ("rename a b", "-ERR no such key|"),
        ("set a 1", "+OK|"),
        ("rename a a", "+OK|"),
        ("renamenx a a", ":0|"),
        ("setex b 100 2", "+OK|"),
        ("renamenx a b", ":0|"),
        ("rename a b", "+OK|"),
        ("ttl b", ":-1|"),
        ("exists a", ":0|"),
        ("hset h f 1 g 2", ":2|"),
        ("expire h 50", ":1|"),
        ("rename h b", "+OK|"),
        ("hgetall b", "*4|$1|f|$1|1|$1|g|$1|2|"),
        ("ttl b", ":50|"),
        ("hlen h", ":0|"),
        ("renamenx b h", ":1|"),
        ("hget h g", "$1|2|"),
    ]);
}

#[test]
fn a_copy_is_independent_of_its_source() {
    let mut script = Script::new();
    script.check(&[
        ("copy a b", ":0|"),
        ("setex a 100 1", "+OK|"),
        ("copy a a", "-ERR source and destination objects are the same|"),
        ("copy a b", ":1|"),
        ("ttl b", ":100|"),
        ("copy a b", ":0|"),
        ("sadd s m", ":1|"),
        ("copy s b replace", ":1|"),
        ("sadd b n", ":1|"),
        ("smembers b", "*2|$1|m|$1|n|"),
        ("smembers s", "*1|$1|m|"),
        ("ttl b", ":-1|"),
        ("copy a a db 3", ":1|"),
        ("copy a a db 16", "-ERR DB index is out of range|"),
        ("copy a c db x", "-ERR value is not an integer or out of range|"),
        (
            "copy a c db 9999999999",
            "-ERR value is out of range, value must between -2147483648 and 2147483647|",
        ),
        ("copy a c now", "-ERR syntax error|"),
        ("copy a c db", "-ERR syntax error|"),
    ]);
    assert_eq!(&script.region.execute(3, &super::words("get a"), NOW_MS)[..], b"$1\r\n1\r\n");
}

#[test]
fn large_collections_are_neither_renamed_nor_copied() {
    let mut script = Script::new();
    let members =
        |from: usize, to: usize| (from..to).map(|i| i.to_string()).collect::<Vec<_>>().join(" ");
    script.check(&[
        (&format!("sadd s {}", members(0, 1024)), ":1024|"),
        ("copy s t", ":1|"),
        ("scard t", ":1024|"),
        ("sadd s one", ":1|"),
        ("copy s u", "-ERR set of 1025 members cannot be renamed or copied; the limit is 1024|"),
        ("rename s u", "-ERR set of 1025 members cannot be renamed or copied; the limit is 1024|"),
        ("scard s", ":1025|"),
    ]);
}

#[test]
fn expiry_conditions_compare_with_the_expiry_before() {
    let invalid = "-ERR invalid expire time in 'expire' command|";
    let excluded = "-ERR NX and XX, GT or LT options at the same time are not compatible|";
    Script::new().check(&[
        ("set k v", "+OK|"),
        ("expire k 100 gt", ":0|"),
        ("expire k 100 xx", ":0|"),
        ("expire k -1 gt", ":0|"),
        ("exists k", ":1|"),
        ("expire k 100 lt", ":1|"),
        ("expire k 100 nx", ":0|"),
        ("expire k 100 gt", ":0|"),
        ("expire k 100 lt", ":0|"),
        ("expire k 101 XX GT", ":1|"),
        ("ttl k", ":101|"),
        ("persist k", ":1|"),
        ("persist k", ":0|"),
        ("persist n", ":0|"),
        ("expire k 100 nx", ":1|"),
        ("expire k 9223372036854775", invalid),
        ("expire n 9223372036854776", invalid),
        ("expire n -9223372036854775808", invalid),
        ("expire k x", "-ERR value is not an integer or out of range|"),
        ("expire k 100 now", "-ERR Unsupported option now|"),
        ("expire k 100 nx xx", excluded),
        ("expire k 100 nx gt", excluded),
        ("expire k 100 gt lt", "-ERR GT and LT options at the same time are not compatible|"),
        ("expire n 100", ":0|"),
        ("expireat k 1700000100", ":1|"),
        ("ttl k", ":100|"),
        ("pexpireat k 9223372036854775807", ":1|"),
        ("expire k -1 lt", ":1|"),
        ("exists k", ":0|"),
    ]);
}

#[test]
fn times_to_live_are_rounded_and_names_expire() {
    let mut script = Script::new();
    let remaining = [(1499, ":1|"), (1520, ":2|"), (400, ":0|"), (700, ":1|")];
    for (ms, seconds) in remaining {
        script.check(&[
            (&format!("psetex k {ms} v"), "+OK|"),
            ("ttl k", seconds),
            ("pttl k", &format!(":{ms}|")),
        ]);
    }
    script.check(&[
        ("pexpiretime k", ":1700000001100|"),
        ("expiretime k", ":1700000001|"),
        ("pexpire k 400", ":1|"),
        ("expiretime k", ":1700000001|"),
        ("set n v", "+OK|"),
        ("expiretime n", ":-1|"),
        ("pttl m", ":-2|"),
    ]);
    script.wait(399);
    script.check(&[("get k", "$1|v|")]);
    script.wait(1);
    script.check(&[("get k", "$-1|"), ("ttl k", ":-2|"), ("setnx k w", ":1|"), ("ttl k", ":-1|")]);
}

#[test]
fn names_and_fields_that_are_too_long_are_refused() {
    let mut script = Script::new();
    // Space, database, kind, end of the name, header.
    let longest = "n".repeat(KEY_BYTES_MAX - 6);
    let refused = |bytes: usize| {
        format!(
            "-ERR name or field takes {bytes} bytes as a key; the limit is {KEY_BYTES_MAX}: \
             shorten it|"
        )
    };
    script.check(&[
        (&format!("set {longest} v"), "+OK|"),
        (&format!("get {longest}"), "$1|v|"),
        (&format!("set {longest}n v"), &refused(KEY_BYTES_MAX + 1)),
        (&format!("mget a {longest}n"), &refused(KEY_BYTES_MAX + 1)),
        (&format!("hset {longest}h f v"), &refused(KEY_BYTES_MAX + 1)),
        (&format!("sadd s {}", "m".repeat(KEY_BYTES_MAX - 6 - 9)), ":1|"),
        (&format!("sadd s {}", "m".repeat(KEY_BYTES_MAX - 6 - 8)), &refused(KEY_BYTES_MAX + 1)),
        ("scard s", ":1|"),
    ]);
}
