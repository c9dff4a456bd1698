//! Without a crash a simulated disk behaves like a map from names to bytes, and every restart
//! agrees with what was synced.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_simulated_disk::SimVfs;
use stele_types::Cause;
use stele_vfs::{CopyOnWriteVfs, Create, DirEntry, Open, Vfs};

#[derive(Clone, Debug)]
enum Step {
    Write { file: u8, offset: u16, bytes: u16, fill: u8 },
    SetLen { file: u8, bytes: u16 },
    Allocate { file: u8, bytes: u16 },
    Sync { file: u8 },
    Rename { from: u8, to: u8 },
    Unlink { file: u8 },
    SyncDir,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let file = 0..4u8;
    let place = (file.clone(), 0..9000u16, 0..6000u16, 1..=255u8);
    let step = prop_oneof![
        6 => place.prop_map(|(file, offset, bytes, fill)| Step::Write { file, offset, bytes, fill }),
        1 => (file.clone(), 0..9000u16).prop_map(|(file, bytes)| Step::SetLen { file, bytes }),
        1 => (file.clone(), 0..9000u16).prop_map(|(file, bytes)| Step::Allocate { file, bytes }),
        2 => file.clone().prop_map(|file| Step::Sync { file }),
        1 => (file.clone(), file.clone()).prop_map(|(from, to)| Step::Rename { from, to }),
        1 => file.prop_map(|file| Step::Unlink { file }),
        1 => Just(Step::SyncDir),
    ];
    proptest::collection::vec(step, 1..60)
}

fn path(file: u8) -> PathBuf {
    Path::new("d").join(format!("{file}"))
}

type Model = BTreeMap<u8, Vec<u8>>;

fn model_step(model: &mut Model, step: &Step) {
    match *step {
        Step::Write { file, offset, bytes, fill } => {
            let content = model.entry(file).or_default();
            let (from, to) = (usize::from(offset), usize::from(offset) + usize::from(bytes));
            if bytes > 0 && content.len() < to {
                content.resize(to, 0);
            }
            if bytes > 0 {
                content[from..to].fill(fill);
            }
        }
        Step::SetLen { file, bytes } => model.entry(file).or_default().resize(bytes.into(), 0),
        Step::Allocate { file, .. } | Step::Sync { file } => {
            model.entry(file).or_default();
        }
        Step::Rename { from, to } => {
            if let Some(content) = model.remove(&from) {
                model.insert(to, content);
            }
        }
        Step::Unlink { file } => {
            model.remove(&file);
        }
        Step::SyncDir => {}
    }
}

fn disk_step(vfs: &dyn Vfs, step: &Step) {
    let open =
        |file| vfs.open(&path(file), Open { create: Create::IfMissing, ..Open::WRITE }).unwrap();
    match *step {
        Step::Write { file, offset, bytes, fill } => {
            let data = vec![fill; bytes.into()];
            let (one, two) = data.split_at(data.len() / 3);
            let parts = [IoSlice::new(one), IoSlice::new(two)];
            open(file).write_at(&parts, offset.into(), Cause::Log).unwrap();
        }
        Step::SetLen { file, bytes } => open(file).set_len(bytes.into()).unwrap(),
        Step::Allocate { file, bytes } => open(file).allocate(bytes.into()).unwrap(),
        Step::Sync { file } => open(file).sync_data().unwrap(),
        Step::Rename { from, to } => {
            if vfs.exists(&path(from)).unwrap() {
                vfs.rename(&path(from), &path(to)).unwrap();
            }
        }
        Step::Unlink { file } => {
            if vfs.exists(&path(file)).unwrap() {
                vfs.unlink(&path(file)).unwrap();
            }
        }
        Step::SyncDir => vfs.sync_dir(Path::new("d")).unwrap(),
    }
}

fn content(vfs: &dyn Vfs) -> Model {
    let read = |entry: DirEntry| {
        let file = entry.name.parse().unwrap();
        let handle = vfs.open(&path(file), Open::READ).unwrap();
        let mut bytes = vec![0; entry.bytes as usize];
        handle.read_exact_at(&mut bytes, 0).unwrap();
        (file, bytes)
    };
    vfs.list(Path::new("d")).unwrap().into_iter().map(read).collect()
}

fn new_disk() -> SimVfs {
    let vfs = SimVfs::default();
    vfs.create_dir_all(Path::new("d")).unwrap();
    vfs
}

/// A drawn seed, or the one in `STELE_SEED`; printed with a failure.
fn seeded(cases: u32) -> ProptestConfig {
    let drawn = || RandomState::new().hash_one(0);
    let given = std::env::var("STELE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(drawn);
    eprintln!("replay: STELE_SEED={seed} cargo test -p stele-vfs --test all model");
    let (rng_seed, failure_persistence) = (RngSeed::Fixed(seed), None);
    ProptestConfig { cases, rng_seed, failure_persistence, ..ProptestConfig::default() }
}

#[test]
fn an_empty_write_behind_the_end_changes_nothing() {
    let vfs = new_disk();
    let step = Step::Write { file: 0, offset: 1, bytes: 0, fill: 1 };
    disk_step(&vfs, &step);
    assert_eq!(content(&vfs), Model::from([(0, vec![])]));
}

proptest! {
    #![proptest_config(seeded(200))]

    #[test]
    fn equals_a_map_of_bytes(steps in steps(), seed: u64) {
        let vfs = new_disk();
        let mut model = Model::new();
        for step in &steps {
            disk_step(&vfs, step);
            model_step(&mut model, step);
        }
        prop_assert_eq!(content(&vfs), model.clone());
        prop_assert_eq!(content(&vfs.fork()), model.clone());
        for &file in model.keys() {
            disk_step(&vfs, &Step::Sync { file });
        }
        disk_step(&vfs, &Step::SyncDir);
        prop_assert_eq!(content(&vfs.restart(seed)), model);
    }

    #[test]
    fn changes_of_a_copy_equal_a_map_of_bytes_and_the_files_below_stay_as_they_were(
        below in steps(),
        above in steps(),
    ) {
        let disk = new_disk();
        let mut model = Model::new();
        for step in &below {
            disk_step(&disk, step);
            model_step(&mut model, step);
        }
        let (before, operations) = (model.clone(), disk.operations());
        let copy = CopyOnWriteVfs::new(Arc::new(disk.clone()), 1 << 20);
        for step in &above {
            disk_step(&copy, step);
            model_step(&mut model, step);
            prop_assert_eq!(content(&copy), model.clone());
        }
        prop_assert_eq!(content(&disk), before);
        prop_assert_eq!(disk.operations(), operations);
        model.keys().for_each(|file| copy.unlink(&path(*file)).unwrap());
        prop_assert_eq!(copy.free_bytes(Path::new("d")).unwrap(), 1 << 20);
    }

    #[test]
    fn a_restart_never_shows_bytes_that_were_not_written(steps in steps(), seed: u64) {
        let vfs = new_disk();
        let mut fills = std::collections::BTreeSet::from([0]);
        for step in &steps {
            disk_step(&vfs, step);
            if let Step::Write { fill, .. } = step {
                fills.insert(*fill);
            }
        }
        let first = vfs.restart(seed);
        for bytes in content(&first).into_values() {
            prop_assert!(bytes.iter().all(|byte| fills.contains(byte)));
        }
        // What a restart found is durable: a second power cut changes nothing.
        prop_assert_eq!(content(&first.restart(seed ^ 1)), content(&first));
    }
}

#[test]
fn small_workloads_are_fast() {
    let vfs = new_disk();
    let started = std::time::Instant::now();
    let files: Vec<_> = (0..4).map(|i| vfs.open(&path(i), Open::CREATE).unwrap()).collect();
    for i in 0..1000u64 {
        let file = &files[(i % 4) as usize];
        file.write_at(&[IoSlice::new(&[1; 1024])], i / 4 * 1024, Cause::Log).unwrap();
        file.sync_data().unwrap();
    }
    let after = vfs.restart(1);
    let took = started.elapsed();
    assert_eq!(content(&after), content(&vfs));
    // Usually below 10 ms; the bound allows for a busy machine.
    assert!(took.as_millis() < 500, "2,000 operations took {took:?}");
    eprintln!("2,000 operations and a restart: {took:?}");
}
