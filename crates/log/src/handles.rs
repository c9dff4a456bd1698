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
    open: RwLock<BTreeMap<FileId, Arc<dyn VfsFile>>>,
}

impl Handles {
    pub fn get(&self, dir: &Dir, name: Name) -> Result<Arc<dyn VfsFile>> {
        if let Some(file) = self.open.read().get(&name.file()) {
            return Ok(file.clone());
        }
        let file = dir.open_read(name)?;
        let mut open = self.open.write();
        if open.len() >= HANDLES_MAX {
            open.pop_first();
        }
        Ok(open.entry(name.file()).or_insert(file).clone())
    }

    pub fn forget(&self, file: FileId) {
        self.open.write().remove(&file);
    }
}
