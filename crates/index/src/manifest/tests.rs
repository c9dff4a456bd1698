use super::*;
use stele_types::RunId;
use stele_vfs::{CrashAt, CrashPoint, Fault, SimVfs};

const LIMIT: u64 = 6000;

fn dir() -> &'static Path {
    Path::new("index")
}

fn open(vfs: &SimVfs) -> Result<(Manifest, Found)> {
    vfs.create_dir_all(dir())?;
    Manifest::open(Arc::new(vfs.clone()), dir(), LIMIT)
}

/// Appends `count` edits; returns how many succeeded.
fn append(vfs: &SimVfs, count: u32) -> u32 {
    let Ok((mut manifest, _)) = open(vfs) else { return 0 };
    (1..=count)
        .take_while(|&n| {
            // Of many lengths, so that sector boundaries fall everywhere.
            let state = Bytes::from(n.to_le_bytes().repeat(1 + n as usize * 37 % 130));
            manifest
                .append(&[Change::GcState(state), Change::AddRun(RunId(u64::from(n % 7)), 1024)])
                .is_ok()
        })
        .count() as u32
}

fn last_edit(manifest: &Manifest) -> u32 {
    manifest.facts().gc_state.first_chunk().map_or(0, |first| u32::from_le_bytes(*first))
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
    assert_eq!(manifest.facts().runs.len(), 7);
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

#[test]
fn damage_before_valid_frames_is_reported_and_nothing_is_cut() {
    let vfs = SimVfs::default();
    append(&vfs, 5);
    let path = only_manifest(&vfs);
    let content = vfs.read_file(&path).unwrap();
    let mut reported = 0;
    for offset in (0..content.len() as u64).step_by(3) {
        let damaged = vfs.fork();
        damaged.corrupt(&path, offset, &[content[offset as usize] ^ 0x10]).unwrap();
        match open(&damaged) {
            Ok((manifest, _)) => assert_eq!(last_edit(&manifest), 5, "byte {offset} cost an edit"),
            Err(error) => {
                assert!(error.is_damage() || matches!(error, Error::NewerFormat { .. }), "{error}");
                assert_eq!(damaged.file_bytes(&path), Some(content.len() as u64));
                reported += 1;
            }
        }
    }
    assert!(reported > 20, "{reported}");
}

/// The log may no longer hold what the last edit made current: cut off, it would be missed by nobody.
#[test]
fn damage_of_the_last_edit_is_reported_also_after_a_power_cut() {
    for seed in 0..20 {
        let vfs = SimVfs::default();
        append(&vfs, 5);
        let vfs = vfs.restart(seed);
        let path = only_manifest(&vfs);
        let mut last = 0;
        inspect::inspect(&vfs, &path, &mut |record| {
            if record.content.is_ok_and(|changes| !changes.is_empty()) {
                last = record.offset;
            }
        })
        .unwrap();
        let bytes = vfs.file_bytes(&path);
        let at = last + frame::FRAME_HEADER_BYTES as u64 + 3;
        let byte = vfs.read_file(&path).unwrap()[at as usize];
        vfs.corrupt(&path, at, &[byte ^ 0x10]).unwrap();
        let error = open(&vfs).unwrap_err();
        assert!(error.is_damage(), "seed {seed}: {error}");
        assert_eq!(vfs.file_bytes(&path), bytes);
    }
}

#[test]
fn a_lost_confirmation_before_a_later_edit_costs_nothing() {
    let vfs = SimVfs::default();
    append(&vfs, 5);
    let path = only_manifest(&vfs);
    let mut offsets = Vec::new();
    inspect::inspect(&vfs, &path, &mut |record| {
        if record.content.is_ok_and(|changes| changes.is_empty()) {
            offsets.push(record.offset);
        }
    })
    .unwrap();
    assert_eq!(offsets.len(), 5);
    for offset in offsets {
        vfs.corrupt(&path, offset, &[0; frame::FRAME_HEADER_BYTES]).unwrap();
        assert_eq!(last_edit(&open(&vfs.fork()).unwrap().0), 5);
    }
}

#[test]
fn a_torn_tail_is_cut_and_writing_goes_on() {
    let vfs = SimVfs::default();
    append(&vfs, 5);
    let path = only_manifest(&vfs);
    let content = vfs.read_file(&path).unwrap();
    let last_edit_ends = content.len() - frame::FRAME_HEADER_BYTES;
    vfs.write_file(&path, &content[..last_edit_ends - 9]);
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
    assert_eq!(open(&vfs.fork()).unwrap().0.facts().next_file, FileId(0));
    manifest.append(&[Change::NextFile(FileId(4))]).unwrap();
    assert_eq!(open(&vfs).unwrap().0.facts().next_file, FileId(4));
}

#[test]
fn runs_without_a_manifest_are_not_taken_for_a_new_index() {
    let vfs = SimVfs::default();
    vfs.create_dir_all(dir()).unwrap();
    vfs.write_file(dir().join("00000001.run"), b"something");
    assert!(matches!(open(&vfs), Err(Error::Missing { .. })));
}

#[test]
fn inspection_shows_frames_and_skips_damage() {
    let vfs = SimVfs::default();
    append(&vfs, 4);
    let path = only_manifest(&vfs);
    let read = |vfs: &SimVfs| {
        let mut records = Vec::new();
        inspect::inspect(vfs, &path, &mut |record| records.push(record)).unwrap();
        records
    };
    let records = read(&vfs);
    // A snapshot, then each edit with its confirmation.
    assert_eq!(records.len(), 1 + 2 * 4);
    assert!(records.iter().all(|record| record.content.is_ok()));
    vfs.corrupt(&path, records[3].offset + 17, &[0xff]).unwrap();
    let damaged = read(&vfs);
    let bad = damaged.iter().filter(|record| record.content.is_err()).count();
    // The damaged frame itself, and the one after it, which no longer chains.
    assert!((1..=2).contains(&bad), "{damaged:?}");
}
