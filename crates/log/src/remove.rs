//! Removal of obsolete files.

use crate::FileKind;
use crate::catalog::FileMeta;
use crate::dir::Name;
use crate::recover::is_reusable;
use crate::retained_tombstones::{self, RetainedTombstone, TombstoneWriter};
use crate::segment::damaged_payloads::DamagedPayload;
use crate::segment::items;
use crate::shared::Shared;
use stele_types::{Error, FileId, Result, mutant};
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
    drop_tombstones(shared)
}

fn remove_segment(shared: &Shared, file: FileId, meta: &FileMeta) -> Result<()> {
    if file >= shared.wanted_from() {
        let detail = format!("segment {:08x} holds entries that a region still needs", file.0);
        return Err(Error::invalid(detail));
    }
    let dir = &shared.dir;
    let bytes = shared.handle(Name::Segment(file))?.len()?;
    // The deletes become durable elsewhere before the segment is removed. Otherwise a rebuild after
    // a crash in between would restore deleted keys.
    if !mutant::active("log.skip_graves") {
        retain_tombstones(shared, file, meta)?;
    }
    shared.catalog.write().remove(file);
    shared.handles.forget(file);
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
    }
    Ok(bytes)
}

fn remove_plain(shared: &Shared, name: Name) -> Result<()> {
    shared.catalog.write().remove(name.file());
    shared.handles.forget(name.file());
    shared.dir.unlink(&shared.dir.path_of(name))?;
    shared.dir.sync()
}

fn retain_tombstones(shared: &Shared, file: FileId, meta: &FileMeta) -> Result<()> {
    let oldest = shared.catalog.read().oldest_value(Some(file));
    if oldest.is_none_or(|oldest| oldest > meta.max_lsn) {
        return Ok(());
    }
    let id = shared.allocate_file();
    let mut writer = TombstoneWriter::new(&shared.dir, id);
    let mut keep =
        |tombstone: RetainedTombstone<'_>| keep(shared, Some(file), &mut writer, &tombstone);
    // Tombstones serve the rebuild of an index from values. Where such a rebuild is possible, the
    // segment stays while its deletes are unreadable.
    let mut passes = |_: &DamagedPayload| shared.has_replicas;
    let read = items::of_segment(&shared.dir, file, meta.end, &mut passes, &mut |item| {
        retained_tombstones::of_item(item, &mut keep)
    });
    if let Err(error) = read {
        let may_go = shared.has_replicas && error.is_damage();
        if !may_go || mutant::active("log.replica_keeps_unreadable_segment") {
            writer.abandon()?;
            return Err(error);
        }
    }
    finish(shared, id, writer)
}

/// Writes a tombstone if a value file holds something older that it could hide.
fn keep(
    shared: &Shared,
    without: Option<FileId>,
    writer: &mut TombstoneWriter,
    tombstone: &RetainedTombstone<'_>,
) -> Result<()> {
    let catalog = shared.catalog.read();
    let needed = match tombstone {
        RetainedTombstone::Op { version, .. } => {
            catalog.oldest_value(without).is_some_and(|oldest| oldest < *version)
        }
        RetainedTombstone::Withdrawn(at) => {
            without != Some(at.file) && catalog.get(at.file).is_some()
        }
    };
    drop(catalog);
    if needed { writer.push(tombstone) } else { Ok(()) }
}

fn finish(shared: &Shared, id: FileId, writer: TombstoneWriter) -> Result<()> {
    if let Some(meta) = writer.finish()? {
        shared.dir.sync()?;
        shared.catalog.write().insert(id, meta);
    }
    Ok(())
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

/// Removes tombstone files older than every value, and merges many files into one.
fn drop_tombstones(shared: &Shared) -> Result<()> {
    let (oldest, tombstone_files) = {
        let catalog = shared.catalog.read();
        (catalog.oldest_value(None), catalog.of_kind(FileKind::Tombstones))
    };
    let mut left = Vec::new();
    for id in tombstone_files {
        let newest = shared.catalog.read().get(id).map(|meta| meta.max_lsn);
        if newest.is_some_and(|newest| oldest.is_none_or(|oldest| oldest > newest)) {
            remove_plain(shared, Name::Tombstones(id))?;
        } else if !shared.catalog.read().get(id).is_some_and(|meta| meta.is_damaged) {
            left.push(id);
        }
    }
    if left.len() <= TOMBSTONE_FILES_MAX {
        return Ok(());
    }
    if !mutant::active("log.damaged_graves_fail") {
        left.retain(|file| is_whole(shared, *file));
    }
    let id = shared.allocate_file();
    let mut writer = TombstoneWriter::new(&shared.dir, id);
    let merged = left.iter().try_for_each(|file| {
        retained_tombstones::each(&shared.dir, *file, &mut |tombstone| {
            keep(shared, None, &mut writer, &tombstone)
        })
    });
    if let Err(error) = merged {
        // The next open removes what cannot be removed now. The caller learns of the first failure.
        let _ = writer.abandon();
        return Err(error);
    }
    finish(shared, id, writer)?;
    left.into_iter().try_for_each(|file| remove_plain(shared, Name::Tombstones(file)))
}
