//! Both ways to iterate over a view return the same pairs.

use crate::common::{Op, Store, contents};
use stele_index::{Direction, ValueSlice};
use stele_simulated_disk::SimVfs;
use stele_types::KeyRange;

/// Returns long keys, equal prefixes, versions in several sources, deletes and range deletes.
fn store() -> Store {
    let mut store = Store::open(&SimVfs::default()).unwrap();
    let key = |i: u32| match i % 4 {
        0 => format!("{i:04}").into_bytes(),
        1 => format!("the same first bytes {i:04}").into_bytes(),
        2 => format!("the same first bytes {i:04}{}", "x".repeat(i as usize * 3)).into_bytes(),
        _ => (i << 20).to_be_bytes().to_vec(),
    };
    for round in 0..5 {
        for i in (0..240).filter(|i| (i + round) % 3 != 0) {
            let value = round * 1000 + i;
            store.apply(&Op::Put { key: key(i), value, expires_at_s: u64::from(i % 2) * 99 });
        }
        for i in (round..240).step_by(17) {
            store.apply(&Op::Delete { key: key(i) });
        }
        if round == 2 {
            let (start, end) = (b"0040".to_vec(), b"0100".to_vec());
            store.apply(&Op::DeleteRange { start, end });
        }
        store.publish();
        if round < 4 {
            store.freeze(0);
        }
        if round < 3 {
            store.flush_one().unwrap();
        }
    }
    store
}

#[test]
fn lent_pairs_equal_owned_ones() {
    let store = store();
    assert!(store.ages().len() >= 3 && store.index.frozen_count() == 1);
    let view = store.index.view();
    let ranges = [
        KeyRange::all(),
        KeyRange::new("0041", "0099"),
        KeyRange::new("the same first bytes 0100", "the same first bytes 0101"),
        KeyRange::new("the same", ""),
        KeyRange::new("z", "a"),
    ];
    for range in ranges {
        // `contents` compares both ways pair by pair.
        let forward = contents(&view, range.clone(), Direction::Forward).unwrap();
        let mut reverse = contents(&view, range.clone(), Direction::Reverse).unwrap();
        reverse.reverse();
        assert_eq!(forward, reverse, "{range:?}");
        assert!(forward.is_sorted_by(|a, b| a.0 < b.0));
        assert!(forward.iter().all(|(key, _)| range.contains(key)));
    }
    assert!(contents(&view, KeyRange::all(), Direction::Forward).unwrap().len() > 150);
}

#[test]
fn owned_and_lent_steps_mix_and_nothing_is_lent_outside_the_range() {
    let store = store();
    let view = store.index.view();
    for direction in [Direction::Forward, Direction::Reverse] {
        let expected = contents(&view, KeyRange::all(), direction).unwrap();
        let mut iter = view.iter(KeyRange::all(), direction).unwrap();
        assert!(iter.key().is_empty() && iter.value() == ValueSlice::Inline(&[]));
        for (i, (key, (value, expires_at_s))) in expected.iter().enumerate() {
            if i % 3 == 0 {
                let (owned, found, end) = iter.next().unwrap().unwrap();
                assert_eq!(
                    (&owned[..], crate::common::number(&found), end),
                    (&key[..], *value, *expires_at_s)
                );
            } else {
                assert!(iter.advance().unwrap());
            }
            assert_eq!((iter.key(), iter.expires_at_s()), (&key[..], *expires_at_s));
            assert_eq!(crate::common::number(&iter.value().to_owned()), *value);
        }
        for _ in 0..2 {
            assert!(!iter.advance().unwrap() && iter.next().unwrap().is_none());
            assert!(iter.key().is_empty() && iter.value().is_empty() && iter.expires_at_s() == 0);
        }
    }
}
