//! A lost or damaged index, made again from what the store still holds (fault 25).
//!
//! A lost manifest is made from the footers of the runs. A lost index is made from the values
//! themselves: every record carries its version, and the newest version of a key is its value.
//! That loses nothing as long as no segment was ever removed while small values live in the index
//! only; otherwise opening fails and says so.

use super::open::{Replay, flush_frozen};
use crate::options::Options;
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_index::{Checkpoint, Index, IndexOptions, Opened};
use stele_log::{Log, RecoverFrom, ReplayOp};
use stele_types::{Cause, Error, FileId, Lsn, Result, Seq, StoreId, mutant};
use stele_vfs::{Create, Open, Vfs};

/// While this file is there, the index is half made and must be made again.
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

/// Opens the index; makes it again first if it is lost, when the options allow and nothing is lost
/// by it. The third value says why.
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
    // Runs tell what a manifest said of them, and nothing of a run that is not there.
    let is_run = is_run(&lost) && !mutant::active("engine.rebuild_without_a_run");
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
    rebuild.make_from_values(lost)?;
    let (index, opened) = rebuild.open_existing()?;
    Ok((index, opened, Some(reason)))
}

/// Opens the index of a store that has one. Fails where opening the store would, or would make it
/// again.
pub(super) fn open_whole(
    vfs: &Arc<dyn Vfs>,
    dir: &Path,
    id: StoreId,
    options: &Options,
) -> Result<(Index, Opened)> {
    Rebuild { vfs, dir, id, options, replay: Replay::Committed }.open_existing()
}

/// Whether what is lost is a run.
fn is_run(lost: &Error) -> bool {
    let (Error::Missing { path, .. } | Error::Corrupt { path, .. }) = lost else { return false };
    path.extension().is_some_and(|kind| kind == "run")
}

impl Rebuild<'_> {
    fn index_dir(&self) -> PathBuf {
        self.dir.join("index")
    }

    /// Only other replicas can say what a damaged run held.
    fn index_options(&self) -> IndexOptions {
        let open_damaged_runs = self.replay == Replay::Committed && self.options.rebuild;
        IndexOptions { open_damaged_runs, ..self.options.index() }
    }

    fn marker(&self) -> PathBuf {
        self.dir.join(MARKER)
    }

    fn is_half_made(&self) -> Result<bool> {
        self.vfs.exists(&self.marker())
    }

    /// Whether there are whole runs to make a manifest from.
    fn has_runs(&self) -> Result<bool> {
        Ok(!self.is_half_made()? && self.has_ending("index", ".run")?)
    }

    fn has(&self, dir: &str, part: &str) -> Result<bool> {
        let entries = self.vfs.list(&self.dir.join(dir))?;
        Ok(entries.iter().any(|entry| entry.name.contains(part)))
    }

    fn has_ending(&self, dir: &str, end: &str) -> Result<bool> {
        let entries = self.vfs.list(&self.dir.join(dir))?;
        Ok(entries.iter().any(|entry| entry.name.ends_with(end)))
    }

    /// A store that ever wrote a value has a manifest: without one, an empty index would silently
    /// hide everything.
    fn open_existing(&self) -> Result<(Index, Opened)> {
        let path = self.index_dir();
        let missing = |detail: &str| Error::Missing { path: path.clone(), detail: detail.into() };
        if self.is_half_made()? {
            return Err(missing("its rebuilding was interrupted"));
        }
        if !self.has("index", "manifest-")? && self.has("log", ".seg")? {
            return Err(missing("there are log segments and no manifest"));
        }
        Index::open(self.vfs.clone(), &path, self.index_options())
    }

    fn make_from_values(&self, lost: Error) -> Result<()> {
        let log_dir = self.dir.join("log");
        let from = RecoverFrom::default();
        let (log, _) = Log::open(self.vfs.clone(), &log_dir, self.options.log(self.id), from)?;
        if self.options.inline_value_bytes_max > 0 && !is_whole(&log) {
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
        // An empty memtable with a checkpoint: from here on the log's tail is not needed.
        index.freeze(Checkpoint { replay_from: log.head(), applied });
        flush_frozen(&index)?;
        // The index is durable and complete before the marker goes.
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

/// Whether every file ever made is still there, so that no small value lives in the index only.
fn is_whole(log: &Log) -> bool {
    let mut files: Vec<FileId> = log.files().iter().map(|file| file.file).collect();
    files.sort();
    files.iter().zip(1..).all(|(file, expected)| file.0 == expected)
}

/// Feeds all versions to the index, oldest first: a window of versions at a time, so that memory is
/// bounded and later runs are newer.
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

/// Within a window the version itself is the sequence number: the newest wins, whatever the order.
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
