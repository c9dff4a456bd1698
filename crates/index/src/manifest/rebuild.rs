//! Rebuild of a lost manifest from the footers of the runs.
//!
//! ```text
//! footer state := checkpoint raft_from:varint next_file:varint      (opaque to runs)
//! ```
//! A run lists the runs it replaced. This distinguishes an input that reappeared after a crash from
//! a current run. A job with missing parts was never committed, so its inputs are current.

use super::Checkpoint;
use super::{Manifest, ManifestState, numbers};
use crate::cache::BlockCache;
use crate::options::IndexOptions;
use crate::run::{Run, parse_run_file_name};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use stele_types::{Error, FileId, Result, RunId, varint};
use stele_vfs::Vfs;

/// State of a rebuilt manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebuilt {
    /// Checkpoint of the runs. The log must still hold everything from here on.
    pub checkpoint: Checkpoint,
    /// Current runs.
    pub runs: Vec<RunId>,
    /// Superseded or unfinished runs; the next open removes them.
    pub ignored: Vec<RunId>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FooterState {
    pub checkpoint: Checkpoint,
    raft_from: FileId,
    next_file: FileId,
}

impl FooterState {
    pub(crate) fn new(state: &ManifestState, checkpoint: Option<&Checkpoint>) -> Self {
        Self {
            checkpoint: checkpoint.unwrap_or(&state.checkpoint).clone(),
            raft_from: state.raft_from,
            next_file: state.next_file,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.checkpoint.encode(&mut out);
        varint::put(&mut out, u64::from(self.raft_from.0));
        varint::put(&mut out, u64::from(self.next_file.0));
        out
    }

    fn take(mut bytes: &[u8]) -> Option<Self> {
        let file = |bytes: &mut &[u8]| u32::try_from(varint::take(bytes)?).ok().map(FileId);
        let checkpoint = Checkpoint::take(&mut bytes)?;
        Some(Self { checkpoint, raft_from: file(&mut bytes)?, next_file: file(&mut bytes)? })
    }
}

#[derive(Default)]
struct JobRuns {
    parts: BTreeMap<u32, Arc<Run>>,
    last: Option<u32>,
}

impl JobRuns {
    fn any(&self) -> Option<&Arc<Run>> {
        self.parts.values().next()
    }

    fn replaces(&self) -> &[RunId] {
        self.any().map_or(&[], |run| &run.meta().extra.replaces)
    }

    fn is_complete(&self) -> bool {
        self.last.is_some_and(|last| self.parts.len() as u64 == u64::from(last) + 1)
    }
}

/// Writes a manifest from the footers of the runs in `dir`; it supersedes older manifests. Fails
/// with `Corrupt` or `Missing`, changing nothing, when a run is unreadable or a part of a finished
/// job is missing: then only the log has the data. The state of garbage collection is lost.
pub fn rebuild(vfs: &Arc<dyn Vfs>, dir: &Path, options: &IndexOptions) -> Result<Rebuilt> {
    let cache = Arc::new(BlockCache::new(options.block_cache_bytes_max));
    let mut jobs: BTreeMap<u64, JobRuns> = BTreeMap::new();
    let mut present = BTreeSet::new();
    for entry in vfs.list(dir)? {
        let Some(id) = parse_run_file_name(&entry.name) else { continue };
        let run = Run::open(vfs, dir, id, cache.clone())?;
        // Every part is checked, but memory holds those of one run at a time.
        let run = run.to_cold().map_or_else(|| run.clone(), |cold| run.with_parts(&cold));
        present.insert(id);
        let extra = &run.meta().extra;
        let job = jobs.entry(extra.job).or_default();
        if extra.last_part {
            job.last = Some(extra.part);
        }
        // Invariant: no run is left out because another one has its place.
        let other = job.parts.insert(extra.part, run.clone());
        // bug index.rebuild_leaves_out_a_part: never
        if other.is_some() {
            return Err(Error::corrupt(run.path(), 0, "another run is the same part of its job"));
        }
    }
    let current = choose(dir, &jobs, &present)?;
    check_overlaps(&current)?;
    let state = state_of(&current, &present)?;
    let number = numbers(&**vfs, dir)?.last().map_or(1, |last| last + 1);
    let rebuilt = Rebuilt {
        checkpoint: state.checkpoint.clone(),
        runs: current.iter().map(|run| run.id()).collect(),
        ignored: present.iter().filter(|run| !state.runs.contains_key(run)).copied().collect(),
    };
    Manifest::create(vfs.clone(), dir, number, state, options.manifest_bytes_max)?;
    Ok(rebuilt)
}

/// Chooses the current runs, newest jobs first: the inputs of a committed job are superseded.
fn choose(
    dir: &Path,
    jobs: &BTreeMap<u64, JobRuns>,
    present: &BTreeSet<RunId>,
) -> Result<Vec<Arc<Run>>> {
    let mut replaced: BTreeSet<RunId> = BTreeSet::new();
    let mut current: Vec<Arc<Run>> = Vec::new();
    let mut unfinished: Vec<&JobRuns> = Vec::new();
    for job in jobs.values().rev() {
        let kept = job.parts.values().filter(|run| !replaced.contains(&run.id()));
        // If a newer job replaced some parts, those may be missing; the job was committed.
        let committed = job.is_complete()
            || job.parts.values().any(|run| replaced.contains(&run.id()))
            || is_followed(job, &current, present);
        if committed {
            current.extend(kept.cloned());
            replaced.extend(job.replaces());
        } else {
            unfinished.push(job);
        }
    }
    for job in unfinished {
        check_unfinished(dir, job, &current, present, &replaced)?;
    }
    Ok(current)
}

/// Returns whether a later job depends on this one: its own inputs are gone, and a part of its tier
/// was rewritten.
fn is_followed(job: &JobRuns, current: &[Arc<Run>], present: &BTreeSet<RunId>) -> bool {
    let Some(run) = job.any() else { return false };
    let age = run.meta().extra.age;
    job.replaces().iter().all(|run| !present.contains(run))
        && current
            .iter()
            .any(|other| other.meta().extra.age == age && !other.meta().extra.replaces.is_empty())
}

/// Checks that nothing depends on an unfinished job, which is left out: the inputs of a merge are
/// present, and nothing newer than a flush was flushed.
fn check_unfinished(
    dir: &Path,
    job: &JobRuns,
    current: &[Arc<Run>],
    present: &BTreeSet<RunId>,
    replaced: &BTreeSet<RunId>,
) -> Result<()> {
    let Some(run) = job.any() else { return Ok(()) };
    let inputs = job.replaces();
    let inputs_here = inputs.iter().all(|run| present.contains(run) || replaced.contains(run));
    let newest = current.iter().all(|other| other.meta().extra.age < run.meta().extra.age);
    if inputs_here && (!inputs.is_empty() || newest) {
        return Ok(());
    }
    let detail = format!("other parts of the job that wrote {} are missing", run.path().display());
    Err(Error::Missing { path: dir.to_path_buf(), detail })
}

fn check_overlaps(current: &[Arc<Run>]) -> Result<()> {
    let mut tiers: BTreeMap<u64, Vec<&Arc<Run>>> = BTreeMap::new();
    for run in current.iter().filter(|run| run.meta().entries > 0) {
        tiers.entry(run.meta().extra.age).or_default().push(run);
    }
    for runs in tiers.values_mut() {
        runs.sort_by(|a, b| a.meta().first_key.cmp(&b.meta().first_key));
        for pair in runs.windows(2) {
            if let [left, right] = pair
                && left.meta().last_key >= right.meta().first_key
            {
                let detail = "keys overlap those of a run of the same age";
                return Err(Error::corrupt(right.path(), 0, detail));
            }
        }
    }
    Ok(())
}

fn state_of(current: &[Arc<Run>], present: &BTreeSet<RunId>) -> Result<ManifestState> {
    let mut state = ManifestState::default();
    let mut newest = None;
    for run in current {
        let meta = run.meta();
        state.runs.insert(run.id(), meta.extra.age);
        state.footers.insert(run.id(), run.footer_copy());
        let footer = FooterState::take(&meta.extra.checkpoint)
            .ok_or_else(|| Error::corrupt(run.path(), 0, "footer state is malformed"))?;
        state.raft_from = state.raft_from.max(footer.raft_from);
        let above = meta.refs.keys().next_back().map_or(FileId::default(), |file| file.next());
        state.next_file = state.next_file.max(footer.next_file).max(above);
        let order = (footer.checkpoint.replay_from, meta.extra.job);
        if newest.is_none_or(|newest| newest < order) {
            newest = Some(order);
            state.checkpoint = footer.checkpoint;
        }
    }
    state.next_run = present.iter().next_back().map_or(RunId(1), |run| run.next());
    Ok(state)
}
