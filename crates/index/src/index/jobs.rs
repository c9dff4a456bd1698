//! Flushes and merges, from their start to their commit: the way from a memtable in memory to a run
//! that a restart finds.
//!
//! | step | by | kept after a crash |
//! |---|---|---|
//! | 1 the memtable is frozen, with the checkpoint that its flush will establish | `Shared::freeze`, under the engine's lock of apply | nothing: the log is replayed |
//! | 2 its entries are written to runs under temporary names, and synced | [`crate::Job::step`] | files without meaning, removed at open |
//! | 3 the runs get their names, and the directory is synced | `Output::finish_run`, [`prepare`] | as before |
//! | 4 one edit adds the runs and moves the checkpoint, then is repeated | `Manifest::append` | the runs; the replay is shorter |
//! | 5 readers get the new version, without the memtable | `Shared::publish_version` | |
//! | 6 input runs of a merge are unlinked when no view pins a version with them | `Shared::purge` | |
//!
//! A merge has the same steps from 2 on. Its edit adds the outputs and removes the inputs at once, so no crash leaves
//! both or neither. Several finished outputs of a long merge are noted in the manifest before: it resumes after them.
//!
//! A flush and a merge run beside each other and beside all reads and writes. Only steps 3 to 5 hold the lock of the
//! manifest, which orders commits; readers wait for it nowhere, because tables and checkpoint are published as copies.
//!
//! What each step keeps:
//! - 1: the checkpoint covers exactly what is in this memtable and in older ones.
//! - 4: flushes commit oldest first; a checkpoint must not pass entries that only an older memtable holds.
//! - 4 after 3: the manifest names no file that a power cut may take away.
//! - 6 after 4: no input goes before its replacement is durable, and older garbage goes before newer.
//! - A failed sync stops the index and with it the log: it is unknown which edit is durable.

use super::Shared;
use super::shared::Garbage;
use crate::manifest::rebuild::FooterState;
use crate::manifest::{Change, Manifest};
use crate::memtable::{Memtable, RangeSet};
use crate::merge::{
    Claim, DropRule, Job, JobDone, MergeInputs, MergeProgress, MergeSpec, Merged, Output, Slot,
    Source, SourceCursor, Target, ValueMover,
};
use crate::run::{Run, RunExtra, Walk};
use crate::version::{Tier, TierCursor, Version, union_of};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use stele_types::{Cause, Error, KeyRange, Result, RunId, Seq, key_after};

/// Distance between the ages of flushed tiers; installed tiers take ages in between.
const AGE_STEP: u64 = 1024;
const EVERYTHING: Seq = Seq(u64::MAX);

pub(super) fn start_flush(shared: &Arc<Shared>) -> Option<Job> {
    let claim = Claim::new(shared, Slot::Flush).ok()?;
    // While the lock is held, nothing commits between reading the memtables and the version.
    let manifest = shared.manifest.lock();
    let tables = shared.tables.read().clone();
    let frozen = tables.frozen.last()?.clone();
    let version = &tables.version;
    let footer = FooterState::new(manifest.state(), Some(&frozen.checkpoint.lock()));
    // Above every existing tier, with ages below for installs during this flush.
    let age = (version.newest_age() / AGE_STEP + 2) * AGE_STEP;
    shared.flush_age.store(age, Ordering::Release);
    drop(manifest);
    let extra = RunExtra {
        age,
        job: shared.allocate_run().0,
        checkpoint: footer.encode(),
        ..RunExtra::default()
    };
    let memtable = &frozen.memtable;
    let ranges = memtable.ranges(EVERYTHING);
    let rule = DropRule::new(version.tiers().is_empty(), 0, (*ranges).clone());
    let bytes_total = memtable.bytes() as u64;
    let mut merged = Merged::new(vec![memtable_source(memtable)]);
    merged.seek(&[]).ok()?;
    let extra = RunExtra { ranges: rule.ranges().clone(), ..extra };
    let output = Output::new(claim, Cause::Flush, extra, Vec::new());
    Some(Job::new(Target::Flush(frozen), merged, rule, None, output, bytes_total))
}

fn memtable_source(memtable: &Arc<Memtable>) -> Source {
    let cursor = SourceCursor::Memtable(memtable.cursor(EVERYTHING));
    Source::new(cursor, Arc::new(RangeSet::default()))
}

pub(super) fn start_merge(
    shared: &Arc<Shared>,
    spec: MergeSpec,
    mover: Option<Box<dyn ValueMover>>,
    drop_s: u64,
) -> Result<Job> {
    let claim = Claim::new(shared, Slot::Merge)?;
    drop_pending_merge(shared)?;
    let job = shared.allocate_run().0;
    let (mut merged, parts) = prepare_merge(shared, &spec, job)?;
    merged.seek(&[])?;
    Ok(parts.into_job(claim, spec, merged, mover, drop_s, Vec::new()))
}

pub(super) fn resume_merge(
    shared: &Arc<Shared>,
    mover: Option<Box<dyn ValueMover>>,
    drop_s: u64,
) -> Result<Option<Job>> {
    let claim = Claim::new(shared, Slot::Merge)?;
    let Some(pending) = shared.manifest.lock().state().pending.clone() else { return Ok(None) };
    let MergeProgress { spec, job, outputs, last_key } = pending;
    let (mut merged, parts) = prepare_merge(shared, &spec, job)?;
    // Entries up to and including `last_key` are in finished outputs.
    // bug index.resume_from_start: `&last_key` is `&[]`
    merged.seek(&last_key)?;
    // bug index.resume_from_start: never
    if merged.key() == Some(&last_key[..]) {
        merged.advance()?;
    }
    Ok(Some(parts.into_job(claim, spec, merged, mover, drop_s, outputs)))
}

/// Starts to rewrite a run of the oldest tier without the entries that newer tiers hide.
///
/// Invariant: only entries go that no view of this version or a later one can show. The newer tiers,
/// which hide them, stay as they are. After an interruption the rest of the run is kept whole.
pub(super) fn start_trim(shared: &Arc<Shared>, run: RunId, drop_s: u64) -> Result<Job> {
    let claim = Claim::new(shared, Slot::Merge)?;
    drop_pending_merge(shared)?;
    let version = shared.tables.read().version.clone();
    let of_run = |tier: &Tier| tier.runs.iter().find(|other| other.id() == run).cloned();
    let found = version.tiers().iter().enumerate();
    let mut found = found.filter_map(|(at, tier)| Some((at, tier.age, of_run(tier)?)));
    let (at, age, trimmed) = found.next().ok_or_else(|| not_current("run", run.0))?;
    let newer = version.tiers().get(..at).unwrap_or_default();
    let spec =
        MergeSpec { inputs: MergeInputs::Runs { age, runs: vec![run] }, cause: Cause::Merge };
    let job = shared.allocate_run().0;
    let (_, parts) = prepare_merge(shared, &spec, job)?;
    let first = trimmed.meta().first_key.clone();
    let range = KeyRange::new(first.clone(), key_after(&trimmed.meta().last_key));
    let source = |runs: &[Arc<Run>]| {
        let keyed = runs.iter().filter(|run| run.meta().entries > 0).cloned().collect();
        let cursor = SourceCursor::Tier(TierCursor::new(keyed, Walk::Whole, range.clone()));
        Source::new(cursor, Arc::new(union_of(runs)))
    };
    let mut sources: Vec<Source> = newer.iter().map(|tier| source(&tier.runs)).collect();
    sources.push(source(std::slice::from_ref(&trimmed)));
    let mut merged = Merged::new(sources);
    merged.seek(&first)?;
    Ok(parts.into_job(claim, spec, merged, None, drop_s, Vec::new()).trimming())
}

pub(super) fn abandon_merge(shared: &Arc<Shared>) -> Result<()> {
    let _claim = Claim::new(shared, Slot::Merge)?;
    drop_pending_merge(shared)?;
    shared.purge()?;
    Ok(())
}

/// Removes the pending merge from the manifest, then discards its outputs.
fn drop_pending_merge(shared: &Arc<Shared>) -> Result<()> {
    let outputs = {
        let mut manifest = shared.manifest.lock();
        let Some(pending) = manifest.state().pending.clone() else { return Ok(()) };
        manifest.append(&[Change::MergeDone])?;
        pending.outputs
    };
    shared.discard(&outputs);
    Ok(())
}

struct Parts {
    inputs: Vec<RunId>,
    bottom: bool,
    ranges: RangeSet,
    fences: Vec<Bytes>,
    extra: RunExtra,
    bytes_total: u64,
}

fn prepare_merge(shared: &Arc<Shared>, spec: &MergeSpec, job: u64) -> Result<(Merged, Parts)> {
    let manifest = shared.manifest.lock();
    let version = shared.tables.read().version.clone();
    let footer = FooterState::new(manifest.state(), None);
    drop(manifest);
    let (groups, age, fences) = select(&version, &spec.inputs)?;
    let runs: Vec<Arc<Run>> = groups.iter().flatten().cloned().collect();
    let inputs: Vec<RunId> = runs.iter().map(|run| run.id()).collect();
    // No older tier lies below the inputs when the oldest of them are in the oldest tier.
    let oldest = runs.iter().map(|run| run.meta().extra.age).min();
    let bottom = version.tiers().last().map(|tier| tier.age) == oldest;
    let sources = groups.iter().map(|group| {
        let keyed = group.iter().filter(|run| run.meta().entries > 0).cloned().collect();
        let cursor = SourceCursor::Tier(TierCursor::new(keyed, Walk::Whole, KeyRange::all()));
        Source::new(cursor, Arc::new(union_of(group)))
    });
    let merged = Merged::new(sources.collect());
    let extra = RunExtra {
        age,
        job,
        replaces: inputs.clone(),
        checkpoint: footer.encode(),
        ..RunExtra::default()
    };
    let bytes_total = runs.iter().map(|run| run.meta().bytes).sum();
    let ranges = union_of(&runs);
    Ok((merged, Parts { inputs, bottom, ranges, fences, extra, bytes_total }))
}

impl Parts {
    fn into_job(
        self,
        claim: Claim,
        spec: MergeSpec,
        merged: Merged,
        mover: Option<Box<dyn ValueMover>>,
        drop_s: u64,
        finished: Vec<RunId>,
    ) -> Job {
        let rule = DropRule::new(self.bottom, drop_s, self.ranges);
        let extra = RunExtra { ranges: rule.ranges().clone(), ..self.extra };
        let cause = spec.cause;
        let mut output = Output::new(claim, cause, extra, self.fences);
        if !finished.is_empty() {
            output.resume(finished);
        }
        let target = Target::Merge { spec, inputs: self.inputs };
        Job::new(target, merged, rule, mover, output, self.bytes_total)
    }
}

/// Input runs by source, newest first; age of the outputs; fences between outputs.
type Selection = (Vec<Vec<Arc<Run>>>, u64, Vec<Bytes>);

fn select(version: &Version, inputs: &MergeInputs) -> Result<Selection> {
    match inputs {
        MergeInputs::Tiers(ages) => {
            let tiers = adjacent_tiers(version, ages)?;
            let newest = tiers.iter().map(|tier| tier.age).max().unwrap_or_default();
            Ok((tiers.iter().map(|tier| tier.runs.clone()).collect(), newest, Vec::new()))
        }
        MergeInputs::Runs { age, runs } => {
            let tier = version.tier(*age).ok_or_else(|| not_current("tier", *age))?;
            let is_input = |run: &&Arc<Run>| runs.contains(&run.id());
            let chosen: Vec<Arc<Run>> = tier.runs.iter().filter(is_input).cloned().collect();
            if chosen.is_empty() || chosen.len() != runs.len() {
                return Err(not_current("run of tier", *age));
            }
            let others = tier.keyed().iter().filter(|run| !is_input(run));
            let fences = others.map(|run| run.meta().first_key.clone()).collect();
            Ok((vec![chosen], *age, fences))
        }
    }
}

/// Returns the tiers with these ages, newest first. Fails if another tier lies between them: the
/// output replaces them all, so the order of a tier in between would change.
fn adjacent_tiers<'a>(version: &'a Version, ages: &[u64]) -> Result<&'a [Tier]> {
    let tiers = version.tiers();
    let newest =
        ages.iter().max().ok_or_else(|| Error::invalid("a merge needs at least one tier"))?;
    let from = tiers
        .iter()
        .position(|tier| tier.age == *newest)
        .ok_or_else(|| not_current("tier", *newest))?;
    let chosen = tiers.get(from..from + ages.len()).unwrap_or_default();
    if chosen.is_empty() || chosen.iter().any(|tier| !ages.contains(&tier.age)) {
        return Err(Error::invalid("the tiers to merge are not adjacent in the current version"));
    }
    Ok(chosen)
}

fn not_current(what: &str, age: u64) -> Error {
    Error::invalid(format!("the {what} of age {age} to merge is not current"))
}

/// Makes the outputs of a finished job current. Invariant: a commit has this order: the outputs' data
/// is durable (by the job) → their names are durable → one manifest edit is durable → the new
/// version is published → the inputs are unlinked once no reader pins them.
/// Test: `the_events_of_a_commit_come_in_order`.
pub(super) fn commit(shared: &Arc<Shared>, mut done: JobDone) -> Result<()> {
    {
        let mut manifest = shared.manifest.lock();
        manifest.check()?;
        let added = prepare(shared, &mut manifest, done.output.finished())?;
        match &done.target {
            Target::Flush(frozen) => {
                // Invariant: flushes commit oldest first, because a checkpoint covers everything
                // written before it.
                let oldest = shared.tables.read().frozen.last().cloned();
                if !oldest.is_some_and(|oldest| Arc::ptr_eq(&oldest, frozen)) {
                    return Err(Error::invalid(
                        "the flushed memtable is not the oldest frozen one; commit that first",
                    ));
                }
                let mut changes = additions(&added);
                // bug index.checkpoint_not_recorded: skip
                changes.push(Change::Checkpoint(frozen.checkpoint.lock().clone()));
                manifest.append(&changes)?;
                shared.publish_checkpoint(&manifest);
                let version = shared.tables.read().version.replace(&[], added);
                shared.publish_version(version, Some(frozen));
            }
            Target::Merge { inputs, .. } => {
                let mut changes = additions(&added);
                changes.extend(inputs.iter().map(|&run| Change::RemoveRun(run)));
                changes.push(Change::MergeDone);
                replace_runs(shared, &mut manifest, &changes, inputs, added)?;
            }
        }
        done.output.claim.release_files();
    }
    drop(done);
    // The commit is durable. A file that cannot be unlinked now is unlinked by a later purge, or at
    // open.
    let _ = shared.purge();
    Ok(())
}

pub(super) fn prepare(
    shared: &Shared,
    manifest: &mut Manifest,
    finished: &[RunId],
) -> Result<Vec<Arc<Run>>> {
    let opened: Result<Vec<_>> = finished.iter().map(|&run| shared.open_run(run)).collect();
    let added = opened?;
    // bug index.skip_dir_sync: never
    if !added.is_empty() {
        let synced = shared.vfs.sync_dir(&shared.dir);
        manifest.poison_on(synced)?;
    }
    Ok(added)
}

pub(super) fn additions(added: &[Arc<Run>]) -> Vec<Change> {
    let addition = |run: &Arc<Run>| Change::AddRun(run.id(), run.meta().extra.age);
    let copies = added.iter().map(footer_copy);
    // bug index.footer_not_kept: let copies = added[..0].iter().map(footer_copy);
    added.iter().map(addition).chain(copies).collect()
}

/// Returns the change that records the run's footer: a damaged run can only be opened by this copy.
pub(super) fn footer_copy(run: &Arc<Run>) -> Change {
    Change::Footer(run.id(), run.footer_copy())
}

fn replace_runs(
    shared: &Shared,
    manifest: &mut Manifest,
    changes: &[Change],
    inputs: &[RunId],
    added: Vec<Arc<Run>>,
) -> Result<()> {
    // bug index.unlink_before_edit: for &r in inputs { shared.vfs.unlink(&crate::run::run_path(&shared.dir, r))?; }
    manifest.append(changes)?;
    let version = shared.tables.read().version.replace(inputs, added);
    let since = version.id();
    shared.publish_version(version, None);
    shared.garbage.lock().extend(inputs.iter().map(|&run| Garbage { since, run }));
    Ok(())
}
