use super::*;
use crate::cursor::Cursor;
use std::collections::BTreeMap;
use stele_types::{FileId, Locator, ValueRef};

pub(crate) struct TestRng(u64);

impl TestRng {
    pub(crate) fn seeded(default: u64, test: &str) -> Self {
        let seed = std::env::var("STELE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(default);
        println!("replay: STELE_SEED={seed} cargo test -p stele-index {test}");
        Self(seed | 1)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % limit
    }
}

impl Memtable {
    fn put(&self, seq: Seq, key: &[u8], found: &Found) {
        self.write(&[key_write(seq, key, found)]);
    }
}

fn key_write<'a>(seq: Seq, key: &'a [u8], found: &'a Found) -> KeyWrite<'a> {
    match found {
        Found::Value { value, expires_at_s } => {
            KeyWrite { seq, key, value: Some(value.into()), expires_at_s: *expires_at_s }
        }
        Found::Deleted => KeyWrite { seq, key, value: None, expires_at_s: 0 },
    }
}

fn inline(text: &str) -> Found {
    let value = ValueRef::Inline(Bytes::copy_from_slice(text.as_bytes()));
    Found::Value { value, expires_at_s: 0 }
}

fn located(n: u32, expires_at_s: u64) -> Found {
    let locator = Locator { file: FileId(n), offset: n ^ 7, length: n / 3, crc: !n };
    Found::Value { value: ValueRef::At(locator), expires_at_s }
}

#[test]
fn values_of_every_kind_come_back_as_put() {
    let table = Memtable::new();
    let long = vec![7u8; stele_types::size::KEY_BYTES_MAX];
    let kinds = [
        (&b""[..], inline("")),
        (b"a", inline("exactly8")),
        (b"a\0", inline("a longer value of 26 bytes")),
        (b"a\0\0\0\0\0\0\0\0", located(9, 0)),
        (b"b", located(u32::MAX, u64::MAX)),
        (b"c", Found::Deleted),
        (&long, inline("under the longest key")),
    ];
    for (seq, (key, found)) in kinds.iter().enumerate() {
        table.put(Seq(seq as u64 + 1), key, found);
    }
    for (key, found) in &kinds {
        assert_eq!(table.get(key, Seq(99)).as_ref(), Some(found));
    }
    assert_eq!((table.get(b"aa", Seq(99)), table.entries()), (None, 7));
}

#[test]
fn keys_that_differ_only_in_length_or_far_behind_stay_apart() {
    let sets: [&[&[u8]]; 4] = [
        &[b"a", b"a\0", b"a\0\0"],
        &[b"a\0", b"a", b""],
        &[b"twelve bytes", b"twelve bytes\0", b"twelve bytes and more"],
        &[b"after twelve bytes 1", b"after twelve bytes 2", b"after twelve bytes 3"],
    ];
    for keys in sets {
        let table = Memtable::new();
        for turn in 0..2 {
            for (i, key) in keys.iter().enumerate() {
                let seq = 1 + turn * keys.len() as u32 + i as u32;
                table.put(Seq(seq.into()), key, &located(seq, 0));
            }
        }
        assert_eq!(table.entries(), keys.len() as u64, "{keys:?}");
        for (i, key) in keys.iter().enumerate() {
            let seq = 1 + (keys.len() + i) as u32;
            assert_eq!(table.get(key, Seq(100)), Some(located(seq, 0)), "{key:?} of {keys:?}");
        }
    }
}

#[test]
fn a_reader_sees_the_newest_version_up_to_its_moment() {
    let table = Memtable::new();
    table.put(Seq(3), b"k", &inline("three"));
    table.put(Seq(5), b"k", &Found::Deleted);
    table.put(Seq(5), b"k", &inline("five, later"));
    assert_eq!(table.get(b"k", Seq(2)), None);
    assert_eq!(table.get(b"k", Seq(4)), Some(inline("three")));
    assert_eq!(table.get(b"k", Seq(5)), Some(inline("five, later")));
}

#[test]
fn a_range_delete_hides_only_what_came_before_it() {
    let table = Arc::new(Memtable::new());
    table.put(Seq(1), b"b", &inline("old"));
    table.put(Seq(2), b"c", &inline("old"));
    table.delete_range(Seq(3), b"b", b"d");
    table.put(Seq(3), b"c", &inline("same number, after the delete"));
    table.put(Seq(4), b"b", &inline("new"));
    assert_eq!(table.get(b"b", Seq(2)), Some(inline("old")));
    assert_eq!(table.get(b"b", Seq(3)), Some(Found::Deleted));
    assert_eq!(table.get(b"b", Seq(4)), Some(inline("new")));
    assert_eq!(table.get(b"c", Seq(3)), Some(inline("same number, after the delete")));
    assert_eq!(table.get(b"bb", Seq(3)), Some(Found::Deleted), "older sources are hidden");
    assert_eq!(table.get(b"bb", Seq(2)), None);
    assert!(table.ranges(Seq(4)).covers(b"b") && !table.ranges(Seq(4)).covers(b"d"));
    assert!(table.ranges(Seq(2)).is_empty() && table.ranges(Seq(3)).covers(b"b"));
    table.delete_range(Seq(6), b"c", b"");
    assert_eq!(table.get(b"c", Seq(6)), Some(Found::Deleted));
    assert_eq!(table.ranges(Seq(6)).iter().count(), 1);
    let mut cursor = table.cursor(Seq(4));
    cursor.seek(b"").unwrap();
    assert_eq!((cursor.key(), cursor.found().unwrap()), (&b"b"[..], inline("new")));
}

/// Model of a memtable: all versions of each key and all range deletes, newest last.
#[derive(Default)]
struct Model {
    versions: BTreeMap<Vec<u8>, Vec<(u64, usize, Found)>>,
    deletes: Vec<(u64, usize, KeyRange)>,
    made: usize,
}

impl Model {
    fn get(&self, key: &[u8], at: u64) -> Option<Found> {
        let version = self.versions.get(key).and_then(|v| v.iter().rfind(|v| v.0 <= at));
        let covering = |d: &&(u64, usize, KeyRange)| d.0 <= at && d.2.contains(key);
        let hidden = self.deletes.iter().filter(covering).map(|d| d.1).max();
        match (version, hidden) {
            (Some((_, made, found)), hidden) if hidden.is_none_or(|h| h < *made) => {
                Some(found.clone())
            }
            (_, Some(_)) => Some(Found::Deleted),
            _ => None,
        }
    }

    fn keys(&self, at: u64) -> Vec<Vec<u8>> {
        let seen = |v: &Vec<(u64, usize, Found)>| v.iter().any(|v| v.0 <= at);
        self.versions.iter().filter(|(_, v)| seen(v)).map(|(k, _)| k.clone()).collect()
    }
}

/// Returns keys of several shapes: short, with long shared prefixes, with zero bytes at the end.
pub(crate) fn some_key(rng: &mut TestRng) -> Vec<u8> {
    let n = rng.below(1500);
    match rng.below(4) {
        0 => format!("{n:x}").into_bytes(),
        1 => format!("a prefix that is far longer than a word/{n:016}").into_bytes(),
        2 => [&b"zeros"[..], &vec![0; n as usize % 20]].concat(),
        _ => n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec(),
    }
}

type Owned = (Seq, Vec<u8>, Found);

fn write_together(table: &Memtable, writes: &mut Vec<Owned>) {
    let each = writes.iter().map(|(seq, key, found)| key_write(*seq, key, found));
    table.write(&each.collect::<Vec<_>>());
    writes.clear();
}

/// Each key twice, so that the second write meets a leaf that the first one changed: by an insert or
/// by a split.
#[test]
fn writes_that_change_a_leaf_together_keep_their_order() {
    for filled in 0..=super::node::SLOTS as u64 {
        let table = Arc::new(Memtable::new());
        (0..filled).for_each(|i| table.put(Seq(i), &[2 * i as u8 + 1], &inline("before")));
        let keys: Vec<u8> =
            (0..70u32).map(|i| (i * 37 % 70) as u8).flat_map(|key| [key, key]).collect();
        let mut writes = Vec::new();
        for (i, key) in (100..).zip(&keys) {
            let found = if i % 6 == 3 { Found::Deleted } else { inline(&i.to_string()) };
            writes.push((Seq(i), vec![*key], found));
        }
        let expected = writes.clone();
        write_together(&table, &mut writes);
        assert_eq!(table.entries(), 70);
        assert_eq!(
            table.tombstones(),
            expected.iter().filter(|w| w.2 == Found::Deleted).count() as u64
        );
        for (seq, key, found) in &expected {
            assert_eq!(table.get(key, *seq).as_ref(), Some(found), "{key:?}, {filled} before");
            let before =
                (key[0] % 2 == 1 && u64::from(key[0]) < 2 * filled).then(|| inline("before"));
            assert_eq!(table.get(key, Seq(99)), before);
        }
        let mut cursor = table.cursor(Seq(u64::MAX));
        cursor.seek(b"").unwrap();
        for key in 0..70 {
            assert_eq!(cursor.key(), [key]);
            cursor.next().unwrap();
        }
        assert!(!cursor.valid());
    }
}

#[test]
fn random_histories_agree_with_a_model_at_every_moment() {
    let mut rng = TestRng::seeded(11, "random_histories_agree_with_a_model_at_every_moment");
    let (table, mut model, mut seq) = (Arc::new(Memtable::new()), Model::default(), 1u64);
    let mut together = Vec::new();
    for i in 0..12_000u32 {
        seq += rng.below(2);
        model.made += 1;
        if rng.below(200) == 0 {
            write_together(&table, &mut together);
            let (start, end) = (some_key(&mut rng), some_key(&mut rng));
            table.delete_range(Seq(seq), &start, &end);
            model.deletes.push((seq, model.made, KeyRange::new(start, end)));
            continue;
        }
        let found = match rng.below(5) {
            0 => Found::Deleted,
            1 => located(i, u64::from(i % 2)),
            _ => inline(&format!("value {i}")),
        };
        let again = together.get(rng.below(80) as usize).map(|(_, key, _): &Owned| key.clone());
        let key = again.unwrap_or_else(|| some_key(&mut rng));
        together.push((Seq(seq), key.clone(), found.clone()));
        model.versions.entry(key).or_default().push((seq, model.made, found));
        if rng.below(50) == 0 {
            write_together(&table, &mut together);
        }
    }
    write_together(&table, &mut together);
    for at in [0, 1, seq / 3, seq - 1, seq] {
        for _ in 0..800 {
            let key = some_key(&mut rng);
            assert_eq!(table.get(&key, Seq(at)), model.get(&key, at), "{key:?} at {at}");
        }
        check_cursor(&table, &model, at, &mut rng);
    }
}

fn check_cursor(table: &Arc<Memtable>, model: &Model, at: u64, rng: &mut TestRng) {
    let keys = model.keys(at);
    let mut cursor = table.cursor(Seq(at));
    assert!(!cursor.valid());
    cursor.seek(b"").unwrap();
    for key in &keys {
        assert_eq!(cursor.key(), key);
        assert_eq!(Some(cursor.found().unwrap()), model.get(key, at));
        assert_eq!(cursor.is_deleted(), cursor.found().unwrap() == Found::Deleted);
        cursor.next().unwrap();
    }
    assert!(!cursor.valid());
    cursor.seek_before(None).unwrap();
    for key in keys.iter().rev() {
        assert_eq!(cursor.key(), key);
        cursor.prev().unwrap();
    }
    assert!(!cursor.valid());
    for _ in 0..500 {
        let bound = some_key(rng);
        let mut place = keys.partition_point(|k| k < &bound);
        if rng.below(2) == 0 {
            cursor.seek(&bound).unwrap();
        } else {
            cursor.seek_before(Some(&bound)).unwrap();
            place = place.wrapping_sub(1);
        }
        for _ in 0..rng.below(4) {
            assert_eq!(cursor.valid().then(|| cursor.key()), keys.get(place).map(|k| &k[..]));
            if !cursor.valid() {
                break;
            }
            if rng.below(2) == 0 {
                cursor.next().unwrap();
                place += 1;
            } else {
                cursor.prev().unwrap();
                place = place.wrapping_sub(1);
            }
        }
    }
}

#[test]
fn keys_that_come_in_order_fill_their_leaves() {
    let bytes = |key: fn(u64) -> u64| {
        let table = Memtable::new();
        (0..20_000u64).for_each(|i| {
            table.put(Seq(i), format!("{:020}", key(i)).as_bytes(), &Found::Deleted);
        });
        table.bytes()
    };
    let (ordered, scattered) = (bytes(|i| i), bytes(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    assert!(ordered < 20_000 * 60 && scattered > ordered, "{ordered} {scattered}");
}

/// Readers run concurrently with the writer: they must find everything published before they read,
/// in order, and with the value at their sequence number.
#[test]
fn readers_beside_a_writer_miss_nothing_that_was_published() {
    let key =
        |i: u64| format!("{:020}", i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 50_000).into_bytes();
    let count = if cfg!(miri) { 300 } else { 40_000u64 };
    let (table, published) = (Arc::new(Memtable::new()), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut first = 1;
            while first <= count {
                // Alone, and more than one hold of the writer lock covers.
                let last = (first + first % 3 * 40).min(count);
                let write = |i| (Seq(i), key(i), inline(&i.to_string()));
                write_together(&table, &mut (first..=last).map(write).collect());
                published.store(last, Ordering::Release);
                first = last + 1;
            }
        });
        for reader in 0..2u64 {
            let (table, published) = (&table, &published);
            scope.spawn(move || {
                let mut rng = TestRng(reader + 77);
                loop {
                    let at = published.load(Ordering::Acquire);
                    if at > 0 {
                        let i = 1 + rng.below(at);
                        // The newest write of that key up to `at` is i or a later one.
                        let found = table.get(&key(i), Seq(at)).expect("published");
                        let Found::Value { value: ValueRef::Inline(text), .. } = found else {
                            panic!()
                        };
                        let j: u64 = std::str::from_utf8(&text).unwrap().parse().unwrap();
                        assert!(j >= i && j <= at && key(j) == key(i));
                        scan_some(table, at, &key(i), rng.below(2) == 0);
                    }
                    if at == count {
                        break;
                    }
                }
            });
        }
    });
}

/// The writer changes a leaf while a reader reads it: once by an insert, once by a split.
#[test]
fn a_leaf_that_changes_while_it_is_read_is_read_again() {
    for filled in [5u64, super::node::SLOTS as u64] {
        let table = Memtable::new();
        // Descending, so that the splitting leaf moves its upper half.
        (0..filled).for_each(|i| table.put(Seq(i), &[200 - i as u8], &Found::Deleted));
        let readings = std::cell::Cell::new(0);
        let count = table.tree.read_leaf(LeafTarget::Key(&[200]), |_, meta| {
            readings.set(readings.get() + 1);
            if readings.get() == 1 {
                table.put(Seq(filled), &[1], &Found::Deleted);
            }
            meta.count as u64
        });
        let split = filled == super::node::SLOTS as u64;
        assert_eq!((readings.get(), count), (2, if split { filled / 2 } else { filled + 1 }));
    }
}

fn scan_some(table: &Arc<Memtable>, at: u64, from: &[u8], forward: bool) {
    let mut cursor = table.cursor(Seq(at));
    cursor.seek(from).unwrap();
    assert_eq!(cursor.key(), from);
    for _ in 0..70 {
        let before = cursor.key().to_vec();
        if forward {
            cursor.next().unwrap()
        } else {
            cursor.prev().unwrap()
        }
        if !cursor.valid() {
            break;
        }
        assert_eq!(forward, cursor.key() > &before[..]);
    }
}

#[test]
fn bytes_grow_with_what_is_kept() {
    let table = Memtable::new();
    let empty = table.bytes();
    table.put(Seq(1), &[1; 16], &located(1, 0));
    assert_eq!(table.bytes() - empty, 48);
    table.delete_range(Seq(2), &[2; 100], &[3; 100]);
    assert!(table.bytes() - empty > 248 && !table.is_empty());
}
