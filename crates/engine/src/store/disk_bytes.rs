//! Device bytes of the directory. Heartbeats and scrapes ask for them, and a large store has tens of
//! thousands of files.

use super::{Shared, reserve};
use stele_index::VersionId;
use stele_log::FileList;
use stele_types::Result;
use stele_types::lock::{Mutex, rank};

/// Bytes as last counted.
#[derive(Debug, Default)]
pub(crate) struct DiskBytes(Mutex<Option<Counted>, { rank::DISK_BYTES }>);

#[derive(Clone, Copy, Debug)]
struct Counted {
    of: Files,
    bytes: u64,
    files: usize,
    head_bytes: u64,
}

/// State of all files but the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Files {
    log: FileList,
    version: VersionId,
    removed_runs: u64,
}

/// Returns the device bytes that the directory's files take, as `du` counts them, without the
/// reserve. Invariant: while no file is created or removed, only the growth of the head is added to
/// the last count, and no file is looked at.
pub(crate) fn disk_bytes(shared: &Shared) -> Result<u64> {
    // Read before the directory: a later change makes the state differ.
    let removed_runs = shared.index.removed_runs();
    let version = shared.index.version().id();
    let (log, head_bytes) = shared.log.file_list();
    let of = Files { log, version, removed_runs };
    let known = *shared.disk_bytes.0.lock();
    // bug engine.counts_each_file_again: never
    if let Some(known) = known
        && known.of == of
    {
        return Ok(known.bytes + head_bytes.saturating_sub(known.head_bytes));
    }
    let (bytes, files) = count_files(shared)?;
    *shared.disk_bytes.0.lock() = Some(Counted { of, bytes, files, head_bytes });
    Ok(bytes)
}

/// Returns the number of files at the last count.
pub(super) fn files_counted(shared: &Shared) -> usize {
    shared.disk_bytes.0.lock().map_or(0, |known| known.files)
}

/// Asks the file system for each file.
pub(crate) fn count(shared: &Shared) -> Result<u64> {
    count_files(shared).map(|(bytes, _)| bytes)
}

fn count_files(shared: &Shared) -> Result<(u64, usize)> {
    let (mut total, mut count) = (0, 0);
    for dir in [shared.dir.clone(), shared.dir.join("log"), shared.dir.join("index")] {
        let files = shared.vfs.list(&dir)?.into_iter();
        for entry in files.filter(|entry| entry.name != reserve::NAME) {
            total += entry.allocated_bytes;
            count += 1;
        }
    }
    Ok((total, count))
}
