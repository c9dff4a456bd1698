use super::{Effects, Layer, Overlaid, Overlay, effect_bytes};
use crate::{Admitted, Cached, CachedGet, EngineView, Order, Pair, PairSink, Passed, ScanOptions};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use stele_types::{CommandBuilder, Error, KeyRange, LogIndex, Result};

enum Write {
    Put(&'static str, &'static str),
    Delete(&'static str),
    DeleteRange(&'static str, &'static str),
}
use Write::{Delete, DeleteRange, Put};

fn payload(writes: &[Write]) -> Bytes {
    let mut builder = CommandBuilder::new();
    for write in writes {
        match write {
            Put(key, value) => builder.put(key.as_bytes(), value.as_bytes(), 0),
            Delete(key) => builder.delete(key.as_bytes()),
            DeleteRange(start, end) => builder.delete_range(start.as_bytes(), end.as_bytes()),
        }
        .unwrap();
    }
    builder.build().bytes().clone()
}

/// Returns an overlay of entries from 1 on.
fn overlay(entries: &[&[Write]]) -> Overlay {
    let mut overlay = Overlay::default();
    for (index, writes) in (1..).zip(entries) {
        overlay.push(LogIndex(index), &payload(writes)).unwrap();
    }
    overlay
}

fn pair(key: &str, value: &str) -> Pair {
    Pair { key: key.to_owned().into(), value: value.to_owned().into(), expires_at_s: 0 }
}

/// View of pairs on a device: nothing is cached, and every scan is recorded.
#[derive(Default)]
struct Device {
    pairs: BTreeMap<Bytes, Bytes>,
    scans: Mutex<Vec<ScanOptions>>,
    noted: Mutex<usize>,
}

impl Device {
    fn new(keys: impl IntoIterator<Item = String>) -> Self {
        let pairs = keys.into_iter().map(|key| (key.into(), Bytes::from_static(b"old")));
        Self { pairs: pairs.collect(), ..Self::default() }
    }
}

impl EngineView for &Device {
    fn get(&self, key: &[u8]) -> Result<Option<Pair>> {
        let pair = self.pairs.get_key_value(key);
        Ok(pair.map(|(key, value)| Pair {
            key: key.clone(),
            value: value.clone(),
            expires_at_s: 0,
        }))
    }

    fn get_cached(&self, key: &[u8]) -> Result<CachedGet> {
        Ok(CachedGet::needs_io(key))
    }

    fn scan_cached(
        &self,
        options: &ScanOptions,
        admit: crate::Admit<'_>,
        sink: &mut dyn PairSink,
    ) -> Result<Cached<Admitted<Passed>>> {
        self.scan_into(options, admit, sink).map(Cached::Ready)
    }

    /// Ignores `bytes_max`, which no test here reaches.
    fn scan(&self, options: &ScanOptions) -> Result<Vec<Pair>> {
        self.scans.lock().push(options.clone());
        let inside = self.pairs.iter().filter(|(key, _)| options.range.contains(key));
        let mut pairs: Vec<Pair> = inside
            .map(|(key, value)| Pair { key: key.clone(), value: value.clone(), expires_at_s: 0 })
            .collect();
        if options.order == Order::Reverse {
            pairs.reverse();
        }
        pairs.truncate(options.limit);
        Ok(pairs)
    }

    fn note_scan(&self, scanned: &Passed) {
        *self.noted.lock() += scanned.pairs;
    }
}

fn numbered(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|number| format!("k{number:05}"))
}

fn keys(pairs: &[Pair]) -> Vec<&str> {
    pairs.iter().map(|pair| std::str::from_utf8(&pair.key).unwrap()).collect()
}

#[test]
fn the_last_operation_on_a_key_wins_in_one_command_and_across_commands() {
    let overlay = overlay(&[
        &[Put("a", "1"), Put("a", "2"), Put("b", "1"), Delete("b"), Delete("c"), Put("c", "1")],
        &[Put("d", "1"), Delete("e")],
        &[Delete("d"), Put("e", "2")],
    ]);
    assert_eq!(overlay.get(b"a"), Some(Some(pair("a", "2"))));
    assert_eq!(overlay.get(b"b"), Some(None));
    assert_eq!(overlay.get(b"c"), Some(Some(pair("c", "1"))));
    assert_eq!(overlay.get(b"d"), Some(None));
    assert_eq!(overlay.get(b"e"), Some(Some(pair("e", "2"))));
    assert_eq!(overlay.get(b"f"), None);
}

#[test]
fn a_deleted_key_has_no_pair_and_no_read_of_the_device() {
    let device = Device::new(numbered(1));
    let overlay = overlay(&[&[Put("k00000", "new")], &[Delete("k00000")]]);
    let view = Overlaid::new(&device, overlay.effects());
    assert_eq!(view.get(b"k00000").unwrap(), None);
    assert_eq!(view.get_cached(b"k00000").unwrap(), CachedGet::Ready(None));
    assert_eq!(view.get_cached(b"k00001").unwrap(), CachedGet::needs_io(b"k00001"));
    assert_eq!(view.scan(&ScanOptions::new(KeyRange::all(), 9)).unwrap(), []);
}

#[test]
fn a_put_after_a_range_delete_is_visible_and_one_before_it_is_not() {
    let overlay = overlay(&[
        &[Put("b", "1"), DeleteRange("a", "d"), Put("c", "1")],
        &[Put("a", "2"), DeleteRange("x", ""), DeleteRange("z", "y"), Put("y", "2")],
    ]);
    assert_eq!(overlay.get(b"a"), Some(Some(pair("a", "2"))));
    assert_eq!(overlay.get(b"b"), Some(None));
    assert_eq!(overlay.get(b"c"), Some(Some(pair("c", "1"))));
    assert_eq!(overlay.get(b"d"), None);
    assert_eq!(overlay.get(b"xx"), Some(None));
    assert_eq!(overlay.get(b"y"), Some(Some(pair("y", "2"))));
}

#[test]
fn range_deletes_that_overlap_or_touch_delete_every_key_of_each_and_no_other() {
    let overlay = overlay(&[
        &[DeleteRange("f", "k"), DeleteRange("b", "d")],
        &[DeleteRange("c", "g"), DeleteRange("k", "m"), DeleteRange("x", "")],
    ]);
    for key in [&b"b"[..], b"d", b"j", b"k", b"lz", b"x", b"zz"] {
        assert_eq!(overlay.get(key), Some(None), "{key:?}");
    }
    for key in [&b"a"[..], b"m", b"w"] {
        assert_eq!(overlay.get(key), None, "{key:?}");
    }
}

/// Overlay of layers that are not merged.
fn unmerged(entries: &[&[Write]]) -> Overlay {
    let mut overlay = Overlay::default();
    for (index, writes) in (1..).zip(entries) {
        let layer = Layer::of([(LogIndex(index), payload(writes))]).unwrap();
        overlay.add(layer).unwrap();
    }
    overlay
}

#[test]
fn an_applied_layer_takes_only_its_own_effects_with_it() {
    let mut overlay = unmerged(&[
        &[Put("a", "1"), Put("b", "1"), DeleteRange("m", "p")],
        &[Put("b", "2"), DeleteRange("o", "r")],
        &[Put("c", "3")],
    ]);
    let bytes = overlay.bytes();
    overlay.note_applied(LogIndex(1));
    assert_eq!(overlay.get(b"a"), None);
    assert_eq!(overlay.get(b"b"), Some(Some(pair("b", "2"))));
    assert_eq!((overlay.get(b"m"), overlay.get(b"o")), (None, Some(None)));
    assert!(overlay.bytes() < bytes);
    overlay.note_applied(LogIndex(1));
    assert_eq!(overlay.get(b"b"), Some(Some(pair("b", "2"))));
    overlay.note_applied(LogIndex(2));
    assert_eq!((overlay.get(b"b"), overlay.get(b"o")), (None, None));
    assert_eq!(overlay.get(b"c"), Some(Some(pair("c", "3"))));
    overlay.note_applied(LogIndex(9));
    assert!(overlay.is_empty() && overlay.effects().is_empty() && overlay.bytes() == 0);
}

#[test]
fn merged_layers_do_what_their_layers_did() {
    let entries: &[&[Write]] = &[
        &[Put("a", "1"), Put("b", "1"), Put("n", "1"), DeleteRange("x", "z")],
        &[Put("b", "2"), DeleteRange("m", "p"), Put("o", "2"), Put("y", "2")],
    ];
    let (apart, merged) = (unmerged(entries), overlay(entries));
    assert_eq!((apart.effects().layers.len(), merged.effects().layers.len()), (2, 1));
    for key in [&b"a"[..], b"b", b"m", b"n", b"o", b"p", b"x", b"y", b"z"] {
        assert_eq!(apart.get(key), merged.get(key), "{key:?}");
    }
    assert_eq!(merged.get(b"n"), Some(None));
    let device = Device::new(["a", "n", "w", "xx"].map(str::to_owned));
    for overlay in [apart, merged] {
        let view = Overlaid::new(&device, overlay.effects());
        for order in [Order::Forward, Order::Reverse] {
            let options = ScanOptions { order, ..ScanOptions::new(KeyRange::all(), 9) };
            let mut wanted = ["a", "b", "o", "w", "y"];
            if order == Order::Reverse {
                wanted.reverse();
            }
            assert_eq!(keys(&view.scan(&options).unwrap()), wanted);
        }
    }
}

#[test]
fn a_layer_that_is_gone_is_not_replaced_by_what_it_was_merged_to() {
    let mut overlay = unmerged(&[&[Put("a", "1")], &[Put("b", "2")]]);
    let due = overlay.due_merge().unwrap();
    overlay.note_applied(LogIndex(1));
    overlay.replace(due.merge());
    assert_eq!((overlay.get(b"a"), overlay.get(b"b")), (None, Some(Some(pair("b", "2")))));
}

#[test]
fn many_entries_are_in_few_layers_and_those_that_are_applied_leave_them() {
    let mut overlay = Overlay::default();
    let key = |index: u64| format!("{:08}", index.wrapping_mul(0x9e37_79b9) % 100_000_000);
    for index in 1..=20_000 {
        let mut builder = CommandBuilder::new();
        builder.delete(key(index).as_bytes()).unwrap();
        overlay.push(LogIndex(index), builder.build().bytes()).unwrap();
        overlay.note_applied(LogIndex(index.saturating_sub(1_000)));
        let effects = overlay.effects();
        assert!(effects.layers.len() <= 20, "{} layers", effects.layers.len());
        let keys: usize = effects.layers.iter().map(|layer| layer.size()).sum();
        assert!(keys <= 4_000, "{keys} keys of 1000 entries");
    }
}

#[test]
fn the_memory_of_an_entry_counts_its_operations() {
    let deletes: Vec<_> = numbered(1_000).collect();
    let mut builder = CommandBuilder::new();
    for key in &deletes {
        builder.delete(key.as_bytes()).unwrap();
    }
    let entry = builder.build().bytes().clone();
    let counted = effect_bytes(&entry);
    let mut overlay = Overlay::default();
    overlay.push(LogIndex(1), &entry).unwrap();
    let held = overlay.bytes() - entry.len() as u64;
    assert!((held..3 * held).contains(&counted), "{counted} counted, {held} held");
    let ranges = payload(&[DeleteRange("a", "b"), DeleteRange("c", "d")]);
    let mut overlay = Overlay::default();
    overlay.push(LogIndex(1), &ranges).unwrap();
    assert!(effect_bytes(&ranges) >= 2 * 64 && effect_bytes(b"") == 0);
}

#[test]
fn a_snapshot_stays_as_it_was_taken() {
    let mut overlay = overlay(&[&[Put("a", "1"), DeleteRange("m", "p")]]);
    let early = overlay.effects();
    overlay.push(LogIndex(2), &payload(&[Put("a", "2"), Put("n", "2"), Delete("b")])).unwrap();
    let late = overlay.effects();
    overlay.note_applied(LogIndex(1));
    overlay.clear();
    assert_eq!(early.get(b"a"), Some(Some(pair("a", "1"))));
    assert_eq!((early.get(b"b"), early.get(b"n")), (None, Some(None)));
    assert_eq!(late.get(b"a"), Some(Some(pair("a", "2"))));
    assert_eq!((late.get(b"b"), late.get(b"m")), (Some(None), Some(None)));
    assert_eq!(overlay.get(b"a"), None);
}

#[test]
fn an_unreadable_payload_and_an_old_entry_are_refused_and_change_nothing() {
    let mut overlay = overlay(&[&[Put("a", "1")]]);
    let whole = payload(&[Put("b", "2"), Put("c", "2")]);
    let (bytes, cut) = (overlay.bytes(), whole.slice(..whole.len() - 1));
    assert!(matches!(overlay.push(LogIndex(2), &cut), Err(Error::Invalid(_))));
    assert!(matches!(overlay.push(LogIndex(1), &whole), Err(Error::Invalid(_))));
    assert_eq!((overlay.get(b"b"), overlay.bytes()), (None, bytes));
    overlay.push(LogIndex(2), &whole).unwrap();
    assert_eq!(overlay.get(b"b"), Some(Some(pair("b", "2"))));
}

#[test]
fn an_entry_without_effects_holds_no_memory() {
    let mut overlay = Overlay::default();
    overlay.push(LogIndex(1), &Bytes::new()).unwrap();
    overlay.push(LogIndex(2), &payload(&[])).unwrap();
    overlay.push(LogIndex(3), &payload(&[DeleteRange("b", "a"), DeleteRange("c", "c")])).unwrap();
    assert!(overlay.is_empty() && overlay.effects().is_empty());
    assert_eq!(overlay.bytes(), 0);
}

#[test]
fn keys_and_values_share_the_memory_of_the_payload() {
    let entry = payload(&[Put("key", "value")]);
    let mut overlay = Overlay::default();
    overlay.push(LogIndex(1), &entry).unwrap();
    let found = overlay.effects().get(b"key").flatten().unwrap();
    let inside = entry.as_ptr_range();
    assert!(inside.contains(&found.key.as_ptr()) && inside.contains(&found.value.as_ptr()));
    assert!(overlay.bytes() >= entry.len() as u64);
}

#[test]
fn a_scan_reads_on_when_deletes_hide_pairs() {
    let device = Device::new(numbered(6));
    let overlay = overlay(&[&[Delete("k00000"), Delete("k00001"), Put("k00002", "new")]]);
    let view = Overlaid::new(&device, overlay.effects());
    let mut options = ScanOptions::new(KeyRange::all(), 3);
    assert_eq!(keys(&view.scan(&options).unwrap()), ["k00002", "k00003", "k00004"]);
    options.order = Order::Reverse;
    options.range.end = "k00004".into();
    assert_eq!(keys(&view.scan(&options).unwrap()), ["k00003", "k00002"]);
}

#[test]
fn a_scan_over_many_deletes_takes_few_reads_of_bounded_size() {
    let device = Device::new(numbered(10_000));
    let mut builder = CommandBuilder::new();
    for key in numbered(10_000).skip(10).take(9_980) {
        builder.delete(key.as_bytes()).unwrap();
    }
    let mut overlay = Overlay::default();
    overlay.push(LogIndex(1), builder.build().bytes()).unwrap();
    let mut options = ScanOptions::new(KeyRange::all(), 12);
    let view = Overlaid::new(&device, overlay.effects());
    for (order, wanted) in [(Order::Forward, "k09991"), (Order::Reverse, "k00008")] {
        options.order = order;
        assert_eq!(keys(&view.scan(&options).unwrap()).last(), Some(&wanted));
        let scans = std::mem::take(&mut *device.scans.lock());
        assert!(scans.iter().all(|scan| scan.limit <= 256 && scan.bytes_max <= options.bytes_max));
        assert!(scans.len() < 60, "{} reads", scans.len());
    }
}

#[test]
fn a_scan_reads_nothing_inside_a_range_delete() {
    let device = Device::new(numbered(10_000));
    let overlay = overlay(&[&[DeleteRange("k00002", "k09999"), Put("k05000", "new")]]);
    let view = Overlaid::new(&device, overlay.effects());
    for order in [Order::Forward, Order::Reverse] {
        let options = ScanOptions { order, ..ScanOptions::new(KeyRange::all(), 4) };
        let mut wanted = ["k00000", "k00001", "k05000", "k09999"];
        if order == Order::Reverse {
            wanted.reverse();
        }
        assert_eq!(keys(&view.scan(&options).unwrap()), wanted);
        let scans = std::mem::take(&mut *device.scans.lock());
        assert!(scans.len() <= 3, "{} reads", scans.len());
    }
    let inside = ScanOptions::new(KeyRange::new("k00002", "k09999"), 9);
    assert_eq!(keys(&view.scan(&inside).unwrap()), ["k05000"]);
    assert!(device.scans.lock().is_empty());
}

#[test]
fn a_scan_outside_of_the_effects_is_one_scan_of_the_view() {
    let device = Device::new(numbered(4));
    let overlay = overlay(&[&[Put("a", "1"), DeleteRange("x", "")]]);
    let view = Overlaid::new(&device, overlay.effects());
    let options = ScanOptions::new(KeyRange::new("k", "x"), 9);
    let pairs = view.scan(&options).unwrap();
    assert_eq!(pairs.len(), 4);
    assert_eq!(*device.scans.lock(), [options]);
    let passed = Passed::of(&pairs);
    view.note_scan(&passed);
    assert_eq!(*device.noted.lock(), 4);
    let in_memory = |start: &'static str, end: &'static str| {
        let (options, mut found) = (ScanOptions::new(KeyRange::new(start, end), 9), Vec::new());
        (view.scan_cached(&options, &mut |_, _| true, &mut found).unwrap(), found)
    };
    assert_eq!(in_memory("k", "x"), (Cached::Ready(Admitted::Read(passed)), pairs));
    let needs_io = (Cached::NeedsIo, Vec::new());
    assert_eq!(in_memory("a", "x"), needs_io, "the view does not have the put");
    device.scans.lock().pop();
    let bare = Overlaid::new(&device, Effects::default());
    assert_eq!(bare.scan(&ScanOptions::new(KeyRange::all(), 9)).unwrap().len(), 4);
    assert_eq!(device.scans.lock().len(), 2);
}

#[test]
fn the_last_change_of_each_key_names_its_entry_and_a_range_delete_has_none() {
    let overlay = overlay(&[
        &[Put("b", "1"), Put("d", "1")],
        &[Delete("c"), Put("b", "2")],
        &[Put("e", "3")],
        &[DeleteRange("x", "z")],
    ]);
    let effects = overlay.effects();
    let changes = |start: &'static str, end: &'static str| -> Option<Vec<(u64, Option<Pair>)>> {
        let range = KeyRange::new(start, end);
        let changes = effects.changes(&range)?;
        Some(changes.map(|change| (change.index.0, change.pair)).collect())
    };
    let expected = [(2, Some(pair("b", "2"))), (2, None), (1, Some(pair("d", "1")))];
    assert_eq!(changes("a", "e").unwrap(), expected);
    assert_eq!(changes("c", "d").unwrap(), [(2, None)]);
    assert_eq!(changes("f", "x").unwrap(), []);
    assert_eq!(changes("f", "e").unwrap(), []);
    assert_eq!(changes("e", ""), None);
}

#[test]
fn a_scan_over_effects_passes_on_what_fits_and_ends_there() {
    let device = Device::new(numbered(20));
    let effects = overlay(&[&[Put("k00003", "new"), Delete("k00005"), Put("k00007x", "new")]]);
    let view = Overlaid::new(&device, effects.effects());
    for order in [Order::Forward, Order::Reverse] {
        let all = view.scan(&ScanOptions { order, ..ScanOptions::new(KeyRange::all(), 99) });
        let all = all.unwrap();
        assert_eq!(all.len(), 20);
        for (limit, bytes_max) in (0..24).map(|limit| (limit, 999)).chain((0..200).map(|b| (99, b)))
        {
            let options =
                ScanOptions { order, bytes_max, ..ScanOptions::new(KeyRange::all(), limit) };
            let mut found: Vec<Pair> = Vec::new();
            let passed = view.scan_into(&options, &mut |_, _| true, &mut found).unwrap();
            let bytes = |pairs: &[Pair]| -> usize {
                pairs.iter().map(|pair| pair.key.len() + pair.value.len()).sum()
            };
            let fits = |count: &usize| bytes(&all[..*count]) <= bytes_max || *count == 1;
            let wanted = (0..=limit.min(20)).take_while(|count| *count == 0 || fits(count)).count();
            assert_eq!(found, all[..wanted - 1], "{limit} pairs of {bytes_max} bytes");
            assert_eq!(passed.read().unwrap(), Passed::of(&found));
        }
    }
}
