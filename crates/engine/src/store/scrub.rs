//! Scrub: background verification that finds latent damage. Everything that the index refers to is
//! read off the device, in key order, within a budget of bytes per second. Other bytes are not
//! read.
//!
//! Record of the scrub's progress, so that a pass goes on after a restart. Unknown lines are skipped:
//!
//! ```text
//! SCRUB := "stele scrub\n" line* "crc32c " hex "\n"
//! line  := "began_unix_s " n "\n"            start of the pass
//!        | "checked_unix_s " n "\n"          start of the last completed pass
//!        | "done " (0 | 1) "\n"              the pass is complete
//!        | "bytes " n "\n" | "checked_bytes " n "\n"
//!        | "newest_run " n "\n"              at the start of the pass; absent without runs
//!        | "run " n "\n" | "block " n "\n"   part of a run that is next; absent at the start
//!        | "values " (0 | 1) "\n"            the runs are read
//!        | "from " hex "\n"                  key that is next
//! ```

use super::Shared;
use super::slice::{Extent, Slice};
use crate::checked_text::{self, CheckedText, from_hex, to_hex};
use bytes::Bytes;
use std::fmt::Write as _;
use std::sync::Arc;
use stele_index::Direction;
use stele_types::lock::{Mutex, rank};
use stele_types::{Clock, Error, KeyRange, Result, RunId, key_after};

const SECOND_NANOS: u64 = 1_000_000_000;

/// Time before the next pass after one that could not go on.
const RETRY_NANOS: u64 = 60 * SECOND_NANOS;
/// Limit for the pairs of a slice: scattered small values cost a read each.
const PAIRS_MAX: usize = 1024;
/// Shortest time between two records of the progress.
const RECORD_NANOS: u64 = 10 * SECOND_NANOS;
/// Part of a pass, as a divisor of its bytes, after which its progress is recorded again.
const RECORD_PARTS: u64 = 100;

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
    /// Seconds since the last completed pass began; since the scrub was first opened if there was
    /// none. Counts on over restarts.
    pub age_s: u64,
}

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
    /// Key at which the index could not be read when the runs were last read again for it.
    reread_at: Option<Bytes>,
    /// Bytes of values to check before the runs may be read again in this pass.
    values_owed_bytes: u64,
    /// Start of the pass on the monotonic clock; negative if that was before the clock's start.
    began_nanos: Option<i64>,
    is_done: bool,
    recorded: Recorded,
    lasting: Lasting,
}

#[derive(Clone, Copy, Debug, Default)]
struct Recorded {
    checked_bytes: u64,
    is_done: bool,
    at_nanos: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Lasting {
    /// Bytes that may be read, as of the last step; negative after a slice that cost more.
    credit_bytes: i64,
    stepped_nanos: u64,
    /// No pass begins before.
    paused_until_nanos: u64,
    /// Start of the last completed pass on the monotonic clock; that of the scrub if there was none.
    checked_nanos: i64,
    stats: ScrubStats,
}

impl Scrub {
    /// Goes on with the pass of which the progress is recorded. Without a record, or with a damaged
    /// one, a pass begins.
    pub(super) fn open(clock: Arc<dyn Clock>, shared: &Shared) -> Self {
        let (now, unix_s) = (clock.monotonic_nanos(), clock.unix_seconds());
        let checked_nanos = signed(now);
        let lasting = Lasting { stepped_nanos: now, checked_nanos, ..Lasting::default() };
        let mut state = State { lasting, ..State::default() };
        // bug engine.scrub_forgets_its_progress: never
        if let Ok(progress) = Progress::read(shared) {
            state.resume(progress, shared, now, unix_s);
        }
        Self { clock, state: Mutex::new(state) }
    }

    pub(super) fn stats(&self) -> ScrubStats {
        let now = self.clock.monotonic_nanos();
        let Lasting { stats, checked_nanos, .. } = self.state.lock().lasting;
        ScrubStats { age_s: since(now, checked_nanos) / SECOND_NANOS, ..stats }
    }

    /// Scrubs about `bytes_max` bytes, if the budget allows. Returns the bytes read.
    pub(super) fn step(&self, shared: &Arc<Shared>, bytes_max: u64) -> u64 {
        let rate = shared.options.scrub_bytes_per_second_max;
        let Some(mut state) = self.state.try_lock().filter(|_| rate > 0) else { return 0 };
        let now = self.clock.monotonic_nanos();
        state.lasting.add_credit(now, rate);
        state.record_if_due(shared, now, self.clock.unix_seconds());
        let may_read_runs = state.is_done || state.reads_values && state.values_owed_bytes == 0;
        if may_read_runs && shared.lost_blocks.take_suspected() {
            match state.is_done {
                true => {
                    state.began_nanos = None;
                    // Invariant: the pause after failed reads ends where damage is suspected.
                    // Test: `damage_that_a_read_meets_is_found_while_the_scrub_pauses_after_failed_reads`.
                    // bug engine.scrub_pause_delays_damage: skip
                    state.lasting.paused_until_nanos = 0;
                }
                false => state.read_runs_again(shared),
            }
        }
        let is_due = match state.began_nanos {
            Some(began) if state.is_done => {
                let interval = shared.options.scrub_interval_s.saturating_mul(SECOND_NANOS);
                since(now, began) >= interval
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
        let began_nanos = Some(signed(now_nanos));
        let recorded = Recorded { at_nanos: now_nanos, ..Recorded::default() };
        *self = Self { last_run, began_nanos, lasting, recorded, ..Self::default() };
    }

    /// Goes on with a recorded pass. One that waits for the next pass goes on waiting.
    fn resume(&mut self, progress: Progress, shared: &Shared, now_nanos: u64, unix_s: u64) {
        let at = |then_s: u64| {
            let age_s = i64::try_from(unix_s.saturating_sub(then_s)).unwrap_or(i64::MAX);
            signed(now_nanos).saturating_sub(age_s.saturating_mul(SECOND_NANOS as i64))
        };
        self.lasting.checked_nanos = at(progress.checked_unix_s);
        let newest = shared.index.version().runs().map(|run| run.id()).max();
        // Numbers of runs begin again where the index was rebuilt.
        if !progress.is_done && progress.newest_run > newest {
            return;
        }
        self.began_nanos = Some(at(progress.began_unix_s));
        (self.run, self.last_run) = (progress.run, progress.newest_run);
        (self.reads_values, self.from) = (progress.reads_values, progress.from);
        self.is_done = progress.is_done;
        let (checked_bytes, is_done) = (progress.checked_bytes, progress.is_done);
        self.recorded = Recorded { checked_bytes, is_done, at_nanos: now_nanos };
        let stats = &mut self.lasting.stats;
        (stats.pass_bytes, stats.pass_checked_bytes) = (progress.bytes, checked_bytes);
    }

    /// Records the progress at each hundredth of a pass and at its end. Invariant: the record is not
    /// past damage that is noted and not repaired: only the scrub finds it again after a restart.
    fn record_if_due(&mut self, shared: &Shared, now_nanos: u64, unix_s: u64) {
        let Some(began_nanos) = self.began_nanos else { return };
        let Lasting { stats, checked_nanos, .. } = self.lasting;
        let part = (stats.pass_bytes / RECORD_PARTS).max(1);
        let new_bytes = stats.pass_checked_bytes.saturating_sub(self.recorded.checked_bytes);
        let is_recent = now_nanos.saturating_sub(self.recorded.at_nanos) < RECORD_NANOS;
        let has_ended = self.is_done && !self.recorded.is_done;
        let is_damaged = shared.lost_values.has_lost() || shared.lost_blocks.has_lost();
        // bug engine.scrub_record_passes_damage: `is_damaged` is `false`
        if is_recent || !has_ended && (self.is_done || new_bytes < part) || is_damaged {
            return;
        }
        let unix_s_of = |nanos| unix_s.saturating_sub(since(now_nanos, nanos) / SECOND_NANOS);
        let progress = Progress {
            began_unix_s: unix_s_of(began_nanos),
            checked_unix_s: unix_s_of(checked_nanos),
            is_done: self.is_done,
            bytes: stats.pass_bytes,
            checked_bytes: stats.pass_checked_bytes,
            newest_run: self.last_run,
            run: self.run,
            reads_values: self.reads_values,
            from: self.from.clone(),
        };
        let (checked_bytes, is_done) = (stats.pass_checked_bytes, self.is_done);
        self.recorded.at_nanos = now_nanos;
        // A device that cannot take it is tried again later: the record before stays.
        if progress.write(shared).is_ok() {
            self.recorded = Recorded { checked_bytes, is_done, at_nanos: now_nanos };
        }
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
        let range = KeyRange { start: self.from.clone(), end: Bytes::new() };
        let extent = Extent { pairs_max: PAIRS_MAX, bytes_max, keys_only: false };
        let (slice, failure) = match shared.index.view().iter(range, Direction::Forward) {
            Ok(mut iter) => Slice::collect_until_failure(&mut iter, extent),
            Err(error) => (Slice::default(), Some(error)),
        };
        if slice.is_empty() {
            match failure {
                Some(error) => self.go_on_after_failure(shared, &error, now_nanos),
                None => self.end_pass(),
            }
            return 0;
        }
        let record_bytes = slice.record_bytes();
        let (last, bytes) = slice.check(shared);
        self.from = key_after(&last);
        self.values_owed_bytes = self.values_owed_bytes.saturating_sub(bytes);
        self.note_checked(record_bytes);
        bytes
    }

    /// Goes on where the index cannot be read at the next key: skips the keys that only a known damaged
    /// block may hold, or reads the runs again, which finds the block. Invariant: what follows a damaged
    /// block is scrubbed in the same pass, whether or not the block is ever covered, and also if it was
    /// damaged after the runs were read again for another one.
    /// Tests: `what_follows_a_damaged_block_is_scrubbed_though_the_block_is_never_covered`,
    /// `damage_after_the_runs_were_read_again_is_found_in_the_same_pass`.
    fn go_on_after_failure(&mut self, shared: &Shared, error: &Error, now_nanos: u64) {
        self.lasting.stats.cut_short += 1;
        // bug engine.scrub_ends_at_a_damaged_block: (self.is_done, self.began_nanos) = (true, None); return;
        let lost = shared.lost_blocks.first_lost_after(&self.from);
        let has_reread = self.reread_at.as_ref() == Some(&self.from);
        // bug engine.scrub_reads_runs_again_once: let has_reread = self.has_reread;
        match lost.filter(|lost| is_next(shared, &self.from, lost)) {
            Some(lost) => self.from = lost.end,
            None if !has_reread => {
                self.read_runs_again(shared);
                self.reread_at = Some(self.from.clone());
            }
            None => {
                // The device may answer later. Damage is in a run created since, or arose since.
                (self.is_done, self.began_nanos) = (true, None);
                self.lasting.paused_until_nanos = now_nanos.saturating_add(RETRY_NANOS);
                shared.lost_blocks.suspect(error);
            }
        }
    }

    /// Returns the run to continue with, or the first one after it. Invariant: runs created since
    /// the start are left to the next pass. Otherwise a sequence of merges could delay the values
    /// forever.
    fn next_run(&self, shared: &Shared) -> Option<(RunId, usize)> {
        let (from, block) = self.run.unwrap_or((RunId(0), 0));
        let last = self.last_run;
        // bug engine.search_awaits_new_runs: let last = Some(RunId(u64::MAX));
        let version = shared.index.version();
        let due = |run: &RunId| *run >= from && Some(*run) <= last;
        let next = version.runs().map(|run| run.id()).filter(due).min()?;
        Some((next, if next == from { block } else { 0 }))
    }
}

/// Returns whether `lost` holds the next key from `from` on: no key before it can be read, and none
/// fails.
fn is_next(shared: &Shared, from: &Bytes, lost: &KeyRange) -> bool {
    if lost.start <= *from {
        return true;
    }
    let before = KeyRange { start: from.clone(), end: lost.start.clone() };
    let iter = shared.index.view().iter(before, Direction::Forward);
    // bug engine.scrub_skips_unknown_damage: return true;
    iter.and_then(|mut iter| iter.advance()).is_ok_and(|has_key| !has_key)
}

fn signed(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}

/// Returns the nanoseconds from an earlier moment, perhaps before the clock's start, to `now`.
fn since(now_nanos: u64, earlier_nanos: i64) -> u64 {
    u64::try_from(signed(now_nanos).saturating_sub(earlier_nanos)).unwrap_or_default()
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

const NAME: &str = "SCRUB";
const MAGIC: &str = "stele scrub";
/// The longest key takes twice its length.
const FILE_BYTES_MAX: u64 = 256 << 10;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    pub began_unix_s: u64,
    /// Start of the last completed pass; that of the store if there was none.
    pub checked_unix_s: u64,
    pub is_done: bool,
    /// Bytes to check in the pass, and those that are checked.
    pub bytes: u64,
    pub checked_bytes: u64,
    /// Newest run at the start of the pass.
    pub newest_run: Option<RunId>,
    /// Run and block to continue with.
    pub run: Option<(RunId, usize)>,
    pub reads_values: bool,
    pub from: Bytes,
}

impl Progress {
    /// Reads the record of a store. Fails if there is none, or a damaged one.
    pub(super) fn read(shared: &Shared) -> Result<Self> {
        let path = shared.dir.join(NAME);
        let text = CheckedText::read(&shared.vfs, &path, MAGIC, FILE_BYTES_MAX)?;
        text.check()?;
        let from = text.field("from").and_then(from_hex).ok_or_else(|| text.bad("no key"))?;
        let run = text.number("run").and_then(|run| Ok((RunId(run), text.number("block")?)));
        Ok(Self {
            began_unix_s: text.number("began_unix_s")?,
            checked_unix_s: text.number("checked_unix_s")?,
            is_done: text.number::<u8>("done")? != 0,
            bytes: text.number("bytes")?,
            checked_bytes: text.number("checked_bytes")?,
            newest_run: text.number("newest_run").ok().map(RunId),
            run: run.ok(),
            reads_values: text.number::<u8>("values")? != 0,
            from,
        })
    }

    /// Replaces the record of a store; durable on return.
    pub(super) fn write(&self, shared: &Shared) -> Result<()> {
        checked_text::write(&shared.vfs, &shared.dir, NAME, &self.body(), true)
    }

    fn body(&self) -> String {
        let mut out = format!(
            "{MAGIC}\nbegan_unix_s {}\nchecked_unix_s {}\ndone {}\nbytes {}\nchecked_bytes {}\n\
             values {}\n",
            self.began_unix_s,
            self.checked_unix_s,
            u8::from(self.is_done),
            self.bytes,
            self.checked_bytes,
            u8::from(self.reads_values),
        );
        // Writing to a string does not fail.
        if let Some(run) = self.newest_run {
            let _ = writeln!(out, "newest_run {}", run.0);
        }
        if let Some((run, block)) = self.run {
            let _ = write!(out, "run {}\nblock {block}\n", run.0);
        }
        let _ = writeln!(out, "from {}", to_hex(&self.from));
        out
    }
}
