//! Benchmark that writes one run of random 16-byte keys with 20-byte values and reads it back in
//! several ways: `cargo run --release -p stele-index --example run_speed [keys] [directory]`.

use bytes::Bytes;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use stele_index::{BlockCache, Cursor, Found, Run, RunExtra, RunOptions, RunWriter, key_hash};
use stele_types::{Cause, Result, RunId, ValueRef};
use stele_vfs::{RealVfs, Vfs};

const GETS: u64 = 1_000_000;
const SCANS: u64 = 100_000;

fn key(i: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key[8..].copy_from_slice(&i.to_be_bytes());
    key
}

fn report(what: &str, count: u64, start: Instant) {
    let seconds = start.elapsed().as_secs_f64();
    println!("{what:<44} {:>11.0}/s", count as f64 / seconds);
}

fn random(i: u64, count: u64) -> u64 {
    (i.wrapping_mul(0xd134_2543_de82_ef95) >> 20) % count
}

fn read(vfs: &Arc<dyn Vfs>, dir: &Path, count: u64, cache_bytes: usize) -> Result<()> {
    let cache = Arc::new(BlockCache::new(cache_bytes));
    let start = Instant::now();
    let run = Run::open(vfs, dir, RunId(1), Arc::clone(&cache))?;
    println!("block cache of {} MiB", cache_bytes >> 20);
    println!(
        "  open {:?}, {:.2} B of memory per key, {:.2} B of hash index per key",
        start.elapsed(),
        run.memory_bytes() as f64 / count as f64,
        cache.used_bytes() as f64 / count as f64
    );
    for round in ["  get, first round", "  get, again"] {
        let start = Instant::now();
        for i in 0..GETS {
            let key = key(random(i, count));
            assert!(run.get(black_box(&key), key_hash(&key))?.is_some());
        }
        report(round, GETS, start);
    }
    let start = Instant::now();
    let mut passed = 0;
    for i in 0..GETS {
        let key = key(count + i);
        passed += u64::from(run.get(black_box(&key), key_hash(&key))?.is_some());
    }
    report("  get of an absent key", GETS, start);
    assert_eq!(passed, 0);
    let mut cursor = run.cursor();
    let start = Instant::now();
    for i in 0..SCANS {
        cursor.seek(&key(random(i, count)))?;
        let mut left = 100;
        while left > 0 && cursor.valid() {
            black_box((cursor.key(), cursor.found()?));
            cursor.next()?;
            left -= 1;
        }
    }
    report("  scan(100)", SCANS, start);
    let mut cursor = run.cursor_ahead();
    let start = Instant::now();
    cursor.seek(b"")?;
    let mut seen = 0;
    while cursor.valid() {
        black_box((cursor.key(), cursor.found()?));
        cursor.next()?;
        seen += 1;
    }
    report("  walk over all, entries", seen, start);
    assert_eq!(seen, count);
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let count: u64 = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(5_000_000);
    let dir =
        arguments.next().map_or_else(std::env::temp_dir, PathBuf::from).join("stele-run-speed");
    let vfs: Arc<dyn Vfs> = Arc::new(RealVfs::new());
    vfs.create_dir_all(&dir)?;
    let mut keys: Vec<_> = (0..count).map(key).collect();
    keys.sort_unstable();
    let value = ValueRef::Inline(Bytes::from_static(&[7; 20]));
    let found = Found::Value { value, expires_at_s: 0 };
    let start = Instant::now();
    let options = RunOptions::default();
    let mut writer = RunWriter::create(&vfs, &dir, RunId(1), &options, Cause::Flush)?;
    for key in &keys {
        writer.add(key, &found)?;
    }
    let meta = writer.finish(RunExtra::default())?;
    report("write", count, start);
    println!("{:.1} bytes per entry", meta.bytes as f64 / count as f64);
    drop(keys);
    read(&vfs, &dir, count, 1 << 30)?;
    read(&vfs, &dir, count, 16 << 20)?;
    vfs.unlink(&stele_index::run_path(&dir, RunId(1)))
}
