//! Closed loops: so many clients, each with one operation under way.

use super::machine::{cpu_seconds, written_bytes};
use crate::harness::{Client, Cluster};
use anyhow::{Result, anyhow};
use hdrhistogram::Histogram;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;
use stele_storage::StorageEngine;
use stele_types::Prng;

const NANOS_MAX: u64 = 600_000_000_000;
const DIGITS: u8 = 3;
const STACK_BYTES: usize = 256 << 10;

/// What came of some operations.
pub struct Outcome {
    pub ops: u64,
    pub seconds: f64,
    pub cpu_seconds: f64,
    pub written_bytes: u64,
    pub nanos: Histogram<u64>,
}

/// Makes `ops` operations by `clients` clients; ends early when one fails. A step gets the client, the
/// operation's number and choices that follow from it.
pub fn closed_loops<E>(
    cluster: &Cluster<E>,
    clients: usize,
    ops: u64,
    step: impl Fn(&mut Client<'_, E>, u64, &mut Prng) -> Result<()> + Sync,
) -> Result<Outcome>
where
    E: StorageEngine + 'static,
    E::View: 'static,
    E::Incoming: 'static,
{
    let next = AtomicU64::new(0);
    let run = |slot: usize| -> Result<Histogram<u64>> {
        let mut nanos = Histogram::new_with_max(NANOS_MAX, DIGITS)?;
        let mut client = Client::new(cluster, slot);
        loop {
            let op = next.fetch_add(1, Ordering::Relaxed);
            if op >= ops {
                return Ok(nanos);
            }
            let started = Instant::now();
            if let Err(error) = step(&mut client, op, &mut Prng::new(op)) {
                next.store(ops, Ordering::Relaxed);
                return Err(error);
            }
            nanos.saturating_record(started.elapsed().as_nanos() as u64);
        }
    };
    let (cpu, written, started) = (cpu_seconds()?, written_bytes()?, Instant::now());
    let mut nanos = Histogram::new_with_max(NANOS_MAX, DIGITS)?;
    thread::scope(|scope| -> Result<()> {
        let run = &run;
        let start = |slot| {
            let thread = thread::Builder::new().stack_size(STACK_BYTES);
            thread.spawn_scoped(scope, move || run(slot))
        };
        let threads: Vec<_> = (0..clients).map(start).collect::<std::io::Result<_>>()?;
        for thread in threads {
            nanos.add(thread.join().map_err(|_| anyhow!("a client panicked"))??)?;
        }
        Ok(())
    })?;
    Ok(Outcome {
        ops,
        seconds: started.elapsed().as_secs_f64(),
        cpu_seconds: cpu_seconds()? - cpu,
        written_bytes: written_bytes()? - written,
        nanos,
    })
}
