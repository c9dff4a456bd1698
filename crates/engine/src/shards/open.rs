//! Opening of a set: reads the maps of all directories, compares them, and only then changes
//! something.

use super::map::{Found, Map, Partition, SetId};
use super::{Shard, ShardPlace, ShardsOptions};
use crate::db::{Db, each_on_a_thread};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_types::{Clock, Error, Result};
use stele_vfs::DirLock;

#[derive(Debug)]
struct Judged {
    /// Set of the directories that have stores; `None` if no directory has one.
    set: Option<SetId>,
    /// What each directory holds, or the reason why it is not that shard of the set.
    found: Vec<Result<Found>>,
}

/// Opens a set of shards, or creates it.
///
/// Invariant: a store of a set exists only after the maps of all directories are durable.
/// Test: `a_creation_cut_at_any_operation_of_any_shard_is_completed_by_the_same_call`.
pub(super) fn open(
    places: Vec<ShardPlace>,
    clock: &Arc<dyn Clock>,
    options: &ShardsOptions,
) -> Result<(SetId, Vec<Shard>)> {
    options.partition.validate(places.len())?;
    places.iter().try_for_each(|place| place.options.validate())?;
    check_distinct(&places)?;
    let dirs: Vec<PathBuf> = places.iter().map(|place| place.dir.clone()).collect();
    let found = places.iter().map(|place| Found::read(&place.vfs, &place.dir)).collect();
    let Judged { set, found } = judge(&dirs, found, &options.partition);
    // A new set needs all of its directories.
    let may_fail = options.without_failed && set.is_some();
    let mut locks = Vec::with_capacity(places.len());
    for (place, found) in places.iter().zip(found) {
        let lock = found.and_then(|found| lock(place, &found));
        locks.push(unless_failed(&place.dir, lock, may_fail)?);
    }
    let (is_new, set) = (set.is_none(), set.unwrap_or(options.set));
    let mut without_map = if is_new { 0..places.len() } else { 0..0 };
    let write = |at| write_map(&places, at, set, &options.partition);
    // Invariant: all maps are durable before the first store exists.
    // bug engine.shard_store_before_maps: skip
    without_map.try_for_each(write)?;
    // A store replays its log at open: all devices work at the same time.
    let opening = places.iter().zip(locks).collect();
    let opened = each_on_a_thread("opening of a shard", opening, |_, (place, lock)| {
        lock.and_then(|lock| open_db(place, clock, lock))
    });
    // bug engine.shard_store_before_maps: without_map.try_for_each(write)?;
    let mut shards = Vec::with_capacity(places.len());
    for (place, db) in places.iter().zip(opened) {
        let db = unless_failed(&place.dir, db, may_fail)?;
        shards.push(Shard { dir: place.dir.as_path().into(), vfs: place.vfs.clone(), db });
    }
    match shards.iter().all(|shard| shard.db.is_err()) {
        true => shards.remove(0).db.map(|_| (set, Vec::new())),
        false => Ok((set, shards)),
    }
}

/// Returns the outcome for one directory, which may be the failure of its device if `may_fail`.
/// Fails with all other errors: they are of the call, not of the device.
fn unless_failed<T>(dir: &Path, outcome: Result<T>, may_fail: bool) -> Result<Result<T>> {
    outcome.map(Ok).or_else(|error| {
        let of_device = matches!(
            error.of_one_store(),
            Error::Io { .. }
                | Error::NoSpace(_)
                | Error::Corrupt { .. }
                | Error::Missing { .. }
                | Error::Poisoned(_)
                | Error::Panicked(_)
        );
        let error = Error::of_shard(dir, error);
        if may_fail && of_device { Ok(Err(error)) } else { Err(error) }
    })
}

fn check_distinct(places: &[ShardPlace]) -> Result<()> {
    let mut dirs = BTreeSet::new();
    // Two disks in memory may use the same path.
    let twice = places.iter().find(|place| {
        !dirs.insert((place.vfs.device_number(&place.dir).unwrap_or_default(), &place.dir))
    });
    twice.map_or(Ok(()), |place| {
        Err(Error::invalid(format!("directory {} is given twice", place.dir.display())))
    })
}

/// Locks a directory. Fails if another process changed it since it was read.
fn lock(place: &ShardPlace, found: &Found) -> Result<Box<dyn DirLock>> {
    let lock = crate::store::lock(&place.vfs, &place.dir)?;
    match Found::read(&place.vfs, &place.dir)? == *found {
        true => Ok(lock),
        false => Err(Error::Busy("another process has just opened the set".into())),
    }
}

fn write_map(places: &[ShardPlace], shard: usize, set: SetId, partition: &Partition) -> Result<()> {
    let Some(place) = places.get(shard) else { return Ok(()) };
    let map = Map { set, shard, count: places.len(), partition: partition.clone() };
    map.write(&place.vfs, &place.dir).map_err(|error| Error::of_shard(&place.dir, error))
}

fn open_db(place: &ShardPlace, clock: &Arc<dyn Clock>, lock: Box<dyn DirLock>) -> Result<Db> {
    Db::open_locked(place.vfs.clone(), clock.clone(), &place.dir, lock, place.options.clone())
}

fn judge(dirs: &[PathBuf], found: Vec<Result<Found>>, partition: &Partition) -> Judged {
    let Some(set) = set_of(&found) else { return Judged { set: None, found } };
    let count = found.len();
    let order = order_of(dirs, &found, set);
    let judge = |shard: usize, dir: &Path, found: Found| {
        let wrong = |detail| Err(Error::WrongStore { path: dir.to_path_buf(), detail });
        let Some(map) = found.map() else {
            // bug engine.shard_lost_directory_created: return Ok(found);
            // Invariant: an empty directory of a set with data is a lost one, never a new shard.
            let detail = format!("it is empty, and was shard {shard} of set {set}; mount its disk");
            return Err(Error::Missing { path: dir.to_path_buf(), detail });
        };
        // bug engine.shard_foreign_accepted: never
        if map.set != set {
            return wrong(format!(
                "it is shard {} of set {}, the other directories are of set {set}",
                map.shard, map.set
            ));
        }
        if map.count != count {
            return wrong(format!(
                "its set has {} shards, and {count} directories were given; give all of them",
                map.count
            ));
        }
        // bug engine.shard_order_unchecked: never
        if map.shard != shard {
            let given = format!("it is shard {}, and was given as shard {shard}", map.shard);
            return wrong(format!("{given}; the order of the set is {order}"));
        }
        match map.partition == *partition {
            true => Ok(found),
            false => wrong("its set has another partition, which cannot be changed".into()),
        }
    };
    let judged = found.into_iter().zip(dirs).enumerate();
    let found = judged.map(|(shard, (found, dir))| judge(shard, dir, found?)).collect();
    Judged { set: Some(set), found }
}

/// Returns the set of most directories with a store; the lowest one of several.
fn set_of(found: &[Result<Found>]) -> Option<SetId> {
    let mut directories = BTreeMap::new();
    for found in found.iter().flatten() {
        if let Found::Used(map) = found {
            *directories.entry(map.set).or_insert(0usize) += 1;
        }
    }
    let most = directories.values().max().copied();
    directories.into_iter().find(|(_, count)| Some(*count) == most).map(|(set, _)| set)
}

/// Returns the directories of a set in its order, as text; `?` for those not given.
fn order_of(dirs: &[PathBuf], found: &[Result<Found>], set: SetId) -> String {
    let given: BTreeMap<usize, String> = found
        .iter()
        .zip(dirs)
        .filter_map(|(found, dir)| Some((found.as_ref().ok()?.map()?, dir)))
        .filter(|(map, _)| map.set == set)
        .map(|(map, dir)| (map.shard, dir.display().to_string()))
        .collect();
    let names = (0..dirs.len()).map(|shard| given.get(&shard).map_or("?", String::as_str));
    names.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: SetId = SetId(5);

    fn map(set: u64, shard: usize) -> Map {
        Map { set: SetId(set), shard, count: 3, partition: Partition::Hash }
    }

    fn used(set: u64, shard: usize) -> Result<Found> {
        Ok(Found::Used(map(set, shard)))
    }

    fn judged(found: Vec<Result<Found>>) -> Judged {
        let dirs = ["/a", "/b", "/c", "/d"].map(PathBuf::from);
        judge(&dirs[..found.len()], found, &Partition::Hash)
    }

    fn errors(found: Vec<Result<Found>>) -> Vec<String> {
        let judged = judged(found).found.into_iter();
        judged
            .map(|found| found.err().map_or_else(String::new, |error| error.to_string()))
            .collect()
    }

    #[test]
    fn directories_without_a_store_become_a_new_set_also_after_an_interrupted_creation() {
        let unused = |set| Ok(Found::Unused(Some(map(set, 0))));
        for found in [
            vec![Ok(Found::Unused(None)), Ok(Found::Unused(None))],
            vec![unused(1), Ok(Found::Unused(None)), unused(2)],
        ] {
            let judged = judged(found);
            assert_eq!(judged.set, None);
            assert!(judged.found.iter().all(Result::is_ok));
        }
    }

    #[test]
    fn the_shards_of_a_set_pass_and_one_without_a_store_is_created_by_its_map() {
        let third = Ok(Found::Unused(Some(map(5, 2))));
        let judged = judged(vec![used(5, 0), used(5, 1), third]);
        assert_eq!(judged.set, Some(SET));
        assert!(judged.found.iter().all(Result::is_ok));
    }

    #[test]
    fn directories_in_another_order_are_refused_with_the_order_of_the_set() {
        let errors = errors(vec![used(5, 1), used(5, 0), used(5, 2)]);
        assert!(errors[0].contains("/a is not this store: it is shard 1"), "{errors:?}");
        assert!(errors[1].contains("the order of the set is /b, /a, /c"), "{errors:?}");
        assert_eq!(errors[2], "");
    }

    #[test]
    fn directories_of_other_sets_and_empty_ones_are_refused_by_name() {
        let found = vec![used(5, 0), used(9, 1), Ok(Found::Unused(None))];
        let errors = errors(vec![used(5, 0), used(9, 1), used(5, 2)]);
        assert!(errors[1].contains("/b") && errors[1].contains("set 0000000000000009"));
        assert!(errors[0].is_empty() && errors[2].is_empty());
        let lost = judged(found).found.pop().unwrap().unwrap_err();
        assert!(matches!(&lost, Error::Missing { path, .. } if path == Path::new("/c")), "{lost}");
    }

    #[test]
    fn a_set_with_another_number_of_shards_or_another_partition_is_refused() {
        let errors = errors(vec![used(5, 0), used(5, 1)]);
        assert!(errors[0].contains("has 3 shards, and 2 directories were given"), "{errors:?}");
        let ranges = Partition::Range(vec![b"a"[..].into(), b"b"[..].into()]);
        let found = vec![Ok(Found::Used(Map { partition: ranges, ..map(5, 0) })), used(5, 1)];
        let found = [found, vec![used(5, 2)]].into_iter().flatten().collect();
        assert!(
            judged(found).found[0].as_ref().is_err_and(|e| e.to_string().contains("partition"))
        );
    }
}
