//! Laws of range sizes, split keys, cached reads and admission.

use super::subject::Subject;
use super::{Check, Factory, Law};
use bytes::Bytes;
use stele_storage::{CachedGet, EngineView, LogStore, RangeSize, StateMachine};
use stele_types::{CommandBuilder, EntryRecord, KeyRange, LogIndex, Record, RegionId, Term};

pub(super) fn laws<F: Factory>() -> Vec<Law<F>> {
    vec![
        ("size: a range of equal pairs within a fifth", range_size),
        ("size: overwritten, deleted and dropped pairs do not count", only_what_is_there),
        ("split key: halves a range, with pairs on both sides", split_key),
        ("split key: none for fewer than two pairs", no_split_key),
        ("cached reads: results are right", cached_reads),
        ("admit: a device with free space accepts puts", admit),
    ]
}

const KEYS: u64 = 4000;

fn key(number: u64) -> Bytes {
    format!("key-{number:06}").into()
}

/// Puts one value per key, many keys per entry, and applies them.
fn put_all<F: Factory>(
    subject: &Subject<'_, F>,
    index: &mut u64,
    keys: impl Iterator<Item = u64>,
    value_bytes: impl Fn(u64) -> usize,
) -> Check {
    let keys: Vec<u64> = keys.collect();
    for part in keys.chunks(200) {
        let mut builder = CommandBuilder::new();
        for number in part {
            builder.put(&key(*number), &vec![*number as u8; value_bytes(*number)], 0)?;
        }
        append(subject, index, builder)?;
    }
    Ok(())
}

fn append<F: Factory>(s: &Subject<'_, F>, index: &mut u64, builder: CommandBuilder) -> Check {
    *index += 1;
    let payload = builder.build().bytes().clone();
    let (region, term) = (RegionId(1), Term(1));
    let index = LogIndex(*index);
    s.append(vec![Record::Entry(EntryRecord { region, term, index, is_command: true, payload })])?;
    s.apply(1, index.0)
}

fn near(found: u64, wanted: u64) -> bool {
    found * 5 >= wanted * 4 && found * 5 <= wanted * 6
}

fn check_size(found: RangeSize, keys: u64, bytes: u64, what: &str) -> Check {
    ensure!(near(found.keys, keys), "{what}: {found:?}, expected {keys} keys");
    ensure!(near(found.bytes, bytes), "{what}: {found:?}, expected {bytes} bytes");
    Ok(())
}

/// Returns key numbers in an order other than that of the keys.
fn shuffled() -> impl Iterator<Item = u64> {
    (0..KEYS).map(|number| number * 1009 % KEYS)
}

fn range_size<F: Factory>(factory: &F) -> Check {
    for (value_bytes, seed) in [(20, 1), (100, 2)] {
        let subject = Subject::new(factory, seed)?;
        let mut index = 0;
        put_all(&subject, &mut index, shuffled(), |_| value_bytes)?;
        for round in 0..2 {
            for (from, to) in [(0, KEYS), (500, 1500), (3000, 3400)] {
                let keys = to - from;
                let found = subject.engine.range_size(&KeyRange::new(key(from), key(to)))?;
                let what = format!("keys {from} to {to} of {value_bytes} bytes in round {round}");
                check_size(found, keys, keys * (10 + value_bytes as u64), &what)?;
            }
            let empty = subject.engine.range_size(&KeyRange::new("x", "y"))?;
            ensure_eq!(empty, RangeSize::default(), "an empty range");
            subject.finish_maintenance()?;
        }
    }
    Ok(())
}

fn only_what_is_there<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 3)?;
    let mut index = 0;
    for _ in 0..3 {
        put_all(&subject, &mut index, shuffled(), |_| 100)?;
    }
    let check = |keys, what: &str| {
        let found = subject.engine.range_size(&KeyRange::all())?;
        check_size(found, keys, keys * 110, what)
    };
    check(KEYS, "after overwriting everything")?;
    subject.finish_maintenance()?;
    put_all(&subject, &mut index, shuffled().take(KEYS as usize / 2), |_| 100)?;
    check(KEYS, "after overwriting half")?;
    let mut builder = CommandBuilder::new();
    for number in (0..KEYS).filter(|number| number % 4 == 0) {
        builder.delete(&key(number))?;
    }
    append(&subject, &mut index, builder)?;
    check(KEYS * 3 / 4, "after deleting a quarter")?;
    subject.engine.drop_ranges(&[KeyRange::new(key(0), key(KEYS / 2))])?;
    check(KEYS * 3 / 8, "after dropping half")
}

fn split_key<F: Factory>(factory: &F) -> Check {
    // Equal pairs, and pairs with values that grow with the key.
    let sizes: [fn(u64) -> usize; 2] = [|_| 100, |number| 80 + number as usize / 20];
    for (seed, size) in (4..).zip(sizes) {
        let subject = Subject::new(factory, seed)?;
        let mut index = 0;
        put_all(&subject, &mut index, shuffled(), size)?;
        for round in 0..2 {
            for (from, to) in [(0, KEYS), (700, 1900)] {
                let range = KeyRange::new(key(from), key(to));
                let split = subject.engine.split_key(&range)?.unwrap_or_default();
                ensure!(split > range.start && range.contains(&split), "{split:?} is outside");
                let bytes = |range: &KeyRange| {
                    let inside = (from..to).filter(|number| range.contains(&key(*number)));
                    inside.map(|number| 10 + size(number) as u64).sum::<u64>()
                };
                let (whole, low) =
                    (bytes(&range), bytes(&KeyRange::new(range.start.clone(), split)));
                let share = low as f64 / whole as f64;
                ensure!((0.4..0.6).contains(&share), "{share} lie before the key, round {round}");
            }
            subject.finish_maintenance()?;
        }
    }
    Ok(())
}

fn no_split_key<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 6)?;
    let split = |range: KeyRange| subject.engine.split_key(&range);
    ensure_eq!(split(KeyRange::all())?, None, "the middle of nothing");
    let value = "v".repeat(3000);
    subject.commit(1, 1, &[("a", Some(&value)), ("b", Some("1")), ("x", Some("1"))])?;
    for round in 0..2 {
        ensure_eq!(split(KeyRange::new("a", "b"))?, None, "the middle of one pair");
        let found = split(KeyRange::new("a", "c"))?;
        ensure_eq!(found.as_deref(), Some(&b"b"[..]), "the middle of two pairs, round {round}");
        subject.finish_maintenance()?;
    }
    Ok(())
}

fn cached_reads<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 7)?;
    let mut index = 0;
    put_all(&subject, &mut index, 0..200, |number| number as usize * 7)?;
    let mut builder = CommandBuilder::new();
    builder.delete(&key(100))?.delete_range(&key(150), &key(160))?;
    append(&subject, &mut index, builder)?;
    for round in 0..2 {
        let view = subject.engine.view()?;
        let mut here = 0;
        for number in 0..210 {
            let wanted = view.get(&key(number))?;
            if let CachedGet::Ready(found) = view.get_cached(&key(number))? {
                ensure!(found == wanted, "key {number} differs in round {round}");
                here += 1;
            }
        }
        ensure!(here > 0, "no key that was just read is in memory");
        drop(view);
        subject.finish_maintenance()?;
    }
    Ok(())
}

fn admit<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 8)?;
    subject.engine.admit(1 << 20)?;
    let stats = subject.engine.stats();
    ensure!(
        stats.device_free_bytes <= stats.device_bytes,
        "more bytes are free than the device has"
    );
    Ok(())
}
