//! Open files for reading: few, and shared by all stores of the process. A file stays valid while a
//! reader holds it.

use crate::dir::Name;
use crate::shared::Shared;
use std::sync::Arc;
use stele_types::{Result, mutant};
use stele_vfs::VfsFile;

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
        let number = u64::from(name.file().0);
        if let Some(file) = self.handles.get(number, is_direct) {
            return Ok(file);
        }
        let file = match is_direct {
            true => self.dir.open_direct(name)?,
            false => self.dir.open_read(name)?,
        };
        let catalog = self.catalog.read();
        let is_known = catalog.get(name.file()).is_some();
        match is_known || mutant::active("log.handle_of_removed_file") {
            true => Ok(self.handles.insert(number, is_direct, file)),
            false => Ok(file),
        }
    }
}
