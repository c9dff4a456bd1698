//! Appends against a bare loop of write and sync, and the duration of opening. On a real directory:
//! `STELE_BENCH_DIR=/data cargo bench -p stele-log`.

#![allow(clippy::unwrap_used)]

use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use stele_log::{FileKind, Log, LogOptions, RecoverFrom};
use stele_types::{
    Cause, CommandBuilder, EntryRecord, LogBatch, LogIndex, Lsn, Mark, Record, RegionId, Term,
};
use stele_vfs::{AlignedBuf, Create, Open, RealVfs, Vfs};

const REGION: RegionId = RegionId(1);

fn open(dir: &Path, from: RecoverFrom) -> Log {
    let vfs: Arc<dyn Vfs> = Arc::new(RealVfs::new());
    let begin = Instant::now();
    let (log, recovery) = Log::open(vfs, dir, LogOptions::default(), from).unwrap();
    println!(
        "open: {:.1} ms, {} by sidecar, {} scanned, {} MiB",
        begin.elapsed().as_secs_f64() * 1e3,
        recovery.segments_by_sidecar,
        recovery.segments_scanned,
        recovery.bytes_scanned >> 20,
    );
    log
}

fn append(log: &Log, first: u64, count: u64, value: &[u8]) -> f64 {
    let begin = Instant::now();
    for index in first..first + count {
        let mut builder = CommandBuilder::with_capacity(value.len() + 64);
        builder.put(&index.to_be_bytes(), value, 0).unwrap();
        let payload = builder.build().bytes().clone();
        let (term, index) = (Term(1), LogIndex(index));
        let record = EntryRecord { region: REGION, term, index, is_command: true, payload };
        log.append(&LogBatch { records: vec![Record::Entry(record)] }).unwrap();
    }
    count as f64 / begin.elapsed().as_secs_f64()
}

fn bare(path: &Path, count: u64, bytes: usize, recycled: bool) -> f64 {
    let vfs = RealVfs::new();
    if !recycled {
        let _ = vfs.unlink(path);
    }
    let how = Open { write: true, create: Create::IfMissing, direct: true };
    let file = vfs.open(path, how).unwrap();
    let mut block = AlignedBuf::zeroed(bytes);
    block.fill(7);
    let begin = Instant::now();
    for i in 0..count {
        file.write_at(&[IoSlice::new(&block)], i * bytes as u64, Cause::Log).unwrap();
        file.sync_data().unwrap();
    }
    count as f64 / begin.elapsed().as_secs_f64()
}

fn main() {
    let dir = std::env::var_os("STELE_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = dir.join("stele-log-bench");
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let value = vec![3; 16 << 10];
    let log_dir = dir.join("log");
    drop(open(&log_dir, RecoverFrom::default()));
    let log = open(&log_dir, RecoverFrom::default());
    let mut index = 1;
    for round in 0..3 {
        let mine = append(&log, index, 4000, &value);
        index += 4000;
        let growing = bare(&dir.join("bare"), 4000, 16896, false);
        let reused = bare(&dir.join("bare"), 4000, 16896, true);
        println!(
            "round {round}: log {mine:.0}/s, bare growing {growing:.0}/s, reused {reused:.0}/s"
        );
    }
    let mark = Mark::TruncatePrefix(LogIndex(index - 1), Term(1));
    log.append(&LogBatch { records: vec![Record::Mark(REGION, mark)] }).unwrap();
    for info in log.files() {
        if matches!(info.kind, FileKind::Segment { sealed: true, .. }) && !info.wanted_by_raft {
            log.remove(info.file).unwrap();
        }
    }
    append(&log, index, 4000, &value);
    index += 4000;
    println!("in recycled segments: {:.0}/s", append(&log, index, 8000, &value));
    index += 8000;
    let segments: u64 = 40;
    while log.stats().segments < segments as usize {
        let mut records = Vec::new();
        for _ in 0..64 {
            let mut builder = CommandBuilder::with_capacity(value.len() + 64);
            builder.put(&index.to_be_bytes(), &value, 0).unwrap();
            let payload = builder.build().bytes().clone();
            let (term, at) = (Term(1), LogIndex(index));
            records.push(Record::Entry(EntryRecord {
                region: REGION,
                term,
                index: at,
                is_command: true,
                payload,
            }));
            index += 1;
        }
        log.append(&LogBatch { records }).unwrap();
    }
    println!("{} segments, {:?}", segments, log.stats());
    let head: Lsn = log.head();
    drop(log);
    let log = open(&log_dir, RecoverFrom::default());
    assert_eq!(log.head(), head);
    let begin = Instant::now();
    let mut replayed = 0;
    log.replay(&|_| LogIndex(0), &mut |_| {
        replayed += 1;
        Ok(())
    })
    .unwrap();
    println!("replay: {replayed} entries, {:.1} ms", begin.elapsed().as_secs_f64() * 1e3);
    let mark = Mark::TruncatePrefix(LogIndex(index - 1), Term(1));
    log.append(&LogBatch { records: vec![Record::Mark(REGION, mark)] }).unwrap();
    drop(log);
    let from = RecoverFrom { checkpoint: head, raft_from: head.file, ..RecoverFrom::default() };
    drop(open(&log_dir, from));
    std::fs::remove_dir_all(&dir).unwrap();
}
