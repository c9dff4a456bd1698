//! Open files for reading: few and shared. A file stays valid while a reader holds it.

use crate::dir::Name;
use crate::shared::Shared;
use std::collections::BTreeMap;
use std::sync::Arc;
use stele_types::lock::{RwLock, rank};
use stele_types::{FileId, Result, mutant};
use stele_vfs::VfsFile;

/// At most this many files are open; the one with the lowest number is closed first.
const HANDLES_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Handles {
    /// By file, and whether the handle bypasses the page cache.
    open: RwLock<BTreeMap<(FileId, bool), Arc<dyn VfsFile>>, { rank::LOG_HANDLES }>,
}

impl Handles {
    /// Returns the handle through the page cache if the file is open.
    pub fn peek(&self, file: FileId) -> Option<Arc<dyn VfsFile>> {
        self.open.read().get(&(file, false)).cloned()
    }

    pub fn forget(&self, file: FileId) {
        let mut open = self.open.write();
        open.remove(&(file, false));
        open.remove(&(file, true));
    }

    fn insert(&self, key: (FileId, bool), file: Arc<dyn VfsFile>) -> Arc<dyn VfsFile> {
        let mut open = self.open.write();
        if open.len() >= HANDLES_MAX {
            open.pop_first();
        }
        open.entry(key).or_insert(file).clone()
    }
}

impl Shared {
    /// Returns a handle through the page cache.
    pub fn handle(&self, name: Name) -> Result<Arc<dyn VfsFile>> {
        self.handle_of(name, false)
    }

    /// Returns a handle past the page cache if the options say so and the file system supports it.
    pub fn handle_direct(&self, name: Name) -> Result<Arc<dyn VfsFile>> {
        self.handle_of(name, true)
    }

    /// Invariant: no handle of a removed file is kept, which would hold its space on the device. A
    /// removal takes the file out of the catalog before it forgets the handles.
    fn handle_of(&self, name: Name, is_direct: bool) -> Result<Arc<dyn VfsFile>> {
        let key = (name.file(), is_direct);
        if let Some(file) = self.handles.open.read().get(&key) {
            return Ok(file.clone());
        }
        let file = match is_direct {
            true => self.dir.open_direct(name)?,
            false => self.dir.open_read(name)?,
        };
        let catalog = self.catalog.read();
        let is_known = catalog.get(name.file()).is_some();
        match is_known || mutant::active("log.handle_of_removed_file") {
            true => Ok(self.handles.insert(key, file)),
            false => Ok(file),
        }
    }
}
