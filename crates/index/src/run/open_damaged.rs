//! Opening a damaged run by the manifest's copy of its footer. The copy determines which keys the
//! run spans, what it references and which ranges it deletes from older tiers, whatever is left of
//! the file.
//!
//! A damaged filter or hash index is left out. Fences are rebuilt from the blocks, which contain
//! their lengths. Where block boundaries cannot be found, or the file is missing, one unreadable
//! pseudo-block represents all that the rest may have held: reads of those keys fail as for any
//! damaged block, and it is repaired in the same way. The run's references still count, so nothing
//! that it may reference is removed.

use super::cold::Cold;
use super::fences::unless_damaged;
use super::filter::Filter;
use super::footer;
use super::parts::{self, Parts, Pinned};
use super::reader::{Run, open_file, read_fences, read_filter, read_hash_index};
use super::run_path;
use crate::cache::BlockCache;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_types::{Cause, Error, Result, RunId};
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
        let Some((meta, layout)) = known else {
            let path = run_path(dir, id);
            return Err(Error::corrupt(
                &path,
                0,
                "the manifest's copy of the run's footer does not parse",
            ));
        };
        // Invariant: files that the run may reference are kept while its keys are unknown.
        // bug index.stand_in_refers_to_nothing: let meta = { let mut meta = meta; meta.refs.clear(); meta };
        let file: Arc<dyn VfsFile> = match unless_damaged(open_file(vfs, dir, id))? {
            Some(file) => file,
            None => Arc::new(MissingFile { path: run_path(dir, id) }),
        };
        let cold = Parts::Cold(Arc::new(Cold::default()));
        let (masked, covered) = (BTreeSet::new(), Vec::new());
        let mut run = Self { file, meta, layout, parts: cold, index: None, cache, masked, covered };
        let Some(memory) = parts::pin(&run.cache, &run.layout) else {
            // Reads of a cold run leave a damaged filter out and rebuild damaged fences.
            return Ok(Arc::new(run));
        };
        let file = &*run.file;
        let whole = unless_damaged(read_fences(file, id, &layout))?;
        // Block numbers in the hash index refer to the fences it was written with.
        if whole.is_some() {
            run.index = unless_damaged(read_hash_index(file, id, &layout, &run.cache))?.flatten();
        }
        let are_fences_rebuilt = whole.is_none();
        let fences = match whole {
            Some(fences) => fences,
            None => run.rebuild_all_fences()?,
        };
        // A filter without words lets every key pass.
        let filter: Filter = unless_damaged(read_filter(file, id, &layout))?.unwrap_or_default();
        let pinned = Pinned { fences, are_fences_rebuilt, filter, _memory: memory };
        run.parts = Parts::Pinned(Arc::new(pinned));
        Ok(Arc::new(run))
    }
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
