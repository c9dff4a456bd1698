//! Open files for reading: few, shared, valid for as long as a reader holds one.

use crate::dir::{Dir, Name};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use stele_types::{FileId, Result};
use stele_vfs::VfsFile;

/// More than this many open files and the oldest is closed.
const HANDLES_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Handles {
    /// By file and whether past the page cache.
    open: RwLock<BTreeMap<(FileId, bool), Arc<dyn VfsFile>>>,
}

impl Handles {
    /// Through the page cache.
    pub fn get(&self, dir: &Dir, name: Name) -> Result<Arc<dyn VfsFile>> {
        self.get_or_open((name.file(), false), || dir.open_read(name))
    }

    /// Past the page cache if the options say so and the file system can.
    pub fn get_direct(&self, dir: &Dir, name: Name) -> Result<Arc<dyn VfsFile>> {
        self.get_or_open((name.file(), true), || dir.open_direct(name))
    }

    /// Through the page cache, if it is open.
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
