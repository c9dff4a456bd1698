//! Open files for reading: few and shared. A file stays valid while a reader holds it.

use crate::dir::{Dir, Name};
use std::collections::BTreeMap;
use std::sync::Arc;
use stele_types::lock::{RwLock, rank};
use stele_types::{FileId, Result};
use stele_vfs::VfsFile;

/// At most this many files are open; the one with the lowest number is closed first.
const HANDLES_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Handles {
    /// By file, and whether the handle bypasses the page cache.
    open: RwLock<BTreeMap<(FileId, bool), Arc<dyn VfsFile>>, { rank::LOG_HANDLES }>,
}

impl Handles {
    /// Returns a handle through the page cache.
    pub fn get(&self, dir: &Dir, name: Name) -> Result<Arc<dyn VfsFile>> {
        self.get_or_open((name.file(), false), || dir.open_read(name))
    }

    /// Returns a handle past the page cache if the options say so and the file system supports it.
    pub fn get_direct(&self, dir: &Dir, name: Name) -> Result<Arc<dyn VfsFile>> {
        self.get_or_open((name.file(), true), || dir.open_direct(name))
    }

    /// Returns the handle through the page cache if the file is open.
    pub fn peek(&self, file: FileId) -> Option<Arc<dyn VfsFile>> {
        self.open.read().get(&(file, false)).cloned()
    }

    fn get_or_open(
        &self,
        key: (FileId, bool),
        open_file: impl FnOnce() -> Result<Arc<dyn VfsFile>>,
    ) -> Result<Arc<dyn VfsFile>> {
        if let Some(file) = self.open.read().get(&key) {
            return Ok(file.clone());
        }
        let file = open_file()?;
        let mut open = self.open.write();
        if open.len() >= HANDLES_MAX {
            open.pop_first();
        }
        Ok(open.entry(key).or_insert(file).clone())
    }

    pub fn forget(&self, file: FileId) {
        let mut open = self.open.write();
        open.remove(&(file, false));
        open.remove(&(file, true));
    }
}
