//! Scrub: background verification that finds latent damage. Everything that the index refers to is
//! read off the device, in key order, within a budget of bytes per second. Other bytes are not
//! read.

use super::slice::{Extent, Slice};
use super::{Shared, View};
use bytes::Bytes;
use std::sync::Arc;
use stele_storage::Order;
use stele_types::lock::{Mutex, rank};
use stele_types::{Clock, KeyRange, RunId, mutant};

const SECOND_NANOS: u64 = 1_000_000_000;

/// Time before the next pass after one that could not go on.
const RETRY_NANOS: u64 = 60 * SECOND_NANOS;
/// Limit for the pairs of a slice: scattered small values cost a read each.
const PAIRS_MAX: usize = 1024;

/// Statistics of the scrub since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubStats {
    /// Bytes read for it: runs, keys, and the blocks of the device that hold values.
    pub bytes: u64,
    /// Completed scrub passes.
    pub passes: u64,
    /// Failed reads of the index during passes. What only the unreadable part refers to is skipped.
    pub cut_short: u64,
    /// Bytes of runs and records that the current pass has checked; `pass_bytes` after its end.
    pub pass_checked_bytes: u64,
    /// Bytes of runs and records to check when the current or last pass began.
    pub pass_bytes: u64,
    /// Seconds since the last completed pass began; since the store was opened if there was none.
    pub age_s: u64,
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
    /// The runs are read; values follow.
    reads_values: bool,
    /// Key to continue with; empty at the start of the values.
    from: Bytes,
    /// The runs are read, or were read, a second time in this pass.
    has_reread: bool,
    /// Bytes of values to check before the runs may be read again in this pass.
    values_owed_bytes: u64,
    began_nanos: Option<u64>,
    is_done: bool,
    lasting: Lasting,
}

/// State that outlasts a pass.
#[derive(Clone, Copy, Debug, Default)]
struct Lasting {
    /// Bytes that may be read, as of the last step; negative after a slice that cost more.
    credit_bytes: i64,
    stepped_nanos: u64,
    /// No pass begins before.
    paused_until_nanos: u64,
    /// Start of the last completed pass; that of the store if there was none.
    checked_nanos: u64,
    stats: ScrubStats,
}

impl Scrub {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let now = clock.monotonic_nanos();
        let lasting = Lasting { stepped_nanos: now, checked_nanos: now, ..Lasting::default() };
        Self { clock, state: Mutex::new(State { lasting, ..State::default() }) }
    }

    pub fn stats(&self) -> ScrubStats {
        let now = self.clock.monotonic_nanos();
        let Lasting { stats, checked_nanos, .. } = self.state.lock().lasting;
        ScrubStats { age_s: now.saturating_sub(checked_nanos) / SECOND_NANOS, ..stats }
    }

    /// Scrubs about `bytes_max` bytes, if the budget allows. Returns the bytes read.
    pub fn step(&self, shared: &Arc<Shared>, bytes_max: u64) -> u64 {
        let rate = shared.options.scrub_bytes_per_second_max;
        let Some(mut state) = self.state.try_lock().filter(|_| rate > 0) else { return 0 };
        let now = self.clock.monotonic_nanos();
        state.lasting.add_credit(now, rate);
        let may_read_runs = state.is_done || state.reads_values && state.values_owed_bytes == 0;
        if may_read_runs && shared.lost_blocks.take_suspected() {
            match state.is_done {
                true => state.began_nanos = None,
                false => state.read_runs_again(shared),
            }
        }
        let is_due = match state.began_nanos {
            Some(began) if state.is_done => {
                let interval = shared.options.scrub_interval_s.saturating_mul(SECOND_NANOS);
                now.saturating_sub(began) >= interval
            }
            Some(_) => true,
            None => now >= state.lasting.paused_until_nanos,
        };
        // Less than an eighth of a second's budget is not worth a slice.
        let bytes_max = bytes_max.min((rate / 8).max(1));
        let credit = u64::try_from(state.lasting.credit_bytes).unwrap_or_default();
        if !is_due || credit < bytes_max {
            return 0;
        }
        if state.is_done || state.began_nanos.is_none() {
            state.begin_pass(shared, now);
        }
        let bytes = state.scrub_slice(shared, bytes_max, now);
        let lasting = &mut state.lasting;
        lasting.credit_bytes = lasting.credit_bytes.saturating_sub_unsigned(bytes);
        lasting.stats.bytes += bytes;
        bytes
    }
}

impl State {
    fn begin_pass(&mut self, shared: &Shared, now_nanos: u64) {
        let version = shared.index.version();
        let runs: u64 = version.runs().map(|run| run.meta().bytes).sum();
        let records: u64 = version.live().values().map(|live| live.bytes).sum();
        let mut lasting = self.lasting;
        (lasting.stats.pass_bytes, lasting.stats.pass_checked_bytes) = (runs + records, 0);
        let last_run = version.runs().map(|run| run.id()).max();
        *self = Self { last_run, began_nanos: Some(now_nanos), lasting, ..Self::default() };
    }

    /// Reads the runs once more, those created in the meantime too, before it goes on with the values.
    fn read_runs_again(&mut self, shared: &Shared) {
        self.last_run = shared.index.version().runs().map(|run| run.id()).max();
        (self.run, self.reads_values, self.has_reread) = (None, false, true);
    }

    fn note_checked(&mut self, bytes: u64) {
        let stats = &mut self.lasting.stats;
        stats.pass_checked_bytes = (stats.pass_checked_bytes + bytes).min(stats.pass_bytes);
    }

    fn end_pass(&mut self) {
        self.is_done = true;
        self.lasting.checked_nanos = self.began_nanos.unwrap_or(self.lasting.checked_nanos);
        let stats = &mut self.lasting.stats;
        stats.passes += 1;
        stats.pass_checked_bytes = stats.pass_bytes;
    }

    /// Scrubs first the runs, in the order of their numbers, then the values. Returns the bytes.
    fn scrub_slice(&mut self, shared: &Arc<Shared>, bytes_max: u64, now_nanos: u64) -> u64 {
        if !self.reads_values {
            if let Some((run, block)) = self.next_run(shared) {
                return self.scrub_run(shared, run, block, bytes_max);
            }
            self.reads_values = true;
        }
        self.scrub_values(shared, bytes_max, now_nanos)
    }

    /// Scrubs a part of a run. Invariant: a part that cannot be read keeps no other from being read.
    fn scrub_run(&mut self, shared: &Shared, run: RunId, block: usize, bytes_max: u64) -> u64 {
        let scrubbed = shared.index.scrub_run(run, block, bytes_max);
        let has_failed = scrubbed
            .as_ref()
            .map_or(true, |it| it.as_ref().is_some_and(|scrubbed| scrubbed.unread > 0));
        self.lasting.stats.cut_short += u64::from(has_failed);
        let scrubbed = scrubbed.ok().flatten().unwrap_or_default();
        self.run = Some(match scrubbed.next {
            Some(block) => (run, block),
            None => (RunId(run.0 + 1), 0),
        });
        if scrubbed.needs_rewrite {
            shared.lost_blocks.schedule_rewrite(run);
        }
        scrubbed.lost.into_iter().for_each(|lost| shared.lost_blocks.note(lost));
        match self.has_reread {
            true => self.values_owed_bytes += scrubbed.bytes,
            false => self.note_checked(scrubbed.bytes),
        }
        scrubbed.bytes
    }

    /// Scrubs the next pairs. Returns the bytes.
    fn scrub_values(&mut self, shared: &Arc<Shared>, bytes_max: u64, now_nanos: u64) -> u64 {
        let view = View::new(shared);
        let range = KeyRange { start: self.from.clone(), end: Bytes::new() };
        let extent = Extent { pairs_max: PAIRS_MAX, bytes_max, keys_only: false };
        let (slice, failure) = match view.references(range, Order::Forward) {
            Ok(mut iter) => Slice::collect_until_failure(&mut iter, extent),
            Err(error) => (Slice::default(), Some(error)),
        };
        if slice.is_empty() {
            match failure {
                Some(_) => self.go_on_after_failure(shared, now_nanos),
                None => self.end_pass(),
            }
            return 0;
        }
        let record_bytes = slice.record_bytes();
        let (last, bytes) = match mutant::active("engine.scrub_reads_nothing") {
            true => (Bytes::copy_from_slice(slice.last_key()), slice.bytes()),
            false => slice.check(shared),
        };
        self.from = [&last[..], &[0]].concat().into();
        self.values_owed_bytes = self.values_owed_bytes.saturating_sub(bytes);
        self.note_checked(record_bytes);
        bytes
    }

    /// Goes on where the index cannot be read at the next key: reads the runs again, which finds the
    /// block, then skips the keys that only this block may hold. Invariant: what follows a damaged
    /// block is scrubbed in the same pass, whether or not the block is ever covered.
    fn go_on_after_failure(&mut self, shared: &Shared, now_nanos: u64) {
        self.lasting.stats.cut_short += 1;
        if mutant::active("engine.scrub_ends_at_a_damaged_block") {
            (self.is_done, self.began_nanos) = (true, None);
            return;
        }
        let lost = shared.lost_blocks.first_lost_after(&self.from);
        match lost.filter(|lost| self.has_reread || lost.start <= self.from) {
            Some(lost) => self.from = lost.end,
            None if !self.has_reread => self.read_runs_again(shared),
            None => {
                // Not damage: the device may answer later.
                (self.is_done, self.began_nanos) = (true, None);
                self.lasting.paused_until_nanos = now_nanos.saturating_add(RETRY_NANOS);
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
}

impl Lasting {
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
