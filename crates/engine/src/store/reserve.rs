//! Device space that the file system holds for one store: the blocks of a file without content.
//! What frees space takes blocks from it. Stores of one file system thus hold different blocks.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_types::{Error, Result};
use stele_vfs::{Create, Open, Vfs, VfsFile};

/// Name of the file that holds space, in the directory of a store.
pub const NAME: &str = "RESERVE";

#[derive(Debug, Default)]
pub(crate) struct Reserve {
    /// `None` where the file system reserves nothing, and without a reserve.
    file: Option<Arc<dyn VfsFile>>,
    held_bytes: u64,
}

impl Reserve {
    /// Opens the file of an earlier start, or creates it, before the store writes anything else. On a
    /// device with less than `least_bytes` free, its blocks are returned: recovery may need them.
    pub(crate) fn open(vfs: &Arc<dyn Vfs>, dir: &Path, least_bytes: u64) -> Result<Self> {
        if !vfs.can_reserve(dir)? {
            return Ok(Self::default());
        }
        let path: PathBuf = dir.join(NAME);
        if least_bytes == 0 {
            if vfs.exists(&path)? {
                vfs.unlink(&path)?;
            }
            return Ok(Self::default());
        }
        let how = Open { create: Create::IfMissing, ..Open::WRITE };
        let file = vfs.open(&path, how)?;
        let mut reserve = Self { held_bytes: file.len()?, file: Some(file) };
        if vfs.free_bytes(dir)? < least_bytes {
            reserve.shrink(0)?;
        }
        Ok(reserve)
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Whether the file system can hold space.
    pub(crate) fn can_hold(&self) -> bool {
        self.file.is_some()
    }

    /// Returns blocks to the file system, until `bytes` are held.
    pub(crate) fn shrink(&mut self, bytes: u64) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if bytes < self.held_bytes {
            file.set_len(bytes)?;
            self.held_bytes = bytes;
        }
        Ok(())
    }

    /// Takes blocks from the file system, until `bytes` are held. On a full device it holds what it
    /// held before.
    ///
    /// Invariant: the length covers all allocated blocks, so that a truncation returns them.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if bytes <= self.held_bytes {
            return Ok(());
        }
        match file.set_len(bytes).and_then(|()| file.allocate(bytes)) {
            Ok(()) => self.held_bytes = bytes,
            Err(Error::NoSpace(_)) => file.set_len(self.held_bytes)?,
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
