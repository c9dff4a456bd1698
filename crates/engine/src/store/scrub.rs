//! The search for damage that nobody has met yet: everything the index leads to is read off the
//! device, key by key, within a budget of bytes a second. What nothing leads to is not looked at.

use super::slice::{Extent, SLICE_PAIRS_MAX, Slice};
use super::{Shared, View};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use stele_storage::Order;
use stele_types::{Clock, KeyRange, Result, RunId, mutant};

const SECOND_NANOS: u64 = 1_000_000_000;

/// Figures of one store since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubStats {
    /// Bytes of runs, and of keys and values, looked at.
    pub bytes: u64,
    /// Times that everything was looked at.
    pub passes: u64,
    /// Passes cut short, since a part of the index could not be read.
    pub cut_short: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Scrub {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Which run to go on with, and where; `None` at a beginning.
    run: Option<(RunId, usize)>,
    /// The newest run there was at the beginning.
    last_run: Option<RunId>,
    /// Where to go on with the values; empty at a beginning.
    from: Bytes,
    began_nanos: Option<u64>,
    is_done: bool,
    /// What may be read, as of the last step; below 0 after a large value.
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

    /// Looks at about `bytes_max` bytes, if the budget allows.
    pub fn step(&self, shared: &Arc<Shared>, bytes_max: u64) {
        let rate = shared.options.scrub_bytes_per_second_max;
        let Some(mut state) = self.state.try_lock().filter(|_| rate > 0) else { return };
        let now = self.clock.monotonic_nanos();
        state.earn(now, rate);
        let reads_runs = !state.is_done && state.began_nanos.is_some() && state.from.is_empty();
        if !reads_runs && shared.blocks.take_suspicion() {
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
        let bytes = state.look(shared, bytes_max.min(credit)).unwrap_or_else(|_| {
            // Anew from the first run on: one of them is damaged.
            (state.is_done, state.began_nanos) = (true, None);
            state.stats.cut_short += 1;
            0
        });
        state.credit_bytes -= bytes as i64;
        state.stats.bytes += bytes;
    }
}

impl State {
    /// First the runs, in the order of their numbers, then the values. Returns the bytes.
    fn look(&mut self, shared: &Arc<Shared>, bytes_max: u64) -> Result<u64> {
        if self.from.is_empty()
            && let Some((run, block)) = self.next_run(shared)
        {
            let look = shared.index.scrub_run(run, block, bytes_max)?.unwrap_or_default();
            self.run = Some(match look.next {
                Some(block) => (run, block),
                None => (RunId(run.0 + 1), 0),
            });
            if look.wants_rewrite {
                shared.blocks.schedule_rewrite(run);
            }
            look.lost.into_iter().for_each(|lost| shared.blocks.note(lost));
            return Ok(look.bytes);
        }
        match look(shared, &self.from, bytes_max)? {
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

    /// The run to go on with, or the first one after it. Rule: those that came since the beginning are
    /// left to the next pass. While merges follow each other the values' turn would never come.
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

    /// Earns what time has brought, at most a second's worth.
    fn earn(&mut self, now_nanos: u64, rate: u64) {
        let nanos = now_nanos.saturating_sub(self.stepped_nanos).min(SECOND_NANOS);
        let earned = u128::from(nanos) * u128::from(rate) / u128::from(SECOND_NANOS);
        // Steps that earn less than a byte add up.
        if earned > 0 {
            self.stepped_nanos = now_nanos;
            let most = i64::try_from(rate).unwrap_or(i64::MAX);
            self.credit_bytes = self.credit_bytes.saturating_add(earned as i64).min(most);
        }
    }
}

/// Looks at the next pairs: where to go on, and how many bytes they were. `None` at the end.
fn look(shared: &Arc<Shared>, from: &Bytes, bytes_max: u64) -> Result<Option<(Bytes, u64)>> {
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
