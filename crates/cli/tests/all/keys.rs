//! Single keys, scans and error messages, through the built binary.

use crate::common::{content, run, run_with, stele, tree};
use std::process::Stdio;
use stele_engine::{Options, Partition, Shards};

fn new() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    (dir, store)
}

#[test]
fn a_value_comes_back_byte_for_byte() {
    let (dir, store) = new();
    run(&store, "put --store $ greeting hello").ok();
    assert_eq!(run(&store, "get --store $ greeting").ok().out, b"hello");
    let value = content(1, 300_000);
    run_with(&store, "put --store $ stdin --file -", &value).ok();
    assert_eq!(run(&store, "get --store $ stdin").ok().out, value);
    let file = dir.path().join("value");
    std::fs::write(&file, &value[..1000]).unwrap();
    run(&store, &format!("put --store $ file --file {}", file.display())).ok();
    assert_eq!(run(&store, "get --store $ file").ok().out, &value[..1000]);
    run(&store, "put --store $ --hex 00ff 80").ok();
    assert_eq!(run(&store, "get --store $ --hex 00ff").ok().text(), "80\n");
    run(&store, "put --store $ empty --file /dev/null").ok();
    assert_eq!(run(&store, "get --store $ empty").ok().out, b"");
}

#[test]
fn the_largest_value_fits_and_one_byte_more_does_not() {
    let (dir, store) = new();
    let file = dir.path().join("value");
    let mut value = content(1, 64 << 20);
    std::fs::write(&file, &value).unwrap();
    let put = format!("put --store $ large --file {}", file.display());
    run(&store, &put).ok();
    assert!(run(&store, "get --store $ large").ok().out == value, "the value differs");
    value.push(0);
    std::fs::write(&file, &value).unwrap();
    run(&store, &put).fails(2, "value of 67108865 bytes; the limit is 67108864");
    assert_eq!(run(&store, "count --store $").ok().text(), "1\n");
}

#[test]
fn scans_follow_their_options() {
    let (_dir, store) = new();
    for key in ["a/1", "a/2", "b/1", "b/2", "c"] {
        run(&store, &format!("put --store $ {key} v-{key}")).ok();
    }
    let scan =
        |options: &str| run(&store, &format!("scan --store ${options}")).ok().text().to_owned();
    assert_eq!(scan(" --prefix a/"), "a/1\tv-a/1\na/2\tv-a/2\n");
    assert_eq!(scan(" --start a/2 --end b/2 --keys-only"), "a/2\nb/1\n");
    assert_eq!(scan(" --reverse --limit 2 --keys-only"), "c\nb/2\n");
    assert_eq!(scan(" --limit 1 --json"), "{\"key\":\"a/1\",\"value\":\"v-a/1\"}\n");
    assert_eq!(scan(" --limit 1 --hex"), "612f31\t762d612f31\n");
    assert_eq!(run(&store, "count --store $").ok().text(), "5\n");
    assert_eq!(run(&store, "count --store $ --prefix b/").ok().text(), "2\n");
    run(&store, "del --store $ c missing").ok();
    run(&store, "del --store $ --prefix a/ --yes").ok();
    assert_eq!(scan(" --keys-only"), "b/1\nb/2\n");
}

#[test]
fn keys_are_deleted_only_when_the_command_line_or_a_person_says_so() {
    let (_dir, store) = new();
    for key in ["a/1", "a/2", "b"] {
        run(&store, &format!("put --store $ {key} v")).ok();
    }
    let count = || run(&store, "count --store $").ok().text().trim().to_owned();
    for (command, amount) in [
        ("del --store $ --prefix a/", "2 keys"),
        ("del --store $ --start b", "1 key,"),
        ("del --store $ --end b", "2 keys"),
        ("del --store $ --start a", "3 keys"),
        ("del --store $ --all", "all keys, 3 keys"),
    ] {
        let refused = run_with(&store, command, b"y\n").fails(1, "add `--yes`");
        assert!(refused.err.contains(&format!("this would delete {amount}")), "{refused:?}");
        assert!(refused.err.contains(&format!("the store {}", store.display())), "{refused:?}");
        assert_eq!(count(), "3", "`{command}` deleted something");
    }
    assert!(run(&store, "del --store $ --prefix x").ok().err.contains("no key"));
    let deleted = run(&store, "del --store $ --prefix a/ --yes").ok();
    assert!(deleted.err.contains("deleted 2 keys"), "{deleted:?}");
    assert_eq!(count(), "1");
    run(&store, "del --store $ --all --yes").ok();
    assert_eq!(count(), "0");
    assert!(run(&store, "del --store $ --all").ok().err.contains("no key is in the store"));
}

#[test]
fn an_empty_prefix_is_no_shorter_way_to_delete_everything() {
    let (_dir, store) = new();
    run(&store, "put --store $ k v").ok();
    let arguments = ["del", "--store", store.to_str().unwrap(), "--prefix", ""];
    let ran = stele().args(arguments).stdin(Stdio::null()).output().unwrap();
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert_eq!(run(&store, "count --store $").ok().text(), "1\n");
}

#[test]
fn of_many_keys_the_number_is_said_to_be_more_than_are_counted() {
    let (dir, store) = new();
    let lines = dir.path().join("pairs.jsonl");
    let line = |n: u32| format!("{{\"key\":\"key-{n:05}\",\"value\":\"v\"}}\n");
    std::fs::write(&lines, (0..20_000).map(line).collect::<String>()).unwrap();
    run(&store, &format!("import --store $ --from {}", lines.display())).ok();
    run(&store, "del --store $ --prefix key-").fails(1, "delete more than 10000 keys, from");
    let some = run(&store, "del --store $ --prefix key-00").fails(1, "delete 1000 keys, from");
    assert_eq!(some.err.lines().count(), 1);
    run(&store, "del --store $ --prefix key-0").fails(1, "delete 10000 keys, from");
    let all = run(&store, "del --store $ --all --yes").ok();
    assert!(all.err.contains("deleted more than 10000 keys"), "{all:?}");
    assert_eq!(run(&store, "count --store $").ok().text(), "0\n");
}

#[test]
fn odd_bytes_stay_on_their_line() {
    let (_dir, store) = new();
    run(&store, "put --store $ --hex 610aff 09").ok();
    assert_eq!(run(&store, "scan --store $").ok().text(), "a\\n\\xff\t\\t\n");
    let json = run(&store, "scan --store $ --json").ok();
    assert_eq!(json.text(), "{\"key_hex\":\"610aff\",\"value\":\"\\t\"}\n");
}

#[test]
fn a_pair_with_a_time_to_live_ends() {
    let (_dir, store) = new();
    run(&store, "put --store $ --ttl 1 short v").ok();
    run(&store, "put --store $ --ttl 1000 long v").ok();
    std::thread::sleep(std::time::Duration::from_millis(2100));
    run(&store, "get --store $ short").fails(3, "key `short` not found");
    run(&store, "get --store $ long").ok();
    assert_eq!(run(&store, "count --store $").ok().text(), "1\n");
}

#[test]
fn a_read_modify_write_prints_what_it_made_or_found() {
    let (_dir, store) = new();
    let printed = |line: &str| run(&store, line).ok().text().to_owned();
    assert_eq!(printed("incr --store $ visits"), "1\n");
    assert_eq!(printed("incr --store $ visits 41"), "42\n");
    assert_eq!(printed("incr --store $ visits -50"), "-8\n");
    assert_eq!(printed("append --store $ visits 00"), "4\n");
    assert_eq!(printed("del --store $ --get visits"), "-800");
    run(&store, "del --store $ --get visits").fails(3, "key `visits` not found");
    run(&store, "del --store $ --get a b").fails(2, "one key");
    run(&store, "put --store $ --if-absent k one").ok();
    run(&store, "put --store $ --if-absent k two").fails(1, "key `k` has a value");
    assert_eq!(printed("get --store $ k"), "one");
    run(&store, "put --store $ --if-present none two").fails(3, "key `none` has no value");
    run(&store, "put --store $ --if-present k two").ok();
    run(&store, "put --store $ --if-present k one").ok();
    run(&store, "put --store $ --if-present --if-absent k one").fails(2, "cannot be used");
    run(&store, "incr --store $ k").fails(1, "not a decimal number");
    assert_eq!(printed("append --store $ --hex 6b ff"), "4\n");
    assert_eq!(printed("del --store $ --get --hex 6b"), "6f6e65ff\n");
    run(&store, "put --store $ --ttl 1000 lasting 1").ok();
    assert_eq!(printed("incr --store $ lasting"), "2\n");
    assert!(printed("scan --store $ --json").contains("expires_at_s"));
}

#[test]
fn existence_is_one_line_for_each_key() {
    let (_dir, store) = new();
    run(&store, "put --store $ a 1").ok();
    run(&store, "put --store $ b 1").ok();
    assert_eq!(run(&store, "exist --store $ b a").ok().text(), "b\tyes\na\tyes\n");
    assert_eq!(run(&store, "exist --store $ --hex 61").ok().text(), "61\tyes\n");
    let one = run(&store, "exist --store $ a none").fails(3, "");
    assert_eq!(one.text(), "a\tyes\nnone\tno\n");
    run(&store, "exist --store $").fails(2, "required");
}

/// Command lines and their exit codes, in this order on one store. `@` stands for a directory of other files.
const CODES: [(&str, i32); 51] = [
    ("put --store $ k 1", 0),
    ("put --store $ --if-absent k 1", 1),
    ("put --store $ --if-present none 1", 3),
    ("put --store $ --if-present k v", 0),
    ("put --store $ k", 2),
    ("put --store $ --hex k 00", 2),
    ("get --store $ k", 0),
    ("get --store $ none", 3),
    ("get --store $ --hex 0", 2),
    ("get k", 2),
    ("exist --store $ k", 0),
    ("exist --store $ none k", 3),
    ("exist --store $", 2),
    ("incr --store $ n", 0),
    ("incr --store $ k", 1),
    ("incr --store $ n x", 2),
    ("append --store $ k x", 0),
    ("append --store $ k", 2),
    ("scan --store $", 0),
    ("scan --store $ --prefix none", 0),
    ("scan --store $ --limit x", 2),
    ("count --store $ --hex --start 0", 2),
    ("count --store $", 0),
    ("import --store $ --from @/pairs.jsonl", 0),
    ("import --store $ --from @/bad.jsonl", 1),
    ("import --store $", 2),
    ("import --from @/pairs.jsonl", 2),
    ("import --store $ --to redis://a --from @/pairs.jsonl", 2),
    ("import --store $ --from redis://127.0.0.1:1", 2),
    ("import --to redis://127.0.0.1:1 --from @/pairs.jsonl", 2),
    ("import --to redis://127.0.0.1:1 --from redis://127.0.0.1:1", 1),
    ("export --store $ --to @/out.jsonl", 0),
    ("export --store $", 2),
    ("verify --store $", 0),
    ("verify", 2),
    ("stats --store $", 0),
    ("compact --store $", 0),
    ("inspect store --store $", 0),
    ("inspect nothing --store $", 2),
    ("del --store $ --get n", 0),
    ("del --store $ --get none", 3),
    ("del --store $ none", 0),
    ("del --store $ --all", 1),
    ("del --store $", 2),
    ("ctl --store $ stores", 2),
    ("ctl --cluster a:0 stores", 2),
    ("server --listen 2379", 2),
    ("playground --nodes 0", 2),
    ("bench engine --store $ --workload nothing", 2),
    ("--help", 0),
    ("del --store $ --all --yes", 0),
];

// The codes of a cluster, and the unknown outcome, are tested with a fake one.
#[test]
fn the_exit_code_of_each_command_is_0_yes_1_failure_2_usage_or_3_no_such_key() {
    let (dir, store) = new();
    let lines = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    lines("pairs.jsonl", "{\"key\":\"b\",\"value\":\"1\"}\n");
    lines("bad.jsonl", "nonsense\n");
    let absent = dir.path().join("absent").display().to_string();
    let others = dir.path().display().to_string();
    for (line, code) in CODES {
        let ran = run(&store, &line.replace('@', &others));
        assert_eq!(ran.code, code, "{line}: {ran:?}");
    }
    for line in ["get", "exist", "scan", "count", "verify", "stats", "compact", "del", "export"] {
        let rest = match line {
            "scan" | "count" | "verify" | "stats" | "compact" => "",
            "export" => " --to x",
            _ => " k",
        };
        let ran = run(&store, &format!("{line} --store {absent}{rest}"));
        assert_eq!(ran.code, 1, "{line}: {ran:?}");
    }
    let help = run(&store, "--help").ok();
    for words in ["0  yes", "1  failure", "2  usage", "3  no such key", "4  unknown outcome"] {
        assert!(help.text().contains(words), "{words}");
    }
}

#[test]
fn failures_are_one_clear_line() {
    let (_dir, store) = new();
    for command in [
        "get --store $ k",
        "scan --store $",
        "count --store $",
        "del --store $ k",
        "verify --store $",
        "stats --store $",
        "compact --store $",
        "export --store $ --to x",
    ] {
        let ran = run(&store, command).fails(1, "no such directory");
        assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
        assert!(!store.exists(), "`{command}` made a store");
    }
    run(&store, "put --store $ k").fails(2, "required");
    run(&store, "nonsense --store $").fails(2, "unrecognized");
    run(&store, "put --store $ --hex 0x 00").fails(2, "not hexadecimal");
    run(&store, "put --store $ k v").ok();
    run(&store, "get --store $ other").fails(3, "key `other` not found");
    let long = "k".repeat(9000);
    run(&store, &format!("put --store $ {long} v")).fails(2, "limit is 8192");
    let empty = tempfile::tempdir().unwrap();
    run(empty.path(), "get --store $ k").fails(1, "holds no store");
}

#[test]
fn figures_are_printed_for_people_and_machines() {
    let (_dir, store) = new();
    run_with(&store, "put --store $ k --file -", &content(1, 100_000)).ok();
    let verified = run(&store, "verify --store $ --json").ok().json();
    assert_eq!((verified["ok"].clone(), verified["keys"].clone()), (true.into(), 1.into()));
    assert_eq!(verified["live_bytes"], 100_001);
    assert!(verified["disk_bytes"].as_u64().unwrap() >= 100_001);
    assert!(run(&store, "verify --store $").ok().text().starts_with("ok: 1 key,"));
    assert!(run(&store, "stats --store $").ok().text().contains("space-amp"));
    let stats = run(&store, "stats --store $ --json").ok().json();
    assert!(stats["disk_bytes"].is_u64());
    for name in ["live_bytes_estimate", "reserve_held_bytes"] {
        assert!(stats[name].is_u64(), "{name} in {stats}");
        assert_eq!(stats[name], verified[name], "{name}");
    }
    run(&store, "compact --store $").ok();
    for part in ["store", "log", "manifest", "run"] {
        let lines = run(&store, &format!("inspect {part} --store $ --json")).ok();
        for line in lines.text().lines() {
            assert!(serde_json::from_str::<serde_json::Value>(line).unwrap().is_object());
        }
    }
    assert!(run(&store, "inspect store --store $").ok().text().starts_with("STORE  stele store"));
}

#[test]
fn a_shard_of_a_set_is_read_with_a_note_and_refused_to_commands_that_write() {
    let (dir, shard) = new();
    let options = || Options { background: false, ..Options::default() };
    let dirs = [(shard.clone(), options()), (dir.path().join("other"), options())];
    let shards = Shards::open(&dirs, Partition::Hash).unwrap();
    let own = (0..).map(|n| format!("k{n}")).find(|key| shards.shard_of(key.as_bytes()) == 0);
    let own = own.unwrap();
    shards.put(own.as_bytes(), b"v").unwrap();
    shards.close().unwrap();
    let before = tree(&shard);
    let pairs = dir.path().join("pairs.jsonl");
    std::fs::write(&pairs, "{\"key\":\"a\",\"value\":\"b\"}\n").unwrap();
    let import = format!("import --store $ --from {}", pairs.display());
    for line in ["put --store $ k v", "del --store $ k", "compact --store $", &import] {
        run(&shard, line).fails(1, "shard 0 of 2");
    }
    let export = format!("export --store $ --to {}", dir.path().join("out.jsonl").display());
    let get = format!("get --store $ {own}");
    for line in [&get, "scan --store $", "verify --store $", "stats --store $", &export] {
        let ran = run(&shard, line).ok();
        assert!(ran.err.contains("shard 0 of 2"), "{line}: {ran:?}");
    }
    assert!(tree(&shard) == before, "the shard was changed");
}
