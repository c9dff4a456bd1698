//! Key commands and administration of a fake cluster, through the built binary.

use crate::common::{Ran, run};
use crate::fake::Fake;
use std::path::Path;
use stele_client::messages::{
    ConfigItem, Label, OperatorInfo, OperatorState, StoreProgress, StoreState,
};
use stele_types::{LogIndex, RegionPhase, Term};

/// Runs a command line in which `@` stands for the first node's address.
fn run_on(fake: &Fake, line: &str) -> Ran {
    let address = fake.addresses().remove(0);
    run(Path::new(""), &line.replace('@', &address))
}

/// Returns the output with its ports replaced by fixed ones of the same length.
fn golden(fake: &Fake, ran: &Ran) -> String {
    let mut text = ran.text().to_owned();
    for (at, address) in fake.addresses().iter().enumerate() {
        assert_eq!(address.len(), "127.0.0.1:40001".len());
        text = text.replace(address, &format!("127.0.0.1:4000{}", at + 1));
    }
    text
}

#[test]
fn keys_of_a_cluster_are_written_as_those_of_a_directory() {
    let fake = Fake::start(3);
    fake.state().split("m", 11);
    run_on(&fake, "put --cluster @ a 1").ok();
    run_on(&fake, "put --cluster @ --hex 7a 00ff").ok();
    run_on(&fake, "put --cluster @ --ttl 100 t v").ok();
    assert_eq!(run_on(&fake, "get --cluster @ a").ok().out, b"1");
    assert_eq!(run_on(&fake, "scan --cluster @").ok().text(), "a\t1\nt\tv\nz\t\\u{0}\\xff\n");
    let json = run_on(&fake, "scan --cluster @ --reverse --limit 1 --json").ok();
    assert_eq!(json.text(), "{\"key\":\"z\",\"value_hex\":\"00ff\"}\n");
    let before_s = unix_seconds();
    let json = run_on(&fake, "scan --cluster @ --prefix t --json").ok().json();
    let expires_at_s = json["expires_at_s"].as_u64().unwrap();
    assert!((before_s + 100..=unix_seconds() + 100).contains(&expires_at_s), "{json}");
    assert_eq!(run_on(&fake, "count --cluster @").ok().text(), "3\n");
    assert_eq!(run_on(&fake, "count --cluster @ --prefix t").ok().text(), "1\n");
    run_on(&fake, "del --cluster @ a missing").ok();
    run_on(&fake, "del --cluster @ --start t")
        .fails(1, "this would delete 2 keys, from the cluster at 127");
    run_on(&fake, "del --cluster @ --start t --yes").ok();
    assert_eq!(run_on(&fake, "count --cluster @").ok().text(), "0\n");
    run_on(&fake, "get --cluster @ a").fails(3, "key `a` not found");
    run_on(&fake, "get --cluster @ --store x a").fails(2, "cannot be used");
    run_on(&fake, "get a").fails(2, "required");
}

fn unix_seconds() -> u64 {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn the_exit_code_says_yes_failure_usage_no_such_key_or_unknown() {
    let mut fake = Fake::start(3);
    for (line, code) in [
        ("put --cluster @ k 1", 0),
        ("get --cluster @ k", 0),
        ("get --cluster @ none", 3),
        ("exist --cluster @ k none", 3),
        ("put --cluster @ --if-present none 1", 3),
        ("del --cluster @ --get none", 3),
        ("put --cluster @ --if-absent k 2", 1),
        ("incr --cluster @ --hex 0", 2),
        ("ctl --cluster @ cancel 9", 1),
        ("ctl --cluster @ nothing", 2),
        ("get --cluster https://@ k", 2),
        ("ctl --cluster @,node-2 stores", 2),
    ] {
        let ran = run_on(&fake, line);
        assert_eq!(ran.code, code, "{line}: {ran:?}");
    }
    // The answer to a write is lost: it may have taken effect.
    fake.state().fail("put", crate::fake::Fate::ActAndFail(tonic::Code::Unavailable));
    let unknown = run_on(&fake, "put --cluster @ k 2").fails(4, "undetermined");
    assert_eq!(unknown.err.lines().count(), 1, "{unknown:?}");
    fake.kill(0);
    run_on(&fake, "get --cluster @ k").fails(1, "check that its nodes run");
}

#[test]
fn read_modify_writes_of_a_cluster_print_what_those_of_a_directory_do() {
    let fake = Fake::start(3);
    assert_eq!(run_on(&fake, "incr --cluster @ visits 41").ok().text(), "41\n");
    assert_eq!(run_on(&fake, "incr --cluster @ visits -1").ok().text(), "40\n");
    assert_eq!(run_on(&fake, "append --cluster @ visits 0").ok().text(), "3\n");
    run_on(&fake, "append --cluster @ visits x").ok();
    run_on(&fake, "incr --cluster @ visits").fails(1, "not a decimal number");
    run_on(&fake, "put --cluster @ --if-absent --ttl 9 k one").ok();
    run_on(&fake, "put --cluster @ --if-absent k two").fails(1, "key `k` has a value");
    run_on(&fake, "put --cluster @ --if-present none two").fails(3, "key `none` has no value");
    run_on(&fake, "put --cluster @ --if-present --ttl 9 k two").ok();
    assert_eq!(run_on(&fake, "get --cluster @ k").ok().out, b"two");
    let exist = run_on(&fake, "exist --cluster @ visits none k").fails(3, "");
    assert_eq!(exist.text(), "visits\tyes\nnone\tno\nk\tyes\n");
    assert_eq!(run_on(&fake, "del --cluster @ --get visits").ok().out, b"400x");
    run_on(&fake, "del --cluster @ --get visits").fails(3, "key `visits` not found");
}

#[test]
fn listings_are_tables_or_json_lines() {
    let fake = Fake::start(2);
    fake.state().split("m", 11);
    fake.state().placement = 1;
    let rack = Label { key: "rack".to_owned(), value: "b".to_owned() };
    fake.state().stores.get_mut(&2).unwrap().labels = vec![rack];
    let stores = run_on(&fake, "ctl --cluster @ stores").ok();
    let expected = "\
store  address          state  class  regions  leaders      used       free   capacity  append p99   heard  version  level  labels
    1  127.0.0.1:40001  up        23        1        1  1.0 GiB  60.0 GiB  100.0 GiB      0.4 ms  120 ms  0.1.0        1
    2  127.0.0.1:40002  up        23        1        0  1.0 GiB  60.0 GiB  100.0 GiB      0.4 ms  120 ms  0.1.0        1  rack=b
";
    assert_eq!(squeezed(&golden(&fake, &stores)), squeezed(expected));
    let json = run_on(&fake, "ctl --cluster @ --json stores").ok();
    assert_eq!(json.text().lines().count(), 2);
    assert_eq!(
        (json.json()["store"].as_u64(), json.json()["used"].as_u64()),
        (Some(2), Some(1 << 30))
    );
    let regions = run_on(&fake, "ctl --cluster @ regions").ok();
    let expected = "\
region  start  end  stores  leader      size  keys  epoch  state
    11  -∞     m    1 2          1  5.0 MiB  1000  2.1    ok
     2  m      +∞   1 2          1  5.0 MiB  1000  2.1    ok
";
    assert_eq!(squeezed(regions.text()), squeezed(expected));
    let json = run_on(&fake, "ctl --cluster @ regions --json --store 2").ok().json();
    assert_eq!((json["region"].clone(), json["start"].clone()), (2.into(), "m".into()));
    assert_eq!(json["stores"], serde_json::json!([1, 2]));
    let members = run_on(&fake, "ctl --cluster @ members").ok();
    let expected = "\
address          stores  placement  cluster
127.0.0.1:40001  1 up                  7001
127.0.0.1:40002  2 up    leader        7001
";
    assert_eq!(golden(&fake, &members), expected);
    assert_eq!(run_on(&fake, "ctl --cluster @ operators").ok().text(), "no operators\n");
}

/// Joins words by one space and normalizes numbers: the width of sizes is another crate's concern.
fn squeezed(text: &str) -> String {
    let words = text.split_whitespace().map(|word| match word.parse::<f64>() {
        Ok(number) => number.to_string(),
        Err(_) => word.to_owned(),
    });
    words.collect::<Vec<String>>().join(" ")
}

#[test]
fn changes_are_waited_for_and_refusals_are_one_line() {
    let fake = Fake::start(3);
    let ran = run_on(&fake, "ctl --cluster @ transfer-leader 2 3").ok();
    assert!(ran.text().starts_with("region 2: lead region 2 from store 3: done ("), "{ran:?}");
    assert_eq!(fake.state().leaders[&2], 3);
    run_on(&fake, "ctl --cluster @ split 2 g p").ok();
    assert_eq!(fake.state().regions.len(), 3);
    let json = run_on(&fake, "ctl --cluster @ move 2 1 4 --json").ok().json();
    assert_eq!((json["state"].clone(), json["region"].clone()), ("done".into(), 2.into()));
    run_on(&fake, "ctl --cluster @ merge 2 1001").ok();
    assert_eq!(run_on(&fake, "ctl --cluster @ operators --ended").ok().text().lines().count(), 5);
    let refused =
        run_on(&fake, "ctl --cluster @ transfer-leader 2 9").fails(1, "no replica on store 9");
    assert_eq!(refused.err.lines().count(), 1);
    run_on(&fake, "ctl --cluster @ transfer-leader 77 1").fails(1, "there is no region 77");
    run_on(&fake, "ctl --cluster @ region 77").fails(1, "there is no region 77");
    run_on(&fake, "ctl --cluster @ split 2 --hex xx").fails(2, "not hexadecimal");
    run_on(&fake, "ctl --cluster @ cancel 9").fails(1, "there is no store 9");
    let dir = tempfile::tempdir().unwrap();
    let (empty, full) = (dir.path().join("new").display().to_string(), dir.path().display());
    let command = run_on(&fake, &format!("ctl --cluster @ add-store {empty} --listen h:1")).ok();
    let expected = format!("stele server --listen h:1 --join 127.0.0.1:40001 --store {empty}\n");
    assert!(golden(&fake, &command).contains(&expected), "{command:?}");
    assert!(command.text().contains("Nothing was changed"), "{command:?}");
    std::fs::write(dir.path().join("x"), b"").unwrap();
    run_on(&fake, &format!("ctl --cluster @ add-store {full}")).fails(1, "it is not empty");
}

#[test]
fn a_stuck_merge_is_shown_with_its_reason_and_is_cancelled() {
    let fake = Fake::start(3);
    fake.state().split("m", 11);
    // The left half, which is new, is prepared to merge into the other one.
    let target = fake.state().regions[1].clone();
    fake.state().regions[0].phase = RegionPhase::Merging {
        target: target.id,
        prepared: LogIndex(8),
        term: Term(5),
        target_epoch: target.epoch,
    };
    let source = fake.state().regions[0].id.0;
    let detail = "the range takes no reads and writes until the replica on store 3 responds";
    fake.state().operators.push(OperatorInfo {
        id: 140,
        region_id: source,
        what: "commit merge".into(),
        why: "finish".into(),
        state: OperatorState::Running as i32,
        steps: 1,
        detail: detail.into(),
        ..OperatorInfo::default()
    });
    let shown = run_on(&fake, &format!("ctl --cluster @ region {source}")).ok();
    assert!(shown.text().contains(&format!("merging into {}", target.id)), "{shown:?}");
    let listed = run_on(&fake, "ctl --cluster @ operators").ok();
    assert!(listed.text().contains(detail), "{listed:?}");
    let json = run_on(&fake, "ctl --cluster @ operators --json").ok().json();
    assert_eq!((json["region"].clone(), json["state"].clone()), (source.into(), "running".into()));
    let cancel = format!("ctl --cluster @ cancel-operator {source}");
    let cancelled = run_on(&fake, &cancel).ok();
    assert!(cancelled.text().contains("cancelled by an administrator"), "{cancelled:?}");
    // Nothing runs, and the region is still prepared to merge.
    assert_eq!(run_on(&fake, &cancel).ok().text(), "the merge is being abandoned\n");
    fake.state().regions[0].phase = RegionPhase::Normal;
    run_on(&fake, &cancel).fails(1, "the region has no operator");
}

#[test]
fn a_recovery_is_shown_first_and_carried_out_only_with_consent() {
    let fake = Fake::start(3);
    fake.state().split("m", 11);
    // Region 11 keeps its majority.
    fake.state().regions[0].peers.remove(2);
    fake.state().regions[0].peers.remove(1);
    let shown = run_on(&fake, "ctl --cluster @ recover --lost 2,3").ok();
    let expected = "\
region  keys     store  term  last  last_term  commit  result
     2  [m, +∞)      1     6    17          6      17  goes on with store 1, from the log of store 1
";
    assert!(shown.text().starts_with(expected), "{}", shown.text());
    assert!(shown.text().contains("nothing was changed"), "{shown:?}");
    assert_eq!(fake.state().regions[1].peers.len(), 3);
    assert_eq!(fake.state().stores[&2].state, StoreState::Up as i32);
    fake.state().leaders.clear();
    let done = run_on(&fake, "ctl --cluster @ recover --lost 2,3 --yes").ok();
    assert!(done.text().contains("store 3 is removed from the cluster\n"), "{done:?}");
    assert!(done.text().ends_with("region 2 goes on with store 1\n"), "{done:?}");
    assert_eq!(fake.state().regions[1].peers.len(), 1);
    let again = run_on(&fake, "ctl --cluster @ recover --lost 2,3 --yes").ok();
    assert_eq!(again.text(), "no regions\n", "it is idempotent");
}

#[test]
fn a_region_without_a_replica_is_named_and_the_others_go_on() {
    let fake = Fake::start(3);
    fake.state().split("m", 11);
    fake.state().regions[0].peers.remove(0);
    fake.state().leaders.clear();
    let done = run_on(&fake, "ctl --cluster @ recover --lost 2,3 --yes");
    let done = done.fails(1, "region 11 was not recovered: refused: no replica is left");
    assert!(done.text().contains("LOST: no replica is left"), "{done:?}");
    assert!(done.text().contains("keys [-∞, m): no replica is left"), "{done:?}");
    assert!(done.text().ends_with("region 2 goes on with store 1\n"), "{done:?}");
    run_on(&fake, "ctl --cluster @ --json recover --lost 2").fails(2, "belong to directories");
    run_on(&fake, "ctl --store x stores").fails(2, "--store is only for `recover`");
    run_on(&fake, "ctl --cluster @ recover --lost 9 --yes").fails(1, "there is no store 9");
}

#[test]
fn a_region_is_shown_as_its_replicas_see_it() {
    let fake = Fake::start(2);
    let shown = run_on(&fake, "ctl --cluster @ region 2").ok();
    assert!(shown.text().starts_with("region 2 [-∞, +∞) epoch 1.1"), "{shown:?}");
    let expected = "\
store  peer  role      term  first  last  committed  applied      size  keys  asleep
    1    21  leader       6      6    17         17       17  5.0 MiB  1000  no
    2    22  follower     6      6    17         17       17  5.0 MiB  1000  no
";
    let table = shown.text().split_once('\n').unwrap().1;
    assert_eq!(squeezed(table), squeezed(expected));
    let json = run_on(&fake, "ctl --cluster @ region 2 --json").ok();
    assert_eq!(json.text().lines().count(), 2);
    assert_eq!(json.json()["role"], "follower");
}

#[test]
fn placement_is_shown_with_speeds_shares_and_planned_moves() {
    let fake = Fake::start(2);
    let shown = run_on(&fake, "ctl --cluster @ placement").ok();
    let expected = "\
mode alor · ops/s: synced writes of 16.0 KiB · replicas differ in: node
store  address          state  class  slower  ops/s  speed     data class  weight %  wanted %  held %  fill %  live estimate  replicas  leaders  load/s  moving  labels
    1  127.0.0.1:40001  up        23       0   2980  estimate          23     100.0      33.3    33.4    12.5        5.0 MiB         1        1     120     0 B
    2  127.0.0.1:40002  up        17       6    372  measured          23     100.0      33.3    33.4    12.5        5.0 MiB         1        0       0     0 B
store 2 counts as 8 times slower than store 1: about 362 synced writes a second against 2896; it leads nothing
no moves
";
    assert_eq!(golden(&fake, &shown), expected);
    fake.state().moves = vec![OperatorInfo {
        region_id: 2,
        what: "transfer leadership of region 2 to store 1".to_owned(),
        why: "balance leaders: store 1 is faster".to_owned(),
        steps: 1,
        ..OperatorInfo::default()
    }];
    let shown = run_on(&fake, "ctl --cluster @ placement").ok();
    let planned = "\
operator  region  state    steps    age  what                                        why                                 detail
       -       2  planned    0/1  0.0 s  transfer leadership of region 2 to store 1  balance leaders: store 1 is faster
";
    assert!(golden(&fake, &shown).ends_with(planned), "{}", shown.text());
    let json = run_on(&fake, "ctl --cluster @ placement --json").ok();
    let lines: Vec<serde_json::Value> =
        json.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), lines[0]["mode"].as_str()), (4, Some("alor")));
    assert_eq!(
        (lines[2]["ops/s"].as_u64(), lines[2]["held %"].as_f64(), lines[2]["slower"].as_u64()),
        (Some(372), Some(33.4), Some(6))
    );
    assert_eq!(
        (lines[3]["operator"].as_u64(), lines[3]["state"].as_str()),
        (None, Some("planned"))
    );
}

#[test]
fn the_place_of_a_region_is_explained_for_each_store() {
    let fake = Fake::start(2);
    let shown = run_on(&fake, "ctl --cluster @ explain 2").ok();
    let expected = "\
region 2 [-∞, +∞) epoch 1.1 · 5.0 MiB in about 1000 keys · ok
mode alor · writes 96/s (1.5 MiB/s) · reads 24/s (1.0 KiB/s) · half-life of a minute
store  address          role     class  ops/s  wanted %  held %  load/s  rule    reason
    1  127.0.0.1:40001  leader      23   2980      33.3    33.4     120  leads   its class 23 is the highest of 2 voters
    2  127.0.0.1:40002  replica     17    372      33.3    33.4       0  slower  its class 17 is 6 below that of store 1
no operator is under way or planned
";
    assert_eq!(golden(&fake, &shown), expected);
    let by_key = run_on(&fake, "ctl --cluster @ explain --key 7a --hex").ok();
    assert_eq!(golden(&fake, &by_key), expected);
    let json = run_on(&fake, "ctl --cluster @ explain 2 --json").ok();
    let lines: Vec<serde_json::Value> =
        json.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), lines[0]["written_bytes_per_s"].as_u64()), (3, Some(3 << 19)));
    assert_eq!((lines[2]["store"].as_u64(), lines[2]["rule"].as_str()), (Some(2), Some("slower")));
    run_on(&fake, "ctl --cluster @ explain 77").fails(1, "there is no region 77");
    run_on(&fake, "ctl --cluster @ explain").fails(2, "or a key with --key");
    run_on(&fake, "ctl --cluster @ explain 2 --key a").fails(2, "cannot be used");
}

#[test]
fn replicas_are_compared() {
    let fake = Fake::start(3);
    let same = run_on(&fake, "ctl --cluster @ checksum 2").ok();
    assert_eq!(same.text().matches("identical").count(), 3, "{same:?}");
    fake.state().fail("", crate::fake::Fate::Hang);
    let other = run_on(&fake, "ctl --cluster @ checksum 2 --json");
    assert_eq!((other.code, other.json()["replicas"].clone()), (1, "DIFFERENT".into()));
}

#[test]
fn a_drain_is_followed_until_the_store_is_empty() {
    let fake = Fake::start(3);
    let step = |left: u64, state: StoreState| StoreProgress {
        store_id: 3,
        state: state as i32,
        leaders_left: 0,
        regions_left: left,
        bytes_left: left << 30,
        regions_total: 4,
        bytes_total: 4 << 30,
        bytes_per_second: 512 << 20,
        ..StoreProgress::default()
    };
    let draining = StoreState::Draining;
    let blocked = StoreProgress {
        waits_for: "no store has room".to_owned(),
        waits_for_region: 7,
        ..step(1, draining)
    };
    fake.state().progress = [step(4, draining), blocked.clone(), step(0, draining)].into();
    let ran = run_on(&fake, "ctl --cluster @ drain 3 --wait").ok();
    let lines: Vec<&str> = ran.text().lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("store 3 draining: 4 of 4 replicas left"), "{lines:?}");
    assert!(lines[0].ends_with("8 s left"), "{lines:?}");
    assert!(lines[1].contains("is empty"), "{lines:?}");
    let states = [step(4, StoreState::Removing), step(0, StoreState::Removing)];
    fake.state().progress = states.into_iter().chain([step(0, StoreState::Removed)]).collect();
    let asked = run_on(&fake, "ctl --cluster @ remove-store 3 --wait --json");
    let asked = asked.fails(1, "there is no terminal to ask; add `--yes`");
    let what = "remove store 3 (up) of the node 127.0.0.1:";
    assert!(asked.err.contains(what) && asked.err.contains("1 replica of region 2"), "{asked:?}");
    assert_eq!(fake.state().progress.len(), 3, "nothing was asked of the cluster");
    let json = run_on(&fake, "ctl --cluster @ remove-store 3 --wait --json --yes").ok();
    assert!(json.err.contains(what), "{json:?}");
    assert_eq!(json.text().lines().count(), 3);
    assert_eq!(json.json()["state"], "removed");
    fake.state().progress = [blocked].into();
    let ran = run_on(&fake, "ctl --cluster @ drain 3").ok();
    assert!(ran.text().ends_with("; waits for: no store has room (region 7)\n"), "{ran:?}");
}

#[test]
fn without_a_leader_of_the_placement_group_stores_are_listed_as_a_node_knows_them() {
    let fake = Fake::start(3);
    fake.state().placement = usize::MAX;
    let started = std::time::Instant::now();
    let stores = run_on(&fake, "ctl --cluster @ stores").ok();
    assert!(started.elapsed() < std::time::Duration::from_secs(2), "{:?}", started.elapsed());
    let expected = "\
store  address          state                              heard
    1  127.0.0.1:40001  reached                            0 ms
    2  127.0.0.1:40002  not heard for 16 s                 16400 ms
    3  127.0.0.1:40003  not reached since that node started  never
";
    assert_eq!(squeezed(&golden(&fake, &stores)), squeezed(expected));
    assert!(stores.err.contains("1 of 3 voters of region 1 is up: no quorum"), "{stores:?}");
    assert!(stores.err.contains("this is what 127.0.0.1:"), "{stores:?}");
    let json = run_on(&fake, "ctl --cluster @ stores --json").ok().json();
    assert_eq!((json["store"].as_u64(), json["heard"].as_u64()), (Some(3), None));
}

#[test]
fn settings_are_shown_and_changed() {
    let fake = Fake::start(1);
    let mode = ConfigItem {
        key: "placement_mode".to_owned(),
        value: "even".to_owned(),
        default_value: "alor".to_owned(),
        meaning: "Placement of leaders and data.".to_owned(),
        live: true,
        source: "set".to_owned(),
        names: ["even", "leaders", "alor", "quorum"].map(str::to_owned).to_vec(),
        ..ConfigItem::default()
    };
    let replicas = ConfigItem {
        key: "replicas".to_owned(),
        value: "3".to_owned(),
        default_value: "3".to_owned(),
        meaning: "Copies of each region.".to_owned(),
        unit: "copies".to_owned(),
        live: true,
        source: "default".to_owned(),
        minimum: "1".to_owned(),
        maximum: "7".to_owned(),
        names: Vec::new(),
    };
    fake.state().config = vec![replicas, mode];
    let shown = run_on(&fake, "ctl --cluster @ config").ok();
    let expected = "\
key             value  default  unit    allowed                      online  from     meaning
replicas        3      3        copies  1 to 7                       yes     default  Copies of each region.
placement_mode  even   alor             even, leaders, alor, quorum  yes     set      Placement of leaders and data.
";
    assert_eq!(shown.text(), expected);
    let json = run_on(&fake, "ctl --cluster @ --json config replicas 5").ok().json();
    assert_eq!((json["value"].clone(), json["from"].clone()), ("5".into(), "set".into()));
    let mode = run_on(&fake, "ctl --cluster @ config placement_mode quorum").ok();
    assert!(mode.text().contains("placement_mode  quorum"), "{mode:?}");
    run_on(&fake, "ctl --cluster @ config nonsense").fails(1, "there is no such setting");
}

#[test]
fn a_dead_node_in_the_list_is_passed_over_and_none_at_all_is_named() {
    let mut fake = Fake::start(3);
    let addresses = fake.addresses();
    fake.state().leaders.insert(2, 2);
    fake.state().placement = 2;
    fake.kill(0);
    let list = format!("{},{}", addresses[0], addresses[1]);
    run_on(&fake, &format!("put --cluster {list} k v")).ok();
    run_on(&fake, &format!("ctl --cluster {list} stores")).ok();
    let gone = run_on(&fake, "get --cluster @ k").fails(1, "check that its nodes run");
    assert_eq!(gone.err.lines().count(), 1, "{gone:?}");
}

#[test]
fn the_load_generator_accounts_for_every_operation_and_compares_targets() {
    let fake = Fake::start(3);
    let page = tempfile::tempdir().unwrap();
    let html = page.path().join("page.html");
    for workload in ["load", "a", "d", "e", "f", "w90", "s50"] {
        let line = format!(
            "bench wire --target stele://@ --target tikv://@ --workload {workload} --records 60 \
             --operations 120 --clients 7 --value-bytes 100 --rounds 2 --deletes 0 --quiet \
             --html {}",
            html.display(),
        );
        let ran = run_on(&fake, &line).ok();
        let lines: Vec<serde_json::Value> =
            ran.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 5, "{workload}");
        let wanted = if workload == "load" { 60 } else { 120 };
        for round in &lines[..4] {
            let counted: u64 = (round["latency"].as_object().unwrap().values())
                .map(|kind| kind["count"].as_u64().unwrap())
                .sum();
            assert_eq!((round["operations"].as_u64(), counted), (Some(wanted), wanted), "{round}");
            assert_eq!(round["errors"], 0, "{round}");
        }
        let address = fake.addresses().remove(0);
        let ratio = &lines[4]["first_to_others"][format!("tikv://{address}")]["median"];
        assert!(ratio.as_f64().unwrap() > 0.0, "{}", lines[4]);
        assert!(std::fs::read_to_string(&html).unwrap().contains("<polyline"));
    }
    let line = format!(
        "bench wire --target stele://@ --workload c --records 60 --operations 120 --clients 7 \
         --value-bytes 100 --rate 400 --quiet --html {}",
        html.display()
    );
    let ran = run_on(&fake, &line).ok();
    let round: serde_json::Value =
        serde_json::from_str(ran.text().lines().next().unwrap()).unwrap();
    let per_second = round["operations_per_second"].as_f64().unwrap();
    assert!(per_second < 404.0, "no operation begins before it is due: {per_second}");
    let said = std::fs::read_to_string(&html).unwrap();
    assert!(said.contains(" 400 operations are due per second"), "{said}");
    run_on(&fake, "bench wire --target mysql://@").fails(2, "is not a target: write stele://");
}
