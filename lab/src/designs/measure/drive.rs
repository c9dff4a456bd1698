//! Closed loops: clients with one pending operation each.

use crate::designs::harness::{Client, Cluster, Stages, between};
use crate::designs::queued::Applied;
use crate::machine::{processor_time, written_bytes};
use anyhow::{Result, anyhow};
use hdrhistogram::Histogram;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use stele_replica::StageSums;
use stele_storage::StorageEngine;
use stele_types::Prng;

const NANOS_MAX: u64 = 600_000_000_000;
const DIGITS: u8 = 3;
/// Resolution of the throughput curve.
const SLICE_MS: u128 = 100;
const STACK_BYTES: usize = 256 << 10;

/// Class of an operation. A read-modify-write is a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Read,
    Write,
}

pub(super) struct Outcome {
    pub ops: u64,
    pub seconds: f64,
    pub cpu_seconds: f64,
    pub written_bytes: u64,
    pub times: Times,
    pub stages: Stages,
    pub core: (StageSums, Applied),
    /// Operations completed in each 100 ms since the start.
    pub per_100_ms: Vec<u64>,
}

/// Latencies by class, in nanoseconds.
pub(super) struct Times {
    pub reads: Histogram<u64>,
    pub writes: Histogram<u64>,
}

impl Times {
    fn new() -> Result<Self> {
        let empty = || Histogram::new_with_max(NANOS_MAX, DIGITS);
        Ok(Self { reads: empty()?, writes: empty()? })
    }

    fn record(&mut self, class: Class, nanos: u64) {
        match class {
            Class::Read => self.reads.saturating_record(nanos),
            Class::Write => self.writes.saturating_record(nanos),
        }
    }

    fn add(&mut self, other: &Self) -> Result<()> {
        self.reads.add(&other.reads)?;
        self.writes.add(&other.writes)?;
        Ok(())
    }

    pub(super) fn all(&self) -> Result<Histogram<u64>> {
        let mut all = self.reads.clone();
        all.add(&self.writes)?;
        Ok(all)
    }
}

struct Done {
    times: Times,
    stages: Stages,
    slices: Vec<u64>,
}

impl Done {
    fn new() -> Result<Self> {
        Ok(Self { times: Times::new()?, stages: Stages::default(), slices: Vec::new() })
    }

    /// Counts an operation; times are relative to the common start.
    fn record(&mut self, class: Class, began: Duration, ended: Duration) {
        self.times.record(class, (ended - began).as_nanos() as u64);
        let slice = (ended.as_millis() / SLICE_MS) as usize;
        if self.slices.len() <= slice {
            self.slices.resize(slice + 1, 0);
        }
        if let Some(count) = self.slices.get_mut(slice) {
            *count += 1;
        }
    }

    fn add(&mut self, other: &Self) -> Result<()> {
        self.times.add(&other.times)?;
        self.stages.add(&other.stages);
        self.slices.resize(self.slices.len().max(other.slices.len()), 0);
        self.slices.iter_mut().zip(&other.slices).for_each(|(mine, theirs)| *mine += theirs);
        Ok(())
    }
}

/// Runs `ops` operations with `clients` clients; stops early if one fails. A step gets the client,
/// the operation's number, and a random stream that follows from it, and returns its class.
pub(super) fn closed_loops<E: StorageEngine + 'static>(
    cluster: &Cluster<E>,
    clients: usize,
    ops: u64,
    step: impl Fn(&mut Client<'_, E>, u64, &mut Prng) -> Result<Class> + Sync,
) -> Result<Outcome> {
    let next = AtomicU64::new(0);
    let (cpu, written, started) = (processor_time()?, written_bytes()?, Instant::now());
    let times = cluster.times();
    let run = || -> Result<Done> {
        let mut done = Done::new()?;
        let mut client = Client::new(cluster);
        loop {
            let op = next.fetch_add(1, Ordering::Relaxed);
            if op >= ops {
                done.stages = *client.stages();
                return Ok(done);
            }
            let began = started.elapsed();
            match step(&mut client, op, &mut Prng::new(op)) {
                Ok(class) => done.record(class, began, started.elapsed()),
                Err(error) => {
                    next.store(ops, Ordering::Relaxed);
                    return Err(error);
                }
            }
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
        cpu_seconds: (processor_time()? - cpu).as_secs_f64(),
        written_bytes: written_bytes()? - written,
        times: all.times,
        stages: all.stages,
        core: between(&times, &cluster.times()),
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
        one.record(Class::Read, ms(0), ms(99));
        one.record(Class::Write, ms(99), ms(100));
        other.record(Class::Write, ms(0), ms(350));
        one.add(&other).unwrap();
        assert_eq!(one.slices, [1, 1, 0, 1]);
        let Times { reads, writes } = &one.times;
        assert_eq!((reads.len(), writes.len(), one.times.all().unwrap().len()), (1, 2, 3));
    }
}
