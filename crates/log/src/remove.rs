//! Removal of obsolete files.

use crate::FileKind;
use crate::catalog::FileMeta;
use crate::dir::Name;
use crate::recover::is_reusable;
use crate::retained_tombstones::{self, Sorter};
use crate::segment::{damaged_payloads, scan};
use crate::shared::Shared;
use stele_types::{Error, FileId, Result};
use stele_vfs::Open;

/// More tombstone files than this are merged into one.
const TOMBSTONE_FILES_MAX: usize = 8;

/// Removes a file. The caller has proven that nothing refers to it and holds the maintenance lock.
pub(crate) fn remove(shared: &Shared, file: FileId) -> Result<()> {
    shared.poison.check()?;
    let meta = shared.catalog.read().get(file);
    let meta = meta.ok_or_else(|| Error::invalid(format!("there is no file {:08x}", file.0)))?;
    let result = match meta.kind {
        FileKind::Segment { .. } => remove_segment(shared, file, &meta),
        FileKind::Sorted => remove_plain(shared, Name::Sorted(file)),
        FileKind::Tombstones => remove_plain(shared, Name::Tombstones(file)),
    };
    result.map_err(|error| match error {
        Error::Invalid(_) => error,
        // Invariant: a failed read stops no writer: all that is durable stays so.
        error if error.is_damage() || error.is_failed_read() => error,
        other => shared.poison.unless_full(other),
    })?;
    let done = drop_tombstones(shared);
    // The catalog changed before the names did.
    shared.catalog.write().note_change();
    done
}

fn remove_segment(shared: &Shared, file: FileId, meta: &FileMeta) -> Result<()> {
    if file >= shared.wanted_from() {
        let detail = format!("segment {:08x} holds entries that a region still needs", file.0);
        return Err(Error::invalid(detail));
    }
    if shared.pins().holds(file) {
        let detail = format!("segment {:08x} holds entries that a reader still needs", file.0);
        return Err(Error::invalid(detail));
    }
    let dir = &shared.dir;
    let bytes = shared.handle(Name::Segment(file))?.len()?;
    // The deletes become durable elsewhere before the segment is removed. Otherwise a rebuild after
    // a crash in between would restore deleted keys.
    // bug log.skip_graves: never
    if retains_tombstones(shared) {
        retain_tombstones(shared, file, meta)?;
    }
    shared.catalog.write().remove(file);
    shared.handles.forget(u64::from(file.0));
    let reuse = is_reusable(shared.free.lock().len(), bytes, &shared.options);
    let path = dir.path_of(Name::Segment(file));
    if reuse {
        dir.vfs.rename(&path, &dir.path_of(Name::Free(file)))?;
    } else {
        dir.unlink(&path)?;
    }
    dir.unlink(&dir.path_of(Name::Sidecar(file)))?;
    // Its blocks may be overwritten only now: a name that reappears after a crash would show the
    // bytes of another segment.
    dir.sync()?;
    if reuse {
        shared.free.lock().push(file);
    }
    Ok(())
}

/// Removes free segments without a sync of the directory. A name that reappears after a crash is a
/// free segment again.
pub(crate) fn drop_free(shared: &Shared, count: usize) -> Result<u64> {
    shared.poison.check()?;
    let mut bytes = 0;
    for _ in 0..count {
        // Taken off the list first: a roll must not reuse blocks that are being removed.
        let Some(file) = shared.free.lock().pop() else { break };
        let path = shared.dir.path_of(Name::Free(file));
        bytes += shared.dir.vfs.open(&path, Open::READ)?.len()?;
        shared.dir.unlink(&path).map_err(|error| shared.poison.unless_full(error))?;
        shared.catalog.write().note_change();
    }
    Ok(bytes)
}

fn remove_plain(shared: &Shared, name: Name) -> Result<()> {
    shared.catalog.write().remove(name.file());
    shared.handles.forget(u64::from(name.file().0));
    shared.dir.unlink(&shared.dir.path_of(name))?;
    shared.dir.sync()
}

fn retain_tombstones(shared: &Shared, file: FileId, meta: &FileMeta) -> Result<()> {
    let oldest = shared.catalog.read().oldest_value(Some(file));
    if oldest.is_none_or(|oldest| oldest > meta.max_lsn) {
        return Ok(());
    }
    let mut sorter = Sorter::new(shared, Some(file));
    // The segment stays while its deletes are unreadable.
    scan::of_segment(&shared.dir, file, meta.end, &mut damaged_payloads::none, &mut |item| {
        retained_tombstones::of_item(item, &mut |tombstone| sorter.add(&tombstone))
    })?;
    sorter.finish()
}

/// Returns whether a tombstone file can be read. Otherwise marks it as damaged.
///
/// Invariant: a tombstone file with damage stays, and nothing else waits for it.
fn is_whole(shared: &Shared, file: FileId) -> bool {
    let read = retained_tombstones::each(&shared.dir, file, &mut |_| Ok(()));
    if read.as_ref().is_err_and(Error::is_damage) {
        shared.catalog.write().update(file, |meta| meta.is_damaged = true);
    }
    read.is_ok()
}

/// Removes tombstone files older than every value, and merges many files into fewer. Where replicas exist,
/// removes all that an earlier version retained.
fn drop_tombstones(shared: &Shared) -> Result<()> {
    let (oldest, tombstone_files) = {
        let catalog = shared.catalog.read();
        (catalog.oldest_value(None), catalog.tombstones())
    };
    let mut left = Vec::new();
    for id in tombstone_files {
        let Some(meta) = shared.catalog.read().get(id) else { continue };
        let is_older = oldest.is_none_or(|oldest| oldest > meta.max_lsn);
        if is_older || !retains_tombstones(shared) {
            remove_plain(shared, Name::Tombstones(id))?;
        } else if !meta.is_damaged {
            left.push((meta.bytes, id));
        }
    }
    if left.len() <= TOMBSTONE_FILES_MAX {
        return Ok(());
    }
    // bug log.damaged_graves_fail: skip
    left.retain(|(_, file)| is_whole(shared, *file));
    for (_, file) in &left {
        if !retained_tombstones::is_in_order(&shared.dir, *file)? {
            retained_tombstones::sort(shared, *file)?;
            return remove_plain(shared, Name::Tombstones(*file));
        }
    }
    let merged = alike(left);
    retained_tombstones::merge(shared, &merged)?;
    merged.into_iter().try_for_each(|file| remove_plain(shared, Name::Tombstones(file)))
}

/// Returns the smallest files, each at most twice as large as those before it together; at least two. So a
/// tombstone is written again a number of times that grows with the logarithm of all.
fn alike(mut files: Vec<(u64, FileId)>) -> Vec<FileId> {
    files.sort_unstable();
    let (mut sum, mut alike) = (0, Vec::new());
    for (bytes, file) in files {
        if alike.len() >= 2 && bytes > 2 * sum {
            break;
        }
        sum += bytes;
        alike.push(file);
    }
    alike
}

/// Invariant: a store with replicas retains no tombstone. They serve the rebuild of an index from values,
/// which such a store never does.
fn retains_tombstones(shared: &Shared) -> bool {
    // bug log.replica_retains_tombstones: `!shared.has_replicas` is `true`
    !shared.has_replicas
}
