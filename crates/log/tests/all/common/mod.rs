//! A log on a simulated disk, and batches to put into it.

#![allow(dead_code)]

pub(crate) mod model;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_log::{Appended, Log, LogOptions, RecoverFrom, Recovery};
use stele_simulated_disk::{SimOptions, SimVfs};
use stele_types::{
    Command, CommandBuilder, EntryRecord, Error, FileId, LogBatch, LogIndex, Mark, Record,
    RegionId, Result, StoreId, Term,
};
use stele_vfs::Vfs;

pub(crate) const DIR: &str = "/store/log";
pub(crate) const REGION: RegionId = RegionId(1);

pub(crate) fn options() -> LogOptions {
    LogOptions {
        store: StoreId(0x5713_1e00_1234),
        segment_bytes_max: 16 << 10,
        recycle_segments_max: 2,
        history_bytes_max: 0,
        direct: true,
        entry_cache_bytes_max: 0,
        inline_value_bytes_max: 16,
        handles: Arc::default(),
        timer: None,
    }
}

pub(crate) fn disk(seed: u64) -> SimVfs {
    SimVfs::new(SimOptions { seed, block_bytes: Some(512), ..SimOptions::default() })
}

/// Returns a disk that writes zeroes, so that no segment but the first grows.
pub(crate) fn zeroing_disk(seed: u64) -> SimVfs {
    let options = SimOptions { seed, block_bytes: Some(512), ..SimOptions::default() };
    SimVfs::new(SimOptions { writes_zeroes: true, ..options })
}

pub(crate) fn refused(disk: &SimVfs) -> Error {
    match open_with(disk, options(), RecoverFrom::default()) {
        Ok((_, recovery)) => panic!("opened: {recovery:?}"),
        Err(error) => error,
    }
}

pub(crate) fn open_with(
    vfs: &SimVfs,
    options: LogOptions,
    from: RecoverFrom,
) -> Result<(Log, Recovery)> {
    let vfs: Arc<dyn Vfs> = Arc::new(vfs.clone());
    Log::open(vfs, Path::new(DIR), options, from)
}

pub(crate) fn open(vfs: &SimVfs) -> (Log, Recovery) {
    open_with(vfs, options(), RecoverFrom::default()).unwrap()
}

pub(crate) fn segment_path(file: FileId) -> PathBuf {
    Path::new(DIR).join(format!("{:08x}.seg", file.0))
}

pub(crate) fn sidecar_path(file: FileId) -> PathBuf {
    Path::new(DIR).join(format!("{:08x}.side", file.0))
}

pub(crate) fn command(pairs: &[(&[u8], &[u8])]) -> Command {
    let mut builder = CommandBuilder::new();
    for (key, value) in pairs {
        builder.put(key, value, 0).unwrap();
    }
    builder.build()
}

pub(crate) fn entry(region: RegionId, index: u64, term: u64, command: &Command) -> Record {
    Record::Entry(EntryRecord {
        region,
        term: Term(term),
        index: LogIndex(index),
        is_command: true,
        payload: command.bytes().clone(),
    })
}

pub(crate) fn batch(records: Vec<Record>) -> LogBatch {
    LogBatch { records }
}

pub(crate) fn value(n: u64, bytes: usize) -> Vec<u8> {
    let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(bytes);
    out
}

/// Appends entry `index` with one put of `bytes` under `key-<index>`.
pub(crate) fn put(log: &Log, region: RegionId, index: u64, bytes: usize) -> Result<Appended> {
    let key = format!("key-{index}");
    let command = command(&[(key.as_bytes(), &value(index, bytes))]);
    log.append(&batch(vec![entry(region, index, 1, &command)]))
}

pub(crate) fn truncate(log: &Log, region: RegionId, index: u64) -> Result<Appended> {
    let term = log.term(region, LogIndex(index)).unwrap_or_default();
    let mark = Mark::TruncatePrefix(LogIndex(index), term);
    log.append(&batch(vec![Record::Mark(region, mark)]))
}

pub(crate) fn assert_put(log: &Log, region: RegionId, index: u64, bytes: usize) {
    let entries = log.entries(region, LogIndex(index), LogIndex(index + 1), 0).unwrap();
    assert_eq!(entries.len(), 1, "entry {index} of region {region}");
    let key = format!("key-{index}");
    let expected = command(&[(key.as_bytes(), &value(index, bytes))]);
    assert_eq!(&entries[0].payload, expected.bytes(), "entry {index} of region {region}");
    let at = log.positions(region, &entries).unwrap();
    let parsed = Command::parse(entries[0].payload.clone()).unwrap();
    let locator = parsed.ops().next().unwrap().locator(at[0]).unwrap();
    assert_eq!(log.get(&locator).unwrap(), value(index, bytes));
}

pub(crate) fn seed() -> u64 {
    std::env::var("STELE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_121)
}
