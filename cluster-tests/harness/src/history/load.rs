//! Clients that run until they are stopped.

use super::client::{Keys, Recorder};
use super::ledger::{self, Ledger, WriteOutcome};
use super::operation::Operation;
use crate::client::{Outcome, Session, SessionOptions};
use crate::cluster::channels::Channels;
use anyhow::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use stele_types::Prng;
use tokio::task::JoinHandle;

/// Pause after a refusal, so that a refused client does not spin.
pub(super) const REFUSED_PAUSE: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
pub(crate) struct LoadOptions {
    pub recorders: usize,
    pub writers: usize,
    pub keys: Keys,
    pub pause: Duration,
    /// Time limit of a call.
    pub limit: Duration,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            recorders: 6,
            writers: 3,
            keys: Keys { groups: 6, group_keys: 4, repeat: false },
            pause: Duration::from_millis(2),
            limit: Duration::from_secs(2),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Recorded {
    pub records: Vec<Operation>,
    pub done: u64,
    pub zero: Instant,
}

#[derive(Debug)]
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    zero: Instant,
    recorders: Vec<JoinHandle<(Vec<Operation>, u64)>>,
    writers: Vec<JoinHandle<Vec<WriteOutcome>>>,
}

impl Load {
    /// Starts the clients. Keys of the history begin with `round`; the ledger continues where it
    /// ends.
    pub(crate) fn start(
        channels: &Arc<Channels>,
        nodes: &[String],
        options: &LoadOptions,
        round: &str,
        seed: u64,
        ledger: &Ledger,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let zero = Instant::now();
        let session = |number: usize| {
            let mut nodes = nodes.to_vec();
            // Each client prefers another node, so that some use a deposed leader longer than
            // others.
            let first = number % nodes.len().max(1);
            nodes.rotate_left(first);
            Session::new(Arc::clone(channels), SessionOptions { nodes, limit: options.limit })
        };
        let recorders = (0..options.recorders).map(|number| {
            let prng = Prng::new(seed ^ (number as u64 + 1) << 32);
            let round = round.to_owned();
            let own = Recorder::new(session(number), number, round, options.keys, prng, zero);
            tokio::spawn(record(own, Arc::clone(&stop), options.pause))
        });
        let recorders = recorders.collect();
        let writers = (0..options.writers).map(|number| {
            let (stop, first) = (Arc::clone(&stop), ledger.count(number));
            tokio::spawn(write(session(number), number, first, stop, options.pause))
        });
        let writers = writers.collect();
        Self { stop, zero, recorders, writers }
    }

    /// Stops the clients, waits for their calls in flight, and enters the writes into the ledger.
    pub(crate) async fn stop(self, ledger: &mut Ledger) -> Result<Recorded> {
        self.stop.store(true, Ordering::Relaxed);
        let mut recorded = Recorded { records: Vec::new(), done: 0, zero: self.zero };
        for recorder in self.recorders {
            let (records, done) = recorder.await?;
            recorded.records.extend(records);
            recorded.done += done;
        }
        for (number, writer) in self.writers.into_iter().enumerate() {
            ledger.extend(number, writer.await?);
        }
        Ok(recorded)
    }
}

async fn record(
    mut own: Recorder,
    stop: Arc<AtomicBool>,
    pause: Duration,
) -> (Vec<Operation>, u64) {
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        let happened = own.step().await;
        done += u64::from(happened);
        tokio::time::sleep(if happened { pause } else { REFUSED_PAUSE }).await;
    }
    (own.records, done)
}

async fn write(
    mut session: Session,
    writer: usize,
    first: usize,
    stop: Arc<AtomicBool>,
    pause: Duration,
) -> Vec<WriteOutcome> {
    let mut outcomes = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let number = first + outcomes.len();
        let key = ledger::key(writer, number);
        let outcome = match session.put(key.as_bytes(), ledger::value(writer, number)).await {
            Outcome::Done(()) => WriteOutcome::Acknowledged,
            Outcome::Refused(_) => WriteOutcome::Refused,
            Outcome::Ambiguous(_) => WriteOutcome::Unknown,
        };
        outcomes.push(outcome);
        let pause = if outcome == WriteOutcome::Acknowledged { pause } else { REFUSED_PAUSE };
        tokio::time::sleep(pause).await;
    }
    outcomes
}
