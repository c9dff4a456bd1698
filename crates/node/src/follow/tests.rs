use super::*;
use stele_replica::RegionChangeKind;
use stele_types::{CommandBuilder, Prng, keyspace};

const REGION: RegionId = RegionId(7);

fn entry(index: u64, payload: Bytes) -> CommittedEntry {
    CommittedEntry { term: Term(2), index: LogIndex(index), is_command: true, payload }
}

/// Operation of the model, on user keys of two bytes.
#[derive(Clone, Debug)]
enum Write {
    Put(ColumnFamily, Vec<u8>, u64),
    Delete(ColumnFamily, Vec<u8>),
    Range(ColumnFamily, Vec<u8>, Vec<u8>),
}

fn key(random: &mut Prng) -> Vec<u8> {
    let length = random.below(3) as usize;
    (0..length).map(|_| b"\x00am\xff"[random.below(4) as usize]).collect()
}

fn write(random: &mut Prng) -> Write {
    let family = ColumnFamily::ALL[random.below(3) as usize];
    match random.below(4) {
        0 => Write::Delete(family, key(random)),
        1 => Write::Range(family, key(random), key(random)),
        _ => Write::Put(family, key(random), random.below(2) * 77),
    }
}

fn command(writes: &[Write]) -> Bytes {
    let mut builder = CommandBuilder::new();
    for write in writes {
        let added = match write {
            Write::Put(family, key, expires) => {
                let value = [key, &b"+value"[..]].concat();
                builder.put(&family.engine_key(key), &value, *expires)
            }
            Write::Delete(family, key) => builder.delete(&family.engine_key(key)),
            Write::Range(family, start, end) => {
                let range = KeyRange::new(start.clone(), end.clone());
                let range = family.engine_range(&range);
                builder.delete_range(&range.start, &range.end)
            }
        };
        added.unwrap();
    }
    builder.build().bytes().clone()
}

/// What the model expects of a command: each key of `universe` that lies in `keys`, with what the last
/// write to it does; `None` for a delete.
fn effects(writes: &[Write], keys: &KeyRange) -> Vec<(ColumnFamily, Vec<u8>, Option<u64>)> {
    let mut found = std::collections::HashMap::new();
    for family in ColumnFamily::ALL {
        for key in universe().into_iter().filter(|key| keys.contains(key)) {
            for write in writes {
                match write {
                    Write::Put(of, at, expires) if (*of, at) == (family, &key) => {
                        found.insert((family.space(), key.clone()), Some(*expires));
                    }
                    Write::Delete(of, at) if (*of, at) == (family, &key) => {
                        found.insert((family.space(), key.clone()), None);
                    }
                    Write::Range(of, start, end)
                        if *of == family && *start <= key && (end.is_empty() || key < *end) =>
                    {
                        found.insert((family.space(), key.clone()), None);
                    }
                    _ => {}
                }
            }
        }
    }
    sorted(found)
}

fn sorted(
    found: std::collections::HashMap<(u8, Vec<u8>), Option<u64>>,
) -> Vec<(ColumnFamily, Vec<u8>, Option<u64>)> {
    let mut all: Vec<_> = found.into_iter().collect();
    all.sort();
    let family = |space| ColumnFamily::ALL.into_iter().find(|family| family.space() == space);
    all.into_iter().map(|((space, key), what)| (family(space).unwrap(), key, what)).collect()
}

fn universe() -> Vec<Vec<u8>> {
    let bytes = b"\x00am\xff";
    let one = bytes.iter().map(|byte| vec![*byte]);
    let two = bytes.iter().flat_map(|a| bytes.iter().map(|b| vec![*a, *b]));
    std::iter::once(Vec::new()).chain(one).chain(two).collect()
}

/// Does what [`effects`] does with what a follower got; it must name no other keys.
fn applied(followed: &Followed, keys: &KeyRange) -> Vec<(ColumnFamily, Vec<u8>, Option<u64>)> {
    let mut found = std::collections::HashMap::new();
    for FollowedWrite { family, key, kind } in &followed.writes {
        assert!(keys.contains(key), "{key:?} is outside of {keys:?}");
        match kind {
            WriteKind::Put { value, expires_at_s } => {
                assert_eq!(value[..], [key, &b"+value"[..]].concat());
                found.insert((family.space(), key.to_vec()), Some(*expires_at_s));
            }
            WriteKind::Delete => _ = found.insert((family.space(), key.to_vec()), None),
            WriteKind::DeleteRange(end) => {
                let range = KeyRange::new(key.clone(), end.clone());
                assert_eq!(range.within(keys), range, "a range is cut to the keys");
                let inside = universe().into_iter().filter(|key| range.contains(key));
                found.extend(inside.map(|key| ((family.space(), key), None)));
            }
        }
    }
    sorted(found)
}

#[test]
fn a_follower_gets_each_write_to_its_keys_once_in_order() {
    for seed in 0..2000 {
        let random = &mut Prng::new(seed);
        let (start, end) = (key(random), key(random));
        let keys = KeyRange::new(start, end);
        let commands: Vec<Vec<Write>> = (0..1 + random.below(12))
            .map(|_| (0..random.below(5)).map(|_| write(random)).collect())
            .collect();
        let entries: Vec<_> =
            (6..).zip(&commands).map(|(index, writes)| entry(index, command(writes))).collect();
        let mut follower = LogFollower::new(REGION, keys.clone(), LogIndex(6));
        let mut got = Vec::new();
        loop {
            let at = follower.next_index().0 as usize - 6;
            let until = (at + 1 + random.below(3) as usize).min(entries.len());
            match follower.step(|_| Ok(Some(entries[at..until].to_vec()))).unwrap() {
                Step::Read(more) => got.extend(more),
                Step::UpToDate => break,
                Step::TooOld => panic!("seed {seed}: all entries are there"),
            }
        }
        let got: Vec<_> = got.iter().map(|it| (it.index.0, applied(it, &keys))).collect();
        let expected = (6..).zip(commands.iter().map(|writes| effects(writes, &keys)));
        let expected: Vec<_> = expected.filter(|(_, effects)| !effects.is_empty()).collect();
        let got: Vec<_> = got.into_iter().filter(|(_, effects)| !effects.is_empty()).collect();
        assert_eq!(got, expected, "seed {seed}, keys {keys:?}");
    }
}

/// Returns the entry that rolls the merge of the region back: an administrative command as
/// ARCHITECTURE.md describes it.
fn rolled_back(index: u64) -> (CommittedEntry, Region) {
    let region = Region { id: REGION, range: KeyRange::new("x", "y"), ..Region::default() };
    let mut builder = CommandBuilder::new();
    let record = [1, REGION.0 as u8, 5];
    builder.put(&keyspace::admin_key(REGION), &record, 0).unwrap();
    builder.put(&keyspace::region_key(REGION), &region.encode(), 0).unwrap();
    (entry(index, builder.build().bytes().clone()), region)
}

#[test]
fn a_follower_gets_changes_of_the_region_whatever_its_keys() {
    let (entry, region) = rolled_back(9);
    let mut follower = LogFollower::new(REGION, KeyRange::new("a", "b"), LogIndex(9));
    let change = Some(RegionChange { region, kind: RegionChangeKind::RolledBack });
    let followed = Followed { index: LogIndex(9), term: Term(2), writes: Vec::new(), change };
    let step = follower.step(|_| Ok(Some(vec![entry]))).unwrap();
    assert_eq!(step, Step::Read(vec![followed]));
    assert_eq!(follower.next_index(), LogIndex(10));
}

#[test]
fn a_reader_of_a_region_that_merges_begins_with_the_preparation() {
    let mut region = Region { id: REGION, ..Region::default() };
    assert_eq!(first_from_now(&region, LogIndex(20)), LogIndex(21));
    let (target, prepared, term) = (RegionId(9), LogIndex(17), Term(2));
    region.phase = RegionPhase::Merging { target, prepared, term, target_epoch: region.epoch };
    assert_eq!(first_from_now(&region, LogIndex(20)), LogIndex(17));
}

#[test]
fn what_concerns_no_key_moves_the_follower_and_is_not_passed_on() {
    let other = Write::Put(ColumnFamily::Default, b"z".to_vec(), 0);
    let raft =
        CommittedEntry { is_command: false, payload: Bytes::new(), ..entry(7, Bytes::new()) };
    let entries = vec![entry(6, command(&[other])), raft];
    let mut follower = LogFollower::new(REGION, KeyRange::new("a", "b"), LogIndex(6));
    assert_eq!(follower.step(|_| Ok(Some(entries))).unwrap(), Step::Read(Vec::new()));
    assert_eq!(follower.next_index(), LogIndex(8));
    assert_eq!(follower.step(|_| Ok(Some(Vec::new()))).unwrap(), Step::UpToDate);
    assert_eq!(follower.step(|_| Ok(None)).unwrap(), Step::TooOld);
    assert_eq!(follower.next_index(), LogIndex(8));
}

#[test]
fn a_gap_in_a_log_is_not_passed_over() {
    let write = command(&[Write::Delete(ColumnFamily::Default, b"a".to_vec())]);
    let mut follower = LogFollower::new(REGION, KeyRange::all(), LogIndex(6));
    let with_gap = vec![entry(6, write.clone()), entry(8, write.clone())];
    assert!(follower.step(|_| Ok(Some(with_gap))).is_err());
    assert!(follower.step(|_| Ok(Some(vec![entry(5, write)]))).is_err());
    assert!(follower.step(|_| Ok(Some(vec![entry(6, Bytes::from_static(b"\x01\x07"))]))).is_err());
    assert_eq!(follower.next_index(), LogIndex(6));
}
