//! Opening: the manifest lists the current files; all others in the directory are removed.

use super::jobs::footer_copy;
use super::{Shared, Tables};
use crate::cache::BlockCache;
use crate::manifest::Checkpoint;
use crate::manifest::{Change, Manifest, ManifestState};
use crate::memtable::Memtable;
use crate::merge::MergeProgress;
use crate::options::IndexOptions;
use crate::run::{Run, RunOptions, TMP_SUFFIX, parse_run_file_name};
use crate::version::{Pins, Version, VersionId};
use bytes::Bytes;
use std::cmp::Reverse;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use stele_types::lock::{Mutex, RwLock};
use stele_types::{Error, FileId, Result, RunId};
use stele_vfs::Vfs;

/// Result of opening an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Checkpoint of the runs; the log is replayed from here.
    pub checkpoint: Checkpoint,
    /// First segment with needed Raft entries.
    pub raft_from: FileId,
    /// Lower bound of the next value file's id.
    pub next_file: FileId,
    /// State of garbage collection.
    pub gc_state: Bytes,
    /// Interrupted merge, for [`crate::Index::resume_merge`].
    pub pending_merge: Option<MergeProgress>,
    /// Value files that must exist: runs or the outputs of the pending merge reference them.
    pub needed: Vec<FileId>,
    /// Removed files of unfinished or superseded jobs.
    pub orphans_removed: usize,
    /// Bytes of an unfinished last manifest frame that were truncated.
    pub tail_cut_bytes: u64,
    /// Whether the index is new.
    pub created: bool,
    /// Current runs that are damaged or missing: see [`IndexOptions::open_damaged_runs`].
    pub damaged: Vec<RunId>,
}

pub(super) fn open(
    vfs: Arc<dyn Vfs>,
    dir: &Path,
    options: IndexOptions,
) -> Result<(Arc<Shared>, Opened)> {
    options.validate()?;
    vfs.create_dir_all(dir)?;
    let (mut manifest, found) = Manifest::open(vfs.clone(), dir, options.manifest_bytes_max)?;
    let cache = BlockCache::new(options.block_cache_bytes_max)
        .with_pinned_bytes_max(options.index_memory_bytes_max)
        .with_timer(options.timer.clone());
    let cache = Arc::new(cache);
    // Invariant: every current run is opened before any file is removed, so that a damaged manifest
    // does not cost runs.
    let Current { runs, damaged } = open_runs(&vfs, dir, &cache, &options, manifest.state())?;
    // Invariant: what was read may be in the page cache only, if an earlier process could not sync
    // it. It is written again before anything acts on it and before anything follows it in its
    // file.
    // bug index.trust_what_was_read: never
    if !found.created {
        manifest.renew()?;
    }
    check_pending(&vfs, dir, &cache, &mut manifest)?;
    keep_footers(&mut manifest, &runs)?;
    let largest = largest_run(&*vfs, dir)?;
    let orphans_removed = remove_orphans(&*vfs, dir, &manifest)?;
    let next_run = next_number(manifest.state(), &runs, largest);
    let version = Arc::new(Version::new(VersionId(1), runs));
    let pins = Pins::default();
    pins.add(&version);
    let state = manifest.state().clone();
    let tables = Tables { active: Arc::new(Memtable::new()), frozen: Vec::new(), version };
    let shared = Arc::new(Shared {
        vfs,
        dir: dir.to_path_buf(),
        run_options: RunOptions {
            block_bytes: options.block_bytes,
            filter_bits_per_key: options.filter_bits_per_key,
        },
        options,
        cache,
        tables: RwLock::new(Arc::new(tables)),
        published: AtomicU64::new(0),
        next_run: AtomicU64::new(next_run),
        checkpointed: RwLock::new(state.checkpoint.applied.clone()),
        manifest: Mutex::new(manifest),
        pins,
        garbage: Mutex::new(Vec::new()),
        removed_runs: AtomicU64::new(0),
        flushing: AtomicBool::new(false),
        flush_age: AtomicU64::new(u64::MAX),
        merging: AtomicBool::new(false),
        pending_refs: Mutex::default(),
    });
    let opened = Opened {
        checkpoint: state.checkpoint,
        raft_from: state.raft_from,
        next_file: state.next_file,
        gc_state: state.gc_state,
        pending_merge: state.pending,
        needed: shared.needed_files()?,
        orphans_removed,
        tail_cut_bytes: found.tail_cut_bytes,
        created: found.created,
        damaged,
    };
    Ok((shared, opened))
}

struct Current {
    runs: Vec<Arc<Run>>,
    damaged: Vec<RunId>,
}

/// Opens the current runs, newest first: they take the memory for pinned filters and fences. With `open_damaged_runs`, opens damaged ones by the manifest's copies of
/// their footers.
fn open_runs(
    vfs: &Arc<dyn Vfs>,
    dir: &Path,
    cache: &Arc<BlockCache>,
    options: &IndexOptions,
    state: &ManifestState,
) -> Result<Current> {
    let mut current = Current { runs: Vec::with_capacity(state.runs.len()), damaged: Vec::new() };
    let mut runs: Vec<(RunId, u64)> = state.runs.iter().map(|(&id, &age)| (id, age)).collect();
    runs.sort_by_key(|&(id, age)| (Reverse(age), id));
    for (id, age) in runs {
        let run = open_run(vfs, dir, cache, id, age).or_else(|error| {
            let copy =
                state.footers.get(&id).filter(|_| options.open_damaged_runs && error.is_damage());
            let Some(copy) = copy else { return Err(error) };
            current.damaged.push(id);
            Run::open_damaged(vfs, dir, id, cache.clone(), copy)
        })?;
        current.runs.push(run);
    }
    current.damaged.sort();
    Ok(current)
}

fn open_run(
    vfs: &Arc<dyn Vfs>,
    dir: &Path,
    cache: &Arc<BlockCache>,
    id: RunId,
    age: u64,
) -> Result<Arc<Run>> {
    let run = Run::open(vfs, dir, id, cache.clone())?;
    if run.meta().extra.age != age {
        return Err(Error::corrupt(run.path(), 0, "the run's age differs from the manifest's"));
    }
    Ok(run)
}

/// Adds missing copies of footers to the manifest: one of an earlier build has none.
fn keep_footers(manifest: &mut Manifest, runs: &[Arc<Run>]) -> Result<()> {
    let has_none = |run: &&Arc<Run>| !manifest.state().footers.contains_key(&run.id());
    let copies: Vec<Change> = runs.iter().filter(has_none).map(footer_copy).collect();
    match copies.is_empty() {
        true => Ok(()),
        // On a full device the next open tries again.
        false => match manifest.append(&copies) {
            Err(Error::NoSpace(_)) => Ok(()),
            done => done,
        },
    }
}

/// Discards a pending merge that cannot be resumed: all its inputs are current.
fn check_pending(
    vfs: &Arc<dyn Vfs>,
    dir: &Path,
    cache: &Arc<BlockCache>,
    manifest: &mut Manifest,
) -> Result<()> {
    let Some(pending) = &manifest.state().pending else { return Ok(()) };
    for &run in &pending.outputs {
        match Run::open(vfs, dir, run, cache.clone()) {
            Ok(_) => {}
            Err(error) if error.is_damage() => return manifest.append(&[Change::MergeDone]),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn largest_run(vfs: &dyn Vfs, dir: &Path) -> Result<Option<RunId>> {
    Ok(vfs.list(dir)?.iter().filter_map(|entry| parse_run_file_name(&entry.name)).max())
}

/// Returns the next number for a run or a job. Invariant: no job gets the number of another one
/// that has a current run. An install takes its number after those of its runs, so neither the
/// manifest nor a file name has it. A rebuild of the manifest counts runs with one number as one
/// job.
fn next_number(state: &ManifestState, runs: &[Arc<Run>], largest: Option<RunId>) -> u64 {
    let jobs = runs.iter().map(|run| run.meta().extra.job);
    let job = jobs.max();
    // bug index.job_number_reused: let job = None;
    let largest = largest.map(|run| run.0).max(job);
    state.next_run.0.max(largest.unwrap_or_default().saturating_add(1))
}

/// Removes runs that the manifest does not reference. Durable, so that their ids may be reused.
fn remove_orphans(vfs: &dyn Vfs, dir: &Path, manifest: &Manifest) -> Result<usize> {
    let mut removed = manifest.remove_leftovers()?;
    for entry in vfs.list(dir)? {
        let begun = entry.name.strip_suffix(TMP_SUFFIX).and_then(parse_run_file_name);
        let run = parse_run_file_name(&entry.name);
        let is_orphan = run.is_some_and(|run| !manifest.state().refers_to(run));
        // bug index.orphans_kept: never
        if is_orphan || begun.is_some() {
            vfs.unlink(&dir.join(&entry.name))?;
            removed += 1;
        }
    }
    if removed > 0 {
        vfs.sync_dir(dir)?;
    }
    Ok(removed)
}
