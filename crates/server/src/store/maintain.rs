//! Maintenance of one store: flushes, merges and garbage collection in slices.

use super::Engine;
use super::inbox::{Inbox, Item};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stele_raftstore::Input;
use stele_storage::{Repair, StateMachine};
use stele_types::Error;

/// Bytes of one slice; between slices the thread checks whether to stop.
const SLICE_BYTES: u64 = 1 << 20;
/// Sleep when nothing is to be done: the first, and the longest.
const IDLE_SLEEP: Duration = Duration::from_millis(5);
const IDLE_SLEEP_MAX: Duration = Duration::from_millis(160);
/// Idle rounds after which the log's last batch is confirmed.
const CONFIRM_AFTER_ROUNDS: u32 = 20;

/// Work of one stage since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageWork {
    /// Slices that did work.
    pub slices: u64,
    /// Bytes read and written; for `reclaim`, bytes freed.
    pub bytes: u64,
}

/// Work of each stage, by name.
#[derive(Debug, Default)]
pub(super) struct Counts(Mutex<BTreeMap<String, StageWork>>);

impl Counts {
    fn record(&self, stage: String, bytes: u64) {
        let mut stages = self.0.lock();
        let done = stages.entry(stage).or_default();
        done.slices += 1;
        done.bytes += bytes;
    }

    pub fn all(&self) -> Vec<(String, StageWork)> {
        self.0.lock().iter().map(|(stage, done)| (stage.clone(), *done)).collect()
    }
}

pub(super) fn run(
    engine: &Engine,
    running: &AtomicBool,
    wants_checkpoint: &AtomicBool,
    inbox: &Inbox,
    counts: &Counts,
) {
    let mut had_lost = false;
    let mut idle_rounds = 0;
    let mut sleep = IDLE_SLEEP;
    while running.load(Ordering::Acquire) {
        if wants_checkpoint.load(Ordering::Acquire) {
            // A failure is ignored, as in any maintenance: the core requests a checkpoint while it
            // needs one.
            let _ = engine.checkpoint();
            // Cleared after the checkpoint, which serves most requests made meanwhile.
            wants_checkpoint.store(false, Ordering::Release);
        }
        // The statistics keep a failure, unless it stopped the engine.
        let worked = match engine.maintain(SLICE_BYTES) {
            Ok(done) => Some(done).filter(|done| done.more && done.bytes > 0),
            Err(error @ Error::Poisoned(_)) => {
                // Without this, a store that appends nothing while it waits for a snapshot would
                // keep running.
                inbox.push(Item::Stopped(error));
                return;
            }
            Err(_) => None,
        };
        let has_lost = engine.has_lost();
        if has_lost && !had_lost {
            // The loop may be waiting. Once awake it requests copies as long as anything is lost.
            inbox.push(Item::Input(Input::Damaged));
        }
        had_lost = has_lost;
        if let Some(done) = worked {
            counts.record(format!("{:?}", engine.gc_stats().stage).to_lowercase(), done.bytes);
            (idle_rounds, sleep) = (0, IDLE_SLEEP);
            continue;
        }
        idle_rounds += 1;
        if idle_rounds == CONFIRM_AFTER_ROUNDS {
            // Best effort: it only helps to distinguish damage from a torn write later.
            let _ = engine.log().confirm();
        }
        std::thread::sleep(sleep);
        sleep = (sleep * 2).min(IDLE_SLEEP_MAX);
    }
}
