//! Jobs that run to completion at once.

use crate::gc::Shared;
use crate::policy::{Choice, pick_collect};
use crate::stats::{Forced, Stage};
use crate::work::{BACK_OFF_NANOS, Work};
use std::sync::atomic::Ordering;
use stele_index::{MergeInputs, MergeSpec, Tier};
use stele_types::{Cause, Result, RunId, mutant};

/// Limit for the jobs of one forced collection, even if more could be gained.
const JOBS_MAX: usize = 1000;

impl Work {
    pub fn force(&mut self, shared: &Shared, job: Forced) -> Result<()> {
        if let Forced::Rewrite(run) = job
            && !mutant::active("gc.rewrite_resets_back_off")
        {
            return self.rewrite_unless_backing_off(shared, run);
        }
        self.back_off_until_nanos = 0;
        let done = match job {
            Forced::Flush => self.flush_all(shared),
            Forced::MergeAll => self.merge_all(shared),
            Forced::SortAll => self.sort_all(shared),
            Forced::Collect => self.collect(shared),
            Forced::Rewrite(run) => self.rewrite(shared, run),
        };
        self.end_forced(shared, done)
    }

    fn end_forced(&mut self, shared: &Shared, done: Result<()>) -> Result<()> {
        self.stage = Stage::Idle;
        if let Err(error) = &done {
            self.last_error = Some(error.to_string());
            self.flush = None;
            self.sorting = None;
            self.drop_merge(shared);
        }
        done
    }

    /// Rewrites a run, or does nothing soon after a rewrite that failed. Invariant: a rewrite, which
    /// no caller waits for, never ends the pause after a failed job. Otherwise a job that must fail
    /// would run in every slice.
    fn rewrite_unless_backing_off(&mut self, shared: &Shared, run: RunId) -> Result<()> {
        let now_nanos = shared.clock.monotonic_nanos();
        if now_nanos < self.no_rewrite_until_nanos {
            return Ok(());
        }
        let done = self.rewrite(shared, run);
        if done.is_err() {
            self.no_rewrite_until_nanos = now_nanos.saturating_add(BACK_OFF_NANOS);
        }
        self.end_forced(shared, done)
    }

    fn flush_all(&mut self, shared: &Shared) -> Result<()> {
        shared.hooks.freeze()?;
        self.memtable.start(shared, shared.user_bytes.load(Ordering::Relaxed));
        while self.flush.is_some() || shared.index.frozen_count() > 0 {
            if self.flush.is_none() {
                self.flush = shared.index.start_flush();
            }
            if self.flush.is_none() {
                break;
            }
            self.step_flush(shared, u64::MAX)?;
        }
        Ok(())
    }

    fn finish_jobs(&mut self, shared: &Shared) -> Result<()> {
        self.resume_merge(shared)?;
        while self.merge.is_some() {
            self.step_merge(shared, u64::MAX)?;
        }
        self.flush_all(shared)
    }

    fn merge_all(&mut self, shared: &Shared) -> Result<()> {
        self.finish_jobs(shared)?;
        let (tiers, tombstones) = tiers_and_tombstones(shared);
        let has_expired = !self.observe(shared).expired.is_empty();
        if tiers > 1 || tombstones > 0 || has_expired {
            self.start_merge(shared, 0, tiers)?;
            self.finish_jobs(shared)?;
        }
        self.reclaim_all(shared)
    }

    fn sort_all(&mut self, shared: &Shared) -> Result<()> {
        self.finish_jobs(shared)?;
        let state = self.observe(shared);
        if state.tiers.len() > 1 || state.unsorted_bytes() > 0 {
            self.start_sort_of_all(shared)?;
            self.finish_jobs(shared)?;
        }
        self.reclaim_all(shared)
    }

    /// Removes dead files, after requesting the truncations that may hold them.
    fn reclaim_all(&mut self, shared: &Shared) -> Result<()> {
        shared.hooks.truncate()?;
        let state = self.observe(shared);
        let dead = state.files.iter().filter(|file| file.held.is_none()).map(|file| file.id);
        self.reclaim(shared, &dead.collect::<Vec<_>>()).map(|_| ())
    }

    /// Rewrites a run. Does nothing while another merge runs: waiting may take long, and its
    /// progress must not be lost.
    fn rewrite(&mut self, shared: &Shared, run: RunId) -> Result<()> {
        if self.merge.is_some() || shared.index.pending_merge().is_some() {
            return Ok(());
        }
        let version = shared.index.version();
        let holds = |tier: &&Tier| tier.runs.iter().any(|other| other.id() == run);
        let Some(age) = version.tiers().iter().find(holds).map(|tier| tier.age) else {
            return Ok(());
        };
        let spec =
            MergeSpec { inputs: MergeInputs::Runs { age, runs: vec![run] }, cause: Cause::Merge };
        self.start_job(shared, &version, spec, None)?;
        drop(version);
        self.finish_jobs(shared)
    }

    fn collect(&mut self, shared: &Shared) -> Result<()> {
        self.finish_jobs(shared)?;
        self.truncated_at = None;
        for _ in 0..JOBS_MAX {
            let state = self.observe(shared);
            match pick_collect(&state, &shared.options()) {
                Choice::Idle => break,
                choice => self.start(shared, choice, u64::MAX).map(|_| ())?,
            }
            self.finish_jobs(shared)?;
        }
        self.reclaim_all(shared)
    }
}

/// Returns the number of tiers and of tombstones. A function of its own, so that the pin on the
/// version ends before files that it holds are removed.
fn tiers_and_tombstones(shared: &Shared) -> (usize, u64) {
    let version = shared.index.version();
    (version.tiers().len(), version.tiers().iter().map(|tier| tier.tombstones).sum())
}
