//! The manifest: the current runs, and the other state that must change together with them. It is
//! an append-only file of frames. Each frame is synced before the state it describes is used, and
//! then written once more. The repetition shows that the first copy was durable, and replaces it if
//! it is damaged.

mod change;
pub(crate) mod frame;
pub(crate) mod rebuild;

pub(crate) use change::ManifestState;
pub use change::{Change, Checkpoint};

use bytes::Bytes;
use frame::{Chain, End};
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_types::{Cause, Error, FileId, Result};
use stele_vfs::{Create, Open, Vfs, VfsFile};

const TMP_NAME: &str = "manifest.tmp";

/// State that the index stores for the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// First segment with needed Raft entries.
    RaftFrom(FileId),
    /// Lower bound of the next value file's id; never decreases.
    NextFile(FileId),
    /// State of garbage collection.
    GcState(Bytes),
}

impl From<Edit> for Change {
    fn from(edit: Edit) -> Self {
        match edit {
            Edit::RaftFrom(file) => Self::RaftFrom(file),
            Edit::NextFile(file) => Self::NextFile(file),
            Edit::GcState(state) => Self::GcState(state),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ManifestRecovery {
    pub created: bool,
    /// Bytes of an unfinished last frame that were truncated.
    pub tail_cut_bytes: u64,
}

/// The open manifest; it has one writer.
#[derive(Debug)]
pub(crate) struct Manifest {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    file: Arc<dyn VfsFile>,
    end: End,
    rewrite_at: u64,
    bytes_max: u64,
    state: ManifestState,
    poisoned: Option<String>,
}

impl Manifest {
    /// Opens the newest manifest of `dir`, or creates one in a directory without runs.
    pub(crate) fn open(
        vfs: Arc<dyn Vfs>,
        dir: &Path,
        bytes_max: u64,
    ) -> Result<(Self, ManifestRecovery)> {
        match numbers(&*vfs, dir)?.last() {
            Some(&number) => Self::read(vfs, dir, number, bytes_max),
            None if has_runs(&*vfs, dir)? => {
                let detail =
                    "runs exist but no manifest lists the current ones; rebuild the manifest"
                        .to_owned();
                Err(Error::Missing { path: path_of(dir, 1), detail })
            }
            None => {
                let manifest = Self::create(vfs, dir, 1, ManifestState::default(), bytes_max)?;
                Ok((manifest, ManifestRecovery { created: true, tail_cut_bytes: 0 }))
            }
        }
    }

    /// Writes a new manifest that records `state`. The file gets its name after its content is
    /// durable.
    pub(crate) fn create(
        vfs: Arc<dyn Vfs>,
        dir: &Path,
        number: u32,
        state: ManifestState,
        bytes_max: u64,
    ) -> Result<Self> {
        let end = write_tmp(&*vfs, dir, number, &state)?;
        rename_tmp(&*vfs, dir, number)?;
        let file = open_named(&*vfs, dir, number)?;
        let rewrite_at = bytes_max.max(2 * end.offset);
        let dir = dir.to_path_buf();
        Ok(Self { vfs, dir, file, end, rewrite_at, bytes_max, state, poisoned: None })
    }

    fn read(
        vfs: Arc<dyn Vfs>,
        dir: &Path,
        number: u32,
        bytes_max: u64,
    ) -> Result<(Self, ManifestRecovery)> {
        let path = path_of(dir, number);
        let file = vfs.open(&path, Open::WRITE)?;
        let content = read_all(&*file)?;
        let mut state = ManifestState::default();
        let (end, frames) = replay(&path, &content, number, |change| state.apply(&change))?;
        if frames == 0 {
            // A manifest gets its name after its first frame was synced, so this is damage, not a
            // torn write.
            return Err(Error::corrupt(&path, end.offset, "the manifest's first frame is damaged"));
        }
        let tail_cut_bytes = (content.len() as u64).saturating_sub(end.offset);
        if tail_cut_bytes > 0 {
            file.set_len(end.offset)?;
            file.sync_data()?;
        }
        let rewrite_at = bytes_max.max(2 * end.offset);
        let dir = dir.to_path_buf();
        let manifest = Self { vfs, dir, file, end, rewrite_at, bytes_max, state, poisoned: None };
        Ok((manifest, ManifestRecovery { created: false, tail_cut_bytes }))
    }

    pub(crate) fn state(&self) -> &ManifestState {
        &self.state
    }

    pub(crate) fn poisoned(&self) -> bool {
        self.poisoned.is_some()
    }

    /// Makes `changes` durable together, then applies them to [`Manifest::state`]. After a failure
    /// other than `NoSpace` the durable state is unknown, and every later call fails.
    pub(crate) fn append(&mut self, changes: &[Change]) -> Result<()> {
        self.check()?;
        let mut body = Vec::new();
        changes.iter().for_each(|change| change.encode(&mut body));
        let (frame, end) = frame::encode_frame(self.end, &body);
        // A frame truncated by a full device is overwritten by the next one, or truncated at open.
        let written = self.file.write_at(&[IoSlice::new(&frame)], self.end.offset, Cause::Manifest);
        self.poison_unless_full(written)?;
        // bug index.skip_manifest_sync: `self.file.sync_data()` is `Ok(())`
        let synced = self.file.sync_data();
        self.poison_on(synced)?;
        self.end = end;
        changes.iter().for_each(|change| self.state.apply(change));
        self.repeat(&body)?;
        if self.end.offset >= self.rewrite_at {
            self.rewrite()?;
        }
        Ok(())
    }

    /// Writes a durable frame once more. From then on damage of the first copy is distinguished
    /// from a frame truncated by a crash, and repaired. The repetition is synced: if the edit were
    /// truncated, data that the log no longer holds, such as the pairs of a snapshot, would be lost
    /// silently.
    fn repeat(&mut self, body: &[u8]) -> Result<()> {
        // bug index.edit_unconfirmed: return Ok(());
        let (frame, end) = frame::encode_frame(self.end, body);
        match self.file.write_at(&[IoSlice::new(&frame)], self.end.offset, Cause::Manifest) {
            Ok(()) => {
                self.end = end;
                // bug index.confirmation_unsynced: return Ok(());
                let synced = self.file.sync_data();
                self.poison_on(synced)
            }
            // The edit is durable without the repetition.
            Err(Error::NoSpace(_)) => Ok(()),
            failed => self.poison_on(failed),
        }
    }

    /// Makes the state read at open durable, whether or not its syncs succeeded: by a new file, or
    /// on a full device by writing the same bytes at the same offset.
    pub(crate) fn renew(&mut self) -> Result<()> {
        let is_rewritten = self.rewrite()?;
        // bug index.trust_what_was_read_when_full: always
        if is_rewritten {
            return Ok(());
        }
        let mut content = read_all(&*self.file)?;
        content.truncate(self.end.offset as usize);
        self.file.write_at(&[IoSlice::new(&content)], 0, Cause::Manifest)?;
        self.file.sync_data()
    }

    /// Replaces the file by a shorter one and unlinks the old one after the new name is durable.
    /// Returns `false` when the device is full; the old file then stays in use.
    pub(crate) fn rewrite(&mut self) -> Result<bool> {
        let old = path_of(&self.dir, self.end.number);
        let number = self.end.number.checked_add(1);
        let number = number
            .ok_or_else(|| Error::invalid("no manifest number is left: the last one is in use"))?;
        let written = write_tmp(&*self.vfs, &self.dir, number, &self.state).and_then(|end| {
            rename_tmp(&*self.vfs, &self.dir, number)?;
            Ok(end)
        });
        // A rename that finds no space changes nothing.
        let is_full = matches!(written, Err(Error::NoSpace(_)));
        // bug index.full_rename_stops: never
        if is_full {
            // The next attempt comes after `bytes_max` more bytes.
            self.rewrite_at += self.bytes_max;
            // Otherwise the next attempt or the next open removes it.
            let _ = self.vfs.unlink(&self.dir.join(TMP_NAME));
            return Ok(false);
        }
        let end = self.poison_on(written)?;
        let named = open_named(&*self.vfs, &self.dir, number);
        let file = self.poison_on(named)?;
        self.file = file;
        self.end = end;
        self.rewrite_at = self.bytes_max.max(2 * end.offset);
        let unlinked = self.vfs.unlink(&old);
        self.poison_on(unlinked)?;
        Ok(true)
    }

    /// Invariant: after an error no change follows. The durable state is unknown.
    /// Test: `a_failed_sync_stops_all_further_edits`.
    pub(crate) fn poison_on<T>(&mut self, result: Result<T>) -> Result<T> {
        // bug index.no_poison: never
        if let Err(error) = &result {
            self.poisoned = Some(error.to_string());
        }
        result
    }

    fn poison_unless_full<T>(&mut self, result: Result<T>) -> Result<T> {
        match result {
            Err(Error::NoSpace(path)) => Err(Error::NoSpace(path)),
            other => self.poison_on(other),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        match &self.poisoned {
            Some(cause) => Err(Error::Poisoned(cause.clone())),
            None => Ok(()),
        }
    }

    pub(crate) fn verify(&self) -> Result<()> {
        let path = path_of(&self.dir, self.end.number);
        let content = read_all(&*self.file)?;
        let mut state = ManifestState::default();
        let (end, _) = replay(&path, &content, self.end.number, |change| state.apply(&change))?;
        if end == self.end && state == self.state {
            return Ok(());
        }
        Err(Error::corrupt(&path, end.offset, "the manifest's last frames are damaged"))
    }

    /// Unlinks manifests older than the one in use and an unfinished new one; returns how many.
    pub(crate) fn remove_leftovers(&self) -> Result<usize> {
        let mut removed = 0;
        for number in numbers(&*self.vfs, &self.dir)? {
            if number != self.end.number {
                self.vfs.unlink(&path_of(&self.dir, number))?;
                removed += 1;
            }
        }
        let tmp = self.dir.join(TMP_NAME);
        if self.vfs.exists(&tmp)? {
            self.vfs.unlink(&tmp)?;
            removed += 1;
        }
        Ok(removed)
    }
}

/// Passes every change of every valid frame to `f`, and those of a repeated frame twice. An invalid
/// frame ends the file if no valid frame follows. Otherwise it is damage, and nothing is truncated.
fn replay(
    path: &Path,
    content: &[u8],
    number: u32,
    mut f: impl FnMut(Change),
) -> Result<(End, usize)> {
    let begin = begin(path, content, number)?;
    let mut chain = Chain::new(content, begin);
    let mut frames = 0;
    while let Some(frame) = chain.next() {
        let changes = Change::decode_all(frame.body)
            .ok_or_else(|| Error::corrupt(path, frame.offset, "unknown change in a valid frame"))?;
        changes.into_iter().for_each(&mut f);
        frames += 1;
    }
    // bug index.manifest_cut_blindly: never
    if frame::any_frame_from(content, number, chain.end.offset) {
        let detail = "a damaged frame lies before valid ones";
        return Err(Error::corrupt(path, chain.end.offset, detail));
    }
    Ok((chain.end, frames))
}

/// Returns where the first frame begins. The file name determines the header, so a damaged header
/// is ignored if the first frame chains to the expected one.
fn begin(path: &Path, content: &[u8], number: u32) -> Result<End> {
    frame::decode_header(path, content, number).or_else(|damage| {
        let stated = frame::encode_header(number).1;
        let chains = Chain::new(content, stated).next().is_some();
        if chains { Ok(stated) } else { Err(damage) }
    })
}

/// Writes a manifest that records `state`, durable but without its name.
fn write_tmp(vfs: &dyn Vfs, dir: &Path, number: u32, state: &ManifestState) -> Result<End> {
    let tmp = dir.join(TMP_NAME);
    if vfs.exists(&tmp)? {
        vfs.unlink(&tmp)?;
    }
    let (mut content, end) = frame::encode_header(number);
    let mut body = Vec::new();
    state.snapshot().iter().for_each(|change| change.encode(&mut body));
    let (first, end) = frame::encode_frame(end, &body);
    let (again, end) = frame::encode_frame(end, &body);
    content.extend_from_slice(&first);
    content.extend_from_slice(&again);
    let file = vfs.open(&tmp, Open { write: true, create: Create::New, direct: false })?;
    file.write_at(&[IoSlice::new(&content)], 0, Cause::Manifest)?;
    // bug index.manifest_rename_unsynced: skip
    file.sync_data()?;
    Ok(end)
}

/// Gives the written manifest its name: from then on the older one is stale.
fn rename_tmp(vfs: &dyn Vfs, dir: &Path, number: u32) -> Result<()> {
    vfs.rename(&dir.join(TMP_NAME), &path_of(dir, number))
}

/// Makes the new name durable and opens the manifest.
fn open_named(vfs: &dyn Vfs, dir: &Path, number: u32) -> Result<Arc<dyn VfsFile>> {
    // bug index.manifest_dir_unsynced: skip
    vfs.sync_dir(dir)?;
    vfs.open(&path_of(dir, number), Open::WRITE)
}

pub(crate) fn path_of(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("manifest-{number:06}"))
}

pub(crate) fn numbers(vfs: &dyn Vfs, dir: &Path) -> Result<Vec<u32>> {
    let mut numbers: Vec<u32> = vfs
        .list(dir)?
        .iter()
        .filter_map(|entry| entry.name.strip_prefix("manifest-")?.parse().ok())
        .collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn has_runs(vfs: &dyn Vfs, dir: &Path) -> Result<bool> {
    Ok(vfs.list(dir)?.iter().any(|entry| entry.name.ends_with(".run")))
}

fn read_all(file: &dyn VfsFile) -> Result<Vec<u8>> {
    let mut content = vec![0; usize::try_from(file.len()?).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut content, 0)?;
    Ok(content)
}

#[cfg(test)]
mod tests;
