use super::*;
use crate::cursor::Found as Entry;
use crate::run::{RunExtra, RunOptions, RunWriter, run_path};
use crate::{Checkpoint, Index, IndexOptions, JobStep};
use stele_simulated_disk::{CrashAt, CrashPoint, Fault, SimVfs};
use stele_types::size::FORMAT_VERSION;
use stele_types::{RunId, Seq, ValueRef};

const LIMIT: u64 = 6000;

fn dir() -> &'static Path {
    Path::new("index")
}

fn open(vfs: &SimVfs) -> Result<(Manifest, ManifestRecovery)> {
    vfs.create_dir_all(dir())?;
    Manifest::open(Arc::new(vfs.clone()), dir(), LIMIT)
}

/// Appends `count` edits; returns how many succeeded.
fn append(vfs: &SimVfs, count: u32) -> u32 {
    let Ok((mut manifest, _)) = open(vfs) else { return 0 };
    (1..=count)
        .take_while(|&n| {
            // Different lengths, so that sector boundaries fall everywhere.
            let state = Bytes::from(n.to_le_bytes().repeat(1 + n as usize * 37 % 130));
            manifest
                .append(&[Change::GcState(state), Change::AddRun(RunId(u64::from(n % 7)), 1024)])
                .is_ok()
        })
        .count() as u32
}

fn last_edit(manifest: &Manifest) -> u32 {
    manifest.state().gc_state.first_chunk().map_or(0, |first| u32::from_le_bytes(*first))
}

fn only_manifest(vfs: &SimVfs) -> PathBuf {
    let numbers = numbers(vfs, dir()).unwrap();
    path_of(dir(), *numbers.last().unwrap())
}

#[test]
fn edits_survive_reopening_and_the_file_is_rewritten_when_long() {
    let vfs = SimVfs::default();
    assert_eq!(append(&vfs, 100), 100);
    let (manifest, found) = open(&vfs).unwrap();
    assert_eq!((last_edit(&manifest), found.created, found.tail_cut_bytes), (100, false, 0));
    assert_eq!(manifest.state().runs.len(), 7);
    assert!(manifest.end.number > 3, "{:?}", manifest.end);
    assert!(manifest.end.offset < 2 * LIMIT);
    assert_eq!(numbers(&vfs, dir()).unwrap(), [manifest.end.number]);
    manifest.verify().unwrap();
}

#[test]
fn a_crash_at_any_operation_keeps_every_finished_edit() {
    let whole = SimVfs::default();
    append(&whole, 40);
    let mut points = 0;
    for operation in 0..whole.operations() {
        for at in CrashAt::ALL {
            for seed in 0..8 {
                let vfs = SimVfs::default();
                vfs.crash_at(CrashPoint { operation, at });
                let acknowledged = append(&vfs, 40);
                let after = vfs.restart(seed);
                let (manifest, _) = open(&after).unwrap_or_else(|error| {
                    panic!("operation {operation} {at:?} seed {seed}: {error}")
                });
                let got = last_edit(&manifest);
                let kept = got == acknowledged || got == acknowledged + 1;
                assert!(kept, "operation {operation} {at:?} seed {seed}: {got} of {acknowledged}");
                manifest.remove_leftovers().unwrap();
                assert_eq!(after.list(dir()).unwrap().len(), 1);
                points += 1;
            }
        }
    }
    println!("{points} crash points");
}

fn frames_of(vfs: &SimVfs) -> Vec<(u64, Vec<Change>)> {
    let mut frames = Vec::new();
    frame::inspect(vfs, &only_manifest(vfs), &mut |record| {
        frames.push((record.offset, record.content.unwrap()));
    })
    .unwrap();
    frames
}

fn flip(vfs: &SimVfs, offset: u64) {
    let path = only_manifest(vfs);
    let byte = vfs.read_file(&path).unwrap()[offset as usize];
    vfs.corrupt(&path, offset, &[byte ^ 0x10]).unwrap();
}

#[test]
fn damage_of_any_byte_costs_nothing_and_is_gone_once_the_manifest_is_written_anew() {
    let vfs = SimVfs::default();
    append(&vfs, 5);
    let state = open(&vfs.fork()).unwrap().0.state().clone();
    for offset in 0..vfs.file_bytes(only_manifest(&vfs)).unwrap() {
        let damaged = vfs.fork();
        flip(&damaged, offset);
        let (mut manifest, _) = open(&damaged).unwrap_or_else(|error| panic!("{offset}: {error}"));
        assert_eq!(*manifest.state(), state, "byte {offset}");
        manifest.rewrite().unwrap();
        manifest.verify().unwrap();
        assert_eq!(open(&damaged).unwrap().0.state(), &state);
    }
}

#[test]
fn damage_before_valid_frames_is_reported_and_nothing_is_cut() {
    let vfs = SimVfs::default();
    append(&vfs, 5);
    let path = only_manifest(&vfs);
    let bytes = vfs.file_bytes(&path);
    // Both copies of each edit but the last.
    for pair in frames_of(&vfs).chunks(2).rev().skip(1) {
        let damaged = vfs.fork();
        pair.iter().for_each(|(offset, _)| flip(&damaged, offset + 19));
        let error = open(&damaged).unwrap_err();
        assert!(error.is_damage(), "{error}");
        assert_eq!(damaged.file_bytes(&path), bytes);
    }
}

/// The log may no longer hold what the last edit made current: its truncation would go unnoticed.
#[test]
fn damage_of_the_last_edit_is_made_good_also_after_a_power_cut() {
    for seed in 0..20 {
        let vfs = SimVfs::default();
        append(&vfs, 5);
        let vfs = vfs.restart(seed);
        let frames = frames_of(&vfs);
        let (last, _) = frames[frames.len() - 2];
        flip(&vfs, last + frame::FRAME_HEADER_BYTES as u64 + 3);
        assert_eq!(last_edit(&open(&vfs).unwrap().0), 5, "seed {seed}");
    }
}

#[test]
fn a_lost_repetition_before_a_later_edit_costs_nothing() {
    let vfs = SimVfs::default();
    append(&vfs, 5);
    let path = only_manifest(&vfs);
    let frames = frames_of(&vfs);
    assert_eq!(frames.len(), 2 * (1 + 5));
    for pair in frames.chunks(2) {
        assert_eq!(pair[0].1, pair[1].1);
        vfs.corrupt(&path, pair[1].0, &[0; frame::FRAME_HEADER_BYTES]).unwrap();
        assert_eq!(last_edit(&open(&vfs.fork()).unwrap().0), 5);
    }
}

/// An earlier build wrote an empty frame instead of the repetition, under an earlier version.
#[test]
fn a_manifest_of_edits_that_are_not_repeated_opens() {
    let vfs = SimVfs::default();
    append(&vfs, 1);
    let (mut content, mut end) = frame::header_of(FORMAT_VERSION, 9);
    for n in 1..4u32 {
        let mut body = Vec::new();
        Change::GcState(Bytes::from(n.to_le_bytes().to_vec())).encode(&mut body);
        for body in [&body[..], &[]] {
            let (frame, behind) = frame::encode_frame(end, body);
            content.extend_from_slice(&frame);
            end = behind;
        }
    }
    vfs.write_file(path_of(dir(), 9), &content);
    assert_eq!(last_edit(&open(&vfs.fork()).unwrap().0), 3);
    let frames = frames_of(&vfs);
    for (offset, changes) in frames {
        let damaged = vfs.fork();
        flip(&damaged, offset + 5);
        let opened = open(&damaged);
        // Empty frames contain no change.
        assert_eq!(opened.is_ok(), changes.is_empty(), "{offset}");
    }
}

#[test]
fn a_torn_tail_is_cut_and_writing_goes_on() {
    let vfs = SimVfs::default();
    append(&vfs, 5);
    let path = only_manifest(&vfs);
    let content = vfs.read_file(&path).unwrap();
    let frames = frames_of(&vfs);
    let (last_edit_ends, _) = frames[frames.len() - 1];
    vfs.write_file(&path, &content[..last_edit_ends as usize - 9]);
    let (mut manifest, found) = open(&vfs).unwrap();
    assert_eq!(last_edit(&manifest), 4);
    assert!(found.tail_cut_bytes > 0);
    manifest.append(&[Change::GcState(Bytes::from(9u32.to_le_bytes().to_vec()))]).unwrap();
    assert_eq!(last_edit(&open(&vfs).unwrap().0), 9);
}

#[test]
fn a_failed_sync_stops_all_further_edits() {
    let vfs = SimVfs::default();
    let (mut manifest, _) = open(&vfs).unwrap();
    vfs.inject(Fault::SyncFails { path_contains: "manifest".to_owned(), nth: 1 }).unwrap();
    assert!(manifest.append(&[Change::MergeDone]).is_err());
    assert!(matches!(manifest.append(&[Change::MergeDone]), Err(Error::Poisoned(_))));
    assert!(manifest.poisoned());
}

#[test]
fn a_full_device_does_not_poison_and_later_edits_pass() {
    let vfs = SimVfs::default();
    append(&vfs, 3);
    let (mut manifest, _) = open(&vfs).unwrap();
    vfs.inject(Fault::NoSpace { from_operation: vfs.operations() }).unwrap();
    let large = Bytes::from(vec![7; 20_000]);
    let refused = manifest.append(&[Change::GcState(large), Change::NextFile(FileId(9))]);
    assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
    vfs.clear_faults();
    assert_eq!(open(&vfs.fork()).unwrap().0.state().next_file, FileId(0));
    manifest.append(&[Change::NextFile(FileId(4))]).unwrap();
    assert_eq!(open(&vfs).unwrap().0.state().next_file, FileId(4));
}

#[test]
fn a_manifest_without_room_for_its_new_name_goes_on_under_the_old_one() {
    let vfs = SimVfs::default();
    append(&vfs, 5);
    let (mut manifest, _) = open(&vfs).unwrap();
    let number = manifest.end.number;
    vfs.inject(Fault::NoRoomForName { path_contains: "manifest-".into(), nth: 1 }).unwrap();
    assert!(!manifest.rewrite().unwrap());
    assert!(!manifest.poisoned());
    assert_eq!(vfs.list(dir()).unwrap().len(), 1, "the unfinished one takes no space");
    manifest.append(&[Change::GcState(Bytes::from_static(b"\x09\0\0\0"))]).unwrap();
    assert_eq!(manifest.end.number, number);
    drop(manifest);
    for seed in 0..8 {
        assert_eq!(last_edit(&open(&vfs.restart(seed)).unwrap().0), 9);
    }
    let (mut manifest, _) = open(&vfs).unwrap();
    assert!(manifest.rewrite().unwrap());
    assert_eq!(manifest.end.number, number + 1);
}

#[test]
fn a_rename_or_a_sync_of_its_name_that_fails_stops_the_manifest() {
    let faults = [
        Fault::RenameFails { path_contains: "manifest-".into(), nth: 1 },
        Fault::SyncDirFails { path_contains: "index".into(), nth: 1 },
    ];
    for (fault, seed) in faults.iter().flat_map(|fault| (0..16).map(move |seed| (fault, seed))) {
        let vfs = SimVfs::new(stele_simulated_disk::SimOptions { seed, ..Default::default() });
        append(&vfs, 5);
        let (mut manifest, _) = open(&vfs).unwrap();
        vfs.inject(fault.clone()).unwrap();
        assert!(matches!(manifest.rewrite(), Err(Error::Io { .. })), "{fault:?}");
        assert!(manifest.poisoned());
        let refused = manifest.append(&[Change::GcState(Bytes::from_static(b"later"))]);
        assert!(matches!(refused, Err(Error::Poisoned(_))), "{refused:?}");
        drop(manifest);
        assert_eq!(last_edit(&open(&vfs.restart(seed)).unwrap().0), 5, "{fault:?}, seed {seed}");
    }
}

#[test]
fn runs_without_a_manifest_are_not_taken_for_a_new_index() {
    let vfs = SimVfs::default();
    vfs.create_dir_all(dir()).unwrap();
    vfs.write_file(dir().join("00000001.run"), b"something");
    assert!(matches!(open(&vfs), Err(Error::Missing { .. })));
}

#[test]
fn runs_that_are_the_same_part_of_a_job_are_refused_by_a_rebuild() {
    let vfs = SimVfs::default();
    vfs.create_dir_all(dir()).unwrap();
    let shared: Arc<dyn Vfs> = Arc::new(vfs.clone());
    let write = |id: u64, job: u64| {
        let options = RunOptions { block_bytes: 512, filter_bits_per_key: 10 };
        let run = RunWriter::create(&shared, dir(), RunId(id), &options, Cause::Flush);
        let mut run = run.unwrap();
        let value = ValueRef::Inline(Bytes::from_static(b"value"));
        run.add(b"key", &Entry::Value { value, expires_at_s: 0 }).unwrap();
        let checkpoint = rebuild::FooterState::default().encode();
        let extra = RunExtra { age: id, job, last_part: true, checkpoint, ..RunExtra::default() };
        run.finish(extra).unwrap();
    };
    write(1, 7);
    write(2, 8);
    let rebuild = |vfs: SimVfs| {
        let shared: Arc<dyn Vfs> = Arc::new(vfs);
        rebuild::rebuild(&shared, dir(), &IndexOptions::default())
    };
    assert_eq!(rebuild(vfs.fork()).unwrap().runs, [RunId(2), RunId(1)]);
    write(3, 7);
    let refused = rebuild(vfs.clone());
    assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    assert_eq!((numbers(&vfs, dir()).unwrap().len(), vfs.list(dir()).unwrap().len()), (0, 3));
}

#[test]
fn inspection_shows_frames_and_skips_damage() {
    let vfs = SimVfs::default();
    append(&vfs, 4);
    let path = only_manifest(&vfs);
    let read = |vfs: &SimVfs| {
        let mut records = Vec::new();
        frame::inspect(vfs, &path, &mut |record| records.push(record)).unwrap();
        records
    };
    let records = read(&vfs);
    // A snapshot, then each edit, each with its repetition.
    assert_eq!(records.len(), 2 * (1 + 4));
    assert!(records.iter().all(|record| record.content.is_ok()));
    vfs.corrupt(&path, records[3].offset + 17, &[0xff]).unwrap();
    let damaged = read(&vfs);
    let bad = damaged.iter().filter(|record| record.content.is_err()).count();
    assert_eq!(bad, 1, "{damaged:?}");
}

#[test]
fn a_manifest_of_an_earlier_build_gets_copies_of_footers_when_it_is_opened() {
    let vfs = SimVfs::default();
    let options = IndexOptions { open_damaged_runs: true, ..IndexOptions::default() };
    let open_index = |vfs: &SimVfs| Index::open(Arc::new(vfs.clone()), dir(), options.clone());
    let (index, _) = open_index(&vfs).unwrap();
    index.put(Seq(1), b"key", ValueRef::Inline("value".into()), 0);
    index.publish(Seq(1));
    index.freeze(Checkpoint::default());
    let mut flush = index.start_flush().unwrap();
    let JobStep::Done(done) = flush.step(u64::MAX).unwrap() else { panic!("more than a key") };
    index.commit(done).unwrap();
    drop((index, flush));

    let (mut manifest, _) = open(&vfs).unwrap();
    let (run, age) =
        manifest.state().runs.first_key_value().map(|(run, age)| (*run, *age)).unwrap();
    manifest.append(&[Change::RemoveRun(run), Change::AddRun(run, age)]).unwrap();
    assert!(manifest.state().footers.is_empty());
    drop(manifest);
    let gone = vfs.fork();
    gone.unlink(&run_path(dir(), run)).unwrap();
    assert!(matches!(open_index(&gone), Err(Error::Missing { .. })));

    drop(open_index(&vfs).unwrap());
    vfs.unlink(&run_path(dir(), run)).unwrap();
    let (index, opened) = open_index(&vfs).unwrap();
    assert_eq!(opened.damaged, [run]);
    assert!(index.get(b"key").is_err_and(|error| error.is_damage()));
    assert_eq!(index.get(b"other").unwrap(), None);
}
