//! One step: continue a job, or pick and start the next.

use crate::gc::Shared;
use crate::jobs::{FailedVictims, Running, Trim};
use crate::observe::{FileCache, LastWrite, MemtableSeen, Seen, TierCache};
use crate::policy::{Choice, State, pick, pick_short_of_space};
use crate::saved::Saved;
use crate::sorting::Sorting;
use crate::stats::{GcStats, Load, Phase, Stage, StepDone};
use crate::{credit_for, space_trigger};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use stele_index::{Edit, Job, Live, VersionId};
use stele_types::{Error, FileId, Lsn, Result};

/// Time after a failed job in which no larger job starts.
pub(crate) const BACK_OFF_NANOS: u64 = 1_000_000_000;

#[derive(Debug, Default)]
pub(crate) struct Work {
    pub saved: Saved,
    pub credited_bytes: u64,
    pub flush: Option<Job>,
    pub merge: Option<Running>,
    pub sorting: Option<Sorting>,
    pub seen: BTreeMap<FileId, Seen>,
    pub observed: VersionId,
    /// Unix seconds at which the store was opened.
    pub opened_at_s: u64,
    /// Records that jobs left in place because they could not be read, by file. Lost at a restart:
    /// the next job that reads them records them again.
    pub unreadable: BTreeMap<FileId, Live>,
    pub files: FileCache,
    pub tiers: TierCache,
    pub memtable: MemtableSeen,
    pub last_write: LastWrite,
    pub space_amp: f64,
    pub stage: Stage,
    /// Checkpoints at which the hooks were last called.
    pub truncated_at: Option<Lsn>,
    pub truncated_at_nanos: u64,
    /// Time of the last freeze that garbage collection chose.
    pub froze_at_nanos: Option<u64>,
    pub trim: Trim,
    /// Victims of jobs that ran out of space. Lost at a restart.
    pub failed_victims: FailedVictims,
    pub reappended_at: Option<Lsn>,
    pub back_off_until_nanos: u64,
    /// No run is rewritten before, because a rewrite failed.
    pub no_rewrite_until_nanos: u64,
    pub move_bytes_max: Option<u64>,
    pub reclaimed_files: u64,
    pub reclaimed_bytes: u64,
    pub resumed: u64,
    pub damaged: u64,
    pub last_error: Option<String>,
    /// Dead files of which the removal could not read what it needs, with the time in nanoseconds
    /// before which it is not tried again. Lost at a restart.
    pub unremovable: BTreeMap<FileId, u64>,
}

impl Work {
    pub(crate) fn resume(shared: &Shared, resumed: &[u8]) -> Self {
        let saved = Saved::decode(resumed).unwrap_or_default();
        shared.user_bytes.store(saved.user_bytes, Ordering::Relaxed);
        let mut work = Self {
            credited_bytes: saved.user_bytes,
            saved,
            space_amp: 1.0,
            opened_at_s: shared.clock.unix_seconds(),
            ..Self::default()
        };
        work.memtable.resume(shared, work.saved.user_bytes);
        // No installation is running yet, so an unreferenced value file is a leftover.
        for info in shared.log.files() {
            work.seen.insert(info.file, Seen::leftover());
        }
        work
    }

    pub(crate) fn step(&mut self, shared: &Shared, bytes_max: u64) -> Result<StepDone> {
        match self.slice(shared, bytes_max) {
            Ok(done) => {
                self.stage = done.stage;
                Ok(done)
            }
            Err(error) => self.abort_jobs(shared, error),
        }
    }

    fn slice(&mut self, shared: &Shared, bytes_max: u64) -> Result<StepDone> {
        self.add_credit(shared);
        self.resume_merge(shared)?;
        if self.flush.is_none() && self.merge.is_some() && shared.index.frozen_count() > 0 {
            // A full memtable does not wait for a long merge.
            self.flush = shared.index.start_flush();
        }
        if self.flush.is_some() {
            return self.step_flush(shared, bytes_max);
        }
        if self.merge.is_some() {
            return self.step_merge(shared, bytes_max);
        }
        let state = self.observe(shared);
        let short = shared.short_of_space.load(Ordering::Relaxed);
        let pick = if short { pick_short_of_space } else { pick };
        self.start(shared, pick(&state, &shared.options()), bytes_max)
    }

    pub(crate) fn start(
        &mut self,
        shared: &Shared,
        choice: Choice,
        bytes_max: u64,
    ) -> Result<StepDone> {
        let done = |stage, bytes| Ok(StepDone { stage, bytes });
        match choice {
            Choice::Idle => done(Stage::Idle, 0),
            Choice::Freeze => {
                self.froze_at_nanos = Some(shared.clock.monotonic_nanos());
                shared.hooks.freeze()?;
                self.memtable.start(shared, shared.user_bytes.load(Ordering::Relaxed));
                done(Stage::Flush, 0)
            }
            Choice::Flush => {
                self.flush = shared.index.start_flush();
                self.step_flush(shared, bytes_max)
            }
            Choice::Merge { first, count } => {
                self.start_merge(shared, first, count)?;
                self.step_merge(shared, bytes_max)
            }
            Choice::Trim => {
                self.start_trim(shared)?;
                self.step_merge(shared, bytes_max)
            }
            Choice::DropExpired { runs } => {
                self.start_dropping_expired(shared, runs)?;
                self.step_merge(shared, bytes_max)
            }
            Choice::Relocate { victims } => {
                self.start_relocate(shared, victims)?;
                self.step_merge(shared, bytes_max)
            }
            Choice::Sort { range } => {
                self.start_sort(shared, range)?;
                self.step_merge(shared, bytes_max)
            }
            Choice::Reclaim { files } => {
                let bytes = self.reclaim(shared, &files)?;
                done(Stage::Reclaim, bytes)
            }
            Choice::DropFree { count } => {
                let bytes = shared.log.drop_free(count)?;
                done(Stage::Reclaim, bytes)
            }
            Choice::Roll => {
                shared.hooks.open_reserve(0);
                shared.log.roll()?;
                // The next flush moves the checkpoint past the old head.
                self.froze_at_nanos = None;
                done(Stage::Reclaim, 0)
            }
            Choice::Truncate => {
                self.truncated_at_nanos = shared.clock.monotonic_nanos();
                self.truncated_at = Some(shared.index.replay_from());
                shared.hooks.truncate()?;
                done(Stage::Truncate, 0)
            }
            Choice::Reappend { below } => {
                shared.hooks.open_reserve(0);
                self.reappended_at = Some(shared.index.replay_from());
                let bytes = shared.hooks.reappend(below, shared.options().reappend_bytes_max)?;
                done(Stage::Reappend, bytes)
            }
        }
    }

    /// Whether a job is in progress, so that only its own progress has changed the statistics.
    pub(crate) fn is_mid_job(&self) -> bool {
        self.flush.is_some() || self.merge.is_some()
    }

    /// Aborts the running jobs. A full device is not an error: later jobs free space.
    fn abort_jobs(&mut self, shared: &Shared, error: Error) -> Result<StepDone> {
        self.stage = Stage::Idle;
        self.last_error = Some(error.to_string());
        self.back_off_until_nanos = shared.clock.monotonic_nanos().saturating_add(BACK_OFF_NANOS);
        self.flush = None;
        if let (Error::NoSpace(_), Some(running)) = (&error, &self.merge) {
            let now_nanos = shared.clock.monotonic_nanos();
            self.failed_victims.note(&running.victims(), now_nanos);
        }
        self.drop_merge(shared);
        match error {
            Error::NoSpace(_) => Ok(StepDone { stage: Stage::Idle, bytes: 0 }),
            error => {
                // A sort, which may fail again, must not run before jobs that free space.
                self.sorting = None;
                Err(error)
            }
        }
    }

    fn add_credit(&mut self, shared: &Shared) {
        let user_bytes = shared.user_bytes.load(Ordering::Relaxed);
        let new_bytes = user_bytes.saturating_sub(self.credited_bytes);
        self.saved.credit_bytes += credit_for(new_bytes, self.space_amp, &shared.options());
        self.credited_bytes = user_bytes;
        self.saved.user_bytes = user_bytes;
    }

    pub(crate) fn save(&mut self, shared: &Shared) -> Result<()> {
        let files: BTreeSet<FileId> = shared.log.files().iter().map(|info| info.file).collect();
        self.saved.sorted.retain(|file| files.contains(file));
        self.add_credit(shared);
        let unflushed = self.unflushed_bytes(shared);
        // Memtables are replayed at the next open, and their bytes are counted again then.
        let saved = Saved {
            user_bytes: self.saved.user_bytes.saturating_sub(unflushed),
            credit_bytes: self.saved.credit_bytes - credit_for(unflushed, 1.0, &shared.options()),
            ..self.saved.clone()
        };
        shared.index.edit(Edit::GcState(saved.encode()))
    }

    pub(crate) fn stats(&mut self, shared: &Shared) -> (GcStats, Load) {
        let state = self.observe(shared);
        let load = self.load(shared, &state);
        let options = &*shared.options();
        let target = options.space_amp_target.max(space_trigger(options));
        let accepted = (options.weighed(state.live_bytes()) as f64 * target) as u64;
        let stats = GcStats {
            phase: self.phase(&state),
            stage: self.stage,
            user_bytes: shared.user_bytes.load(Ordering::Relaxed),
            bytes: self.saved.bytes,
            disk_bytes: state.disk_bytes(),
            live_bytes: state.live_bytes(),
            space_amp: state.space_amp(),
            credit_bytes: state.credit_bytes,
            debt_bytes: state.disk_bytes().saturating_sub(accepted),
            frozen: state.frozen,
            tiers: state.tiers.len(),
            victims: self.merge.as_ref().map(Running::victims).unwrap_or_default(),
            files: state.files,
            files_observed: self.files.observed,
            reclaimed_files: self.reclaimed_files,
            reclaimed_bytes: self.reclaimed_bytes,
            resumed: self.resumed,
            damaged: self.damaged,
            cluster_time_s: shared.cluster_time_s(),
            last_error: self.last_error.clone(),
        };
        (stats, load)
    }

    fn load(&self, shared: &Shared, state: &State) -> Load {
        Load {
            disk_bytes: state.collectable_bytes(),
            live_bytes: state.live_bytes(),
            overwrite_ratio: state.overwrite_ratio,
            user_bytes: shared.user_bytes.load(Ordering::Relaxed),
            tiers: state.tiers.len(),
        }
    }

    fn phase(&self, state: &State) -> Phase {
        let rewriting = self.merge.as_ref().is_some_and(Running::moves_values);
        if rewriting || self.sorting.is_some() || self.flush.is_some() || state.frozen > 0 {
            return Phase::During;
        }
        if state.files.sums().has_sorted_live { Phase::Post } else { Phase::Pre }
    }
}
