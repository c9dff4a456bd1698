//! Benchmark of the index alone: inserts with flushes and merges on the same thread, gets, scans of
//! 100. `cargo run --release -p stele-index --example index_speed [keys] [directory]`; 16-byte
//!      random keys, 20-byte values kept in the index. Prints operations per second of processor
//!      time, which other load on the machine disturbs least, and per second of elapsed time.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use bytes::Bytes;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use stele_index::{
    Checkpoint, Direction, Found, Index, IndexOptions, Job, JobStep, MergeInputs, MergeSpec,
};
use stele_types::{Cause, KeyRange, Seq, ValueRef};
use stele_vfs::{RealVfs, Vfs};

/// Tiers of about the same size that are merged together.
const TIERS_MERGED: usize = 6;

fn mix(n: u64) -> u64 {
    let mut x = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn key(n: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&mix(n).to_be_bytes());
    key[8..].copy_from_slice(&n.to_be_bytes());
    key
}

fn finish(index: &Index, mut job: Job) {
    loop {
        if let JobStep::Done(done) = job.step(1 << 20).unwrap() {
            return index.commit(done).unwrap();
        }
    }
}

fn merge(index: &Index, ages: Vec<u64>) {
    let spec = MergeSpec { inputs: MergeInputs::Tiers(ages), cause: Cause::Merge };
    finish(index, index.start_merge(spec, None, 0).unwrap());
}

fn flush(index: &Index) {
    index.freeze(Checkpoint::default());
    while let Some(job) = index.start_flush() {
        finish(index, job);
    }
    // Merges the newest tiers that are at most four times as large as the newest one.
    let version = index.version();
    let tiers = version.tiers();
    let newest = tiers.first().map_or(0, |tier| tier.bytes);
    let alike: Vec<u64> =
        tiers.iter().take_while(|t| t.bytes < 4 * newest).map(|tier| tier.age).collect();
    if alike.len() >= TIERS_MERGED {
        merge(index, alike);
    }
}

/// Returns the seconds this thread spent on a processor where the system reports them; otherwise
/// the elapsed time.
fn processor_seconds(passed: Instant) -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = stat.and_then(|stat| stat.split(' ').next()?.parse::<f64>().ok());
    nanos.map_or(passed.elapsed().as_secs_f64(), |nanos| nanos / 1e9)
}

fn measure(name: &str, count: u64, mut run: impl FnMut(u64)) {
    let start = Instant::now();
    let before = processor_seconds(start);
    (0..count).for_each(&mut run);
    let passed = start.elapsed().as_secs_f64();
    let busy = processor_seconds(start) - before;
    let (per_core, per_second) = (count as f64 / busy, count as f64 / passed);
    println!("{name:<28} {per_core:>10.0} /s of processor {per_second:>10.0} /s elapsed");
}

fn reads(index: &Index, keys: u64, state: &str) {
    println!(
        "-- {state}: {} tiers, {} runs",
        index.version().tiers().len(),
        index.version().runs().count()
    );
    let gets = keys.min(1_000_000);
    for round in 0..2 {
        measure(&format!("get, round {round}"), gets, |n| {
            let found = index.get(&key(mix(n) % keys)).unwrap();
            assert!(matches!(found, Some(Found::Value { .. })));
        });
    }
    measure("get of an absent key", gets, |n| {
        assert!(index.get(&key(keys + n)).unwrap().is_none());
    });
    for direction in [Direction::Forward, Direction::Reverse] {
        let range = |n: u64| {
            let mut from = key(mix(n) % keys).to_vec();
            from[0] = from[0].min(250);
            match direction {
                Direction::Forward => KeyRange::new(from, Bytes::new()),
                Direction::Reverse => KeyRange::new(Bytes::new(), from),
            }
        };
        measure(&format!("scan(100) {direction:?}"), 100_000, |n| {
            let mut iter = index.view().iter(range(n), direction).unwrap();
            for _ in 0..100 {
                if iter.next().unwrap().is_none() {
                    break;
                }
            }
        });
        measure(&format!("scan(100) {direction:?}, borrowed"), 100_000, |n| {
            let mut iter = index.view().iter(range(n), direction).unwrap();
            for _ in 0..100 {
                if !iter.advance().unwrap() {
                    break;
                }
                black_box((iter.key(), iter.value()));
            }
        });
    }
    let memory = index.memory_bytes() as f64 / f64::from(1 << 20);
    println!("memory {memory:.1} MiB");
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let keys: u64 = arguments.next().map_or(1_000_000, |n| n.parse().unwrap());
    let dir = arguments.next().unwrap_or_else(|| "target/index_speed".to_owned());
    let dir = Path::new(&dir);
    let _ = std::fs::remove_dir_all(dir);
    let vfs: Arc<dyn Vfs> = Arc::new(RealVfs::new());
    let options = IndexOptions { block_cache_bytes_max: 1 << 30, ..IndexOptions::default() };
    let memtable_bytes_max = options.memtable_bytes_max;
    let (index, _) = Index::open(vfs.clone(), dir, options).unwrap();
    println!("{keys} keys of 16 B, values of 20 B, one thread");
    let mut maintenance = 0.0;
    measure("insert, flush and merge", keys, |n| {
        let value = ValueRef::Inline(Bytes::copy_from_slice(&[n as u8; 20]));
        index.put(Seq(n + 1), &key(n), value, 0);
        index.publish(Seq(n + 1));
        if n % 64 == 0 && index.memtable_bytes() >= memtable_bytes_max {
            let start = Instant::now();
            let before = processor_seconds(start);
            flush(&index);
            maintenance += processor_seconds(start) - before;
        }
    });
    println!("of which flushes and merges {maintenance:.3} s of processor");
    reads(&index, keys, "as inserted");
    flush(&index);
    let start = Instant::now();
    let before = processor_seconds(start);
    merge(&index, index.version().tiers().iter().map(|tier| tier.age).collect());
    println!("merge of everything {:.3} s of processor", processor_seconds(start) - before);
    reads(&index, keys, "one tier");
    let written: u64 = Cause::ALL.iter().map(|&cause| vfs.meter().snapshot().bytes(cause)).sum();
    let bytes: u64 = index.version().tiers().iter().map(|tier| tier.bytes).sum();
    println!("{:.1} B per key on disk, {written} B written", bytes as f64 / keys as f64);
    drop(index);
    let _ = std::fs::remove_dir_all(dir);
}
