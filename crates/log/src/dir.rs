//! The log's directory: file names, and opening by kind.
//!
//! `%08x.seg` segment, `%08x.side` its sidecar, `free-%08x` a segment's blocks waiting for reuse,
//! `%08x.val` sorted value file, `%08x.graves` retained tombstones, `*.tmp` unfinished.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_types::{Error, FileId, Result, StoreId};
use stele_vfs::{Create, Open, Vfs, VfsFile};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Segment(FileId),
    Sidecar(FileId),
    Free(FileId),
    Sorted(FileId),
    Tombstones(FileId),
}

impl Name {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let id = |hex: &str| {
            (hex.len() == 8).then(|| u32::from_str_radix(hex, 16).ok()).flatten().map(FileId)
        };
        if let Some(hex) = name.strip_prefix("free-") {
            return id(hex).map(Self::Free);
        }
        let (hex, extension) = name.split_once('.')?;
        let file = id(hex)?;
        match extension {
            "seg" => Some(Self::Segment(file)),
            "side" => Some(Self::Sidecar(file)),
            "val" => Some(Self::Sorted(file)),
            "graves" => Some(Self::Tombstones(file)),
            _ => None,
        }
    }

    pub(crate) fn file(self) -> FileId {
        match self {
            Self::Segment(id)
            | Self::Sidecar(id)
            | Self::Free(id)
            | Self::Sorted(id)
            | Self::Tombstones(id) => id,
        }
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Segment(id) => write!(f, "{:08x}.seg", id.0),
            Self::Sidecar(id) => write!(f, "{:08x}.side", id.0),
            Self::Free(id) => write!(f, "free-{:08x}", id.0),
            Self::Sorted(id) => write!(f, "{:08x}.val", id.0),
            Self::Tombstones(id) => write!(f, "{:08x}.graves", id.0),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Dir {
    pub vfs: Arc<dyn Vfs>,
    pub path: PathBuf,
    pub store: StoreId,
    pub direct: bool,
}

impl Dir {
    pub(crate) fn path_of(&self, name: Name) -> PathBuf {
        self.path.join(name.to_string())
    }

    /// Opens a file for reads through the page cache. A missing file is [`Error::Missing`].
    pub(crate) fn open_read(&self, name: Name) -> Result<Arc<dyn VfsFile>> {
        self.open_existing(name, Open::READ)
    }

    /// Opens a file for reads, past the page cache if the options say so.
    pub(crate) fn open_direct(&self, name: Name) -> Result<Arc<dyn VfsFile>> {
        self.open_existing(name, Open { direct: self.direct, ..Open::READ })
    }

    /// Opens a file for appends, past the page cache if the options say so.
    pub(crate) fn open_append(&self, name: Name) -> Result<Arc<dyn VfsFile>> {
        self.open_existing(name, Open { direct: self.direct, ..Open::WRITE })
    }

    pub(crate) fn create(&self, path: &Path, direct: bool) -> Result<Arc<dyn VfsFile>> {
        self.vfs.open(path, Open { write: true, create: Create::IfMissing, direct })
    }

    pub(crate) fn sync(&self) -> Result<()> {
        self.vfs.sync_dir(&self.path)
    }

    /// Removes a name; a missing one is not an error.
    pub(crate) fn unlink(&self, path: &Path) -> Result<()> {
        match self.vfs.unlink(path) {
            Err(error) if is_not_found(&error) => Ok(()),
            other => other,
        }
    }

    fn open_existing(&self, name: Name, how: Open) -> Result<Arc<dyn VfsFile>> {
        let path = self.path_of(name);
        self.vfs.open(&path, how).map_err(|error| {
            if is_not_found(&error) {
                let detail = "the log refers to this file".to_string();
                return Error::Missing { path, detail };
            }
            error
        })
    }
}

pub(crate) fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back_and_others_do_not() {
        let id = FileId(0xab);
        for name in [
            Name::Segment(id),
            Name::Sidecar(id),
            Name::Free(id),
            Name::Sorted(id),
            Name::Tombstones(id),
        ] {
            assert_eq!(Name::parse(&name.to_string()), Some(name));
        }
        for other in ["", "1.seg", "000000ab.seg.tmp", "free-1", "000000zz.val", "LOCK"] {
            assert_eq!(Name::parse(other), None, "{other}");
        }
    }
}
