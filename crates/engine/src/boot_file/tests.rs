use super::*;
use stele_simulated_disk::{CrashAt, CrashPoint, SimVfs};

const DIR: &str = "/s";

fn disk() -> SimVfs {
    let disk = SimVfs::default();
    disk.create_dir_all(&Path::new(DIR).join(PLACE_OF)).unwrap();
    disk
}

fn files(disk: &SimVfs) -> Arc<dyn Vfs> {
    Arc::new(disk.clone())
}

fn known(count: u64, ids: &[u128]) -> StoreRun {
    let lineage = Lineage::new(ids.iter().copied().map(StartId));
    StoreRun { boot: Boot { count, nonce: 1 }, lineage }
}

fn start(disk: &SimVfs, id: u128) -> Result<Started> {
    start_with(disk, id, StoreRun::default(), false)
}

fn start_with(disk: &SimVfs, id: u128, known: StoreRun, may_move: bool) -> Result<Started> {
    let start = DirStart { id: StartId(id), nonce: 9, known, may_have_moved: may_move };
    start.count(&files(disk), Path::new(DIR))
}

fn ids(started: &Started) -> Vec<u128> {
    started.run.lineage.ids().iter().map(|id| id.0).collect()
}

#[test]
fn every_start_of_a_directory_comes_after_what_was_stated_wherever_the_power_is_cut() {
    let base = disk();
    assert_eq!(ids(&start(&base, 1).unwrap()), [1]);
    assert_eq!(ids(&start(&base, 2).unwrap()), [2, 1]);
    let whole = base.fork();
    start(&whole, 3).unwrap();
    for (operation, at) in (0..whole.operations()).flat_map(|i| CrashAt::ALL.map(|at| (i, at))) {
        let disk = base.fork();
        disk.crash_at(CrashPoint { operation, at });
        let stated = start(&disk, 3).ok();
        for seed in 0..8 {
            let after = start(&disk.restart(seed), 4).unwrap().run;
            let (count, last) = stated.as_ref().map_or((2, 2), |it| (it.run.boot.count, 3));
            assert!(after.boot.count > count, "{operation} {at:?} {seed}");
            assert!(after.lineage.holds(StartId(last)), "{operation} {at:?} {seed}: {after:?}");
        }
    }
}

#[test]
fn a_new_directory_of_which_the_first_start_was_cut_starts_as_its_first_run() {
    let whole = disk();
    start(&whole, 1).unwrap();
    for (operation, at) in (0..whole.operations()).flat_map(|i| CrashAt::ALL.map(|at| (i, at))) {
        let disk = disk();
        disk.crash_at(CrashPoint { operation, at });
        let stated = start(&disk, 1).is_ok();
        for seed in 0..4 {
            let after = disk.restart(seed);
            if !after.exists(&Path::new(DIR).join(PLACE_OF)).unwrap() {
                continue;
            }
            let next = start(&after, 2).unwrap();
            assert!(!next.has_moved, "{operation} {at:?} {seed}");
            let expected = [vec![2], vec![2, 1]];
            let is_known = expected[usize::from(stated)..].contains(&ids(&next));
            assert!(is_known, "{operation} {at:?} {seed}: {:?} after {stated}", ids(&next));
        }
    }
}

#[test]
fn the_reason_of_a_stop_is_replaced_only_while_the_directory_is_stopped() {
    let disk = disk();
    start(&disk, 1).unwrap();
    let (vfs, dir) = (files(&disk), Path::new(DIR));
    assert!(!describe_stop(&vfs, dir, "both").unwrap(), "it runs");
    stop_beside(&vfs, dir, &Lineage::new([StartId(8)]), "another run").unwrap();
    assert!(describe_stop(&vfs, dir, "what both hold").unwrap());
    assert!(start(&disk, 2).unwrap_err().to_string().contains("what both hold"));
    keep_run(&vfs, dir).unwrap();
    assert!(!describe_stop(&vfs, dir, "both").unwrap(), "the operator has chosen");
    assert!(start(&disk, 3).unwrap().run.lineage.holds(StartId(8)), "the other run stays recorded");
}

#[test]
fn a_missing_or_damaged_file_goes_on_after_what_is_known_from_elsewhere() {
    let disk = disk();
    let file = Path::new(DIR).join(NAME);
    let next = |id, known| start_with(&disk, id, known, false).unwrap();
    assert_eq!(next(1, known(0, &[])).run.boot, Boot { count: 1, nonce: 9 });
    assert_eq!(ids(&next(2, known(7, &[70]))), [2, 1], "what it holds itself is newer");
    assert_eq!(next(3, known(3, &[70])).run.boot.count, 9);
    disk.corrupt(&file, 17, b"8").unwrap();
    let after = next(4, known(40, &[40, 39]));
    assert_eq!((after.run.boot.count, ids(&after)), (41, vec![4, 40, 39]), "the checksum differs");
    disk.unlink(&file).unwrap();
    assert_eq!(ids(&next(5, known(0, &[]))), [5]);
}

#[test]
fn a_file_of_an_earlier_version_counts_as_continued_once() {
    let disk = disk();
    let written =
        checked_text::write(&files(&disk), Path::new(DIR), NAME, "stele boot\ncount 6\n", true);
    written.unwrap();
    let moved = disk.copy();
    for disk in [&disk, &moved] {
        let first = start(disk, 1).unwrap();
        assert_eq!((first.run.boot.count, ids(&first), first.has_moved), (7, vec![1], false));
    }
    assert!(start(&moved.copy(), 2).is_err(), "from now on its place is known");
}

#[test]
fn a_copied_directory_starts_only_where_the_operator_says_that_it_was_moved() {
    let original = disk();
    start(&original, 1).unwrap();
    let copy = original.copy();
    let error = start(&copy, 2).unwrap_err();
    assert!(matches!(error, Error::WrongStore { .. }), "{error}");
    assert!(error.to_string().contains("--moved-directory /s"), "{error}");
    assert!(start(&original.fork(), 2).is_ok_and(|it| !it.has_moved), "a disk in another machine");
    let moved = start_with(&copy, 3, StoreRun::default(), true).unwrap();
    assert_eq!((ids(&moved), moved.has_moved), (vec![3, 1], true));
    assert!(start(&copy, 4).is_ok_and(|it| !it.has_moved), "it is said once");
    copy.set_places(false);
    assert!(start(&copy, 5).is_ok_and(|it| !it.has_moved), "a file system without such numbers");
}

#[test]
fn a_start_on_a_full_device_goes_on_as_the_run_before_it() {
    let disk = disk();
    start(&disk, 1).unwrap();
    disk.set_capacity(Some(0));
    let full = start(&disk, 2).unwrap();
    assert_eq!((ids(&full), full.run.boot.count), (vec![1], 0));
    assert!(start(&disk.copy(), 3).is_err(), "a copy is refused there too");
    disk.set_capacity(None);
    assert_eq!(ids(&start(&disk, 4).unwrap()), [4, 1]);
}

#[test]
fn a_stopped_directory_starts_again_after_both_runs_once_it_is_kept() {
    let disk = disk();
    start(&disk, 1).unwrap();
    start(&disk, 2).unwrap();
    let (vfs, dir) = (files(&disk), Path::new(DIR));
    assert!(keep_run(&vfs, dir).is_err(), "it was not stopped");
    let rival = Lineage::new([8, 1].map(StartId));
    stop_beside(&vfs, dir, &rival, "another run\nanswers at b:1").unwrap();
    let error = start(&disk, 3).unwrap_err();
    assert!(error.to_string().contains("another runanswers at b:1"), "{error}");
    stop_beside(&vfs, dir, &Lineage::new([9, 8].map(StartId)), "again").unwrap();
    keep_run(&vfs, dir).unwrap();
    let kept = start(&disk, 4).unwrap();
    assert_eq!(ids(&kept), [4, 2, 1, 9, 8]);
}

#[test]
fn a_kept_run_comes_after_the_newest_starts_of_both_however_many_there_are() {
    let disk = disk();
    (1..=100).for_each(|id| drop(start(&disk, id).unwrap()));
    let rival = Lineage::new((1000..1065).map(StartId));
    stop_beside(&files(&disk), Path::new(DIR), &rival, "another run").unwrap();
    keep_run(&files(&disk), Path::new(DIR)).unwrap();
    let kept = start(&disk, 200).unwrap().run.lineage;
    assert!([100, 70, 1000, 1030].into_iter().all(|id| kept.holds(StartId(id))), "{kept:?}");
}

#[test]
fn a_device_that_fails_is_reported() {
    let disk = disk();
    start(&disk, 1).unwrap();
    disk.crash_now();
    assert!(matches!(start(&disk, 2), Err(Error::Io { .. })));
}
