//! `lab devices`: stores on several devices in one process, behind one start barrier (KVSB
//! of the paper on KV-SSD, section 4). It reports the processor time of an operation, the
//! processors that a device keeps busy, and the throughput relative to that of one device.

mod args;
mod client;
mod mix;
mod pin;
mod report;
mod target;

use anyhow::ensure;
use args::{Args, Layout, Mode};
use client::Tally;
use mix::Source;
use report::Measured;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use stele_engine::CompletionQueue;
use stele_load::Records;
use stele_load::process_io::processor_seconds;
use stele_types::{Error, Prng, Result};
use target::{Place, Target};

const LOAD_DEPTH: usize = 64;

pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    let args: &Args = &crate::parse(arguments);
    args.check()?;
    let counts =
        if args.counts.is_empty() { vec![args.device_count()] } else { args.counts.clone() };
    let mut errors = 0;
    for round in 1..=args.rounds {
        for &mode in &args.mode {
            let mut first: Option<Measured> = None;
            for &devices in &counts {
                let measured = measure(args, mode, devices)?;
                errors += measured.errors;
                let linear = first.as_ref().map(|first| measured.linear_share(first));
                eprintln!("{}", measured.to_text(args, mode, linear));
                println!("{}", measured.to_json(args, mode, round, linear));
                first.get_or_insert(measured);
            }
        }
    }
    ensure!(errors == 0, "{errors} operations failed");
    Ok(())
}

/// One client: its store and its place among the clients of all devices.
struct Client<'a> {
    target: &'a Target,
    inserted: &'a AtomicU64,
    device: u64,
    queue: Option<CompletionQueue>,
    seed: u64,
}

fn measure(args: &Args, mode: Mode, devices: u64) -> Result<Measured> {
    let records = Records::with(args.key_bytes, args.value_bytes, false, args.seed);
    let place = Place::create(args, devices)?;
    let targets = place.open(args)?;
    let per_target = args.records * devices / targets.len() as u64;
    load(args, &targets, &records, per_target)?;
    let inserted: Vec<AtomicU64> = targets.iter().map(|_| AtomicU64::new(per_target)).collect();
    let mut clients = Vec::new();
    let per_device = if mode == Mode::Sync { args.threads } else { 1 };
    for device in 0..devices {
        // With one target, the clients of all devices share it.
        let at = if targets.len() == 1 { 0 } else { device as usize };
        let (Some(target), Some(inserted)) = (targets.get(at), inserted.get(at)) else { continue };
        for client in 0..per_device {
            let queue = (mode == Mode::Async).then(|| target::queue(args)).transpose()?;
            let seed = args.seed ^ (device << 32 | client << 8 | 1).wrapping_mul(0x9e37_79b9);
            clients.push(Client { target, inserted, device, queue, seed });
        }
    }
    let mut measured = run_clients(args, &clients, &records, devices)?;
    measured.memory_bytes = targets.iter().map(Target::memory_bytes).sum();
    drop(clients);
    targets.into_iter().try_for_each(Target::close)?;
    Ok(measured)
}

/// Writes all records; the targets at the same time.
fn load(args: &Args, targets: &[Target], records: &Records, per_target: u64) -> Result<()> {
    let load_one = |target: &Target| {
        let mut prng = Prng::new(args.seed);
        let depth = LOAD_DEPTH;
        let bounds = stele_engine::QueueOptions { depth, ..target::queue(args)?.options() };
        let queue = CompletionQueue::new(bounds)?;
        let mut done = Vec::new();
        for record in 0..per_target {
            let (key, value) = (records.key(record), records.value(&mut prng));
            while let Err(error) = queue.try_put(target, record, &key, &value) {
                if !matches!(error, Error::Busy(_)) {
                    return Err(error);
                }
                queue.wait(&mut done, depth / 2, Duration::from_secs(1));
                done.drain(..).try_for_each(|done| done.result.map(|_| ()))?;
            }
        }
        while queue.stats().in_flight > 0 {
            queue.wait(&mut done, depth, Duration::from_secs(1));
        }
        queue.poll(&mut done);
        done.drain(..).try_for_each(|done| done.result.map(|_| ()))?;
        target.flush()
    };
    thread::scope(|scope| {
        let start = |target| scope.spawn(move || load_one(target));
        let loads: Vec<_> = targets.iter().map(start).collect();
        loads.into_iter().try_for_each(joined)
    })
}

fn joined(thread: thread::ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    thread.join().unwrap_or_else(|_| Err(Error::Busy("a client stopped".into())))
}

fn run_clients(
    args: &Args,
    clients: &[Client<'_>],
    records: &Records,
    devices: u64,
) -> Result<Measured> {
    let tallies: Vec<Tally> = clients.iter().map(|_| Tally::default()).collect();
    let (barrier, stop) = (Barrier::new(clients.len() + 1), AtomicBool::new(false));
    let mut measured = Measured::new(devices);
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (client, tally) in clients.iter().zip(&tallies) {
            let (barrier, stop) = (&barrier, &stop);
            threads
                .push(scope.spawn(move || run_client(args, client, records, barrier, stop, tally)));
        }
        barrier.wait();
        let (begin, before) = (Instant::now(), processor_seconds(std::process::id())?);
        while begin.elapsed().as_secs_f64() < args.seconds && !stop.load(Relaxed) {
            thread::sleep(Duration::from_millis(2));
        }
        // The counts are of this moment: calls in flight are completed after it.
        for (client, tally) in clients.iter().zip(&tallies) {
            measured.add(client.device, tally.operations.load(Relaxed));
        }
        measured.seconds = begin.elapsed().as_secs_f64();
        measured.processor_seconds = processor_seconds(std::process::id())? - before;
        stop.store(true, Relaxed);
        threads.into_iter().try_for_each(joined)
    })?;
    for (client, tally) in clients.iter().zip(&tallies) {
        measured.errors += tally.errors.load(Relaxed);
        measured.not_found += tally.not_found.load(Relaxed);
        tally.recorder.drain(&mut measured.latencies);
        if let Some(queue) = &client.queue {
            measured.queue_bytes_peak += queue.stats().memory_bytes_peak;
            measured.queue_bytes_max += queue.options().memory_bytes_max();
        }
    }
    Ok(measured)
}

fn run_client(
    args: &Args,
    client: &Client<'_>,
    records: &Records,
    barrier: &Barrier,
    stop: &AtomicBool,
    tally: &Tally,
) -> Result<()> {
    let prng = Prng::new(client.seed);
    let mut source = Source { shares: args.mix, records, inserted: client.inserted, prng };
    let bound = if args.pin { pin::bind(client.device) } else { Ok(()) };
    // Every client passes the barrier: the others wait for it.
    barrier.wait();
    let ran = bound.and_then(|()| match &client.queue {
        Some(queue) => client::run_async(client.target, queue, &mut source, stop, tally),
        None => client::run_sync(client.target, &mut source, stop, tally),
    });
    if ran.is_err() {
        stop.store(true, Relaxed);
    }
    ran
}

fn is_shared(layout: Layout) -> bool {
    layout != Layout::Instances
}
