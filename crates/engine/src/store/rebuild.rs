//! Rebuild of a lost or damaged index from what the store still holds (fault 25).
//!
//! A lost manifest is rebuilt from the footers of the runs. A lost index is rebuilt from the values
//! themselves: every record carries its version, and the newest version of a key is its value.
//! This loses nothing if no segment was ever removed, or if no small values are only in the index;
//! otherwise opening fails with the original error.

use super::open::{Replay, flush_frozen};
use crate::options::Options;
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_index::{Checkpoint, Index, IndexOptions, Opened};
use stele_log::{Log, RecoverFrom, ReplayOp};
use stele_types::{Cause, Error, FileId, Lsn, Result, Seq, StoreId};
use stele_vfs::{Create, Open, Vfs};

/// While this file exists, the index is incomplete and must be rebuilt.
const MARKER: &str = "REBUILDING";
/// Operations sorted in memory at a time.
const WINDOW_OPS: u64 = 1 << 20;

struct Rebuild<'a> {
    vfs: &'a Arc<dyn Vfs>,
    dir: &'a Path,
    id: StoreId,
    options: &'a Options,
    replay: Replay,
}

/// Opens the index. Rebuilds it first if it is lost, if the options allow it and nothing would be
/// lost. The third value is the reason for a rebuild.
pub(super) fn open_index(
    vfs: &Arc<dyn Vfs>,
    dir: &Path,
    id: StoreId,
    options: &Options,
    replay: Replay,
) -> Result<(Index, Opened, Option<String>)> {
    let rebuild = Rebuild { vfs, dir, id, options, replay };
    let lost = match rebuild.open_existing() {
        Ok((index, opened)) => return Ok((index, opened, None)),
        Err(error) if options.rebuild && error.is_damage() => error,
        Err(error) => return Err(error),
    };
    let reason = lost.to_string();
    // The footers of runs replace a manifest, but not a missing run.
    let is_run = is_run(&lost);
    // bug engine.rebuild_without_a_run: let is_run = false;
    if !is_run
        && rebuild.has_runs()?
        && stele_index::rebuild(vfs, &rebuild.index_dir(), &rebuild.index_options()).is_ok()
        && let Ok((index, opened)) = rebuild.open_existing()
    {
        return Ok((index, opened, Some(reason)));
    }
    // With replicas, a store is repaired from them: only they know what was committed.
    if replay == Replay::Committed {
        return Err(lost);
    }
    rebuild.rebuild_from_values(lost)?;
    let (index, opened) = rebuild.open_existing()?;
    Ok((index, opened, Some(reason)))
}

/// Opens an undamaged index. Fails where opening the store would fail or rebuild the index.
pub(super) fn open_undamaged(
    vfs: &Arc<dyn Vfs>,
    dir: &Path,
    id: StoreId,
    options: &Options,
) -> Result<(Index, Opened)> {
    Rebuild { vfs, dir, id, options, replay: Replay::Committed }.open_existing()
}

fn is_run(lost: &Error) -> bool {
    let (Error::Missing { path, .. } | Error::Corrupt { path, .. }) = lost else { return false };
    path.extension().is_some_and(|kind| kind == "run")
}

impl Rebuild<'_> {
    fn index_dir(&self) -> PathBuf {
        self.dir.join("index")
    }

    /// Returns the options of the index. Damaged runs are opened only with replicas, which alone
    /// can supply their pairs.
    fn index_options(&self) -> IndexOptions {
        let open_damaged_runs = self.replay == Replay::Committed && self.options.rebuild;
        IndexOptions { open_damaged_runs, ..self.options.index() }
    }

    fn marker(&self) -> PathBuf {
        self.dir.join(MARKER)
    }

    fn is_rebuilding(&self) -> Result<bool> {
        self.vfs.exists(&self.marker())
    }

    fn has_runs(&self) -> Result<bool> {
        Ok(!self.is_rebuilding()? && self.has_ending("index", ".run")?)
    }

    fn has(&self, dir: &str, part: &str) -> Result<bool> {
        let entries = self.vfs.list(&self.dir.join(dir))?;
        Ok(entries.iter().any(|entry| entry.name.contains(part)))
    }

    fn has_ending(&self, dir: &str, end: &str) -> Result<bool> {
        let entries = self.vfs.list(&self.dir.join(dir))?;
        Ok(entries.iter().any(|entry| entry.name.ends_with(end)))
    }

    /// Opens the index if it is present. A store that ever wrote a value has a manifest: without
    /// one, an empty index would silently hide everything.
    fn open_existing(&self) -> Result<(Index, Opened)> {
        let path = self.index_dir();
        let missing = |detail: &str| Error::Missing { path: path.clone(), detail: detail.into() };
        if self.is_rebuilding()? {
            return Err(missing("its rebuild was interrupted"));
        }
        if !self.has("index", "manifest-")? && self.has("log", ".seg")? {
            return Err(missing("there are log segments but no manifest"));
        }
        Index::open(self.vfs.clone(), &path, self.index_options())
    }

    fn rebuild_from_values(&self, lost: Error) -> Result<()> {
        let log_dir = self.dir.join("log");
        let from = RecoverFrom::default();
        let (log, _) = Log::open(self.vfs.clone(), &log_dir, self.options.log(self.id), from)?;
        if self.options.inline_value_bytes_max > 0 && !has_all_files(&log) {
            return Err(lost);
        }
        self.mark()?;
        for entry in self.vfs.list(&self.index_dir())? {
            self.vfs.unlink(&self.index_dir().join(&entry.name))?;
        }
        let (index, _) = Index::open(self.vfs.clone(), &self.index_dir(), self.index_options())?;
        feed(&log, &index)?;
        let mut applied = BTreeMap::new();
        for region in log.regions() {
            if let Some(log) = log.region(region).filter(|log| !log.destroyed) {
                applied.insert(region, (log.last, log.last_term));
            }
        }
        // An empty memtable with a checkpoint: afterwards the log's tail is not needed.
        index.freeze(Checkpoint { replay_from: log.head(), applied });
        flush_frozen(&index)?;
        // Invariant: the index is durable and complete before the marker is removed.
        self.vfs.unlink(&self.marker())?;
        self.vfs.sync_dir(self.dir)
    }

    fn mark(&self) -> Result<()> {
        let how = Open { write: true, create: Create::IfMissing, direct: false };
        let file = self.vfs.open(&self.marker(), how)?;
        let text = b"the index is being rebuilt from the log\n";
        file.write_at(&[IoSlice::new(text)], 0, Cause::Manifest)?;
        file.sync_data()?;
        self.vfs.sync_dir(self.dir)
    }
}

/// Whether every file ever created still exists, so that no small value is only in the index.
fn has_all_files(log: &Log) -> bool {
    let mut files: Vec<FileId> = log.files().iter().map(|file| file.file).collect();
    files.sort();
    files.iter().zip(1..).all(|(file, expected)| file.0 == expected)
}

/// Adds all versions to the index, oldest first: one window of versions at a time, so that memory
/// is bounded and later runs are newer.
fn feed(log: &Log, index: &Index) -> Result<()> {
    let mut counts: BTreeMap<FileId, u64> = BTreeMap::new();
    log.scan_versions(&mut |versioned| {
        *counts.entry(versioned.version.file).or_default() += 1;
        Ok(())
    })?;
    let mut window: Option<(FileId, FileId)> = None;
    let mut ops = 0;
    for (&file, &count) in &counts {
        if let Some((first, last)) = window
            && ops + count > WINDOW_OPS
        {
            feed_window(log, index, first, last)?;
            window = None;
            ops = 0;
        }
        window = Some((window.map_or(file, |(first, _)| first), file));
        ops += count;
    }
    match window {
        Some((first, last)) => feed_window(log, index, first, last),
        None => Ok(()),
    }
}

/// Adds the versions of a window. The version itself is the sequence number, so the newest wins in
/// any order.
fn feed_window(log: &Log, index: &Index, first: FileId, last: FileId) -> Result<()> {
    log.scan_versions(&mut |versioned| {
        if versioned.version.file < first || versioned.version.file > last {
            return Ok(());
        }
        let seq = Seq(Lsn::as_u64(versioned.version));
        match versioned.op {
            ReplayOp::Put { key, value, expires_at_s } => {
                index.put(seq, key, value, expires_at_s);
            }
            ReplayOp::Delete { key } => index.delete(seq, key),
            ReplayOp::DeleteRange { start, end } => index.delete_range(seq, start, end),
        }
        Ok(())
    })?;
    index.publish(Seq(u64::MAX));
    index.freeze(Checkpoint::default());
    flush_frozen(index)
}
