//! Targets for files of the log.

use super::files::Base;
use super::{FILE, checksums};
use crate::{Bound, Target};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use stele_log::inspect::{Row, dump};
use stele_log::{DamageSurvey, DamagedPayload, Log, LogOptions, RecoverFrom};
use stele_simulated_disk::{SimOptions, SimVfs};
use stele_types::{
    Cause, CommandBuilder, EntryRecord, HardState, LogBatch, LogIndex, Lsn, Mark, Record, RegionId,
    Result, StoreId, Term,
};
use stele_vfs::Vfs;

const DIR: &str = "/store/log";

fn options() -> LogOptions {
    LogOptions {
        store: StoreId(0x5713),
        segment_bytes_max: 4 << 10,
        recycle_segments_max: 1,
        direct: false,
        history_bytes_max: 0,
        entry_cache_bytes_max: 0,
        inline_value_bytes_max: 16,
        handles: Arc::default(),
        timer: None,
    }
}

fn open(disk: &SimVfs) -> Result<Log> {
    let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
    Log::open(vfs, Path::new(DIR), options(), RecoverFrom::default()).map(|(log, _)| log)
}

fn entry(region: u64, index: u64, value_bytes: usize) -> Record {
    let mut builder = CommandBuilder::new();
    builder
        .put(format!("key-{index}").as_bytes(), &vec![index as u8; value_bytes], index % 3)
        .unwrap();
    builder.put(b"small", b"inline", 0).unwrap();
    builder.delete(b"gone").unwrap();
    builder.delete_range(b"a", b"b").unwrap();
    Record::Entry(EntryRecord {
        region: RegionId(region),
        term: Term(1 + index / 8),
        index: LogIndex(index),
        is_command: !index.is_multiple_of(5),
        payload: builder.build().bytes().clone(),
    })
}

/// Creates several segments with sidecars, a sorted file and retained tombstones, of two regions.
fn base() -> &'static Base {
    static BASE: OnceLock<Base> = OnceLock::new();
    BASE.get_or_init(|| {
        let disk = SimVfs::new(SimOptions::default());
        let log = open(&disk).unwrap();
        let start = |region| Record::Mark(RegionId(region), Mark::Start(LogIndex(0), Term(0)));
        log.append(&LogBatch { records: vec![start(1), start(2)] }).unwrap();
        let state = HardState { term: Term(3), vote: 7, commit: LogIndex(4) };
        for index in 1..=16 {
            let records = vec![
                entry(1, index, 300),
                entry(2, index, 40),
                Record::HardState(RegionId(1), state),
            ];
            log.append(&LogBatch { records }).unwrap();
        }
        // A conflict withdraws entries and a truncation removes old segments: then tombstones are
        // retained.
        log.append(&LogBatch { records: vec![entry(2, 12, 10)] }).unwrap();
        let last = log.region(RegionId(1)).unwrap();
        let mark = |index, term| Record::Mark(RegionId(1), Mark::TruncatePrefix(index, term));
        log.append(&LogBatch { records: vec![mark(last.last, last.last_term)] }).unwrap();
        let destroy = Record::Mark(RegionId(2), Mark::Destroy);
        log.append(&LogBatch { records: vec![destroy] }).unwrap();
        for index in 17..=30 {
            log.append(&LogBatch { records: vec![entry(1, index, 300)] }).unwrap();
        }
        // Not the oldest: tombstones are retained while an older file holds what they hide.
        let files = log.files();
        let (first, second) = (files.first().unwrap().file, files.get(1).unwrap().file);
        log.remove(second).unwrap();
        let mut sorted = log.sorted_writer(Cause::Sort).unwrap();
        for index in 0..8u8 {
            let version = Lsn::new(first, u32::from(index) + 9);
            sorted.append(&[b'k', index], version, u64::from(index), &[index; 50]).unwrap();
        }
        sorted.finish().unwrap();
        log.close().unwrap();
        drop(log);
        Base::of(&disk)
    })
}

fn inspect(name: &str, input: &[u8]) {
    let disk = SimVfs::new(SimOptions::default());
    let path = Path::new(DIR).join(name);
    disk.write_file(&path, input);
    let vfs: Arc<dyn Vfs> = Arc::new(disk);
    let mut rows = 0;
    let outcome = dump(&vfs, &path, &mut |row: Row| {
        rows += row.to_string().len().min(1);
        true
    });
    let _ = outcome.map_err(|error| error.to_string());
}

/// Returns the file name for the number in a header: decoders compare both.
fn named(input: &[u8], at: usize, ending: &str) -> String {
    let number = input.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default();
    format!("{:08x}.{ending}", u32::from_le_bytes(number))
}

pub(super) const SEGMENT: Target = Target {
    name: "log_segment",
    run: |input| inspect(&named(input, 24, "seg"), input),
    seeds: || base().ending(".seg"),
    fix_checksums: Some(|input| checksums::segment(input)),
    bound: FILE,
};

pub(super) const SIDECAR: Target = Target {
    name: "log_sidecar",
    run: |input| inspect(&named(input, 12, "side"), input),
    seeds: || base().ending(".side"),
    fix_checksums: Some(|input| checksums::chunks(input)),
    bound: FILE,
};

pub(super) const SORTED: Target = Target {
    name: "log_sorted",
    run: |input| inspect(&named(input, 12, "val"), input),
    seeds: || base().ending(".val"),
    fix_checksums: Some(|input| checksums::sorted(input)),
    bound: FILE,
};

pub(super) const GRAVES: Target = Target {
    name: "log_graves",
    run: |input| inspect(&named(input, 12, "graves"), input),
    seeds: || base().ending(".graves"),
    fix_checksums: Some(|input| checksums::chunks(input)),
    bound: FILE,
};

/// Whole log with one damaged file: opened, read, appended to, and opened again.
pub(super) const OPEN: Target = Target {
    name: "log_open",
    run: |input| {
        let disk = SimVfs::new(SimOptions::default());
        base().with(input, &disk);
        let is_recovered = survey(&disk);
        let Ok(log) = open(&disk) else {
            assert!(!is_recovered, "a log without damaged payloads or other damage does not open");
            return;
        };
        assert!(is_recovered, "a log opens with damaged payloads or other damage");
        read(&log);
        let next = log.region(RegionId(1)).map_or(LogIndex(1), |region| region.last.next());
        let appended = log.append(&LogBatch { records: vec![entry(1, next.0, 20)] });
        if appended.is_ok() {
            drop(log);
            let log = open(&disk).expect("a log opens again after appends");
            assert_eq!(log.region(RegionId(1)).map(|region| region.last), Some(next));
        }
    },
    seeds: || base().inputs(),
    fix_checksums: Some(|input| base().fix_checksums(input)),
    bound: Bound { bytes: 16 << 20, per_byte: 128 },
};

/// Surveys the log, and offers wrong copies for damaged payloads.
fn survey(disk: &SimVfs) -> bool {
    let open_survey = |from: &RecoverFrom| {
        let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
        DamageSurvey::take(vfs, Path::new(DIR), &options(), from, 64)
    };
    let checkpointed = Some([(RegionId(1), LogIndex(20))].into());
    let from = RecoverFrom { checkpointed, ..RecoverFrom::default() };
    for mut survey in
        [open_survey(&from), open_survey(&RecoverFrom::default())].into_iter().flatten()
    {
        let damaged: Vec<DamagedPayload> = survey.damaged_after(None).copied().collect();
        for payload in damaged {
            let _ = survey.find(payload.region, payload.index, payload.term);
            assert!(!survey.restore_payload(&payload, b"another payload").unwrap());
        }
    }
    open_survey(&RecoverFrom::default()).is_ok_and(|survey| survey.is_recovered())
}

fn read(log: &Log) {
    for region in log.regions() {
        let Some(state) = log.region(region) else { continue };
        let to = LogIndex(state.last.0.saturating_add(1));
        let _ = log.entries(region, state.first, to, 64 << 10);
        log.term(region, state.last);
    }
    let _ = log.replay(&|_| LogIndex(0), &mut |_| Ok(()));
    let _ = log.scan_versions(&mut |_| Ok(()));
    let _ = log.verify(&mut |_| {});
    log.stats();
    log.files();
}
