//! Pairs as files below a folder. No key leads outside it.

use super::Destination;
use crate::store::Pair;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use stele_types::{Error, Result};

/// Folders known to be there; more are looked up again.
const KNOWN_FOLDERS_MAX: usize = 1 << 16;

pub struct Folder {
    root: PathBuf,
    /// Where a file is written before it gets its name, so that a file is there whole or not at all.
    temporary: PathBuf,
    known: HashSet<PathBuf>,
}

impl Folder {
    /// Makes the folder. It must lie outside the store.
    pub fn new(root: &Path, store: &Path) -> Result<Self> {
        fs::create_dir_all(root).map_err(|error| Error::io("create", root, error))?;
        let canonical =
            |path: &Path| path.canonicalize().map_err(|error| Error::io("open", path, error));
        let (inside, outside) = (canonical(root)?, canonical(store)?);
        if inside.starts_with(&outside) {
            return Err(Error::invalid(format!("{} lies inside the store", root.display())));
        }
        let temporary = inside.join(format!(".stele-export-{}", std::process::id()));
        Ok(Self { root: inside, temporary, known: HashSet::new() })
    }

    /// Makes the folders on the way to `path`, whose parts were checked. A symbolic link among them
    /// could lead outside.
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
                    return Err(Error::invalid(format!("{parent} is there and is no folder")));
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
            return Err(Error::invalid(format!("{path} is there and is a folder")));
        }
        fs::write(&self.temporary, &pair.value)
            .map_err(|error| Error::io("write", &self.temporary, error))?;
        fs::rename(&self.temporary, &path).map_err(|error| name_error(&path, error))
    }

    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Left over only when a write failed; there may be nothing to remove.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// A name the file system does not take concerns one key; anything else is a failing device.
fn name_error(path: &Path, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::InvalidFilename | io::ErrorKind::InvalidInput => {
            Error::invalid(format!("not a file name here: {error}"))
        }
        _ => Error::io("create", path, error),
    }
}

/// The key as a path of plain names: not absolute, no `.`, `..` or empty part.
fn relative_path(key: &[u8]) -> Result<PathBuf> {
    let refuse =
        |why: &str| Err(Error::invalid(format!("{why}; use --to FILE.jsonl for such keys")));
    if key.is_empty() {
        return refuse("an empty key is no file name");
    }
    if key.starts_with(b"/") {
        return refuse("an absolute path would leave the folder");
    }
    let mut path = PathBuf::new();
    for part in key.split(|&byte| byte == b'/') {
        match part {
            b".." if !stele_types::mutant::active("cli.export_follows_dots") => {
                return refuse("`..` would leave the folder");
            }
            b"" | b"." => return refuse("an empty or `.` part is no file name"),
            part if part.contains(&0) => return refuse("a zero byte is not allowed in file names"),
            part => path.push(OsStr::from_bytes(part)),
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

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
