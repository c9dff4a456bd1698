//! The place of an open store: its directory, which something else may move or delete while the
//! store runs, the file system that holds it, and the bytes that the directory takes on the device.

use super::{Shared, Store, reserve};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_index::VersionId;
use stele_log::FileList;
use stele_types::lock::{Mutex, rank};
use stele_types::{Error, Result};
use stele_vfs::{FileSystem, PinState, Pinned, Vfs};

const LOCK: &str = "LOCK";

#[derive(Debug)]
pub(super) struct Place {
    dir: PathBuf,
    pins: Vec<Box<dyn Pinned>>,
    pub file_system: FileSystem,
}

impl Place {
    pub(super) fn open(vfs: &Arc<dyn Vfs>, dir: &Path, is_direct: bool) -> Result<Self> {
        let parts = [dir.to_path_buf(), dir.join(LOCK), dir.join("log"), dir.join("index")];
        let pins = parts.iter().map(|path| vfs.pin(path)).collect::<Result<_>>()?;
        // Unknown facts keep no store from opening.
        let mut file_system = vfs.file_system(&dir.join(LOCK)).unwrap_or_default();
        file_system.direct_bytes = file_system.direct_bytes.filter(|_| is_direct);
        Ok(Self { dir: dir.to_path_buf(), pins, file_system })
    }

    /// Fails with [`Error::WrongStore`] if a path names something else than what is open, and with
    /// [`Error::Io`] if that cannot be told.
    ///
    /// Invariant: a store acknowledges writes only in the directory that its path names, and while no
    /// other process can lock that directory.
    pub(super) fn check(&self) -> Result<()> {
        // bug engine.displaced_unnoticed: return Ok(());
        self.pins.iter().try_for_each(|pin| match pin.state()? {
            PinState::InPlace => Ok(()),
            state => Err(self.displaced(pin.path(), state)),
        })
    }

    fn displaced(&self, part: &Path, state: PinState) -> Error {
        let what = match part.file_name().filter(|_| part != self.dir) {
            Some(name) => format!("its `{}`", name.to_string_lossy()),
            None => "it".to_owned(),
        };
        let how = match state {
            PinState::Replaced => "was replaced by another",
            PinState::Missing | PinState::InPlace => "was moved away or deleted",
        };
        let detail = if part.ends_with(LOCK) {
            format!(
                "{what} {how} while the store ran, so another process may open the directory, and the \
                 store stops; make sure that no other process uses it, then start again"
            )
        } else {
            format!(
                "{what} {how} while the store ran, and the store stops: what it wrote from now on would \
                 be lost with it; move it back, or name its new place, then start again; if it is \
                 deleted, other replicas have its pairs"
            )
        };
        Error::WrongStore { path: self.dir.clone(), detail }
    }
}

impl Store {
    /// Fails with [`Error::WrongStore`] if the directory of the store was moved away, deleted or replaced
    /// since it was opened, and with [`Error::Io`] if that cannot be told. Asks the device.
    pub fn check_place(&self) -> Result<()> {
        self.place.check()
    }

    /// Returns facts about the file system of the store, as they were at open.
    pub fn file_system(&self) -> FileSystem {
        self.place.file_system
    }

    /// Stops the store as after a failed sync: it acknowledges no further write.
    pub fn stop(&self, error: Error) -> Error {
        self.shared.log.stop(error)
    }
}

/// Device bytes of the directory, as last counted. Heartbeats and scrapes ask for them, and a large
/// store has tens of thousands of files.
#[derive(Debug, Default)]
pub(crate) struct DiskBytes(Mutex<Option<Counted>, { rank::DISK_BYTES }>);

#[derive(Clone, Copy, Debug)]
struct Counted {
    of: Files,
    bytes: u64,
    files: usize,
    head_bytes: u64,
}

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

pub(super) fn files_counted(shared: &Shared) -> usize {
    shared.disk_bytes.0.lock().map_or(0, |known| known.files)
}

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
