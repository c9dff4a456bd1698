//! Walks over names and members.

use super::{NOW_MS, Script};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use stele_redis::transaction::{Intent, MetIntent, NewHeader, TransactionId};
use stele_redis::{
    Glob, Kind, KindFilter, MembersPage, MembersWanted, NamesPage, NamesWanted, choose_name, key,
    walk_members, walk_names,
};
use stele_storage::{
    Admitted, CachedGet, EngineView, Outcome, Pair, Pairs, Program, ProgramStep, ScanOptions,
};
use stele_types::{ColumnFamily, CommandBuilder, KeyRange, Result};

/// View that counts what is read of it.
struct Counting<'a, V> {
    view: &'a V,
    keys: AtomicUsize,
    value_bytes: AtomicUsize,
}

impl<'a, V: EngineView> Counting<'a, V> {
    fn new(view: &'a V) -> Self {
        Self { view, keys: AtomicUsize::new(0), value_bytes: AtomicUsize::new(0) }
    }

    fn counts(&self) -> (usize, usize) {
        (self.keys.load(Ordering::Relaxed), self.value_bytes.load(Ordering::Relaxed))
    }
}

impl<V: EngineView> EngineView for Counting<'_, V> {
    fn get(&self, key: &[u8]) -> Result<Option<Pair>> {
        let pair = self.view.get(key)?;
        let bytes = pair.as_ref().map_or(0, |pair| pair.value.len());
        self.value_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(pair)
    }

    fn get_cached(&self, key: &[u8]) -> Result<CachedGet> {
        self.view.get_cached(key)
    }

    fn get_meta(&self, key: &[u8]) -> Result<Option<stele_storage::PairMeta>> {
        self.view.get_meta(key)
    }

    fn scan(&self, options: &ScanOptions) -> Result<Vec<Pair>> {
        let found = self.view.scan(options)?;
        self.keys.fetch_add(found.len(), Ordering::Relaxed);
        Ok(found)
    }
}

fn wanted(examined_max: usize, now_ms: u64) -> NamesWanted {
    let (pattern, kind) = (None, KindFilter::Any);
    NamesWanted { examined_max, pattern, kind, is_counted_only: false, now_ms }
}

fn database(number: u8) -> KeyRange {
    ColumnFamily::Redis.engine_range(&key::database_range(number))
}

fn page(view: &impl EngineView, range: KeyRange, wanted: &NamesWanted) -> NamesPage {
    match walk_names(view, range, wanted, &mut |_| true).unwrap() {
        Admitted::Read(page) => page,
        Admitted::Refused => panic!("the memory was admitted"),
    }
}

/// Returns all names of database 0, page by page.
fn names(view: &impl EngineView, wanted: &NamesWanted) -> Vec<String> {
    let (mut range, mut names) = (database(0), Vec::new());
    loop {
        let page = page(view, range.clone(), wanted);
        assert!(page.examined <= wanted.examined_max as u64);
        names.extend(page.names.iter().map(|name| String::from_utf8_lossy(name).into_owned()));
        match page.next_key {
            Some(next_key) => {
                assert!(next_key > range.start);
                range.start = next_key;
            }
            None => return names,
        }
    }
}

#[test]
fn each_name_is_returned_once_whatever_the_pages() {
    let mut script = Script::new();
    let mut expected = BTreeSet::new();
    for number in 0..60 {
        let name = match number % 3 {
            0 => format!("n{number}"),
            1 => format!("{{t{}}}n{number}", number % 4),
            _ => format!("h{number}"),
        };
        match number % 3 {
            2 => script.reply(&format!("hset {name} a 1 b 2 c 3")),
            _ => script.reply(&format!("set {name} x")),
        };
        expected.insert(name);
    }
    script.region.execute(1, &["set", "other", "x"].map(Bytes::from), NOW_MS);
    for examined_max in [1, 2, 7, 59, 60, 61, 1000] {
        let found = names(&script.region.view(), &wanted(examined_max, NOW_MS));
        assert_eq!(found.len(), expected.len(), "{examined_max}");
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected);
    }
    let pattern = Some(Glob::new(Bytes::from_static(b"{t1}*")).unwrap());
    let found = names(&script.region.view(), &NamesWanted { pattern, ..wanted(5, NOW_MS) });
    assert_eq!(found.len(), 5);
    let counted = NamesWanted { is_counted_only: true, ..wanted(1000, NOW_MS) };
    let page = page(&script.region.view(), database(0), &counted);
    assert_eq!((page.found, page.live, page.names.len()), (60, 60, 0));
}

#[test]
fn the_members_of_a_name_are_passed_over() {
    let mut script = Script::new();
    for name in ["a", "{b}c", "d"] {
        for number in 0..500 {
            script.reply(&format!("sadd {name} member{number}"));
        }
    }
    script.check(&[("del d", ":1|"), ("set e x", "+OK|")]);
    let stored = script.region.view();
    let view = Counting::new(&stored);
    assert_eq!(names(&view, &wanted(1000, NOW_MS)), ["a", "e", "{b}c"]);
    let (keys, value_bytes) = view.counts();
    assert!(keys < 700 && value_bytes == 0, "{keys} keys and {value_bytes} bytes of values");
}

#[test]
fn a_name_has_expired_at_its_millisecond() {
    let mut script = Script::new();
    script.reply("set lasting x");
    script.reply("set brief x px 1000");
    script.reply("hset hash f v");
    script.reply("pexpire hash 1300");
    for (ms, expected) in [
        (0, &["brief", "hash", "lasting"][..]),
        (999, &["brief", "hash", "lasting"]),
        (1000, &["hash", "lasting"]),
        (1299, &["hash", "lasting"]),
        (1300, &["lasting"]),
        (9000, &["lasting"]),
    ] {
        let wanted = wanted(10, NOW_MS + ms);
        assert_eq!(names(&script.region.view(), &wanted), expected, "after {ms} ms");
        let page = page(&script.region.view(), database(0), &wanted);
        assert_eq!((page.live, page.examined), (expected.len() as u64, 3));
    }
}

#[test]
fn types_are_known_without_reading_long_values() {
    let mut script = Script::new();
    script.reply(&format!("set long {}", "x".repeat(1000)));
    script.reply("set short x");
    script.reply("hset hash f v");
    script.reply("sadd set m");
    let of = |kind| NamesWanted { kind, ..wanted(10, NOW_MS) };
    let stored = script.region.view();
    let view = Counting::new(&stored);
    let only = KindFilter::Only;
    assert_eq!(names(&view, &of(only(Kind::String))), ["long", "short"]);
    assert_eq!(names(&view, &of(only(Kind::Hash))), ["hash"]);
    assert_eq!(names(&view, &of(only(Kind::Set))), ["set"]);
    assert!(names(&view, &of(KindFilter::Nothing)).is_empty());
    assert!(view.counts().1 < 1000, "{:?}", view.counts());
}

#[test]
fn a_walk_without_memory_is_refused() {
    let mut script = Script::new();
    script.reply("mset a 1 b 2 c 3");
    let mut left = 2;
    let mut admit = |_| {
        left -= 1;
        left >= 0
    };
    let walked = walk_names(&script.region.view(), database(0), &wanted(10, NOW_MS), &mut admit);
    assert_eq!(walked.unwrap(), Admitted::Refused);
}

#[test]
fn each_name_may_be_chosen_and_an_empty_range_has_none() {
    let mut script = Script::new();
    let choose = |script: &Script, random| {
        let wanted = wanted(4, script.now_ms);
        let chosen =
            choose_name(&script.region.view(), &database(0), &wanted, random, &mut |_| true)
                .unwrap();
        match chosen {
            Admitted::Read(page) => page.names,
            Admitted::Refused => panic!("the memory was admitted"),
        }
    };
    assert!(choose(&script, 7).is_empty());
    script.reply("set expired x px 1");
    script.wait(2);
    let expected: BTreeSet<String> = (0..50).map(|number| format!("user:{number:02}")).collect();
    for name in &expected {
        script.reply(&format!("hset {name} f v g w"));
    }
    let mut random = stele_types::Prng::new(1);
    let mut chosen = BTreeSet::new();
    for _ in 0..2000 {
        let names = choose(&script, random.draw());
        assert_eq!(names.len(), 1);
        chosen.insert(String::from_utf8(names[0].to_vec()).unwrap());
    }
    assert_eq!(chosen, expected);
}

fn members_wanted(name: &str, kind: Kind, examined_max: usize) -> MembersWanted {
    MembersWanted {
        header_key: key::header_key(0, name.as_bytes()),
        kind,
        after: None,
        examined_max,
        pattern: None,
        has_values: true,
        now_ms: NOW_MS,
    }
}

type Found = (Vec<(Bytes, Bytes)>, Option<(u64, Bytes)>);

fn members(script: &Script, wanted: &MembersWanted) -> Found {
    match walk_members(&script.region.view(), wanted, &mut |_| true).unwrap() {
        Admitted::Read(MembersPage::Found { members, next }) => (members, next),
        other => panic!("{other:?}"),
    }
}

#[test]
fn small_collections_are_returned_whole_and_large_ones_page_by_page() {
    let mut script = Script::new();
    for number in 0..600 {
        if number < 512 {
            script.reply(&format!("hset small f{number} v{number}"));
        }
        script.reply(&format!("hset large f{number} v{number}"));
    }
    let (found, next) = members(&script, &members_wanted("small", Kind::Hash, 1));
    assert_eq!((found.len(), next), (512, None));
    assert!(found.contains(&(Bytes::from("f7"), Bytes::from("v7"))));
    let mut wanted = members_wanted("large", Kind::Hash, 100);
    let (mut fields, mut pages) = (BTreeSet::new(), 0);
    loop {
        let (found, next) = members(&script, &wanted);
        assert!(found.len() <= 100);
        fields.extend(found.into_iter().map(|(field, _)| field));
        pages += 1;
        match next {
            Some(after) => wanted.after = Some(after),
            None => break,
        }
    }
    assert_eq!((fields.len(), pages), (600, 7));
    let pattern = Some(Glob::new(Bytes::from_static(b"f59?")).unwrap());
    let wanted =
        MembersWanted { pattern, has_values: false, ..members_wanted("large", Kind::Hash, 1000) };
    let (found, _) = members(&script, &wanted);
    assert_eq!(found.len(), 10);
    assert!(found.iter().all(|(_, value)| value.is_empty()));
}

#[test]
fn a_scan_of_a_collection_ends_when_it_is_replaced() {
    let mut script = Script::new();
    for number in 0..600 {
        script.reply(&format!("sadd s m{number}"));
    }
    let mut wanted = members_wanted("s", Kind::Set, 10);
    let (_, next) = members(&script, &wanted);
    wanted.after = next;
    assert_eq!(members(&script, &wanted).0.len(), 10);
    script.reply("del s");
    assert_eq!(members(&script, &wanted), (Vec::new(), None));
    for number in 0..600 {
        script.reply(&format!("sadd s n{number}"));
    }
    assert_eq!(members(&script, &wanted), (Vec::new(), None), "it is another set");
    wanted.kind = Kind::Hash;
    let refused = walk_members(&script.region.view(), &wanted, &mut |_| true).unwrap();
    assert_eq!(refused, Admitted::Read(MembersPage::WrongType));
}

#[test]
fn long_values_end_a_page_early() {
    let mut script = Script::new();
    let value = Bytes::from(vec![b'x'; 200 << 10]);
    for number in 0..10 {
        let [command, name, field] = ["hset", "h", &format!("f{number}")]
            .map(|word| Bytes::copy_from_slice(word.as_bytes()));
        script.region.execute(0, &[command, name, field, value.clone()], NOW_MS);
    }
    let mut wanted = members_wanted("h", Kind::Hash, 1000);
    let (first, next) = members(&script, &wanted);
    assert!((5..10).contains(&first.len()) && next.is_some(), "{}", first.len());
    wanted.after = next;
    assert_eq!(members(&script, &wanted), (members(&script, &wanted).0, None));
}

/// Program that writes the value of a header's pair.
#[derive(Debug)]
struct PutHeader([Bytes; 1], Bytes);

impl Program for PutHeader {
    fn keys(&self) -> &[Bytes] {
        &self.0
    }

    fn bytes(&self) -> usize {
        self.1.len()
    }

    fn decide(&self, _: &Pairs, _: u64) -> ProgramStep {
        let mut command = CommandBuilder::new();
        command.put(&self.0[0], &self.1, 0).unwrap();
        ProgramStep::Done(Outcome { command, answer: Bytes::new() })
    }
}

#[test]
fn a_name_that_a_transaction_changes_has_its_old_type_and_its_members_wait() {
    let mut script = Script::new();
    script.check(&[("hset h f v", ":1|"), ("set k v", "+OK|")]);
    let header_key = key::header_key(0, b"h");
    let old = script.region.view().get(&header_key).unwrap().unwrap().value;
    let (transaction, record_key) = (TransactionId(7), key::record_key(&header_key, 7));
    let new = NewHeader::Absent;
    let intent = Intent { transaction, record_key: record_key.clone(), old: Some(old), new };
    let put = PutHeader([header_key.clone()], intent.encode());
    script.region.execute_program(&put, NOW_MS);
    let hashes = NamesWanted { kind: KindFilter::Only(Kind::Hash), ..wanted(10, NOW_MS) };
    assert_eq!(names(&script.region.view(), &hashes), ["h"]);
    let found =
        walk_members(&script.region.view(), &members_wanted("h", Kind::Hash, 10), &mut |_| true);
    let met = MetIntent { header_key, transaction, record_key };
    assert_eq!(found.unwrap(), Admitted::Read(MembersPage::Meets(met)));
}
