//! Threads that run a mix, in a closed loop or on a schedule, and the line that is printed each
//! second.

use super::report::{Account, progress_line};
use crate::args::Bench;
use crate::store::Store;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use stele_load::{Kind, Latencies, Mix, Recorder, Records, Step, Workload};
use stele_types::{Error, Prng, Result};

const TICK: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(5);

pub(super) struct Run {
    pub seconds: f64,
    pub operations: u64,
    pub errors: u64,
    pub not_found: u64,
    pub payload_bytes: u64,
    pub read_bytes: u64,
    pub latencies: Latencies,
}

pub(super) struct Driver<'a> {
    args: &'a Bench,
    store: &'a Store,
    mix: Mix,
    operations: u64,
    measured: bool,
    claimed: AtomicU64,
    done: AtomicU64,
    errors: AtomicU64,
    stop: AtomicBool,
    running: AtomicU64,
    started: Instant,
}

impl<'a> Driver<'a> {
    pub(super) fn new(
        args: &'a Bench,
        store: &'a Store,
        records: &Arc<Records>,
        workload: Workload,
    ) -> Self {
        Self {
            args,
            store,
            mix: Mix::new(&args.load, records.clone(), workload, args.batch, 0),
            operations: if workload == Workload::Load {
                args.load.records
            } else {
                args.load.operations
            },
            measured: workload == args.load.workload,
            claimed: AtomicU64::new(0),
            done: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            running: AtomicU64::new(args.load.threads),
            started: Instant::now(),
        }
    }

    pub(super) fn run(mut self) -> Result<Run> {
        let recorders: Vec<Recorder> =
            (0..self.args.load.threads).map(|_| Recorder::default()).collect();
        let mut latencies = Latencies::default();
        self.started = Instant::now();
        let first_error = thread::scope(|scope| {
            let this = &self;
            let spawn = |(thread, recorder)| scope.spawn(move || this.worker(thread, recorder));
            let workers: Vec<_> = (0..).zip(&recorders).map(spawn).collect();
            this.watch(&recorders, &mut latencies);
            let join = |worker: thread::ScopedJoinHandle<'_, Result<()>>| {
                worker.join().unwrap_or_else(|_| Err(Error::Busy("a thread stopped".into()))).err()
            };
            workers.into_iter().filter_map(join).next()
        });
        let seconds = self.started.elapsed().as_secs_f64();
        for recorder in &recorders {
            recorder.drain(&mut latencies);
        }
        if let Some(error) = first_error {
            return Err(error);
        }
        Ok(Run {
            seconds,
            operations: self.done.load(Relaxed),
            errors: self.errors.load(Relaxed),
            not_found: self.mix.not_found.load(Relaxed),
            payload_bytes: self.mix.payload_bytes.load(Relaxed),
            read_bytes: self.mix.read_bytes.load(Relaxed),
            latencies,
        })
    }

    fn worker(&self, thread: u64, recorder: &Recorder) -> Result<()> {
        let mut prng = Prng::new(self.args.load.seed.wrapping_mul(0x1_0001).wrapping_add(thread));
        let result = self.steps(recorder, &mut prng);
        if result.is_err() {
            self.stop.store(true, Relaxed);
        }
        self.running.fetch_sub(1, Relaxed);
        result
    }

    fn steps(&self, recorder: &Recorder, prng: &mut Prng) -> Result<()> {
        let step = self.mix.step_operations();
        loop {
            let first = self.claimed.fetch_add(step, Relaxed);
            if first >= self.operations || self.stop.load(Relaxed) {
                return Ok(());
            }
            let operations = step.min(self.operations - first);
            let begin = match self.args.load.rate {
                // Latency counts from the scheduled start, so that a stall is not hidden by
                // starting later (coordinated omission).
                Some(rate) if self.measured => self.wait_until_due(first, rate),
                _ => Instant::now(),
            };
            let step = self.mix.draw(operations, prng);
            match self.execute(&step, prng) {
                Ok(()) => {
                    recorder.record(step.kind, begin.elapsed());
                    self.done.fetch_add(operations, Relaxed);
                }
                Err(Error::Busy(_) | Error::NoSpace(_)) => {
                    self.errors.fetch_add(operations, Relaxed);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn execute(&self, step: &Step, prng: &mut Prng) -> Result<()> {
        let Some(key) = step.keys.first() else { return Ok(()) };
        match step.kind {
            Kind::Read => self.read(key),
            Kind::Update | Kind::Insert => self.write(step, prng),
            Kind::Delete => {
                self.store.delete(key)?;
                self.mix.wrote(step);
                Ok(())
            }
            Kind::Scan => {
                let (_, bytes) = self.store.scan_from(key, step.scan_length)?;
                self.mix.read(Some(bytes));
                Ok(())
            }
            Kind::ReadModifyWrite => {
                self.read(key)?;
                self.write(step, prng)
            }
        }
    }

    fn read(&self, key: &[u8]) -> Result<()> {
        let found = self.store.get(key)?;
        self.mix.read(found.map(|(value, _)| value.len() as u64));
        Ok(())
    }

    fn write(&self, step: &Step, prng: &mut Prng) -> Result<()> {
        if let [key] = step.keys.as_slice() {
            self.store.put(key, &self.mix.value(prng), None)?;
        } else {
            let pair = |key: &'_ Vec<u8>| (key.clone(), self.mix.value(prng));
            let pairs: Vec<(Vec<u8>, Bytes)> = step.keys.iter().map(pair).collect();
            self.store
                .put_all(pairs.iter().map(|(key, value)| (key.as_slice(), value.as_ref())))?;
        }
        self.mix.wrote(step);
        Ok(())
    }

    /// Sleeps until operation number `first` is due; returns its due time.
    fn wait_until_due(&self, first: u64, rate: u64) -> Instant {
        let due = self.started + Duration::from_secs_f64(first as f64 / rate as f64);
        if let Some(early) = due.checked_duration_since(Instant::now()) {
            thread::sleep(early);
        }
        due
    }

    /// Prints a line each second until all threads have ended. Stops them at the time limit.
    fn watch(&self, recorders: &[Recorder], total: &mut Latencies) {
        let before = Account::take(self.store);
        let (mut last_done, mut last_at) = (0, self.started);
        let limit = self.args.load.duration.filter(|_| self.measured).map(Duration::from_secs);
        while self.running.load(Relaxed) > 0 {
            thread::sleep(POLL);
            if limit.is_some_and(|limit| self.started.elapsed() >= limit) {
                self.stop.store(true, Relaxed);
            }
            let passed = last_at.elapsed();
            if passed < TICK {
                continue;
            }
            let mut recent = Latencies::default();
            for recorder in recorders {
                recorder.drain(&mut recent);
            }
            let done = self.done.load(Relaxed);
            let throughput = (done - last_done) as f64 / passed.as_secs_f64();
            (last_done, last_at) = (done, Instant::now());
            total.add(&recent);
            if !self.args.load.quiet {
                let written = Account::take(self.store).since(&before);
                let payload = self.mix.payload_bytes.load(Relaxed);
                let seconds = self.started.elapsed().as_secs();
                let share = (done, self.operations);
                let space_amp = self.store.statistics().space_amp;
                let line = progress_line(
                    seconds,
                    share,
                    throughput,
                    &recent.all(),
                    &written,
                    payload,
                    space_amp,
                );
                eprintln!("{line}");
            }
        }
    }
}
