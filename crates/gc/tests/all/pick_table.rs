//! Golden decisions: a line of state, `=>`, and the choice for it. Sizes in MiB.
//!
//! `mem` bytes in the memtable, `age` its seconds, `idle` seconds without a write, `frozen`
//! memtables, `tiers` bytes of records each tier refers to (newest first), `entry` index bytes for
//! each 1000 record bytes, `expired` run/seconds since its first pair expired, `hides` of the
//! newest tier, `memhides` of the memtable, `froze` seconds since the last freeze, `room` bytes that
//! jobs may write, `trim` bytes of the run of the oldest tier that is next, `above` if newer tiers hold expired pairs, `free` count x bytes of recycled segments, `files` id:bytes/live with a letter for
//! the reason why it is held (h head, c checkpoint, r raft, v view, j job; `s` sorted, `u` live but
//! unreadable), `ratio` of overwrites, `credit`, `scanned`, `hot` range=bytes/scanned, `sorting`
//! unsorted rest of a sort.

use stele_gc::{
    Choice, ExpiredRun, FileState, GcOptions, Held, HotRange, PolicyKind, State, TierState, pick,
    pick_collect, pick_short_of_space,
};
use stele_types::{FileId, KeyRange, RunId};

const MIB: u64 = 1 << 20;

const ADAPTIVE: &str = "
# an empty store
=> idle
# reclaim comes first, then flushes
frozen=2 tiers=100 files=1:128/0,2:128/128 => reclaim 1
frozen=2 tiers=100 files=2:128/128 => flush
# dead but held files stay; a view alone causes no job
tiers=128 files=1:128/0v,2:128/128,9:10/0h => idle
tiers=128 files=1:128/0c,2:128/128,9:10/0h => idle
tiers=128 files=1:128/0j,2:128/128,9:10/0h => idle
# dead except for the log's tail: truncate, then re-append, then wait
tiers=128 files=1:128/0r,2:128/128 => truncate
tiers=128 files=1:128/0r,2:128/128 truncated => reappend <2
tiers=128 files=1:128/0r,2:128/128 truncated reappended => idle
tiers=128 files=1:128/127r,2:128/128 => idle
# tiers: too many are merged by size, the large level is spared
tiers=1,1,1,1,1,1,1,1,9000 files=1:10000/9000 => merge 0+8
tiers=1,1,1,9000 files=1:10000/9000 => idle
# an idle store merges few tiers too, if the budget allows or it is mostly index
tiers=1,1,1,9000 files=1:10000/9000 credit=1 idle=4 => idle
tiers=1,1,1,9000 files=1:10000/9000 credit=1 idle=5 => merge 0+3
tiers=1,1,1,9000 files=1:10000/9000 credit=1 idle=5 failed => idle
tiers=1,1,1,9000 files=1:10000/9000 credit=0 idle=5 => idle
tiers=1,1,1,9000 files=1:10000/9000 credit=0 entry=1001 idle=5 => merge 0+3
tiers=3,9000 files=1:10000/9000 credit=1 idle=5 => idle
# runs with pairs that expired an hour ago, within the budget or in an idle store
tiers=1000 files=1:1000/1000 expired=7/3599 credit=1 idle=9 => idle
tiers=1000 files=1:1000/1000 expired=7/3600,9/3600,8/10 credit=1 => expire 7,9
tiers=1000 files=1:1000/1000 expired=7/3600 credit=0 => idle
tiers=1000 files=1:1000/1000 expired=7/3600 credit=0 idle=5 => expire 7
tiers=1000 files=1:1000/1000 expired=7/3600 credit=0 idle=5 failed => idle
tiers=1,1,1,9000 files=1:10000/9000 expired=7/3600 credit=1 idle=5 => merge 0+3
# within the target nothing moves
tiers=1000 files=1:500/500,2:700/500 credit=100 => idle
# above the target: the cheapest victim, as many as one round needs
tiers=1000 files=1:900/100,2:600/500,3:700/400 credit=1000 => relocate 1
tiers=1000 files=1:500/450,2:900/450,3:700/100 credit=1000 => relocate 3
tiers=1000 files=1:100/100,2:700/300,3:700/300,4:700/300 credit=1000 => relocate 2
# recycled segments are space too: the surplus is dropped before anything live is moved
tiers=1000 files=1:1000/1000 free=4x200 => idle
tiers=1000 files=1:900/100,2:900/900 free=4x100 credit=1000 => drop 3 free
# but an eighth of the live bytes, and one at least, waits for the next writes
tiers=1000 files=1:900/100,2:1200/900 free=2x50 credit=1000 => relocate 1
tiers=1000 files=1:900/100,2:1200/900 free=2x50 credit=1000 idle=5 => drop 2 free
tiers=1000 files=1:900/100,2:1200/900 free=2x800 credit=1000 => drop 1 free
tiers=10 files=1:100/0h free=2x128 => drop 1 free
tiers=1000 files=1:1000/1000 free=4x500 failed => drop 3 free
# the budget is spent: wait, until the hard limit
tiers=1000 files=1:900/100,2:1200/900 credit=0 => idle
tiers=1000 files=1:1500/100,2:1200/900 credit=0 => relocate 1
# not below a checkpoint, wanted by a log: no victims
tiers=1000 files=1:1500/100c,2:1200/900c credit=500 => idle
tiers=1000 files=1:1500/900r,2:1200/100h credit=500 => idle
# a job failed recently
tiers=1000 files=1:1500/100,2:1200/900 credit=500 failed => idle
# a small store discovers after a quarter of its live bytes, but at least 32
mem=47 tiers=192 files=1:192/192,2:250/0h ratio=1 => idle
mem=49 tiers=192 files=1:192/192,2:250/0h ratio=1 => freeze
mem=31 tiers=64 files=1:64/64,2:75/0h ratio=1 => idle
mem=33 tiers=64 files=1:64/64,2:75/0h ratio=1 => freeze
# dead bytes are unknown: flush and merge first, both nearly free with large values
mem=1000 tiers=1000 files=1:1000/1000,2:1000/0h ratio=1 => freeze
tiers=1000,1000 files=1:1000/1000,2:1000/1000,3:10/0h ratio=1 => merge 0+2
tiers=1000,1000 files=1:1000/1000,2:1000/1000,3:10/0h ratio=0 => merge 0+2
tiers=300,1000 files=1:1000/1000,2:300/300,3:10/0h ratio=0 => idle
# small values, costly entries: on mere suspicion only at the hard limit
tiers=1000,1000 entry=30 files=1:1000/1000,2:1000/1000,3:10/0h ratio=0 => idle
tiers=1600,1000 entry=30 files=1:1000/1000,2:1600/1600,3:10/0h ratio=0 => idle
tiers=1000,1000,1000 entry=30 files=1:1000/1000,2:1000/1000,3:1000/1000 ratio=0 => merge 0+3
# deletes hide what they delete
tiers=10,1000 hides=900 files=1:1000/1000,2:10/10 ratio=0.5 => merge 0+2
# scans pay for sorting
tiers=1000 files=1:1000/1000 scanned=1999 => idle
tiers=1000 files=1:1000/1000 scanned=2000 => sort ..
# values that only memtables refer to are flushed first
mem=40 tiers=100 files=1:100/100s,2:40/0h ratio=0 scanned=279 => idle
mem=40 tiers=100 files=1:100/100s,2:40/0h ratio=0 scanned=280 => freeze
# also those that a sort would leave there, but not again at once
mem=40 tiers=100 files=1:100/100,2:40/0h ratio=0 scanned=280 age=2 => freeze
mem=40 tiers=100 files=1:100/100,2:40/0h ratio=0 scanned=280 age=1 => sort ..
mem=1 tiers=100 files=1:100/100,2:1/0h ratio=0 scanned=280 age=2 => sort ..
mem=31 files=1:31/0h ratio=0 scanned=9000 => idle
mem=3 tiers=100 files=1:100/100s,2:3/0c scanned=900 => idle
tiers=1000 files=1:1000/950s scanned=9000 => idle
tiers=1000 files=1:500/500s,2:500/500u scanned=9000 => idle
tiers=1000 files=1:1000/1000 hot=b-f=63/126 => sort b..f
tiers=1000 files=1:1000/1000 hot=b-f=63/125 => idle
# part of a value file is not a stream
tiers=1000 files=1:1000/1000 hot=b-f=62/900 => idle
tiers=9000 files=1:9000/9000 hot=b-f=64/128 => sort b..f
tiers=9000 files=1:9000/9000 hot=b-f=63/900 => idle
# a sort has a credit: the live bytes, and what is earned and not spent, for values and runs
tiers=1000 files=1:1000/1000 scanned=2000 sorts=2 => sort ..
tiers=1000 files=1:1000/1000 scanned=2000 sorts=1 => idle
tiers=1000 files=1:850/850s,2:150/150 scanned=9000 sorts=-849 => sort ..
tiers=1000 files=1:850/850s,2:150/150 scanned=9000 sorts=-850 => idle
tiers=1000 files=1:1000/1000 hot=b-f=63/126 sorts=-936 => sort b..f
tiers=1000 files=1:1000/1000 hot=b-f=63/126 sorts=-937 => idle
mem=40 tiers=100 files=1:100/100s,2:40/0h ratio=0 scanned=280 sorts=-101 => idle
tiers=1000 files=1:1000/950s sorting=m- sorts=-9000 => sort m..
# a sort in progress continues before values are relocated, except at the hard limit
tiers=1000 files=1:1000/950s sorting=m- => sort m..
tiers=1000 files=1:900/100,2:1200/900 credit=1000 sorting=m- => sort m..
tiers=1000 files=1:1500/100,2:1200/900 credit=1000 sorting=m- => relocate 1
tiers=1,1,1,1,1,1,1,1,9000 files=1:10000/9000 sorting=m- => merge 0+8
tiers=1000 files=1:1000/950s sorting=m- failed => idle
# an idle store flushes after the flush interval
mem=1 tiers=1000 files=1:1000/1000 age=299 => idle
mem=1 tiers=1000 files=1:1000/1000 age=300 => freeze
";

const SLACK: &str = "
# a store smaller than the slack: updates empty its files without moves
tiers=100 files=1:900/50,2:150/50 credit=100 => idle
tiers=100 files=1:900/50,2:200/50 credit=100 => relocate 1
tiers=100 files=1:900/50,2:200/50 credit=0 => idle
tiers=100 files=1:900/50,2:500/50 credit=0 => relocate 1
tiers=100 files=1:900/50h,2:50/50 free=2x50 => idle
tiers=100 files=1:900/50h,2:50/50 free=4x50 => drop 2 free
# in a large store the slack makes no difference
tiers=2000 files=1:1900/1000,2:2000/1000 credit=500 => idle
tiers=2000 files=1:1950/1000,2:2000/1000 credit=1000 => relocate 1
";

const NEZHA: &str = "
# everything is sorted at the threshold, at any cost
tiers=4000 files=1:4000/4000 => idle
tiers=4096 files=1:4096/4096 => sort ..
mem=96 tiers=4000 files=1:4000/4000 => freeze
tiers=4096 files=1:4096/4000s => idle
# unreadable values do not cause a sort
tiers=8192 files=1:4097/4097u,2:4095/4095 => idle
tiers=8192 files=1:4096/4096u,2:4096/4096 => sort ..
# and nothing is relocated
tiers=1000 files=1:1500/100,2:1200/900 credit=500 => idle
";

const WISCKEY: &str = "
# oldest first, and no sorting
tiers=1000 files=1:700/500,2:700/100,3:800/400 credit=1000 => relocate 1,2
tiers=1000 files=1:1000/1000 scanned=9000 hot=b-f=10/400 => idle
";

const COLLECT: &str = "
# forced: everything with a dead tenth, regardless of the budget
mem=1 tiers=10 files=1:10/10 => freeze
tiers=10,1000 files=1:1010/1010 => merge 0+2
tiers=1000 files=1:1000/910,2:100/90 => idle
tiers=1000 files=1:1000/910,2:100/90 expired=7/0 => expire 7
tiers=1000 files=1:1000/910,2:100/90 free=4x300 => drop 2 free
tiers=1000 files=1:500/400,2:600/590,3:100/10 => relocate 3,1
tiers=1000 files=1:500/400,2:600/590r,3:100/0 => reclaim 3
tiers=0 files=1:100/0r => truncate
";

const SHORT: &str = "
# a nearly full device: dead bytes are freed without a budget, long before the target
tiers=1000 files=1:900/500,2:600/500 credit=0 => relocate 1
tiers=1000 files=1:510/500,2:510/500 credit=0 => idle
tiers=1000 files=1:510/500,2:510/500 free=2x128 credit=0 => drop 2 free
# so are pairs that expired, a run at a time: the clocks agree on the time
tiers=1000 files=1:1000/1000 expired=7/0 credit=0 => expire 7
tiers=1000 files=1:1000/1000 expired=7/3600,9/3600 credit=0 => expire 7
tiers=1,1000 above files=1:1001/1001 credit=0 => merge 0+2
tiers=1000 files=1:1000/1000 expired=7/3600 credit=0 failed => idle
# and the memtable is not flushed for each small write
mem=1 tiers=1000 files=1:1000/1000,2:1/0h => idle
mem=200 tiers=1000 files=1:1000/1000,2:200/0h ratio=1 => freeze
# a job that failed on a full device is not retried at once
tiers=1000 files=1:900/500,2:600/500 credit=0 failed => idle
# the head is sealed when an eighth of it is dead; then a checkpoint passes it
tiers=1000 files=1:1000/1000,2:100/0h => roll
tiers=1000 files=1:1000/1000,2:100/90h => idle
tiers=1000 files=1:1000/1000,2:100/0h failed => roll
tiers=1000 files=1:1000/1000,2:100/0c froze=2 => freeze
tiers=1000 files=1:1000/1000,2:100/0c froze=1 => idle
# deletes beside puts in the memtable show what is dead in the head
mem=10 tiers=1000 files=1:1000/1000,2:10/0h memhides=1 => idle
mem=100 tiers=1000 files=1:1000/1000,2:100/0h memhides=50 => roll
mem=100 tiers=1000 files=1:1000/1000,2:100/0c memhides=50 froze=2 => freeze
# a few bytes that tombstones hide are worth a merge, but not any number
tiers=10,1000 hides=2 files=1:1010/1010 => merge 0+2
tiers=10,1000 hides=30 entry=500 files=1:1010/1010 => idle
# a victim and a merge fit into what is free
tiers=1000 files=1:900/500,2:600/500 credit=0 room=501 => idle
tiers=1000 files=1:900/500,2:600/500 credit=0 room=503 => relocate 1
tiers=1000 files=1:900/500,2:300/150 credit=0 room=200 => relocate 2
tiers=10,1000 hides=50 entry=500 files=1:1010/1010 room=500 => idle
tiers=10,1000 hides=50 entry=500 files=1:1010/1010 room=506 => merge 0+2
tiers=10,1000 hides=50 entry=500 files=1:1010/1010 room=500 trim=8 => trim
tiers=10,1000 hides=50 entry=500 files=1:1010/1010 room=7 trim=8 => idle
";

#[test]
fn decisions_of_adaptive() {
    check(ADAPTIVE, PolicyKind::Adaptive, pick);
}

#[test]
fn decisions_with_slack() {
    check(SLACK, PolicyKind::Adaptive, |state, options| {
        pick(state, &GcOptions { space_slack_bytes: 1000 * MIB, ..options.clone() })
    });
}

#[test]
fn what_is_dead_goes_on_a_nearly_full_device_whatever_the_slack() {
    check(SHORT, PolicyKind::Adaptive, |state, options| {
        pick_short_of_space(state, &GcOptions { space_slack_bytes: 1000 * MIB, ..options.clone() })
    });
}

#[test]
fn decisions_of_nezha() {
    check(NEZHA, PolicyKind::Nezha, pick);
}

#[test]
fn decisions_of_wisckey() {
    check(WISCKEY, PolicyKind::Wisckey, pick);
}

#[test]
fn decisions_while_the_device_is_nearly_full() {
    check(SHORT, PolicyKind::Adaptive, pick_short_of_space);
}

#[test]
fn decisions_of_a_forced_collection() {
    check(COLLECT, PolicyKind::Adaptive, pick_collect);
}

fn check(table: &str, policy: PolicyKind, decide: fn(&State, &GcOptions) -> Choice) {
    let options = GcOptions { policy, discover_bytes_min: 64 * MIB, ..GcOptions::default() };
    let mut wrong = Vec::new();
    for line in table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (state, expected) = line.split_once("=>").unwrap();
        let choice = show(&decide(&parse(state), &options));
        if choice != expected.trim() {
            wrong.push(format!("{line}\n    picked: {choice}"));
        }
    }
    assert!(wrong.is_empty(), "{policy:?}:\n{}", wrong.join("\n"));
}

fn parse(text: &str) -> State {
    let mut state = State {
        move_bytes_max: u64::MAX,
        truncate_untried: true,
        reappend_untried: true,
        overwrite_ratio: 0.5,
        sort_balance_bytes: 100 * MIB as i64,
        ..State::default()
    };
    let mut entry = 2.0;
    let mib = |text: &str| (text.parse::<f64>().unwrap() * MIB as f64) as u64;
    for word in text.split_whitespace() {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match name {
            "mem" => state.memtable_bytes = mib(value),
            "age" => state.memtable_age_s = value.parse().unwrap(),
            "idle" => state.idle_s = value.parse().unwrap(),
            "frozen" => state.frozen = value.parse().unwrap(),
            "entry" => entry = value.parse().unwrap(),
            "ratio" => state.overwrite_ratio = value.parse().unwrap(),
            "credit" => state.credit_bytes = mib(value) as i64,
            "sorts" => state.sort_balance_bytes = value.parse::<i64>().unwrap() * MIB as i64,
            "scanned" => state.scanned_bytes = mib(value),
            "free" => {
                let (count, bytes) = value.split_once('x').unwrap();
                state.free_segments = count.parse().unwrap();
                state.free_segment_bytes = mib(bytes);
            }
            "expired" => state.expired = value.split(',').map(expired).collect(),
            "above" => state.expired_above = true,
            "froze" => state.freeze_ago_s = value.parse().unwrap(),
            "memhides" => state.memtable_hides_bytes = mib(value),
            "trim" => state.trim_bytes = Some(mib(value)),
            "room" => state.room_bytes = Some(mib(value)),
            "failed" => state.backing_off = true,
            "truncated" => state.truncate_untried = false,
            "reappended" => state.reappend_untried = false,
            "tiers" => {
                let tier = |ref_bytes| TierState { ref_bytes, ..TierState::default() };
                state.tiers = value.split(',').map(|bytes| tier(mib(bytes))).collect();
            }
            "hides" => state.tiers[0].hides_bytes = mib(value),
            "files" => state.files = value.split(',').map(file).collect(),
            "sorting" => {
                let (start, end) = value.split_once('-').unwrap();
                state.sorting = Some(KeyRange::new(start.to_owned(), end.to_owned()));
            }
            "hot" => {
                let (keys, sizes) = value.split_once('=').unwrap();
                let (start, end) = keys.split_once('-').unwrap();
                let (bytes, scanned) = sizes.split_once('/').unwrap();
                let range = KeyRange::new(start.to_owned(), end.to_owned());
                let (bytes, scanned_bytes) = (mib(bytes), mib(scanned));
                state.hot = Some(HotRange { range, bytes, scanned_bytes });
            }
            _ => panic!("{word}"),
        }
    }
    for tier in &mut state.tiers {
        tier.bytes = (tier.ref_bytes as f64 * entry / 1000.0) as u64;
    }
    state
}

/// Parses `7/60`: a pair of run 7 expired 60 seconds ago.
fn expired(text: &str) -> ExpiredRun {
    let (run, since_s) = text.split_once('/').unwrap();
    ExpiredRun { run: RunId(run.parse().unwrap()), since_s: since_s.parse().unwrap() }
}

/// Parses `3:500/100r`: file 3 takes 500 MiB of which 100 are live, and a log holds it.
fn file(text: &str) -> FileState {
    let digits = text.trim_end_matches(char::is_alphabetic);
    let flag = &text[digits.len()..];
    let (id, sizes) = digits.split_once(':').unwrap();
    let (bytes, live) = sizes.split_once('/').unwrap();
    let live_bytes = live.parse::<u64>().unwrap() * MIB;
    let held_when_dead = match flag {
        "h" => Some(Held::Head),
        "c" => Some(Held::Checkpoint),
        "r" => Some(Held::Raft),
        "j" => Some(Held::Job),
        _ => None,
    };
    let held = match flag {
        "v" => Some(Held::View),
        _ => held_when_dead.or((live_bytes > 0).then_some(Held::Live)),
    };
    FileState {
        id: FileId(id.parse().unwrap()),
        bytes: bytes.parse::<u64>().unwrap() * MIB,
        live_bytes,
        unreadable_bytes: if flag == "u" { live_bytes } else { 0 },
        is_sorted: flag == "s",
        held,
        held_when_dead,
    }
}

fn show(choice: &Choice) -> String {
    let ids =
        |files: &[FileId]| files.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    match choice {
        Choice::Idle => "idle".into(),
        Choice::Freeze => "freeze".into(),
        Choice::Flush => "flush".into(),
        Choice::Merge { first, count } => format!("merge {first}+{count}"),
        Choice::DropExpired { runs } => {
            let ids: Vec<String> = runs.iter().map(ToString::to_string).collect();
            format!("expire {}", ids.join(","))
        }
        Choice::Relocate { victims } => format!("relocate {}", ids(victims)),
        Choice::Sort { range } => {
            let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
            format!("sort {}..{}", text(&range.start), text(&range.end))
        }
        Choice::Reclaim { files } => format!("reclaim {}", ids(files)),
        Choice::DropFree { count } => format!("drop {count} free"),
        Choice::Trim => "trim".into(),
        Choice::Roll => "roll".into(),
        Choice::Truncate => "truncate".into(),
        Choice::Reappend { below } => format!("reappend <{below}"),
    }
}
