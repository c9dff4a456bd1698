//! Import of files below a directory: the key is the relative path, with `/` between its parts, in
//! the bytes of the file system.

use super::{Item, Sink};
use crate::store::check_value_bytes;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use stele_types::command::check_user_key;
use stele_types::limits::VALUE_BYTES_MAX;
use stele_types::{Error, Result};

/// Entry below the directory.
enum Found {
    File { path: PathBuf, bytes: u64 },
    Special,
    Unreadable(Error),
}

/// Yields every file, directory by directory, in the order of names.
pub fn read(from: &Path, sink: &mut Sink) -> Result<()> {
    walk(from, &mut |found| match found {
        Found::File { path, bytes } => sink.push(item(from, &path, bytes)),
        Found::Special => sink.push(Item::Skipped),
        Found::Unreadable(error) => {
            sink.push(Item::Refused { what: String::new(), error, source_bytes: 0 })
        }
    })
}

/// Returns the bytes of all files, for the progress bar.
pub fn total_bytes(from: &Path) -> u64 {
    let mut total = 0;
    let walked = walk(from, &mut |found| {
        if let Found::File { bytes, .. } = found {
            total += bytes;
        }
        Ok(())
    });
    debug_assert!(walked.is_ok());
    total
}

/// Calls `f` for each entry. Memory: the names of one directory per level of the tree.
fn walk(folder: &Path, f: &mut dyn FnMut(Found) -> Result<()>) -> Result<()> {
    let mut entries = match fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
        Ok(entries) => entries,
        Err(error) => return f(Found::Unreadable(Error::io("list", folder, error))),
    };
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        // The metadata of the entry itself: symbolic links are not followed.
        match entry.metadata() {
            Ok(meta) if meta.is_dir() => walk(&path, f)?,
            Ok(meta) if meta.is_file() => f(Found::File { path, bytes: meta.len() })?,
            Ok(_) => f(Found::Special)?,
            Err(error) => f(Found::Unreadable(Error::io("read", &path, error)))?,
        }
    }
    Ok(())
}

fn item(from: &Path, path: &Path, source_bytes: u64) -> Item {
    let key = key(from, path);
    match check_user_key(&key).and_then(|()| load(path, source_bytes)) {
        Ok(value) => Item::Pair { key, value, ttl_s: None, source_bytes },
        Err(error) => Item::Refused { what: path.display().to_string(), error, source_bytes },
    }
}

fn key(from: &Path, path: &Path) -> Vec<u8> {
    let relative = path.strip_prefix(from).unwrap_or(path);
    let parts: Vec<&[u8]> = relative.iter().map(OsStrExt::as_bytes).collect();
    parts.join(&b'/')
}

/// Reads the content; never more than a value's limit, also if the file grows meanwhile.
fn load(path: &Path, bytes: u64) -> Result<Vec<u8>> {
    check_value_bytes(bytes)?;
    let failed = |error| Error::io("read", path, error);
    let file = File::open(path).map_err(failed)?;
    let mut value = Vec::with_capacity(bytes as usize + 1);
    file.take(VALUE_BYTES_MAX as u64 + 1).read_to_end(&mut value).map_err(failed)?;
    check_value_bytes(value.len() as u64)?;
    Ok(value)
}
