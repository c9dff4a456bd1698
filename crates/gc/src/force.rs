//! Jobs that run to completion at once.

use crate::gc::Shared;
use crate::jobs::Running;
use crate::policy::{Choice, FileState, pick_collect};
use crate::stats::{Forced, Stage};
use crate::work::{BACK_OFF_NANOS, Work};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use stele_index::{MergeInputs, MergeSpec, Tier};
use stele_log::{FileKind, ValueFileInfo};
use stele_types::{Cause, Error, FileId, Result, RunId};

/// Bytes of one step: the reserve is opened for each.
const SLICE_BYTES: u64 = 4 << 20;
/// Limit for the jobs of one forced collection, even if more could be gained.
const JOBS_MAX: usize = 1000;

impl Work {
    pub(crate) fn force(&mut self, shared: &Shared, job: Forced) -> Result<()> {
        // bug gc.rewrite_resets_back_off: never
        if let Forced::Rewrite(run) = job {
            return self.rewrite_unless_backing_off(shared, run);
        }
        self.back_off_until_nanos = 0;
        let done = match job {
            Forced::Flush => self.flush_all(shared),
            Forced::MergeAll => self.merge_all(shared),
            Forced::SortAll => self.sort_all(shared),
            Forced::Collect => self.collect(shared),
            Forced::Compact => self.compact(shared),
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
            self.step_flush(shared, SLICE_BYTES)?;
        }
        Ok(())
    }

    fn finish_jobs(&mut self, shared: &Shared) -> Result<()> {
        self.resume_merge(shared)?;
        while self.merge.is_some() {
            self.step_merge(shared, SLICE_BYTES)?;
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
                choice => self.start(shared, choice, SLICE_BYTES).map(|_| ())?,
            }
            self.finish_jobs(shared)?;
        }
        self.reclaim_all(shared)
    }
}

impl Work {
    /// Frees first and sorts then: what sorts first may find no room though most bytes are dead.
    fn compact(&mut self, shared: &Shared) -> Result<()> {
        self.empty_head(shared)?;
        let done = self.discover_all(shared);
        self.give_up_what_does_not_fit(shared, done)?;
        if !self.can_sort(shared) {
            let done = self.collect(shared);
            self.give_up_what_does_not_fit(shared, done)?;
        }
        while !self.can_sort(shared) {
            let Some(victim) = self.segment_that_fits(shared) else { break };
            let done = self.relocate(shared, victim);
            self.give_up_what_does_not_fit(shared, done)?;
        }
        if self.can_sort(shared) {
            let done = self.sort_all(shared);
            self.give_up_what_does_not_fit(shared, done)?;
        }
        let done = self.collect(shared);
        self.give_up_what_does_not_fit(shared, done)?;
        self.drop_idle_tombstones(shared)?;
        shared.log.drop_free(usize::MAX).map(|_| ())
    }

    /// Removes the retained tombstones if all values in all files are live.
    ///
    /// Invariant: a tombstone stays while a file holds an older value of its key. The index refers to
    /// no such value, so a file with one has more bytes of records than the index refers to.
    fn drop_idle_tombstones(&mut self, shared: &Shared) -> Result<()> {
        let head = shared.log.head().file;
        let version = shared.index.version();
        let files = shared.log.files();
        let is_live = |info: &&ValueFileInfo| match info.kind {
            FileKind::Tombstones => true,
            FileKind::Segment { .. } => info.file == head && info.payload_bytes == 0,
            FileKind::Sorted => {
                version.live().get(&info.file).is_some_and(|live| live.bytes == info.payload_bytes)
            }
        };
        // bug gc.tombstones_dropped: never
        if !files.iter().all(|info| is_live(&info)) {
            return Ok(());
        }
        let retained = files.iter().filter(|info| info.kind == FileKind::Tombstones);
        retained.map(|info| info.file).try_for_each(|file| shared.log.remove(file))
    }

    /// Ends a job that found no room; another may find some.
    fn give_up_what_does_not_fit(&mut self, shared: &Shared, done: Result<()>) -> Result<()> {
        match done {
            Err(Error::NoSpace(_)) => {
                self.flush = None;
                let victims = self.merge.as_ref().map(Running::victims).unwrap_or_default();
                self.failed_victims.note(&victims, shared.clock.monotonic_nanos());
                self.drop_merge(shared);
                Ok(())
            }
            done => done,
        }
    }

    fn relocate(&mut self, shared: &Shared, victim: FileId) -> Result<()> {
        self.start_relocate(shared, vec![victim])?;
        self.finish_jobs(shared)?;
        self.reclaim_all(shared)
    }

    fn empty_head(&mut self, shared: &Shared) -> Result<()> {
        self.finish_jobs(shared)?;
        shared.hooks.truncate()?;
        // bug gc.compact_keeps_head: skip
        shared.hooks.open_reserve(0);
        // bug gc.compact_keeps_head: skip
        if shared.log.roll()? {
            self.flush_all(shared)?;
        }
        self.reclaim_all(shared)
    }

    /// Merges all tiers if the device has room for them, and removes what turns out to be dead.
    fn discover_all(&mut self, shared: &Shared) -> Result<()> {
        loop {
            let state = self.observe(shared);
            if state.has_room(state.index_bytes()) {
                return self.merge_all(shared);
            }
            let fits = state.trim_bytes.is_some_and(|bytes| state.has_room(bytes));
            if !fits || !self.start_trim(shared)? {
                return Ok(());
            }
            self.finish_jobs(shared)?;
            self.reclaim_all(shared)?;
        }
    }

    /// Returns whether the device has room for a second copy of everything that a sort moves.
    fn can_sort(&mut self, shared: &Shared) -> bool {
        self.observe(shared).has_room_to_sort()
    }

    /// Returns the oldest segment of which the live values fit.
    fn segment_that_fits(&mut self, shared: &Shared) -> Option<FileId> {
        let segments: BTreeSet<FileId> = shared
            .log
            .files()
            .into_iter()
            .filter(|info| matches!(info.kind, FileKind::Segment { .. }))
            .map(|info| info.file)
            .collect();
        let state = self.observe(shared);
        let room = state.room_for_values();
        let fits = |file: &&FileState| {
            segments.contains(&file.id)
                && file.held_when_dead.is_none()
                && file.live_bytes > file.unreadable_bytes
                && file.live_bytes <= room
        };
        state.files.iter().find(fits).map(|file| file.id)
    }
}

/// Returns the number of tiers and of tombstones. A function of its own, so that the pin on the
/// version ends before files that it holds are removed.
fn tiers_and_tombstones(shared: &Shared) -> (usize, u64) {
    let version = shared.index.version();
    (version.tiers().len(), version.tiers().iter().map(|tier| tier.tombstones).sum())
}
