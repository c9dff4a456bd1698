//! State shared by readers, the writer and jobs, and the choice of the runs with filter and fences
//! pinned in memory.

use crate::cache::BlockCache;
use crate::cursor::{Found, Lookup};
use crate::manifest::Checkpoint;
use crate::manifest::Manifest;
use crate::memtable::Memtable;
use crate::options::IndexOptions;
use crate::run::{Run, RunOptions, RunParts, run_path, run_tmp_path};
use crate::version::{Pins, Version, VersionId};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stele_types::lock::{Mutex, RwLock, rank};
use stele_types::{FileId, LogIndex, RegionId, Result, RunId, Seq, Term};
use stele_vfs::Vfs;

#[derive(Debug)]
pub(crate) struct Frozen {
    pub memtable: Arc<Memtable>,
    pub checkpoint: Mutex<Checkpoint, { rank::FROZEN_CHECKPOINT }>,
}

/// Sources of reads, newest first. Replaced as a whole.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    pub active: Arc<Memtable>,
    /// Newest first.
    pub frozen: Vec<Arc<Frozen>>,
    pub version: Arc<Version>,
}

impl Tables {
    /// Returns the memtables, newest first.
    pub(crate) fn memtables(&self) -> impl Iterator<Item = &Arc<Memtable>> {
        std::iter::once(&self.active).chain(self.frozen.iter().map(|frozen| &frozen.memtable))
    }

    pub(crate) fn get(&self, key: &[u8], seq: Seq) -> Result<Option<Found>> {
        match self.get_in_memory(key, seq) {
            Some(found) => Ok(Some(found)),
            None => self.version.get(key),
        }
    }

    /// Does what [`Tables::get`] does, without waiting for the device.
    pub(crate) fn get_cached(&self, key: &[u8], seq: Seq) -> Result<Lookup> {
        match self.get_in_memory(key, seq) {
            Some(found) => Ok(Lookup::Known(Some(found))),
            None => self.version.get_cached(key),
        }
    }

    fn get_in_memory(&self, key: &[u8], seq: Seq) -> Option<Found> {
        self.memtables().find_map(|memtable| memtable.get(key, seq))
    }
}

#[derive(Debug)]
pub(crate) struct Garbage {
    /// The first version without it.
    pub since: VersionId,
    pub run: RunId,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub vfs: Arc<dyn Vfs>,
    pub dir: PathBuf,
    pub options: IndexOptions,
    pub run_options: RunOptions,
    pub cache: Arc<BlockCache>,
    pub tables: RwLock<Arc<Tables>, { rank::TABLES }>,
    pub published: AtomicU64,
    pub next_run: AtomicU64,
    pub manifest: Mutex<Manifest, { rank::MANIFEST }>,
    /// Applied index and term per region in the durable checkpoint. A copy, so that readers do not
    /// wait for a write of the manifest.
    pub checkpointed: RwLock<BTreeMap<RegionId, (LogIndex, Term)>, { rank::CHECKPOINTED }>,
    pub pins: Pins,
    /// Oldest first.
    pub garbage: Mutex<Vec<Garbage>, { rank::GARBAGE }>,
    pub removed_runs: AtomicU64,
    pub flushing: AtomicBool,
    /// Age of the tier that the running flush will form; tiers installed meanwhile have lower ages.
    pub flush_age: AtomicU64,
    pub merging: AtomicBool,
    /// Value files that finished outputs of an unfinished merge reference.
    pub pending_refs: Mutex<BTreeMap<RunId, Vec<FileId>>, { rank::PENDING_REFS }>,
}

impl Shared {
    /// Returns one consistent state. Memtables must be read up to the sequence number only; runs
    /// hold whole memtables, which were published before they were frozen.
    ///
    /// Invariant: the sequence number is loaded while the version is current. A view contains nothing
    /// that was written after a later version was published.
    pub(crate) fn snapshot(&self) -> (Arc<Tables>, Seq) {
        let tables = self.tables.read();
        let seq = Seq(self.published.load(Ordering::Acquire));
        (tables.clone(), seq)
    }

    pub(crate) fn allocate_run(&self) -> RunId {
        RunId(self.next_run.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn open_run(&self, run: RunId) -> Result<Arc<Run>> {
        Run::open(&self.vfs, &self.dir, run, self.cache.clone())
    }

    pub(crate) fn freeze(&self, checkpoint: Checkpoint) {
        let mut tables = self.tables.write();
        let memtable = tables.active.clone();
        let mut frozen = vec![Arc::new(Frozen { memtable, checkpoint: Mutex::new(checkpoint) })];
        frozen.extend(tables.frozen.iter().cloned());
        let active = Arc::new(Memtable::new());
        *tables = Arc::new(Tables { active, frozen, version: tables.version.clone() });
    }

    /// Publishes a version, without the memtable that it now contains. The caller holds the
    /// manifest's lock.
    pub(crate) fn publish_version(&self, version: Version, flushed: Option<&Arc<Frozen>>) {
        let version = Arc::new(version);
        self.pins.add(&version);
        let mut tables = self.tables.write();
        let mut frozen = tables.frozen.clone();
        if let Some(flushed) = flushed {
            frozen.retain(|frozen| !Arc::ptr_eq(frozen, flushed));
        }
        *tables = Arc::new(Tables { active: tables.active.clone(), frozen, version });
    }

    /// Masks a part of a run, see [`super::Index::mask_blocks`]. Views of earlier versions keep the run
    /// unmasked: they do not see the tier that replaces the keys.
    pub(crate) fn mask(&self, run: RunId, masked: impl FnOnce(&Run) -> Arc<Run>) {
        // While the lock is held, nothing commits between reading the version and replacing it.
        let _manifest = self.manifest.lock();
        let version = self.tables.read().version.clone();
        if let Some(found) = version.runs().find(|other| other.id() == run) {
            let masked = masked(found);
            self.publish_version(version.replace(&[run], vec![masked]), None);
        }
    }

    pub(crate) fn publish_checkpoint(&self, manifest: &Manifest) {
        *self.checkpointed.write() = manifest.state().checkpoint.applied.clone();
    }

    /// Discards the files of a dropped job, except those that the manifest keeps to resume it.
    /// After a failed manifest write it discards nothing: the edit that references the files may be
    /// durable.
    pub(crate) fn discard(&self, runs: &[RunId]) {
        let manifest = self.manifest.lock();
        // bug index.discard_when_poisoned: never
        if manifest.poisoned() {
            return;
        }
        let unwanted = runs.iter().filter(|&&run| !manifest.state().refers_to(run));
        let since = VersionId::default();
        let garbage = unwanted.map(|&run| Garbage { since, run });
        // In front: these files were never part of a version.
        self.garbage.lock().splice(0..0, garbage);
    }

    /// Unlinks obsolete runs that no reader pins. Invariant: files that became obsolete earlier are
    /// unlinked first, durably, so that after a crash no run reappears without the run that
    /// replaced it. The next call repeats what failed.
    pub(crate) fn purge(&self) -> Result<usize> {
        let oldest = self.pins.oldest();
        let mut garbage = self.garbage.lock();
        let mut removed = 0;
        while let Some(since) = garbage.first().map(|first| first.since) {
            // bug index.purge_pinned: never
            if since > oldest {
                break;
            }
            let count = garbage.iter().take_while(|garbage| garbage.since == since).count();
            for Garbage { run, .. } in garbage.iter().take(count) {
                for path in [run_path(&self.dir, *run), run_tmp_path(&self.dir, *run)] {
                    if self.vfs.exists(&path)? {
                        self.vfs.unlink(&path)?;
                    }
                }
                self.cache.evict_run(*run);
            }
            self.vfs.sync_dir(&self.dir)?;
            garbage.drain(..count);
            self.removed_runs.fetch_add(count as u64, Ordering::Release);
            removed += count;
        }
        Ok(removed)
    }

    pub(crate) fn needed_files(&self) -> Result<Vec<FileId>> {
        let version = self.tables.read().version.clone();
        let mut files: BTreeSet<FileId> = version.live().keys().copied().collect();
        let pending = self.manifest.lock().state().pending.clone();
        let outputs = pending.map(|pending| pending.outputs).unwrap_or_default();
        let mut known = self.pending_refs.lock();
        known.retain(|run, _| outputs.contains(run));
        for run in outputs {
            if let Entry::Vacant(vacant) = known.entry(run) {
                let run = Run::open_footer(&self.vfs, &self.dir, run, self.cache.clone())?;
                vacant.insert(run.meta().refs.keys().copied().collect());
            }
        }
        files.extend(known.values().flatten());
        Ok(files.into_iter().collect())
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let tables = self.tables.read().clone();
        let memtables: usize = tables.memtables().map(|memtable| memtable.bytes()).sum();
        (memtables + self.cache.used_bytes()) as u64 + self.run_bytes()
    }

    /// Returns the memory of the current runs, without what the cache counts.
    pub(crate) fn run_bytes(&self) -> u64 {
        let version = self.tables.read().version.clone();
        version.runs().map(|run| run.memory_bytes() as u64).sum()
    }
}

/// Unpins and pins filters and fences after a change of the runs. Invariant: reads take place
/// outside all locks. A run that cannot be read, or for which earlier versions still take the
/// memory, stays cold until the next call.
pub(super) fn balance(shared: &Shared) {
    let version = shared.tables.read().version.clone();
    let wanted = choose(&version, shared.cache.pinned_bytes_max());
    let unpinned = version.runs().filter(|run| run.is_pinned() && !wanted.contains(&run.id()));
    let unpinned = unpinned.filter_map(|run| Some((run.id(), run.to_cold()?))).collect();
    drop(version);
    replace_parts(shared, &unpinned);
    // The memory of unpinned parts is free once no version refers to them.
    drop(unpinned);
    let version = shared.tables.read().version.clone();
    let cold = version.runs().filter(|run| !run.is_pinned() && wanted.contains(&run.id()));
    let pinned = cold.filter_map(|run| Some((run.id(), run.to_pinned().ok().flatten()?))).collect();
    drop(version);
    replace_parts(shared, &pinned);
}

/// Returns the newest runs that fit `bytes_max` together. Every get asks the filters of the newest
/// tiers; those of the oldest tier only if no newer tier has the key. Of the others the block cache
/// keeps the pages read often.
fn choose(version: &Version, bytes_max: u64) -> BTreeSet<RunId> {
    let mut left = bytes_max;
    let mut chosen = BTreeSet::new();
    for run in version.runs() {
        if let Some(rest) = left.checked_sub(run.pinned_bytes()) {
            left = rest;
            chosen.insert(run.id());
        }
    }
    chosen
}

fn replace_parts(shared: &Shared, parts: &BTreeMap<RunId, RunParts>) {
    if parts.is_empty() {
        return;
    }
    // While the lock is held, nothing commits between reading the version and replacing it.
    let _manifest = shared.manifest.lock();
    let version = shared.tables.read().version.clone();
    let replaced = version.runs().filter_map(|run| Some(run.with_parts(parts.get(&run.id())?)));
    let replaced: Vec<_> = replaced.collect();
    let ids: Vec<RunId> = replaced.iter().map(|run| run.id()).collect();
    shared.publish_version(version.replace(&ids, replaced), None);
}
