//! Folders: their files, comparisons of two of them, and their space on the disk.

use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Unit of `st_blocks`, independent of the file system's blocks.
const BLOCK_BYTES: u64 = 512;
const READ_BYTES: usize = 1 << 20;
/// File of a store that only holds blocks.
const RESERVE_FILE: &str = "RESERVE";

/// Regular files in a folder, with their lengths. Links are neither followed nor counted.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// Length of each file by its relative path.
    pub files: BTreeMap<PathBuf, u64>,
}

impl Tree {
    pub(super) fn read(root: &Path) -> Result<Self> {
        let mut tree = Self::default();
        walk(root, &mut |path, metadata| {
            if metadata.is_file() {
                let relative = path.strip_prefix(root).context("a path below its root")?;
                tree.files.insert(relative.to_owned(), metadata.len());
            }
            Ok(())
        })?;
        Ok(tree)
    }

    /// Returns the bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.files.values().sum()
    }

    /// Returns the bytes of every folder in the root.
    pub(super) fn folder_bytes(&self) -> BTreeMap<PathBuf, u64> {
        let mut folders = BTreeMap::new();
        for (path, bytes) in &self.files {
            for folder in path.ancestors().skip(1).filter(|folder| *folder != Path::new("")) {
                *folders.entry(folder.to_owned()).or_insert(0) += bytes;
            }
        }
        folders
    }

    /// Fails at the first difference in names, lengths or bytes.
    pub(super) fn compare(&self, root: &Path, other: &Self, other_root: &Path) -> Result<()> {
        if let Some(path) = self.files.keys().find(|path| !other.files.contains_key(*path)) {
            bail!("{} is missing", other_root.join(path).display());
        }
        if let Some(path) = other.files.keys().find(|path| !self.files.contains_key(*path)) {
            bail!("{} was not in the input", other_root.join(path).display());
        }
        for path in self.files.keys() {
            let (one, two) = (root.join(path), other_root.join(path));
            if !same_bytes(&one, &two)? {
                bail!("{} differs from {}", two.display(), one.display());
            }
        }
        Ok(())
    }
}

/// Bytes of the disk that the folder of a store takes, as `du` counts them.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskBytes {
    /// All of them.
    pub all: u64,
    /// Those that the store only holds in reserve.
    pub held: u64,
}

impl DiskBytes {
    pub(super) fn of(store: &Path) -> Result<Self> {
        let all = fs::symlink_metadata(store)?.blocks() * BLOCK_BYTES;
        let mut bytes = Self { all, held: 0 };
        walk(store, &mut |path, metadata| {
            let of_file = metadata.blocks() * BLOCK_BYTES;
            bytes.all += of_file;
            if path.file_name().is_some_and(|name| name == RESERVE_FILE) {
                bytes.held += of_file;
            }
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Returns the bytes that the store uses.
    pub(super) fn used(&self) -> u64 {
        self.all - self.held
    }
}

fn walk(folder: &Path, f: &mut dyn FnMut(&Path, &fs::Metadata) -> Result<()>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("listing {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let metadata = fs::symlink_metadata(&path)?;
        f(&path, &metadata)?;
        if metadata.is_dir() {
            walk(&path, f)?;
        }
    }
    Ok(())
}

fn same_bytes(one: &Path, two: &Path) -> Result<bool> {
    let open =
        |path: &Path| File::open(path).with_context(|| format!("opening {}", path.display()));
    let mut one = BufReader::with_capacity(READ_BYTES, open(one)?);
    let mut two = BufReader::with_capacity(READ_BYTES, open(two)?);
    let (mut from_one, mut from_two) = (vec![0; READ_BYTES], vec![0; READ_BYTES]);
    loop {
        let (a, b) = (fill(&mut one, &mut from_one)?, fill(&mut two, &mut from_two)?);
        if from_one[..a] != from_two[..b] {
            return Ok(false);
        }
        if a == 0 {
            return Ok(true);
        }
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &mut impl Read, buffer: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..])? {
            0 => break,
            got => filled += got,
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &[u8])]) -> (tempfile::TempDir, Tree) {
        let place = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = place.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let tree = Tree::read(place.path()).unwrap();
        (place, tree)
    }

    #[test]
    fn every_kind_of_difference_is_found() {
        let (one, a) = tree(&[("x/y", b"same"), ("z", b"")]);
        let differs = |files: &[(&str, &[u8])]| {
            let (two, b) = tree(files);
            a.compare(one.path(), &b, two.path()).err().map(|error| error.to_string())
        };
        assert_eq!(differs(&[("x/y", b"same"), ("z", b"")]), None);
        assert!(differs(&[("x/y", b"same")]).unwrap().contains("missing"));
        assert!(differs(&[("x/y", b"same"), ("z", b""), ("w", b"")]).unwrap().contains("input"));
        assert!(differs(&[("x/y", b"sane"), ("z", b"")]).unwrap().contains("differs"));
        assert!(differs(&[("x/y", b"same!"), ("z", b"")]).unwrap().contains("differs"));
    }

    #[test]
    fn folders_add_up() {
        let (place, tree) = tree(&[("a/b/c", &[0; 10]), ("a/d", &[0; 5]), ("e", &[0; 1])]);
        let folders = tree.folder_bytes();
        assert_eq!(folders[Path::new("a")], 15);
        assert_eq!(folders[Path::new("a/b")], 10);
        assert_eq!((folders.len(), tree.bytes()), (2, 16));
        assert!(DiskBytes::of(place.path()).unwrap().used() >= 16);
    }
}
