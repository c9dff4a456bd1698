//! A file system of which all changes stay in memory. A store can be opened on it as if it were opened for
//! writing.
//!
//! Invariant: files below are read, never changed: a command that only reads leaves its directory as it is.
//! Test: `changes_of_a_copy_equal_a_map_of_bytes_and_the_files_below_stay_as_they_were`.

mod file;

use crate::handles::{Pinned, Unmoved};
use crate::{Create, DirEntry, DirLock, Meter, Open, Vfs, VfsFile, check_open, check_rename};
use file::{Budget, CopyFile, CowInode};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use stele_types::{Error, Result};

/// Changes in memory over another file system. Nothing else may change the files below meanwhile.
#[derive(Debug)]
pub struct CopyOnWriteVfs {
    below: Arc<dyn Vfs>,
    budget: Arc<Budget>,
    meter: Arc<Meter>,
    names: Mutex<Names>,
    locks: Arc<Mutex<BTreeSet<PathBuf>>>,
}

/// What differs from the directories below, by path; all other names are those below.
#[derive(Debug, Default)]
struct Names {
    changed: BTreeMap<PathBuf, Name>,
    /// Bytes on the device of files that were removed or replaced here, and exist below.
    removed_bytes: u64,
}

#[derive(Debug)]
enum Name {
    /// Open for reading: the file below, as long as no handle changes it.
    Read(Weak<CowInode>),
    /// Created, renamed, or open for writing.
    Written(Arc<CowInode>),
    Removed,
    Dir,
}

impl CopyOnWriteVfs {
    /// Creates a copy of `below` of which the changes take at most `bytes_max` bytes of memory.
    /// Changes beyond that are refused.
    pub fn new(below: Arc<dyn Vfs>, bytes_max: u64) -> Self {
        Self {
            below,
            budget: Arc::new(Budget::new(bytes_max)),
            meter: Arc::default(),
            names: Mutex::default(),
            locks: Arc::default(),
        }
    }

    /// Returns the bytes on the device of files that were removed or replaced here. They still
    /// exist below.
    pub fn removed_bytes(&self) -> u64 {
        self.names.lock().removed_bytes
    }

    fn find(&self, names: &Names, path: &Path, op: &'static str) -> Result<Option<Arc<CowInode>>> {
        match names.changed.get(path) {
            Some(Name::Removed) => return Ok(None),
            Some(Name::Dir) => {
                return Err(Error::io(op, path, io::ErrorKind::IsADirectory.into()));
            }
            Some(Name::Written(inode)) => return Ok(Some(inode.clone())),
            Some(Name::Read(inode)) => {
                if let Some(inode) = inode.upgrade() {
                    return Ok(Some(inode));
                }
            }
            None => {}
        }
        if !self.below.exists(path)? {
            return Ok(None);
        }
        let file = self.below.open(path, Open::READ)?;
        Ok(Some(Arc::new(CowInode::of_below(file, path, self.budget.clone())?)))
    }

    fn must_find(&self, names: &Names, path: &Path, op: &'static str) -> Result<Arc<CowInode>> {
        self.find(names, path, op)?
            .ok_or_else(|| Error::io(op, path, io::ErrorKind::NotFound.into()))
    }

    /// Counts a file as removed if it is one below.
    fn count_removed(&self, names: &mut Names, inode: &CowInode) -> Result<()> {
        let Some(path) = inode.path_below() else { return Ok(()) };
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
        let name = name.to_string_lossy();
        let entry = self.below.list(dir)?.into_iter().find(|entry| entry.name == name);
        names.removed_bytes += entry.map_or(0, |entry| entry.allocated_bytes);
        Ok(())
    }

    fn exists_in(&self, names: &Names, path: &Path) -> Result<bool> {
        match names.changed.get(path) {
            Some(Name::Removed) => Ok(false),
            Some(Name::Written(_) | Name::Dir) => Ok(true),
            Some(Name::Read(_)) | None => self.below.exists(path),
        }
    }
}

impl crate::VfsLayer for CopyOnWriteVfs {
    fn below(&self) -> &dyn Vfs {
        &*self.below
    }

    fn open(&self, path: &Path, how: Open) -> Result<Arc<dyn VfsFile>> {
        check_open(path, how)?;
        // bug vfs.copy_written_through: if how.write { return self.below.open(path, how); }
        let mut names = self.names.lock();
        let failed = |kind: io::ErrorKind| Error::io("open", path, kind.into());
        let inode = match (self.find(&names, path, "open")?, how.create) {
            (Some(_), Create::New) => return Err(failed(io::ErrorKind::AlreadyExists)),
            (Some(inode), _) => inode,
            (None, Create::Never) => return Err(failed(io::ErrorKind::NotFound)),
            (None, _) => Arc::new(CowInode::new(self.budget.clone())),
        };
        let is_written = how.write || matches!(names.changed.get(path), Some(Name::Written(_)));
        let name = match is_written {
            true => Name::Written(inode.clone()),
            false => Name::Read(Arc::downgrade(&inode)),
        };
        names.changed.insert(path.to_path_buf(), name);
        let meter = self.meter.clone();
        Ok(Arc::new(CopyFile { inode, path: path.to_path_buf(), write: how.write, meter }))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        check_rename(from, to)?;
        let mut names = self.names.lock();
        let inode = self.must_find(&names, from, "rename")?;
        if from == to {
            return Ok(());
        }
        if let Some(replaced) = self.find(&names, to, "rename")? {
            self.count_removed(&mut names, &replaced)?;
        }
        names.changed.insert(from.to_path_buf(), Name::Removed);
        names.changed.insert(to.to_path_buf(), Name::Written(inode));
        Ok(())
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        let mut names = self.names.lock();
        let inode = self.must_find(&names, path, "unlink")?;
        self.count_removed(&mut names, &inode)?;
        names.changed.insert(path.to_path_buf(), Name::Removed);
        Ok(())
    }

    fn sync_dir(&self, _dir: &Path) -> Result<()> {
        self.meter.count_dir_sync();
        Ok(())
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        let mut names = self.names.lock();
        for dir in dir.ancestors().filter(|dir| !dir.as_os_str().is_empty()) {
            if self.exists_in(&names, dir)? {
                break;
            }
            names.changed.insert(dir.to_path_buf(), Name::Dir);
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        let names = self.names.lock();
        let below = match names.changed.get(dir) {
            Some(Name::Dir) => Vec::new(),
            _ => self.below.list(dir)?,
        };
        let allocated: BTreeMap<PathBuf, u64> =
            below.iter().map(|entry| (dir.join(&entry.name), entry.allocated_bytes)).collect();
        let is_changed = |name: &Name| !matches!(name, Name::Read(_));
        let unchanged = |entry: &DirEntry| {
            names.changed.get(&dir.join(&entry.name)).is_none_or(|name| !is_changed(name))
        };
        let mut entries: Vec<DirEntry> = below.into_iter().filter(unchanged).collect();
        for (path, name) in &names.changed {
            let (Some(parent), Some(file)) = (path.parent(), path.file_name()) else { continue };
            let bytes_below = |path: &PathBuf| allocated.get(path).copied();
            let (bytes, allocated_bytes, is_dir) = match name {
                _ if parent != dir => continue,
                Name::Written(inode) => {
                    let on_device = inode.path_below().and_then(bytes_below);
                    (inode.len(), on_device.unwrap_or_default(), false)
                }
                Name::Dir => (0, 0, true),
                Name::Read(_) | Name::Removed => continue,
            };
            let name = file.to_string_lossy().into_owned();
            entries.push(DirEntry { name, bytes, allocated_bytes, is_dir });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.exists_in(&self.names.lock(), path)
    }

    /// Also takes the lock below, if its file exists: no process has opened a directory without it.
    ///
    /// Invariant: no file below is opened for writing, so that a directory can also be read where this
    /// process may not write.
    /// Test: `a_process_that_reads_opens_no_file_for_writing_and_keeps_writers_out`.
    fn lock(&self, path: &Path) -> Result<Box<dyn DirLock>> {
        let below = match self.below.exists(path)? {
            true => self.below.lock_for_reading(path)?,
            false => None,
        };
        if !self.locks.lock().insert(path.to_path_buf()) {
            return Err(Error::Locked(path.to_path_buf()));
        }
        let (locks, path) = (self.locks.clone(), path.to_path_buf());
        Ok(Box::new(CopyLock { locks, path, _below: below }))
    }

    fn pin(&self, path: &Path) -> Result<Box<dyn Pinned>> {
        Ok(Box::new(Unmoved(path.to_path_buf())))
    }

    fn free_bytes(&self, _dir: &Path) -> Result<u64> {
        Ok(self.budget.free_bytes())
    }

    fn can_reserve(&self, _dir: &Path) -> Result<bool> {
        Ok(false)
    }

    fn keeps_changes(&self) -> bool {
        false
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }

    fn lock_for_reading(&self, path: &Path) -> Result<Option<Box<dyn DirLock>>> {
        Vfs::lock(self, path).map(Some)
    }
}

#[derive(Debug)]
struct CopyLock {
    locks: Arc<Mutex<BTreeSet<PathBuf>>>,
    path: PathBuf,
    _below: Option<Box<dyn DirLock>>,
}

impl DirLock for CopyLock {}

impl Drop for CopyLock {
    fn drop(&mut self) {
        self.locks.lock().remove(&self.path);
    }
}
