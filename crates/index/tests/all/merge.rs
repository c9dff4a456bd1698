//! Flushes, merges, views and installs: one invariant per test.

use crate::common::{LONG_FROM, MoveFile, Op, Store, get, number, reference};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use stele_index::{
    Checkpoint, Direction, Edit, JobStep, MergeInputs, MergeSpec, MovingValue, ValueMover,
    inspect_manifest, rebuild,
};
use stele_simulated_disk::{Fault, Operation, SimVfs};
use stele_types::{
    Cause, Error, FileId, KeyRange, Locator, LogIndex, RegionId, Result, Term, ValueRef,
};
use stele_vfs::Vfs;

fn put(key: impl Into<Vec<u8>>, value: u32) -> Op {
    Op::Put { key: key.into(), value, expires_at_s: 0 }
}

fn delete(key: &str) -> Op {
    Op::Delete { key: key.into() }
}

fn delete_range(start: &str, end: &str) -> Op {
    Op::DeleteRange { start: start.into(), end: end.into() }
}

fn tier(store: &mut Store, ops: &[Op]) {
    ops.iter().for_each(|op| store.apply(op));
    store.publish();
    store.freeze(store.seq as usize);
    assert!(store.flush_one().unwrap());
}

fn merge_all(store: &Store, now_s: u64) {
    let job = store.index.start_merge(all(store), None, now_s).unwrap();
    store.finish(job).unwrap();
}

fn all(store: &Store) -> MergeSpec {
    MergeSpec { inputs: MergeInputs::Tiers(store.ages()), cause: Cause::Merge }
}

fn value(store: &Store, key: &str) -> Option<u32> {
    get(&store.index.view(), key.as_bytes()).unwrap().map(|(value, _)| value)
}

fn store() -> Store {
    Store::open(&SimVfs::default()).unwrap()
}

#[test]
fn nothing_shows_before_it_is_published() {
    let mut store = store();
    store.apply(&put("a", 1));
    assert_eq!(value(&store, "a"), None);
    store.publish();
    assert_eq!(value(&store, "a"), Some(1));
}

#[test]
fn the_newest_tier_wins_and_deletes_hide_until_the_bottom() {
    let mut store = store();
    tier(&mut store, &[put("a", 1), put("b", 2), put("c", 3)]);
    tier(&mut store, &[put("a", 11), delete("b")]);
    tier(&mut store, &[put("d", 4), delete_range("c", "d")]);
    let ages = store.ages();
    for inputs in [ages[..2].to_vec(), vec![]] {
        assert_eq!(value(&store, "a"), Some(11));
        assert_eq!((value(&store, "b"), value(&store, "c")), (None, None));
        assert_eq!(value(&store, "d"), Some(4));
        if inputs.is_empty() {
            break;
        }
        let spec = MergeSpec { inputs: MergeInputs::Tiers(inputs), cause: Cause::Merge };
        store.finish(store.index.start_merge(spec, None, 0).unwrap()).unwrap();
    }
    let version = store.index.version();
    assert!(version.tiers()[0].tombstones > 0 && !version.tiers()[0].ranges().is_empty());
    merge_all(&store, 0);
    let version = store.index.version();
    let bottom = &version.tiers()[0];
    assert_eq!((version.tiers().len(), bottom.entries, bottom.tombstones), (1, 2, 0));
    assert!(bottom.ranges().is_empty());
}

#[test]
fn a_key_written_after_a_range_delete_of_the_same_memtable_stays() {
    let mut store = store();
    tier(&mut store, &[put("a", 1), put("b", 2)]);
    tier(&mut store, &[put("a", 3), delete_range("a", "c"), put("b", 4)]);
    for _ in 0..2 {
        assert_eq!((value(&store, "a"), value(&store, "b")), (None, Some(4)));
        merge_all(&store, 0);
    }
}

#[test]
fn expired_pairs_go_at_the_bottom_and_still_hide_above_it() {
    let mut store = store();
    tier(&mut store, &[put("a", 1), put("b", 1), put("c", 1)]);
    tier(&mut store, &[Op::Put { key: b"a".to_vec(), value: 2, expires_at_s: 50 }]);
    tier(&mut store, &[put("z", 1)]);
    let upper = store.ages()[..2].to_vec();
    let spec = MergeSpec { inputs: MergeInputs::Tiers(upper), cause: Cause::Merge };
    store.finish(store.index.start_merge(spec, None, 100).unwrap()).unwrap();
    assert_eq!(value(&store, "a"), Some(2));
    merge_all(&store, 49);
    assert_eq!(value(&store, "a"), Some(2));
    merge_all(&store, 50);
    assert_eq!(value(&store, "a"), None);
}

#[test]
fn a_trimmed_run_of_any_tier_loses_what_newer_tiers_hide_and_still_hides_older_ones() {
    let mut store = store();
    tier(&mut store, &[put("a", 1), put("b", 1), put("e", 1), put("f", 1)]);
    let middle = [put("a", 2), delete("b"), put("c", 2), delete_range("e", "f"), put("g", 2)];
    tier(&mut store, &middle);
    tier(&mut store, &[put("c", 3), delete_range("g", "h"), delete("x")]);
    let before = store.contents().unwrap();
    let trim = |store: &Store, tier: usize| {
        let run = store.index.version().tiers()[tier].runs[0].id();
        store.finish(store.index.start_trim(run, 0).unwrap()).unwrap();
        let version = store.index.version();
        let entries = version.tiers().iter().map(|tier| tier.entries).collect::<Vec<_>>();
        (entries, version.tiers().iter().filter(|tier| !tier.ranges().is_empty()).count())
    };
    // Of the middle tier `a`, the delete of `b` and the range stay; of the oldest one `f`.
    assert_eq!(trim(&store, 1), (vec![2, 2, 4], 2));
    assert_eq!(store.contents().unwrap(), before);
    assert_eq!(trim(&store, 2), (vec![2, 2, 1], 2));
    assert_eq!(store.contents().unwrap(), before);
    // Where all entries go, the range tombstones stay.
    tier(&mut store, &[delete_range("a", "z")]);
    assert_eq!(trim(&store, 2), (vec![0, 2, 0, 1], 3));
    assert!(store.contents().unwrap().is_empty());
    merge_all(&store, 0);
    assert!(store.contents().unwrap().is_empty());
}

#[test]
fn live_counts_follow_every_change_of_runs() {
    let mut store = store();
    let live = |store: &Store, file| {
        store.index.version().live().get(&FileId(file)).map_or(0, |live| live.records)
    };
    // Values 1, 25 and 49 lie in file 2, value 7 in file 8.
    tier(&mut store, &[put("a", 1), put("b", 25), put("c", 49)]);
    assert_eq!(live(&store, 2), 3);
    tier(&mut store, &[put("a", 7), delete("b")]);
    assert_eq!((live(&store, 2), live(&store, 8)), (3, 1));
    merge_all(&store, 0);
    assert_eq!((live(&store, 2), live(&store, 8)), (1, 1));
    let mover = MoveFile { from: FileId(2), to: FileId(90), moved: 0, cuts: Arc::default() };
    let job = store.index.start_merge(all(&store), Some(Box::new(mover)), 0).unwrap();
    store.finish(job).unwrap();
    assert_eq!((live(&store, 2), live(&store, 90)), (0, 1));
    assert_eq!(store.index.needed_files().unwrap(), [FileId(8), FileId(90)]);
    assert_eq!(value(&store, "c"), Some(49));
}

#[test]
fn a_view_keeps_its_moment_and_its_files() {
    let mut store = store();
    tier(&mut store, &[put("a", 1), put("b", 2)]);
    store.apply(&put("c", 4));
    store.publish();
    let view = store.index.view();
    let mut iter = view.iter(KeyRange::all(), Direction::Forward).unwrap();
    let first = iter.next().unwrap().unwrap();
    let files = store.run_files();
    tier(&mut store, &[put("a", 5), delete("b"), delete("c")]);
    merge_all(&store, 0);
    assert!(files.is_subset(&store.run_files()), "a file of the view is gone");
    let (pinned, current) = (view.version().id(), store.index.version().id());
    assert_eq!(store.index.pinned_versions(), [pinned, current]);
    let mut seen = vec![(first.0, number(&first.1))];
    while let Some((key, value, _)) = iter.next().unwrap() {
        seen.push((key, number(&value)));
    }
    let expected = [("a", 1), ("b", 2), ("c", 4)].map(|(k, v)| (Bytes::from(k), v));
    assert_eq!(seen, expected);
    assert_eq!(get(&view, b"b").unwrap(), Some((2, 0)));
    drop((view, iter));
    assert!(store.index.purge().unwrap() > 0);
    assert_eq!(store.index.pinned_versions(), [current]);
    store.check_files("after the view");
    assert_eq!(store.contents().unwrap().len(), 1);
}

struct PlacementRecorder(Arc<Mutex<Vec<Vec<u8>>>>);

impl ValueMover for PlacementRecorder {
    fn moves(&self, _key: &[u8], _at: &Locator) -> bool {
        false
    }

    fn place(&mut self, key: &[u8], _at: &Locator, _expires_at_s: u64) -> Result<Option<Locator>> {
        self.0.lock().push(key.to_vec());
        Ok(None)
    }

    fn cut(&mut self) -> Result<()> {
        Ok(())
    }

    fn bytes(&self) -> u64 {
        0
    }
}

/// Records announced values that move, and checks the placements against them.
#[derive(Default)]
struct ReadaheadRecorder {
    ahead: std::collections::VecDeque<(Vec<u8>, Locator)>,
    unread_bytes: u64,
    /// Values and bytes of each round.
    rounds: Arc<Mutex<Vec<(usize, u64)>>>,
}

impl ValueMover for ReadaheadRecorder {
    fn moves(&self, key: &[u8], _at: &Locator) -> bool {
        key.last().is_some_and(|last| last % 2 == 0)
    }

    fn read_ahead(&mut self, moving: &[MovingValue<'_>]) {
        assert!(self.ahead.is_empty(), "read_ahead called before all values were placed");
        self.unread_bytes = moving.iter().map(|(_, at)| u64::from(at.length)).sum();
        self.rounds.lock().push((moving.len(), self.unread_bytes));
        self.ahead = moving.iter().map(|(key, at)| (key.to_vec(), *at)).collect();
    }

    fn continue_read_ahead(&mut self, bytes_max: u64) -> u64 {
        let read = self.unread_bytes.min(bytes_max);
        self.unread_bytes -= read;
        read
    }

    fn place(&mut self, key: &[u8], at: &Locator, _expires_at_s: u64) -> Result<Option<Locator>> {
        if self.moves(key, at) {
            assert_eq!(self.unread_bytes, 0, "placed before all were read");
            assert_eq!(self.ahead.pop_front(), Some((key.to_vec(), *at)));
        }
        Ok(None)
    }

    fn cut(&mut self) -> Result<()> {
        Ok(())
    }

    fn bytes(&self) -> u64 {
        0
    }
}

#[test]
fn what_moves_is_told_ahead_in_the_order_in_which_it_is_placed() {
    let mut store = store();
    let key = |n: u32| format!("key-{n:05}");
    let ops: Vec<Op> = (0..5000).map(|n| put(key(n), 3 * n + 1)).collect();
    tier(&mut store, &ops);
    let ops: Vec<Op> = (0..5000)
        .step_by(3)
        .map(|n| if n % 2 == 0 { delete(&key(n)) } else { put(key(n), n) })
        .collect();
    tier(&mut store, &ops);
    let contents = store.contents().unwrap();
    let recorder = ReadaheadRecorder::default();
    let rounds = recorder.rounds.clone();
    let spec = MergeSpec { cause: Cause::Sort, ..all(&store) };
    let mut job = store.index.start_merge(spec, Some(Box::new(recorder)), 0).unwrap();
    let done = loop {
        match job.step(1000).unwrap() {
            // At most one entry, or one part of a read, more than requested.
            JobStep::More { bytes } => assert!(bytes < 2000, "{bytes}"),
            JobStep::Done(done) => break done,
        }
    };
    store.index.commit(done).unwrap();
    assert_eq!(store.contents().unwrap(), contents);
    let alive = (0..5000).filter(|n| n % 2 == 0 && n % 3 != 0).count();
    let rounds = rounds.lock();
    assert_eq!((rounds.len(), rounds[0].0), (1, alive), "short values are read together");
}

#[test]
fn of_long_values_that_move_few_are_held() {
    let mut store = store();
    let ops: Vec<Op> =
        (0..40).map(|n| put(format!("key-{:05}", 2 * n), LONG_FROM + 3 * n)).collect();
    tier(&mut store, &ops);
    let recorder = ReadaheadRecorder::default();
    let rounds = recorder.rounds.clone();
    let spec = MergeSpec { cause: Cause::Sort, ..all(&store) };
    store.finish(store.index.start_merge(spec, Some(Box::new(recorder)), 0).unwrap()).unwrap();
    let rounds = rounds.lock();
    assert_eq!(rounds.iter().map(|round| round.0).sum::<usize>(), 40);
    assert!(rounds.iter().all(|round| round.1 <= 5 << 20), "{rounds:?}");
}

/// Returns two tiers of many runs, and their merge interrupted after some outputs.
fn cut_merge() -> (SimVfs, crate::common::Model) {
    let mut store = store();
    let key = |n: u32| format!("key-{n:05}");
    let ops: Vec<Op> = (0..600).map(|n| put(key(n), 3 * n + 1)).collect();
    tier(&mut store, &ops);
    let ops: Vec<Op> = (0..600).step_by(3).map(|n| put(key(n), 3 * n + 2)).collect();
    tier(&mut store, &ops);
    let contents = store.contents().unwrap();
    let mut job = store.index.start_merge(all(&store), None, 0).unwrap();
    while store.index.pending_merge().is_none_or(|pending| pending.outputs.len() < 3) {
        assert!(matches!(job.step(100).unwrap(), JobStep::More { .. }));
    }
    // The process is killed: writes are kept, memory is lost.
    let after = store.vfs.fork();
    (after, contents)
}

#[test]
fn a_merge_cut_short_goes_on_after_its_last_key() {
    let (vfs, contents) = cut_merge();
    let store = Store::open(&vfs).unwrap();
    let pending = store.opened.pending_merge.clone().unwrap();
    assert!(pending.outputs.len() >= 3);
    store.check_files("before resuming");
    let asked = Arc::new(Mutex::new(Vec::new()));
    let job = store
        .index
        .resume_merge(Some(Box::new(PlacementRecorder(asked.clone()))), 0)
        .unwrap()
        .unwrap();
    store.finish(job).unwrap();
    let asked = asked.lock();
    assert!(!asked.is_empty() && asked.iter().all(|key| key[..] > pending.last_key[..]));
    let version = store.index.version();
    let runs: Vec<_> = version.runs().map(|run| run.id()).collect();
    assert_eq!(runs[..pending.outputs.len()], pending.outputs[..]);
    assert_eq!(store.contents().unwrap(), contents);
    assert_eq!(store.index.pending_merge(), None);
    store.check_files("after resuming");
}

#[test]
fn a_merge_cut_short_can_be_given_up_or_forgotten() {
    let (vfs, contents) = cut_merge();
    let store = Store::open(&vfs.fork()).unwrap();
    store.index.abandon_merge().unwrap();
    store.check_files("given up");
    assert!(store.index.resume_merge(None, 0).unwrap().is_none());
    let store = Store::open(&vfs).unwrap();
    merge_all(&store, 0);
    store.check_files("forgotten");
    assert_eq!(store.contents().unwrap(), contents);
}

#[test]
fn a_dropped_job_leaves_nothing_behind() {
    let (vfs, contents) = cut_merge();
    let store = Store::open(&vfs).unwrap();
    store.index.abandon_merge().unwrap();
    let mut job = store.index.start_merge(all(&store), None, 0).unwrap();
    assert!(matches!(store.index.start_merge(all(&store), None, 0), Err(Error::Busy(_))));
    assert!(matches!(job.step(100).unwrap(), JobStep::More { .. }));
    drop(job);
    store.index.purge().unwrap();
    store.check_files("dropped");
    merge_all(&store, 0);
    assert_eq!(store.contents().unwrap(), contents);
}

#[test]
fn moved_values_are_durable_before_each_run_that_refers_to_them() {
    let mut store = store();
    let ops: Vec<Op> = (0..400).map(|n| put(format!("key-{n:05}"), 3 * n + 1)).collect();
    tier(&mut store, &ops);
    let cuts = Arc::new(AtomicU32::new(0));
    let mover = MoveFile { from: FileId(2), to: FileId(90), moved: 0, cuts: cuts.clone() };
    store.finish(store.index.start_merge(all(&store), Some(Box::new(mover)), 0).unwrap()).unwrap();
    let runs = store.index.version().runs().count() as u32;
    assert!(runs > 2);
    assert_eq!(cuts.load(Ordering::Relaxed), runs);
}

#[test]
fn part_of_a_tier_is_rewritten_in_place() {
    let mut store = store();
    let ops: Vec<Op> = (0..600).map(|n| put(format!("key-{n:05}"), 3 * n + 1)).collect();
    tier(&mut store, &ops);
    tier(&mut store, &[put("key-00001", 9), delete("key-00002")]);
    let version = store.index.version();
    let lower = &version.tiers()[1];
    let runs: Vec<_> = lower.runs.iter().map(|run| run.id()).step_by(2).collect();
    assert!(runs.len() > 2);
    let before = store.contents().unwrap();
    let inputs = MergeInputs::Runs { age: lower.age, runs: runs.clone() };
    let spec = MergeSpec { inputs, cause: Cause::Relocate };
    let mover = MoveFile { from: FileId(2), to: FileId(90), moved: 0, cuts: Arc::default() };
    store.finish(store.index.start_merge(spec, Some(Box::new(mover)), 0).unwrap()).unwrap();
    assert_eq!(store.contents().unwrap(), before);
    assert_eq!(store.ages(), version.tiers().iter().map(|tier| tier.age).collect::<Vec<_>>());
    drop(version);
    store.index.purge().unwrap();
    store.check_files("rewritten");
    let gone = MergeInputs::Runs { age: store.ages()[1], runs };
    let spec = MergeSpec { inputs: gone, cause: Cause::Relocate };
    assert!(matches!(store.index.start_merge(spec, None, 0), Err(Error::Invalid(_))));
}

#[test]
fn tiers_with_another_between_them_are_not_merged() {
    let mut store = store();
    (1..=3).for_each(|n| tier(&mut store, &[put("a", n)]));
    let ages = store.ages();
    let inputs = MergeInputs::Tiers(vec![ages[0], ages[2]]);
    let spec = MergeSpec { inputs, cause: Cause::Merge };
    assert!(matches!(store.index.start_merge(spec, None, 0), Err(Error::Invalid(_))));
}

#[test]
fn memtables_are_flushed_oldest_first_with_their_checkpoints() {
    let mut store = store();
    store.apply(&put("a", 1));
    store.publish();
    store.freeze(1);
    store.apply(&put("a", 2));
    store.publish();
    store.freeze(2);
    assert_eq!(store.index.frozen_count(), 2);
    let job = store.index.start_flush().unwrap();
    assert!(store.index.start_flush().is_none());
    store.finish(job).unwrap();
    assert_eq!(store.index.checkpoint(), crate::common::checkpoint(1));
    assert_eq!(value(&store, "a"), Some(2));
    assert_eq!(Store::open(&store.vfs.fork()).unwrap().contents().unwrap()[&b"a"[..]], (1, 0));
    assert!(store.flush_one().unwrap());
    assert_eq!(
        Store::open(&store.vfs.fork()).unwrap().opened.checkpoint,
        crate::common::checkpoint(2)
    );
    assert!(store.index.start_flush().is_none());
}

#[test]
fn the_events_of_a_commit_come_in_order() {
    let mut store = store();
    tier(&mut store, &[put("a", 1)]);
    tier(&mut store, &[put("a", 2)]);
    let mut job = store.index.start_merge(all(&store), None, 0).unwrap();
    store.vfs.clear_events();
    let JobStep::Done(done) = job.step(u64::MAX).unwrap() else { panic!("one slice is enough") };
    store.index.commit(done).unwrap();
    let mut kinds: Vec<(Operation, bool)> = store
        .vfs
        .events()
        .into_iter()
        .map(|event| (event.kind, event.path.to_string_lossy().contains("manifest")))
        .collect();
    kinds.dedup();
    let expected = [
        (Operation::Create, false),
        (Operation::Write, false),
        (Operation::Sync, false),
        (Operation::Rename, false),
        (Operation::SyncDir, false),
        (Operation::Write, true),
        (Operation::Sync, true),
        // The repetition of the edit.
        (Operation::Write, true),
        (Operation::Sync, true),
        (Operation::Unlink, false),
        (Operation::SyncDir, false),
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn an_installed_range_replaces_what_was_there_and_marks_its_region() {
    let mut store = store();
    tier(&mut store, &[put("a", 1), put("c", 2), put("m", 3), put("x", 4)]);
    let range = KeyRange::new("b", "n");
    let ranges = std::slice::from_ref(&range);
    let pairs: [(&[u8], u32); 2] = [(b"d", 5), (b"e", 6)];
    let at = (LogIndex(70), Term(3));
    store.apply(&put("mm", 9));
    store.publish();
    let busy = store.install(ranges, Some((RegionId(4), at)), &pairs);
    assert!(matches!(busy, Err(Error::Busy(_))), "{busy:?}");
    store.freeze(5);
    assert!(matches!(store.index.drop_ranges(ranges), Err(Error::Busy(_))));
    assert!(store.flush_one().unwrap());
    // Frozen before the install, flushed after it: the flush must keep the region's new applied
    // index.
    store.apply(&put("z", 9));
    store.publish();
    store.freeze(6);
    store.install(ranges, Some((RegionId(4), at)), &pairs).unwrap();
    assert!(store.flush_one().unwrap());
    for round in 0..2 {
        let keys: Vec<Vec<u8>> = store.contents().unwrap().into_keys().collect();
        assert_eq!(keys, [&b"a"[..], b"d", b"e", b"x", b"z"], "round {round}");
        merge_all(&store, 0);
    }
    let opened = Store::open(&store.vfs.fork()).unwrap().opened;
    assert_eq!(opened.checkpoint.applied[&RegionId(4)], at);
    assert_eq!(opened.checkpoint.replay_from, crate::common::checkpoint(6).replay_from);
    store.index.drop_ranges(&[KeyRange::new("", "")]).unwrap();
    assert!(store.contents().unwrap().is_empty());
    let refused = store.install(ranges, None, &[(b"zz", 1)]);
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    store.index.purge().unwrap();
    store.check_files("after a refused install");
}

#[test]
fn an_install_while_a_flush_runs_lies_below_it() {
    let mut store = store();
    tier(&mut store, &[put("a", 1), put("m", 2)]);
    store.apply(&put("a", 3));
    store.publish();
    store.freeze(3);
    let flush = store.index.start_flush().unwrap();
    store.index.drop_ranges(&[KeyRange::new("m", "n")]).unwrap();
    merge_all(&store, 0);
    store.index.drop_ranges(&[KeyRange::new("k", "n")]).unwrap();
    store.finish(flush).unwrap();
    assert_eq!(store.ages().len(), 3);
    assert_eq!(value(&store, "a"), Some(3));
    merge_all(&store, 0);
    assert_eq!(store.contents().unwrap().len(), 1);
}

#[test]
fn a_failed_manifest_sync_stops_commits_and_keeps_every_file() {
    let mut store = store();
    tier(&mut store, &[put("a", 1)]);
    store.apply(&put("b", 2));
    store.publish();
    store.freeze(2);
    let files = store.run_files();
    store.vfs.inject(Fault::SyncFails { path_contains: "manifest".to_owned(), nth: 1 }).unwrap();
    assert!(store.flush_one().is_err());
    assert!(store.index.poisoned());
    let next = store.flush_one();
    assert!(matches!(next, Err(Error::Poisoned(_))), "{next:?}");
    store.index.purge().unwrap();
    // The edit may be durable, so the run it references is kept; reads continue.
    assert!(store.run_files().len() > files.len());
    assert_eq!((value(&store, "a"), value(&store, "b")), (Some(1), Some(2)));
    store.vfs.clear_faults();
    assert!(Store::open(&store.vfs.fork()).is_ok());
}

/// Returns a disk with an edit that was not synced because the sync failed.
fn with_unsynced_edit() -> SimVfs {
    let mut store = store();
    tier(&mut store, &[put("a", 1)]);
    store.apply(&put("b", 2));
    store.publish();
    store.freeze(2);
    store.vfs.inject(Fault::SyncFails { path_contains: "manifest".to_owned(), nth: 1 }).unwrap();
    assert!(store.flush_one().is_err());
    store.vfs.clear_faults();
    store.vfs.fork()
}

/// A failed sync leaves the edit in the page cache, where the next process reads it. A power
/// failure must not undo what that process builds on it.
#[test]
fn an_edit_that_could_not_be_synced_is_written_again_before_anything_acts_on_it() {
    for seed in 0..20 {
        let next = with_unsynced_edit();
        let seen = Store::open(&next).unwrap().ages().len();
        assert_eq!(seen, 2, "the page cache has the edit");
        let after = Store::open(&next.restart(seed)).unwrap().ages().len();
        assert_eq!(after, seen, "seed {seed}");
    }
}

#[test]
fn a_full_device_has_room_to_write_an_edit_again_that_could_not_be_synced() {
    for seed in 0..20 {
        let next = with_unsynced_edit();
        next.inject(Fault::NoSpace { from_operation: next.operations() }).unwrap();
        let mut store = Store::open(&next).unwrap();
        assert_eq!(store.ages().len(), 2, "the page cache has the edit");
        next.clear_faults();
        if seed % 2 == 0 {
            tier(&mut store, &[put("c", 3)]);
        }
        let seen = store.ages().len();
        let after = Store::open(&next.restart(seed)).unwrap().ages().len();
        assert_eq!(after, seen, "seed {seed}");
    }
}

#[test]
fn an_empty_flush_is_a_checkpoint_only() {
    let store = store();
    store.index.freeze(Checkpoint { ..crate::common::checkpoint(8) });
    assert!(store.flush_one().unwrap());
    assert!(store.run_files().is_empty());
    assert_eq!(
        Store::open(&store.vfs.fork()).unwrap().opened.checkpoint,
        crate::common::checkpoint(8)
    );
}

/// Returns the manifest of `store`, and the offsets of its last edit and of the repetition.
fn last_edit(store: &Store) -> (std::path::PathBuf, [u64; 2]) {
    let dir = std::path::Path::new(crate::common::DIR);
    let entries = store.vfs.list(dir).unwrap();
    let name = entries.into_iter().map(|e| e.name).find(|name| name.starts_with("manifest"));
    let path = dir.join(name.unwrap());
    let mut offsets = Vec::new();
    inspect_manifest(&store.vfs, &path, &mut |record| offsets.push(record.offset)).unwrap();
    let [.., edit, repetition] = offsets[..] else { panic!("{offsets:?}") };
    (path, [edit, repetition])
}

#[test]
fn a_damaged_edit_costs_no_run_and_the_manifest_can_be_rebuilt() {
    let mut store = store();
    let ops: Vec<Op> = (0..300).map(|n| put(format!("key-{n:05}"), 3 * n + 1)).collect();
    tier(&mut store, &ops);
    tier(
        &mut store,
        &[put("key-00001", 9), delete("key-00002"), delete_range("key-0001", "key-0003")],
    );
    let version = store.index.version();
    let lower = &version.tiers()[1];
    let runs = lower.runs.iter().map(|run| run.id()).skip(1).take(2).collect();
    let inputs = MergeInputs::Runs { age: lower.age, runs };
    drop(version);
    for spec in [MergeSpec { inputs, cause: Cause::Sort }, all(&store)] {
        store.finish(store.index.start_merge(spec, None, 0).unwrap()).unwrap();
        store.index.purge().unwrap();
        let (path, writings) = last_edit(&store);
        // Another edit follows both copies.
        store.index.edit(Edit::GcState(Bytes::new())).unwrap();
        let vfs = store.vfs.fork();
        for offset in writings {
            Store::open(&vfs.fork()).unwrap();
            let byte = vfs.read_file(&path).unwrap()[offset as usize + 20];
            vfs.corrupt(&path, offset + 20, &[byte ^ 1]).unwrap();
        }
        let opened = Store::open(&vfs).map(|_| ());
        assert!(matches!(opened, Err(Error::Corrupt { .. })), "{opened:?}");
        let files: Vec<String> =
            vfs.list(path.parent().unwrap()).unwrap().into_iter().map(|e| e.name).collect();
        assert!(store.run_files().iter().all(|run| files.contains(run)));
        let shared: Arc<dyn Vfs> = Arc::new(vfs.clone());
        let rebuilt =
            rebuild(&shared, path.parent().unwrap(), &crate::common::small_options()).unwrap();
        assert_eq!(rebuilt.checkpoint, store.index.checkpoint());
        let again = Store::open(&vfs).unwrap();
        assert_eq!(again.contents().unwrap(), store.contents().unwrap());
        assert_eq!(again.index.version().live(), store.index.version().live());
        again.check_files("rebuilt");
    }
}

/// Rebuilds the manifest of a copy of `store`. Returns what the copy then holds.
fn rebuilt(store: &Store) -> Result<crate::common::Model> {
    let dir = std::path::Path::new(crate::common::DIR);
    let vfs = store.vfs.fork();
    for entry in vfs.list(dir)?.into_iter().filter(|entry| entry.name.starts_with("manifest")) {
        vfs.unlink(&dir.join(entry.name))?;
    }
    let shared: Arc<dyn Vfs> = Arc::new(vfs.clone());
    rebuild(&shared, dir, &crate::common::small_options())?;
    Store::open(&vfs)?.contents()
}

#[test]
fn a_rebuilt_manifest_has_an_install_beside_the_jobs_after_a_later_open() {
    let mut store = store();
    tier(&mut store, &[put("a0", 1), put("z", 2)]);
    for (n, key) in [(3, b"a1"), (4, b"a2"), (5, b"a3")] {
        let region = Some((RegionId(2), (LogIndex(u64::from(n)), Term(1))));
        store.install(&[KeyRange::new("a", "b")], region, &[(key, n)]).unwrap();
        store = Store::open(&store.vfs.fork()).unwrap();
        tier(&mut store, &[put(format!("d{n}"), n)]);
        assert_eq!(rebuilt(&store).unwrap(), store.contents().unwrap());
    }
    merge_all(&store, 0);
    assert_eq!(rebuilt(&store).unwrap(), store.contents().unwrap());
}

#[test]
fn a_full_device_fails_a_merge_and_nothing_else() {
    let mut store = store();
    let ops: Vec<Op> = (0..300).map(|n| put(format!("key-{n:05}"), 3 * n + 1)).collect();
    tier(&mut store, &ops);
    let contents = store.contents().unwrap();
    store.vfs.inject(Fault::NoSpace { from_operation: store.vfs.operations() }).unwrap();
    let failed = store.finish(store.index.start_merge(all(&store), None, 0).unwrap());
    assert!(matches!(failed, Err(Error::NoSpace(_))), "{failed:?}");
    assert!(!store.index.poisoned());
    assert_eq!(store.contents().unwrap(), contents);
    store.vfs.clear_faults();
    merge_all(&store, 0);
    assert_eq!(store.contents().unwrap(), contents);
    store.check_files("after a full device");
}

#[test]
fn a_lost_run_is_reported_and_nothing_else_is_removed() {
    let mut store = store();
    tier(&mut store, &[put("a", 1)]);
    tier(&mut store, &[put("b", 2)]);
    let lost = store.run_files().into_iter().next().unwrap();
    let vfs = store.vfs.fork();
    vfs.unlink(&std::path::Path::new(crate::common::DIR).join(lost)).unwrap();
    let opened = Store::open(&vfs).map(|_| ());
    assert!(matches!(opened, Err(Error::Missing { .. })), "{opened:?}");
    let left = vfs.list(std::path::Path::new(crate::common::DIR)).unwrap();
    assert_eq!(left.len(), 2);
    assert!(matches!(reference(3), ValueRef::Inline(_)));
}
