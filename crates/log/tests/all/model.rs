//! Random batches, reopenings, crashes and removals against a model in memory.

use crate::common::model::{Model, Random};
use crate::common::*;
use stele_log::{FileKind, Log, RecoverFrom};
use stele_simulated_disk::SimVfs;
use stele_types::LogIndex;

fn run(seed: u64) {
    let mut disk = disk(seed);
    let mut random = Random(seed);
    let mut model = Model::default();
    let mut log = reopen(&disk, seed);
    for step in 0..150 {
        let what =
            || format!("step {step}; STELE_SEED={seed} cargo test -p stele-log --test all model");
        match random.below(20) {
            0 => log.confirm().unwrap(),
            1 => {
                drop(log);
                log = reopen(&disk, seed);
            }
            2 => {
                disk.crash_now();
                disk = disk.restart(random.next());
                log = reopen(&disk, seed);
            }
            3 => remove_dead(&log),
            4 => {
                log.reappend_tails(log.head().file, 20_000, &|_| LogIndex(u64::MAX)).unwrap();
            }
            5 => log.close().unwrap(),
            _ => {
                let batch = random.batch(&model, 2000);
                log.append(&batch).unwrap_or_else(|error| panic!("{}: {error}", what()));
                model.apply(&batch);
            }
        }
        if random.below(8) == 0 {
            assert_eq!(model.difference(&log), None, "{}", what());
        }
    }
    assert_eq!(model.difference(&log), None, "at the end; STELE_SEED={seed}");
    assert_eq!(log.verify(&mut |_| {}).unwrap().damaged, 0, "STELE_SEED={seed}");
}

fn reopen(disk: &SimVfs, seed: u64) -> Log {
    open_with(disk, options(), RecoverFrom::default())
        .unwrap_or_else(|error| panic!("{error}; STELE_SEED={seed}"))
        .0
}

fn remove_dead(log: &Log) {
    for info in log.files() {
        if matches!(info.kind, FileKind::Segment { sealed: true, .. }) && !info.wanted_by_raft {
            log.remove(info.file).unwrap();
        }
    }
}

#[test]
fn random_histories_match_the_model() {
    let first = seed();
    let rounds = if std::env::var("STELE_SEED").is_ok() { 1 } else { 60 };
    (first..first + rounds).for_each(run);
}
