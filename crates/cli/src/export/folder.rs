//! Export of pairs as files below a directory. Invariant: no key creates a file outside it.

use super::{Destination, Syncs};
use crate::attributes::{self, Attribute, Attributes, MODE_BITS};
use crate::store::Pair;
use crate::text::printable;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use stele_types::{Error, KeyRange, Result};

/// Maximum number of directories remembered as existing; the set is cleared above it.
const KNOWN_FOLDERS_MAX: usize = 1 << 16;

pub(super) struct Folder {
    root: PathBuf,
    /// File that is written first and then renamed, so that each exported file appears complete or
    /// not at all.
    temporary: PathBuf,
    known: HashSet<PathBuf>,
    kept: Attributes,
    /// Times at which the exported pairs expire, and those of the directory's other files.
    expiries: Attributes,
    range: KeyRange,
    syncs: Syncs,
}

impl Folder {
    /// Creates the directory, which must be outside the store. `kept` are the modes and empty folders
    /// that the store keeps; of the range of the export they are made.
    pub(super) fn new(
        root: &Path,
        (store, range): (&Path, KeyRange),
        kept: Attributes,
        syncs: Syncs,
    ) -> Result<Self> {
        fs::create_dir_all(root).map_err(|error| Error::io("create", root, error))?;
        let canonical =
            |path: &Path| path.canonicalize().map_err(|error| Error::io("open", path, error));
        let (inside, outside) = (canonical(root)?, canonical(store)?);
        if inside.starts_with(&outside) {
            return Err(Error::invalid(format!("{} is inside the store", root.display())));
        }
        let temporary = inside.join(format!(".stele-export-{}", std::process::id()));
        let expiries = match fs::read(inside.join(attributes::NAME)) {
            Ok(text) => Attributes::parse(&text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Attributes::default(),
            Err(error) => return Err(Error::io("read", inside.join(attributes::NAME), error)),
        };
        let known = HashSet::new();
        Ok(Self { root: inside, temporary, known, kept, expiries, range, syncs })
    }

    /// Makes the folders that the store keeps, and gives them their modes: those below first, because
    /// one may forbid what is to be done in it.
    fn make_folders(&mut self, refuse: &mut dyn FnMut(String)) -> Result<()> {
        let kept = std::mem::take(&mut self.kept);
        let wanted = |path: &[u8]| self.range.contains(&[path, b"/"].concat());
        let folders: Vec<(&[u8], Attribute)> =
            kept.folders().filter(|(path, _)| wanted(path)).collect();
        for (path, Attribute { mode, .. }) in folders.into_iter().rev() {
            match self.make_folder(path, mode) {
                Ok(()) => {}
                Err(error @ Error::Invalid(_)) => {
                    refuse(format!("folder `{}`: {error}", printable(path)));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn make_folder(&mut self, path: &[u8], mode: Option<u32>) -> Result<()> {
        let folder = self.root.join(relative_path(path)?);
        // A folder is the parent of what it could hold.
        self.make_parents(&folder.join("_"))?;
        mode.map_or(Ok(()), |mode| set_mode(&folder, mode))
    }

    fn write_expiries(&self) -> Result<()> {
        let path = self.root.join(attributes::NAME);
        if !self.expiries.is_empty() {
            return self.place(&path, &self.expiries.text(), None);
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io("remove", &path, error))
            }
            _ => Ok(()),
        }
    }

    /// Writes a file, which appears complete or not at all.
    fn place(&self, path: &Path, content: &[u8], mode: Option<u32>) -> Result<()> {
        fs::write(&self.temporary, content)
            .map_err(|error| Error::io("write", &self.temporary, error))?;
        mode.map_or(Ok(()), |mode| set_mode(&self.temporary, mode))?;
        fs::rename(&self.temporary, path).map_err(|error| name_error(path, error))
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
        if pair.key == attributes::NAME.as_bytes() {
            return Ok(());
        }
        let path = self.root.join(relative_path(&pair.key)?);
        self.make_parents(&path)?;
        if fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir()) {
            let path = path.display();
            return Err(Error::invalid(format!("{path} exists and is a directory")));
        }
        self.place(&path, &pair.value, self.kept.get(&pair.key).mode)?;
        let expires_at_s = (pair.expires_at_s != 0).then_some(pair.expires_at_s);
        self.expiries.set(pair.key.to_vec(), Attribute { mode: None, expires_at_s });
        Ok(())
    }

    fn finish(mut self: Box<Self>, refuse: &mut dyn FnMut(String)) -> Result<()> {
        self.write_expiries()?;
        self.make_folders(refuse)?;
        (self.syncs.file_system)(&self.root).map_err(|error| Error::io("sync", &self.root, error))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The file exists only if a write failed.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// Sets the permission bits of a file or a folder; the path is none of a symbolic link.
fn set_mode(path: &Path, mode: u32) -> Result<()> {
    let permissions = fs::Permissions::from_mode(mode & MODE_BITS);
    fs::set_permissions(path, permissions)
        .map_err(|error| Error::io("set the mode of", path, error))
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
            // bug cli.export_follows_dots: never
            b".." => {
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
            let outside = (store.path(), KeyRange::all());
            let mut folder = Folder::new(to.path(), outside, Attributes::default(), syncs).unwrap();
            let pair = Pair { key: "a/b".into(), value: "v".into(), expires_at_s: 0 };
            folder.write(&pair).unwrap();
            Box::new(folder).finish(&mut |_| {})
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
