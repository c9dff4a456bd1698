//! Clients that run a mix against a server, in a closed loop or on a schedule.

use crate::args::{Wire, Workload};
use crate::latency::{Kind, Latencies, Recorder, Summary};
use crate::server::Target;
use crate::workload::{Mix, Records, Step};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};
use stele_types::{Error, Prng, Result};
use tokio::task::JoinSet;

const SLICE: Duration = Duration::from_millis(100);
const SLICES_PER_LINE: u32 = 10;
/// Failures without one success after which the run stops: the server is unavailable.
const FAILURES_MAX: u64 = 1000;

/// Measurements of a run.
pub struct Run {
    /// Duration.
    pub seconds: f64,
    /// Operations that succeeded.
    pub operations: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Text of the first error.
    pub error: Option<String>,
    /// Reads of keys that do not exist.
    pub not_found: u64,
    /// Bytes of keys and values written.
    pub payload_bytes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Latencies of the operations that succeeded.
    pub latencies: Latencies,
    /// Completed operations per time slice.
    pub curve: Vec<u64>,
    /// Latencies of each second, the last of which may be shorter.
    pub per_second: Vec<Summary>,
}

struct Shared<T> {
    target: Arc<T>,
    mix: Mix,
    operations: u64,
    rate: Option<u64>,
    started: Instant,
    claimed: AtomicU64,
    done: AtomicU64,
    errors: AtomicU64,
    error: parking_lot::Mutex<Option<String>>,
    stop: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub workload: Workload,
    pub round: u64,
    /// Replaces the duration of the arguments.
    pub duration: Option<Duration>,
}

pub(crate) async fn run<T: Target>(
    args: &Wire,
    target: &Arc<T>,
    records: &Arc<Records>,
    part: Part,
) -> Result<Run> {
    let load = &args.load;
    let is_load = part.workload == Workload::Load;
    let shared = Arc::new(Shared {
        target: target.clone(),
        mix: Mix::new(load, records.clone(), part.workload, 1, part.round),
        operations: if is_load { load.records } else { load.operations },
        rate: load.rate.filter(|_| part.workload == load.workload),
        started: Instant::now(),
        claimed: AtomicU64::new(0),
        done: AtomicU64::new(0),
        errors: AtomicU64::new(0),
        error: parking_lot::Mutex::default(),
        stop: AtomicBool::new(false),
    });
    let recorders: Vec<Arc<Recorder>> = (0..load.threads).map(|_| Arc::default()).collect();
    let mut clients = JoinSet::new();
    for (client, recorder) in (0..).zip(&recorders) {
        let seed = load.seed.wrapping_mul(0x1_0001) ^ part.round << 32;
        let prng = Prng::new(seed.wrapping_add(client));
        clients.spawn(shared.clone().client(recorder.clone(), prng));
    }
    let duration = part.duration.or(load.duration.filter(|_| !is_load).map(Duration::from_secs));
    let Watched { curve, per_second, latencies } =
        watch(&shared, &mut clients, &recorders, duration, load.quiet).await;
    let seconds = shared.started.elapsed().as_secs_f64();
    let error = shared.error.lock().take();
    let (operations, errors) = (shared.done.load(Relaxed), shared.errors.load(Relaxed));
    if operations == 0 && errors > 0 {
        return Err(Error::Unavailable(error.unwrap_or_default()));
    }
    Ok(Run {
        seconds,
        operations,
        errors,
        error,
        not_found: shared.mix.not_found.load(Relaxed),
        payload_bytes: shared.mix.payload_bytes.load(Relaxed),
        read_bytes: shared.mix.read_bytes.load(Relaxed),
        latencies,
        curve,
        per_second,
    })
}

#[derive(Default)]
struct Watched {
    curve: Vec<u64>,
    per_second: Vec<Summary>,
    latencies: Latencies,
}

impl Watched {
    /// Takes the latencies since the last call as those of a second, and returns their summary.
    fn second(&mut self, recorders: &[Arc<Recorder>]) -> Summary {
        let mut recent = Latencies::default();
        recorders.iter().for_each(|recorder| recorder.drain(&mut recent));
        self.latencies.add(&recent);
        let all = recent.all();
        self.per_second.push(all);
        all
    }
}

/// Counts the operations of each slice, summarizes and prints each second, and stops the clients at
/// the time limit.
async fn watch<T>(
    shared: &Shared<T>,
    clients: &mut JoinSet<()>,
    recorders: &[Arc<Recorder>],
    duration: Option<Duration>,
    quiet: bool,
) -> Watched {
    let mut watched = Watched::default();
    let (mut before, mut line_before) = (0, 0);
    for slice in 1u32.. {
        let until = tokio::time::Instant::from_std(shared.started + SLICE * slice);
        let ended = async { while clients.join_next().await.is_some() {} };
        let is_over = tokio::time::timeout_at(until, ended).await.is_ok();
        let done = shared.done.load(Relaxed);
        watched.curve.push(done - before);
        before = done;
        if is_over {
            break;
        }
        if duration.is_some_and(|duration| shared.started.elapsed() >= duration) {
            shared.stop.store(true, Relaxed);
        }
        if slice % SLICES_PER_LINE != 0 {
            continue;
        }
        let all = watched.second(recorders);
        if !quiet {
            eprintln!(
                "{:>4} s {done}/{} {:>9} op/s  p50 {:.0} µs p99 {:.0} µs p999 {:.0} µs  {} errors",
                slice / SLICES_PER_LINE,
                shared.operations,
                done - line_before,
                all.p50_us,
                all.p99_us,
                all.p999_us,
                shared.errors.load(Relaxed),
            );
        }
        line_before = done;
    }
    if watched.second(recorders).count == 0 {
        watched.per_second.pop();
    }
    watched
}

impl<T: Target> Shared<T> {
    async fn client(self: Arc<Self>, recorder: Arc<Recorder>, mut prng: Prng) {
        loop {
            let number = self.claimed.fetch_add(1, Relaxed);
            if number >= self.operations || self.stop.load(Relaxed) {
                return;
            }
            let begin = match self.rate {
                // Latency counts from the scheduled start, so that a stall is not hidden by
                // starting later (coordinated omission).
                Some(rate) => self.wait_until_due(number, rate).await,
                None => Instant::now(),
            };
            let step = self.mix.draw(1, &mut prng);
            match self.execute(&step, &mut prng).await {
                Ok(()) => {
                    recorder.record(step.kind, begin.elapsed());
                    self.done.fetch_add(1, Relaxed);
                }
                Err(error) => self.failed(&error),
            }
        }
    }

    fn failed(&self, error: &Error) {
        let errors = self.errors.fetch_add(1, Relaxed) + 1;
        self.error.lock().get_or_insert_with(|| error.to_string());
        let is_unavailable = errors >= FAILURES_MAX && self.done.load(Relaxed) == 0;
        if is_unavailable || matches!(error, Error::Invalid(_)) {
            self.stop.store(true, Relaxed);
        }
    }

    async fn wait_until_due(&self, number: u64, rate: u64) -> Instant {
        let due = self.started + Duration::from_secs_f64(number as f64 / rate as f64);
        tokio::time::sleep_until(due.into()).await;
        due
    }

    async fn execute(&self, step: &Step, prng: &mut Prng) -> Result<()> {
        let key = Bytes::from(step.keys.first().cloned().unwrap_or_default());
        match step.kind {
            Kind::Read => self.mix.read(self.target.get(key).await?),
            Kind::Update | Kind::Insert => {
                self.target.put(key, self.mix.value(prng)).await?;
                self.mix.wrote(step);
            }
            Kind::Delete => {
                self.target.delete(key).await?;
                self.mix.wrote(step);
            }
            Kind::Scan => {
                self.mix.read(Some(self.target.scan(key, step.scan_length).await?));
            }
            Kind::ReadModifyWrite => {
                self.mix.read(self.target.get(key.clone()).await?);
                self.target.put(key, self.mix.value(prng)).await?;
                self.mix.wrote(step);
            }
        }
        Ok(())
    }
}
