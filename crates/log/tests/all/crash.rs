//! Power cuts at every operation of a workload that appends, rolls, seals, truncates, removes,
//! recycles and sorts: everything acknowledged is kept, nothing torn is visible.

use crate::common::model::{Model, Random};
use crate::common::*;
use stele_log::{FileKind, Log, RecoverFrom};
use stele_simulated_disk::{CrashAt, CrashPoint, SimVfs};
use stele_types::{Cause, Locator, LogBatch, LogIndex, Lsn, Result};

#[derive(Default)]
struct Run {
    acked: Model,
    /// The batch in progress, if the crash happened during one.
    in_flight: Option<LogBatch>,
    /// Values in finished sorted files.
    sorted: Vec<(Locator, Vec<u8>)>,
}

fn append(log: &Log, run: &mut Run, batch: LogBatch) -> Result<()> {
    run.in_flight = Some(batch.clone());
    log.append(&batch)?;
    run.acked.apply(&batch);
    run.in_flight = None;
    Ok(())
}

fn script(disk: &SimVfs, run: &mut Run) -> Result<()> {
    let (log, _) = open_with(disk, options(), RecoverFrom::default())?;
    let mut random = Random(77);
    for step in 0..60 {
        let batch = random.batch(&run.acked, 1200);
        append(&log, run, batch)?;
        if step % 7 == 6 {
            log.confirm()?;
        }
        if step % 20 == 19 {
            write_sorted(&log, run, step)?;
            truncate_all(&log, run)?;
            log.reappend_tails(log.head().file, 1 << 20, &|_| LogIndex(u64::MAX))?;
            remove_dead(&log)?;
        }
    }
    log.close()
}

fn write_sorted(log: &Log, run: &mut Run, step: u64) -> Result<()> {
    let mut writer = log.sorted_writer(Cause::Sort)?;
    let mut places = Vec::new();
    for i in 0..3 {
        let value = value(step + i, 900);
        places.push((writer.append(&i.to_be_bytes(), Lsn::default(), 0, &value)?, value));
    }
    writer.finish()?;
    run.sorted.extend(places);
    Ok(())
}

fn truncate_all(log: &Log, run: &mut Run) -> Result<()> {
    let regions: Vec<_> = run.acked.regions.iter().map(|(id, r)| (*id, r.last())).collect();
    for (region, last) in regions {
        let Some(term) = log.term(region, last) else { continue };
        let upto = LogIndex(last.0.saturating_sub(2));
        let Some(upto_term) = log.term(region, upto) else { continue };
        let _ = term;
        let mark = stele_types::Mark::TruncatePrefix(upto, upto_term);
        append(log, run, batch(vec![stele_types::Record::Mark(region, mark)]))?;
    }
    Ok(())
}

fn remove_dead(log: &Log) -> Result<()> {
    for info in log.files() {
        if matches!(info.kind, FileKind::Segment { sealed: true, .. }) && !info.wanted_by_raft {
            log.remove(info.file)?;
        }
    }
    Ok(())
}

fn check(disk: &SimVfs, run: &Run, what: &str) {
    let (log, recovery) = open_with(disk, options(), RecoverFrom::default())
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut with = run.acked.clone();
    if let Some(batch) = &run.in_flight {
        with.apply(batch);
    }
    let differences = (run.acked.difference(&log), with.difference(&log));
    assert!(
        differences.0.is_none() || differences.1.is_none(),
        "{what}: {differences:?} {recovery:?}"
    );
    for (locator, value) in &run.sorted {
        assert_eq!(&log.get(locator).unwrap_or_else(|e| panic!("{what}: {e}")), value, "{what}");
    }
    let summary = log.verify(&mut |_| {}).unwrap();
    assert_eq!(summary.damaged, 0, "{what}");
    put(&log, stele_types::RegionId(99), 1, 100).unwrap_or_else(|e| panic!("{what}: {e}"));
    drop(log);
    let (log, _) = open_with(disk, options(), RecoverFrom::default())
        .unwrap_or_else(|error| panic!("{what}, second: {error}"));
    assert_put(&log, stele_types::RegionId(99), 1, 100);
}

#[test]
fn every_crash_point_keeps_what_was_acknowledged() {
    every_crash_point(disk);
}

#[test]
fn every_crash_point_in_segments_of_zeroes_keeps_what_was_acknowledged() {
    every_crash_point(zeroing_disk);
}

fn every_crash_point(disk: fn(u64) -> SimVfs) {
    let whole = disk(5);
    let mut run = Run::default();
    script(&whole, &mut run).unwrap();
    let operations = whole.operations();
    assert!(operations > 150, "{operations}");
    let events = whole.events();
    let happened = |kind| events.iter().filter(|event| event.kind == kind).count();
    assert!(
        happened(stele_simulated_disk::Operation::Rename) > 8,
        "segments were sealed, freed and reused"
    );
    let seed = seed();
    for operation in 0..operations {
        for at in CrashAt::ALL {
            let disk = disk(seed);
            disk.crash_at(CrashPoint { operation, at });
            let mut run = Run::default();
            let ended = script(&disk, &mut run);
            let what = format!(
                "operation {operation} {at:?}; STELE_SEED={seed} cargo test -p stele-log --test all crash"
            );
            assert!(ended.is_err() || at == CrashAt::After, "{what}");
            check(&disk.restart(seed ^ operation), &run, &what);
        }
    }
}

#[test]
fn crashes_while_recovering_lose_nothing_either() {
    let seed = seed();
    for first in (20..160).step_by(13) {
        let disk = disk(seed);
        disk.crash_at(CrashPoint { operation: first, at: CrashAt::Inside });
        let mut run = Run::default();
        let _ = script(&disk, &mut run);
        let torn = disk.restart(seed);
        for operation in 0..12 {
            let again = torn.fork();
            again.crash_at(CrashPoint { operation, at: CrashAt::Inside });
            let _ = open_with(&again, options(), RecoverFrom::default());
            let what = format!("{first} then {operation}; STELE_SEED={seed}");
            check(&again.restart(operation), &run, &what);
        }
    }
}
