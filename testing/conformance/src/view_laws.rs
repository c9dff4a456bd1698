//! Laws of views and scans: a view is one point in time; a scan follows its options.

use super::subject::{Subject, contents, everything, texts};
use super::{Check, Factory, Law};
use stele_storage::{
    Admitted, Cached, CachedGet, EngineView, Order, Pair, PendingGet, ScanOptions, StateMachine,
};
use stele_types::{CommandBuilder, EntryRecord, KeyRange, LogIndex, Record, RegionId, Term};

pub(super) fn laws<F: Factory>() -> Vec<Law<F>> {
    vec![
        ("view: one point in time during writes and background work", one_point_in_time),
        ("view: slices of a range are from one point in time", slices),
        ("view: several views at once, each at its own time", several),
        ("scan: range, limit and direction", range_and_limit),
        ("scan: limited by bytes, but at least one pair", bytes_limit),
        ("scan: keys only", keys_only),
        ("scan: empty and inverted ranges", empty_ranges),
        ("get many: each key in its place, as each alone", many_gets),
        ("get many: nothing without its memory", unadmitted_gets),
        ("delete range: covers older writes, not newer ones", delete_range),
    ]
}

fn one_point_in_time<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 1)?;
    let long = "old".repeat(200);
    subject.commit(1, 1, &[("a", Some(&long)), ("b", Some("1")), ("c", Some(&long))])?;
    let view = subject.engine.view()?;
    let before = contents(&view)?;
    subject.commit(1, 2, &[("a", Some("new")), ("b", None), ("bb", Some("new"))])?;
    ensure_eq!(contents(&view)?, before, "pairs after a write");
    delete_range_entry(&subject, 3, "a", "")?;
    subject.finish_maintenance()?;
    ensure_eq!(contents(&view)?, before, "pairs after a range delete and background work");
    subject.engine.drop_ranges(&[KeyRange::all()])?;
    subject.finish_maintenance()?;
    ensure_eq!(contents(&view)?, before, "pairs after a dropped range");
    let value = view.get(b"c")?.map(|pair| pair.value);
    ensure_eq!(value.as_deref(), Some(long.as_bytes()), "value of c");
    ensure_eq!(subject.contents()?, Vec::<String>::new(), "pairs of a new view");
    Ok(())
}

/// Reads a range in slices, as for a snapshot, while its pairs change.
fn slices<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 4)?;
    let value = "v".repeat(400 << 10);
    for index in 1..=8 {
        subject.commit(1, index, &[(&format!("k{index}"), Some(&value))])?;
    }
    let view = subject.engine.view()?;
    let mut options =
        ScanOptions { range: KeyRange::new("k2", "k8"), bytes_max: 1 << 20, ..everything() };
    let mut slices = Vec::new();
    loop {
        let slice = view.scan(&options)?;
        let Some(last) = slice.last() else { break };
        options.range.start = stele_types::key_after(&last.key);
        if slices.is_empty() {
            subject.commit(1, 9, &[("k7", None), ("k5", Some("changed"))])?;
        }
        slices.push(slice);
    }
    ensure!(slices.len() > 1, "2.4 MB were read in one slice: memory is not bounded");
    let pairs = slices.concat();
    let keys: Vec<&[u8]> = pairs.iter().map(|pair| &pair.key[..]).collect();
    let wanted: Vec<&[u8]> = vec![b"k2", b"k3", b"k4", b"k5", b"k6", b"k7"];
    ensure_eq!(keys, wanted, "keys of all slices");
    let whole = pairs.iter().all(|pair| pair.value == value.as_bytes());
    ensure!(whole, "a value changed between two slices");
    Ok(())
}

fn delete_range_entry<F: Factory>(
    subject: &Subject<'_, F>,
    index: u64,
    start: &str,
    end: &str,
) -> Check {
    let mut builder = CommandBuilder::new();
    builder.delete_range(start.as_bytes(), end.as_bytes())?;
    let payload = builder.build().bytes().clone();
    let (region, term) = (RegionId(1), Term(1));
    let entry = EntryRecord { region, term, index: LogIndex(index), is_command: true, payload };
    subject.append(vec![Record::Entry(entry)])?;
    subject.apply(1, index)
}

fn several<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 2)?;
    let mut views = Vec::new();
    for index in 1..=30 {
        let value = format!("{index}-{}", "x".repeat(100));
        subject.commit(1, index, &[("k", Some(&value))])?;
        views.push((subject.engine.view()?, value));
        if index % 7 == 0 {
            subject.finish_maintenance()?;
        }
    }
    for (view, value) in &views {
        ensure_eq!(contents(view)?, vec![format!("k={value}")], "pairs of an earlier view");
    }
    Ok(())
}

fn filled<F: Factory>(factory: &F) -> Check<Subject<'_, F>> {
    let subject = Subject::new(factory, 3)?;
    for index in 1..=10 {
        let key = format!("k{}", (index * 7) % 10);
        subject.commit(1, index, &[(&key, Some("0123456789"))])?;
        if index == 6 {
            subject.finish_maintenance()?;
        }
    }
    Ok(subject)
}

fn keys(subject: &Subject<'_, impl Factory>, options: &ScanOptions) -> Check<String> {
    let pairs = subject.engine.view()?.scan(options)?;
    let keys: Vec<String> = texts(&pairs).iter().map(|text| text[1..2].to_owned()).collect();
    Ok(keys.concat())
}

fn range_and_limit<F: Factory>(factory: &F) -> Check {
    let subject = filled(factory)?;
    let mut options = ScanOptions::new(KeyRange::new("k2", "k7"), 100);
    ensure_eq!(keys(&subject, &options)?, "23456", "keys from k2 to k7");
    options.order = Order::Reverse;
    ensure_eq!(keys(&subject, &options)?, "65432", "the same in reverse");
    options.limit = 2;
    ensure_eq!(keys(&subject, &options)?, "65", "two in reverse");
    options.order = Order::Forward;
    ensure_eq!(keys(&subject, &options)?, "23", "two forward");
    options.limit = 0;
    ensure_eq!(keys(&subject, &options)?, "", "none");
    let tail = ScanOptions { order: Order::Reverse, ..ScanOptions::new(KeyRange::all(), 3) };
    ensure_eq!(keys(&subject, &tail)?, "987", "the last three");
    let prefix = ScanOptions::new(KeyRange::prefix(b"k3"), 9);
    ensure_eq!(keys(&subject, &prefix)?, "3", "a prefix");
    Ok(())
}

fn bytes_limit<F: Factory>(factory: &F) -> Check {
    let subject = filled(factory)?;
    // Each pair has 2 bytes of key and 10 of value.
    for (bytes_max, wanted) in [(0, "0"), (12, "0"), (23, "0"), (24, "01"), (35, "01"), (36, "012")]
    {
        let options = ScanOptions { bytes_max, ..everything() };
        ensure_eq!(keys(&subject, &options)?, wanted, "keys within {bytes_max} bytes");
    }
    let options = ScanOptions { bytes_max: 6, keys_only: true, ..everything() };
    ensure_eq!(keys(&subject, &options)?, "012", "keys within 6 bytes, without values");
    Ok(())
}

fn keys_only<F: Factory>(factory: &F) -> Check {
    let subject = filled(factory)?;
    let options = ScanOptions { keys_only: true, ..everything() };
    let pairs = subject.engine.view()?.scan(&options)?;
    ensure_eq!(pairs.len(), 10, "keys");
    ensure!(pairs.iter().all(|pair| pair.value.is_empty()), "a keys-only scan has values");
    Ok(())
}

/// Returns gets of keys in no order: some twice, some without a pair, some located before.
fn gets(view: &impl EngineView) -> Check<Vec<PendingGet>> {
    let keys = ["k7", "k1", "none", "k7", "long", "k0", "", "long", "k9", "k3"];
    let mut gets = Vec::new();
    for (number, key) in keys.into_iter().enumerate() {
        gets.push(match view.get_cached(key.as_bytes())? {
            CachedGet::NeedsIo(get) if number % 2 == 0 => get,
            _ => PendingGet::of_key(key.into()),
        });
    }
    Ok(gets)
}

fn many_gets<F: Factory>(factory: &F) -> Check {
    let subject = filled(factory)?;
    let long = "long".repeat(1000);
    subject.commit(1, 11, &[("long", Some(&long)), ("k3", None)])?;
    for _ in 0..2 {
        let view = subject.engine.view()?;
        let gets = gets(&view)?;
        let keys: Vec<_> = gets.iter().map(|get| get.key.clone()).collect();
        let mut admitted = 0;
        let got = view.get_many(gets, &mut |pairs, _| {
            admitted += pairs;
            true
        });
        ensure_eq!(got.len(), keys.len(), "results");
        let mut found = 0;
        for (key, got) in keys.iter().zip(got) {
            let pair = view.get(key)?;
            let meta = pair.as_ref().map(Pair::meta);
            ensure_eq!(view.get_meta(key)?, meta, "what is known of {key:?}");
            if let Cached::Ready(known) = view.get_meta_cached(key)? {
                ensure_eq!(known, meta, "what is known of {key:?} in memory");
            }
            found += usize::from(pair.is_some());
            ensure_eq!(got?, Admitted::Read(pair), "pair of {key:?}");
        }
        ensure!(admitted <= found, "memory of {admitted} pairs was asked for; there are {found}");
        subject.finish_maintenance()?;
    }
    Ok(())
}

fn unadmitted_gets<F: Factory>(factory: &F) -> Check {
    let subject = filled(factory)?;
    let view = subject.engine.view()?;
    let gets = gets(&view)?;
    let keys: Vec<_> = gets.iter().map(|get| get.key.clone()).collect();
    for (key, got) in keys.iter().zip(view.get_many(gets, &mut |_, _| false)) {
        let is_read = matches!(got?, Admitted::Read(Some(_)));
        let was_read = matches!(view.get_cached(key)?, CachedGet::Ready(Some(_)));
        ensure!(!is_read || was_read, "the pair of {key:?} was read without its memory");
    }
    Ok(())
}

fn empty_ranges<F: Factory>(factory: &F) -> Check {
    let subject = filled(factory)?;
    for range in [KeyRange::new("k5", "k5"), KeyRange::new("k7", "k2"), KeyRange::new("z", "")] {
        for order in [Order::Forward, Order::Reverse] {
            let options = ScanOptions { order, ..ScanOptions::new(range.clone(), 9) };
            ensure_eq!(keys(&subject, &options)?, "", "keys of {range:?}");
        }
    }
    Ok(())
}

fn delete_range<F: Factory>(factory: &F) -> Check {
    for settle_before in [false, true] {
        let subject = filled(factory)?;
        if settle_before {
            subject.finish_maintenance()?;
        }
        delete_range_entry(&subject, 11, "k3", "k8")?;
        subject.commit(1, 12, &[("k5", Some("again"))])?;
        ensure_eq!(keys(&subject, &everything())?, "012589", "keys");
        let reverse = ScanOptions { order: Order::Reverse, ..everything() };
        ensure_eq!(keys(&subject, &reverse)?, "985210", "keys in reverse");
        subject.finish_maintenance()?;
        ensure_eq!(keys(&subject, &everything())?, "012589", "keys after background work");
        ensure_eq!(subject.engine.view()?.get(b"k4")?, None, "a deleted key");
        let subject = subject.crash(1)?;
        subject.apply(1, 12)?;
        ensure_eq!(keys(&subject, &everything())?, "012589", "keys after a crash");
        delete_range_entry(&subject, 13, "k1", "")?;
        ensure_eq!(keys(&subject, &everything())?, "0", "keys after an unbounded delete");
        let inverted = delete_range_entry(&subject, 14, "k9", "k0");
        ensure!(inverted.is_ok(), "an inverted range delete fails: {inverted:?}");
        ensure_eq!(keys(&subject, &everything())?, "0", "keys after an inverted delete");
    }
    Ok(())
}
