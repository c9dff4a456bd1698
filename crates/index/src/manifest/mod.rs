//! The manifest: which runs are current, and the other facts that must change together with them.
//! An append-only file of frames; each is synced before the state it describes is used, and then
//! written once more: the repetition tells that the first writing was durable, and stands in for it
//! where that is damaged.

mod change;
mod frame;
pub mod inspect;
pub mod rebuild;
mod state;

pub use change::Change;
pub(crate) use state::ManifestState;

use bytes::Bytes;
use frame::{Chain, End};
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_types::{Cause, Error, FileId, Result, mutant};
use stele_vfs::{Create, Open, Vfs, VfsFile};

const TMP_NAME: &str = "manifest.tmp";

/// A fact the index keeps for its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// First segment with wanted Raft entries.
    RaftFrom(FileId),
    /// Lower bound of the next value file's id; never goes back.
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

/// What opening found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Found {
    pub created: bool,
    /// Bytes of an unfinished last frame that were cut.
    pub tail_cut_bytes: u64,
}

/// The open manifest. One writer.
#[derive(Debug)]
pub(crate) struct Manifest {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    file: Arc<dyn VfsFile>,
    end: End,
    /// Size at which it is rewritten.
    rewrite_at: u64,
    bytes_max: u64,
    state: ManifestState,
    poisoned: Option<String>,
}

impl Manifest {
    /// Opens the newest manifest of `dir`, or creates one in a directory without runs.
    pub fn open(vfs: Arc<dyn Vfs>, dir: &Path, bytes_max: u64) -> Result<(Self, Found)> {
        match numbers(&*vfs, dir)?.last() {
            Some(&number) => Self::read(vfs, dir, number, bytes_max),
            None if has_runs(&*vfs, dir)? => {
                let detail = "runs are here but no manifest says which are current".to_owned();
                Err(Error::Missing { path: path_of(dir, 1), detail })
            }
            None => {
                let manifest = Self::create(vfs, dir, 1, ManifestState::default(), bytes_max)?;
                Ok((manifest, Found { created: true, tail_cut_bytes: 0 }))
            }
        }
    }

    /// Writes a new manifest that states `facts`. The name appears only once the content is durable.
    pub fn create(
        vfs: Arc<dyn Vfs>,
        dir: &Path,
        number: u32,
        state: ManifestState,
        bytes_max: u64,
    ) -> Result<Self> {
        let end = write_tmp(&*vfs, dir, number, &state)?;
        let file = name_tmp(&*vfs, dir, number)?;
        let rewrite_at = bytes_max.max(2 * end.offset);
        let dir = dir.to_path_buf();
        Ok(Self { vfs, dir, file, end, rewrite_at, bytes_max, state, poisoned: None })
    }

    fn read(vfs: Arc<dyn Vfs>, dir: &Path, number: u32, bytes_max: u64) -> Result<(Self, Found)> {
        let path = path_of(dir, number);
        let file = vfs.open(&path, Open::WRITE)?;
        let content = read_all(&*file)?;
        let mut state = ManifestState::default();
        let (end, frames) = replay(&path, &content, number, |change| state.apply(&change))?;
        if frames == 0 {
            // A manifest gets its name after its first frame was synced.
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
        Ok((manifest, Found { created: false, tail_cut_bytes }))
    }

    pub fn state(&self) -> &ManifestState {
        &self.state
    }

    pub fn poisoned(&self) -> bool {
        self.poisoned.is_some()
    }

    /// Makes `changes` durable together, then part of [`Manifest::facts`]. After a failure other
    /// than `NoSpace` nothing is known about the file, and every later call fails.
    pub fn append(&mut self, changes: &[Change]) -> Result<()> {
        self.check()?;
        let mut body = Vec::new();
        changes.iter().for_each(|change| change.encode(&mut body));
        let (frame, end) = frame::encode_frame(self.end, &body);
        // A frame cut short by a full device is overwritten by the next one, or cut at open.
        let written = self.file.write_at(&[IoSlice::new(&frame)], self.end.offset, Cause::Manifest);
        self.poison_unless_full(written)?;
        if !mutant::active("index.skip_manifest_sync") {
            let synced = self.file.sync_data();
            self.poison_on(synced)?;
        }
        self.end = end;
        changes.iter().for_each(|change| self.state.apply(change));
        self.repeat(&body)?;
        if self.end.offset >= self.rewrite_at {
            self.rewrite()?;
        }
        Ok(())
    }

    /// Writes a durable frame once more: from then on damage of the first writing is told from a frame
    /// that was cut off by a crash, and made good. Synced, since what the log no longer holds, such as
    /// the pairs of a snapshot, is lost without a word with an edit that is cut off.
    fn repeat(&mut self, body: &[u8]) -> Result<()> {
        if mutant::active("index.edit_unconfirmed") {
            return Ok(());
        }
        let (frame, end) = frame::encode_frame(self.end, body);
        match self.file.write_at(&[IoSlice::new(&frame)], self.end.offset, Cause::Manifest) {
            Ok(()) => {
                self.end = end;
                if mutant::active("index.confirmation_unsynced") {
                    return Ok(());
                }
                let synced = self.file.sync_data();
                self.poison_on(synced)
            }
            // The edit stands without it.
            Err(Error::NoSpace(_)) => Ok(()),
            failed => self.poison_on(failed),
        }
    }

    /// Makes what was read at open durable, whatever became of its syncs: by a new file, or where a full
    /// device has no room for one, by the same bytes in the same place.
    pub fn renew(&mut self) -> Result<()> {
        if self.rewrite()? || mutant::active("index.trust_what_was_read_when_full") {
            return Ok(());
        }
        let mut content = read_all(&*self.file)?;
        content.truncate(self.end.offset as usize);
        self.file.write_at(&[IoSlice::new(&content)], 0, Cause::Manifest)?;
        self.file.sync_data()
    }

    /// Replaces the file by a shorter one. The old one is unlinked after the new name is durable. `false`
    /// where there is no room, and it stays in use.
    pub fn rewrite(&mut self) -> Result<bool> {
        let old = path_of(&self.dir, self.end.number);
        let number = self.end.number.checked_add(1);
        let number = number.ok_or_else(|| Error::invalid("no manifest can follow the last one"))?;
        let written = write_tmp(&*self.vfs, &self.dir, number, &self.state);
        if matches!(written, Err(Error::NoSpace(_))) {
            // The old file stays in use; the next try comes after as many bytes again.
            self.rewrite_at += self.bytes_max;
            return Ok(false);
        }
        let end = self.poison_on(written)?;
        let named = name_tmp(&*self.vfs, &self.dir, number);
        let file = self.poison_on(named)?;
        self.file = file;
        self.end = end;
        self.rewrite_at = self.bytes_max.max(2 * end.offset);
        let unlinked = self.vfs.unlink(&old);
        self.poison_on(unlinked)?;
        Ok(true)
    }

    /// Stops all further changes: what is durable is no longer known.
    pub fn poison_on<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result
            && !mutant::active("index.no_poison")
        {
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

    pub fn check(&self) -> Result<()> {
        match &self.poisoned {
            Some(cause) => Err(Error::Poisoned(cause.clone())),
            None => Ok(()),
        }
    }

    /// Reads the file again and compares what it says with the facts in use.
    pub fn verify(&self) -> Result<()> {
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
    pub fn remove_leftovers(&self) -> Result<usize> {
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

/// Hands every change of every valid frame to `f`; those of a frame that was written twice, twice. An
/// invalid frame ends the file if nothing valid follows it; else it is damage, and nothing is cut.
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
    if frame::any_frame_from(content, number, chain.end.offset)
        && !mutant::active("index.manifest_cut_blindly")
    {
        let detail = "a damaged frame lies before valid ones";
        return Err(Error::corrupt(path, chain.end.offset, detail));
    }
    Ok((chain.end, frames))
}

/// Where the first frame begins. A header says nothing that the file's name does not, so a damaged one
/// is done without if the first frame chains to what it was.
fn begin(path: &Path, content: &[u8], number: u32) -> Result<End> {
    frame::decode_header(path, content, number).or_else(|damage| {
        let stated = frame::encode_header(number).1;
        let chains = Chain::new(content, stated).next().is_some();
        if chains { Ok(stated) } else { Err(damage) }
    })
}

/// Writes a manifest that states `facts`, durable but without its name.
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
    if !mutant::active("index.manifest_rename_unsynced") {
        file.sync_data()?;
    }
    Ok(end)
}

/// Gives the written manifest its name, durable on return: from here on the older one is stale.
fn name_tmp(vfs: &dyn Vfs, dir: &Path, number: u32) -> Result<Arc<dyn VfsFile>> {
    let path = path_of(dir, number);
    vfs.rename(&dir.join(TMP_NAME), &path)?;
    if !mutant::active("index.manifest_dir_unsynced") {
        vfs.sync_dir(dir)?;
    }
    vfs.open(&path, Open::WRITE)
}

pub(crate) fn path_of(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("manifest-{number:06}"))
}

/// Numbers of the manifests in `dir`, ascending.
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
