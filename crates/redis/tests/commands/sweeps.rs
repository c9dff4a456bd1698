//! Sweeps: what they delete, and that no reply depends on them.

use crate::{NOW_MS, Script, words};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use stele_redis::key::{KeyPart, decode, header_key, member_key};
use stele_redis::{
    FoundSweep, Header, Kind, Protocol, Request, SweepProgram, SweepRound, SweptCounts,
    SweptRegion, sweep,
};
use stele_redis_region::{MemoryRegion, MemoryView};
use stele_storage::{EngineView, Outcome, Pair, Pairs, Program, ProgramStep, ScanOptions};
use stele_types::{
    ColumnFamily, CommandBuilder, KeyRange, Op, Prng, Region, RegionEpoch, RegionId, RegionKind,
    RegionPhase,
};

fn whole() -> KeyRange {
    ColumnFamily::Redis.engine_range(&KeyRange::all())
}

/// Returns the programs of one pass over a view, in walks of about `pairs_max` pairs.
fn pass(view: &MemoryView, now_ms: u64, pairs_max: usize) -> (Vec<SweepProgram>, usize) {
    let (mut programs, mut pairs, mut range) = (Vec::new(), 0, whole());
    loop {
        let found = sweep(view, range.clone(), now_ms / 1000, pairs_max).unwrap();
        pairs += found.pairs;
        programs.extend(found.program);
        match found.next {
            Some(next) => range.start = next,
            None => return (programs, pairs),
        }
    }
}

impl Script {
    fn sweep(&mut self) -> SweptCounts {
        let (mut all, mut range) = (SweptCounts::default(), whole());
        loop {
            let found = sweep(&self.region.view(), range.clone(), self.now_ms / 1000, 1_000);
            let found = found.unwrap();
            if let Some(program) = found.program {
                let answer = self.region.execute_program(&program, self.now_ms);
                let counts = SweptCounts::decode(&answer).unwrap();
                (all.keys, all.stamps) = (all.keys + counts.keys, all.stamps + counts.stamps);
                all.records += counts.records;
            }
            match found.next {
                Some(next) => range.start = next,
                None => return all,
            }
        }
    }
}

/// Returns what is deleted where there are no records.
fn counts(keys: u64, stamps: u64) -> SweptCounts {
    SweptCounts { keys, stamps, records: 0 }
}

fn pairs_of(region: &MemoryRegion) -> Vec<Pair> {
    region.view().scan(&ScanOptions::new(whole(), usize::MAX)).unwrap()
}

fn command_of(program: &SweepProgram, pairs: &Pairs) -> CommandBuilder {
    match program.decide(pairs, 0) {
        ProgramStep::Done(Outcome { command, .. }) => command,
        ProgramStep::Read(keys) => {
            let pairs = keys.into_iter().map(|key| (key, None)).collect();
            command_of(program, &pairs)
        }
    }
}

#[test]
fn expired_names_and_members_of_dead_stamps_are_deleted_and_nothing_else() {
    let mut script = Script::new();
    script.check(&[
        ("set kept v ex 100", "+OK|"),
        ("set gone v px 1000", "+OK|"),
        ("hset hash f 1 g 2", ":2|"),
        ("hset replaced f 1 g 2", ":2|"),
        ("set replaced v", "+OK|"),
        ("hset again f 1", ":1|"),
        ("del again", ":1|"),
        ("sadd again m n", ":2|"),
        ("hset deleted f 1", ":1|"),
        ("del deleted", ":1|"),
        ("hset expired f 1 g 2", ":2|"),
        ("pexpire expired 1000", ":1|"),
        ("hset {t}a f 1", ":1|"),
        ("hset {t}b f 1", ":1|"),
        ("del {t}a", ":1|"),
    ]);
    // The stamps of three names are dead now, and that of a name in a tag.
    assert_eq!(script.sweep(), counts(0, 4));
    assert_eq!(script.sweep(), SweptCounts::default());
    script.wait(2_000);
    assert_eq!(script.sweep(), counts(2, 1));
    assert_eq!(script.sweep(), SweptCounts::default());
    script.check(&[
        ("get kept", "$1|v|"),
        ("hgetall hash", "*4|$1|f|$1|1|$1|g|$1|2|"),
        ("get replaced", "$1|v|"),
        ("smembers again", "*2|$1|m|$1|n|"),
        ("hget {t}b f", "$1|1|"),
    ]);
    // Five headers, and the members of three of them.
    assert_eq!(pairs_of(&script.region).len(), 5 + 2 + 2 + 1);
}

#[test]
fn a_name_that_was_set_again_after_the_walk_is_not_swept() {
    let mut script = Script::new();
    script.check(&[("set s 1 px 500", "+OK|"), ("hset h f 1", ":1|"), ("pexpire h 500", ":1|")]);
    script.check(&[("set t 1 px 500", "+OK|")]);
    script.wait(1_000);
    let (programs, _) = pass(&script.region.view(), script.now_ms, 100);
    script.check(&[("set s 2", "+OK|"), ("hset h g 2", ":1|"), ("set t 2 ex 100", "+OK|")]);
    for program in &programs {
        let answer = script.region.execute_program(program, script.now_ms);
        // The members of the earlier hash are dead still.
        assert_eq!(SweptCounts::decode(&answer), Some(counts(0, 1)));
    }
    script.check(&[("get s", "$1|2|"), ("hgetall h", "*2|$1|g|$1|2|"), ("get t", "$1|2|")]);
}

#[test]
fn the_sweeper_keeps_the_members_of_every_stamp_of_a_header() {
    let hset = words("hset h f 1 g 2");
    let mut region = MemoryRegion::new(9, Protocol::Resp2);
    region.execute(0, &hset, NOW_MS);
    region.execute(0, &words("del h"), NOW_MS);
    let (programs, _) = pass(&region.view(), NOW_MS, 100);
    assert_eq!(programs.len(), 1);
    // Equal numbers are drawn: the header has the stamp that is dead in the view of the walk.
    let mut region = MemoryRegion::new(9, Protocol::Resp2);
    region.execute(0, &hset, NOW_MS);
    let answer = region.execute_program(&programs[0], NOW_MS);
    assert_eq!(SweptCounts::decode(&answer), Some(SweptCounts::default()));
    assert_eq!(pairs_of(&region).len(), 3);
}

/// Puts pairs.
#[derive(Debug)]
struct Put(Vec<Bytes>, &'static [u8]);

impl Program for Put {
    fn keys(&self) -> &[Bytes] {
        &self.0
    }

    fn bytes(&self) -> usize {
        0
    }

    fn decide(&self, _: &Pairs, _: u64) -> ProgramStep {
        let mut outcome = Outcome::default();
        for key in &self.0 {
            outcome.command.put(key, self.1, 0).unwrap();
        }
        ProgramStep::Done(outcome)
    }
}

#[test]
fn what_this_build_does_not_know_is_not_swept() {
    let mut script = Script::new();
    let header = header_key(0, b"later");
    let members = [1, 2, 3].map(|stamp| member_key(&header, stamp, b"f"));
    let mut keys = vec![header];
    keys.extend(members);
    // Names of other layouts, and the header of a later build with its members.
    keys.extend([&b"\x06g/1"[..], b"\x06\xd0\x05x", b"\x06\xd0\0n\0\x01\x07"].map(Bytes::from));
    script.region.execute_program(&Put(keys.clone(), &[77, 0, 1]), NOW_MS);
    script.check(&[("hset next f 1", ":1|"), ("del next", ":1|")]);
    assert_eq!(script.sweep(), counts(0, 1));
    assert_eq!(pairs_of(&script.region).len(), keys.len());
    // A header that a later build has written since the walk.
    script.check(&[("hset next f 1", ":1|"), ("del next", ":1|")]);
    let (programs, _) = pass(&script.region.view(), NOW_MS, 100);
    let keys = vec![header_key(0, b"next")];
    script.region.execute_program(&Put(keys, &[77]), NOW_MS);
    script.region.execute_program(&programs[0], NOW_MS);
    assert_eq!(script.region.stored(0, b"next").1, 1);
}

fn hset(region: &mut MemoryRegion, name: &str, fields: usize) {
    for from in (0..fields).step_by(1_000) {
        let fields = from..fields.min(from + 1_000);
        let line: Vec<String> = fields.map(|field| format!("f{field:06} v")).collect();
        region.execute(0, &words(&format!("hset {name} {}", line.join(" "))), NOW_MS);
    }
}

#[test]
fn members_of_live_stamps_are_not_walked_and_many_dead_ones_are_one_delete() {
    let mut script = Script::new();
    hset(&mut script.region, "live", 20_000);
    hset(&mut script.region, "many", 20_000);
    hset(&mut script.region, "few", 9);
    let (programs, pairs) = pass(&script.region.view(), NOW_MS, 1_000);
    assert!(programs.is_empty() && pairs < 1_000, "{pairs} pairs");
    script.check(&[("del many", ":1|"), ("del few", ":1|")]);
    let (programs, pairs) = pass(&script.region.view(), NOW_MS, 1_000);
    assert!(pairs < 1_000, "{pairs} pairs");
    let command = command_of(&programs[0], &Pairs::new());
    let is_range = |op: &Op<'_>| matches!(op, Op::DeleteRange { .. });
    let ranges = command.ops().filter(is_range).count();
    assert_eq!((command.ops().count(), ranges), (9 + 1, 1));
    assert_eq!(script.sweep(), counts(0, 2));
    assert_eq!(pairs_of(&script.region).len(), 20_001);
}

#[test]
fn a_program_has_a_limit_and_a_pass_has_as_many_as_it_needs() {
    let mut script = Script::new();
    for at in 0..3_000 {
        let line = match at % 3 {
            0 => format!("set k{at} v px 10"),
            1 => format!("hset k{at} f 1 g 2"),
            _ => format!("set k{at} v"),
        };
        script.region.execute(0, &words(&line), NOW_MS);
        if at % 3 == 1 {
            script.region.execute(0, &words(&format!("pexpire k{at} 10")), NOW_MS);
        }
    }
    script.wait(1_000);
    let (programs, _) = pass(&script.region.view(), script.now_ms, usize::MAX);
    assert!((2..10).contains(&programs.len()), "{}", programs.len());
    assert!(programs.iter().all(|program| program.keys().len() <= 1_024));
    assert!(programs.iter().all(|program| program.keys().is_sorted() && program.bytes() < 300_000));
    let swept = script.sweep();
    // A stamp of which two programs delete members counts twice.
    assert!(swept.keys == 2_000 && (1_000..1_010).contains(&swept.stamps), "{swept:?}");
    assert_eq!(pairs_of(&script.region).len(), 1_000);
}

/// Draws a request on few names.
fn draw(prng: &mut Prng) -> String {
    let name = |prng: &mut Prng| ["a", "b", "{t}c", "{t}d"][prng.below(4) as usize];
    let (one, other) = (name(prng), name(prng));
    let (field, ms) = (prng.below(90), 1 + prng.below(3_000));
    match prng.below(16) {
        0 => format!("set {one} v"),
        1 => format!("set {one} v px {ms}"),
        2 | 3 => format!("hset {one} f{field} v g{field} w"),
        4 => format!("hdel {one} f{field} g{field}"),
        5 => format!("sadd {one} m{field} n{field}"),
        6 => format!("srem {one} m{field} n{field}"),
        7 => format!("del {one}"),
        8 => format!("pexpire {one} {ms}"),
        9 => format!("persist {one}"),
        10 => format!("rename {one} {other}"),
        11 => format!("copy {one} {other} replace"),
        12 => format!("hgetall {one}"),
        13 => format!("smembers {one}"),
        14 => {
            let fields: Vec<String> = (0..90).map(|field| format!("f{field} v")).collect();
            format!("hset {one} {}", fields.join(" "))
        }
        _ => format!("type {one}"),
    }
}

fn requests(prng: &mut Prng) -> Vec<Request> {
    let count = 1 + prng.below(4);
    (0..count).map(|_| Request::parse(0, words(&draw(prng))).unwrap()).collect()
}

/// Returns for each header key the stamps of the header, or those of members that are stored.
fn stamps_of(region: &MemoryRegion) -> [BTreeMap<Bytes, BTreeSet<u64>>; 2] {
    let (mut of_headers, mut of_members) = (BTreeMap::new(), BTreeMap::new());
    for pair in pairs_of(region) {
        let named = decode(&pair.key).unwrap();
        let header = header_key(named.database, &named.name);
        match named.part {
            KeyPart::Header => {
                let stamps = Header::decode(&pair.value).unwrap().0.stamps().collect();
                of_headers.insert(header, stamps);
            }
            KeyPart::Member { stamp, .. } => {
                of_members.entry(header).or_insert_with(BTreeSet::new).insert(stamp);
            }
            KeyPart::Record { .. } => {}
        }
    }
    [of_headers, of_members]
}

#[test]
fn a_stamp_that_no_header_has_never_returns() {
    for seed in 0..200 {
        let (mut prng, mut now_ms) = (Prng::new(seed), NOW_MS);
        let mut region = MemoryRegion::new(seed, Protocol::Resp2);
        let mut gone: BTreeSet<(Bytes, u64)> = BTreeSet::new();
        let mut seen: BTreeSet<(Bytes, u64)> = BTreeSet::new();
        for _ in 0..60 {
            now_ms += prng.below(700);
            region.execute_all(&requests(&mut prng), prng.coin(), now_ms);
            let [of_headers, of_members] = stamps_of(&region);
            let flat = |stamps: &BTreeMap<Bytes, BTreeSet<u64>>| -> BTreeSet<(Bytes, u64)> {
                let each = |(key, stamps): (&Bytes, &BTreeSet<u64>)| {
                    stamps.iter().map(|it| (key.clone(), *it)).collect::<Vec<_>>()
                };
                stamps.iter().flat_map(each).collect()
            };
            let live = flat(&of_headers);
            seen.extend(live.iter().cloned().chain(flat(&of_members)));
            assert!(gone.is_disjoint(&live), "seed {seed}: a stamp has returned");
            gone.extend(seen.difference(&live).cloned());
        }
    }
}

#[test]
fn no_reply_depends_on_sweeps_and_all_that_is_left_has_a_live_header() {
    let mut swept = SweptCounts::default();
    for seed in 0..200 {
        let (mut prng, mut now_ms) = (Prng::new(seed), NOW_MS);
        let regions = || MemoryRegion::new(seed, Protocol::Resp2);
        let (mut plain, mut region) = (regions(), regions());
        let mut waiting: Vec<SweepProgram> = Vec::new();
        for step in 0..80 {
            now_ms += prng.below(500);
            let (requests, is_exec) = (requests(&mut prng), prng.coin());
            let expected = plain.execute_all(&requests, is_exec, now_ms);
            let reply = region.execute_all(&requests, is_exec, now_ms);
            assert_eq!(reply, expected, "seed {seed}, step {step}");
            if prng.below(4) == 0 {
                waiting.extend(pass(&region.view(), now_ms, 50).0);
            }
            // Programs of old views are decided late, and in any order.
            while !waiting.is_empty() && prng.below(3) == 0 {
                let at = prng.below(waiting.len() as u64) as usize;
                let answer = region.execute_program(&waiting.swap_remove(at), now_ms);
                let counts = SweptCounts::decode(&answer).unwrap();
                (swept.keys, swept.stamps) =
                    (swept.keys + counts.keys, swept.stamps + counts.stamps);
            }
        }
        for program in pass(&region.view(), now_ms, 50).0 {
            region.execute_program(&program, now_ms);
        }
        let [of_headers, of_members] = stamps_of(&region);
        for (key, stamps) in of_members {
            assert_eq!(of_headers.get(&key), Some(&stamps), "seed {seed}");
        }
        for pair in pairs_of(&region).iter().filter(|pair| !pair.value.is_empty()) {
            let named = decode(&pair.key).unwrap();
            if named.part == KeyPart::Header {
                let (header, members) = region.stored(named.database, &named.name);
                let is_string = header.unwrap().kind == Kind::String;
                assert!(is_string || header.unwrap().count == members as u64, "seed {seed}");
                assert!(pair.expires_at_s == 0 || pair.expires_at_s > now_ms / 1000);
            }
        }
    }
    assert!(swept.keys > 50 && swept.stamps > 50, "{swept:?}");
}

fn region(id: u64, start: &Bytes, end: &Bytes) -> Region {
    Region {
        id: RegionId(id),
        kind: RegionKind::Data,
        epoch: RegionEpoch { conf_version: 1, version: 10 + id },
        range: KeyRange::new(start.clone(), end.clone()),
        peers: Vec::new(),
        phase: RegionPhase::Normal,
    }
}

#[test]
fn only_whole_names_of_regions_that_the_store_leads_are_swept() {
    let mut script = Script::new();
    for name in ["a", "b", "c", "d", "e", "f"] {
        script.region.execute(0, &words(&format!("hset {name} f 1")), NOW_MS);
        script.region.execute(0, &words(&format!("del {name}")), NOW_MS);
    }
    let view = script.region.view();
    let user_key = |name: &[u8]| header_key(0, name).slice(1..);
    let inside = |name: &[u8]| member_key(&header_key(0, name), 1, b"").slice(1..);
    // Region 3 has a part of `b` and of `e`; region 2 is led elsewhere.
    let regions = [
        region(4, &inside(b"e"), &Bytes::new()),
        region(3, &inside(b"b"), &inside(b"e")),
        region(5, &user_key(b"a"), &inside(b"a")),
    ];
    let led = || regions.iter().filter_map(SweptRegion::of).collect::<Vec<_>>();
    assert_eq!(led().len(), 2, "region 5 has no name with all its pairs");
    let (mut round, mut found) = (SweepRound::default(), Vec::new());
    while !round.is_over() {
        let step = round.step(&view, led, NOW_MS / 1000, 3).unwrap();
        found.extend(step.map(|FoundSweep { region, version, program }| {
            let names = program.keys().iter().map(|key| decode(key).unwrap().name);
            (region.0, version, names.collect::<Vec<_>>().concat())
        }));
    }
    let names = |region| -> Vec<u8> {
        let of_region = found.iter().filter(|it| it.0 == region);
        of_region.flat_map(|it| it.2.clone()).collect()
    };
    assert_eq!((names(3), names(4)), (b"cd".to_vec(), b"f".to_vec()), "{found:?}");
    assert!(found.iter().all(|(region, version, _)| *version == 10 + region));
}
