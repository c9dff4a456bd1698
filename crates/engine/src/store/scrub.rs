//! Scrub: background verification that finds latent damage. Everything that the index refers to is
//! read off the device, in key order, within a budget of bytes per second. Other bytes are not
//! read.

use super::slice::{Extent, SLICE_PAIRS_MAX, Slice};
use super::{Shared, View};
use bytes::Bytes;
use std::sync::Arc;
use stele_storage::Order;
use stele_types::lock::{Mutex, rank};
use stele_types::{Clock, KeyRange, Result, RunId, mutant};

const SECOND_NANOS: u64 = 1_000_000_000;

/// Statistics of the scrub since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubStats {
    /// Bytes scrubbed of runs, and of keys and values.
    pub bytes: u64,
    /// Completed scrub passes.
    pub passes: u64,
    /// Passes that ended early because part of the index could not be read.
    pub cut_short: u64,
}

/// Scrub of one store.
#[derive(Debug)]
pub(crate) struct Scrub {
    clock: Arc<dyn Clock>,
    state: Mutex<State, { rank::SCRUB }>,
}

#[derive(Debug, Default)]
struct State {
    /// Run and block to continue with; `None` at the start of a pass.
    run: Option<(RunId, usize)>,
    /// Newest run at the start of the pass.
    last_run: Option<RunId>,
    /// Key to continue with; empty at the start of the values.
    from: Bytes,
    began_nanos: Option<u64>,
    is_done: bool,
    /// Bytes that may be read, as of the last step; negative after a large value.
    credit_bytes: i64,
    stepped_nanos: u64,
    stats: ScrubStats,
}

impl Scrub {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let state = State { stepped_nanos: clock.monotonic_nanos(), ..State::default() };
        Self { clock, state: Mutex::new(state) }
    }

    pub fn stats(&self) -> ScrubStats {
        self.state.lock().stats
    }

    /// Scrubs about `bytes_max` bytes, if the budget allows.
    pub fn step(&self, shared: &Arc<Shared>, bytes_max: u64) {
        let rate = shared.options.scrub_bytes_per_second_max;
        let Some(mut state) = self.state.try_lock().filter(|_| rate > 0) else { return };
        let now = self.clock.monotonic_nanos();
        state.add_credit(now, rate);
        let reads_runs = !state.is_done && state.began_nanos.is_some() && state.from.is_empty();
        if !reads_runs && shared.lost_blocks.take_suspected() {
            state.began_nanos = None;
        }
        let is_due = match state.began_nanos {
            Some(began) if state.is_done => {
                let interval = shared.options.scrub_interval_s.saturating_mul(SECOND_NANOS);
                now.saturating_sub(began) >= interval
            }
            _ => true,
        };
        let credit = u64::try_from(state.credit_bytes).unwrap_or_default();
        if !is_due || credit == 0 {
            return;
        }
        if state.is_done || state.began_nanos.is_none() {
            let stats = state.stats;
            let (credit_bytes, stepped_nanos) = (state.credit_bytes, state.stepped_nanos);
            let version = shared.index.version();
            *state = State {
                last_run: version.runs().map(|run| run.id()).max(),
                began_nanos: Some(now),
                stats,
                credit_bytes,
                stepped_nanos,
                ..State::default()
            };
        }
        let bytes = state.scrub_slice(shared, bytes_max.min(credit)).unwrap_or_else(|_| {
            // Starts again from the first run: one of the runs is damaged.
            (state.is_done, state.began_nanos) = (true, None);
            state.stats.cut_short += 1;
            0
        });
        state.credit_bytes -= bytes as i64;
        state.stats.bytes += bytes;
    }
}

impl State {
    /// Scrubs first the runs, in the order of their numbers, then the values. Returns the bytes.
    fn scrub_slice(&mut self, shared: &Arc<Shared>, bytes_max: u64) -> Result<u64> {
        if self.from.is_empty()
            && let Some((run, block)) = self.next_run(shared)
        {
            let scrubbed = shared.index.scrub_run(run, block, bytes_max)?.unwrap_or_default();
            self.run = Some(match scrubbed.next {
                Some(block) => (run, block),
                None => (RunId(run.0 + 1), 0),
            });
            if scrubbed.needs_rewrite {
                shared.lost_blocks.schedule_rewrite(run);
            }
            scrubbed.lost.into_iter().for_each(|lost| shared.lost_blocks.note(lost));
            return Ok(scrubbed.bytes);
        }
        match scrub_values(shared, &self.from, bytes_max)? {
            Some((next, bytes)) => {
                self.from = next;
                Ok(bytes)
            }
            None => {
                self.is_done = true;
                self.stats.passes += 1;
                Ok(0)
            }
        }
    }

    /// Returns the run to continue with, or the first one after it. Invariant: runs created since
    /// the start are left to the next pass. Otherwise a sequence of merges could delay the values
    /// forever.
    fn next_run(&self, shared: &Shared) -> Option<(RunId, usize)> {
        let (from, block) = self.run.unwrap_or((RunId(0), 0));
        let last = match mutant::active("engine.search_awaits_new_runs") {
            true => Some(RunId(u64::MAX)),
            false => self.last_run,
        };
        let version = shared.index.version();
        let due = |run: &RunId| *run >= from && Some(*run) <= last;
        let next = version.runs().map(|run| run.id()).filter(due).min()?;
        Some((next, if next == from { block } else { 0 }))
    }

    /// Adds the budget for the time since the last step, at most one second's worth.
    fn add_credit(&mut self, now_nanos: u64, rate: u64) {
        let nanos = now_nanos.saturating_sub(self.stepped_nanos).min(SECOND_NANOS);
        let earned = u128::from(nanos) * u128::from(rate) / u128::from(SECOND_NANOS);
        // Intervals that earn less than a byte are accumulated.
        if earned > 0 {
            self.stepped_nanos = now_nanos;
            let most = i64::try_from(rate).unwrap_or(i64::MAX);
            self.credit_bytes = self.credit_bytes.saturating_add(earned as i64).min(most);
        }
    }
}

/// Scrubs the next pairs. Returns the key to continue with and the bytes; `None` at the end.
fn scrub_values(
    shared: &Arc<Shared>,
    from: &Bytes,
    bytes_max: u64,
) -> Result<Option<(Bytes, u64)>> {
    let view = View::new(shared);
    let range = KeyRange { start: from.clone(), end: Bytes::new() };
    let mut iter = view.references(range, Order::Forward)?;
    let extent = Extent { pairs_max: SLICE_PAIRS_MAX, bytes_max, keys_only: false };
    let slice = Slice::collect(&mut iter, extent)?;
    if slice.is_empty() {
        return Ok(None);
    }
    let bytes = slice.bytes();
    let mut next = match mutant::active("engine.scrub_reads_nothing") {
        true => Bytes::copy_from_slice(slice.last_key()),
        false => slice.check(shared)?,
    }
    .to_vec();
    next.push(0);
    Ok(Some((next.into(), bytes)))
}
