//! Flushes and merges, with or without moving values, in slices.
//!
//! # Values move beside writes
//!
//! A merge that moves values reads a version of the index, as of its start, and writes runs of the same age as its
//! inputs:
//!
//! 1. The plan, victims or a key range, is saved in the manifest: after a crash the merge resumes with it.
//! 2. In each slice, `Mover::place` copies the live values of the plan to a sorted file, in key order. It verifies each
//!    checksum, and keeps the version and the expiry of the record.
//! 3. Before a run is finished, the value files to which it refers are durable (`Mover::cut`).
//! 4. One edit of the manifest replaces the inputs by the outputs (`stele_index::Index::commit`).
//! 5. The victims are without references then. They are removed when nothing else holds them ([`crate::removal`]).
//!
//! Writers take no part. A put of the same key meanwhile lies in a memtable or a newer tier, and a reader finds it
//! first; the moved older value goes at the next merge of both. So the newest write wins without a comparison, a
//! lock or a second look at the key. Readers take no part either: a view pins the version of before, and with it the
//! victims. An embedded get that pins nothing looks its key up again if the file is gone.
//!
//! What this keeps:
//! - 2: damage is never copied under a new checksum. An unreadable value stays where it is, and its file with it.
//! - 2: a moved record is not newer than before, so that a rebuild from values keeps the newest one.
//! - 3 before 4: no locator that a restart finds is without its bytes.
//! - Of several tiers that refer to the victims all are merged, of one tier only the runs that do: otherwise a
//!   reference would be left, and the file would stay.
//! - A job that fails drops its outputs; the inputs are current all the time, so that only work is lost.

use crate::gc::Shared;
use crate::mover::{Moved, Mover, Plan};
use crate::observe::{Seen, ref_bytes};
use crate::sorting::all_tiers;
use crate::stats::{Stage, StepDone};
use crate::work::Work;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use stele_index::{
    Job, JobDone, JobStep, MergeInputs, MergeProgress, MergeSpec, Run, Tier, ValueMover, Version,
};
use stele_log::FileKind;
use stele_types::{Cause, Error, FileId, KeyRange, Result, RunId};

/// Share of the index up to which only the runs that refer to the victims are rewritten.
const SUBSET_SHARE_MAX: f64 = 0.5;

#[derive(Debug)]
pub(crate) struct Running {
    job: Job,
    cause: Cause,
    plan: Option<Plan>,
    moved: Arc<Moved>,
    /// Age of the tier that the outputs form or join.
    age: u64,
    /// Runs of that tier before the merge.
    runs_before: BTreeSet<RunId>,
    inputs: Inputs,
}

#[derive(Clone, Copy, Debug, Default)]
struct Inputs {
    /// Bytes of records that the inputs refer to.
    ref_bytes: u64,
    /// Of those, bytes in tiers above the oldest, plus the bytes that their tombstones hide; 0
    /// unless all tiers are merged.
    newer_bytes: u64,
}

impl Running {
    pub(crate) fn victims(&self) -> Vec<FileId> {
        match &self.plan {
            Some(Plan::Victims(files)) => files.iter().copied().collect(),
            _ => Vec::new(),
        }
    }

    pub(crate) fn moves_values(&self) -> bool {
        self.plan.is_some()
    }

    fn stage(&self) -> Stage {
        match self.cause {
            Cause::Relocate => Stage::Relocate,
            Cause::Sort => Stage::Sort,
            _ => Stage::Merge,
        }
    }
}

impl Work {
    pub(crate) fn step_flush(&mut self, shared: &Shared, bytes_max: u64) -> Result<StepDone> {
        let Some(job) = &mut self.flush else {
            return Ok(StepDone { stage: Stage::Idle, bytes: 0 });
        };
        shared.hooks.open_reserve(bytes_max.saturating_mul(2));
        match job.step(bytes_max)? {
            JobStep::More { bytes } => Ok(StepDone { stage: Stage::Flush, bytes }),
            JobStep::Done(done) => {
                self.flush = None;
                let bytes = done.bytes();
                let before: BTreeSet<RunId> =
                    shared.index.version().runs().map(|r| r.id()).collect();
                shared.index.commit(done)?;
                let version = shared.index.version();
                let new = version.runs().filter(|run| !before.contains(&run.id()));
                self.saved.bytes.flush += new.map(|run| run.meta().bytes).sum::<u64>();
                self.advance_raft_from(shared)?;
                self.save(shared)?;
                self.last_error = None;
                Ok(StepDone { stage: Stage::Flush, bytes })
            }
        }
    }

    /// Merges `count` tiers from `first` on, newest first.
    pub(crate) fn start_merge(
        &mut self,
        shared: &Shared,
        first: usize,
        count: usize,
    ) -> Result<()> {
        let version = shared.index.version();
        let ages = version.tiers().iter().skip(first).take(count).map(|tier| tier.age).collect();
        let spec = MergeSpec { inputs: MergeInputs::Tiers(ages), cause: Cause::Merge };
        self.start_job(shared, &version, spec, None)
    }

    pub(crate) fn start_dropping_expired(
        &mut self,
        shared: &Shared,
        runs: Vec<RunId>,
    ) -> Result<()> {
        let version = shared.index.version();
        let age = version.tiers().last().map_or(0, |tier| tier.age);
        let spec = MergeSpec { inputs: MergeInputs::Runs { age, runs }, cause: Cause::Merge };
        self.start_job(shared, &version, spec, None)
    }

    pub(crate) fn start_relocate(&mut self, shared: &Shared, victims: Vec<FileId>) -> Result<()> {
        let version = shared.index.version();
        let victims: BTreeSet<FileId> = victims.into_iter().collect();
        let inputs = referring(&version, &victims);
        let spec = MergeSpec { inputs, cause: Cause::Relocate };
        self.start_job(shared, &version, spec, Some(Plan::Victims(victims)))
    }

    pub(crate) fn start_job(
        &mut self,
        shared: &Shared,
        version: &Version,
        spec: MergeSpec,
        plan: Option<Plan>,
    ) -> Result<()> {
        shared.hooks.open_reserve(0);
        self.saved.plan = plan.clone();
        // bug gc.plan_not_saved: never
        if plan.is_some() {
            // After a crash the merge continues with the same plan.
            self.save(shared)?;
        }
        let moved = Arc::<Moved>::default();
        let mover = mover(shared, plan.as_ref(), &moved);
        let drop_s = self.drop_s(shared);
        let job = shared.index.start_merge(spec.clone(), mover, drop_s)?;
        self.merge = Some(self.running(version, job, &spec, plan, moved));
        Ok(())
    }

    pub(crate) fn running(
        &self,
        version: &Version,
        job: Job,
        spec: &MergeSpec,
        plan: Option<Plan>,
        moved: Arc<Moved>,
    ) -> Running {
        let (age, whole) = match &spec.inputs {
            MergeInputs::Tiers(ages) => {
                (ages.iter().max().copied().unwrap_or(0), ages.len() == version.tiers().len())
            }
            MergeInputs::Runs { age, .. } => (*age, false),
        };
        let inputs = match &spec.inputs {
            MergeInputs::Tiers(ages) => {
                let merged = || version.tiers().iter().filter(|tier| ages.contains(&tier.age));
                let oldest = version.tiers().last().map_or(0, ref_bytes);
                let all: u64 = merged().map(ref_bytes).sum();
                let newer = if whole { all.saturating_sub(oldest) } else { 0 };
                Inputs { ref_bytes: all, newer_bytes: newer + self.hidden_bytes(whole) }
            }
            MergeInputs::Runs { .. } => Inputs::default(),
        };
        let runs_before = version.tier(age).map(run_ids).unwrap_or_default();
        Running { job, cause: spec.cause, plan, moved, age, runs_before, inputs }
    }

    /// Returns the bytes that tombstones hide; 0 unless all tiers are merged.
    fn hidden_bytes(&self, whole: bool) -> u64 {
        if whole { self.tiers.hidden_bytes() } else { 0 }
    }

    /// Resumes a merge that the end of the process interrupted, after its last key (Nezha).
    pub(crate) fn resume_merge(&mut self, shared: &Shared) -> Result<()> {
        if self.merge.is_some() {
            return Ok(());
        }
        let Some(pending) = shared.index.pending_merge() else { return Ok(()) };
        let moved = Arc::<Moved>::default();
        let resumed = self.continue_merge(shared, &pending, &moved);
        // Invariant: a merge that cannot continue is abandoned, because all other jobs wait for it,
        // also those that would repair the damage. Its inputs are all current, so only work is
        // lost.
        let is_lost = |error: &Error| error.is_damage() || matches!(error, Error::Io { .. });
        // bug gc.waits_for_what_is_damaged: never
        if resumed.as_ref().is_err_and(is_lost) {
            self.forget_merge(shared, &moved);
        }
        resumed
    }

    fn continue_merge(
        &mut self,
        shared: &Shared,
        pending: &MergeProgress,
        moved: &Arc<Moved>,
    ) -> Result<()> {
        let version = shared.index.version();
        let moves = pending.spec.cause != Cause::Merge;
        let plan =
            self.saved.plan.clone().filter(|plan| moves && plan.cause() == pending.spec.cause);
        let needed = shared.index.needed_files()?;
        let finished = needed.into_iter().filter(|file| !version.live().contains_key(file));
        let sorted: BTreeSet<FileId> = sorted_files(shared);
        for file in finished.filter(|file| sorted.contains(file)) {
            // Not a leftover: the file belongs to the job that continues.
            self.seen.insert(file, Seen::default());
            moved.files.lock().push(file);
        }
        let mover = mover(shared, plan.as_ref(), moved);
        let drop_s = self.drop_s(shared);
        let Some(job) = shared.index.resume_merge(mover, drop_s)? else { return Ok(()) };
        self.merge = Some(self.running(&version, job, &pending.spec, plan, moved.clone()));
        self.resumed += 1;
        Ok(())
    }

    pub(crate) fn step_merge(&mut self, shared: &Shared, bytes_max: u64) -> Result<StepDone> {
        let Some(running) = &mut self.merge else {
            return Ok(StepDone { stage: Stage::Idle, bytes: 0 });
        };
        shared.hooks.open_reserve(bytes_max.saturating_mul(2));
        let stage = running.stage();
        let moved_before = running.moved.bytes.load(Ordering::Relaxed);
        let step = running.job.step(bytes_max);
        let moved_bytes = running.moved.bytes.load(Ordering::Relaxed) - moved_before;
        self.spend(stage, moved_bytes);
        if stage == Stage::Sort {
            self.saved.sort_charged_bytes += moved_bytes;
        }
        match step? {
            JobStep::More { bytes } => Ok(StepDone { stage, bytes }),
            JobStep::Done(done) => {
                let bytes = done.bytes();
                self.finish_merge(shared, done)?;
                Ok(StepDone { stage, bytes })
            }
        }
    }

    fn finish_merge(&mut self, shared: &Shared, done: JobDone) -> Result<()> {
        shared.index.commit(done)?;
        let Some(running) = self.merge.take() else { return Ok(()) };
        let version = shared.index.version();
        if let Some(tier) = version.tier(running.age) {
            let new = || tier.runs.iter().filter(|run| !running.runs_before.contains(&run.id()));
            let run_bytes = new().map(|run| run.meta().bytes).sum();
            self.spend(Stage::Merge, run_bytes);
            if running.cause == Cause::Sort {
                self.saved.sort_charged_bytes += run_bytes;
            }
            let left = new().flat_map(|run| run.meta().refs.values()).map(|live| live.bytes).sum();
            self.update_overwrite_ratio(running.inputs, left);
        } else {
            self.update_overwrite_ratio(running.inputs, 0);
        }
        let unreadable = std::mem::take(&mut *running.moved.unreadable.lock());
        self.damaged += unreadable.values().map(|left| left.records).sum::<u64>();
        self.last_error = None;
        self.move_bytes_max = self.move_bytes_max.map(|bytes| bytes.saturating_mul(2));
        let Some(plan) = running.plan else { return Ok(()) };
        match &plan {
            Plan::Victims(victims) => {
                let left = |file| version.live().get(file).map(|left| (*file, *left));
                self.unreadable.extend(victims.iter().filter_map(left));
            }
            Plan::Range { range, keep } => {
                if *range == KeyRange::all() {
                    self.unreadable.retain(|file, _| keep.contains(file));
                }
                self.unreadable.extend(unreadable);
                self.saved.sorted.extend(running.moved.files.lock().iter());
                self.finish_part(shared, range);
            }
        }
        self.saved.plan = None;
        self.save(shared)
    }

    pub(crate) fn drop_merge(&mut self, shared: &Shared) {
        let Some(running) = self.merge.take() else { return };
        let bytes = running.moved.bytes.load(Ordering::Relaxed);
        if running.plan.is_some() {
            self.move_bytes_max = Some((bytes / 2).max(1));
        }
        let moved = running.moved.clone();
        drop(running);
        self.forget_merge(shared, &moved);
    }

    fn forget_merge(&mut self, shared: &Shared, moved: &Moved) {
        let files = std::mem::take(&mut *moved.files.lock());
        // If this fails too, the merge continues later and its outputs stay.
        if shared.index.abandon_merge().is_ok() {
            self.saved.plan = None;
            self.seen.extend(files.into_iter().map(|file| (file, Seen::leftover())));
            self.files.forget();
        }
    }

    fn spend(&mut self, stage: Stage, bytes: u64) {
        let bytes_of = &mut self.saved.bytes;
        match stage {
            Stage::Sort => bytes_of.sort += bytes,
            Stage::Relocate => bytes_of.relocate += bytes,
            _ => bytes_of.merge += bytes,
        }
        // Sorts have a credit of their own.
        if stage != Stage::Sort {
            self.saved.credit_bytes -= bytes as f64;
        }
    }

    fn update_overwrite_ratio(&mut self, inputs: Inputs, left_bytes: u64) {
        const WEIGHT: f64 = 0.75;
        if inputs.newer_bytes == 0 {
            return;
        }
        let dropped = inputs.ref_bytes.saturating_sub(left_bytes) as f64;
        let share = (dropped / inputs.newer_bytes as f64).min(1.0);
        self.saved.overwrite_ratio += WEIGHT * (share - self.saved.overwrite_ratio);
    }
}

fn mover(shared: &Shared, plan: Option<&Plan>, moved: &Arc<Moved>) -> Option<Box<dyn ValueMover>> {
    let plan = plan?.clone();
    let file_bytes_max = shared.options().value_file_bytes_max;
    let (log, hooks) = (shared.log.clone(), shared.hooks.clone());
    Some(Box::new(Mover::new(log, hooks, plan, file_bytes_max, moved.clone())))
}

fn sorted_files(shared: &Shared) -> BTreeSet<FileId> {
    let files = shared.log.files().into_iter().filter(|info| info.kind == FileKind::Sorted);
    files.map(|info| info.file).collect()
}

fn run_ids(tier: &stele_index::Tier) -> BTreeSet<RunId> {
    tier.runs.iter().map(|run| run.id()).collect()
}

/// Returns the runs to rewrite so that none refers to `victims`: a few of one tier, or all tiers.
fn referring(version: &Version, victims: &BTreeSet<FileId>) -> MergeInputs {
    let total: u64 = version.tiers().iter().map(|tier| tier.bytes).sum();
    let mut found: Option<(u64, Vec<RunId>)> = None;
    let mut bytes = 0;
    for tier in version.tiers() {
        let refers = |file: &FileId| victims.contains(file);
        let runs = tier.runs.iter().filter(|run| run.meta().refs.keys().any(refers));
        let runs: Vec<_> = runs.collect();
        if runs.is_empty() {
            continue;
        }
        if found.is_some() {
            return all_tiers(version);
        }
        bytes = runs.iter().map(|run| run.meta().bytes).sum();
        found = Some((tier.age, runs.iter().map(|run| run.id()).collect()));
    }
    match found {
        Some((age, runs)) if bytes as f64 <= SUBSET_SHARE_MAX * total as f64 => {
            MergeInputs::Runs { age, runs }
        }
        _ => all_tiers(version),
    }
}

/// Rewrites of single runs without what newer tiers hide, where the device has no room for a merge
/// of all tiers. They go through the tiers from the oldest to the newest but one.
#[derive(Debug, Default)]
pub(crate) struct Trim {
    /// Age of the tier, and last key, of the run that was rewritten last.
    after: Option<(u64, Bytes)>,
    /// Age of the newest tier for which `left` was set.
    newest_age: u64,
    /// Runs not rewritten since that tier exists.
    left: usize,
}

impl Trim {
    /// Returns the next run to rewrite with the age of its tier, if newer tiers got tombstones since it
    /// was.
    ///
    /// Invariant: the runs take turns, also if new tiers come all the time.
    pub(crate) fn next(&mut self, version: &Version) -> Option<(u64, Arc<Run>)> {
        let (newest, older) = version.tiers().split_first()?;
        // bug gc.trims_the_oldest_tier_only: let older = &older[older.len().saturating_sub(1)..];
        let keyed = || {
            let runs = older.iter().rev().flat_map(runs_with_age);
            runs.filter(|(_, run)| run.meta().entries > 0)
        };
        let new = version.tiers().iter().take_while(|tier| tier.age > self.newest_age);
        if new.map(|tier| tier.tombstones).sum::<u64>() > 0 {
            self.left = keyed().count();
        }
        self.newest_age = newest.age;
        if self.left == 0 {
            return None;
        }
        let is_after = |(age, run): &(u64, &Arc<Run>)| {
            let after = self.after.as_ref();
            after.is_none_or(|(of, key)| (age, &run.meta().first_key) > (of, key))
        };
        let found = keyed().find(is_after).or_else(|| keyed().next());
        found.map(|(age, run)| (age, run.clone()))
    }

    fn note(&mut self, age: u64, run: &Run) {
        self.after = Some((age, run.meta().last_key.clone()));
        self.left = self.left.saturating_sub(1);
    }
}

fn runs_with_age(tier: &Tier) -> impl Iterator<Item = (u64, &Arc<Run>)> {
    tier.runs.iter().map(|run| (tier.age, run))
}

impl Work {
    /// Starts the rewrite of the next run; returns whether there is one.
    pub(crate) fn start_trim(&mut self, shared: &Shared) -> Result<bool> {
        let version = shared.index.version();
        let Some((age, run)) = self.trim.next(&version) else { return Ok(false) };
        let inputs = MergeInputs::Runs { age, runs: vec![run.id()] };
        let spec = MergeSpec { inputs, cause: Cause::Merge };
        shared.hooks.open_reserve(0);
        let drop_s = self.drop_s(shared);
        let job = shared.index.start_trim(run.id(), drop_s)?;
        self.trim.note(age, &run);
        self.merge = Some(self.running(&version, job, &spec, None, Arc::<Moved>::default()));
        Ok(true)
    }
}

/// Time for which a victim is excluded after its first failure; each further failure doubles it.
const FIRST_WAIT_NANOS: u64 = 8_000_000_000;
const DOUBLINGS_MAX: u32 = 6;

/// Files that are not victims for a time.
///
/// Invariant: the choice that failed is not the next one. Other victims may fit, and each attempt
/// costs the reads and writes of a whole job.
#[derive(Debug, Default)]
pub(crate) struct FailedVictims(BTreeMap<FileId, Failed>);

#[derive(Clone, Copy, Debug, Default)]
struct Failed {
    times: u32,
    until_nanos: u64,
}

impl FailedVictims {
    pub(crate) fn note(&mut self, files: &[FileId], now_nanos: u64) {
        // bug gc.failed_victim_again: return;
        for file in files {
            let failed = self.0.entry(*file).or_default();
            let wait_nanos = FIRST_WAIT_NANOS << failed.times.min(DOUBLINGS_MAX);
            failed.until_nanos = now_nanos.saturating_add(wait_nanos);
            failed.times += 1;
        }
    }

    pub(crate) fn contains(&self, file: FileId, now_nanos: u64) -> bool {
        self.0.get(&file).is_some_and(|failed| now_nanos < failed.until_nanos)
    }

    /// Returns a number that changes when a file is excluded or no longer is.
    pub(crate) fn fingerprint(&self, now_nanos: u64) -> u64 {
        let excluded = self.0.values().filter(|failed| now_nanos < failed.until_nanos);
        excluded.fold(0, |sum, failed| sum.wrapping_add(failed.until_nanos))
    }

    pub(crate) fn retain(&mut self, exists: impl Fn(FileId) -> bool) {
        self.0.retain(|file, _| exists(*file));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_victim_that_failed_is_excluded_for_longer_each_time() {
        let mut failed = FailedVictims::default();
        failed.note(&[FileId(3)], 0);
        assert!(failed.contains(FileId(3), FIRST_WAIT_NANOS - 1));
        assert!(!failed.contains(FileId(3), FIRST_WAIT_NANOS));
        assert!(!failed.contains(FileId(4), 0));
        failed.note(&[FileId(3)], FIRST_WAIT_NANOS);
        assert!(failed.contains(FileId(3), 3 * FIRST_WAIT_NANOS - 1));
        for _ in 0..100 {
            failed.note(&[FileId(3)], 0);
        }
        assert!(!failed.contains(FileId(3), FIRST_WAIT_NANOS << DOUBLINGS_MAX));
        failed.retain(|file| file != FileId(3));
        assert!(!failed.contains(FileId(3), 0));
    }
}
