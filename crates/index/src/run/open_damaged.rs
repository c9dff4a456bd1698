//! Opening a damaged run by what the manifest has of its footer: which keys it spans, what it refers to
//! and which ranges it deletes from older tiers are known for certain, whatever is left of the file.
//!
//! Filter and hash index are done without. Fences are made again from the blocks, which carry their
//! lengths. Where blocks can't be told apart, or the file is gone, one block that can't be read stands for
//! all that it may have held: reads of those keys fail as they do for any damaged block, and it is mended
//! in the same way. The run's references count on, so nothing that it may refer to is removed.

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
    /// What the manifest keeps of the run's footer.
    pub(crate) fn footer_copy(&self) -> Bytes {
        footer::encode_copy(&self.meta, &self.layout).into()
    }

    /// Opens run `id`, of which something is damaged or all is gone, by what the manifest has of it.
    /// Fails with [`Error::Corrupt`] if that is not a footer's copy, else only where reading itself fails.
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
                "the manifest's copy of its footer does not parse",
            ));
        };
        // Rule: what the run may refer to stays, also while nobody can say which keys do.
        if mutant::active("index.stand_in_refers_to_nothing") {
            meta.refs.clear();
        }
        let file: Arc<dyn VfsFile> = match unless_damaged(open_file(vfs, dir, id))? {
            Some(file) => file,
            None => Arc::new(Gone { path: run_path(dir, id) }),
        };
        let whole = unless_damaged(read_fences(&*file, id, &layout))?;
        // Block numbers in the hash index are those of the fences it was written with.
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
        let dead = BTreeSet::new();
        Ok(Arc::new(Self {
            file,
            meta,
            layout,
            fences,
            filter,
            index,
            cache,
            dead,
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

/// A block's size in the file, its first key and its last.
type Outline = (u64, Vec<u8>, Vec<u8>);

/// Fences over all blocks that follow each other whole from the beginning, and one over the rest, if any:
/// its number comes with them.
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
    // The first key that the last whole block can't hold.
    let fence = last_key.map(|last| [&last[..], &[0]].concat()).unwrap_or_default();
    let unreadable_tail = fences.len();
    if !mutant::active("index.rubble_left_out") {
        fences.push(&fence, left);
    }
    Ok((fences.ready(), Some(unreadable_tail)))
}

/// The block at a place of the file, if one of at most `bytes_max` bytes is there.
fn outline_at(file: &dyn VfsFile, id: RunId, at: u64, bytes_max: u64) -> Result<Option<Outline>> {
    let mut head = [0; 4];
    file.read_exact_at(&mut head, at)?;
    let bytes = Block::sealed_bytes(&head).filter(|bytes| *bytes as u64 <= bytes_max);
    let Some(bytes) = bytes else { return Ok(None) };
    let mut sealed = vec![0; bytes];
    file.read_exact_at(&mut sealed, at)?;
    let block = Block::open(file.path(), id, at, &sealed.into())?;
    let key = |slot: usize| {
        let entry = block.entry(slot)?;
        Some([block.shared(), block.suffix(&entry)].concat())
    };
    let ends = key(0).zip(key(block.count().saturating_sub(1)));
    Ok(ends.map(|(first, last)| (bytes as u64, first, last)))
}

/// A run's file that is not there.
#[derive(Debug)]
struct Gone {
    path: PathBuf,
}

impl Gone {
    fn error<T>(&self) -> Result<T> {
        let detail = "the index needs this run".into();
        Err(Error::Missing { path: self.path.clone(), detail })
    }
}

impl VfsFile for Gone {
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
