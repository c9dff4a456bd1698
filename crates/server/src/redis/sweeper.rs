//! Sweeper of Redis keys: deletes expired names, and members of collections that were deleted or replaced, from the
//! regions that a store leads.
//!
//! 1. A round walks over all Redis keys of a store in order, and skips regions that another store leads. A
//!    step walks some thousand pairs on a thread that may wait for the device. A store without Redis keys costs
//!    one search a round.
//! 2. What a step finds is one program of its region, and one entry. The store's own loop decides it: no
//!    message leaves the node.
//! 3. Then the sweeper pauses so long that both took at most [`SHARE_OF_A_PROCESSOR`] of a processor.
//!
//! Invariant: a name is deleted only after it has expired by the clock of this node and by the cluster's time: a
//! clock that is ahead and is corrected later deletes nothing by itself.
//! Test: `a_node_without_the_clusters_time_sweeps_no_name`.

use crate::store::StoreHandle;
use crate::stores::Stores;
use crate::tasks::blocking;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use stele_redis::{FoundSweep, SweepRound, SweptCounts, SweptRegion};
use stele_replica::{Done, Header, Modified, Reply, Run};
use stele_storage::{Program, StateMachine};
use stele_types::{Region, RegionKind, Result};
use tokio::sync::watch;

/// Part of a processor that a store's sweeper uses: 1 / this.
const SHARE_OF_A_PROCESSOR: u64 = 100;
/// Pairs of a step.
const STEP_PAIRS: usize = 4096;
/// Estimate of the time that the loop needs for a name of a program.
const NAME_NANOS: u64 = 1_000;
/// Pause between two rounds: the first, and the longest, while rounds find nothing.
const ROUND_PAUSE: Duration = Duration::from_secs(1);
const ROUND_PAUSE_MAX: Duration = Duration::from_secs(32);
/// Pause after a program that was not executed.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// Time in which a program is proposed.
const PROPOSAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which a new store is swept.
const STORES_INTERVAL: Duration = Duration::from_secs(1);

/// What the sweeper of a store has done since the start.
#[derive(Debug, Default)]
pub(crate) struct SweepTotals {
    /// Expired names.
    pub keys: AtomicU64,
    /// Stamps of which members were deleted.
    pub stamps: AtomicU64,
    /// Records of transactions that were deleted.
    pub records: AtomicU64,
    /// Nanoseconds of a processor, with an estimate of what the store's loop needed.
    pub nanos: AtomicU64,
}

/// Sweeps all stores of a node until it stops.
pub(crate) async fn run(stores: Arc<Stores>, mut stopping: watch::Receiver<bool>) {
    let (mut known, mut sweepers) = (BTreeSet::new(), FuturesUnordered::new());
    loop {
        for store in stores.all() {
            if known.insert(store.id()) {
                sweepers.push(sweep_store(store));
            }
        }
        let stopped = async {
            // The sender ends with the node.
            let _ = stopping.wait_for(|is_stopping| *is_stopping).await;
        };
        let pause = tokio::time::sleep(STORES_INTERVAL);
        tokio::select! {
            () = stopped => return,
            () = pause => {}
            Some(()) = sweepers.next() => {}
        }
    }
}

async fn sweep_store(store: Arc<StoreHandle>) {
    let (mut round, mut pace) = (SweepRound::default(), Pace::default());
    while store.is_running() {
        let walking = store.clone();
        let step = blocking(move || Step::walk(&walking, round)).await;
        let Ok(Step { round: walked, found, nanos }) = step else { return };
        let names = found.as_ref().map_or(0, |found| found.program.keys().len() as u64);
        let outcome = match found {
            Some(found) => execute(&store, found).await,
            None => StepOutcome::Nothing,
        };
        let nanos = nanos + names * NAME_NANOS;
        store.swept().nanos.fetch_add(nanos, Relaxed);
        let is_over = walked.is_over();
        tokio::time::sleep(pace.after(nanos, outcome, is_over)).await;
        round = if is_over { SweepRound::default() } else { walked };
    }
}

/// What became of what a step found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepOutcome {
    Nothing,
    Swept,
    Refused,
}

async fn execute(store: &StoreHandle, found: FoundSweep) -> StepOutcome {
    let header = Header {
        region: found.region,
        version: Some(found.version),
        deadline_nanos: store.clock().monotonic_nanos() + PROPOSAL_TIMEOUT.as_nanos() as u64,
        ..Header::default()
    };
    match store.submit(Run { header, program: Arc::new(found.program) }, None).await {
        Reply::Done(Done::Modified { result: Modified::Answered { answer }, .. }) => {
            let counts = SweptCounts::decode(&answer).unwrap_or_default();
            store.swept().keys.fetch_add(counts.keys, Relaxed);
            store.swept().stamps.fetch_add(counts.stamps, Relaxed);
            store.swept().records.fetch_add(counts.records, Relaxed);
            StepOutcome::Swept
        }
        // A later round finds again what is still there.
        _ => StepOutcome::Refused,
    }
}

/// Pauses of a sweeper.
#[derive(Debug, Default)]
struct Pace {
    has_found: bool,
    idle_rounds: u32,
}

impl Pace {
    /// Returns the pause after a step that took these nanoseconds of a processor.
    ///
    /// Invariant: step and pause together take [`SHARE_OF_A_PROCESSOR`] times as long as the step used a processor.
    /// Test: `a_sweeper_uses_a_hundredth_of_a_processor_at_most`.
    fn after(&mut self, nanos: u64, outcome: StepOutcome, is_over: bool) -> Duration {
        self.has_found |= outcome != StepOutcome::Nothing;
        let mut pause = Duration::from_nanos(nanos.saturating_mul(SHARE_OF_A_PROCESSOR - 1));
        // bug server.sweeper_does_not_pause: pause = Duration::ZERO;
        if outcome == StepOutcome::Refused {
            pause = pause.max(REFUSED_PAUSE);
        }
        if is_over {
            let idle_rounds = if self.has_found { 0 } else { self.idle_rounds + 1 };
            *self = Self { has_found: false, idle_rounds };
            let round_pause = ROUND_PAUSE.saturating_mul(1 << idle_rounds.min(16));
            pause = pause.max(round_pause.min(ROUND_PAUSE_MAX));
        }
        pause
    }
}

/// Returns the regions of a store that it leads.
fn led_regions(store: &StoreHandle) -> Vec<SweptRegion> {
    let readers = store.readers();
    let leads = |region: &Region| {
        let reader = readers.get(region.id);
        region.kind == RegionKind::Data && reader.is_some_and(|it| it.leading_term().is_some())
    };
    let all = readers.all();
    all.iter().filter(|region| leads(region)).filter_map(|it| SweptRegion::of(it)).collect()
}

/// Step of a sweeper.
struct Step {
    round: SweepRound,
    found: Option<FoundSweep>,
    /// Nanoseconds of a processor.
    nanos: u64,
}

impl Step {
    fn walk(store: &StoreHandle, mut round: SweepRound) -> Result<Self> {
        let began_nanos = processor_nanos();
        let cluster_s = store.engine().cluster_time_s();
        let expired_until_s = expired_until_s(store.clock().unix_seconds(), cluster_s);
        let view = store.engine().view()?;
        let led = || led_regions(store);
        // A round ends at what cannot be read.
        let found = round.step(&view, led, expired_until_s, STEP_PAIRS).unwrap_or_default();
        Ok(Self { round, found, nanos: processor_nanos().saturating_sub(began_nanos) })
    }
}

/// Returns the Unix seconds until which names have expired; 0 if none has certainly.
fn expired_until_s(own_s: u64, cluster_s: u64) -> u64 {
    // bug server.swept_by_own_clock: return own_s;
    own_s.min(cluster_s)
}

/// Returns the nanoseconds of a processor that this thread has used.
fn processor_nanos() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000) + u64::try_from(time.tv_nsec).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::StepOutcome::{Nothing, Refused, Swept};
    use super::*;

    #[test]
    fn a_sweeper_uses_a_hundredth_of_a_processor_at_most() {
        let mut pace = Pace::default();
        let ms = |nanos: u64, outcome, is_over, pace: &mut Pace| {
            pace.after(nanos, outcome, is_over).as_millis()
        };
        assert_eq!(ms(2_000_000, Nothing, false, &mut pace), 198);
        assert_eq!(ms(2_000_000, Swept, false, &mut pace), 198);
        assert_eq!(ms(2_000_000, Refused, false, &mut pace), 1_000);
        assert_eq!(ms(2_000_000, Nothing, true, &mut pace), 1_000, "a round that found something");
        let idle: Vec<u128> = (0..7).map(|_| ms(1_000, Nothing, true, &mut pace)).collect();
        assert_eq!(idle, [2_000, 4_000, 8_000, 16_000, 32_000, 32_000, 32_000]);
        assert_eq!(ms(900_000_000, Nothing, true, &mut pace), 89_100);
        assert_eq!(ms(0, Swept, true, &mut pace), 1_000);
        assert_eq!(ms(u64::MAX, Nothing, false, &mut pace), u128::from(u64::MAX / 1_000_000));
    }

    #[test]
    fn a_node_without_the_clusters_time_sweeps_no_name() {
        assert_eq!(expired_until_s(1_700_000_000, 0), 0);
        assert_eq!(expired_until_s(1_800_000_000, 1_700_000_000), 1_700_000_000);
        assert_eq!(expired_until_s(1_700_000_000, 1_800_000_000), 1_700_000_000);
    }
}
