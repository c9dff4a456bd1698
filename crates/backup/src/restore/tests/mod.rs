//! Restores of random backups, compared with a model.

mod backup;
mod memory;

use super::{
    HistoryWrite, KeyHistory, MomentChoice, RestoreCounts, RestoreRules, choose, history, restore,
    state_at,
};
use crate::format::{
    Base, BaseSeq, Chunk, Family, LogObject, Moment, Pair, Part, Record, RunId, Write,
};
use crate::{BaseName, OpenOptions, Repository};
use backup::{Backup, NOW_S, Taken};
use bytes::Bytes;
use memory::{Memory, Pairs};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use stele_types::{ClusterId, KeyRange, LogIndex, MomentId, Prng, RegionId, is_expired, redis_key};

const SEED: &str = "STELE_SEED";
const SEEDS: u64 = 6;

/// Runs a check with several seeds, or with that of the environment. A failure prints the seed.
fn each_seed(test: &str, check: impl AsyncFn(u64)) {
    let given: Option<u64> = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok());
    let seeds = given.map_or(1..=SEEDS, |seed| seed..=seed);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for seed in seeds {
        let checked = std::panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(check(seed))));
        if let Err(panic) = checked {
            eprintln!("seed {seed}; replay: {SEED}={seed} cargo test -p stele-backup {test}");
            resume_unwind(panic);
        }
    }
}

/// Returns the moments that can be restored, with their bases.
async fn restorable(repository: &Repository) -> Vec<(Moment, BaseName)> {
    let mut all = Vec::new();
    for found in repository.restorable().await.unwrap() {
        let moment = repository.moment(found.run, found.number).await.unwrap();
        all.push((moment, found.base.unwrap().name));
    }
    all
}

async fn restored(
    repository: &Arc<Repository>,
    of: &(Moment, BaseName),
    rules: &RestoreRules,
    target: &Arc<Memory>,
) {
    let base = repository.base(of.1).await.unwrap();
    let counts = Arc::new(RestoreCounts::default());
    let (repository, target) = (Arc::clone(repository), Arc::clone(target));
    restore(repository, target, (&base, &of.0), rules.clone(), counts).await.unwrap();
}

/// Returns the part of a state that a restore keeps.
fn kept(state: &Pairs, rules: &RestoreRules) -> Pairs {
    let shifted = |at_s: u64| if at_s == 0 { 0 } else { at_s + rules.shift_s };
    let pairs =
        state.iter().map(|(key, (value, at_s))| (key.clone(), (value.clone(), shifted(*at_s))));
    let is_kept = |(key, pair): &((u8, Bytes), (Bytes, u64))| {
        rules.range.contains(&key.1) && !is_expired(pair.1, rules.now_s)
    };
    pairs.filter(is_kept).collect()
}

#[test]
fn each_moment_is_restored_as_it_was() {
    each_seed("each_moment_is_restored_as_it_was", async |seed| {
        let dir = tempfile::tempdir().unwrap();
        let backup = Backup::make(dir.path(), seed, 400).await;
        let repository = Arc::new(backup.repository);
        let mut rng = Prng::new(seed ^ 0xbac);
        let found = restorable(&repository).await;
        let numbers: Vec<MomentId> = found.iter().map(|(moment, _)| moment.number).collect();
        let expected = backup.taken.iter().filter(|taken| taken.has_base);
        assert_eq!(numbers, expected.map(|taken| taken.number).collect::<Vec<_>>());
        for of in &found {
            let state = |taken: &&Taken| taken.number == of.0.number;
            let state = &backup.taken.iter().find(state).unwrap().state;
            let range = match rng.below(3) {
                0 => KeyRange::prefix(format!("k{}", rng.below(4)).as_bytes()),
                _ => KeyRange::all(),
            };
            let rules = RestoreRules::new(range, NOW_S, &of.0, rng.coin());
            let target = Arc::new(Memory::new(rng.draw()));
            restored(&repository, of, &rules, &target).await;
            assert_eq!(target.pairs(), kept(state, &rules), "{:?}", of.0.number);
            if rng.below(4) > 0 {
                continue;
            }
            // An interrupted restore is begun again over what it has written.
            let rules = RestoreRules { compares: rng.coin(), ..rules };
            restored(&repository, of, &rules, &target).await;
            assert_eq!(target.pairs(), kept(state, &rules), "{:?} again", of.0.number);
        }
    });
}

/// Makes a backup of three Redis keys: two in chunks of a base that part a collection, one in the log.
async fn backup_of_collections(repository: &Repository, headers: &[Bytes; 3]) {
    let (run, seq, region, index) = (RunId(1), BaseSeq(0), RegionId(2), LogIndex(5));
    let family = Family::Redis;
    let pair = |key: &Bytes| Pair { key: key.slice(1..), value: key.clone(), expires_at_s: 0 };
    let [a, b, c] = headers;
    let member = |header: &Bytes, field: &[u8]| redis_key::member_key(header, 7, field);
    let begun = repository.begin_base(run, seq).await.unwrap();
    let mut chunks = Vec::new();
    for keys in [[a.clone(), member(a, b"f")], [member(a, b"g"), b.clone()]] {
        let chunk = Chunk { pairs: keys.iter().map(pair).collect() };
        chunks.push(repository.put_chunk(&begun, &chunk).await.unwrap().0);
    }
    let chunk = Chunk { pairs: vec![pair(&member(b, b"f"))] };
    chunks.push(repository.put_chunk(&begun, &chunk).await.unwrap().0);
    let range = KeyRange::all();
    let part = Part { family, range, region, index, chunks };
    let base = Base { run, seq, parts: vec![part], ..Base::default() };
    repository.put_base(begun, &base).await.unwrap();
    let number = MomentId(100);
    let record = |key: &Bytes| Record { region, index, family, write: Write::Put(pair(key)) };
    let records = [c.clone(), member(c, b"f")].iter().map(record).collect();
    let log = LogObject { run, records, moment: Some(number), ..LogObject::default() };
    repository.put_log(&log).await.unwrap();
    let moment = Moment { number, run, last_log: log.seq, ..Moment::default() };
    repository.put_moment(&moment).await.unwrap();
}

#[test]
fn members_of_redis_keys_are_restored_after_all_headers() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("backup");
        let (url, options) = (url.to_str().unwrap(), OpenOptions::default());
        let repository = Repository::create_or_open(url, &options, ClusterId(7)).await.unwrap();
        let headers = [b"a", b"b", b"c"].map(|name| redis_key::header_key(0, name));
        backup_of_collections(&repository, &headers).await;
        let repository = Arc::new(repository);
        let of = restorable(&repository).await.pop().unwrap();
        for seed in 0..20 {
            let rules = RestoreRules::new(KeyRange::all(), NOW_S, &of.0, false);
            let target = Arc::new(Memory::new(seed));
            restored(&repository, &of, &rules, &target).await;
            assert_eq!(target.pairs().len(), 7);
            for header in &headers {
                let member = redis_key::member_key(header, 7, b"f").slice(1..);
                let header = target.place_of(&header.slice(1..)).unwrap();
                assert!(header < target.place_of(&member).unwrap(), "seed {seed}");
            }
            let [a, ..] = &headers;
            let parted = redis_key::member_key(a, 7, b"g").slice(1..);
            assert!(target.place_of(&a.slice(1..)) < target.place_of(&parted), "seed {seed}");
        }
    });
}

#[test]
fn a_restore_that_was_interrupted_anywhere_is_repeated() {
    each_seed("a_restore_that_was_interrupted_anywhere_is_repeated", async |seed| {
        let dir = tempfile::tempdir().unwrap();
        let backup = Backup::make(dir.path(), seed, 200).await;
        let repository = Arc::new(backup.repository);
        let Some(of) = restorable(&repository).await.pop() else { return };
        let rules = RestoreRules::new(KeyRange::all(), NOW_S, &of.0, false);
        let base = repository.base(of.1).await.unwrap();
        let target = Arc::new(Memory::new(seed));
        let compares =
            |writes: u64| RestoreRules { compares: writes.is_multiple_of(3), ..rules.clone() };
        for writes in [1, 3, 9, 10, 30] {
            target.fail_after(Some(writes));
            let counts = Arc::new(RestoreCounts::default());
            let (repository, target) = (Arc::clone(&repository), Arc::clone(&target));
            let _ = restore(repository, target, (&base, &of.0), compares(writes), counts).await;
        }
        target.fail_after(None);
        let rules = compares(seed);
        restored(&repository, &of, &rules, &target).await;
        let taken = backup.taken.iter().find(|taken| taken.number == of.0.number).unwrap();
        assert_eq!(target.pairs(), kept(&taken.state, &rules));
    });
}

#[test]
fn a_key_has_the_state_of_each_write() {
    each_seed("a_key_has_the_state_of_each_write", async |seed| {
        let dir = tempfile::tempdir().unwrap();
        let backup = Backup::make(dir.path(), seed, 200).await;
        for (family, key) in [(Family::Default, "k11"), (Family::Lock, "k23")] {
            let of = KeyHistory { family, key: key.into() };
            let mut writes = Vec::new();
            let each = |write| {
                writes.push(write);
                Ok(())
            };
            history(&backup.repository, &of, each).await.unwrap();
            let found = writes.iter().map(|it| (it.region, it.index, it.put.clone()));
            assert_eq!(found.collect::<Vec<_>>(), backup.writes_of(&of));
            for write in &writes {
                let is_same =
                    |it: &&HistoryWrite| (it.region, it.index) == (write.region, write.index);
                let last = writes.iter().rfind(is_same);
                let state = state_at(&backup.repository, &of, write.region, write.index).await;
                assert_eq!(state.ok().as_ref(), last);
            }
            // A moment that contains a write contains its state, or that of a later one.
            for taken in &backup.taken {
                let until = writes.iter().rev().find(|it| {
                    it.run == taken.run && it.moment.is_some_and(|first| first <= taken.number)
                });
                if let Some(write) = until {
                    let state = taken.state.get(&(family.space(), of.key.clone()));
                    assert_eq!(state, write.put.as_ref(), "{:?}", taken.number);
                }
            }
            if let Some(first) = writes.first()
                && let Some(before) = first.index.0.checked_sub(1)
            {
                let index = stele_types::LogIndex(before);
                let refused = state_at(&backup.repository, &of, first.region, index).await;
                assert!(refused.unwrap_err().to_string().contains("--history"));
            }
        }
    });
}

#[test]
fn the_newest_moment_is_chosen_among_those_of_the_repository() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let backup = Backup::make(dir.path(), 7, 300).await;
        let moments = backup.repository.moments().await.unwrap();
        let chosen = choose(&moments, MomentChoice::Newest).unwrap();
        let newest = backup.taken.iter().filter(|taken| taken.has_base).map(|taken| taken.number);
        assert_eq!(Some(chosen.moment.number), newest.max());
    });
}
