//! Opening a damaged run by the manifest's copy of its footer. The copy determines which keys the
//! run spans, what it references and which ranges it deletes from older tiers, whatever is left of
//! the file.
//!
//! A damaged filter or hash index is left out. Fences are rebuilt from the blocks, which contain
//! their lengths. Where block boundaries cannot be found, or the file is missing, one unreadable
//! pseudo-block represents all that the rest may have held: reads of those keys fail as for any
//! damaged block, and it is repaired in the same way. The run's references still count, so nothing
//! that it may reference is removed.

use super::block::Block;
use super::fences::{Fences, separator};
use super::filter::Filter;
use super::footer::{self, Layout};
use super::reader::{Run, open_file, read_fences, read_filter, read_hash_index};
use super::run_path;
use crate::cache::BlockCache;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_types::{Cause, Error, Result, RunId, mutant};
use stele_vfs::{Vfs, VfsFile};

impl Run {
    /// Returns the copy of the run's footer for the manifest.
    pub(crate) fn footer_copy(&self) -> Bytes {
        footer::encode_copy(&self.meta, &self.layout).into()
    }

    /// Opens run `id`, which is damaged or missing, by the manifest's copy of its footer. Fails
    /// with [`Error::Corrupt`] if the copy does not parse, otherwise only when reading itself
    /// fails.
    pub(crate) fn open_damaged(
        vfs: &Arc<dyn Vfs>,
        dir: &Path,
        id: RunId,
        cache: Arc<BlockCache>,
        copy: &[u8],
    ) -> Result<Arc<Self>> {
        let known = footer::decode_copy(copy).filter(|(meta, _)| meta.id == id);
        let Some((mut meta, layout)) = known else {
            let path = run_path(dir, id);
            return Err(Error::corrupt(
                &path,
                0,
                "the manifest's copy of the run's footer does not parse",
            ));
        };
        // Invariant: files that the run may reference are kept while its keys are unknown.
        if mutant::active("index.stand_in_refers_to_nothing") {
            meta.refs.clear();
        }
        let file: Arc<dyn VfsFile> = match unless_damaged(open_file(vfs, dir, id))? {
            Some(file) => file,
            None => Arc::new(MissingFile { path: run_path(dir, id) }),
        };
        let whole = unless_damaged(read_fences(&*file, id, &layout))?;
        // Block numbers in the hash index refer to the fences it was written with.
        let index = match &whole {
            Some(_) => unless_damaged(read_hash_index(&*file, id, &layout, &cache))?.flatten(),
            None => None,
        };
        let (fences, unreadable_tail) = match whole {
            Some(fences) => (fences, None),
            None => fences_of_blocks(&*file, id, &layout)?,
        };
        // A filter without words lets every key pass.
        let filter: Filter = unless_damaged(read_filter(&*file, id, &layout))?.unwrap_or_default();
        let masked = BTreeSet::new();
        Ok(Arc::new(Self {
            file,
            meta,
            layout,
            fences,
            filter,
            index,
            cache,
            masked,
            unreadable_tail,
        }))
    }
}

fn unless_damaged<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_damage() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Size of a block in the file, its first key and its last key.
type Outline = (u64, Vec<u8>, Vec<u8>);

/// Rebuilds fences over all intact consecutive blocks from the start, and one over the rest, if
/// any; also returns the number of the latter.
fn fences_of_blocks(
    file: &dyn VfsFile,
    id: RunId,
    layout: &Layout,
) -> Result<(Fences, Option<usize>)> {
    let mut fences = Fences::default();
    let mut last_key: Option<Vec<u8>> = None;
    while fences.data_bytes() < layout.data_bytes {
        let at = fences.data_bytes();
        let outline = unless_damaged(outline_at(file, id, at, layout.data_bytes - at))?.flatten();
        let ascends = |(_, first, _): &Outline| last_key.as_ref().is_none_or(|last| last < first);
        let Some((bytes, first, last)) = outline.filter(ascends) else { break };
        let fence = last_key.as_ref().map_or(&[][..], |below| separator(below, &first));
        fences.push(fence, bytes);
        last_key = Some(last);
    }
    let left = layout.data_bytes - fences.data_bytes();
    if left == 0 {
        return Ok((fences.ready(), None));
    }
    // The first key above those of the last intact block.
    let fence = last_key.map(|last| [&last[..], &[0]].concat()).unwrap_or_default();
    let unreadable_tail = fences.len();
    if !mutant::active("index.rubble_left_out") {
        fences.push(&fence, left);
    }
    Ok((fences.ready(), Some(unreadable_tail)))
}

/// Returns the block at an offset of the file, if there is one of at most `bytes_max` bytes.
fn outline_at(file: &dyn VfsFile, id: RunId, at: u64, bytes_max: u64) -> Result<Option<Outline>> {
    let mut start = [0; 4];
    file.read_exact_at(&mut start, at)?;
    let bytes = Block::bytes_on_disk(&start).filter(|bytes| *bytes as u64 <= bytes_max);
    let Some(bytes) = bytes else { return Ok(None) };
    let mut raw = vec![0; bytes];
    file.read_exact_at(&mut raw, at)?;
    let block = Block::open(file.path(), id, at, &raw.into())?;
    let key = |slot: usize| {
        let entry = block.entry(slot)?;
        Some([block.shared(), block.suffix(&entry)].concat())
    };
    let ends = key(0).zip(key(block.count().saturating_sub(1)));
    Ok(ends.map(|(first, last)| (bytes as u64, first, last)))
}

/// Placeholder for the file of a missing run; every access fails.
#[derive(Debug)]
struct MissingFile {
    path: PathBuf,
}

impl MissingFile {
    fn error<T>(&self) -> Result<T> {
        let detail = "the index needs this run".into();
        Err(Error::Missing { path: self.path.clone(), detail })
    }
}

impl VfsFile for MissingFile {
    fn read_at(&self, _: &mut [u8], _: u64) -> Result<usize> {
        self.error()
    }

    fn read_cached_at(&self, _: &mut [u8], _: u64) -> Result<bool> {
        self.error()
    }

    fn write_at(&self, _: &[IoSlice<'_>], _: u64, _: Cause) -> Result<()> {
        self.error()
    }

    fn sync_data(&self) -> Result<()> {
        self.error()
    }

    fn allocate(&self, _: u64) -> Result<()> {
        self.error()
    }

    fn set_len(&self, _: u64) -> Result<()> {
        self.error()
    }

    fn len(&self) -> Result<u64> {
        self.error()
    }

    fn block_bytes(&self) -> Option<usize> {
        None
    }

    fn path(&self) -> &Path {
        &self.path
    }
}
