//! Export of pairs as files below a directory. Invariant: no key creates a file outside it.

use super::{Destination, Syncs};
use crate::store::Pair;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use stele_types::{Error, Result};

/// Maximum number of directories remembered as existing; the set is cleared above it.
const KNOWN_FOLDERS_MAX: usize = 1 << 16;

pub struct Folder {
    root: PathBuf,
    /// File that is written first and then renamed, so that each exported file appears complete or
    /// not at all.
    temporary: PathBuf,
    known: HashSet<PathBuf>,
    syncs: Syncs,
}

impl Folder {
    /// Creates the directory, which must be outside the store.
    pub fn new(root: &Path, store: &Path, syncs: Syncs) -> Result<Self> {
        fs::create_dir_all(root).map_err(|error| Error::io("create", root, error))?;
        let canonical =
            |path: &Path| path.canonicalize().map_err(|error| Error::io("open", path, error));
        let (inside, outside) = (canonical(root)?, canonical(store)?);
        if inside.starts_with(&outside) {
            return Err(Error::invalid(format!("{} is inside the store", root.display())));
        }
        let temporary = inside.join(format!(".stele-export-{}", std::process::id()));
        Ok(Self { root: inside, temporary, known: HashSet::new(), syncs })
    }

    /// Creates the parent directories of `path`; its parts were checked. Refuses symbolic links,
    /// which could lead outside.
    fn make_parents(&mut self, path: &Path) -> Result<()> {
        let Some(parent) = path.parent().filter(|parent| *parent != self.root) else {
            return Ok(());
        };
        if self.known.contains(parent) {
            return Ok(());
        }
        self.make_parents(parent)?;
        match DirBuilder::new().create(parent) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let meta = fs::symlink_metadata(parent);
                let meta = meta.map_err(|error| Error::io("open", parent, error))?;
                if !meta.is_dir() {
                    let parent = parent.display();
                    return Err(Error::invalid(format!("{parent} exists and is not a directory")));
                }
            }
            Err(error) => return Err(name_error(parent, error)),
        }
        if self.known.len() >= KNOWN_FOLDERS_MAX {
            self.known.clear();
        }
        self.known.insert(parent.to_path_buf());
        Ok(())
    }
}

impl Destination for Folder {
    fn write(&mut self, pair: &Pair) -> Result<()> {
        let path = self.root.join(relative_path(&pair.key)?);
        self.make_parents(&path)?;
        if fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir()) {
            let path = path.display();
            return Err(Error::invalid(format!("{path} exists and is a directory")));
        }
        fs::write(&self.temporary, &pair.value)
            .map_err(|error| Error::io("write", &self.temporary, error))?;
        fs::rename(&self.temporary, &path).map_err(|error| name_error(&path, error))
    }

    fn finish(self: Box<Self>) -> Result<()> {
        (self.syncs.file_system)(&self.root).map_err(|error| Error::io("sync", &self.root, error))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The file exists only if a write failed.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// Makes the error for a path: `Invalid`, for this key only, if the file system refuses the name;
/// else an I/O error.
fn name_error(path: &Path, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::InvalidFilename | io::ErrorKind::InvalidInput => {
            Error::invalid(format!("not a valid file name on this file system: {error}"))
        }
        _ => Error::io("create", path, error),
    }
}

/// Returns the key as a relative path without empty, `.` or `..` parts.
fn relative_path(key: &[u8]) -> Result<PathBuf> {
    let refuse =
        |reason: &str| Err(Error::invalid(format!("{reason}; use --to FILE.jsonl for such keys")));
    if key.is_empty() {
        return refuse("an empty key is not a file name");
    }
    if key.starts_with(b"/") {
        return refuse("an absolute path would leave the directory");
    }
    let mut path = PathBuf::new();
    for part in key.split(|&byte| byte == b'/') {
        match part {
            b".." if !stele_types::mutant::active("cli.export_follows_dots") => {
                return refuse("`..` would leave the directory");
            }
            b"" | b"." => return refuse("an empty or `.` part is not a file name"),
            part if part.contains(&0) => return refuse("a zero byte is not allowed in file names"),
            part => path.push(OsStr::from_bytes(part)),
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::super::SYNCS;
    use super::*;

    #[test]
    fn an_export_of_files_is_complete_only_if_they_are_durable() {
        let (store, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let export = |syncs| {
            let mut folder = Folder::new(to.path(), store.path(), syncs).unwrap();
            let pair = Pair { key: "a/b".into(), value: "v".into(), expires_at_s: 0 };
            folder.write(&pair).unwrap();
            Box::new(folder).finish()
        };
        let failing = Syncs { file_system: |_| Err(io::Error::other("lost")), ..SYNCS };
        assert!(export(failing).unwrap_err().to_string().contains("lost"));
        export(SYNCS).unwrap();
        assert_eq!(fs::read(to.path().join("a/b")).unwrap(), b"v");
    }

    #[test]
    fn keys_that_lead_outside_are_refused() {
        let bad: [&[u8]; 10] = [
            b"",
            b"/etc/passwd",
            b"..",
            b"a/../b",
            b"../a",
            b"a/..",
            b"a//b",
            b"a/",
            b"./a",
            b"a\0b",
        ];
        for key in bad {
            assert!(relative_path(key).is_err(), "{}", String::from_utf8_lossy(key));
        }
        for good in [&b"a"[..], b"a/b.c", b"...", b"..a/b", b"\xff/x"] {
            let path = relative_path(good).unwrap();
            assert_eq!(path.as_os_str().as_bytes(), good);
        }
    }
}
