//! Clients at work until they are told to stop.

use super::client::Recorder;
use super::ledger::{self, Fate, Ledger};
use super::record::Record;
use crate::client::{Outcome, Session, SessionOptions};
use crate::cluster::channels::Channels;
use anyhow::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use stele_types::Prng;
use tokio::task::JoinHandle;

/// A refused client waits so long: it would else do nothing but ask.
const REFUSED_PAUSE: Duration = Duration::from_millis(20);

/// How much load.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Clients whose operations are recorded.
    pub recorders: usize,
    /// Clients that write the ledger.
    pub writers: usize,
    /// Groups of keys that the recorded operations spread over.
    pub groups: u64,
    /// What each client waits between operations.
    pub pause: Duration,
    /// How long a client waits for an answer.
    pub limit: Duration,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            recorders: 6,
            writers: 3,
            groups: 6,
            pause: Duration::from_millis(2),
            limit: Duration::from_secs(2),
        }
    }
}

/// What the recorded clients did.
#[derive(Debug, Default)]
pub struct Recorded {
    pub records: Vec<Record>,
    /// Operations that happened.
    pub done: u64,
}

/// Clients at work.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    recorders: Vec<JoinHandle<(Vec<Record>, u64)>>,
    writers: Vec<JoinHandle<Vec<Fate>>>,
}

impl Load {
    /// Starts them. Keys of the history begin with `round`; the ledger's go on where it ends.
    pub fn start(
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
            // Each begins with another node: some believe a deposed leader longer than others.
            let first = number % nodes.len().max(1);
            nodes.rotate_left(first);
            Session::new(Arc::clone(channels), SessionOptions { nodes, limit: options.limit })
        };
        let recorders = (0..options.recorders).map(|number| {
            let prng = Prng::new(seed ^ (number as u64 + 1) << 32);
            let round = round.to_owned();
            let groups = options.groups;
            let own = Recorder::new(session(number), number, round, groups, prng, zero);
            tokio::spawn(record(own, Arc::clone(&stop), options.pause))
        });
        let recorders = recorders.collect();
        let writers = (0..options.writers).map(|number| {
            let (stop, first) = (Arc::clone(&stop), ledger.count(number));
            tokio::spawn(write(session(number), number, first, stop, options.pause))
        });
        let writers = writers.collect();
        Self { stop, recorders, writers }
    }

    /// Stops them, waits for the answers they wait for, and enters the writes into the ledger.
    pub async fn stop(self, ledger: &mut Ledger) -> Result<Recorded> {
        self.stop.store(true, Ordering::Relaxed);
        let mut recorded = Recorded::default();
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

async fn record(mut own: Recorder, stop: Arc<AtomicBool>, pause: Duration) -> (Vec<Record>, u64) {
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
) -> Vec<Fate> {
    let mut fates = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let number = first + fates.len();
        let key = ledger::key(writer, number);
        let fate = match session.put(key.as_bytes(), ledger::value(writer, number)).await {
            Outcome::Done(()) => Fate::Acknowledged,
            Outcome::Refused(_) => Fate::Refused,
            Outcome::Ambiguous(_) => Fate::Unknown,
        };
        fates.push(fate);
        let pause = if fate == Fate::Acknowledged { pause } else { REFUSED_PAUSE };
        tokio::time::sleep(pause).await;
    }
    fates
}
