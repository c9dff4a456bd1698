//! Closed loops: clients with one pending operation each.

use super::machine::{cpu_seconds, written_bytes};
use crate::harness::{Client, Cluster};
use anyhow::{Result, anyhow};
use hdrhistogram::Histogram;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use stele_storage::StorageEngine;
use stele_types::Prng;

const NANOS_MAX: u64 = 600_000_000_000;
const DIGITS: u8 = 3;
/// Resolution of the throughput curve.
const SLICE_MS: u128 = 100;
const STACK_BYTES: usize = 256 << 10;

/// Measurements of some operations.
pub struct Outcome {
    pub ops: u64,
    pub seconds: f64,
    pub cpu_seconds: f64,
    pub written_bytes: u64,
    pub nanos: Histogram<u64>,
    /// Operations completed in each 100 ms since the start.
    pub per_100_ms: Vec<u64>,
}

/// Measurements of one client.
struct Done {
    nanos: Histogram<u64>,
    slices: Vec<u64>,
}

impl Done {
    fn new() -> Result<Self> {
        Ok(Self { nanos: Histogram::new_with_max(NANOS_MAX, DIGITS)?, slices: Vec::new() })
    }

    /// Counts an operation; times are relative to the common start.
    fn record(&mut self, began: Duration, ended: Duration) {
        self.nanos.saturating_record((ended - began).as_nanos() as u64);
        let slice = (ended.as_millis() / SLICE_MS) as usize;
        if self.slices.len() <= slice {
            self.slices.resize(slice + 1, 0);
        }
        if let Some(count) = self.slices.get_mut(slice) {
            *count += 1;
        }
    }

    fn add(&mut self, other: &Self) -> Result<()> {
        self.nanos.add(&other.nanos)?;
        self.slices.resize(self.slices.len().max(other.slices.len()), 0);
        self.slices.iter_mut().zip(&other.slices).for_each(|(mine, theirs)| *mine += theirs);
        Ok(())
    }
}

/// Runs `ops` operations with `clients` clients; stops early if one fails. A step gets the client,
/// the operation's number, and a random stream that follows from it.
pub fn closed_loops<E>(
    cluster: &Cluster<E>,
    clients: usize,
    ops: u64,
    step: impl Fn(&mut Client<'_, E>, u64, &mut Prng) -> Result<()> + Sync,
) -> Result<Outcome>
where
    E: StorageEngine + 'static,
    E::View: 'static,
    E::Ingest: 'static,
{
    let next = AtomicU64::new(0);
    let (cpu, written, started) = (cpu_seconds()?, written_bytes()?, Instant::now());
    let run = || -> Result<Done> {
        let mut done = Done::new()?;
        let mut client = Client::new(cluster);
        loop {
            let op = next.fetch_add(1, Ordering::Relaxed);
            if op >= ops {
                return Ok(done);
            }
            let began = started.elapsed();
            if let Err(error) = step(&mut client, op, &mut Prng::new(op)) {
                next.store(ops, Ordering::Relaxed);
                return Err(error);
            }
            done.record(began, started.elapsed());
        }
    };
    let mut all = Done::new()?;
    thread::scope(|scope| -> Result<()> {
        let run = &run;
        let start = |_| {
            let thread = thread::Builder::new().stack_size(STACK_BYTES);
            thread.spawn_scoped(scope, run)
        };
        let threads: Vec<_> = (0..clients).map(start).collect::<std::io::Result<_>>()?;
        for thread in threads {
            all.add(&thread.join().map_err(|_| anyhow!("a client panicked"))??)?;
        }
        Ok(())
    })?;
    Ok(Outcome {
        ops,
        seconds: started.elapsed().as_secs_f64(),
        cpu_seconds: cpu_seconds()? - cpu,
        written_bytes: written_bytes()? - written,
        nanos: all.nanos,
        per_100_ms: all.slices,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_count_in_the_slice_in_which_they_end() {
        let ms = Duration::from_millis;
        let (mut one, mut other) = (Done::new().unwrap(), Done::new().unwrap());
        one.record(ms(0), ms(99));
        one.record(ms(99), ms(100));
        other.record(ms(0), ms(350));
        one.add(&other).unwrap();
        assert_eq!(one.slices, [1, 1, 0, 1]);
        assert_eq!(one.nanos.len(), 3);
    }
}
