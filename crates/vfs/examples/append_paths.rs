//! Append throughput of the ways to write a log: batches of records, one data sync for each batch.
//!
//! `cargo run --release -p stele-vfs --example append_paths -- DIR [BATCHES] [ROUNDS]`
//!
//! Prints its configuration, then one JSON line for each path with medians over the rounds. The
//! rounds of all paths alternate, so that a slow phase of the device affects every path.

use std::io::{self, IoSlice, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_types::{Cause, Clock, Error, Result};
use stele_vfs::{AlignedBuf, Create, Open, RealVfs, SystemClock, Vfs, VfsFile};

const RECORD_BYTES: usize = 16 << 10;
const BATCH_RECORDS: usize = 64;
const BATCH_BYTES: usize = RECORD_BYTES * BATCH_RECORDS;

/// State of the file before the appends.
#[derive(Clone, Copy)]
enum Before {
    Empty,
    Preallocated,
    /// Written and synced earlier: its blocks need no metadata change.
    Recycled,
}

struct Way {
    name: &'static str,
    before: Before,
    direct: bool,
}

const WAYS: [Way; 4] = [
    Way { name: "growing_buffered", before: Before::Empty, direct: false },
    Way { name: "preallocated_buffered", before: Before::Preallocated, direct: false },
    Way { name: "preallocated_direct", before: Before::Preallocated, direct: true },
    Way { name: "recycled_direct", before: Before::Recycled, direct: true },
];

struct Round {
    mib_per_second: f64,
    batch_micros_p50: f64,
    batch_micros_p99: f64,
    block_bytes: usize,
}

struct Bench {
    vfs: RealVfs,
    clock: SystemClock,
    path: PathBuf,
    batches: u64,
    batch: AlignedBuf,
}

impl Bench {
    /// Marks the batch, so that no two are equal, and appends it durably.
    fn append(&mut self, file: &Arc<dyn VfsFile>, number: u64) -> Result<()> {
        for record in self.batch.chunks_mut(RECORD_BYTES) {
            record[..8].copy_from_slice(&number.to_le_bytes());
        }
        let offset = number * BATCH_BYTES as u64;
        file.write_at(&[IoSlice::new(&self.batch)], offset, Cause::Log)?;
        file.sync_data()
    }

    fn prepare(&mut self, way: &Way) -> Result<Arc<dyn VfsFile>> {
        if self.vfs.exists(&self.path)? {
            self.vfs.unlink(&self.path)?;
        }
        let how = Open { write: true, create: Create::New, direct: way.direct };
        let file = self.vfs.open(&self.path, how)?;
        match way.before {
            Before::Empty => {}
            Before::Preallocated => file.allocate(self.batches * BATCH_BYTES as u64)?,
            Before::Recycled => {
                for number in 0..self.batches {
                    self.append(&file, number)?;
                }
            }
        }
        file.sync_data()?;
        self.vfs.sync_dir(self.path.parent().unwrap_or(Path::new(".")))?;
        Ok(file)
    }

    fn round(&mut self, way: &Way) -> Result<Round> {
        let file = self.prepare(way)?;
        let mut batch_nanos = Vec::new();
        let started = self.clock.monotonic_nanos();
        for number in 0..self.batches {
            let batch_started = self.clock.monotonic_nanos();
            self.append(&file, number)?;
            batch_nanos.push(self.clock.monotonic_nanos() - batch_started);
        }
        let seconds = (self.clock.monotonic_nanos() - started) as f64 / 1e9;
        batch_nanos.sort_unstable();
        let micros = |part: usize| batch_nanos[(batch_nanos.len() - 1) * part / 100] as f64 / 1e3;
        let mib = (self.batches * BATCH_BYTES as u64) as f64 / f64::from(1 << 20);
        Ok(Round {
            mib_per_second: mib / seconds,
            batch_micros_p50: micros(50),
            batch_micros_p99: micros(99),
            block_bytes: file.block_bytes().unwrap_or(0),
        })
    }
}

fn median(rounds: &[Round], of: impl Fn(&Round) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(of).collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn number(argument: Option<String>, default: u64) -> Result<u64> {
    let Some(text) = argument else { return Ok(default) };
    let bad = || Error::invalid(format!("{text} is not a positive number"));
    text.parse().ok().filter(|&number| number > 0).ok_or_else(bad)
}

fn print(line: &str) -> Result<()> {
    writeln!(io::stdout(), "{line}").map_err(|e| Error::io("write", "stdout", e))
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = || Error::invalid("usage: append_paths DIR [BATCHES] [ROUNDS]");
    let dir = PathBuf::from(arguments.next().ok_or_else(usage)?);
    let batches = number(arguments.next(), 128)?;
    let rounds = number(arguments.next(), 5)?;

    let vfs = RealVfs::new();
    vfs.create_dir_all(&dir)?;
    let path = dir.join("append_paths.tmp");
    let mut batch = AlignedBuf::zeroed(BATCH_BYTES);
    for (i, byte) in batch.iter_mut().enumerate() {
        // Not compressible by the device, and the same in every run.
        *byte = ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    }
    print(&format!(
        "{{\"record_bytes\":{RECORD_BYTES},\"batch_records\":{BATCH_RECORDS},\"batches\":{batches},\
         \"rounds\":{rounds},\"free_bytes\":{}}}",
        vfs.free_bytes(&dir)?
    ))?;
    let mut bench = Bench { vfs, clock: SystemClock::new(), path, batches, batch };
    let mut results: [Vec<Round>; 4] = Default::default();
    for _ in 0..rounds {
        for (way, results) in WAYS.iter().zip(&mut results) {
            results.push(bench.round(way)?);
        }
    }
    bench.vfs.unlink(&bench.path)?;
    for (way, rounds) in WAYS.iter().zip(&results) {
        let per_second = median(rounds, |round| round.mib_per_second);
        let best = rounds.iter().map(|round| round.mib_per_second).fold(0.0, f64::max);
        print(&format!(
            "{{\"path\":\"{}\",\"mib_per_second\":{per_second:.1},\"best_mib_per_second\":{best:.1},\
             \"batch_micros_p50\":{:.0},\"batch_micros_p99\":{:.0},\"block_bytes\":{}}}",
            way.name,
            median(rounds, |round| round.batch_micros_p50),
            median(rounds, |round| round.batch_micros_p99),
            rounds.first().map_or(0, |round| round.block_bytes),
        ))?;
    }
    Ok(())
}
