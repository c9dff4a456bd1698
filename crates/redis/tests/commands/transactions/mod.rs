//! Transactions on names of several regions.

mod cluster;

use super::NOW_MS;
use bytes::Bytes;
use cluster::{Cluster, Faults, request};
use stele_redis::key::header_key;
use stele_redis::transaction::{
    ABANDONED_MS, Commands, Intent, KeyChange, MetIntent, NewHeader, PENDING_MS_MAX, Resolver,
    Step, StepAnswer, StepProgram, TransactionFailure, TransactionId, Way,
};
use stele_redis::{
    Header, Kind, ProgramAnswer, Protocol, RedisProgram, SweepProgram, SweptCounts, Watched, sweep,
};
use stele_redis_region::MemoryRegion;
use stele_types::{ColumnFamily, KeyRange, Prng};

const TRANSACTION: TransactionId = TransactionId(77);

fn quiet() -> Cluster {
    Cluster::new(1, Faults::default())
}

fn named(name: &str) -> Bytes {
    header_key(0, name.as_bytes())
}

fn record() -> Bytes {
    stele_redis::key::record_key(&named("a0"), TRANSACTION.0)
}

fn string(value: &str, change: u64) -> Bytes {
    let header = Header { kind: Kind::String, stamp: 1, change, count: 0, expires_at_ms: 0 };
    header.encode(value.as_bytes())
}

fn run(region: &mut MemoryRegion, step: Step, now_ms: u64) -> StepAnswer {
    let answer = region.execute_program(&StepProgram::new(step).unwrap(), now_ms);
    StepAnswer::decode(&answer).unwrap()
}

fn create(region: &mut MemoryRegion) -> StepAnswer {
    let header_keys = vec![named("a0"), named("b1")];
    run(region, Step::Create { record_key: record(), header_keys }, NOW_MS)
}

/// Writes an intent that sets `b1`.
fn intend(region: &mut MemoryRegion, expected: Option<u64>) -> StepAnswer {
    let new = NewHeader::Header(string("new", 9));
    let change = KeyChange { header_key: named("b1"), expected, new, members: Vec::new() };
    let (record_key, changes) = (record(), vec![change]);
    run(region, Step::Intend { transaction: TRANSACTION, record_key, changes }, NOW_MS)
}

fn commit(region: &mut MemoryRegion, expected: Option<u64>) -> StepAnswer {
    let mut operations = stele_types::CommandBuilder::new();
    operations.put(&named("a0"), &string("new", 8), 0).unwrap();
    let expected = vec![(named("a0"), expected)];
    run(region, Step::Commit { record_key: record(), expected, operations }, NOW_MS)
}

fn ask(region: &mut MemoryRegion, aborts: bool, now_ms: u64) -> StepAnswer {
    run(region, Step::Ask { record_key: record(), aborts }, now_ms)
}

fn resolve(region: &mut MemoryRegion, way: Way) -> StepAnswer {
    let header_keys = vec![named("b1")];
    run(region, Step::Resolve { transaction: TRANSACTION, header_keys, way }, NOW_MS)
}

fn region() -> MemoryRegion {
    MemoryRegion::new(1, Protocol::Resp2)
}

fn get(region: &mut MemoryRegion, name: &str) -> String {
    super::shown(&region.execute_all(&[request(&format!("get {name}"))], false, NOW_MS))
}

/// Returns the change number of a string that is set now.
fn set(region: &mut MemoryRegion, name: &str, value: &str) -> u64 {
    region.execute_all(&[request(&format!("set {name} {value}"))], false, NOW_MS);
    region.stored(0, name.as_bytes()).0.unwrap().change
}

fn met() -> MetIntent {
    MetIntent { header_key: named("b1"), transaction: TRANSACTION, record_key: record() }
}

#[test]
fn a_transaction_changes_names_of_several_regions() {
    let mut cluster = quiet();
    assert_eq!(cluster.execute(&["mset a0 1 b1 2 c2 3"]), "*1|+OK|");
    assert_eq!(cluster.execute(&["incr a0", "append b1 x", "del c2"]), "*3|:2|:2|:1|");
    assert_eq!(cluster.at_once("get a0"), "$1|2|");
    assert_eq!(cluster.at_once("get b1"), "$2|2x|");
    assert_eq!(cluster.at_once("exists c2"), ":0|");
    assert_eq!(cluster.execute(&["msetnx c2 1 a0 1", "rename a0 d1", "get d1"]), "*3|:0|+OK|$1|2|");
    assert_eq!(cluster.execute(&["hset h0 f v", "copy h0 i2", "hset i2 g w"]), "*3|:1|:1|:1|");
    assert_eq!(
        cluster.execute(&["hset i2 f x", "hdel h0 f", "hgetall i2"]),
        "*3|:0|:1|*4|$1|f|$1|x|$1|g|$1|w|"
    );
    assert_eq!(cluster.at_once("hgetall i2"), "*4|$1|f|$1|x|$1|g|$1|w|");
    let only_pairs = |key: &Bytes| {
        let named = stele_redis::key::decode(key).unwrap();
        !matches!(named.part, stele_redis::key::KeyPart::Record { .. })
    };
    let all = cluster.regions.values().flat_map(MemoryRegion::keys);
    assert!(all.into_iter().all(only_pairs), "a record is left");
}

#[test]
fn commands_that_fail_change_nothing_and_have_their_replies() {
    let mut cluster = quiet();
    cluster.at_once("set a0 x");
    let replies = cluster.execute(&["incr a0", "set b1 1", "get a0"]);
    assert_eq!(replies, "*3|-ERR value is not an integer or out of range|+OK|$1|x|");
    assert_eq!(cluster.at_once("get b1"), "$1|1|");
}

#[test]
fn a_collection_above_the_limit_is_refused_before_anything_is_done() {
    let mut cluster = quiet();
    let fields: Vec<String> = (0..1_025).map(|field| format!("f{field} v")).collect();
    cluster.at_once(&format!("hset h1 {}", fields.join(" ")));
    let refused = cluster.execute(&["set a0 1", "hset h1 f0 w"]);
    assert!(refused.contains("TooManyMembers"), "{refused}");
    assert_eq!(cluster.at_once("exists a0"), ":0|");
    assert_eq!(cluster.execute(&["set a0 1", "pexpire h1 60000", "hget h1 f0"]), "*3|+OK|:1|$1|v|");
}

#[test]
fn a_watched_name_that_has_changed_makes_the_reply_null() {
    let mut cluster = quiet();
    cluster.at_once("set b1 1");
    let change = cluster.region(&named("b1")).stored(0, b"b1").0.map(|header| header.change);
    let mut exec = |change| {
        let watched = vec![Watched { header_key: named("b1"), change }];
        let requests = vec![request("set a0 1"), request("set c2 1")];
        let commands = Commands { requests, watched, protocol: Protocol::Resp2, is_exec: true };
        let of = cluster.begin_commands(commands);
        cluster.run(u64::MAX);
        super::shown(&cluster.ended.remove(&of).unwrap().unwrap())
    };
    assert_eq!(exec(Some(1)), "*-1|");
    assert_eq!(exec(None), "*-1|");
    assert_eq!(exec(change), "*2|+OK|+OK|");
    // It was only read, so it has not changed.
    assert_eq!(exec(change), "*2|+OK|+OK|");
}

#[test]
fn a_name_that_has_changed_gets_no_intent() {
    let mut region = region();
    assert_eq!(intend(&mut region, Some(3)), StepAnswer::Changed);
    let change = set(&mut region, "b1", "old");
    for expected in [None, Some(change ^ 1)] {
        assert_eq!(intend(&mut region, expected), StepAnswer::Changed);
        assert_eq!(get(&mut region, "b1"), "$3|old|");
    }
    assert_eq!(intend(&mut region, Some(change)), StepAnswer::Done);
}

#[test]
fn an_intent_is_not_replaced_by_another_one() {
    let mut region = region();
    assert_eq!(intend(&mut region, None), StepAnswer::Done);
    assert_eq!(intend(&mut region, None), StepAnswer::Meets(vec![met()]));
    let read = Step::Read { header_keys: vec![named("b1")], member_keys: Vec::new() };
    assert_eq!(run(&mut region, read, NOW_MS), StepAnswer::Meets(vec![met()]));
}

#[test]
fn a_command_that_meets_an_intent_changes_nothing_and_names_it() {
    let mut region = region();
    set(&mut region, "c1", "1");
    intend(&mut region, None);
    let program = |texts: &[&str]| {
        let requests = texts.iter().map(|text| request(text)).collect();
        RedisProgram::new(requests, Protocol::Resp2, 5).unwrap()
    };
    let watched = || vec![Watched { header_key: named("b1"), change: None }];
    let programs = [
        program(&["incr c1", "get b1"]),
        program(&["incr c1", "exists b1 c1"]),
        program(&["incr c1", "hset b1 f v"]),
        program(&["incr c1"]).watching(watched()).unwrap(),
    ];
    for program in programs {
        let answer = ProgramAnswer::decode(region.execute_program(&program, NOW_MS));
        assert_eq!(answer, Some(ProgramAnswer::Meets(vec![met()])), "{program:?}");
        assert_eq!(get(&mut region, "c1"), "$1|1|");
    }
}

#[test]
fn a_write_without_a_condition_does_not_remove_an_intent() {
    let mut region = region();
    intend(&mut region, None);
    region.is_guarded = true;
    for text in ["set b1 x", "setex b1 10 x", "mset c1 1 b1 x"] {
        let program = RedisProgram::new(vec![request(text)], Protocol::Resp2, 5).unwrap();
        let answer = ProgramAnswer::decode(region.execute_program(&program, NOW_MS));
        assert_eq!(answer, Some(ProgramAnswer::Meets(vec![met()])), "{text}");
    }
    resolve(&mut region, Way::New);
    assert_eq!(get(&mut region, "b1"), "$3|new|");
    assert_eq!(get(&mut region, "c1"), "$-1|");
}

#[test]
fn an_intent_is_resolved_to_one_of_its_headers() {
    for (way, absent, present) in [(Way::Old, "$-1|", "$3|old|"), (Way::New, "$3|new|", "$3|new|")]
    {
        let mut region = region();
        intend(&mut region, None);
        assert_eq!(resolve(&mut region, way), StepAnswer::Done);
        assert_eq!(get(&mut region, "b1"), absent);
        // It is gone: another way does not change the name.
        resolve(&mut region, if way == Way::Old { Way::New } else { Way::Old });
        assert_eq!(get(&mut region, "b1"), absent);
        let change = set(&mut region, "b1", "old");
        intend(&mut region, Some(change));
        resolve(&mut region, way);
        assert_eq!(get(&mut region, "b1"), present);
    }
}

#[test]
fn members_of_an_aborted_transaction_are_deleted() {
    let mut region = region();
    let header = Header { kind: Kind::Hash, stamp: 4, change: 5, count: 1, expires_at_ms: 0 };
    let member = stele_redis::key::member_key(&named("b1"), 4, b"f");
    let new = NewHeader::Header(header.encode(b""));
    let members = vec![(member.clone(), Bytes::from("v"))];
    let change = KeyChange { header_key: named("b1"), expected: None, new, members };
    let (transaction, record_key, changes) = (TRANSACTION, record(), vec![change]);
    run(&mut region, Step::Intend { transaction, record_key, changes }, NOW_MS);
    assert!(region.value(&member).is_some());
    resolve(&mut region, Way::Old);
    assert_eq!(region.keys().count(), 0);
}

#[test]
fn an_aborted_transaction_never_commits() {
    let mut region = region();
    assert_eq!(commit(&mut region, None), StepAnswer::Absent);
    create(&mut region);
    let names = vec![named("a0"), named("b1")];
    assert_eq!(ask(&mut region, true, NOW_MS), StepAnswer::Aborted(names.clone()));
    assert_eq!(commit(&mut region, None), StepAnswer::Absent);
    assert_eq!(get(&mut region, "a0"), "$-1|");
    create(&mut region);
    assert_eq!(commit(&mut region, None), StepAnswer::Done);
    assert_eq!(ask(&mut region, true, NOW_MS), StepAnswer::Committed(names));
    assert_eq!(commit(&mut region, None), StepAnswer::Absent);
    assert_eq!(get(&mut region, "a0"), "$3|new|");
}

#[test]
fn a_commit_needs_the_names_beside_its_record_unchanged() {
    let mut region = region();
    set(&mut region, "a0", "other");
    for expected in [None, Some(3)] {
        create(&mut region);
        assert_eq!(commit(&mut region, expected), StepAnswer::Changed);
        assert_eq!(get(&mut region, "a0"), "$5|other|");
        // It was aborted at once.
        assert_eq!(ask(&mut region, false, NOW_MS), StepAnswer::Absent);
    }
}

#[test]
fn a_transaction_that_is_too_old_does_not_commit() {
    let mut region = region();
    create(&mut region);
    let commit_at = |region: &mut MemoryRegion, now_ms| {
        let (record_key, expected) = (record(), vec![(named("a0"), None)]);
        let operations = stele_types::CommandBuilder::new();
        run(region, Step::Commit { record_key, expected, operations }, now_ms)
    };
    assert_eq!(commit_at(&mut region, NOW_MS + PENDING_MS_MAX), StepAnswer::Absent);
    assert_eq!(ask(&mut region, false, NOW_MS), StepAnswer::Absent);
    create(&mut region);
    assert_eq!(commit_at(&mut region, NOW_MS + PENDING_MS_MAX - 1), StepAnswer::Done);
}

#[test]
fn only_an_old_record_is_aborted_by_others() {
    let mut region = region();
    create(&mut region);
    for age_ms in [0, PENDING_MS_MAX - 1] {
        assert_eq!(ask(&mut region, false, NOW_MS + age_ms), StepAnswer::Pending);
        assert_eq!(ask(&mut region, false, NOW_MS - age_ms), StepAnswer::Pending);
    }
    let aborted = ask(&mut region, false, NOW_MS + PENDING_MS_MAX);
    assert!(matches!(aborted, StepAnswer::Aborted(_)));
    create(&mut region);
    let aborted = ask(&mut region, false, NOW_MS - PENDING_MS_MAX);
    assert!(matches!(aborted, StepAnswer::Aborted(_)));
}

#[test]
fn an_intent_without_a_record_has_no_effect() {
    let mut cluster = quiet();
    cluster.at_once("set b1 old");
    let change = cluster.region(&named("b1")).stored(0, b"b1").0.unwrap().change;
    intend(cluster.region(&named("b1")), Some(change));
    assert_eq!(cluster.execute(&["get b1", "get a0"]), "*2|$3|old|$-1|");
}

#[test]
fn a_record_is_kept_until_its_last_intent_is_resolved() {
    let mut cluster = quiet();
    create(cluster.region(&named("a0")));
    intend(cluster.region(&named("b1")), None);
    commit(cluster.region(&named("a0")), None);
    let mut resolver = Resolver::new(vec![met()]);
    let mut actions = resolver.begin();
    let mut seen = Vec::new();
    while let Some(action) = actions.pop() {
        let stele_redis::transaction::Action::Send { ticket, key, program } = action else {
            panic!("{action:?}")
        };
        let is_last = matches!(program.step(), Step::Forget { .. });
        let region = cluster.region(&named("b1"));
        let value = region.value(&named("b1")).cloned().unwrap();
        assert!(!is_last || Intent::decode(&value).is_none(), "an intent is left");
        seen.push(is_last);
        let answer = cluster.region(&key).execute_program(&program, NOW_MS);
        let event = stele_redis::transaction::Event::Answered(StepAnswer::decode(&answer).unwrap());
        actions.extend(resolver.on(ticket, event));
    }
    assert!(resolver.is_done() && resolver.has_ended());
    assert_eq!(seen.last(), Some(&true));
    assert_eq!(cluster.at_once("get b1"), "$3|new|");
    assert_eq!(cluster.region(&named("a0")).value(&record()), None);
}

#[test]
fn intents_of_a_coordinator_that_stopped_are_resolved() {
    // It stops after each of its steps.
    for stop_ms in 0..40 {
        let mut cluster = quiet();
        cluster.execute(&["mset a0 1 b1 1 c2 1"]);
        let of = cluster.begin(&["incr a0", "incr b1", "incr c2"]);
        let until_ms = cluster.now_ms + stop_ms;
        cluster.run(until_ms);
        cluster.stop(of);
        cluster.run(u64::MAX);
        let has_ended = cluster.ended.contains_key(&of);
        let replies = cluster.execute(&["mget a0 b1 c2"]);
        let (before, after) = ("*1|*3|$1|1|$1|1|$1|1|", "*1|*3|$1|2|$1|2|$1|2|");
        assert!(replies == after || (replies == before && !has_ended), "{stop_ms}: {replies}");
    }
}

#[test]
fn no_step_of_a_transaction_is_sent_again_after_an_unknown_outcome() {
    let faults = Faults { lost: 400, ..Faults::default() };
    for seed in 0..50 {
        let mut cluster = Cluster::new(seed, faults);
        cluster.begin(&["set a0 1", "set b1 1"]);
        cluster.run(u64::MAX);
        let sent = |step: &str| cluster.sent.iter().filter(|sent| *sent == step).count();
        let (creates, intents, commits) = (sent("Create"), sent("Intend"), sent("Commit"));
        assert!(intents <= creates && commits <= intents, "{:?}", cluster.sent);
        let transactions = cluster.sent.iter().filter(|sent| *sent == "Create").count();
        assert!(transactions <= 12);
    }
}

#[test]
fn a_record_that_is_absent_after_an_unknown_commit_leaves_the_outcome_unknown() {
    let mut cluster = quiet();
    let of = cluster.begin(&["set a0 1", "set b1 1"]);
    while !cluster.sent.iter().any(|sent| sent == "Commit") {
        let until_ms = cluster.now_ms + 1;
        cluster.run(until_ms);
        cluster.now_ms = until_ms;
    }
    // The commit is executed and its answer lost; another process resolves the intents and forgets.
    cluster.lose_answers();
    cluster.run(cluster.now_ms + 20);
    cluster.resolve_all();
    cluster.run(u64::MAX);
    let ended = cluster.ended.remove(&of).unwrap();
    assert!(matches!(ended, Err(TransactionFailure::Undetermined(_))), "{ended:?}");
    assert_eq!(cluster.at_once("get b1"), "$1|1|");
}

/// Transfers between counters over all regions, in strings and hashes, beside single commands.
#[test]
fn transactions_over_regions_are_atomic_although_answers_are_lost() {
    for seed in 0..seeds() {
        let faults = Faults { lost: 20, unanswered: 30, late: 30, refused: 20, stops: 8 };
        transfers(seed, faults);
    }
}

fn seeds() -> u64 {
    std::env::var("STELE_TRANSACTION_SEEDS").ok().and_then(|it| it.parse().ok()).unwrap_or(60)
}

const COUNTERS: u64 = 6;

fn transfers(seed: u64, faults: Faults) {
    let mut cluster = Cluster::new(seed, faults);
    let mut draws = Prng::new(!seed);
    let mut transactions = Vec::new();
    let (mut singles, mut sum) = (0, 0);
    for _ in 0..60 {
        let until_ms = cluster.now_ms + draws.below(40);
        cluster.run(until_ms);
        cluster.now_ms = cluster.now_ms.max(until_ms);
        let (from, to) = (draws.below(COUNTERS), draws.below(COUNTERS));
        let texts = match draws.below(4) {
            0 => {
                vec![format!("incrby n{from} -1"), format!("incrby n{to} 1"), "incr c0".to_owned()]
            }
            1 => vec![
                format!("hincrby h{from} f -1"),
                format!("hincrby h{to} f 1"),
                "incr c0".to_owned(),
            ],
            2 => (0..COUNTERS)
                .flat_map(|at| [format!("get n{at}"), format!("hget h{at} f")])
                .collect(),
            _ => {
                // A command of one region; it waits for nothing.
                if cluster.at_once(&format!("incr n{from}")).starts_with(':') {
                    (singles, sum) = (singles + 1, sum + 1);
                }
                continue;
            }
        };
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let of = cluster.begin(&texts);
        transactions.push((of, texts.len() > 3));
    }
    cluster.run(u64::MAX);
    cluster.faults = Faults::default();
    let (mut done, mut unknown) = (0_i64, 0_i64);
    for (of, is_read) in transactions {
        match cluster.ended.get(&of) {
            Some(Ok(replies)) if is_read => {
                let read = sum_of(replies);
                assert!((0..=singles).contains(&read), "seed {seed}: read {read} of {singles}");
            }
            Some(Ok(_)) => done += 1,
            Some(Err(TransactionFailure::Undetermined(_))) | None if !is_read => unknown += 1,
            Some(Err(TransactionFailure::Invalid(text))) => panic!("seed {seed}: {text}"),
            _ => {}
        }
    }
    let all: Vec<String> =
        (0..COUNTERS).flat_map(|at| [format!("get n{at}"), format!("hget h{at} f")]).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let of = cluster.begin(&all);
    cluster.run(u64::MAX);
    assert_eq!(sum_of(cluster.ended[&of].as_ref().unwrap()), sum, "seed {seed}");
    let counted = cluster.execute(&["get c0", "exists z1"]);
    let counted: i64 = counted.split('|').nth(2).and_then(|it| it.parse().ok()).unwrap_or(0);
    let is_possible = (done..=done + unknown).contains(&counted);
    assert!(is_possible, "seed {seed}: {counted} of {done} and {unknown}");
}

/// Returns the sum of all values in an array of strings.
fn sum_of(replies: &Bytes) -> i64 {
    let text = super::shown(replies);
    let mut parts = text.split('|').skip(1);
    let mut sum = 0;
    while let Some(part) = parts.next() {
        if part.starts_with('$') && part != "$-1" {
            sum += parts.next().unwrap().parse::<i64>().unwrap();
        }
    }
    sum
}

/// Returns the program of a walk at a time, if it finds something.
fn walk(region: &MemoryRegion, now_ms: u64) -> Option<SweepProgram> {
    let all = ColumnFamily::Redis.engine_range(&KeyRange::all());
    sweep(&region.view(), all, now_ms / 1000, 1_000).unwrap().program
}

/// Returns the number of records that a program deletes.
fn swept(region: &mut MemoryRegion, program: &SweepProgram, now_ms: u64) -> u64 {
    SweptCounts::decode(&region.execute_program(program, now_ms)).unwrap().records
}

/// A time at which the record that [`create`] makes is abandoned, in whole seconds.
const LATE_MS: u64 = NOW_MS.next_multiple_of(1_000) + ABANDONED_MS;

#[test]
fn the_sweeper_deletes_the_record_of_an_abandoned_transaction_and_no_committed_one() {
    let mut region = region();
    let change = set(&mut region, "a0", "old");
    set(&mut region, "a1", "x");
    assert_eq!(create(&mut region), StepAnswer::Done);
    assert!(walk(&region, LATE_MS - 1_000).is_none(), "not an hour old");
    assert!(walk(&region, 0).is_none(), "the time is unknown");
    let program = walk(&region, LATE_MS).unwrap();
    // The leader's clock counts too.
    assert_eq!(swept(&mut region, &program, LATE_MS - 1_000), 0);
    assert_eq!(ask(&mut region, false, NOW_MS), StepAnswer::Pending);
    // It has committed since the walk.
    assert_eq!(commit(&mut region, Some(change)), StepAnswer::Done);
    assert_eq!(swept(&mut region, &program, LATE_MS), 0);
    assert!(walk(&region, LATE_MS).is_none());
    let header_keys = vec![named("a0"), named("b1")];
    assert_eq!(ask(&mut region, true, LATE_MS), StepAnswer::Committed(header_keys));
}

#[test]
fn a_transaction_of_which_the_record_was_swept_never_commits() {
    let mut region = region();
    let change = set(&mut region, "a0", "old");
    let other = set(&mut region, "b1", "old");
    create(&mut region);
    assert_eq!(intend(&mut region, Some(other)), StepAnswer::Done);
    let program = walk(&region, LATE_MS).unwrap();
    assert_eq!(swept(&mut region, &program, LATE_MS), 1);
    // The clock of the next leader is late: the commit that was sent arrives in time by it.
    assert_eq!(commit(&mut region, Some(change)), StepAnswer::Absent);
    assert_eq!(ask(&mut region, false, NOW_MS), StepAnswer::Absent);
    resolve(&mut region, Way::Old);
    assert_eq!(
        (get(&mut region, "a0"), get(&mut region, "b1")),
        ("$3|old|".into(), "$3|old|".into())
    );
    // A program of an earlier walk finds it absent.
    assert_eq!(swept(&mut region, &program, LATE_MS), 0);
}
